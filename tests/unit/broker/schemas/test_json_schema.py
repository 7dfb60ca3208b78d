"""JSON Schema: a table of changes, and documents that both schemas must judge alike."""

from __future__ import annotations

import itertools
import json
from typing import Any

import jsonschema_rs
import pytest

from strandlog.broker.schemas.json_schema import JsonSchemas
from strandlog.broker.schemas.schema import Schema
from strandlog.errors import InvalidSchemaError
from strandlog.formats.registered_schema import JSON, ResolvedReference

TYPES = JsonSchemas()
CLOSED: dict[str, Any] = {"type": "object", "additionalProperties": False}
OPEN: dict[str, Any] = {"type": "object"}
INT, STRING, NUMBER = {"type": "integer"}, {"type": "string"}, {"type": "number"}
A = {"properties": {"a": INT}}
AB = {"properties": {"a": INT, "b": STRING}}
TREE: dict[str, Any] = {
    "$ref": "#/definitions/node",
    "definitions": {
        "node": {
            "type": "object",
            "properties": {"next": {"$ref": "#/definitions/node"}},
            "additionalProperties": False,
        }
    },
}
WIDER_TREE = json.loads(
    json.dumps(TREE).replace('"next": {', '"value": {"type": "integer"}, "next": {')
)


def parsed(schema: Any, *others: ResolvedReference) -> Any:
    return TYPES.parse(Schema(JSON, json.dumps(schema)), others)


CASES: list[tuple[str, Any, Any, bool]] = [
    # change, old, new; whether the new schema reads the data of the old one
    ("same", {**CLOSED, **AB}, {**CLOSED, **AB}, True),
    ("limit widened", {"maximum": 5}, {"maximum": 6}, True),
    ("limit removed", {"minLength": 5}, {}, True),
    ("limit narrowed", {"maxItems": 5}, {"maxItems": 4}, False),
    ("limit added", STRING, {**STRING, "maxLength": 4}, False),
    ("multipleOf reduced", {"multipleOf": 10}, {"multipleOf": 5}, True),
    ("multipleOf changed", {"multipleOf": 10}, {"multipleOf": 3}, False),
    ("pattern removed", {**STRING, "pattern": "a"}, STRING, True),
    ("pattern added", STRING, {**STRING, "pattern": "a"}, False),
    ("uniqueItems added", {"type": "array"}, {"type": "array", "uniqueItems": True}, False),
    ("uniqueItems removed", {"type": "array", "uniqueItems": True}, {"type": "array"}, True),
    ("integer to number", INT, NUMBER, True),
    ("number to integer", NUMBER, INT, False),
    ("type list grows", STRING, {"type": ["string", "null"]}, True),
    ("type list shrinks", {"type": ["string", "null"]}, STRING, False),
    ("type added", {}, STRING, False),
    ("enum grows", {"enum": [1]}, {"enum": [1, 2]}, True),
    ("enum shrinks", {"enum": [1, 2]}, {"enum": [1]}, False),
    ("enum added", INT, {**INT, "enum": [1]}, False),
    ("const to enum", {"const": 1}, {"enum": [1, 2]}, True),
    ("required dropped", {**OPEN, **A, "required": ["a"]}, {**OPEN, **A}, True),
    ("required added", {**OPEN, **A}, {**OPEN, **A, "required": ["a"]}, False),
    (
        "required with a default",
        {**OPEN, **A},
        {**OPEN, "properties": {"a": {**INT, "default": 1}}, "required": ["a"]},
        True,
    ),
    ("property removed from an open model", {**OPEN, **AB}, {**OPEN, **A}, True),
    ("property removed from a closed model", {**CLOSED, **AB}, {**CLOSED, **A}, False),
    ("property added to a closed model", {**CLOSED, **A}, {**CLOSED, **AB}, True),
    ("property added to an open model", {**OPEN, **A}, {**OPEN, **AB}, False),
    ("empty property added", {**OPEN, **A}, {**OPEN, "properties": {"a": INT, "b": {}}}, True),
    ("property narrowed", {**CLOSED, **A}, {**CLOSED, "properties": {"a": STRING}}, False),
    ("model opened", {**CLOSED, **A}, {**OPEN, **A}, True),
    ("model closed", {**OPEN, **A}, {**CLOSED, **A}, False),
    (
        "additionalProperties narrowed",
        {**OPEN, "additionalProperties": NUMBER},
        {**OPEN, "additionalProperties": INT},
        False,
    ),
    (
        "removed property fits additionalProperties",
        {**CLOSED, **A},
        {**OPEN, "additionalProperties": NUMBER},
        True,
    ),
    ("items widened", {"items": INT}, {"items": NUMBER}, True),
    ("items narrowed", {"items": NUMBER}, {"items": INT}, False),
    ("oneOf gains a branch", {"oneOf": [INT]}, {"oneOf": [INT, STRING]}, True),
    ("oneOf loses a branch", {"oneOf": [INT, STRING]}, {"oneOf": [INT]}, False),
    ("type becomes anyOf", INT, {"anyOf": [{"type": "null"}, INT]}, True),
    ("anyOf becomes type", {"anyOf": [{"type": "null"}, INT]}, INT, False),
    ("allOf loses a part", {"allOf": [INT, {"minimum": 1}]}, {"allOf": [INT]}, True),
    ("allOf gains a part", {"allOf": [INT]}, {"allOf": [INT, {"minimum": 1}]}, False),
    ("not narrowed", {"not": NUMBER}, {"not": INT}, True),
    ("not widened", {"not": INT}, {"not": NUMBER}, False),
    ("not added", {}, {"not": INT}, False),
    ("title", {**INT, "title": "a"}, {**INT, "title": "b", "description": "c"}, True),
    ("dependency added", OPEN, {**OPEN, "dependentRequired": {"a": ["b"]}}, False),
    ("dependency removed", {**OPEN, "dependentRequired": {"a": ["b"]}}, OPEN, True),
    ("keyword without a rule", OPEN, {**OPEN, "propertyNames": {"pattern": "a"}}, False),
    ("recursion", TREE, TREE, True),
    ("recursion, widened", TREE, WIDER_TREE, True),
    ("recursion, narrowed", WIDER_TREE, TREE, False),
    ("everything to nothing", True, False, False),
    ("nothing to something", False, INT, True),
]


@pytest.mark.parametrize(
    ("old", "new", "is_compatible"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_compatibility(old: Any, new: Any, is_compatible: bool) -> None:
    assert (TYPES.incompatibilities(parsed(new), parsed(old)) == []) is is_compatible


DOCUMENTS: list[Any] = [
    *(None, True, 0, 1, 2, 5, 6, 10, 2.5, "", "a", "bbbbbb"),
    *([], [1], [1, 1], ["x"], [1, 2, 3, 4, 5]),
    *({}, {"a": 1}, {"a": "x"}, {"a": 1, "b": "x"}, {"b": 5}, {"c": 1}, {"next": {}}),
]
# A default does not fill in a missing property, and an open model may have had any value: the rules
# follow Confluent's registry there.
LOOSE = {"required with a default"}


def test_no_document_is_accepted_by_the_old_and_rejected_by_a_compatible_schema() -> None:
    schemas = [case[1] for case in CASES] + [case[2] for case in CASES if case[0] not in LOOSE]
    checked = 0
    for old, new in itertools.product(schemas, repeat=2):
        if TYPES.incompatibilities(parsed(new), parsed(old)):
            continue
        reads, wrote = jsonschema_rs.validator_for(new), jsonschema_rs.validator_for(old)
        for document in DOCUMENTS:
            if wrote.is_valid(document):
                assert reads.is_valid(document), (old, new, document)
                checked += 1
    assert checked > 1000


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "5",
        "[]",
        '{"type": "strange"}',
        '{"minimum": "x"}',
        '{"properties": 5}',
        '{"$ref": "#/definitions/missing"}',
        '{"$ref": "other.json"}',
        '{"items": ' * 300 + "{}" + "}" * 300,
    ],
)
def test_invalid_schemas(text: str) -> None:
    with pytest.raises(InvalidSchemaError):
        TYPES.parse(Schema(JSON, text), ())


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"default": {"$ref": "#/definitions/missing"}}},
        {"properties": {"enum": {"items": {"$ref": "#/definitions/missing"}}}},
        {"$defs": {"const": {"$ref": "#/definitions/missing"}}},
        {"properties": {"properties": {"properties": {"examples": {"$ref": "other.json"}}}}},
    ],
)
def test_a_missing_reference_in_a_property_named_like_a_keyword_is_rejected(schema: Any) -> None:
    with pytest.raises(InvalidSchemaError, match="matches neither a part of the schema"):
        parsed(schema)


def test_a_reference_in_a_value_or_a_property_of_that_name_is_not_followed() -> None:
    value = {"$ref": "#/definitions/missing"}
    properties = {"$ref": {"const": value}, "enum": {"enum": [value]}}
    parsed({"default": value, "examples": [value], "properties": properties})


def test_references() -> None:
    narrow = ResolvedReference("other.json", json.dumps({"definitions": {"x": INT}}))
    wide = ResolvedReference("other.json", json.dumps({"definitions": {"x": NUMBER}}))
    schema = {**CLOSED, "properties": {"a": {"$ref": "other.json#/definitions/x"}}}
    assert TYPES.incompatibilities(parsed(schema, wide), parsed(schema, narrow)) == []
    assert TYPES.incompatibilities(parsed(schema, narrow), parsed(schema, wide)) != []


def test_a_reference_inside_a_referenced_schema_makes_the_comparison_fail() -> None:
    inner = {**CLOSED, "properties": {"x": {"$ref": "#/definitions/x"}}}
    narrow = ResolvedReference("other.json", json.dumps({**inner, "definitions": {"x": INT}}))
    wide = ResolvedReference("other.json", json.dumps({**inner, "definitions": {"x": NUMBER}}))
    schema = {**CLOSED, "properties": {"a": {"$ref": "other.json"}}, "definitions": {"x": STRING}}
    assert TYPES.incompatibilities(parsed(schema, wide), parsed(schema, narrow)) == []
    assert TYPES.incompatibilities(parsed(schema, narrow), parsed(schema, wide)) != []


def test_a_changed_keyword_next_to_one_of_is_hidden_by_the_branches() -> None:
    old: dict[str, Any] = {**A, "oneOf": [{"properties": {"b": INT}}]}
    new = {**old, "properties": {"a": STRING}}
    assert TYPES.incompatibilities(parsed(new), parsed(old)) != []
    assert TYPES.incompatibilities(parsed(old), parsed(old)) == []


def test_combinations_of_combinations_end() -> None:
    one: Any = INT
    for _ in range(12):
        one = {"anyOf": [one, {"anyOf": [one, {**STRING, "minLength": 3}]}]}
    other = json.loads(json.dumps(one).replace("integer", "boolean"))
    assert TYPES.incompatibilities(parsed(one), parsed(other))


def test_white_space_and_order_do_not_make_another_schema() -> None:
    one = TYPES.canonical(Schema(JSON, '{"type": "object", "title": "a"}'), ())
    assert one == TYPES.canonical(Schema(JSON, '{"title":"a","type":"object"}'), ())
    assert one != TYPES.canonical(Schema(JSON, '{"title":"b","type":"object"}'), ())
