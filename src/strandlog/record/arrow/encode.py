"""Encodes Arrow rows as raw batches. See columns.py for the contract.

The columns are converted once (arrays.py), and a kernel (kernels/encode.py) determines the rows and
the size of each batch. Python code then runs once per batch: it calls a kernel that fills the
batch, and compresses and seals it like any other batch.

Invariants: no batch exceeds the limit; a single record that does raises MessageTooLargeError. With
a codec, batches are planned by their uncompressed size. If compression makes one larger than the
limit, it is left uncompressed; a record above the limit is accepted if compression makes it fit.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from strandlog.errors import InvalidRecordError, MessageTooLargeError
from strandlog.model import NO_SEQUENCE
from strandlog.record.arrow.arrays import (
    BytesColumn,
    HeadersColumn,
    bytes_column,
    headers_column,
    no_bytes,
    no_headers,
    partitions_column,
    timestamps_column,
    whole,
)
from strandlog.record.arrow.columns import column_of
from strandlog.record.arrow.kernels import encode as kernels
from strandlog.record.arrow.kernels.compile import Int32Array, Int64Array
from strandlog.record.batch_header import HEADER_SIZE, TRANSACTIONAL_BIT, seal
from strandlog.record.builder import NO_LEADER_EPOCH
from strandlog.record.codecs import DEFAULT_DECOMPRESSED_LIMIT_BYTES, Codec, compress

MAX_BATCH_BYTES: Final = 2**31 - 1  # slightly below what the batch length field allows
_SEQUENCE_COUNT: Final = 1 << 31


class BatchShape(NamedTuple):
    """The properties of the batches to encode."""

    codec: Codec = Codec.NONE
    max_batch_bytes: int | None = None
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = NO_SEQUENCE
    is_transactional: bool = False
    limit_bytes: int = DEFAULT_DECOMPRESSED_LIMIT_BYTES  # the decompressed size that readers accept


class ReadyRows(NamedTuple):
    """The columns of records, converted for the kernels."""

    timestamps: Int64Array
    keys: BytesColumn
    values: BytesColumn
    headers: HeadersColumn


class Routed(NamedTuple):
    """The partition of each row, and the number of rows with neither a partition nor a key."""

    partitions: Int32Array
    turns: int


class Grouped(NamedTuple):
    """Row numbers by partition."""

    rows: Int64Array
    bounds: Int64Array

    def rows_of(self, partition: int) -> Int64Array:
        """Return the rows of one partition in their original order."""
        return self.rows[self.bounds[partition] : self.bounds[partition + 1]]


def ready_rows(records: Any, timestamp_ms: int) -> ReadyRows:
    """Check and convert the columns of an Arrow RecordBatch or Table."""
    key, value, timestamp, headers = (
        column_of(records, name) for name in ("key", "value", "timestamp", "headers")
    )
    count = records.num_rows
    return ReadyRows(
        np.full(count, timestamp_ms, np.int64)
        if timestamp is None
        else timestamps_column(timestamp, timestamp_ms),
        no_bytes(count) if key is None else bytes_column("key", key),
        bytes_column("value", value),
        no_headers(count) if headers is None else headers_column(headers),
    )


def route(
    keys: Any,
    partition_count: int,
    start: int,
    given: Any,
    row_count: int | None,
    is_sticky: bool,
) -> Routed:
    """Implement `columns.route_rows`."""
    assert partition_count > 0, "partition_count must be positive"
    columns = [column for column in (keys, given) if column is not None]
    assert columns or row_count is not None, "row_count is required if there are no columns"
    count = len(columns[0]) if columns else row_count or 0
    column = no_bytes(count) if keys is None else bytes_column("key", keys)
    chosen = np.full(count, kernels.NOT_GIVEN, np.int32)
    if given is not None:
        chosen = partitions_column(whole(given))
        is_given = chosen != kernels.NOT_GIVEN
        wrong = np.flatnonzero(is_given & ((chosen >= partition_count) | (chosen < 0)))
        if len(wrong):
            raise InvalidRecordError(
                f"row {wrong[0]} has partition {chosen[wrong[0]]}; "
                f"the topic has partitions 0 to {partition_count - 1}",
                wrong[:1].tolist(),
            )
    partitions = np.empty(count, np.int32)
    step = 0 if is_sticky else 1
    turns = kernels.route_by_key(*column, chosen, partition_count, start, step, partitions)
    return Routed(partitions, turns)


def group(partitions: Int32Array, partition_count: int) -> Grouped:
    """Implement `columns.group_rows`."""
    numbers = np.ascontiguousarray(partitions, np.int32)
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < partition_count:
        raise InvalidRecordError(f"partition numbers must be between 0 and {partition_count - 1}")
    bounds = np.zeros(partition_count + 1, np.int64)
    rows = np.empty(len(numbers), np.int64)
    kernels.group_by(numbers, bounds, rows)
    return Grouped(rows, bounds)


def encode_rows(columns: ReadyRows, rows: Any, shape: BatchShape) -> list[bytearray]:
    """Encode rows as batches."""
    count = len(columns.timestamps)
    chosen = _chosen(rows, count)
    lengths, ends, sizes = (np.empty(len(chosen), np.int64) for _ in range(3))
    limit = MAX_BATCH_BYTES if shape.max_batch_bytes is None else shape.max_batch_bytes
    headers = columns.headers
    batches = kernels.plan_batches(
        chosen,
        columns.timestamps,
        columns.keys.sizes,
        columns.values.sizes,
        headers.starts,
        headers.ends,
        headers.names.sizes,
        headers.values.sizes,
        limit - HEADER_SIZE,
        lengths,
        ends,
        sizes,
    )
    made = []
    start, sequence = 0, shape.base_sequence
    for end, payload_bytes in zip(ends[:batches].tolist(), sizes[:batches].tolist(), strict=True):
        part = chosen[start:end]
        made.append(_batch(columns, part, lengths[start:end], payload_bytes, shape, sequence))
        if sequence != NO_SEQUENCE:
            sequence = (sequence + end - start) % _SEQUENCE_COUNT
        start = end
    return made


def _chosen(rows: Any, count: int) -> Int64Array:
    if rows is None:
        return np.arange(count, dtype=np.int64)
    chosen: Int64Array = np.ascontiguousarray(rows, np.int64)
    if len(chosen) and not 0 <= chosen.min() <= chosen.max() < count:
        raise InvalidRecordError(f"row numbers must be between 0 and {count - 1}")
    return chosen


def _batch(
    columns: ReadyRows,
    rows: Int64Array,
    lengths: Int64Array,
    payload_bytes: int,
    shape: BatchShape,
    base_sequence: int,
) -> bytearray:
    """Encode `rows` as one batch."""
    limit = MAX_BATCH_BYTES if shape.max_batch_bytes is None else shape.max_batch_bytes
    codec = shape.codec
    raw_bytes = HEADER_SIZE + payload_bytes
    if codec is not Codec.NONE and payload_bytes > shape.limit_bytes:
        raise MessageTooLargeError(payload_bytes, shape.limit_bytes, "decompressed.max.bytes")
    if raw_bytes > (limit if codec is Codec.NONE else MAX_BATCH_BYTES):
        raise MessageTooLargeError(raw_bytes, limit, "max.message.bytes")
    batch = bytearray(raw_bytes)
    target = np.frombuffer(batch, np.uint8)
    end = kernels.write_records(
        rows,
        lengths,
        columns.timestamps,
        *columns.keys,
        *columns.values,
        columns.headers.starts,
        columns.headers.ends,
        *columns.headers.names,
        *columns.headers.values,
        target,
        HEADER_SIZE,
    )
    assert end == raw_bytes, "the batch size differs from the plan"
    del target
    if codec is not Codec.NONE:
        packed = compress(codec, memoryview(batch)[HEADER_SIZE:])
        if HEADER_SIZE + len(packed) <= limit:
            batch = bytearray().join((bytes(HEADER_SIZE), packed))
        elif raw_bytes <= limit:
            codec = Codec.NONE
        else:
            raise MessageTooLargeError(HEADER_SIZE + len(packed), limit, "max.message.bytes")
    timestamps = columns.timestamps[rows]
    seal(
        batch,
        0,
        NO_LEADER_EPOCH,
        int(codec) | (TRANSACTIONAL_BIT if shape.is_transactional else 0),
        len(rows) - 1,
        int(timestamps[0]),
        int(timestamps.max()),
        shape.producer_id,
        shape.producer_epoch,
        base_sequence,
        len(rows),
    )
    return batch
