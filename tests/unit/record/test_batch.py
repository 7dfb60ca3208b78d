"""`BatchView`: checks, lazy decoding, lookups, and damage of whole batches."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples

from strandlog.errors import (
    CorruptRecordError,
    DataError,
    DecompressedTooLargeError,
    UnsupportedCodecError,
)
from strandlog.model import TimestampOffset
from strandlog.record.batch import VIEWED_BYTES, BatchView, iter_batches
from strandlog.record.batch_header import CRC_POSITION, CRC_START, stamp
from strandlog.record.builder import build_batch, build_single, filtered_batch
from strandlog.record.checksum import crc32c
from strandlog.record.codecs import Codec

VALUES = [b"value %d" % index for index in range(20)]
KINDS: list[Callable[[bytes], bytes | bytearray | memoryview]] = [bytes, bytearray, memoryview]


def with_new_checksum(batch: bytearray) -> bytearray:
    batch[CRC_POSITION:CRC_START] = crc32c(batch[CRC_START:]).to_bytes(4, "big")
    return batch


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("codec", list(Codec))
def test_any_buffer_at_any_position(
    kind: Callable[[bytes], bytes | bytearray | memoryview], codec: Codec
) -> None:
    batch = build_batch(5, VALUES, codec=codec, base_offset=30)
    view = BatchView(kind(b"before" + bytes(batch) + b"after"), 6)
    assert view.is_intact()
    view.check()
    assert view.size_bytes == len(batch)
    assert view.data() == batch
    records = view.records("topic", 4)
    assert [record.value for record in records] == VALUES
    assert all(type(record.value) is bytes for record in records)
    assert {(record.topic, record.partition) for record in records} == {("topic", 4)}
    assert "base_offset=30" in repr(view)


@pytest.mark.parametrize("from_offset", [0, 29, 30, 31, 45, 49, 50])
def test_records_from_an_offset_on(from_offset: int) -> None:
    view = BatchView(build_batch(5, VALUES, base_offset=30))
    offsets = [record.offset for record in view.records("t", 0, from_offset)]
    assert offsets == list(range(max(30, from_offset), 50))


def test_every_bit_after_the_crc_counts() -> None:
    batch = build_batch(5, VALUES, codec=Codec.LZ4)
    for at in range(CRC_POSITION, len(batch)):
        for bit in range(8):
            batch[at] ^= 1 << bit
            view = BatchView(batch)
            assert not view.is_intact()
            with pytest.raises(CorruptRecordError):
                view.check()
            batch[at] ^= 1 << bit
    BatchView(batch).check()


@pytest.mark.parametrize("cut", [0, 1, 60])
def test_too_short_for_a_header(cut: int) -> None:
    view = BatchView(bytes(build_single(5, b"v"))[:cut])
    assert not view.is_intact()
    with pytest.raises(CorruptRecordError, match="61 bytes"):
        view.check()


def test_check_names_the_offset_and_the_fault() -> None:
    batch = build_batch(5, VALUES)
    stamp(batch, 777, 0)
    torn = BatchView(batch[:-1])
    with pytest.raises(
        CorruptRecordError, match=r"offset 777: takes \d+ bytes, but only \d+ are left"
    ):
        torn.check()
    with pytest.raises(CorruptRecordError, match="are left"):
        torn.records("t", 0)
    old = batch.copy()
    old[16] = 1
    with pytest.raises(CorruptRecordError, match="offset 777: magic is 1; expected 2"):
        BatchView(old).check()
    for length in (48, 0, -1):
        short = batch.copy()
        short[8:12] = length.to_bytes(4, "big", signed=True)
        assert not BatchView(short).is_intact()
        with pytest.raises(CorruptRecordError, match=f"length {length} is under"):
            BatchView(short).check()
        with pytest.raises(CorruptRecordError, match=f"length {length} is under"):
            BatchView(short).records("t", 0)
    batch[-1] ^= 1
    with pytest.raises(CorruptRecordError, match="offset 777: checksum is 0x"):
        BatchView(batch).check()


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("change", [-1, 1, 1000, -(2**31)])
def test_record_count_must_match(codec: Codec, change: int) -> None:
    batch = build_batch(5, VALUES, codec=codec)
    batch[57:61] = max(len(VALUES) + change, -(2**31)).to_bytes(4, "big", signed=True)
    view = BatchView(with_new_checksum(batch))
    view.check()
    with pytest.raises(CorruptRecordError, match="batch at offset 0"):
        view.records("t", 0)


@pytest.mark.parametrize("codec_id", [5, 6, 7])
def test_unknown_codec(codec_id: int) -> None:
    batch = build_batch(5, VALUES)
    batch[22] |= codec_id
    with pytest.raises(UnsupportedCodecError, match=f"codec {codec_id}"):
        BatchView(batch).records("t", 0)


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_unpacking_has_a_limit(codec: Codec) -> None:
    view = BatchView(build_batch(5, [bytes(5000)] * 20, codec=codec))
    with pytest.raises(DecompressedTooLargeError):
        view.records("t", 0, limit_bytes=100_000)
    with pytest.raises(DecompressedTooLargeError):
        view.find_timestamp(0, limit_bytes=100_000)
    assert len(view.records("t", 0, limit_bytes=101_000)) == 20


@examples(0.5)
@given(st.sampled_from(list(Codec)), st.integers(0, 2**32))
def test_mutated_batches_raise_data_errors_only(codec: Codec, seed: int) -> None:
    chance = random.Random(seed)
    batch = build_batch(5, VALUES * 3, VALUES * 3, codec=codec)
    if chance.random() < 0.3:
        del batch[chance.randrange(len(batch)) :]
    if batch:
        for _ in range(chance.randrange(1, 4)):
            batch[chance.randrange(len(batch))] = chance.randrange(256)
    if len(batch) > CRC_START and chance.random() < 0.7:
        with_new_checksum(batch)
    view = BatchView(batch)
    assert isinstance(view.is_intact(), bool)
    with suppress(DataError):
        view.records("t", 0, limit_bytes=1 << 20)
    with suppress(DataError):
        view.find_timestamp(3, limit_bytes=1 << 20)


@examples(0.3)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=20), st.integers(-1, 32))
def test_first_record_at_or_after_a_time(timestamps: list[int], wanted: int) -> None:
    view = BatchView(build_batch(0, [b"v"] * len(timestamps), timestamps=timestamps))
    found = [
        TimestampOffset(timestamp, offset)
        for offset, timestamp in enumerate(timestamps)
        if timestamp >= wanted
    ]
    assert view.find_timestamp(wanted) == (found[0] if found else None)


def test_a_lookup_by_time_does_not_copy_the_values_of_a_large_batch() -> None:
    """Copying 100 MB stopped all threads for a tenth of a second."""
    batch = bytes(build_batch(5, [bytes(2 * VIEWED_BYTES)] * 2, timestamps=[5, 7]))
    tracemalloc.start()
    try:
        assert BatchView(batch).find_timestamp(6) == TimestampOffset(7, 1)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < VIEWED_BYTES


def test_append_time_is_the_time_of_the_first_record() -> None:
    batch = build_batch(50, [b"a", b"b"], base_offset=9, append_time_ms=70)
    assert BatchView(batch).find_timestamp(60) == TimestampOffset(70, 9)
    assert BatchView(batch).find_timestamp(71) is None


def test_an_emptied_batch_has_no_record_to_find() -> None:
    header = BatchView(build_batch(50, [b"a", b"b"])).header
    emptied = BatchView(filtered_batch(header, []))
    assert emptied.header.max_timestamp == 50
    assert emptied.find_timestamp(10) is None


def test_batches_one_after_the_other() -> None:
    batches = [bytes(build_single(5, b"v%d" % index)) for index in range(4)]
    joined = b"".join(batches)
    assert [bytes(view.data()) for view in iter_batches(joined)] == batches
    assert [bytes(view.data()) for view in iter_batches(joined, len(batches[0]))] == batches[1:]
    ends = [len(b"".join(batches[:count])) for count in range(5)]
    for cut in range(len(joined)):
        whole = sum(1 for end in ends[1:] if end <= cut)
        assert len(list(iter_batches(joined[:cut]))) == whole, "a torn batch is left out"


def test_impossible_length_ends_the_walk_with_an_error() -> None:
    batch = build_single(5, b"v")
    batch[8:12] = bytes(4)
    with pytest.raises(CorruptRecordError, match="length 0"):
        list(iter_batches(batch))
