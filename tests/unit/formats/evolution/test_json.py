"""JSON rows of a table, converted to another version of their schema: each is what decoding the
value with that version gives, or an error."""

from __future__ import annotations

import json
from typing import Any

import pytest

from strandlog.errors import TableSchemaError

pa = pytest.importorskip("pyarrow", reason="columns need the spark extra")

from strandlog.formats.columns.registry import RegistryColumns  # noqa: E402
from strandlog.formats.columns.values import prefix_of  # noqa: E402
from strandlog.formats.evolution.columns import StoredColumns  # noqa: E402
from strandlog.formats.registered_schema import JSON, RegisteredSchema  # noqa: E402

INTEGER, TEXT = {"type": "integer"}, {"type": "string"}


def closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def opened(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def converted(
    writer: Any, stored: Any, wanted: Any, value: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the row that a table gives with the wanted schema, and the one that the log gives."""
    schemas = [
        RegisteredSchema(number, JSON, json.dumps(each))
        for number, each in enumerate((writer, stored, wanted), 1)
    ]
    values = pa.array([prefix_of(1) + json.dumps(value).encode()])

    def decoded(schema: RegisteredSchema) -> Any:
        columns = RegistryColumns(schema, schemas)
        found = columns.parse(values, columns.schema)
        assert not found.bad
        return pa.StructArray.from_arrays(list(found.columns.values()), fields=list(columns.schema))

    kinds = RegistryColumns(schemas[2]).schema
    found = StoredColumns(schemas[2], kinds, {each.id: each for each in schemas}.get).convert(
        decoded(schemas[1]), 1, 2
    )
    (row,) = pa.table(found, schema=kinds).to_pylist()
    return row, decoded(schemas[2]).to_pylist()[0]


def test_a_property_that_the_values_cannot_have_is_null() -> None:
    first, second = closed(id=INTEGER), closed(id=INTEGER, city=TEXT)
    table, log = converted(first, first, second, {"id": 1})
    assert table == log == {"id": 1, "city": None}


def test_a_property_that_was_added_inside_lists_and_maps_is_null() -> None:
    def schema(line: Any) -> Any:
        return {
            **closed(
                one={"oneOf": [{"type": "null"}, {"$ref": "#/definitions/line"}]},
                many={"type": "array", "items": {"$ref": "#/definitions/line"}},
                named={"type": "object", "additionalProperties": {"$ref": "#/definitions/line"}},
            ),
            "definitions": {"line": line},
        }

    first, second = schema(closed(sku=TEXT)), schema(closed(sku=TEXT, size=INTEGER))
    line = {"sku": "a"}
    table, log = converted(
        first, first, second, {"one": line, "many": [line, line], "named": {"x": line}}
    )
    assert table == log
    assert table["many"] == [{"sku": "a", "size": None}] * 2
    assert converted(first, first, second, {"one": None})[0]["many"] is None


@pytest.mark.parametrize(
    ("writer", "reason"),
    [
        (opened(id=INTEGER), "allows properties that it does not list"),
        (
            {**closed(id=INTEGER), "patternProperties": {"^c": TEXT}},
            "allows properties that it does not list",
        ),
        (closed(id=INTEGER, city=TEXT), "lists it"),
        (
            {"allOf": [opened(id=INTEGER), {"additionalProperties": True}]},
            "allows properties that it does not list",
        ),
    ],
)
def test_a_property_that_the_values_may_have_and_the_table_does_not_is_an_error(
    writer: Any, reason: str
) -> None:
    """A null would be wrong here: the log has the city, and the table has not stored it."""
    text = (
        f"schema 3: city: the table lacks it, but the values may contain it: their schema {reason}"
    )
    with pytest.raises(TableSchemaError, match=rf"{text}.*\.schema\(\).*--rebuild"):
        converted(writer, opened(id=INTEGER), opened(id=INTEGER, city=TEXT), {"id": 1, "city": "x"})


def test_a_property_of_another_type_is_an_error() -> None:
    with pytest.raises(TableSchemaError, match="schema 3: id: its type has changed"):
        converted(opened(id=INTEGER), opened(id=INTEGER), opened(id={"type": "number"}), {"id": 1})
