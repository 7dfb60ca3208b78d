"""Codecs: round trips in Kafka's framings, and the limit on decompressed bytes."""

from __future__ import annotations

import gzip
import random
import tracemalloc
import zlib
from contextlib import suppress
from types import SimpleNamespace

import cramjam
import pytest
from aiokafka import codec as aiokafka_codec
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples

from strandlog.errors import (
    CorruptRecordError,
    DataError,
    DecompressedTooLargeError,
    UnsupportedCodecError,
)
from strandlog.record import codecs
from strandlog.record.codecs import (
    GZIP_STEP_BYTES,
    XERIAL_BLOCK_BYTES,
    Codec,
    codec_named,
    compress,
    decompress,
    max_compressed_size,
)

LIMIT = 1 << 20
PACKING = [codec for codec in Codec if codec is not Codec.NONE]

contents = st.one_of(
    st.binary(max_size=300),
    st.builds(lambda unit, times: unit * times, st.binary(max_size=20), st.integers(0, 5000)),
    st.builds(
        lambda seed, size: random.Random(seed).randbytes(size),
        st.integers(),
        st.integers(0, 90_000),
    ),
)


def streamed_zstd(data: bytes) -> bytes:
    """A frame without its content size, as Java writes it."""
    frame = cramjam.zstd.Compressor(3)
    frame.compress(data)
    return bytes(frame.finish())


@examples(0.3)
@given(contents, st.sampled_from(list(Codec)))
def test_comes_back(data: bytes, codec: Codec) -> None:
    packed = compress(codec, data)
    assert len(packed) <= max_compressed_size(codec, len(data))
    assert bytes(decompress(codec, packed, len(data))) == data
    assert bytes(decompress(codec, memoryview(bytearray(packed)), LIMIT)) == data


@examples(0.15)
@given(contents)
def test_others_read_ours_and_we_read_theirs(data: bytes) -> None:
    assert gzip.decompress(compress(Codec.GZIP, data)) == data
    assert decompress(Codec.GZIP, gzip.compress(data, 1), LIMIT) == data
    assert aiokafka_codec.lz4_decode(compress(Codec.LZ4, data)) == data
    assert decompress(Codec.LZ4, aiokafka_codec.lz4_encode(data), LIMIT) == data
    assert aiokafka_codec.zstd_decode(compress(Codec.ZSTD, data)) == data
    assert decompress(Codec.ZSTD, aiokafka_codec.zstd_encode(data), LIMIT) == data
    assert decompress(Codec.ZSTD, streamed_zstd(data), LIMIT) == data
    assert decompress(Codec.SNAPPY, aiokafka_codec.snappy_encode(data), LIMIT) == data
    raw = aiokafka_codec.snappy_encode(data, xerial_compatible=False)
    assert decompress(Codec.SNAPPY, bytes(raw), LIMIT) == data
    if data:
        assert aiokafka_codec.snappy_decode(compress(Codec.SNAPPY, data)) == data


def test_snappy_is_framed_as_java_frames_it() -> None:
    data = b"a" * (XERIAL_BLOCK_BYTES + 1)
    packed = compress(Codec.SNAPPY, data)
    assert packed[:16] == bytes.fromhex("82534e4150505900 00000001 00000001")
    first = int.from_bytes(packed[16:20], "big")
    assert bytes(cramjam.snappy.decompress_raw(packed[20 : 20 + first])) == data[:-1]


def test_snappy_versions_in_the_wrong_byte_order_are_read() -> None:
    packed = bytearray(compress(Codec.SNAPPY, b"hello" * 10))
    packed[8:16] = b"\x01\0\0\0\x01\0\0\0"
    assert decompress(Codec.SNAPPY, packed, LIMIT) == b"hello" * 10


def test_lz4_blocks_are_independent() -> None:
    """Java's reader refuses linked blocks."""
    flags = compress(Codec.LZ4, b"hello" * 50_000)[4]
    assert flags >> 6 == 1, "frame version"
    assert flags & 0b100000, "independent blocks"


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_frames_in_a_row_are_read_as_one(codec: Codec) -> None:
    packed = compress(codec, b"one" * 10_000) + compress(codec, b"two" * 10_000)
    assert decompress(codec, packed, LIMIT) == b"one" * 10_000 + b"two" * 10_000


@pytest.mark.parametrize("codec", list(Codec))
def test_limit_is_exact(codec: Codec) -> None:
    data = random.Random(5).randbytes(1000) * 100
    packed = compress(codec, data)
    assert bytes(decompress(codec, packed, len(data))) == data
    with pytest.raises(DecompressedTooLargeError) as caught:
        decompress(codec, packed, len(data) - 1)
    assert caught.value.limit_bytes == len(data) - 1


def bombs() -> dict[str, tuple[Codec, bytes]]:
    zeros = bytes(64 << 20)
    raw = bytes(cramjam.snappy.compress_raw(zeros))
    return {
        "gzip": (Codec.GZIP, compress(Codec.GZIP, zeros)),
        "lz4": (Codec.LZ4, compress(Codec.LZ4, zeros)),
        "zstd": (Codec.ZSTD, compress(Codec.ZSTD, zeros)),
        "zstd of unknown size": (Codec.ZSTD, streamed_zstd(zeros)),
        "zstd in a row": (Codec.ZSTD, compress(Codec.ZSTD, b"x") + streamed_zstd(zeros)),
        "xerial snappy": (Codec.SNAPPY, compress(Codec.SNAPPY, zeros)),
        "raw snappy": (Codec.SNAPPY, raw),
        "snappy that claims 4 GiB": (Codec.SNAPPY, b"\xff\xff\xff\xff\x0f\x00a"),
    }


BOMBS = bombs()


@pytest.mark.parametrize("name", BOMBS)
def test_bomb_stays_within_the_limit(name: str) -> None:
    codec, packed = BOMBS[name]
    tracemalloc.start()
    try:
        with pytest.raises(DecompressedTooLargeError):
            decompress(codec, packed, LIMIT)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The largest bomb is 3 MB packed, and a slice of it may be copied once.
    assert peak < 4 * LIMIT + len(packed)


def test_zstd_that_lies_about_its_size_is_refused() -> None:
    packed = bytearray(compress(Codec.ZSTD, b"abc" * 100))
    assert packed[4] >> 5 & 1, "single segment, so the size follows the descriptor"
    packed[5] ^= 0x01
    with pytest.raises(CorruptRecordError):
        decompress(Codec.ZSTD, packed, LIMIT)


@pytest.mark.parametrize("codec", PACKING)
def test_truncated_is_corrupt(codec: Codec) -> None:
    data = random.Random(1).randbytes(200) * 3
    packed = compress(codec, data)
    for cut in range(len(packed)):
        if codec is Codec.SNAPPY and cut == 16:
            assert decompress(codec, packed[:cut], LIMIT) == b"", "a xerial stream of no blocks"
            continue
        with pytest.raises(CorruptRecordError):
            decompress(codec, packed[:cut], LIMIT)


@given(st.sampled_from(PACKING), st.binary(max_size=80))
def test_garbage_is_a_data_error(codec: Codec, garbage: bytes) -> None:
    with suppress(DataError):
        assert len(decompress(codec, garbage, LIMIT)) <= LIMIT


@given(st.sampled_from(PACKING), st.integers(0, 10_000), st.integers(1, 255))
def test_mutated_is_a_data_error_or_within_the_limit(codec: Codec, at: int, flip: int) -> None:
    packed = bytearray(compress(codec, b"some text, some more text, " * 20))
    packed[at % len(packed)] ^= flip
    with suppress(DataError):
        assert len(decompress(codec, packed, LIMIT)) <= LIMIT


def test_many_small_gzip_members_do_not_take_quadratic_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """zlib copies what follows a member, so it must not be given all of the rest each time."""
    fed: list[int] = []

    class Counting:
        def __init__(self, window: int) -> None:
            self._real = zlib.decompressobj(window)

        def decompress(self, data: bytes, most: int) -> bytes:
            fed.append(len(data))
            return self._real.decompress(data, most)

        def __getattr__(self, name: str) -> object:
            return getattr(self._real, name)

    members = 10_000
    packed = compress(Codec.GZIP, b"x") * members
    monkeypatch.setattr(codecs, "zlib", SimpleNamespace(decompressobj=Counting, error=zlib.error))
    assert decompress(Codec.GZIP, packed, LIMIT) == b"x" * members
    assert sum(fed) <= members * GZIP_STEP_BYTES < members * len(packed) / 4


@pytest.mark.parametrize("size", [GZIP_STEP_BYTES - 1, GZIP_STEP_BYTES, 5 * GZIP_STEP_BYTES])
def test_a_gzip_member_may_span_several_steps(size: int) -> None:
    data = random.Random(size).randbytes(size)  # does not get smaller
    packed = gzip.compress(data) + gzip.compress(data)
    assert decompress(Codec.GZIP, packed, 2 * size) == data * 2
    with pytest.raises(DecompressedTooLargeError):
        decompress(Codec.GZIP, packed, 2 * size - 1)
    with pytest.raises(CorruptRecordError, match="truncated"):
        decompress(Codec.GZIP, packed[:-1], 2 * size)


def test_gzip_checks_its_own_checksum() -> None:
    packed = bytearray(compress(Codec.GZIP, b"hello"))
    packed[-6] ^= 1
    with pytest.raises(CorruptRecordError, match="gzip"):
        decompress(Codec.GZIP, packed, LIMIT)
    assert zlib.decompress(compress(Codec.GZIP, b"hello"), 31) == b"hello"


def test_names() -> None:
    assert [codec_named(name) for name in ("none", "gzip", "snappy", "lz4", "zstd")] == list(Codec)
    assert codec_named("uncompressed") is Codec.NONE
    assert codec_named("ZSTD") is Codec.ZSTD
    with pytest.raises(UnsupportedCodecError, match="none, gzip, snappy, lz4, zstd"):
        codec_named("brotli")


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_every_kind_of_buffer_can_be_packed(codec: Codec, kind: type) -> None:
    assert compress(codec, kind(b"words " * 99)) == compress(codec, b"words " * 99)
