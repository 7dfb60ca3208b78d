"""Avro: judged cases, Apache's own checker for all pairs, and values that are really read."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
from avro.errors import AvroException
from avro.schema import RecordSchema
from avro.schema import parse as apache_parse
from fastavro import parse_schema, schemaless_reader, schemaless_writer
from hypothesis import assume, given
from hypothesis import strategies as st

from strandlog.broker.schemas import avro_compatibility
from strandlog.broker.schemas.avro import AvroSchemas
from strandlog.broker.schemas.avro_compatibility import avro_incompatibilities
from strandlog.broker.schemas.registry import Registry
from strandlog.broker.schemas.schema import Schema
from strandlog.errors import InvalidSchemaError
from strandlog.formats.registered_schema import AVRO, ResolvedReference
from strandlog.protocol.schema_records import RecordKey, StoredSchema
from strandlog.storage.work import run_inline

TYPES = AvroSchemas()


def record(*fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": list(fields), **more}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def parsed(schema: Any) -> Any:
    return TYPES.parse(Schema(AVRO, json.dumps(schema)), ())


A, B = field("a", "int"), field("b", "int")
ENUM = {"type": "enum", "name": "E", "symbols": ["x", "y"]}
CASES = [
    # reader, writer, compatible
    (record(A), record(A), True),
    (record(A), record(A, B), True),
    (record(A, B), record(A), False),
    (record(A, {**B, "default": 0}), record(A), True),
    (record(field("a", "long")), record(A), True),
    (record(A), record(field("a", "long")), False),
    (record(field("a", "double")), record(field("a", "float")), True),
    (record(field("a", "string")), record(field("a", "bytes")), True),
    (record(field("a", "bytes")), record(field("a", "string")), True),
    (record(field("a", "string")), record(A), False),
    (record(field("a", ["null", "int"])), record(A), True),
    (record(A), record(field("a", ["null", "int"])), False),
    (record(field("z", "int", aliases=["a"])), record(A), True),
    (record(field("z", "int", aliases=["a", "b"])), record(A, B), False),
    (record(field("a", "int", aliases=["b"])), record(A, B), False),
    (record(field("a", "int", aliases=["a"])), record(A), False),  # as in Java
    (ENUM, {**ENUM, "symbols": ["x"]}, True),
    ({**ENUM, "symbols": ["x"]}, ENUM, False),
    ({**ENUM, "symbols": ["x"], "default": "x"}, ENUM, True),
    ({"type": "fixed", "name": "F", "size": 4}, {"type": "fixed", "name": "F", "size": 5}, False),
    ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}, True),
    ({"type": "map", "values": "int"}, {"type": "map", "values": "long"}, False),
    ({**record(A), "type": "error"}, {**record(A, B), "type": "error"}, True),
    (record(field("next", ["null", "R"])), record(field("next", ["null", "R"]), A), True),
]


@pytest.mark.parametrize(("reader", "writer", "is_compatible"), CASES)
def test_compatibility(reader: Any, writer: Any, is_compatible: bool) -> None:
    assert (TYPES.incompatibilities(parsed(reader), parsed(writer)) == []) is is_compatible


KINDS: list[Any] = [
    *("null", "boolean", "int", "long", "float", "double", "bytes", "string"),
    *(["null", "int"], ["int", "string"], ["null", "long"]),
    *({"type": "array", "items": "int"}, {"type": "map", "values": "long"}, ENUM),
    *({"type": "fixed", "name": "F", "size": 4}, record(A), record(A, {**B, "default": 1})),
]
LEVELS: dict[str, Callable[[Any, Any], bool]] = {
    "NONE": lambda new, old: True,
    "BACKWARD": lambda new, old: apache(reader=new, writer=old),
    "FORWARD": lambda new, old: apache(old, new),
    "FULL": lambda new, old: apache(new, old) and apache(old, new),
}


def apache(reader: Any, writer: Any) -> bool:
    """The verdict of Apache's checker on the schemas as they are."""
    one, other = (apache_parse(json.dumps(each)) for each in (reader, writer))
    checker = ReaderWriterCompatibilityChecker()  # type: ignore[no-untyped-call]
    found = checker.get_compatibility(one, other)
    return bool(found.compatibility is SchemaCompatibilityType.compatible)


NAMES = st.sampled_from(["R", "S", "n.R", "n.S"])
FIELD_NAMES = st.sampled_from("abc")


def _fields(kinds: Any) -> Any:
    options = st.sampled_from([{}, {"default": None}, {"aliases": ["a"]}, {"aliases": ["b", "c"]}])
    one = st.tuples(FIELD_NAMES, kinds, options)
    return st.lists(one, max_size=3, unique_by=lambda each: each[0])


def _record(drawn: tuple[str, list[Any], list[str]]) -> dict[str, Any]:
    name, fields, aliases = drawn
    made = [{**field(each, kind), **more} for each, kind, more in fields]
    return {"type": "record", "name": name, "fields": made, "aliases": aliases}


ANY_KIND = st.recursive(
    st.sampled_from(["null", "int", "long", "double", "string", "bytes"]),
    lambda kinds: (
        kinds.map(lambda kind: {"type": "array", "items": kind})
        | kinds.map(lambda kind: {"type": "map", "values": kind})
        | st.lists(kinds, max_size=3)
        | st.tuples(NAMES, _fields(kinds), st.lists(NAMES, max_size=2)).map(_record)
        | st.tuples(NAMES, st.integers(1, 2)).map(
            lambda each: {"type": "fixed", "name": each[0], "size": each[1]}
        )
        | st.tuples(NAMES, st.sampled_from([["x"], ["x", "y"]]), st.booleans()).map(
            lambda each: (
                {"type": "enum", "name": each[0], "symbols": each[1]}
                | ({"default": "x"} if each[2] else {})
            )
        )
    ),
    max_leaves=6,
)


@given(ANY_KIND, ANY_KIND)
def test_any_two_schemas_are_judged_as_apache_does(reader: Any, writer: Any) -> None:
    try:
        one, other = (apache_parse(json.dumps(each)) for each in (reader, writer))
    except AvroException:
        assume(False)  # a name is used twice, for example
    found = avro_incompatibilities(one, other)
    assume(not any("match more than one" in reason for reason in found))  # only Java rejects these
    assert (found == []) is apache(reader, writer)


def test_large_records_and_unions_are_compared_without_a_step_per_pair_of_their_parts() -> None:
    made = parsed(record(*(field(f"f{number}", ["null", "int"]) for number in range(3_000))))
    again = parsed(record(*(field(f"f{number}", ["null", "int"]) for number in range(3_000))))
    assert TYPES.incompatibilities(made, again) == []
    union = [{**record(A), "name": f"R{number}"} for number in range(300)]
    assert TYPES.incompatibilities(parsed(union), parsed(union)) == []


def test_a_record_that_many_unions_name_is_not_looked_at_for_each_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [f"R{number}" for number in range(40)]
    union = [{**record(field("next", ["null", *names[:n]])), "name": names[n]} for n in range(40)]
    made = parsed(union)

    def forbidden(_: object) -> int:
        raise AssertionError("the hash of a type is that of its whole text")

    monkeypatch.setattr(RecordSchema, "__hash__", forbidden)
    assert TYPES.incompatibilities(made, made) == []


def test_fields_count_as_steps_of_a_comparison() -> None:
    fields = [field(f"f{number}", "int", default=0) for number in range(1_000)]
    reader = parsed(record(*fields, aliases=[f"W{number}" for number in range(100)]))
    writer = parsed([{**record(), "name": f"W{number}"} for number in range(100)])
    [reason] = TYPES.incompatibilities(reader, writer)
    assert "too complex" in reason


def test_a_reason_names_only_some_of_many_missing_symbols() -> None:
    def enum(*symbols: str) -> Any:
        return parsed({"type": "enum", "name": "E", "symbols": symbols})

    [reason] = TYPES.incompatibilities(enum("a"), enum(*(f"s{n}" for n in range(1_000))))
    assert reason.endswith("s9 and more (at /)")
    assert TYPES.incompatibilities(enum("a"), enum("a", "c", "b")) == [
        "E lacks the symbols b, c (at /)"
    ]


def test_schemas_that_are_too_complex_are_incompatible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_compatibility, "SCHEMA_MAX_COMPARISONS", 2)
    nested = {
        "type": "array",
        "items": {"type": "array", "items": {"type": "array", "items": A["type"]}},
    }
    [reason] = TYPES.incompatibilities(parsed(nested), parsed(nested))
    assert "too complex" in reason


@pytest.mark.parametrize("level", LEVELS)
def test_every_pair_and_level_agrees_with_apache(level: str) -> None:
    for old, new in itertools.product(KINDS, repeat=2):
        registry = Registry({AVRO: TYPES})
        stored = StoredSchema("s", 1, 1, AVRO, json.dumps(old))
        registry.state.apply(RecordKey("SCHEMA", "s", 1), stored.encode())
        config = json.dumps({"compatibilityLevel": level}).encode()
        registry.state.apply(RecordKey("CONFIG", "s"), config)
        candidate = run_inline(registry.prepare(Schema(AVRO, json.dumps(new))))
        found = run_inline(registry.compatibility("s", candidate, None))
        assert (found == []) is LEVELS[level](new, old), (old, new, found)


VALUES: dict[str, Any] = {
    "int": 5,
    "long": 5,
    "float": 1.5,
    "double": 1.5,
    "string": "x",
    "bytes": b"x",
}


@pytest.mark.parametrize(("old", "new"), list(itertools.product(VALUES, repeat=2)))
def test_what_is_compatible_can_be_read(old: str, new: str) -> None:
    writer, reader = record(field("a", old)), record(field("a", new), {**B, "default": 9})
    data = io.BytesIO()
    schemaless_writer(data, parse_schema(writer), {"a": VALUES[old]})
    data.seek(0)
    if TYPES.incompatibilities(parsed(reader), parsed(writer)) == []:
        found = schemaless_reader(data, parse_schema(writer), parse_schema(reader))
        assert isinstance(found, dict)
        assert found["b"] == 9


def canonical(schema: Any) -> str:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return TYPES.canonical(Schema(AVRO, text), ())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"type":"string"}', '"string"'),
        (record(A), json.dumps(record(A), indent=4)),
        (record(A), {"name": "R", "fields": [{"type": "int", "name": "a"}], "type": "record"}),
        (record(A, namespace="n"), {**record(A), "name": "n.R"}),
        (record(field("a", {"type": "int"})), record(A)),
        (record({**A, "order": "ascending"}), record(A)),
    ],
)
def test_spelling_does_not_make_another_schema(one: Any, other: Any) -> None:
    assert canonical(one) == canonical(other)


@pytest.mark.parametrize(
    "other",
    [
        record(A, doc="x"),
        record({**A, "doc": "x"}),
        record({**A, "default": 1}),
        record({**A, "aliases": ["b"]}),
        record({**A, "custom": 1}),
        record(A, namespace="n"),
        record(A, aliases=["S"]),
        record(field("a", {"type": "int", "logicalType": "date"})),
    ],
)
def test_what_a_person_wrote_makes_another_schema(other: Any) -> None:
    assert canonical(other) != canonical(record(A))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "5",
        "null",
        "NaN",
        '{"type":"unknown"}',
        '{"type":"record","name":"R"}',
        '{"type":"record","name":"1","fields":[]}',
        '{"type":"record","name":5,"fields":[]}',
        '{"type":"record","name":"R","fields":7}',
        '{"type":"record","name":"R","fields":[7]}',
        json.dumps(record(A, A)),
        json.dumps(record({**A, "default": "x"})),
        json.dumps(record(field("a", "Missing"))),
        json.dumps({**ENUM, "symbols": ["x", "x"]}),
        json.dumps({**ENUM, "default": "z"}),
        '["int","int"]',
        '{"type":"map"}',
        "[" * 100_000,
        '{"type":"array","items":' * 500 + '"int"' + "}" * 500,
    ],
)
def test_invalid_schemas(text: str) -> None:
    with pytest.raises(InvalidSchemaError):
        TYPES.parse(Schema(AVRO, text), ())


def test_an_invalid_logical_type_counts_as_none() -> None:
    parsed({"type": "bytes", "logicalType": "decimal", "precision": 0})


def test_references_are_parsed_in_order() -> None:
    base = ResolvedReference("n.B", json.dumps({**record(A, namespace="n"), "name": "B"}))
    middle = ResolvedReference("M", json.dumps({**record(field("b", "n.B")), "name": "M"}))
    text = json.dumps(record(field("m", "M")))
    assert TYPES.parse(Schema(AVRO, text), [base, middle]).fields[0].name == "m"
    with pytest.raises(InvalidSchemaError):
        TYPES.parse(Schema(AVRO, text), [base])


def test_a_misspelt_type_is_named() -> None:
    with pytest.raises(InvalidSchemaError, match="unknown type 'strng'"):
        parsed(record(field("a", "strng")))
