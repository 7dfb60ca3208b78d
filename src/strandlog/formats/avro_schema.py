"""Maps an Avro schema to column types.

    null in a union         no effect: every column is nullable
    boolean … string        the same                      enum       string
    record                  struct                        fixed      binary
    array, map              array, map<string, …>         decimal    decimal, of up to 38 digits
    date                    date
    timestamp-*             timestamp                     local-timestamp-*   timestamp_ntz
    [int, long]             bigint                        [float, double]     double

Other logical types (time-*, uuid, duration) become their underlying type. The fields of a record
become columns; any other schema has one column, `value`. Other unions of several types and
recursive records cannot be mapped to a column: the error names the field, which the user can leave
out with .schema().

Registered schemas (`is_registered`) are also used for tables, so these types differ:

    timestamp-nanos, local-timestamp-nanos    bigint: nanoseconds
    time-millis, time-micros                  bigint: microseconds
    other unions                              struct<member0, member1, …>, without the null branch
    record without fields                     left out, wherever it occurs

Times are read as numbers and converted by Arrow, a column at a time, so the decoder gets a schema
without these logical types (`without_times`, or `decodable` for schemas of a registry). Decimals
get a logical type of our own, because for the standard one fastavro would spend minutes converting
a megabyte of digits that Arrow rejects.
"""

from __future__ import annotations

import json
from decimal import Context, Decimal
from functools import cached_property
from typing import Any, Final

import pyarrow as pa

from strandlog.errors import InvalidSettingError, MissingExtraError

Document = Any  # JSON: a name, a list (a union), or an object

OPTION = "avroSchema"
MAX_DIGITS = 38  # the limit of Spark's decimals
WHOLE_VALUE = "value"  # the column of a schema that is not a record

PLAIN = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
TIMES = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("ms", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "timestamp-nanos": pa.timestamp("ns", "UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
    "local-timestamp-nanos": pa.timestamp("ns"),
}
# `duration` marks times of day, which are converted to microseconds; their column is a number.
REGISTERED_TIMES = TIMES | {
    "timestamp-nanos": pa.int64(),
    "local-timestamp-nanos": pa.int64(),
    "time-millis": pa.duration("ms"),
    "time-micros": pa.duration("us"),
}
TIME_BASE = {
    name: "int" if name in ("date", "time-millis") else "long" for name in REGISTERED_TIMES
}
NANOS = {"millis": 1_000_000, "micros": 1_000, "nanos": 1}  # nanoseconds per unit
CONVERTED_TIME: Final = "strandlog-time"
BOUNDED_DECIMAL: Final = "strandlog-decimal"
_EXACT: Final = Context(prec=MAX_DIGITS)
WIDER = {frozenset({"int", "long"}): pa.int64(), frozenset({"float", "double"}): pa.float64()}


class AvroColumns:
    """The columns of one schema, with the types that the decoder produces."""

    def __init__(self, document: Document, *, is_registered: bool = False) -> None:
        self._named: dict[str, Any] = {}
        self._schema = parsed(document, self._named)
        self._is_registered = is_registered
        self._times = REGISTERED_TIMES if is_registered else TIMES

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(self._fields)

    @property
    def full_name(self) -> str:
        """The full name of the record."""
        return str(self._schema["name"])

    def attribute(self, name: str, attribute: str, default: Any = None) -> Any:
        """Return an attribute of a record's field, such as its default value or its aliases."""
        return self._attributes[name].get(attribute, default)

    def is_empty(self, name: str) -> bool:
        """Return whether a field of a registered schema has no column: it is a record without
        fields, or an array or map of such records."""
        return self._is_registered and _is_empty(self.type_of(name))

    def type_of(self, name: str) -> pa.DataType:
        """Return the type of a column; raise `InvalidSettingError` if it cannot be mapped."""
        return self._type(self._fields[name], name, ())

    def schema_of(self, name: str) -> Document:
        return self._fields[name]

    def symbols(self, name: str) -> list[str]:
        """Return the symbols of an enum field, which may be nullable."""
        schema = self.schema_of(name)
        for branch in schema if isinstance(schema, list) else [schema]:
            found = self.resolved(branch).get("symbols")
            if found:
                return list(found)
        return []

    def resolved(self, schema: Document) -> dict[str, Any]:
        """Return a schema that is not a union as an object, after resolving names."""
        if isinstance(schema, str):
            schema = self._named.get(schema, {"type": schema})
        kind = schema["type"]
        if isinstance(kind, dict) or kind in self._named:
            return self.resolved(kind)
        return dict(schema)

    @property
    def is_record(self) -> bool:
        return isinstance(self._schema, dict) and self._schema["type"] in ("record", "error")

    @cached_property
    def _fields(self) -> dict[str, Document]:
        if self.is_record:
            return {name: field["type"] for name, field in self._attributes.items()}
        return {WHOLE_VALUE: self._schema}

    @cached_property
    def _attributes(self) -> dict[str, dict[str, Any]]:
        """The fields of a record, by name; cached, because a schema can have thousands."""
        return {field["name"]: field for field in self._schema["fields"]}

    def _type(self, schema: Document, path: str, inside: tuple[str, ...]) -> pa.DataType:
        """Return the column type of a schema; `inside` lists the enclosing records."""
        if isinstance(schema, list):
            return self._union(schema, path, inside)
        if isinstance(schema, str):
            if schema in self._named:
                return self._type(self._named[schema], path, inside)
            schema = {"type": schema}
        kind = schema["type"]
        if not isinstance(kind, str) or kind in self._named:
            return self._type(kind, path, inside)
        return self._simple(schema, path) or self._nested(schema, path, inside)

    def _simple(self, schema: Document, path: str) -> pa.DataType | None:
        kind, logical = schema["type"], schema.get("logicalType")
        if logical == "decimal" and kind in ("bytes", "fixed"):
            return _decimal(schema, path)
        if logical in self._times and TIME_BASE[logical] == kind:
            return self._times[logical]
        return PLAIN.get(kind)

    def _nested(self, schema: Document, path: str, inside: tuple[str, ...]) -> pa.DataType:
        kind = schema["type"]
        if kind == "array":
            return pa.list_(self._type(schema["items"], f"{path}[]", inside))
        if kind == "map":
            return pa.map_(pa.string(), self._type(schema["values"], f"{path}{{}}", inside))
        if kind in ("record", "error"):
            return self._struct(schema, path, inside)
        raise _without_column(path, f"a field of type {kind} cannot be a column")

    def _struct(self, schema: Document, path: str, inside: tuple[str, ...]) -> pa.DataType:
        name = schema["name"]
        if name in inside:
            raise _without_column(path, f"{name} contains itself")
        deeper = (*inside, name)
        kinds = [
            (field["name"], self._type(field["type"], f"{path}.{field['name']}", deeper))
            for field in schema["fields"]
        ]
        if self._is_registered:
            kinds = [(field, kind) for field, kind in kinds if not _is_empty(kind)]
        return pa.struct(kinds)

    def _union(self, branches: list[Document], path: str, inside: tuple[str, ...]) -> pa.DataType:
        rest = [branch for branch in branches if branch not in ("null", {"type": "null"})]
        if len(rest) == 1:
            return self._type(rest[0], path, inside)
        if all(isinstance(branch, str) for branch in rest) and frozenset(rest) in WIDER:
            return WIDER[frozenset(rest)]
        if self._is_registered and rest:
            kinds = [self._type(each, f"{path}<{_kind(each)}>", inside) for each in rest]
            members = enumerate(kinds)
            return pa.struct([(f"member{at}", kind) for at, kind in members if not _is_empty(kind)])
        names = ", ".join(map(_kind, rest)) or "null"
        raise _without_column(path, f"a union of {names} cannot be a column")


def _is_empty(kind: pa.DataType) -> bool:
    """Return whether a type is a struct without fields, or a list or map of such structs."""
    if pa.types.is_list(kind):
        return _is_empty(kind.value_type)
    if pa.types.is_map(kind):
        return _is_empty(kind.item_type)
    return bool(pa.types.is_struct(kind) and kind.num_fields == 0)


def _kind(schema: Document) -> str:
    if isinstance(schema, dict):
        return str(schema.get("name", schema["type"]))
    return str(schema)


def _decimal(schema: Document, path: str) -> pa.DataType:
    precision, scale = schema.get("precision", 0), schema.get("scale", 0)
    if not 0 < precision <= MAX_DIGITS:
        raise _without_column(
            path, f"a decimal must have 1 to {MAX_DIGITS} digits, not {precision}"
        )
    return pa.decimal128(precision, scale)


def _without_column(path: str, reason: str) -> InvalidSettingError:
    return InvalidSettingError(OPTION, path, f"{reason}; leave the field out with .schema()")


def parsed(document: Document, named: dict[str, Any] | None = None) -> Any:
    """Parse a schema for the decoder, adding its named types to `named`."""
    try:
        import fastavro  # noqa: PLC0415 - optional dependency
    except ImportError as error:
        raise MissingExtraError("schemas", "fastavro") from error
    from fastavro.schema import SchemaParseException, UnknownType  # noqa: PLC0415

    try:
        return fastavro.parse_schema(document, {} if named is None else named)
    except UnknownType as error:
        raise InvalidSettingError(
            OPTION, error.name, "expected an Avro type, or a type defined earlier in the schema"
        ) from None
    except (SchemaParseException, LookupError, TypeError, ValueError, AttributeError) as error:
        expected = f"expected an Avro schema ({error})"
        raise InvalidSettingError(OPTION, json.dumps(document), expected) from None


def without_times(schema: Document) -> Document:
    """Return the schema without logical types, except for decimals, which are renamed."""
    if isinstance(schema, list):
        return [without_times(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: value for name, value in schema.items() if name != "logicalType"}
    if schema.get("logicalType") == "decimal":
        found["logicalType"] = BOUNDED_DECIMAL
    for name in ("type", "items", "values"):
        if name in found:
            found[name] = without_times(found[name])
    if "fields" in found:
        found["fields"] = [
            field | {"type": without_times(field["type"])} for field in found["fields"]
        ]
    return found


def register_readers() -> None:
    """Register readers in fastavro for the logical types of `without_times` and `decodable`."""
    from fastavro.read import LOGICAL_READERS  # noqa: PLC0415 - only tasks need it

    for kind in ("bytes", "fixed"):
        LOGICAL_READERS[f"{kind}-{BOUNDED_DECIMAL}"] = read_decimal
    for kind in ("int", "long"):
        LOGICAL_READERS[f"{kind}-{CONVERTED_TIME}"] = _read_time


def _read_time(data: int, writer: Document = None, reader: Document = None) -> int:
    wanted = reader.get("nanos") if isinstance(reader, dict) else None
    return data if wanted is None else data * int(writer["nanos"]) // int(wanted)


def read_decimal(data: Any, writer: Document = None, _: Document = None) -> Decimal:
    """Return a decimal; raise `ValueError` if it has more digits than its type allows."""
    unscaled = int.from_bytes(data, "big", signed=True)
    if abs(unscaled) >= 10 ** min(writer["precision"], MAX_DIGITS):
        raise ValueError("more digits than the type allows")
    return Decimal(unscaled).scaleb(-writer.get("scale", 0), _EXACT)


def check_costs(document: Document) -> None:
    """Reject schemas that let a few bytes cause unbounded work, even in unread fields.

    Such a schema contains an array whose items take no bytes, so that a count alone can produce
    billions of items, or a record that always contains itself.
    """
    named: dict[str, Any] = {}
    whole = parsed(document, named)
    for schema in (whole, *named.values()):
        _check_items(schema, named)
        _check_ends(schema, named, ())


def _check_ends(schema: Document, named: dict[str, Any], inside: tuple[str, ...]) -> None:
    if isinstance(schema, str):
        schema = named.get(schema)
    if not isinstance(schema, dict):
        return  # a primitive, or a union, which can have a branch that ends the recursion
    if isinstance(schema["type"], dict):
        _check_ends(schema["type"], named, inside)
    elif "fields" in schema:
        name = schema["name"]
        if name in inside:
            raise InvalidSettingError(OPTION, name, "a record must not always contain itself")
        for field in schema["fields"]:
            _check_ends(field["type"], named, (*inside, name))


def _check_items(schema: Document, named: dict[str, Any]) -> None:
    if isinstance(schema, list):
        for branch in schema:
            _check_items(branch, named)
    elif isinstance(schema, dict):
        if "items" in schema and _takes_no_bytes(schema["items"], named, ()):
            kind = f"an array of {_kind(schema['items'])}"
            raise InvalidSettingError(
                OPTION, kind, "the items of an array must take at least one byte"
            )
        inner = [schema[name] for name in ("type", "items", "values") if name in schema]
        inner += [field["type"] for field in schema.get("fields", ())]
        for each in inner:
            _check_items(each, named)


def _takes_no_bytes(schema: Document, named: dict[str, Any], inside: tuple[str, ...]) -> bool:
    if isinstance(schema, str):
        if schema not in named:
            return schema == "null"
        schema = named[schema]
    if isinstance(schema, list):
        return False  # the branch index takes a byte
    kind = schema["type"]
    if kind == "fixed":
        return bool(schema["size"] == 0)
    if kind not in ("record", "error"):
        return kind == "null" or (isinstance(kind, dict) and _takes_no_bytes(kind, named, inside))
    name = schema["name"]
    return name not in inside and all(
        _takes_no_bytes(field["type"], named, (*inside, name)) for field in schema["fields"]
    )
