"""The buffer for decompressed batches: contiguous, reused, and within its limit."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("numba", reason="columns need the spark extra")

from strandlog.errors import CorruptRecordError, DecompressedTooLargeError
from strandlog.record.arrow.columns import decode_columns
from strandlog.record.arrow.decode import UnpackedBatches
from strandlog.record.builder import build_batch
from strandlog.record.codecs import Codec, compress

LIMIT = 1 << 20
PACKING = [codec for codec in Codec if codec is not Codec.NONE]


def some_bytes(count: int) -> bytes:
    return random.Random(count).randbytes(count // 2) + bytes(count - count // 2)


@pytest.mark.parametrize("room_bytes", [1, 5000, LIMIT])
def test_batches_of_all_codecs_are_stored_contiguously(room_bytes: int) -> None:
    unpacked = UnpackedBatches(room_bytes, LIMIT)
    expected = b""
    for number, codec in enumerate(PACKING * 2):
        data = some_bytes(3000 + 700 * number)
        assert unpacked.unpack(codec, compress(codec, data)) == len(data)
        expected += data
        assert unpacked.array().tobytes() == expected
    assert unpacked.used_bytes == len(expected)


def test_the_last_batch_can_be_kept_for_the_next_round() -> None:
    unpacked = UnpackedBatches(LIMIT, LIMIT)
    first, second, third = some_bytes(100), some_bytes(5000), some_bytes(9000)
    for data in (first, second):
        unpacked.unpack(Codec.ZSTD, compress(Codec.ZSTD, data))
    unpacked.keep_last(len(second))
    unpacked.unpack(Codec.LZ4, compress(Codec.LZ4, third))
    assert unpacked.array().tobytes() == second + third
    unpacked.keep_last(0)
    assert unpacked.array().tobytes() == b""


@pytest.mark.parametrize("codec", PACKING)
def test_a_batch_may_have_as_much_as_the_limit_and_not_a_byte_more(codec: Codec) -> None:
    unpacked = UnpackedBatches(100, 50_000)
    unpacked.unpack(codec, compress(codec, bytes(20_000)))  # others do not count
    assert unpacked.unpack(codec, compress(codec, bytes(50_000))) == 50_000
    with pytest.raises(DecompressedTooLargeError):
        unpacked.unpack(codec, compress(codec, bytes(50_001)))
    assert unpacked.used_bytes == 70_000


@pytest.mark.parametrize("codec", PACKING)
def test_a_damaged_batch_does_not_affect_the_ones_before_it(codec: Codec) -> None:
    unpacked = UnpackedBatches(LIMIT, LIMIT)
    data = some_bytes(4000)
    unpacked.unpack(codec, compress(codec, data))
    with pytest.raises(CorruptRecordError):
        unpacked.unpack(codec, compress(codec, data)[:-9])
    assert unpacked.array().tobytes() == data


@pytest.mark.parametrize("target_bytes", [1, 2000, 6000, 1 << 24])
def test_compressed_and_plain_batches_can_alternate(target_bytes: int) -> None:
    rng = random.Random(5)
    values = [some_bytes(rng.randint(0, 400)) for _ in range(600)]
    batches = [
        build_batch(
            1,
            values[start : start + 20],
            base_offset=start,
            codec=list(Codec)[start // 20 % len(Codec)],
        )
        for start in range(0, len(values), 20)
    ]
    decoded = decode_columns(
        b"".join(batches), 0, 600, topic="t", partition=0, target_bytes=target_bytes
    )
    parts = list(decoded)
    assert [value for part in parts for value in part.column("value").to_pylist()] == values
    assert decoded.next_offset == 600
    assert (len(parts) == 1) == (target_bytes == 1 << 24)
