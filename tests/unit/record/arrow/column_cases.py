"""Batches for the tests of columns, and what columns must say of them, record by record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import strategies as st

from strandlog.model import Headers, Record, TimestampType
from strandlog.record.aborted import AbortedBatches
from strandlog.record.arrow.columns import COLUMNS, decode_columns
from strandlog.record.batch import BatchView, iter_batches
from strandlog.record.builder import build_batch, filtered_batch
from strandlog.record.codecs import Codec

TOPIC = "orders"
PARTITION = 5
FOREVER = 2**62

contents = st.one_of(
    st.none(),
    st.just(b""),
    st.binary(max_size=12),
    st.binary(min_size=60, max_size=70),  # around the step from one to two bytes of length
    st.integers(8_180, 8_200).map(bytes),  # and from two to three
)
headers = st.lists(
    st.tuples(st.text(max_size=6), st.none() | st.binary(max_size=6)), max_size=3
).map(tuple)
timestamps = st.one_of(
    st.integers(0, 2**45), st.integers(1_700_000_000_000, 1_700_000_000_300), st.just(-1)
)


class Row(NamedTuple):
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


rows = st.builds(Row, timestamps, contents, contents, st.just(()) | headers)


class Spec(NamedTuple):
    """One batch of a log."""

    rows: Sequence[Row]
    codec: Codec
    gap: int  # offsets that are missing in front of it
    append_time_ms: int | None
    kept: int  # bits: which records compaction leaves
    delete_horizon_ms: int | None


specs = st.builds(
    Spec,
    st.lists(rows, min_size=1, max_size=6),
    st.sampled_from(list(Codec)),
    st.sampled_from([0, 0, 0, 1, 1000]),
    st.none() | st.integers(0, 2**45),
    st.sampled_from([-1, -1, -1, 0, 1, 2, 0b1010]),
    st.none() | st.integers(0, 2**45),
)


def log_of(batches: Iterable[Spec], base_offset: int = 0) -> bytes:
    """The batches one behind the other, as in a segment file."""
    data = bytearray()
    for spec in batches:
        base_offset += spec.gap
        columns = [list(column) for column in zip(*spec.rows, strict=True)]
        batch = build_batch(
            0,
            columns[2],
            columns[1],
            columns[3],
            timestamps=columns[0],
            codec=spec.codec,
            base_offset=base_offset,
            append_time_ms=spec.append_time_ms,
        )
        if spec.kept != -1:
            view = BatchView(batch)
            kept = [
                record
                for index, record in enumerate(view.records(TOPIC, PARTITION))
                if spec.kept >> index & 1
            ]
            horizon = None if spec.append_time_ms is not None else spec.delete_horizon_ms
            batch = filtered_batch(view.header, kept, delete_horizon_ms=horizon)
        data += batch
        base_offset += len(spec.rows)
    return bytes(data)


def slow_records(
    data: bytes,
    start_offset: int = 0,
    end_offset: int = FOREVER,
    aborted: Iterable[tuple[int, int]] = (),
) -> list[tuple[Record, TimestampType]]:
    """The same records by the decoder that makes an object of each."""
    found = []
    hidden = AbortedBatches(aborted)
    for view in iter_batches(data):
        if view.header.base_offset >= end_offset:
            break
        view.check()
        if hidden.hides(view) or view.header.record_count == 0:
            continue
        kind = view.header.timestamp_type
        for record in view.records(TOPIC, PARTITION, start_offset):
            if record.offset < end_offset:
                found.append((record, kind))
    return found


def slow_rows(*arguments: Any, **options: Any) -> list[dict[str, Any]]:
    """The same as rows of a table with all columns, times as microseconds."""
    return [
        {
            "key": record.key,
            "value": record.value,
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp * 1000 if 0 <= record.timestamp * 1000 < 2**63 else None,
            "timestampType": int(kind),
            "headers": [{"key": name, "value": value} for name, value in record.headers],
        }
        for record, kind in slow_records(*arguments, **options)
    ]


def fast_rows(
    data: bytes, start_offset: int = 0, end_offset: int = FOREVER, **options: Any
) -> list[dict[str, Any]]:
    """The rows that `decode_columns` makes; each RecordBatch is validated on the way."""
    options = {"topic": TOPIC, "partition": PARTITION, "columns": COLUMNS, **options}
    found: list[dict[str, Any]] = []
    for batch in decode_columns(data, start_offset, end_offset, **options):
        batch.validate(full=True)
        assert batch.num_rows > 0
        found += plain(batch)
    return found


def plain(batch: Any) -> list[dict[str, Any]]:
    """Rows as Python objects, times as numbers."""
    at = batch.schema.get_field_index("timestamp")
    if at >= 0:
        batch = batch.set_column(at, "timestamp", batch.column(at).cast(pa.int64()))
    return list(batch.to_pylist())
