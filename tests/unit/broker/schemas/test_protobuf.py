"""Protobuf: a table of changes, text and descriptors as one schema, and the printer."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from strandlog.broker.schemas.protobuf import ProtobufSchemas
from strandlog.broker.schemas.schema import Schema
from strandlog.errors import InvalidSchemaError
from strandlog.formats.protobuf.compiler import compile_proto
from strandlog.formats.protobuf.text import proto_text
from strandlog.formats.registered_schema import PROTOBUF, ResolvedReference

TYPES = ProtobufSchemas(compile_proto)
HEAD = 'syntax = "proto3"; package p; '


def schema(text: str) -> Schema:
    return Schema(PROTOBUF, text if text.startswith("syntax") else HEAD + text)


CASES = [
    # change, old, new, compatible
    ("same", "message A { int32 a = 1; }", "message A { int32 a = 1; }", True),
    ("field added", "message A {}", "message A { int32 a = 1; }", True),
    ("field removed", "message A { int32 a = 1; }", "message A {}", True),
    ("field renamed", "message A { int32 a = 1; }", "message A { int32 b = 1; }", True),
    ("message added", "message A {}", "message A {} message B {}", True),
    ("message removed", "message A {} message B {}", "message A {}", False),
    ("message moved", "message A {} message B {}", "message B {} message A {}", True),
    ("nested removed", "message A { message B {} }", "message A {}", False),
    ("map removed", "message A { map<string, int32> m = 1; }", "message A {}", True),
    (
        "map value",
        "message A { map<string, int32> m = 1; }",
        "message A { map<string, string> m = 1; }",
        False,
    ),
    ("enum value added", "enum E { X = 0; }", "enum E { X = 0; Y = 1; }", True),
    ("enum removed", "enum E { X = 0; } message A {}", "message A {}", True),
    *(
        (f"{old} to {new}", f"message A {{ {old} a = 1; }}", f"message A {{ {new} a = 1; }}", is_ok)
        for old, new, is_ok in [
            *(("int32", "int64", True), ("int32", "bool", True), ("uint64", "int32", True)),
            *(("sint32", "sint64", True), ("string", "bytes", True), ("fixed32", "sfixed32", True)),
            *(
                ("fixed64", "sfixed64", True),
                ("int32", "sint32", False),
                ("int32", "string", False),
            ),
            *(("float", "double", False), ("fixed32", "fixed64", False)),
            *(("string", "repeated string", True), ("int32", "repeated int32", False)),
        ]
    ),
    (
        "scalar to message",
        "message A { int32 a = 1; } message B {}",
        "message A { B a = 1; } message B {}",
        False,
    ),
    (
        "named type",
        "message A { B a = 1; } message B {} message C {}",
        "message A { C a = 1; } message B {} message C {}",
        False,
    ),
    (
        "enum to int",
        "enum E { X = 0; } message A { E a = 1; }",
        "enum E { X = 0; } message A { int32 a = 1; }",
        True,
    ),
    ("oneof added", "message A {}", "message A { oneof o { int32 a = 1; int32 b = 2; } }", True),
    (
        "oneof member removed",
        "message A { oneof o { int32 a = 1; int32 b = 2; } }",
        "message A { oneof o { int32 a = 1; } }",
        False,
    ),
    (
        "one field into a oneof",
        "message A { int32 a = 1; }",
        "message A { oneof o { int32 a = 1; int32 b = 2; } }",
        True,
    ),
    (
        "several fields into a oneof",
        "message A { int32 a = 1; int32 b = 2; }",
        "message A { oneof o { int32 a = 1; int32 b = 2; } }",
        False,
    ),
    ("optional", "message A { int32 a = 1; }", "message A { optional int32 a = 1; }", True),
    ("package", "message A {}", 'syntax = "proto3"; package q; message A {}', False),
    (
        "required added",
        'syntax = "proto2"; package p; message A {}',
        'syntax = "proto2"; package p; message A { required int32 a = 1; }',
        False,
    ),
]


@pytest.mark.parametrize(
    ("old", "new", "is_compatible"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_compatibility(old: str, new: str, is_compatible: bool) -> None:
    reader, writer = TYPES.parse(schema(new), ()), TYPES.parse(schema(old), ())
    assert (TYPES.incompatibilities(reader, writer) == []) is is_compatible


OTHER = """syntax = "proto2";
package o;
message O {
  required string q = 1 [default = "a\\"b\\n"];
  optional group G = 2 { optional bytes z = 1 [default = "\\001\\""]; }
  optional float f = 4 [default = inf];
  optional E e = 5 [default = Y];
  enum E { X = 0; Y = 1; reserved 5 to max; reserved "OLD"; }
  extensions 100 to max;
}
"""
MAIN = """syntax = "proto3";
package p.q;
import "google/protobuf/timestamp.proto";
import public "dir/other.proto";
option java_package = "a.b";
option optimize_for = CODE_SIZE;
message A {
  int32 a = 1;
  google.protobuf.Timestamp t = 2;
  oneof k { string s = 3; o.O o = 4; }
  map<string, B> m = 5;
  repeated E e = 6 [packed = false, deprecated = true];
  optional bool b = 7;
  message N { int32 x_y = 1 [json_name = "foo"]; }
  N n = 8;
  reserved 9, 11 to 13;
  reserved "zz";
}
message B { option deprecated = true; }
enum E { option allow_alias = true; Z = 0; Y = 0; X = 1 [deprecated = true]; }
service S {
  rpc M (A) returns (stream A);
  rpc N (stream B) returns (A) { option deprecated = true; }
}
"""
REFERENCE = ResolvedReference("dir/other.proto", OTHER)


@pytest.mark.parametrize(("text", "others"), [(OTHER, []), (MAIN, [REFERENCE])])
def test_text_descriptor_and_printed_text_are_one_schema(
    text: str, others: list[ResolvedReference]
) -> None:
    sent = Schema(PROTOBUF, text)
    coded = Schema(PROTOBUF, TYPES.serialized(sent, others))
    printed = Schema(PROTOBUF, TYPES.text(coded))
    assert printed.text == proto_text(TYPES.parse(sent, others))
    assert len({TYPES.canonical(each, others) for each in (sent, coded, printed)}) == 1
    assert TYPES.incompatibilities(TYPES.parse(coded, others), TYPES.parse(printed, others)) == []


def test_a_reference_may_be_a_descriptor() -> None:
    coded = TYPES.serialized(Schema(PROTOBUF, OTHER), ())
    others = [ResolvedReference("dir/other.proto", coded)]
    assert TYPES.parse(Schema(PROTOBUF, MAIN), others).package == "p.q"


@pytest.mark.parametrize(
    "text",
    [
        "message",
        "message A { int32 a 1; }",
        HEAD + "message A { Missing a = 1; }",
        HEAD + 'import "missing.proto"; message A {}',
        HEAD + 'import "/etc/passwd"; message A {}',
        HEAD + "message A {} message A {}",
        'edition = "2023"; message A {}',
        base64.b64encode(b"not a descriptor").decode(),
    ],
)
def test_invalid_schemas(text: str) -> None:
    with pytest.raises(InvalidSchemaError):
        TYPES.parse(Schema(PROTOBUF, text), ())


def test_a_descriptor_with_a_missing_type_is_invalid() -> None:
    coded = TYPES.serialized(Schema(PROTOBUF, MAIN), [REFERENCE])
    with pytest.raises(InvalidSchemaError):
        TYPES.parse(Schema(PROTOBUF, coded), ())


@pytest.mark.parametrize("name", ["../up.proto", "/abs.proto", "", "a\0b", "x" * 5000])
def test_a_reference_cannot_lead_out_of_the_folder_of_the_compiler(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidSchemaError):
        compile_proto({"schema.proto": HEAD, name: HEAD})


def test_errors_name_the_line() -> None:
    with pytest.raises(InvalidSchemaError, match="line 2, column 9"):
        TYPES.parse(Schema(PROTOBUF, 'syntax = "proto3";\nmessage {}'), ())


def test_without_a_compiler_descriptors_still_work() -> None:
    coded = Schema(PROTOBUF, TYPES.serialized(schema("message A {}"), ()))
    alone = ProtobufSchemas(None)
    assert alone.parse(coded, ()).package == "p"
    with pytest.raises(InvalidSchemaError, match="cannot compile"):
        alone.parse(schema("message A {}"), ())
