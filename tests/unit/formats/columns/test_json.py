"""JSON values of a registry as columns."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandlog.errors import InvalidSchemaError

pa = pytest.importorskip("pyarrow", reason="columns need the spark extra")

from strandlog.formats.columns.registry import RegistryColumns  # noqa: E402
from strandlog.formats.columns.values import prefix_of  # noqa: E402
from strandlog.formats.registered_schema import (  # noqa: E402
    JSON,
    RegisteredSchema,
    ResolvedReference,
)

INT, NUMBER, TEXT, BOOL = pa.int64(), pa.float64(), pa.string(), pa.bool_()
OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}


def parser_of(properties: Any, *references: tuple[str, Any], **more: Any) -> RegistryColumns:
    text = json.dumps({"type": "object", "properties": properties} | more)
    others = tuple(ResolvedReference(name, json.dumps(each)) for name, each in references)
    return RegistryColumns(RegisteredSchema(4, JSON, text, others))


def rows(parser: RegistryColumns, *values: bytes) -> tuple[list[Any], list[str]]:
    given_values = pa.array([prefix_of(4) + value for value in values], pa.binary())
    found = parser.parse(given_values, parser.schema)
    return pa.table(found.columns).to_pylist(), found.reasons


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "boolean"}, BOOL),
        ({"type": "integer"}, INT),
        ({"type": "number"}, NUMBER),
        ({"type": "string", "format": "date-time"}, TEXT),
        ({"type": ["string", "null"]}, TEXT),
        ({"type": ["null", "integer"]}, INT),
        ({"type": ["integer", "number"]}, NUMBER),
        ({"type": ["integer", "string"]}, TEXT),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, INT),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, TEXT),
        ({"allOf": [{"$ref": "#/definitions/N"}]}, INT),
        ({"$ref": "#/definitions/N"}, INT),
        ({"$ref": "money.json#/properties/amount"}, NUMBER),
        ({"$ref": "money.json"}, pa.struct([("amount", NUMBER), ("left", NUMBER)])),
        ({"enum": ["A", "B"]}, TEXT),
        ({"enum": [1, 2, None]}, INT),
        ({"const": True}, BOOL),
        ({"enum": [1, "x"]}, TEXT),
        ({}, TEXT),
        (True, TEXT),
        ({"type": "array", "items": {"type": "integer"}}, pa.list_(INT)),
        ({"type": "array", "items": [{"type": "integer"}]}, TEXT),
        ({"type": "array"}, TEXT),
        ({"type": "object"}, TEXT),
        ({"type": "object", "properties": {}}, TEXT),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, pa.map_(TEXT, INT)),
        (OBJECT, pa.struct([("a", INT), ("b", TEXT)])),
        ({"type": "array", "items": OBJECT}, pa.list_(pa.struct([("a", INT), ("b", TEXT)]))),
    ],
)
def test_types(schema: Any, kind: Any) -> None:
    money = {
        "type": "object",
        "properties": {"amount": {"type": "number"}, "left": {"$ref": "#/properties/amount"}},
    }
    definitions = {"N": {"type": "integer"}}
    parser = parser_of({"x": schema}, ("money.json", money), definitions=definitions)
    assert parser.type_of("x") == kind


def test_values() -> None:
    parser = parser_of({"id": {"type": "integer"}, "any": {}, "in": OBJECT})
    good = b'{"id": 1, "any": {"x": [1]}, "in": {"a": 5, "b": "c"}, "more": 7}'
    found, reasons = rows(
        parser, good, b'{"id": "x", "any": "text"}', b"[]", b'{"id": 9223372036854775808}'
    )
    assert found == [
        {"id": 1, "any": '{"x":[1]}', "in": {"a": 5, "b": "c"}},
        {"id": None, "any": "text", "in": None},
        {"id": None, "any": None, "in": None},
        {"id": None, "any": None, "in": None},
    ]
    misfit = "field 'id' cannot be converted to the type of its column"
    assert reasons == [misfit, "the value is not a JSON object", misfit]


OBJECTS = st.fixed_dictionaries(
    {},
    optional={
        "i": st.integers(-(2**63), 2**63 - 1),
        "n": st.floats(allow_nan=False, allow_infinity=False),
        "s": st.text(st.characters(exclude_categories=["Cs"]), max_size=10),
        "b": st.booleans(),
        "l": st.lists(st.integers(-9, 9), max_size=3),
        "m": st.dictionaries(st.sampled_from("xyz"), st.booleans(), max_size=2),
        "o": st.fixed_dictionaries({"a": st.integers(-9, 9), "b": st.sampled_from(["", "ü"])}),
    },
)


@given(st.lists(OBJECTS, min_size=1, max_size=20))
def test_any_object(objects: list[dict[str, Any]]) -> None:
    parser = parser_of(
        {
            "i": {"type": "integer"},
            "n": {"type": "number"},
            "s": {"type": "string"},
            "b": {"type": "boolean"},
            "l": {"type": "array", "items": {"type": "integer"}},
            "m": {"type": "object", "additionalProperties": {"type": "boolean"}},
            "o": OBJECT,
        }
    )
    found, reasons = rows(parser, *(json.dumps(each).encode() for each in objects))
    assert reasons == []
    expected = [dict.fromkeys(parser.names) | each for each in objects]
    for row in expected:
        row["m"] = None if row["m"] is None else list(row["m"].items())
    assert found == expected


def test_a_schema_that_contains_itself() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/definitions/Node"}}}
    parser = parser_of(
        {"head": {"$ref": "#/definitions/Node"}, "id": {"type": "integer"}},
        definitions={"Node": node},
    )
    with pytest.raises(InvalidSchemaError, match=r"schema 4: head.next: .* leads back to itself"):
        parser.type_of("head")
    assert parser.type_of("id") == INT


def test_a_missing_reference() -> None:
    with pytest.raises(InvalidSchemaError, match=r"'other\.json' leads to no part of the schema"):
        parser_of({"x": {"$ref": "other.json"}}).type_of("x")


@pytest.mark.parametrize("text", ["true", '{"type": "string"}', '{"type": "object"}'])
def test_a_root_without_properties(text: str) -> None:
    with pytest.raises(InvalidSchemaError, match="must be an object with properties"):
        _ = RegistryColumns(RegisteredSchema(1, JSON, text)).names


def test_a_root_that_refers_to_another_schema_is_resolved_in_that_schema() -> None:
    other = {
        "type": "object",
        "properties": {"a": {"$ref": "#/definitions/id"}},
        "definitions": {"id": {"type": "integer"}},
    }
    references = (ResolvedReference("other.json", json.dumps(other)),)
    root = json.dumps({"$ref": "other.json", "definitions": {"id": {"type": "string"}}})
    parser = RegistryColumns(RegisteredSchema(4, JSON, root, references))
    assert parser.type_of("a") == INT
