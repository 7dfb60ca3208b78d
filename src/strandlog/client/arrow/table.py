"""Records as Arrow tables, for `poll_arrow` and `send_arrow`.

    column      type                                          send_arrow
    key         binary                                        optional; strings are encoded as UTF-8
    value       binary                                        required; strings are encoded as UTF-8
    topic       string                                        ignored: the call names the topic
    partition   int32                                         optional
    offset      int64                                         ignored: the log assigns it
    timestamp   timestamp[ms, UTC]                            optional; integers are milliseconds
    headers     list<struct<key: string, value: binary>>      optional

The columns have the same names as in Spark's Kafka source. The `arrow` extra installs pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from strandlog.errors import MissingExtraError
from strandlog.model import NO_TIMESTAMP, Record
from strandlog.record.arrow.columns import column_of

_READ_COLUMNS = ("key", "value", "partition", "timestamp", "headers")


def _pyarrow() -> Any:
    try:
        import pyarrow  # noqa: PLC0415 - optional dependency
    except ImportError as error:
        raise MissingExtraError("arrow", "pyarrow") from error
    return pyarrow


def schema() -> Any:
    """Return the schema of a table of records."""
    arrow = _pyarrow()
    header = arrow.struct([("key", arrow.string()), ("value", arrow.binary())])
    return arrow.schema(
        [
            ("key", arrow.binary()),
            ("value", arrow.binary()),
            ("topic", arrow.string()),
            ("partition", arrow.int32()),
            ("offset", arrow.int64()),
            ("timestamp", arrow.timestamp("ms", tz="UTC")),
            ("headers", arrow.list_(header)),
        ]
    )


def table_of(records: Sequence[Record]) -> Any:
    """Return a table with one row per record."""
    arrow = _pyarrow()
    columns = [
        [record.key for record in records],
        [record.value for record in records],
        [record.topic for record in records],
        [record.partition for record in records],
        [record.offset for record in records],
        [record.timestamp if record.timestamp >= 0 else None for record in records],
        [[{"key": key, "value": value} for key, value in record.headers] for record in records],
    ]
    fields = schema()
    arrays = [
        arrow.array(column, type=field.type) for column, field in zip(columns, fields, strict=True)
    ]
    return arrow.Table.from_arrays(arrays, schema=fields)


def table_of_batches(batches: list[Any]) -> Any:
    """Combine record batches returned by `decode_columns` into a table."""
    return _pyarrow().Table.from_batches(batches, schema())


def as_table(table: Any) -> Any:
    """Convert a record batch, a pandas or polars data frame, or another object that exports an
    Arrow stream, to a table; return a table unchanged.

    The index of a pandas data frame does not become a column.
    """
    arrow = _pyarrow()
    if isinstance(table, arrow.Table):
        return table
    if isinstance(table, arrow.RecordBatch):
        return arrow.Table.from_batches([table])
    if type(table).__module__.split(".")[0] == "pandas" and hasattr(table, "columns"):
        return arrow.Table.from_pandas(table, preserve_index=False)
    if hasattr(table, "__arrow_c_stream__"):  # such as a polars data frame
        return arrow.table(table)
    raise TypeError(
        "send_arrow takes a pyarrow Table or RecordBatch, or a pandas or polars data frame, not "
        f"{type(table).__name__}; use send_batch for a list of records"
    )


def record_at(table: Any, index: int) -> Record:
    """Return one row of a table as a record."""
    row = {name: table.column(name)[index] for name in table.schema.names}
    timestamp = row["timestamp"].value
    return Record(
        row["topic"].as_py(),
        row["partition"].as_py(),
        row["offset"].as_py(),
        NO_TIMESTAMP if timestamp is None else timestamp,
        row["key"].as_py(),
        row["value"].as_py(),
        tuple((one["key"], one["value"]) for one in row["headers"].as_py()),
    )


def items_of(table: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table in the form that `send_batch` accepts."""
    _pyarrow()
    from strandlog.record.arrow import casts  # noqa: PLC0415 - imports pyarrow

    table = as_table(table)
    columns = {
        name: _as_python(casts, name, column)
        for name in _READ_COLUMNS
        if (column := column_of(table, name)) is not None
    }
    for row in zip(*columns.values(), strict=True):
        yield dict(zip(columns, row, strict=True))


def _as_python(casts: Any, name: str, column: Any) -> Iterable[Any]:
    match name:
        case "key" | "value":
            return list(casts.as_bytes(name, column).to_pylist())
        case "timestamp":
            return list(casts.as_milliseconds(column).to_pylist())
        case "partition":
            return list(casts.as_partitions(column).to_pylist())
        case _:
            return _headers_of(casts, column)


def _headers_of(casts: Any, column: Any) -> Iterator[tuple[tuple[str, bytes | None], ...]]:
    """Yield the headers of each row."""
    lists, name_field, value_field = casts.as_headers(column)
    pairs = lists.type.value_type
    name, value = pairs.field(name_field).name, pairs.field(value_field).name
    for row, given in enumerate(lists):
        headers = given.as_py() or ()
        if any(pair is None or pair[name] is None for pair in headers):
            raise casts.header_without_key(row)
        yield tuple((_text(pair[name]), _bytes(pair[value])) for pair in headers)


def _text(name: str | bytes) -> str:
    return name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else name


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
