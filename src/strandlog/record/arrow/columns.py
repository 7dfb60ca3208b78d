"""Records as Arrow columns: raw batches in, Arrow out, and back; no Python object per record.

The columns are those of Spark's Kafka source, in its order, all nullable:

    key            binary
    value          binary
    topic          string
    partition      int32
    offset         int64
    timestamp      timestamp[us, UTC]   null if the record has none, or one beyond the year 294,000
    timestampType  int32                0 set by the producer, 1 by the log
    headers        list<struct<key: string, value: binary>>      only when asked for

Reading. `decode_columns` takes the bytes of one partition, whole batches one behind the other as a
broker or a segment file gives them. It checks each batch, unpacks it, and leaves out control
batches, batches of aborted transactions, and records outside [start_offset, end_offset): a read
inside a batch returns the whole batch. The result is iterated for `pyarrow.RecordBatch`es;
afterwards its `next_offset` says where to read on. Gaps are normal. A batch that is cut off at the
end is left for the next read; when even the first one is, `next_offset` has not moved, and a larger
read is needed. Damage raises CorruptRecordError after everything in front of it was handed out,
and `next_offset` then is where the damaged batch begins.

Writing. `route_rows` finds the partition of each row, by the very hash that Java clients use,
`group_rows` puts the rows of each partition together, and `encode_columns` makes batches of them.

The loops over records are compiled (kernels/compile.py); this needs the `spark` extra. Everything
is imported when it is first used, so that the base library does without.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from strandlog.errors import MissingExtraError
from strandlog.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from strandlog.record.codecs import DEFAULT_DECOMPRESSED_LIMIT_BYTES, Bytes, Codec

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
    data: Bytes,
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
    """The records of `data` with offsets in [start_offset, end_offset), in the columns named.

    `aborted` are (producer id, first offset) pairs as a fetch of committed records gives them;
    without them, everything is handed out. `limit_bytes` is what one batch may unpack to. A
    RecordBatch has at most `target_rows` rows, and about `target_bytes` bytes: more only where one
    batch has more. `data` must not change before the iteration is over.
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
    """Batches of some rows of `records`, an Arrow RecordBatch or Table, in the order of `rows`.

    To make batches of the same records for many partitions, call `ready_rows` once first.
    Read are the columns key, value (needed), timestamp and headers; `timestamp_ms` replaces
    a timestamp that is not there. `rows` are row numbers (int64), all rows if there are none given.
    A batch is cut before it grows over `max_batch_bytes`; without that there is only one.
    What readers could not unpack, because it is over `limit_bytes`, is not packed.
    Sequences count on from batch to batch. The bytes are those that `build_batch` makes.
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


def ready_rows(records: Any, timestamp_ms: int) -> ReadyRows:
    """The columns of an Arrow RecordBatch or Table, checked, for calls of `encode_columns`."""
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
    """The partition of each row: the one `given` for it, else by its key, else in turn.

    `keys` and `given` are Arrow arrays as long as each other, or None; where both may be None,
    `row_count` says how many rows there are. The first row without either goes to partition
    `start` modulo the count, and so do all others if `is_sticky`; else each goes to the next one.
    `Routed` has the partitions (int32) and how many turns were taken.
    """
    return _module("encode").route(  # type: ignore[no-any-return]
        keys, partition_count, start, given, row_count, is_sticky
    )


def partition_rows(keys: Any, partition_count: int, start: int = 0) -> Any:
    """Just the partitions of `route_rows`, by key or in turn."""
    return route_rows(keys, partition_count, start).partitions


def group_rows(partitions: Any, partition_count: int) -> Grouped:
    """The row numbers of each partition, in the order of the rows: `Grouped.rows_of(number)`."""
    return _module("encode").group(partitions, partition_count)  # type: ignore[no-any-return]


def are_available() -> bool:
    """Whether everything that columns need is installed."""
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
        raise MissingExtraError("spark", error.name or "numba") from error
