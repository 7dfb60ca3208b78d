"""Parses JSON values one by one, with the same results as Spark's `from_json`.

This is the slow path, for values that Arrow's reader rejects or may read differently
(json_values.py).
Each column has a converter, built once from its Arrow type. It converts a non-null value from
`read_json` to one that `pyarrow.array` accepts, or raises `MisfitError`. As in the PERMISSIVE mode
of `from_json`, a field that cannot be converted becomes null, and its row is reported; this also
applies to fields of nested objects. If an item of an array or map cannot be converted, the whole
field becomes null.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Sequence
from datetime import tzinfo
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any, Final, NamedTuple

import pyarrow as pa

from strandlog.formats.json_text import BrokenJsonError, Number, json_text, read_json
from strandlog.formats.json_times import date_days, local_micros, timestamp_micros

Convert = Callable[[Any], Any]

_FLOATS_AS_TEXT: Final = {
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "+Infinity": float("inf"),
    "+INF": float("inf"),
    "-Infinity": float("-inf"),
    "-INF": float("-inf"),
}
_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,9})?")
_QUADS: Final = re.compile(
    r"(?:[\x00-\x20]*(?:[A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==))*[\x00-\x20]*"
)
_QUAD: Final = re.compile(r"[^\x00-\x20]{4}")
_SECOND_MICROS: Final = 1_000_000
_TIMESTAMP_SECONDS: Final = 2**63 // _SECOND_MICROS


class MisfitError(ValueError):
    """A JSON value cannot be converted to the type of its column."""


class Rows(NamedTuple):
    """Columns with a row for each value, and the sorted indices of the corrupt rows."""

    columns: dict[str, pa.Array]
    bad: list[int]
    reasons: list[str]  # one per bad row
    row_count: int


class RowParser:
    """Parses values into the columns of a schema."""

    def __init__(self, schema: pa.Schema, zone: tzinfo) -> None:
        """`zone` applies to timestamps without a time zone."""
        self._schema = schema
        self._faults: list[str] = []  # problems found in the current value
        converters = _Converters(zone, self._faults)
        self._fields = {
            field.name: (index, converters.of(field.type)) for index, field in enumerate(schema)
        }

    def parse(self, values: Sequence[bytes]) -> Rows:
        """Return a row for each value."""
        nothing = (None,) * len(self._schema)
        rows: list[Sequence[Any]] = []
        bad: list[int] = []
        reasons: list[str] = []
        for number, value in enumerate(values):
            self._faults.clear()
            row = self._row(value)
            if self._faults:
                bad.append(number)
                reasons.append(self._faults[0])
            rows.append(nothing if row is None else row)
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(self._schema)
        arrays = {
            field.name: pa.array(column, field.type)
            for field, column in zip(self._schema, columns, strict=False)
        }
        return Rows(arrays, bad, reasons, len(rows))

    def _row(self, value: bytes) -> list[Any] | None:
        """Return the fields of a value, or None if it is not a JSON object."""
        try:
            text = value.decode()
        except UnicodeDecodeError:
            self._faults.append("the value is not UTF-8")
            text = value.decode(errors="replace")
        try:
            pairs, has_more = read_json(text)
        except BrokenJsonError:
            pairs = has_more = None
        if type(pairs) is not tuple:
            self._faults.append("the value is not a JSON object")
            return None
        if has_more:
            self._faults.append("there is text after the JSON object")
        row = [None] * len(self._fields)
        _fill(row, pairs, self._fields, self._faults)
        return row


def _fill(
    row: list[Any],
    pairs: tuple[tuple[str, Any], ...],
    fields: dict[str, tuple[int, Convert]],
    faults: list[str],
) -> None:
    for name, value in pairs:
        field = fields.get(name)
        if field is None:
            continue
        index, convert = field
        try:
            row[index] = None if value is None else convert(value)
        except MisfitError:
            faults.append(f"field {name!r} cannot be converted to the type of its column")


class _Converters:
    """Creates converters for the Arrow types that correspond to Spark's types."""

    def __init__(self, zone: tzinfo, faults: list[str]) -> None:
        self._zone = zone
        self._faults = faults

    def of(self, kind: pa.DataType) -> Convert:
        if pa.types.is_signed_integer(kind):
            return _integer(kind.bit_width)
        if pa.types.is_decimal(kind):
            return _decimal(kind.precision, kind.scale)
        if pa.types.is_timestamp(kind):
            return _local_timestamp if kind.tz is None else _timestamp(self._zone)
        if pa.types.is_list(kind):
            return _array(self.of(kind.value_type))
        if pa.types.is_map(kind):
            return _map(self.of(kind.item_type))
        if pa.types.is_struct(kind):
            return self._struct(kind)
        return _SIMPLE[kind]

    def _struct(self, kind: pa.StructType) -> Convert:
        names = [field.name for field in kind]
        fields = {field.name: (index, self.of(field.type)) for index, field in enumerate(kind)}
        faults = self._faults

        def convert(value: Any) -> dict[str, Any]:
            if type(value) is not tuple:
                raise MisfitError
            row = [None] * len(names)
            _fill(row, value, fields, faults)
            return dict(zip(names, row, strict=True))

        return convert


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise MisfitError
    return value


def _integer(bits: int) -> Convert:
    lowest, highest = -(1 << bits - 1), (1 << bits - 1) - 1

    def convert(value: Any) -> int:
        if type(value) is int and lowest <= value <= highest:
            return value
        raise MisfitError

    return convert


def _float(value: Any) -> float:
    if type(value) is Number:
        return float(value)
    if type(value) is int:
        return float(str(value))  # infinity if out of range, where float(value) would raise
    if type(value) is str and value in _FLOATS_AS_TEXT:
        return _FLOATS_AS_TEXT[value]
    raise MisfitError


def _decimal(precision: int, scale: int) -> Convert:
    context = Context(prec=precision, rounding=ROUND_HALF_UP, Emin=MIN_EMIN, Emax=MAX_EMAX)
    unit = Decimal((0, (1,), -scale))

    def convert(value: Any) -> Decimal:
        if type(value) is str:
            value = value.replace(",", "")
        elif type(value) not in (int, Number):
            raise MisfitError
        if type(value) is not int and _DECIMAL.fullmatch(value) is None:
            raise MisfitError
        try:
            return Decimal(value).quantize(unit, context=context)
        except InvalidOperation:
            raise MisfitError from None

    return convert


def _text(value: Any) -> str:
    return value if type(value) is str else json_text(value)


def base64_bytes(value: Any) -> bytes:
    """Decode padded base64; whitespace between groups of four characters is allowed."""
    if type(value) is not str or _QUADS.fullmatch(value) is None:
        raise MisfitError
    return b"".join(binascii.a2b_base64(quad) for quad in _QUAD.findall(value))


def _date(value: Any) -> int:
    if type(value) is not str:
        raise MisfitError
    try:
        return date_days(value)
    except ValueError:
        raise MisfitError from None


def _timestamp(zone: tzinfo) -> Convert:
    def convert(value: Any) -> int:
        if type(value) is int and -_TIMESTAMP_SECONDS <= value <= _TIMESTAMP_SECONDS:
            return value * _SECOND_MICROS
        if type(value) is not str:
            raise MisfitError
        try:
            return timestamp_micros(value, zone)
        except ValueError:
            raise MisfitError from None

    return convert


def _local_timestamp(value: Any) -> int:
    if type(value) is not str:
        raise MisfitError
    try:
        return local_micros(value)
    except ValueError:
        raise MisfitError from None


def _array(convert_item: Convert) -> Convert:
    def convert(value: Any) -> list[Any]:
        if type(value) is not list:
            raise MisfitError
        return [None if item is None else convert_item(item) for item in value]

    return convert


def _map(convert_item: Convert) -> Convert:
    def convert(value: Any) -> list[tuple[str, Any]]:
        if type(value) is not tuple:
            raise MisfitError
        return [(key, None if item is None else convert_item(item)) for key, item in value]

    return convert


_SIMPLE: Final[dict[pa.DataType, Convert]] = {
    pa.bool_(): _boolean,
    pa.float32(): _float,
    pa.float64(): _float,
    pa.string(): _text,
    pa.binary(): base64_bytes,
    pa.date32(): _date,
}
