"""Compatibility as others publish it: Avro's specification of schema resolution, and the tables of
Confluent's documentation on the evolution of schemas, each rule in one row."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from strandlog.broker.schemas.avro import AvroSchemas
from strandlog.broker.schemas.json_schema import JsonSchemas
from strandlog.broker.schemas.protobuf import ProtobufSchemas
from strandlog.broker.schemas.registry import Registry
from strandlog.broker.schemas.schema import Schema, SchemaType
from strandlog.formats.protobuf.compiler import compile_proto
from strandlog.formats.registered_schema import AVRO, JSON, PROTOBUF
from strandlog.protocol.schema_records import RecordKey, StoredSchema
from strandlog.storage.work import run_inline

TYPES: dict[str, SchemaType] = {
    AVRO: AvroSchemas(),
    JSON: JsonSchemas(),
    PROTOBUF: ProtobufSchemas(compile_proto),
}


def accepts(kind: str, level: str, old: list[str], new: str) -> bool:
    """Whether a subject with these versions accepts another."""
    registry = Registry(TYPES)
    for version, text in enumerate(old, 1):
        stored = StoredSchema("s", version, version, kind, text)
        registry.state.apply(RecordKey("SCHEMA", "s", version), stored.encode())
    config = json.dumps({"compatibilityLevel": level}).encode()
    registry.state.apply(RecordKey("CONFIG", "s"), config)
    candidate = run_inline(registry.prepare(Schema(kind, new)))
    return run_inline(registry.compatibility("s", candidate, None)) == []


# -- Avro's specification: schema resolution -------------------------------------------------------


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def enum(*symbols: str, name: str = "E", **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": list(symbols), **more}


def fixed(size: int, name: str = "F") -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size}


class Rule(NamedTuple):
    text: str
    writer: Any
    reader: Any
    is_resolved: bool


A = field("a", "int")
LIST = record(A, field("next", ["null", "R"]))
RULES = [
    Rule(
        "the items of arrays are resolved",
        {"type": "array", "items": "int"},
        {"type": "array", "items": "long"},
        True,
    ),
    Rule(
        "arrays with items that differ",
        {"type": "array", "items": "long"},
        {"type": "array", "items": "int"},
        False,
    ),
    Rule(
        "the values of maps are resolved",
        {"type": "map", "values": "int"},
        {"type": "map", "values": "double"},
        True,
    ),
    Rule(
        "an array is no map",
        {"type": "array", "items": "int"},
        {"type": "map", "values": "int"},
        False,
    ),
    Rule("enums have the same unqualified name", enum("a"), enum("a", name="n.E"), True),
    Rule("enums with other names", enum("a"), enum("a", name="G"), False),
    Rule("a fixed has the same size and name", fixed(4), fixed(4), True),
    Rule("a fixed of another size", fixed(4), fixed(5), False),
    Rule("a fixed of another name", fixed(4), fixed(4, "G"), False),
    Rule("records have the same unqualified name", record(A), record(A, name="n.R"), True),
    Rule("records with other names", record(A), record(A, name="S"), False),
    Rule(
        "an alias of the reader renames the record",
        record(A),
        record(A, name="S", aliases=["R"]),
        True,
    ),
    Rule("either schema is a union", "int", ["null", "int"], True),
    Rule("both schemas are unions", ["null", "int"], ["int", "null", "string"], True),
    *(
        Rule(f"{writer} is promoted to {reader}", writer, reader, True)
        for writer, readers in {
            "int": ("long", "float", "double"),
            "long": ("float", "double"),
            "float": ("double",),
            "string": ("bytes",),
            "bytes": ("string",),
        }.items()
        for reader in readers
    ),
    *(
        Rule(f"{writer} is not promoted to {reader}", writer, reader, False)
        for writer, reader in (
            *(("long", "int"), ("float", "long"), ("double", "float"), ("int", "string")),
            *(("boolean", "int"), ("null", "int"), ("string", "int"), ("int", "boolean")),
        )
    ),
    Rule(
        "fields are matched by name, in any order",
        record(A, field("b", "int")),
        record(field("b", "int"), A),
        True,
    ),
    Rule("the fields of a record are resolved", record(A), record(field("a", "long")), True),
    Rule("a field only of the writer is ignored", record(A, field("b", "int")), record(A), True),
    Rule(
        "a field only of the reader gets its default",
        record(A),
        record(A, field("b", "int", default=1)),
        True,
    ),
    Rule(
        "a field only of the reader without default", record(A), record(A, field("b", "int")), False
    ),
    Rule(
        "an alias of the reader renames the field",
        record(A),
        record(field("z", "int", aliases=["a"])),
        True,
    ),
    Rule("a symbol that the reader lacks", enum("a", "b"), enum("a"), False),
    Rule("the reader's default stands for it", enum("a", "b"), enum("a", default="a"), True),
    Rule("a symbol that the writer lacks", enum("a"), enum("a", "b"), True),
    Rule("reader's union: the first schema that matches", "int", ["string", "long"], True),
    Rule("reader's union: no schema matches", "int", ["string", "null"], False),
    Rule("writer's union: every branch is read", ["int", "long"], "long", True),
    Rule("writer's union: a branch cannot be read", ["int", "string"], "long", False),
    Rule("recursive records", LIST, LIST, True),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.text)
def test_avro_resolution(rule: Rule) -> None:
    writer, reader = json.dumps(rule.writer), json.dumps(rule.reader)
    assert accepts(AVRO, "BACKWARD", [writer], reader) is rule.is_resolved
    assert accepts(AVRO, "FORWARD", [reader], writer) is rule.is_resolved


# -- Confluent: which change each level allows -----------------------------------------------------

OPTIONAL, REQUIRED = field("b", "int", default=0), field("b", "int")
CHANGES = {
    "add an optional field": (record(A), record(A, OPTIONAL)),
    "add a required field": (record(A), record(A, REQUIRED)),
    "delete an optional field": (record(A, OPTIONAL), record(A)),
    "delete a required field": (record(A, REQUIRED), record(A)),
}
ALLOWED = {
    "NONE": set(CHANGES),
    "BACKWARD": {"add an optional field", "delete an optional field", "delete a required field"},
    "FORWARD": {"add an optional field", "add a required field", "delete an optional field"},
    "FULL": {"add an optional field", "delete an optional field"},
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("level", ALLOWED)
def test_changes_of_avro_records(level: str, change: str) -> None:
    old, new = (json.dumps(each) for each in CHANGES[change])
    assert accepts(AVRO, level, [old], new) is (change in ALLOWED[level])
    if level != "NONE":
        assert accepts(AVRO, f"{level}_TRANSITIVE", [old], new) is (change in ALLOWED[level])


def test_transitive_levels_compare_all_versions() -> None:
    first, second, third = (
        json.dumps(each) for each in (record(A), record(A, OPTIONAL), record(A, REQUIRED))
    )
    assert accepts(AVRO, "BACKWARD", [first, second], third)
    assert not accepts(AVRO, "BACKWARD_TRANSITIVE", [first, second], third), "the first lacks b"
    assert accepts(AVRO, "FORWARD", [third, second], first)
    assert not accepts(AVRO, "FORWARD_TRANSITIVE", [third, second], first)


# -- Confluent: JSON Schema, open and closed models ------------------------------------------------


def model(*names: str, closed: bool = False, required: tuple[str, ...] = ()) -> str:
    document: dict[str, Any] = {
        "type": "object",
        "properties": {n: {"type": "string"} for n in names},
    }
    if closed:
        document["additionalProperties"] = False
    if required:
        document["required"] = list(required)
    return json.dumps(document)


@pytest.mark.parametrize(
    ("text", "old", "new", "is_allowed"),
    [
        ("open: remove a property", model("a", "b"), model("a"), True),
        ("open: add a property", model("a"), model("a", "b"), False),
        (
            "closed: add an optional property",
            model("a", closed=True),
            model("a", "b", closed=True),
            True,
        ),
        ("closed: remove a property", model("a", "b", closed=True), model("a", closed=True), False),
        ("closed: open the model", model("a", closed=True), model("a"), True),
        ("open: close the model", model("a"), model("a", closed=True), False),
        ("a property becomes required", model("a"), model("a", required=("a",)), False),
        ("a property is no longer required", model("a", required=("a",)), model("a"), True),
        ("a type is widened", '{"type": "integer"}', '{"type": "number"}', True),
        ("a type is narrowed", '{"type": "number"}', '{"type": "integer"}', False),
        ("an enum grows", '{"enum": ["a"]}', '{"enum": ["a", "b"]}', True),
        ("an enum shrinks", '{"enum": ["a", "b"]}', '{"enum": ["a"]}', False),
        ("a maximum rises", '{"maximum": 5}', '{"maximum": 9}', True),
        ("a maximum falls", '{"maximum": 9}', '{"maximum": 5}', False),
    ],
)
def test_changes_of_json_schemas(text: str, old: str, new: str, is_allowed: bool) -> None:
    assert accepts(JSON, "BACKWARD", [old], new) is is_allowed, text


# -- Confluent: Protobuf ---------------------------------------------------------------------------


def proto(body: str, more: str = "") -> str:
    return f'syntax = "proto3"; message M {{ {body} }} {more}'


@pytest.mark.parametrize(
    ("text", "old", "new", "is_allowed"),
    [
        ("add a field", proto("int32 a = 1;"), proto("int32 a = 1; string b = 2;"), True),
        ("remove a field", proto("int32 a = 1; string b = 2;"), proto("int32 a = 1;"), True),
        ("rename a field", proto("int32 a = 1;"), proto("int32 z = 1;"), True),
        ("int32 becomes int64", proto("int32 a = 1;"), proto("int64 a = 1;"), True),
        ("int32 becomes sint32", proto("int32 a = 1;"), proto("sint32 a = 1;"), False),
        ("int32 becomes string", proto("int32 a = 1;"), proto("string a = 1;"), False),
        ("add a message", proto(""), proto("", "message N {}"), True),
        ("remove a message", proto("", "message N {}"), proto(""), False),
        (
            "a field joins a new oneof",
            proto("int32 a = 1;"),
            proto("oneof o { int32 a = 1; string b = 2; }"),
            True,
        ),
        (
            "a field leaves its oneof",
            proto("oneof o { int32 a = 1; string b = 2; }"),
            proto("oneof o { string b = 2; }"),
            False,
        ),
    ],
)
def test_changes_of_protobuf_messages(text: str, old: str, new: str, is_allowed: bool) -> None:
    assert accepts(PROTOBUF, "BACKWARD", [old], new) is is_allowed, text
