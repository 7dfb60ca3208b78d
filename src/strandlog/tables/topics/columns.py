"""Turns decoded records into the columns of a table.

    column      type                      contents
    partition   int32                     partition of the topic
    offset      int64                     (partition, offset) identifies a row
    timestamp   timestamp[us, UTC]        null if the record has none
    key         binary
    headers     list<struct<key, value>>
    value       binary                    `RawColumns`
                struct                    typed: one field per field of the schema
    error       string                    typed: why the value could not be decoded, else null
    raw_value   binary                    typed: the value that could not be decoded, else null
    writer_schema_id, reader_schema_id    int64, typed: the schema id in front of the value, and the
                                          id of the schema that defined the fields; or null

The fields of a value are inside the struct `value`, so that their names cannot collide with other
columns; new fields extend the struct. In SQL, `SELECT value.* FROM …` turns them into columns.

With a time unit, the table also has a partition column:

    day     date    date         2026-11-17
    month   month   string       2026-11
    hour    hour    string       2026-11-17-09

This column is null for records without a timestamp, and for timestamps after the year 9999, because
readers cannot parse such dates.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal, Protocol

import pyarrow as pa
import pyarrow.compute as pc

RECORD_COLUMNS: Final = ("key", "value", "partition", "offset", "timestamp", "headers")
HEADERS: Final = pa.list_(
    pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))
)
POSITION: Final = (
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", "UTC")),
    pa.field("key", pa.binary()),
    pa.field("headers", HEADERS),
)

TimeUnit = Literal["none", "day", "month", "hour"]
TIME_COLUMNS: Final[dict[str, Any]] = {
    "day": pa.field("date", pa.date32()),
    "month": pa.field("month", pa.string()),
    "hour": pa.field("hour", pa.string()),
}
LAST_TIME: Final = pa.scalar(datetime.max, pa.timestamp("us"))


class Columns(Protocol):
    """Decodes records into rows. `schema` changes when decoding finds a newer registered schema."""

    @property
    def schema(self) -> Any:
        """The columns of the table, without its partition column."""

    def decode(self, records: Any) -> Any:
        """Convert a RecordBatch with `RECORD_COLUMNS` to rows with the current `schema`."""


class RawColumns:
    """`Columns` with values as bytes."""

    schema: Any = pa.schema([*POSITION, pa.field("value", pa.binary())])

    def decode(self, records: Any) -> Any:
        arrays = [
            records.column(field.name)
            if field.name != "headers"
            else records.column("headers").cast(HEADERS)
            for field in self.schema
        ]
        return pa.Table.from_arrays(arrays, schema=self.schema)


def with_time_column(rows: Any, unit: TimeUnit) -> Any:
    """Append the partition column of the table, if it has one."""
    if unit == "none":
        return rows
    field = TIME_COLUMNS[unit]
    times = rows.column("timestamp").cast(pa.timestamp("us"))
    times = pc.if_else(pc.less_equal(times, LAST_TIME), times, pa.scalar(None, times.type))
    if unit == "day":
        made = times.cast(pa.date32(), safe=False)
    else:
        # Format each distinct month or hour once, not once per row.
        whole = pc.floor_temporal(times, unit=unit)
        form = "%Y-%m" if unit == "month" else "%Y-%m-%d-%H"
        codes = pc.dictionary_encode(whole.combine_chunks())
        if isinstance(codes, pa.ChunkedArray):
            codes = codes.combine_chunks()
        seconds = codes.dictionary.cast(pa.timestamp("s"))
        texts = pa.array([each.as_py().strftime(form) for each in seconds], pa.string())
        made = texts.take(codes.indices)
    return rows.append_column(field, made)


def table_schema(columns: Columns, unit: TimeUnit) -> Any:
    """Return the schema of the table, with its partition column, if it has one."""
    return columns.schema if unit == "none" else columns.schema.append(TIME_COLUMNS[unit])


def partition_columns(unit: TimeUnit) -> tuple[str, ...]:
    """Return the names of the table's partition columns."""
    return () if unit == "none" else (TIME_COLUMNS[unit].name,)
