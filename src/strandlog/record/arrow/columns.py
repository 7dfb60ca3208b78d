"""Converts raw batches to Arrow columns and back, without a Python object per record.

The columns are those of Spark's Kafka source, in its order, all nullable:

    key            binary
    value          binary
    topic          string
    partition      int32
    offset         int64
    timestamp      timestamp[us, UTC]   null if the record has none, or one beyond the year 294,000
    timestampType  int32                0 set by the producer, 1 by the log
    headers        list<struct<key: string, value: binary>>      only on request

Reading: `decode_columns` takes consecutive batches of one partition, as returned by a broker or
read from a segment file. It verifies the batches below end_offset and decompresses those that it
needs. It skips control batches, batches of aborted transactions, and records outside [start_offset,
end_offset), because a read that starts inside a batch returns the complete batch. The result is an
iterable of `pyarrow.RecordBatch`es; after the iteration, its `next_offset` is the offset to
continue at. Gaps are normal. An incomplete batch at the end is left for the next read; if even the
first batch is incomplete, `next_offset` does not change, and a larger read is needed. A damaged
batch raises CorruptRecordError after all records before it have been returned; a read from
`next_offset` then starts with the damaged batch.

Writing: `route_rows` assigns a partition to each row, using the same hash as the Java clients,
`group_rows` groups the rows by partition, and `encode_columns` encodes them as batches.

The loops over records are compiled (kernels/compile.py), which requires the `spark` extra. The
implementation is imported on first use, so that the base library works without that extra.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from strandlog.errors import InvalidRecordError, MissingExtraError
from strandlog.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, Buffer
from strandlog.record.codecs import DEFAULT_DECOMPRESSED_LIMIT_BYTES, Codec

if TYPE_CHECKING:
    from strandlog.record.arrow.decode import DecodedColumns
    from strandlog.record.arrow.encode import Grouped, ReadyRows, Routed

COLUMNS: Final = (
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "headers",
)
COLUMNS_WITHOUT_HEADERS: Final = COLUMNS[:-1]

DEFAULT_TARGET_ROWS: Final = 64 * 1024
DEFAULT_TARGET_BYTES: Final = 16 * 1024 * 1024


def decode_columns(
    data: Buffer,
    start_offset: int,
    end_offset: int,
    *,
    topic: str,
    partition: int,
    aborted: Iterable[tuple[int, int]] = (),
    columns: Sequence[str] = COLUMNS_WITHOUT_HEADERS,
    limit_bytes: int = DEFAULT_DECOMPRESSED_LIMIT_BYTES,
    target_rows: int = DEFAULT_TARGET_ROWS,
    target_bytes: int = DEFAULT_TARGET_BYTES,
    timestamp_unit: str = "us",
) -> DecodedColumns:
    """Decode the records of `data` with offsets in [start_offset, end_offset) to `columns`.

    `aborted` contains the (producer id, first offset) pairs of a read_committed fetch; without
    them, no transaction is skipped. `limit_bytes` limits the decompressed size of one batch. A
    RecordBatch has at most `target_rows` rows, and at most about `target_bytes` bytes unless a
    single batch is larger. `timestamp_unit` is "us" or "ms". `data` must not change until the
    iteration is complete.
    """
    return _module("decode").DecodedColumns(  # type: ignore[no-any-return]
        data,
        start_offset,
        end_offset,
        _module("schema").ColumnLayout(topic, partition, columns, timestamp_unit),
        aborted=aborted,
        limit_bytes=limit_bytes,
        target_rows=target_rows,
        target_bytes=target_bytes,
    )


def encode_columns(
    records: Any,
    rows: Any = None,
    *,
    timestamp_ms: int,
    codec: Codec = Codec.NONE,
    max_batch_bytes: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    limit_bytes: int = DEFAULT_DECOMPRESSED_LIMIT_BYTES,
) -> list[bytearray]:
    """Encode rows of `records`, an Arrow RecordBatch or Table, as batches, in the order of `rows`.

    To encode the same records for many partitions, call `ready_rows` once and pass its result.
    The columns used are key, value (required), timestamp and headers; `timestamp_ms` replaces
    missing timestamps. `rows` contains row numbers (int64); by default, all rows are encoded.
    A new batch is started before one exceeds `max_batch_bytes`, by default 2 GiB. A record that
    does not fit into a batch, not even compressed, raises MessageTooLargeError.
    With a codec, a batch over `limit_bytes` before compression raises MessageTooLargeError,
    because readers would refuse to decompress it.
    Sequence numbers continue from batch to batch. The bytes are the same as from `build_batch`,
    except that a batch stays uncompressed if compression would make it exceed `max_batch_bytes`.
    """
    encoding = _module("encode")
    is_ready = isinstance(records, encoding.ReadyRows)
    return encoding.encode_rows(  # type: ignore[no-any-return]
        records if is_ready else encoding.ready_rows(records, timestamp_ms),
        rows,
        encoding.BatchShape(
            codec,
            max_batch_bytes,
            producer_id,
            producer_epoch,
            base_sequence,
            is_transactional,
            limit_bytes,
        ),
    )


def column_of(records: Any, name: str) -> Any:
    """Return a column of a table or RecordBatch, or None if the column is missing. Raise
    `InvalidRecordError` if `value` is missing, or if several columns have this name."""
    names = records.schema.names
    count = names.count(name)
    if count > 1:
        raise InvalidRecordError(f"the table has {count} columns {name!r}; expected at most one")
    if not count and name == "value":
        raise InvalidRecordError(f"the table needs a column 'value'; it has {', '.join(names)}")
    return records.column(name) if count else None


def ready_rows(records: Any, timestamp_ms: int) -> ReadyRows:
    """Check and convert the columns of an Arrow RecordBatch or Table for `encode_columns`."""
    return _module("encode").ready_rows(records, timestamp_ms)  # type: ignore[no-any-return]


def route_rows(
    keys: Any,
    partition_count: int,
    start: int = 0,
    *,
    given: Any = None,
    row_count: int | None = None,
    is_sticky: bool = False,
) -> Routed:
    """Assign a partition to each row: the one in `given`, or else by key, or else round-robin.

    `keys` and `given` are Arrow arrays of equal length, or None. If both are None, `row_count` is
    the number of rows. The first row that has neither a given partition nor a key goes to partition
    `start` modulo the partition count. With `is_sticky`, all other such rows go there too;
    otherwise, each goes to the next partition. `Routed` contains the partitions (int32) and the
    number of such rows.
    """
    return _module("encode").route(  # type: ignore[no-any-return]
        keys, partition_count, start, given, row_count, is_sticky
    )


def group_rows(partitions: Any, partition_count: int) -> Grouped:
    """Group row numbers by partition, preserving their order. See `Grouped.rows_of`."""
    return _module("encode").group(partitions, partition_count)  # type: ignore[no-any-return]


def are_available() -> bool:
    """Return whether the packages required for columns are installed."""
    try:
        _module("encode")
        _module("decode")
    except MissingExtraError:
        return False
    return True


def _module(name: str) -> Any:
    try:
        return import_module(f"strandlog.record.arrow.{name}")
    except ImportError as error:
        raise MissingExtraError("arrow", error.name or "numba") from error
