"""Parses JSON values into columns, with the same results as Spark's `from_json`.

Values go through Arrow's JSON reader in bulk wherever its results match those of `from_json`.
Types that it would read differently (dates, timestamps, bytes) are read as strings and converted
afterwards, if all strings have the usual form. Values that Arrow rejects or may read differently
are parsed one by one (json_rows.py). If a chunk of `JSON_ROWS` values fails, it is retried in
chunks of `RETRY_ROWS`, so a bad value slows down only a few others, and no value is tried in bulk
more than twice.

A row is corrupt, and reported in `_corrupt`, if its value is not exactly one JSON object in UTF-8,
or if a field cannot be converted to the type of its column. Its other fields are kept.
"""

from __future__ import annotations

from datetime import UTC, tzinfo
from functools import cached_property
from typing import Final
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json

from strandlog.formats.json_rows import MisfitError, RowParser, Rows, base64_bytes
from strandlog.formats.json_text import MAX_DEPTH, may_nest_too_deeply
from strandlog.formats.json_times import SystemZone, named_zone

JSON_ROWS = 16 * 1024
RETRY_ROWS = 128

_WHITESPACE: Final = " \t\n\r"
_DATE: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_LOCAL: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?"
_ZONED: Final = rf"{_LOCAL}(?:Z|[+-](?:0[0-9]|1[0-7]):[0-5][0-9])$"
_DECIMAL_DIGITS: Final = 38
# Arrow's reader crashes the process on a decimal with an exponent of -9,999,999.
_LONG_EXPONENT: Final = "[eE][+-]?[0-9]{4}"
# Arrow has no daylight saving transitions outside these years.
_ZONE_YEARS: Final = tuple(
    pa.scalar(f"{year}-01-01").cast(pa.timestamp("us")) for year in (1970, 2037)
)
_UNZONED: Final = rf"{_LOCAL}$"


class UnusualError(Exception):
    """Arrow may read these values differently from `from_json`."""


def zone_of(name: str | None) -> tzinfo:
    """Return the named time zone. If the name is None, return this machine's time zone, which is
    also Java's default."""
    if name is None:
        return SystemZone()
    return named_zone(name)


class JsonParser:
    """Parses values into the columns of one schema."""

    def __init__(self, schema: pa.Schema, zone: tzinfo) -> None:
        self._schema = schema
        self._zone = zone
        self._rows = RowParser(schema, zone)
        self._has_decimals = any(_has_decimals(field.type) for field in schema)

    def parse(self, values: pa.Array) -> Rows:
        is_usual, trimmed = _usual(values)
        if self._has_decimals:
            is_usual = pc.and_not(
                is_usual, pc.match_substring_regex(trimmed, _LONG_EXPONENT).fill_null(False)
            )
        usual = pc.indices_nonzero(is_usual)
        others = pc.indices_nonzero(pc.and_not(values.is_valid(), is_usual))
        found: list[Rows] = []
        chosen = trimmed if len(usual) == len(values) else trimmed.take(usual)
        for start in range(0, len(usual), JSON_ROWS):
            self._parse_piece(chosen.slice(start, JSON_ROWS), found)
        if len(others):
            found.append(self._rows.parse(values.take(others).to_pylist()))
        rows = _joined(found, self._schema)
        if len(usual) == len(values):
            return rows
        return _placed(rows, pa.concat_arrays([usual, others]), len(values))

    def _parse_piece(self, texts: pa.Array, found: list[Rows]) -> None:
        columns = self._read(texts)
        if columns is not None:
            found.append(Rows(columns, [], [], len(texts)))
            return
        for start in range(0, len(texts), RETRY_ROWS):
            chunk = texts.slice(start, RETRY_ROWS)
            columns = self._read(chunk) if len(chunk) < len(texts) else None
            if columns is None:
                found.append(self._rows.parse(chunk.cast(pa.binary()).to_pylist()))
            else:
                found.append(Rows(columns, [], [], len(chunk)))

    @cached_property
    def _read_schema(self) -> pa.Schema | None:
        """The schema for Arrow's reader, or None if it does not support one of the columns."""
        try:
            return pa.schema([(field.name, _read_type(field.type)) for field in self._schema])
        except UnusualError:
            return None

    def _read(self, texts: pa.Array) -> dict[str, pa.Array] | None:
        """Return the columns, or None if Arrow fails or may read differently from `from_json`."""
        if self._read_schema is None:
            return None
        try:
            table = _read_json(texts, self._read_schema)
            if len(table) != len(texts):
                return None  # a value contains several objects
            return {
                field.name: _finished(_whole(table.column(field.name)), field.type, self._zone)
                for field in self._schema
            }
        except (pa.ArrowException, MisfitError, UnusualError):
            return None


def _usual(values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return, for each value, whether it looks like one JSON object, and its trimmed text."""
    try:
        texts = values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = pa.array([_text_or_none(value) for value in values.to_pylist()], pa.string())
    trimmed = pc.utf8_trim(texts, _WHITESPACE)
    # Each value must be one object: anything before or after it would shift the following rows.
    is_usual = pc.and_(pc.starts_with(trimmed, "{"), pc.ends_with(trimmed, "}")).fill_null(False)
    is_long = pc.greater(pc.binary_length(values), 2 * MAX_DEPTH)
    if pc.any(is_long).as_py():
        mask = is_usual.to_numpy(zero_copy_only=False)
        for row in pc.indices_nonzero(is_long).to_pylist():
            mask[row] &= not may_nest_too_deeply(values[row].as_py())
        is_usual = pa.array(mask)
    return is_usual, trimmed


def _text_or_none(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def _read_json(texts: pa.Array, schema: pa.Schema) -> pa.Table:
    joined = pc.binary_join(pa.ListArray.from_arrays([0, len(texts)], texts), "\n")[0]
    return json.read_json(
        pa.BufferReader(joined.as_buffer()),
        read_options=json.ReadOptions(use_threads=False, block_size=1 << 30),
        parse_options=json.ParseOptions(
            explicit_schema=schema,
            unexpected_field_behavior="ignore",
            newlines_in_values=True,
        ),
    )


def _whole(column: pa.ChunkedArray) -> pa.Array:
    chunks = column.chunks
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays([*chunks, pa.nulls(0, column.type)])


# -- types for Arrow's reader, and their conversion ------------------------------------------------


def _read_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_map(kind):
        raise UnusualError  # Arrow reads a map from a list of pairs, Spark from an object
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_binary(kind):
        return pa.string()
    if pa.types.is_decimal(kind):
        # With the target type, Arrow's reader would not detect overflow or excess digits.
        return pa.decimal256(_DECIMAL_DIGITS, kind.scale)
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_read_type(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_read_type(field.type)) for field in kind])
    return kind


def _finished(array: pa.Array, kind: pa.DataType, zone: tzinfo) -> pa.Array:
    """Convert a column from Arrow's reader to its final type."""
    if array.type == kind:
        return array
    if pa.types.is_decimal(kind):
        return array.cast(kind)  # raises when a value has too many digits
    if pa.types.is_date(kind):
        return _matching(array, _DATE).cast(kind)
    if pa.types.is_timestamp(kind):
        return _timestamps(array, kind, zone)
    if pa.types.is_list(kind):
        return _finished_lists(array, kind, zone)
    if pa.types.is_struct(kind):
        children = [
            _finished(child, field.type, zone)
            for child, field in zip(array.flatten(), kind, strict=True)
        ]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
    return _decoded(array, kind)


def _decoded(array: pa.Array, kind: pa.DataType) -> pa.Array:
    texts = array.to_pylist()
    return pa.array([None if text is None else base64_bytes(text) for text in texts], kind)


def _has_decimals(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_decimals(kind.field(index).type) for index in range(kind.num_fields))
    return bool(pa.types.is_decimal(kind))


def _matching(array: pa.Array, pattern: str) -> pa.Array:
    if pc.all(pc.match_substring_regex(array, pattern)).as_py() is False:
        raise UnusualError
    return array


def _timestamps(array: pa.Array, kind: pa.DataType, zone: tzinfo) -> pa.Array:
    if kind.tz is None:
        return _matching(array, _UNZONED).cast(kind)
    if pc.all(pc.match_substring_regex(array, _ZONED)).as_py() is not False:
        return array.cast(kind)
    name = "UTC" if zone is UTC else zone.key if isinstance(zone, ZoneInfo) else None
    if name is None:
        raise UnusualError
    local = _matching(array, _UNZONED).cast(pa.timestamp(kind.unit))
    first, end = _ZONE_YEARS
    is_known = pc.and_(pc.greater_equal(local, first), pc.less(local, end))
    if name != "UTC" and pc.all(is_known).as_py() is False:
        raise UnusualError
    # This raises an error if a daylight saving transition skips or repeats a local time.
    return pc.assume_timezone(local, name).cast(kind)


def _finished_lists(array: pa.Array, kind: pa.DataType, zone: tzinfo) -> pa.Array:
    items = _finished(array.values, kind.value_type, zone)
    return pa.ListArray.from_arrays(array.offsets, items, type=kind, mask=array.is_null())


# -- rows in their original order ------------------------------------------------------------------


def _joined(found: list[Rows], schema: pa.Schema) -> Rows:
    if len(found) == 1:
        return found[0]
    bad: list[int] = []
    reasons: list[str] = []
    start = 0
    columns: dict[str, list[pa.Array]] = {name: [] for name in schema.names}
    for rows in found:
        bad.extend(start + row for row in rows.bad)
        reasons += rows.reasons
        start += rows.row_count
        for name, array in rows.columns.items():
            columns[name].append(array)
    return Rows(
        {
            field.name: pa.concat_arrays([*columns[field.name], pa.nulls(0, field.type)])
            for field in schema
        },
        bad,
        reasons,
        start,
    )


def _placed(rows: Rows, numbers: pa.Array, count: int) -> Rows:
    """Return `count` rows, with `rows` at the indices `numbers` and nulls elsewhere."""
    at = numbers.to_numpy()
    take = np.full(count, -1, np.int64)
    take[at] = np.arange(len(at))
    indices = pa.array(take, mask=take < 0)
    columns = {name: array.take(indices) for name, array in rows.columns.items()}
    faults = sorted(zip(at[rows.bad].tolist(), rows.reasons, strict=True))
    return Rows(columns, [row for row, _ in faults], [reason for _, reason in faults], count)
