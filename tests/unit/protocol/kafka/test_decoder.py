"""The decoder against kio's writer, for every API and version, and against hostile bytes."""

from __future__ import annotations

import struct
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples
from tests.support.kafka_requests import encode, request_bodies
from tests.support.samples import outer_versions

from strandlog.config.limits.kafka import MAX_ARRAY_ELEMENTS
from strandlog.errors import DataError
from strandlog.protocol.kafka.api import FETCH, PRODUCE
from strandlog.protocol.kafka.decoder import decode_request
from strandlog.server.kafka.handlers import declared_apis

# produce_fetch_server decodes Produce by hand.
ALL_VERSIONS = [
    (api.key, version)
    for api in declared_apis()
    if api.key != PRODUCE.key
    for version in api.versions
]
FLEXIBLE = [
    (api.key, version)
    for api in declared_apis()
    if api.key != PRODUCE.key
    for version in api.versions
    if api.api.is_flexible(version)
]
QUICK = examples(0.03)


def _same(ours: Any, kios: Any) -> bool:
    if is_dataclass(kios):
        return all(_same(getattr(ours, f.name), getattr(kios, f.name)) for f in fields(kios))
    if isinstance(kios, tuple):
        return len(ours) == len(kios) and all(map(_same, ours, kios))
    return bool(ours == kios)


@pytest.mark.parametrize(("api_key", "version"), outer_versions(ALL_VERSIONS))
def test_requests_written_by_kio_are_decoded(api_key: int, version: int) -> None:
    @QUICK
    @given(request_bodies(api_key, version), st.binary(max_size=5))
    def check(body: Any, before: bytes) -> None:
        frame = memoryview(before + encode(body))
        assert _same(decode_request(api_key, version, frame, len(before)), body)

    check()


@pytest.mark.parametrize(("api_key", "version"), outer_versions(ALL_VERSIONS))
def test_a_request_that_was_cut_or_changed_is_read_or_is_a_data_error(
    api_key: int, version: int
) -> None:
    @QUICK
    @given(request_bodies(api_key, version), st.data())
    def check(body: Any, data: Any) -> None:
        frame = bytearray(encode(body))
        for cut in range(len(frame)):
            with pytest.raises(DataError):
                decode_request(api_key, version, memoryview(bytes(frame[:cut])), 0)
        if frame:
            frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
        try:
            decode_request(api_key, version, memoryview(bytes(frame)), 0)
        except DataError:
            return

    check()


@pytest.mark.parametrize(("api_key", "version"), outer_versions(FLEXIBLE))
def test_unknown_tagged_fields_are_skipped(api_key: int, version: int) -> None:
    unknown = b"\x02\xe8\x07\x03abc\xe9\x07\x00"  # tags 1000 and 1001

    @QUICK
    @given(request_bodies(api_key, version))
    def check(body: Any) -> None:
        frame = encode(body)
        if any("tag" in field.metadata for field in fields(body)):
            return  # the count of tagged fields may not be the last byte
        assert _same(decode_request(api_key, version, memoryview(frame[:-1] + unknown), 0), body)

    check()


def test_an_unknown_tagged_field_inside_a_structure_is_skipped() -> None:
    topic = b"\x02t"
    known = struct.pack(">iiqiqi", 3, 0, 5, -1, -1, 100)
    frame = (
        struct.pack(">iiiibii", -1, 500, 1, 1000, 0, 0, -1)
        + (b"\x02" + topic + b"\x02" + known + b"\x01\x63\x02xy" + b"\x00")
        + b"\x01\x01\x00"
    )
    body = decode_request(FETCH.key, 12, memoryview(frame), 0)
    [part] = body.topics[0].partitions
    assert (part.partition, part.fetch_offset, part.partition_max_bytes) == (3, 5, 100)


def test_an_array_is_no_longer_than_the_limit() -> None:
    names = struct.pack(">i", MAX_ARRAY_ELEMENTS) + bytes(2 * MAX_ARRAY_ELEMENTS)
    assert len(decode_request(15, 0, memoryview(names), 0).groups) == MAX_ARRAY_ELEMENTS
    names = struct.pack(">i", MAX_ARRAY_ELEMENTS + 1) + bytes(2 * MAX_ARRAY_ELEMENTS + 2)
    with pytest.raises(DataError, match="too long"):
        decode_request(15, 0, memoryview(names), 0)


@pytest.mark.parametrize(
    ("api_key", "version", "frame"),
    [
        (3, 12, b"\xff\xff\xff\xff\x0f"),
        (3, 4, struct.pack(">i", 2**31 - 1)),
        (16, 4, b"\xff\xff\xff\xff\x0f"),
        (12, 4, b"\xff\xff\xff\xff\x0f"),
        (12, 4, b"\x02g\0\0\0\1\x02m\x00\xff\xff\xff\xff\x0f"),
        (12, 4, b"\x02g\0\0\0\1\x02m\x00\x01\x05\xff\xff\xff\xff\x0f"),
        (13, 3, struct.pack(">hi", 0, 2**31 - 1)),
    ],
)
def test_an_array_longer_than_the_request_is_rejected(
    api_key: int, version: int, frame: bytes
) -> None:
    # kio's own reader made room for all elements first, and took the process with it.
    with pytest.raises(DataError):
        decode_request(api_key, version, memoryview(frame), 0)


def test_null_arrays_do_not_raise_the_limit_on_items() -> None:
    topic = b"\x02t\x01\x00"
    groups = b"\x02a\x00\x00" * 2 + b"\x02b\x03" + topic * 2 + b"\x00"
    frame = memoryview(b"\x04" + groups + b"\x00\x00")  # OffsetFetch: 3 groups and 2 topics
    assert len(decode_request(9, 8, frame, 0, 5).groups[2].topics) == 2
    with pytest.raises(DataError, match="more items in total"):
        decode_request(9, 8, frame, 0, 4)


def test_tagged_fields_share_the_limit_on_items() -> None:
    directory = bytes(range(16))
    tagged = b"".join(bytes([tag, 33, 3]) + directory * 2 for tag in (0, 1))
    frame = memoryview(struct.pack(">iqq??", 1, 1, 1, False, False) + b"\x02" + tagged)
    body = decode_request(63, 2, frame, 0, 4)  # BrokerHeartbeat
    assert (len(body.offline_log_dirs), len(body.cordoned_log_dirs)) == (2, 2)
    with pytest.raises(DataError, match="more items in total"):
        decode_request(63, 2, frame, 0, 3)
