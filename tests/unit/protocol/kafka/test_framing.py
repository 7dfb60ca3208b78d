"""Frames, however the stream of bytes is divided."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandlog.errors import FrameTooLargeError
from strandlog.protocol.kafka.framing import LENGTH_SIZE, FrameSplitter

LIMIT = 1000


def _framed(frames: list[bytes]) -> bytes:
    return b"".join(len(frame).to_bytes(4) + frame for frame in frames)


def _fed(splitter: FrameSplitter, data: bytes) -> list[memoryview]:
    splitter.feed(data)
    return list(iter(splitter.cut, None))


@given(st.lists(st.binary(max_size=50), max_size=8), st.lists(st.integers(1, 30), max_size=60))
def test_frames_come_out_whole_and_in_order_however_the_bytes_are_cut(
    frames: list[bytes], cuts: list[int]
) -> None:
    stream = _framed(frames)
    splitter = FrameSplitter(LIMIT)
    found: list[bytes] = []
    position = 0
    for size in [*cuts, len(stream)]:
        found += [bytes(frame) for frame in _fed(splitter, stream[position : position + size])]
        position = min(position + size, len(stream))
    assert found == frames
    assert splitter.buffered_bytes == 0


@given(st.lists(st.binary(max_size=20), max_size=30), st.lists(st.integers(0, 3), max_size=40))
def test_frames_that_are_taken_late_come_out_in_order(frames: list[bytes], cuts: list[int]) -> None:
    stream = _framed(frames)
    splitter = FrameSplitter(LIMIT)
    found: list[bytes] = []
    for position in range(0, len(stream), 7):
        splitter.feed(stream[position : position + 7])
        for _ in range(cuts.pop() if cuts else 0):
            if (frame := splitter.cut()) is not None:
                found.append(bytes(frame))
        splitter.compact()
    found += [bytes(frame) for frame in iter(splitter.cut, None)]
    assert found == frames


def test_waiting_frames_keep_no_more_memory_than_their_bytes() -> None:
    chunk = _framed([b"x" * 900, b"y"])
    splitter = FrameSplitter(LIMIT)
    splitter.feed(chunk)
    assert bytes(splitter.cut() or b"") == b"x" * 900
    splitter.compact()
    frame = splitter.cut()
    assert frame is not None
    assert bytes(frame) == b"y"
    assert len(memoryview(frame.obj)) == splitter.buffered_bytes + LENGTH_SIZE + len(frame)


@pytest.mark.parametrize("length", [-1, -(2**31), LIMIT + 1, 2**31 - 1])
def test_a_hostile_length_is_rejected_before_memory_is_allocated(length: int) -> None:
    splitter = FrameSplitter(LIMIT)
    with pytest.raises(FrameTooLargeError, match=str(length)):
        _fed(splitter, length.to_bytes(4, signed=True) + b"x")


def test_an_http_request_is_not_a_frame() -> None:
    with pytest.raises(FrameTooLargeError):
        _fed(FrameSplitter(100 * 1024 * 1024), b"GET / HTTP/1.1\r\n")


def test_a_frame_that_arrives_in_one_piece_is_not_copied() -> None:
    data = _framed([b"abc", b"defg"])
    first, second = _fed(FrameSplitter(LIMIT), data)
    assert first.obj is data
    assert second.obj is data


@pytest.mark.parametrize(
    ("start", "told"),
    [
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1:9092\r\n\r\n", "HTTP client on a Kafka listener"),
        (b"POST /api/v1/topics HTTP/1.1\r\n", "HTTP client on a Kafka listener"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "TLS client on a plaintext listener"),
        (b"\x7f\x00\x00\x00", "a frame has length 2130706432"),
    ],
)
def test_the_error_names_http_or_tls_instead_of_a_frame_of_1195725856_bytes(
    start: bytes, told: str
) -> None:
    with pytest.raises(FrameTooLargeError, match=told):
        _fed(FrameSplitter(100 * 1024 * 1024), start)
