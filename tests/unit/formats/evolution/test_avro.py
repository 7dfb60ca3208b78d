"""Avro rows of a table, converted to another version of their schema: each is what decoding the
value with that version gives, or an error."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandlog.errors import InvalidSchemaError, TableSchemaError

pa = pytest.importorskip("pyarrow", reason="columns need the spark extra")
fastavro = pytest.importorskip("fastavro", reason="Avro needs the spark extra")

from strandlog.formats.columns.registry import RegistryColumns  # noqa: E402
from strandlog.formats.columns.values import prefix_of  # noqa: E402
from strandlog.formats.evolution.columns import StoredColumns  # noqa: E402
from strandlog.formats.registered_schema import AVRO, RegisteredSchema  # noqa: E402

WRITER, STORED, WANTED = 1, 2, 3
TYPES: list[Any] = [
    "int",
    "long",
    "float",
    "double",
    "string",
    {"type": "enum", "name": "Color", "symbols": ["RED", "BLUE"]},
    {"type": "enum", "name": "Color", "symbols": ["RED", "BLUE", "ANY"], "default": "ANY"},
    {"type": "enum", "name": "Color", "symbols": ["RED", "ANY"], "default": "ANY"},
    {"type": "long", "logicalType": "timestamp-millis"},
    ["null", "long"],
    ["null", "string", "int"],
]
DEFAULTS = {
    "int": 7,
    "long": 8,
    "float": 0.5,
    "double": 1.5,
    "string": "?",
    "enum": "RED",
    "array": [],
    "map": {},
    "record": {},
}


class UndecodableError(Exception):
    """The table does not have these rows."""


def record(*fields: Any, name: str = "Row") -> dict[str, Any]:
    made = [each if isinstance(each, dict) else {"name": each, "type": "long"} for each in fields]
    return {"type": "record", "name": name, "fields": made}


def schema(number: int, document: Any) -> RegisteredSchema:
    return RegisteredSchema(number, AVRO, json.dumps(document))


def parsed(reader: Any, number: int, writer: Any, values: list[bytes]) -> Any:
    """Return the rows as a struct array, and the rows that are bad."""
    columns = RegistryColumns(schema(number, reader), [schema(WRITER, writer)])
    found = columns.parse(pa.array(values, pa.binary()), columns.schema)
    fields = [pa.field(name, array.type) for name, array in found.columns.items()]
    return pa.StructArray.from_arrays(list(found.columns.values()), fields=fields), found.bad


def converted(
    writer: Any, stored: Any, wanted: Any, rows: list[Any]
) -> tuple[list[Any], list[Any]]:
    """Return the rows that a table gives with the wanted schema, and those that the log gives."""
    values = []
    for row in rows:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, fastavro.parse_schema(writer), row)
        values.append(prefix_of(WRITER) + stream.getvalue())
    table, bad = parsed(stored, STORED, writer, values)
    if bad:
        raise UndecodableError
    log, bad = parsed(wanted, WANTED, writer, values)
    kinds = RegistryColumns(schema(WANTED, wanted)).schema
    known = {WRITER: schema(WRITER, writer), STORED: schema(STORED, stored)}
    found = StoredColumns(schema(WANTED, wanted), kinds, known.get).convert(table, WRITER, STORED)
    assert not bad, "the log does not have these rows"
    assert {name: array.type for name, array in found.items()} == {
        field.name: field.type for field in kinds
    }
    return pa.table(found).to_pylist(), log.to_pylist()


def test_a_field_that_was_added_has_its_default_and_a_written_null_stays_null() -> None:
    optional = {"name": "note", "type": ["null", "string"], "default": None}
    first = record("id", optional)
    second = record("id", optional, {"name": "city", "type": "string", "default": "?"})
    third = record("id", {"name": "note", "type": ["string", "null"], "default": "none"}, "id2")
    third["fields"][2]["default"] = 5
    rows: list[dict[str, Any]] = [{"id": 1, "note": None}, {"id": 2, "note": "x"}]
    table, log = converted(first, first, second, rows)
    assert table == log == [{**row, "city": "?"} for row in rows]
    table, log = converted(first, second, third, rows)
    assert table == log == [{**row, "id2": 5} for row in rows]


def test_a_default_that_has_changed_applies_to_rows_of_the_table() -> None:
    first = record("id")
    second = record("id", {"name": "city", "type": "string", "default": "?"})
    third = record("id", {"name": "city", "type": "string", "default": "unknown"})
    table, log = converted(first, second, third, [{"id": 1}])
    assert table == log == [{"id": 1, "city": "unknown"}]


def nested(*fields: Any) -> dict[str, Any]:
    line = record(*fields, name="Line")
    return record(
        {"name": "one", "type": ["null", line]},
        {"name": "many", "type": {"type": "array", "items": "Line"}},
        {"name": "named", "type": {"type": "map", "values": ["null", "Line"]}},
    )


def test_a_field_that_was_added_inside_lists_and_maps_has_its_default() -> None:
    tags = {"name": "tags", "type": {"type": "array", "items": "string"}, "default": ["new"]}
    rows = [
        {"one": None, "many": [{"a": 1}, {"a": 2}], "named": {"x": {"a": 3}, "y": None}},
        {"one": {"a": 4}, "many": [], "named": {}},
    ]
    table, log = converted(nested("a"), nested("a"), nested("a", tags), rows)
    assert table == log
    assert table[0]["many"] == [{"a": 1, "tags": ["new"]}, {"a": 2, "tags": ["new"]}]


def test_a_written_field_that_the_table_does_not_have_is_an_error() -> None:
    first = record("id", "size")
    second = record("id")
    third = record("id", {"name": "size", "type": "long", "default": 0})
    with pytest.raises(TableSchemaError, match="schema 3: size: the table lacks it"):
        converted(first, second, third, [{"id": 1, "size": 5}])
    renamed = record("id", {"name": "width", "type": "long", "aliases": ["size"]})
    with pytest.raises(TableSchemaError, match="width: an alias of it is a written field"):
        converted(first, first, renamed, [{"id": 1, "size": 5}])


def test_a_schema_that_the_registry_no_longer_has_is_an_error() -> None:
    wanted = schema(WANTED, record("id"))
    stored = StoredColumns(wanted, RegistryColumns(wanted).schema, lambda _: None)
    with pytest.raises(TableSchemaError, match="no longer has schema 1"):
        stored.convert(pa.array([{"id": 1}]), WRITER, STORED)


# -- any evolution ---------------------------------------------------------------------------------


def _default(kind: Any) -> Any:
    if isinstance(kind, list):
        return None
    return DEFAULTS[kind if isinstance(kind, str) else kind["type"]]


@st.composite
def documents(draw: st.DrawFn, depth: int = 1, name: str = "Row") -> dict[str, Any]:
    """Return a record with some of the fields a to d, of any type, with and without defaults."""
    fields = []
    chosen = draw(st.sets(st.sampled_from("abcd"), min_size=1))
    has_enum = False
    for field in sorted(chosen):
        kinds = st.sampled_from(TYPES if depth and not has_enum else TYPES[:5])
        kind = draw(kinds)
        has_enum = has_enum or isinstance(kind, dict)
        shape = draw(st.sampled_from(["plain", "plain", "record", "array", "map"])) if depth else ""
        if shape in ("record", "array", "map"):
            kind = draw(documents(depth - 1, f"In{field}"))
        if shape == "array":
            kind = {"type": "array", "items": kind}
        if shape == "map":
            kind = {"type": "map", "values": ["null", kind]}
        made = {"name": field, "type": kind}
        if shape != "record" and draw(st.booleans()):
            made["default"] = _default(kind)
        if draw(st.integers(0, 9)) == 0:
            made["aliases"] = [draw(st.sampled_from("abcd"))]
        fields.append(made)
    return {"type": "record", "name": name, "fields": fields}


@st.composite
def evolutions(draw: st.DrawFn) -> tuple[Any, Any, Any]:
    """Return three versions that have most fields in common, inside records as well."""
    first = draw(documents())
    versions = [first, _changed(draw, first), _changed(draw, first)]
    order = draw(st.permutations(versions))
    return order[0], order[1], order[2]


def _changed(draw: st.DrawFn, document: dict[str, Any]) -> dict[str, Any]:
    others = {field["name"]: field for field in draw(documents(0))["fields"]}
    fields = {field["name"]: field for field in document["fields"]}
    found = []
    for name in sorted(fields.keys() | others.keys()):
        field = fields.get(name)
        change = draw(st.integers(0, 9))
        if field is None:
            kind = others[name]["type"]
            found.append({"name": name, "type": kind, "default": _default(kind)})
        elif change == 0 and name in others:
            found.append(others[name])
        elif change == 1:
            continue
        elif isinstance(field["type"], dict) and "fields" in field["type"]:
            found.append({**field, "type": _changed(draw, field["type"])})
        elif isinstance(field["type"], dict) and "items" in field["type"]:
            items = _changed(draw, field["type"]["items"])
            found.append({**field, "type": {"type": "array", "items": items}})
        elif field["type"] in ("int", "float") and change == 2:
            wider = {"int": "long", "float": "double"}[field["type"]]
            found.append({"name": name, "type": wider})
        else:
            found.append(field)
    return {**document, "fields": found or document["fields"]}


def _value(draw: Any, kind: Any) -> Any:
    if isinstance(kind, list):
        return draw(st.sampled_from([None, _value(draw, kind[1])]))
    name = kind if isinstance(kind, str) else kind["type"]
    if name == "record":
        return {field["name"]: _value(draw, field["type"]) for field in kind["fields"]}
    if name == "array":
        return [_value(draw, kind["items"]) for _ in range(draw(st.integers(0, 2)))]
    if name == "map":
        return {key: _value(draw, kind["values"]) for key in draw(st.sets(st.sampled_from("xy")))}
    if name == "enum":
        return draw(st.sampled_from(kind["symbols"]))
    return {"string": "text", "float": 0.25, "double": 0.125}.get(name, draw(st.integers(0, 99)))


@given(evolutions(), st.data())
def test_a_converted_row_is_the_row_of_the_log(
    versions: tuple[Any, Any, Any], data: st.DataObject
) -> None:
    writer, stored, wanted = versions
    rows = [_value(data.draw, writer) for _ in range(3)]
    try:
        fastavro.parse_schema(writer)
        table, log = converted(writer, stored, wanted, rows)
    except (TableSchemaError, InvalidSchemaError, UndecodableError):
        return
    except fastavro.schema.SchemaParseException:
        return
    assert table == log
