"""Avro values as JSON: one value at a time, checked against fastavro."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandlog.errors import DataError
from strandlog.formats.registered_schema import AVRO, RegisteredSchema, ResolvedReference
from strandlog.formats.registry.avro_times import time_count
from strandlog.formats.registry.codec import Codec, codec_of

fastavro = pytest.importorskip("fastavro", reason="fastavro is in the extra schemas")


def codec(schema: Any, *references: ResolvedReference) -> Codec:
    return codec_of(RegisteredSchema(1, AVRO, json.dumps(schema), references))


def by_fastavro(schema: Any, value: Any) -> bytes:
    target = BytesIO()
    fastavro.schemaless_writer(target, fastavro.parse_schema(schema), value)
    return target.getvalue()


def record(*fields: Any, name: str = "R") -> dict[str, Any]:
    made = [{"name": f"f{number}", "type": each} for number, each in enumerate(fields)]
    return {"type": "record", "name": name, "fields": made}


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
FIXED = {"type": "fixed", "name": "F", "size": 3}


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("null", None),
        ("boolean", True),
        ("int", -(2**31)),
        ("long", 2**63 - 1),
        ("double", 0.1),
        ("string", "ä\n€"),
        ({"type": "array", "items": "int"}, [1, 2, 3]),
        ({"type": "array", "items": "int"}, []),
        ({"type": "map", "values": "string"}, {"a": "x", "b": ""}),
        (ENUM, "B"),
        (["null", "string"], None),
        (["null", "string"], "x"),
        (["int", "string", {"type": "array", "items": "int"}], [7]),
        (record("int", ["null", record("string", name="Inner")]), {"f0": 1, "f1": {"f0": "x"}}),
    ],
)
def test_a_value_is_written_and_read_as_fastavro_does(schema: Any, value: Any) -> None:
    data = by_fastavro(schema, value)
    assert codec(schema).decode(data, None) == value
    assert codec(schema).encode(value) == data


@pytest.mark.parametrize(
    ("schema", "value", "text"),
    [
        ("bytes", b"\x00\xff", "\x00\xff"),
        (FIXED, b"\x01\x02\xfe", "\x01\x02\xfe"),
        ("double", math.inf, "Infinity"),
        ("float", -math.inf, "-Infinity"),
        (logical("int", "date"), 19_000, "2022-01-08"),
        (logical("int", "date"), -719_162, "0001-01-01"),
        (logical("int", "time-millis"), 1, "00:00:00.001"),
        (logical("long", "time-micros"), 86_399_999_999, "23:59:59.999999"),
        (logical("long", "timestamp-millis"), 1_700_000_000_123, "2023-11-14T22:13:20.123Z"),
        (logical("long", "timestamp-micros"), -1, "1969-12-31T23:59:59.999999Z"),
        (logical("long", "local-timestamp-millis"), 0, "1970-01-01T00:00:00"),
        (logical("long", "timestamp-nanos"), 1, "1970-01-01T00:00:00.000000001Z"),
        (logical("bytes", "decimal", precision=9, scale=2), Decimal("-12.50"), "-12.50"),
        (
            {**FIXED, "logicalType": "decimal", "precision": 5, "scale": 3},
            Decimal("1.234"),
            "1.234",
        ),
    ],
)
def test_types_that_json_lacks_are_text(schema: Any, value: Any, text: str) -> None:
    plain = {**schema} if isinstance(schema, dict) else schema
    if isinstance(plain, dict) and isinstance(value, int):
        del plain["logicalType"]
    data = by_fastavro(plain, value)
    assert codec(schema).decode(data, None) == text
    assert codec(schema).encode(text) == data


def test_a_uuid_may_be_text_or_bytes() -> None:
    text = "00112233-4455-6677-8899-aabbccddeeff"
    assert codec(logical("string", "uuid")).decode(by_fastavro("string", text), None) == text
    fixed = {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}
    data = bytes.fromhex(text.replace("-", ""))
    assert codec(fixed).decode(data, None) == text
    assert codec(fixed).encode(text) == data


def test_a_date_out_of_range_is_a_number() -> None:
    assert codec(logical("int", "date")).decode(by_fastavro("int", 2**30), None) == 2**30
    schema = logical("long", "timestamp-millis")
    assert codec(schema).decode(by_fastavro("long", 2**62), None) == 2**62
    assert codec(schema).encode(2**62) == by_fastavro("long", 2**62)


def test_nan_is_text() -> None:
    data = by_fastavro("double", math.nan)
    assert codec("double").decode(data, None) == "NaN"
    assert codec("double").encode("NaN") == data


def test_the_branch_of_a_union_may_be_named_as_in_avros_json() -> None:
    schema = ["null", "int", "long", {**record("int"), "namespace": "x"}]
    assert codec(schema).encode({"long": 5}) == by_fastavro(schema, ("long", 5))
    assert codec(schema).encode(5) == by_fastavro(schema, ("int", 5))
    assert codec(schema).encode({"x.R": {"f0": 1}}) == codec(schema).encode({"f0": 1})


def test_a_recursive_schema_is_read() -> None:
    schema = record("int", ["null", "R"])
    value = {"f0": 1, "f1": {"f0": 2, "f1": None}}
    assert codec(schema).decode(by_fastavro(schema, value), None) == value


def test_a_type_of_a_referenced_schema_is_known() -> None:
    other = ResolvedReference("x.E", json.dumps({**ENUM, "namespace": "x"}))
    schema = {"type": "record", "name": "R", "namespace": "y"}
    found = codec({**schema, "fields": [{"name": "e", "type": "x.E"}]}, other)
    assert found.decode(b"\x02", None) == {"e": "B"}


def test_a_missing_field_gets_its_default() -> None:
    fields = [
        {"name": "a", "type": "int"},
        {"name": "b", "type": ["null", "string"], "default": None},
        {"name": "c", "type": "bytes", "default": "\xff"},
    ]
    schema = {"type": "record", "name": "R", "fields": fields}
    assert codec(schema).encode({"a": 1}) == b"\x02\x00\x02\xff"


@pytest.mark.parametrize(
    ("schema", "data", "reason"),
    [
        ("int", b"", "ends too early"),
        ("int", b"\x80" * 11, "more than ten bytes"),
        ("int", b"\x02\x02", "1 bytes follow"),
        ("string", b"\x7f", "ends too early"),
        ("string", b"\x01", "ends too early"),
        ("string", b"\x02\xff", "not UTF-8"),
        ("boolean", b"\x02", "not a boolean"),
        (ENUM, b"\x04", "no symbol 2"),
        (["null", "int"], b"\x04", "no branch 2"),
        ({"type": "array", "items": "null"}, b"\xff" * 9 + b"\x01\x00", "more items than bytes"),
        (record("int", "string"), b"\x02\x7f", "field f1: the data ends too early"),
        (logical("bytes", "decimal", precision=9), b"\x80\x08" + bytes(512), "more than 256"),
        (logical("bytes", "decimal", precision=10**30, scale=10**30), b"\x02\x0f", "too large"),
    ],
)
def test_a_damaged_value_is_an_error(schema: Any, data: bytes, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        codec(schema).decode(data, None)


def test_a_value_of_a_million_levels_is_an_error() -> None:
    schema = record(["null", "R"])
    with pytest.raises(DataError, match="more than 100 levels"):
        codec(schema).decode(b"\x02" * 1_000_000 + b"\x00", None)


@pytest.mark.parametrize(
    ("schema", "value", "reason"),
    [
        ("int", 2**31, "out of the range of int"),
        ("int", True, "an integer"),
        ("int", "1", "an integer"),
        ("float", 1e300, "out of the range"),
        ("string", 1, "a string"),
        ("string", "\ud800", "surrogate"),
        ("bytes", "€", "one character"),
        (FIXED, "ab", "3 bytes, got 2"),
        (ENUM, "C", "one of A, B"),
        (["null", "int"], "x", "an integer"),
        (["int", "null", "string"], 1.5, "int or null or string"),
        (record("int"), {}, "f0 of R is missing"),
        (record("int"), {"f0": 1, "g": 2}, "no field 'g'"),
        (record({"type": "array", "items": "int"}), {"f0": [1, "x"]}, "at /f0/1: expected an int"),
        (logical("bytes", "decimal", precision=4, scale=1), "1.23", "more than 1 digits"),
        (logical("bytes", "decimal", precision=4, scale=1), "x", "12.50"),
        (logical("bytes", "decimal", precision=4, scale=1), "1000.0", "more than 4 digits"),
        (logical("bytes", "decimal", precision=4, scale=1), "1e999999999", "more than 4 digits"),
        (logical("bytes", "decimal", precision=30, scale=1), 12345678901234567.8, "as a string"),
        (logical("int", "date"), "tomorrow", "ISO 8601"),
    ],
)
def test_json_that_does_not_fit_is_an_error(schema: Any, value: Any, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        codec(schema).encode(value)


@pytest.mark.parametrize("sign", ["", "-"])
def test_a_decimal_of_38_digits_is_not_rounded(sign: str) -> None:
    schema = logical("bytes", "decimal", precision=38, scale=10)
    text = f"{sign}{'9' * 28}.{'9' * 10}"
    assert codec(schema).decode(codec(schema).encode(text), None) == text


@pytest.mark.parametrize("scale", [999_990, 5_000_000])
def test_a_huge_decimal_scale_does_not_make_a_long_text(scale: int) -> None:
    schema = logical("bytes", "decimal", precision=scale, scale=scale)
    found = codec(schema).decode(b"\x02\x0f", None)
    assert found == f"1.5E-{scale - 1}"
    assert codec(schema).encode(found) == b"\x02\x0f"


def test_the_default_of_a_decimal_is_its_bytes() -> None:
    kind = logical("bytes", "decimal", precision=9, scale=2)
    fields = [
        {"name": "d", "type": kind, "default": "\x04\xe2"},
        {"name": "n", "type": ["null", kind], "default": None},
    ]
    schema = {"type": "record", "name": "R", "fields": fields}
    assert codec(schema).decode(codec(schema).encode({}), None) == {"d": "12.50", "n": None}


@pytest.mark.parametrize(
    "text", ["{", '"unknown"', "7", '{"type": "record", "name": "R"}', "[" * 99]
)
def test_a_schema_that_is_not_avro_is_an_error(text: str) -> None:
    with pytest.raises(DataError, match="schema 1"):
        codec_of(RegisteredSchema(1, AVRO, text))


SCHEMA = record(
    "boolean",
    "int",
    "long",
    "double",
    "string",
    "bytes",
    ["null", "long", "string"],
    {"type": "array", "items": ["null", "string"]},
    {"type": "map", "values": {"type": "array", "items": "int"}},
    logical("long", "timestamp-micros"),
    logical("bytes", "decimal", precision=20, scale=4),
)
VALUES = st.fixed_dictionaries(
    {
        "f0": st.booleans(),
        "f1": st.integers(-(2**31), 2**31 - 1),
        "f2": st.integers(-(2**63), 2**63 - 1),
        "f3": st.floats(allow_nan=False, allow_infinity=False),
        "f4": st.text(st.characters(exclude_categories=["Cs"])),
        "f5": st.text(st.characters(max_codepoint=255)),
        "f6": st.none() | st.integers(-(2**63), 2**63 - 1) | st.text("abc"),
        "f7": st.lists(st.none() | st.text("abc")),
        "f8": st.dictionaries(st.text("abc"), st.lists(st.integers(0, 9))),
        "f9": st.datetimes().map(lambda each: each.isoformat() + "Z"),
        "f10": st.decimals(-(10**9), 10**9, places=4).map(str),
    }
)


CODEC = codec(SCHEMA)


@given(VALUES)
def test_json_becomes_avro_and_the_same_json_again(value: dict[str, Any]) -> None:
    found = CODEC.decode(CODEC.encode(value), None)
    found["f9"], value["f9"] = found["f9"].rstrip("0Z"), value["f9"].rstrip("0Z")
    assert {**found, "f10": Decimal(found["f10"])} == {**value, "f10": Decimal(value["f10"])}


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_damaged(data: bytes) -> None:
    try:
        found = CODEC.decode(data, None)
    except DataError:
        return
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("text", ["12:00:00.5", "12:00:00,5"])
def test_a_fraction_after_a_comma_is_not_lost(text: str) -> None:
    assert time_count("time-millis", text) == 43_200_500
