"""JSON Schema: a table of changes, and documents that both schemas must judge alike."""

from __future__ import annotations

import itertools
import json
from typing import Any

import jsonschema_rs
import pytest

from strandlog.broker.schemas.json_schema import JsonSchemas
from strandlog.broker.schemas.schema import Schema, canonical_json
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
    (
        "a schema that a keyword without a rule refers to is narrowed",
        {"patternProperties": {"^x": {"$ref": "#/$defs/x"}}, "$defs": {"x": NUMBER}},
        {"patternProperties": {"^x": {"$ref": "#/$defs/x"}}, "$defs": {"x": INT}},
        False,
    ),
    (
        "a schema that a keyword without a rule refers to is the same",
        {"contains": {"$ref": "#/$defs/x"}, "$defs": {"x": INT}},
        {"contains": {"$ref": "#/$defs/x"}, "$defs": {"x": INT, "y": INT}},
        True,
    ),
    (
        "a schema that a dependency refers to is narrowed",
        {"dependentSchemas": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {}}},
        {"dependentSchemas": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": CLOSED}},
        False,
    ),
    (
        "a schema with an anchor is narrowed",
        {"properties": {"a": {"$ref": "#x"}}, "$defs": {"x": {**NUMBER, "$anchor": "x"}}},
        {"properties": {"a": {"$ref": "#x"}}, "$defs": {"x": {**INT, "$anchor": "x"}}},
        False,
    ),
    (
        "a schema with an anchor is widened",
        {"properties": {"a": {"$ref": "#x"}}, "$defs": {"x": {**INT, "$anchor": "x"}}},
        {"properties": {"a": {"$ref": "#x"}}, "$defs": {"x": {**NUMBER, "$anchor": "x"}}},
        True,
    ),
    (
        "property removed from a model that unevaluatedProperties closes",
        {**OPEN, **AB, "unevaluatedProperties": False},
        {**OPEN, **A, "unevaluatedProperties": False},
        False,
    ),
    (
        "property added to a model that unevaluatedProperties closes",
        {**OPEN, **A, "unevaluatedProperties": False},
        {**OPEN, **AB, "unevaluatedProperties": False},
        True,
    ),
    (
        "property removed from a part of a model that unevaluatedProperties closes",
        {**OPEN, "allOf": [AB], "unevaluatedProperties": False},
        {**OPEN, "allOf": [A], "unevaluatedProperties": False},
        False,
    ),
    (
        "item removed from a list that unevaluatedItems closes",
        {"prefixItems": [INT, INT], "unevaluatedItems": False},
        {"prefixItems": [INT], "unevaluatedItems": False},
        False,
    ),
    (
        "property added that a pattern matches",
        {**CLOSED, "patternProperties": {"^a": {}}},
        {**CLOSED, "patternProperties": {"^a": {}}, **A},
        False,
    ),
    (
        "property added that no pattern matches",
        {**CLOSED, "patternProperties": {"^x": {}}},
        {**CLOSED, "patternProperties": {"^x": {}}, **A},
        True,
    ),
    (
        "properties beside a branch that closes the model",
        {**CLOSED, **A},
        {**OPEN, **A, "anyOf": [{"additionalProperties": False}]},
        False,
    ),
    ("multipleOf beyond floats", {"multipleOf": 10**400}, {"multipleOf": 0.5}, False),
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
        '{"$ref": "#missing"}',
        '{"$ref": "#/x/y", "x": {"y": {"required": 5}}}',
        '{"$ref": "#/default", "default": {"type": [[1]]}}',
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


def slow_schema(added: int, parts: int, values: list[str], required: list[str]) -> Any:
    """Return a schema with many parts that all lead to the same long lists."""
    shared = {"enum": [*values, *map(str, range(added))], "required": required, "x-note": values}
    chain = {f"c{n}": {"$ref": f"#/$defs/c{n + 1}"} for n in range(parts)}
    branches = [{"minLength": n} for n in range(parts // 20)]
    return {
        "$defs": {"x": shared, **chain, f"c{parts}": {"$ref": "#/$defs/x"}},
        "properties": {
            **{f"p{n}": {"$ref": "#/$defs/x"} for n in range(parts)},
            **{f"q{n}": {"$ref": "#/$defs/c0"} for n in range(parts)},
        },
        "items": {**shared, "oneOf": branches, "not": {"enum": values}},
    }


def test_long_lists_that_many_parts_share_are_compared_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = [f"v{number}" for number in range(500)]
    old, new = (parsed(slow_schema(added, 500, values, values)) for added in (0, 1))
    texts = itertools.count()

    def counted(value: object) -> str:
        next(texts)
        return canonical_json(value)

    monkeypatch.setattr("strandlog.broker.schemas.json_schema.canonical_json", counted)
    TYPES.incompatibilities(new, old)
    assert next(texts) < 20 * len(values)


@pytest.mark.parametrize(
    "long",
    [
        {f"x{n}": n for n in range(20_000)},
        {"required": [str(n) for n in range(20_000)]},
        {"dependentRequired": {str(n): [] for n in range(20_000)}},
    ],
)
def test_long_parts_beside_many_branches_count_as_several_steps(long: Any) -> None:
    schema = {**long, "anyOf": [{"minLength": n} for n in range(200)]}
    found = TYPES.incompatibilities(parsed(schema), parsed(schema))
    assert found == ["the schemas are too complex to compare"]


def test_chains_of_references_count_as_steps() -> None:
    schema = slow_schema(0, 500, [], [])
    schema["properties"] = {f"q{n}": {"$ref": "#/$defs/c0", "title": str(n)} for n in range(500)}
    found = TYPES.incompatibilities(parsed(schema), parsed(schema))
    assert found == ["the schemas are too complex to compare"]


def test_white_space_and_order_do_not_make_another_schema() -> None:
    one = TYPES.canonical(Schema(JSON, '{"type": "object", "title": "a"}'), ())
    assert one == TYPES.canonical(Schema(JSON, '{"title":"a","type":"object"}'), ())
    assert one != TYPES.canonical(Schema(JSON, '{"title":"b","type":"object"}'), ())
