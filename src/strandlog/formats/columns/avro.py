"""Decodes Avro values with registered schemas into columns.

Values of the reader's own schema are parsed as in avro_values.py: in compiled loops if the schema
is flat. Values of another schema are parsed in the same way with that schema, and the resulting
columns are then converted one by one, under these conditions:

    both schemas        are records with the same name; namespaces are ignored
    the columns         have no aliases, and the writer's schema contains at least one of them
    a written column    has the same type in both schemas, a type that Avro promotes (int to long,
                        string to bytes), or a timestamp in another unit; if it is nullable in the
                        writer's schema, it is nullable in the reader's schema too
    a missing column    has a simple default in the reader's schema

Otherwise fastavro resolves the schemas value by value, which is about ten times slower. Times are
converted if their units differ, although Avro's resolution ignores units.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from strandlog.errors import InvalidSchemaError, InvalidSettingError
from strandlog.formats.avro_decodable import NULLS, table_type
from strandlog.formats.avro_form import CONFLUENT, AvroForm
from strandlog.formats.avro_schema import (
    TIME_BASE,
    AvroColumns,
    Document,
    check_costs,
    parsed,
)
from strandlog.formats.avro_values import AvroValues
from strandlog.formats.columns.values import Parsed
from strandlog.formats.registered_schema import RegisteredSchema

T = TypeVar("T")

PROMOTIONS = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
MAX_QUOTED_CHARACTERS = 200
SIMPLE_DEFAULTS = (type(None), bool, int, float, str)


class _Step(NamedTuple):
    """The origin of a column: the writer's column, or a default value."""

    name: str
    is_written: bool
    default: Any = None


class AvroReader:
    """Reads values into the columns of an Avro schema."""

    def __init__(self, schema: RegisteredSchema) -> None:
        self._schema = schema
        self._document = document_of(schema)
        self._columns = _columns(schema, self._document)
        self._documents: dict[int, Document] = {schema.id: self._document}
        self._parsers: dict[tuple[int, tuple[str, ...], bool], AvroValues] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name in self._columns.names if not self._is_dropped(name))

    @property
    def dropped(self) -> tuple[str, ...]:
        return tuple(name for name in self._columns.names if self._is_dropped(name))

    def _is_dropped(self, name: str) -> bool:
        try:
            return self._columns.is_empty(name)
        except InvalidSettingError:
            return False

    def type_of(self, name: str) -> pa.DataType:
        return table_type(_named(self._schema, lambda: self._columns.type_of(name)))

    def parse(self, values: pa.Array, writer: RegisteredSchema, schema: pa.Schema) -> Parsed:
        names = tuple(schema.names)
        if writer.id == self._schema.id:
            return _with_reasons(self._parser(writer, names).parse(values, schema), writer)
        steps = self._steps(writer, names)
        if steps is None:
            return self._resolved(values, writer, schema)
        written = tuple(step.name for step in steps if step.is_written)
        fields = [schema.field(name) for name in written]
        found = self._parser(writer, written).parse(values, pa.schema(fields))
        for step in steps:
            if not step.is_written:
                kind = schema.field(step.name).type
                found.columns[step.name] = _repeated(step.default, kind, len(values), found.bad)
        return _with_reasons(found, writer)

    def _parser(self, writer: RegisteredSchema, names: tuple[str, ...]) -> AvroValues:
        """Return a parser that reads the writer's own columns."""
        key = writer.id, names, True
        if key not in self._parsers:
            form = AvroForm(self._document_of(writer), CONFLUENT, is_registered=True)
            self._parsers[key] = _named(writer, lambda: AvroValues(form, names))
        return self._parsers[key]

    def _document_of(self, writer: RegisteredSchema) -> Document:
        if writer.id not in self._documents:
            self._documents[writer.id] = document_of(writer)
        return self._documents[writer.id]

    # -- schemas that differ -----------------------------------------------------------------------

    def _resolved(self, values: pa.Array, writer: RegisteredSchema, schema: pa.Schema) -> Parsed:
        """Let fastavro convert the values."""
        names = tuple(schema.names)
        key = writer.id, names, False
        if key not in self._parsers:
            writers = {writer.id: self._document_of(writer)}
            form = AvroForm(self._document, CONFLUENT, writers, is_registered=True)
            self._parsers[key] = _named(writer, lambda: AvroValues(form, names))
        found = self._parsers[key].parse(values, schema)
        reasons = []
        if found.bad:
            suspects = values.take(pa.array(found.bad, pa.int64()))
            damaged = set(self._damaged(suspects, writer))
            reasons = [
                _damage(writer)
                if number in damaged
                else f"the value cannot be converted from schema {writer.id} to schema "
                f"{self._schema.id}"
                for number in range(len(suspects))
            ]
        return Parsed(found.columns, found.bad, reasons)

    def _damaged(self, values: pa.Array, writer: RegisteredSchema) -> list[int]:
        """Return the rows that do not match the writer's schema."""
        columns = _columns(writer, self._document_of(writer))
        names = tuple(name for name in columns.names if _has_type(columns, name))
        schema = pa.schema([(name, table_type(columns.type_of(name))) for name in names])
        return self._parser(writer, names).parse(values, schema).bad

    def _steps(self, writer: RegisteredSchema, names: tuple[str, ...]) -> list[_Step] | None:
        """Return the origin of each column, or None if the writer's columns cannot be used."""
        other = _columns(writer, self._document_of(writer))
        mine = self._columns
        if not (mine.is_record and other.is_record) or _last(mine) != _last(other):
            return None
        found = []
        written = frozenset(other.names)
        for name in names:
            if mine.attribute(name, "aliases"):
                return None
            if name in written:
                if not _is_convertible(other, mine, name):
                    return None
                found.append(_Step(name, True))
                continue
            default = mine.attribute(name, "default", NULLS)
            if not isinstance(default, SIMPLE_DEFAULTS) or not _is_simple(mine, name, default):
                return None
            found.append(_Step(name, False, default))
        return found if any(step.is_written for step in found) else None


def document_of(schema: RegisteredSchema) -> Document:
    """Return a schema as one JSON document, with its references replaced by their definitions."""
    try:
        main = json.loads(schema.text)
        others = [json.loads(each.text) for each in schema.references]
    except ValueError as error:
        raise InvalidSchemaError(f"schema {schema.id} is not JSON: {error}") from None
    if not others:
        return main

    def joined() -> Document:
        named: dict[str, Any] = {}
        for each in others:
            parsed(each, named)
        return _Inlined(named).schema(parsed(main, named))

    return _named(schema, joined)


def inlined(schema: Document, named: dict[str, Any]) -> Document:
    """Return a part of a parsed schema as a document of its own; `named` maps names to types."""
    return _Inlined(named).schema(schema)


class _Inlined:
    """Replaces the first use of each name by its definition, and further definitions by the name.

    Parsed schemas contain full names, so no namespace has to be tracked.
    """

    def __init__(self, named: dict[str, Any]) -> None:
        self._named = named
        self._defined: set[str] = set()

    def schema(self, schema: Document) -> Document:
        if isinstance(schema, list):
            return [self.schema(each) for each in schema]
        if isinstance(schema, str):
            if schema in self._defined or schema not in self._named:
                return schema
            return self.schema(self._named[schema])
        found = {name: each for name, each in schema.items() if not name.startswith("__")}
        if "name" in found and found["type"] in ("record", "error", "enum", "fixed"):
            if found["name"] in self._defined:
                return found["name"]
            self._defined.add(found["name"])
        for name in ("type", "items", "values"):
            if isinstance(found.get(name), dict | list) or found.get(name) in self._named:
                found[name] = self.schema(found[name])
        if "fields" in found:
            found["fields"] = [
                field | {"type": self.schema(field["type"])} for field in found["fields"]
            ]
        return found


def _columns(schema: RegisteredSchema, document: Document) -> AvroColumns:
    def columns() -> AvroColumns:
        check_costs(document)
        return AvroColumns(document, is_registered=True)

    return _named(schema, columns)


def _named(schema: RegisteredSchema, make: Callable[[], T]) -> T:
    """Call `make`; turn an error about a setting into one that names the schema."""
    try:
        return make()
    except InvalidSettingError as error:
        place = str(error.value)[:MAX_QUOTED_CHARACTERS]
        raise InvalidSchemaError(f"schema {schema.id}: {place}: {error.reason}") from None


def _has_type(columns: AvroColumns, name: str) -> bool:
    try:
        return not columns.is_empty(name)
    except InvalidSettingError:
        return False


def _with_reasons(found: Any, writer: RegisteredSchema) -> Parsed:
    return Parsed(found.columns, found.bad, [_damage(writer)] * len(found.bad))


def _damage(writer: RegisteredSchema) -> str:
    return f"the value does not match schema {writer.id}"


def _last(columns: AvroColumns) -> str:
    return columns.full_name.rpartition(".")[2]


def _repeated(value: Any, kind: pa.DataType, count: int, bad: list[int]) -> pa.Array:
    """Return a column that contains the value in every row, but null in the bad rows."""
    rows = [value] * count
    for row in bad:
        rows[row] = None
    return pa.array(rows, kind)


def _is_convertible(writer: AvroColumns, reader: AvroColumns, name: str) -> bool:
    """Return whether the writer's column can be cast to the reader's."""
    (written, may_be_null), (wanted, may_be_null_there) = (
        _without_null(columns, name) for columns in (writer, reader)
    )
    if may_be_null and not may_be_null_there:
        return False  # a null value is an error, which fastavro reports
    if written is None or wanted is None:
        return False
    if written == wanted:
        return True
    if isinstance(written, list) or isinstance(wanted, list):
        return False
    if _is_time(written) and _is_time(wanted):
        one, other = str(written["logicalType"]), str(wanted["logicalType"])
        return _has_type(reader, name) and one.rpartition("-")[0] == other.rpartition("-")[0]
    is_plain = set(written) == set(wanted) == {"type"}
    return is_plain and wanted["type"] in PROMOTIONS.get(written["type"], ())


def _is_time(schema: Document) -> bool:
    """Return whether a schema is a timestamp in a unit that Arrow's cast converts."""
    logical = schema.get("logicalType", "") if isinstance(schema, dict) else ""
    return bool(logical.endswith(("timestamp-millis", "timestamp-micros")))


def _without_null(columns: AvroColumns, name: str) -> tuple[Document | None, bool]:
    """Return a column's expanded schema without its null branch, and whether it had one."""
    schema = columns.schema_of(name)
    may_be_null = False
    if isinstance(schema, list):
        rest = [branch for branch in schema if branch not in NULLS]
        may_be_null = len(rest) < len(schema)
        schema = rest[0] if len(rest) == 1 else rest
    try:
        return _expanded(columns, schema, ()), may_be_null
    except RecursionError:
        return None, may_be_null


_ATTRIBUTES = ("type", "logicalType", "precision", "scale", "size", "symbols")


def _expanded(columns: AvroColumns, schema: Document, inside: tuple[str, ...]) -> Document:
    """Return a schema with names resolved, without attributes that do not affect values."""
    if isinstance(schema, list):
        return [_expanded(columns, each, inside) for each in schema]
    schema = columns.resolved(schema)
    found = {name: schema[name] for name in _ATTRIBUTES if name in schema}
    if found.get("logicalType", "decimal") != "decimal" and found["logicalType"] not in TIME_BASE:
        del found["logicalType"]  # uuid, duration and unknown types become the underlying type
    if "name" in schema and "fields" in schema:
        if schema["name"] in inside:
            raise RecursionError
        found["name"] = schema["name"].rpartition(".")[2]
        inside = (*inside, schema["name"])
    for name in ("items", "values"):
        if name in schema:
            found[name] = _expanded(columns, schema[name], inside)
    if "fields" in schema:
        found["fields"] = [
            (field["name"], field.get("aliases"), _expanded(columns, field["type"], inside))
            for field in schema["fields"]
        ]
    return found


def _is_simple(columns: AvroColumns, name: str, default: Any) -> bool:
    """Return whether a default value can be stored in the column unchanged."""
    if default is None:
        return any(each in NULLS for each in _branches(columns.schema_of(name)))
    kind = columns.type_of(name)
    return bool(
        (isinstance(default, bool) and pa.types.is_boolean(kind))
        or (
            isinstance(default, int | float)
            and not isinstance(default, bool)
            and (pa.types.is_integer(kind) or pa.types.is_floating(kind))
        )
        or (isinstance(default, str) and pa.types.is_string(kind))
    )


def _branches(schema: Document) -> Iterator[Document]:
    yield from schema if isinstance(schema, list) else [schema]
