"""Protobuf values of a registry as columns."""

from __future__ import annotations

import base64
import datetime
import decimal
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandlog.errors import InvalidSchemaError

pa = pytest.importorskip("pyarrow", reason="columns need the spark extra")
pytest.importorskip("google.protobuf", reason="Protobuf needs the spark extra")
pytest.importorskip("grpc_tools", reason="compiling needs the schemas extra")

from strandlog.formats.columns.descriptors import message_class  # noqa: E402
from strandlog.formats.columns.registry import RegistryColumns  # noqa: E402
from strandlog.formats.columns.values import prefix_of, read_path, write_path  # noqa: E402
from strandlog.formats.protobuf.compiler import compile_proto  # noqa: E402
from strandlog.formats.registered_schema import (  # noqa: E402
    PROTOBUF,
    RegisteredSchema,
    ResolvedReference,
)

HEAD = 'syntax = "proto3";\npackage shop;\n'
EVERYTHING = (
    HEAD
    + """
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
message Row {
  bool b = 1;  int32 i = 2;  sint64 l = 3;  uint32 u = 4;  fixed64 v = 5;
  float f = 6;  double d = 7;  string s = 8;  bytes y = 9;
  Color color = 10;
  optional int32 maybe = 11;
  repeated int32 list = 12;
  map<string, Inner> map = 13;
  Inner inner = 14;
  repeated Inner inners = 15;
  oneof choice { string left = 16; int64 right = 17; }
  google.protobuf.Timestamp at = 18;
  google.protobuf.Duration took = 19;
  google.protobuf.Int64Value wrapped = 20;
  google.protobuf.Struct any = 21;
  message Inner { int32 x = 1; optional string y = 2; }
}
enum Color { RED = 0; BLUE = 1; }
message Other { int32 i = 2; }
"""
)


def registered(number: int, text: str, *others: tuple[str, str]) -> RegisteredSchema:
    texts = {"main.proto": text, **dict(others)}
    references = []
    for name, other in others:
        file = compile_proto({name: other, **{k: v for k, v in others if k != name}})
        references.append(ResolvedReference(name, base64.b64encode(file).decode()))
    main = base64.b64encode(compile_proto(texts)).decode()
    return RegisteredSchema(number, PROTOBUF, main, tuple(references))


ROW = registered(1, EVERYTHING)


def value_of(schema: RegisteredSchema, path: tuple[int, ...] = (0,), **fields: Any) -> bytes:
    message = message_class(schema, path)(**fields)
    payload: bytes = message.SerializeToString()
    return prefix_of(schema.id) + write_path(path) + payload


def rows(parser: RegistryColumns, *values: bytes | None) -> list[Any]:
    found = parser.parse(pa.array(values, pa.binary()), parser.schema)
    read: list[Any] = pa.table(found.columns).to_pylist()
    for row, reason in zip(found.bad, found.reasons, strict=True):
        read[row] = reason
    return read


EMPTY: dict[str, Any] = {
    "b": False,
    "i": 0,
    "l": 0,
    "u": 0,
    "v": decimal.Decimal(0),
    "f": 0.0,
    "d": 0.0,
    "s": "",
    "y": b"",
    "color": "RED",
    "list": [],
    "map": [],
    "inners": [],
    **dict.fromkeys(["maybe", "inner", "left", "right", "at", "took", "wrapped", "any"]),
}


def test_types() -> None:
    inner = pa.struct([("x", pa.int32()), ("y", pa.string())])
    kinds = {field.name: field.type for field in RegistryColumns(ROW).schema}
    assert kinds["u"] == pa.int64()
    assert kinds["v"] == pa.decimal128(20, 0)
    assert kinds["map"] == pa.map_(pa.string(), inner)
    assert kinds["inners"] == pa.list_(inner)
    assert kinds["at"] == pa.timestamp("us", "UTC")
    assert kinds["took"] == kinds["wrapped"] == pa.int64()
    assert kinds["any"] == kinds["color"] == pa.string()


SCALARS = st.fixed_dictionaries(
    {},
    optional={
        "b": st.booleans(),
        "i": st.integers(-(2**31), 2**31 - 1),
        "l": st.integers(-(2**63), 2**63 - 1),
        "u": st.integers(0, 2**32 - 1),
        "v": st.integers(0, 2**64 - 1),
        "f": st.floats(width=32, allow_nan=False),
        "d": st.floats(allow_nan=False),
        "s": st.text(st.characters(exclude_categories=["Cs"]), max_size=9),
        "y": st.binary(max_size=9),
        "maybe": st.integers(-9, 9),
        "list": st.lists(st.integers(-9, 9), max_size=3),
        "inner": st.fixed_dictionaries({"x": st.integers(-9, 9)}),
        "left": st.text("ab", max_size=3),
    },
)


@given(st.lists(SCALARS, max_size=6))
def test_any_message(objects: list[dict[str, Any]]) -> None:
    expected = []
    for each in objects:
        row = EMPTY | each
        row["v"] = decimal.Decimal(row["v"])
        if row["inner"] is not None:
            row["inner"] = {"x": row["inner"]["x"], "y": None}
        expected.append(row)
    assert rows(RegistryColumns(ROW), *(value_of(ROW, **each) for each in objects)) == expected


def test_messages_in_messages() -> None:
    found = rows(
        RegistryColumns(ROW),
        value_of(ROW, map={"k": {"x": 1, "y": "z"}}, inners=[{"x": 1}, {"x": 2}], right=3),
        None,
        value_of(ROW, color=7, wrapped={"value": 0}, any={"a": [1, None]}),
        value_of(ROW, at={"seconds": -1, "nanos": 999_999_999}, took={"seconds": 2, "nanos": 1999}),
    )
    assert found[0] == EMPTY | {
        "map": [("k", {"x": 1, "y": "z"})],
        "inners": [{"x": 1, "y": None}, {"x": 2, "y": None}],
        "right": 3,
    }
    assert found[1] == dict.fromkeys(EMPTY)
    assert json.loads(found[2].pop("any")) == {"a": [1, None]}
    assert (found[2]["color"], found[2]["wrapped"]) == ("7", 0)
    assert found[3]["at"] == datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999, datetime.UTC)
    assert found[3]["took"] == 2_000_001


def test_bad_values_have_reasons() -> None:
    good = value_of(ROW, i=1)
    huge = value_of(ROW, at={"seconds": 2**62})
    found = rows(
        RegistryColumns(ROW),
        good, good[:6] + b"\xff", value_of(ROW, (1,), i=5), prefix_of(1) + write_path([7]),
        prefix_of(1) + b"\x80", huge, value_of(ROW, (0, 0)), good,
    )  # fmt: skip
    assert found[0] == found[-1] == EMPTY | {"i": 1}
    assert found[1:5] == [
        "the value does not match schema 1",
        "the value is a shop.Other, not a shop.Row",
        "schema 1 has no message at [7]",
        "the value does not match schema 1",
    ]
    assert found[5].startswith("the value does not fit its columns (schema 1)")
    assert found[6].startswith("the value is a shop.Row.")


def test_a_schema_that_changes() -> None:
    """Fields are found by number; messages by name, wherever they are in the file."""
    old = registered(1, HEAD + "message Row { int32 id = 1; string name = 2; }")
    new = registered(2, HEAD + "message Row { int64 number = 1; optional string city = 3; }")
    moved = registered(3, HEAD + "message First {} message Row { int64 number = 1; }")
    parser = RegistryColumns(new, [old, moved])
    assert rows(
        parser,
        value_of(old, id=5, name="x"),
        value_of(new, number=2**40, city="c"),
        value_of(moved, (1,), number=9),
    ) == [
        {"number": 5, "city": None},
        {"number": 2**40, "city": "c"},
        {"number": 9, "city": None},
    ]


def test_a_message_by_its_name() -> None:
    parser = RegistryColumns(ROW, message="shop.Other")
    assert rows(parser, value_of(ROW, (1,), i=5), value_of(ROW)) == [
        {"i": 5},
        "the value is a shop.Row, not a shop.Other",
    ]
    with pytest.raises(InvalidSchemaError, match=r"has no message 'x'; it has shop\.Row, "):
        _ = RegistryColumns(ROW, message="x").names


def test_references() -> None:
    money = HEAD + "message Money { int64 amount = 1; }"
    order = HEAD + 'import "shop/money.proto";\nmessage Order { Money price = 1; }'
    schema = registered(5, order, ("shop/money.proto", money))
    assert rows(RegistryColumns(schema), value_of(schema, price={"amount": 7})) == [
        {"price": {"amount": 7}}
    ]


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ("Row next = 1;", "shop.Row contains itself"),
        ("google.protobuf.Any x = 1;", "google.protobuf.Any cannot be a column"),
    ],
)
def test_a_field_that_cannot_be_a_column(field: str, reason: str) -> None:
    text = HEAD + f'import "google/protobuf/any.proto";\nmessage Row {{ {field} int32 id = 2; }}'
    parser = RegistryColumns(registered(1, text))
    with pytest.raises(InvalidSchemaError, match=reason):
        _ = parser.schema
    assert parser.type_of("id") == pa.int32()


def test_messages_without_fields_are_dropped() -> None:
    text = HEAD + "message Row { Nothing a = 1; repeated Nothing b = 2; int32 c = 3; }"
    parser = RegistryColumns(registered(1, text + " message Nothing {}"))
    assert parser.dropped == ("a", "b")
    assert parser.names == ("c",)


def test_text_is_compiled() -> None:
    """A data folder has the texts as they were registered."""
    money = ResolvedReference("money.proto", HEAD + "message Money { int64 amount = 1; }")
    text = HEAD + 'import "money.proto"; message Order { Money price = 1; }'
    schema = RegisteredSchema(1, PROTOBUF, text, (money,))
    assert rows(RegistryColumns(schema), value_of(schema, price={"amount": 7})) == [
        {"price": {"amount": 7}}
    ]
    with pytest.raises(InvalidSchemaError, match=r"schema 2: Invalid schema \(Protobuf\)"):
        _ = RegistryColumns(RegisteredSchema(2, PROTOBUF, "message {")).names


@given(st.lists(st.integers(0, 300), min_size=1, max_size=5))
def test_paths(path: list[int]) -> None:
    data = write_path(path)
    assert read_path(b"12345" + data + b"x") == (tuple(path), 5 + len(data))
