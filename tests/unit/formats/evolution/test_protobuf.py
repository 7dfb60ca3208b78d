"""Protobuf rows of a table, converted to another version of their message: each is what
decoding the value with that version gives, or an error."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from strandlog.errors import TableSchemaError

pa = pytest.importorskip("pyarrow", reason="columns need the spark extra")
pytest.importorskip("google.protobuf", reason="Protobuf needs the spark extra")
pytest.importorskip("grpc_tools", reason="compiling needs the schemas extra")

from strandlog.formats.columns.descriptors import message_class  # noqa: E402
from strandlog.formats.columns.registry import RegistryColumns  # noqa: E402
from strandlog.formats.columns.values import prefix_of, write_path  # noqa: E402
from strandlog.formats.evolution.columns import StoredColumns  # noqa: E402
from strandlog.formats.protobuf.compiler import compile_proto  # noqa: E402
from strandlog.formats.registered_schema import PROTOBUF, RegisteredSchema  # noqa: E402

ROOT = (0,)
LINE = "message Line { string sku = 1; %s } "


def registered(number: int, text: str) -> RegisteredSchema:
    file = compile_proto({"main.proto": 'syntax = "proto3"; package shop; ' + text})
    return RegisteredSchema(number, PROTOBUF, base64.b64encode(file).decode())


def converted(
    writer: str, stored: str, wanted: str, **fields: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the row that a table gives with the wanted schema, and the one that the log gives.

    The fields are those of the first message of the writer's schema.
    """
    schemas = [registered(number, text) for number, text in enumerate((writer, stored, wanted), 1)]
    names = [message_class(each, ROOT).DESCRIPTOR.full_name for each in schemas]
    assert len(set(names)) == 1
    message = message_class(schemas[0], ROOT)(**fields)
    value = pa.array([prefix_of(1) + write_path(ROOT) + message.SerializeToString()])

    def decoded(schema: RegisteredSchema) -> Any:
        columns = RegistryColumns(schema, schemas)
        found = columns.parse(value, columns.schema)
        assert not found.bad
        return pa.StructArray.from_arrays(list(found.columns.values()), fields=list(columns.schema))

    kinds = RegistryColumns(schemas[2]).schema
    stored_columns = StoredColumns(schemas[2], kinds, {each.id: each for each in schemas}.get)
    found = stored_columns.convert(decoded(schemas[1]), 1, 2)
    (row,) = pa.table(found, schema=kinds).to_pylist()
    return row, decoded(schemas[2]).to_pylist()[0]


def row(fields: str, *, more: str = "") -> str:
    return f"message Row {{ {fields} }} {more}"


def test_a_field_that_was_added_has_the_default_that_the_log_shows() -> None:
    added = (
        "int32 n = 5; string s = 6; optional string o = 7; repeated int64 r = 8; "
        "map<string, bool> m = 9; Line line = 10; E e = 11;"
    )
    more = "message Line { string sku = 1; } enum E { ZERO = 0; }"
    table, log = converted(
        row("int64 id = 1;"), row("int64 id = 1;"), row(f"int64 id = 1; {added}", more=more), id=7
    )
    assert table == log
    assert table == {
        "id": 7, "n": 0, "s": "", "o": None, "r": [], "m": [], "line": None, "e": "ZERO",
    }  # fmt: skip


def test_a_field_that_was_added_inside_lists_and_maps_has_its_default() -> None:
    before = "message Row { Line one = 2; repeated Line many = 3; map<string, Line> named = 4; } "
    texts = [before + LINE % each for each in ("", "", "int64 size = 2; optional string note = 3;")]
    line = {"sku": "a"}
    table, log = converted(*texts, one=line, many=[line, line], named={"x": line})
    assert table == log
    assert table["many"] == [{"sku": "a", "size": 0, "note": None}] * 2
    table, log = converted(*texts)
    assert table == log


def test_a_field_that_was_renamed_keeps_its_values() -> None:
    table, log = converted(
        row("int64 id = 1;"), row("int64 id = 1;"), row("int64 number = 1;"), id=7
    )
    assert table == log == {"number": 7}


def test_an_enum_and_an_integer_that_were_extended_keep_their_values() -> None:
    before = row("E e = 1; int32 n = 2;", more="enum E { A = 0; B = 1; }")
    after = row("E e = 1; int64 n = 2;", more="enum E { A = 0; B = 1; C = 2; }")
    table, log = converted(before, before, after, e=1, n=-5)
    assert table == log == {"e": "B", "n": -5}


@pytest.mark.parametrize(
    ("stored", "wanted", "reason"),
    [
        ("int64 id = 1;", "int64 id = 1; int64 size = 2;", "size: the table lacks it"),
        ("int64 size = 2;", "optional int64 size = 2;", "size: its label has changed"),
        ("int64 size = 2;", "repeated int64 size = 2;", "size: its label has changed"),
        ("int64 size = 2;", "sint64 size = 2;", "size: its type has changed"),
        (
            "int64 id = 1; int64 size = 2;",
            "oneof x { int64 id = 1; int64 size = 2; }",
            "id: its on",
        ),
    ],
)
def test_a_value_that_the_table_does_not_determine_is_an_error(
    stored: str, wanted: str, reason: str
) -> None:
    with pytest.raises(TableSchemaError, match=f"schema 3: {reason}"):
        converted(row("int64 id = 1; int64 size = 2;"), row(stored), row(wanted), id=1, size=2)
