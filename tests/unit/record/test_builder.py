"""Building: four ways with the same result, known sizes, and batches filtered by compaction."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples

from strandlog.errors import InvalidRecordError, InvalidTimestampError
from strandlog.model import Headers, Record, TimestampType
from strandlog.record.batch import BatchView
from strandlog.record.batch_header import BatchHeader
from strandlog.record.builder import BatchBuilder, build_batch, build_single, filtered_batch
from strandlog.record.codecs import Codec
from strandlog.record.varint import CACHE_LIMIT, MAX_INT64, MIN_INT64

Row = tuple[int, bytes | None, bytes | None, Headers]

contents = st.none() | st.binary(max_size=5) | st.integers(60, 130).map(bytes)
headers = st.lists(st.tuples(st.text(max_size=3), contents), max_size=2).map(tuple)
rows = st.tuples(st.integers(-1, 2**45), contents, contents, st.just(()) | headers)
batches = st.lists(rows, min_size=1, max_size=70)
codecs = st.sampled_from(list(Codec))
origins = st.fixed_dictionaries(
    {
        "base_offset": st.integers(0, 2**62),
        "leader_epoch": st.integers(-1, 2**31 - 1),
        "producer_id": st.integers(-1, MAX_INT64),
        "producer_epoch": st.integers(-1, 2**15 - 1),
        "base_sequence": st.integers(-1, 2**31 - 1),
        "is_transactional": st.booleans(),
        "append_time_ms": st.none() | st.integers(0, 2**45),
    }
)


def built_by_one(batch: list[Row], codec: Codec, **origin: Any) -> bytearray:
    builder = BatchBuilder(codec, **origin)
    for row in batch:
        builder.append(*row)
    assert builder.record_count == len(batch)
    return builder.build()


@examples(0.4)
@given(batches, codecs, origins)
def test_all_ways_build_the_same(batch: list[Row], codec: Codec, origin: dict[str, Any]) -> None:
    built = built_by_one(batch, codec, **origin)
    timestamps, keys, values, extras = (list(column) for column in zip(*batch, strict=True))
    assert (
        build_batch(-9, values, keys, extras, codec=codec, timestamps=timestamps, **origin) == built
    )
    if len(batch) == 1:
        single = build_single(timestamps[0], values[0], keys[0], extras[0], codec=codec, **origin)
        assert single == built
    view = BatchView(built)
    view.check()
    header = view.header
    is_append_time = origin["append_time_ms"] is not None
    assert (header.timestamp_type is TimestampType.LOG_APPEND_TIME) == is_append_time
    assert header.max_timestamp == (origin["append_time_ms"] if is_append_time else max(timestamps))
    assert header.base_timestamp == timestamps[0]
    assert header.codec is codec
    for name in ("base_offset", "leader_epoch", "producer_id", "producer_epoch", "base_sequence"):
        assert getattr(header, name) == origin[name]
    assert header.is_transactional == origin["is_transactional"]
    assert not header.is_control
    assert [record[2:] for record in view.records("t", 0)] == [
        (origin["base_offset"] + index, origin["append_time_ms"] if is_append_time else time, *rest)
        for index, (time, *rest) in enumerate(batch)
    ]


@examples(0.3)
@given(batches)
def test_columns_that_are_left_out(batch: list[Row]) -> None:
    _, keys, values, _ = (list(column) for column in zip(*batch, strict=True))
    keyless = built_by_one([(7, None, value, ()) for value in values], Codec.NONE)
    assert build_batch(7, values) == keyless
    assert build_batch(7, tuple(values), [None] * len(values)) == keyless
    keyed = built_by_one([(7, *pair, ()) for pair in zip(keys, values, strict=True)], Codec.NONE)
    assert build_batch(7, values, keys) == keyed
    assert build_batch(7, values, keys, [()] * len(values)) == keyed


@examples(0.3)
@given(batches, codecs)
def test_the_builder_knows_the_size_before_it_builds(batch: list[Row], codec: Codec) -> None:
    builder = BatchBuilder(codec)
    for count, row in enumerate(batch, start=1):
        builder.append(*row)
        assert builder.record_count == count
    assert len(builder.build()) <= builder.size_bytes
    if codec is Codec.NONE:
        assert len(builder.build()) == builder.size_bytes


def test_a_builder_can_build_again_after_more_appends() -> None:
    builder = BatchBuilder()
    builder.append(5, None, b"one")
    first = builder.build()
    assert builder.build() == first
    builder.append(6, None, b"two")
    assert [record.value for record in BatchView(builder.build()).records("t", 0)] == [
        b"one",
        b"two",
    ]


@pytest.mark.parametrize("count", [64, 65, 8192, 8193, CACHE_LIMIT + 1])
def test_offsets_of_every_width(count: int) -> None:
    values = [b"%07d" % index for index in range(count)]
    view = BatchView(build_batch(5, values))
    view.check()
    records = view.records("t", 0)
    assert [record.value for record in records] == values
    assert [record.offset for record in records] == list(range(count))


def test_buffers_other_than_bytes_are_taken() -> None:
    values: list[Any] = [bytearray(b"one"), memoryview(b"two"), b"three"]
    records = BatchView(build_batch(5, values, values)).records("t", 0)
    assert [record.value for record in records] == [b"one", b"two", b"three"]
    assert [record.key for record in records] == [b"one", b"two", b"three"]


@pytest.mark.parametrize(
    ("timestamp", "headers"),
    [(MAX_INT64, ()), (100, (("\ud800", b""),))],
)
def test_a_rejected_record_does_not_raise_the_largest_timestamp(
    timestamp: int, headers: Headers
) -> None:
    builder = BatchBuilder()
    builder.append(-5, None, b"v")
    with pytest.raises((InvalidTimestampError, InvalidRecordError)):
        builder.append(timestamp, None, b"w", headers)
    assert BatchView(builder.build()).header.max_timestamp == -5


def test_an_empty_batch_is_rejected() -> None:
    with pytest.raises(InvalidRecordError, match="at least one"):
        build_batch(5, [])
    with pytest.raises(InvalidRecordError, match="at least one"):
        BatchBuilder().build()


def test_columns_of_unequal_length_are_a_mistake() -> None:
    with pytest.raises(AssertionError):
        build_batch(5, [b"a", b"b"], [b"a"])
    with pytest.raises(AssertionError):
        build_batch(5, [b"a", b"b"], None, [()])
    with pytest.raises(AssertionError):
        build_batch(5, [b"a", b"b"], timestamps=[1])


@pytest.mark.parametrize("timestamp", [1 << 63, -(1 << 63) - 1, 1 << 70])
def test_timestamps_over_64_bits_are_refused(timestamp: int) -> None:
    with pytest.raises((InvalidTimestampError, InvalidRecordError)):
        build_single(timestamp, b"v")
    with pytest.raises((InvalidTimestampError, InvalidRecordError)):
        build_batch(0, [b"a", b"b"], timestamps=[5, timestamp])
    builder = BatchBuilder()
    builder.append(5, None, b"v")
    with pytest.raises((InvalidTimestampError, InvalidRecordError)):
        builder.append(timestamp, None, b"v")
        builder.build()


ORIGIN: dict[str, Any] = {
    "base_offset": 500,
    "leader_epoch": 4,
    "producer_id": 66,
    "producer_epoch": 2,
    "base_sequence": 30,
    "is_transactional": True,
}


@examples(0.4)
@given(
    batches,
    codecs,
    st.sets(st.integers(0, 69)),
    st.none() | st.integers(0, 2**45),
    st.none() | st.integers(0, 2**45),
)
def test_a_filtered_batch_keeps_offsets_producer_and_sequences(
    batch: list[Row],
    codec: Codec,
    wanted: set[int],
    horizon: int | None,
    append_time_ms: int | None,
) -> None:
    view = BatchView(built_by_one(batch, codec, append_time_ms=append_time_ms, **ORIGIN))
    old = view.header
    kept = [record for record in view.records("t", 0) if record.offset - 500 in wanted]
    left = BatchView(filtered_batch(old, kept, delete_horizon_ms=horizon))
    left.check()
    new: BatchHeader = left.header
    for name in (
        "base_offset",
        "last_offset",
        "leader_epoch",
        "producer_id",
        "producer_epoch",
        "base_sequence",
        "last_sequence",
        "is_transactional",
        "timestamp_type",
    ):
        assert getattr(new, name) == getattr(old, name)
    assert new.record_count == len(kept)
    assert new.has_delete_horizon == (horizon is not None)
    assert new.base_timestamp == (old.base_timestamp if horizon is None else horizon)
    assert left.records("t", 0) == kept
    if kept:
        assert new.codec is codec
        assert new.max_timestamp == max(record.timestamp for record in kept)
    else:
        assert new.codec is Codec.NONE
        assert new.max_timestamp == old.max_timestamp
        assert left.size_bytes == 61


def test_a_delete_horizon_stays_when_a_batch_is_filtered_again() -> None:
    view = BatchView(build_batch(5000, [b"a", None, b"c"], [b"1", b"2", b"3"]))
    once = BatchView(filtered_batch(view.header, view.records("t", 0)[1:], delete_horizon_ms=9999))
    again = BatchView(filtered_batch(once.header, once.records("t", 0)[:1]))
    assert again.header.has_delete_horizon
    assert again.header.base_timestamp == 9999
    assert again.records("t", 0) == [Record("t", 0, 1, 5000, b"2", None)]


@pytest.mark.parametrize("timestamp", [MIN_INT64, MIN_INT64 + 1, -1, MAX_INT64])
@pytest.mark.parametrize("horizon", [0, 10**12, MAX_INT64])
def test_extreme_timestamps_survive_compaction(timestamp: int, horizon: int) -> None:
    view = BatchView(build_single(timestamp, b"v", b"k"))
    records = view.records("t", 0)
    left = BatchView(filtered_batch(view.header, records, delete_horizon_ms=horizon))
    assert left.records("t", 0) == records
