"""Avro values of a registry as columns: types, references, schemas that change, damage."""

from __future__ import annotations

import datetime
import decimal
import io
import itertools
import json
import pickle
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandlog.errors import InvalidSchemaError

pa = pytest.importorskip("pyarrow", reason="columns need the spark extra")
fastavro = pytest.importorskip("fastavro", reason="Avro needs the spark extra")

from strandlog.formats.columns.registry import RegistryColumns  # noqa: E402
from strandlog.formats.columns.values import prefix_of  # noqa: E402
from strandlog.formats.registered_schema import (  # noqa: E402
    AVRO,
    RegisteredSchema,
    ResolvedReference,
)

Same = Callable[[Any], Any]

_numbers = itertools.count()  # the names of types are unique


class Kind(NamedTuple):
    """An Avro type, values for fastavro, and what a column has for such a value."""

    schema: Any
    values: st.SearchStrategy[Any]
    expected: Same = lambda value: value


def record(*fields: tuple[str, Any], name: str = "Row") -> dict[str, Any]:
    described = [{"name": field, "type": kind} for field, kind in fields]
    return {"type": "record", "name": name, "namespace": "shop", "fields": described}


def registered(number: int, document: Any, *others: tuple[str, Any]) -> RegisteredSchema:
    references = tuple(ResolvedReference(name, json.dumps(each)) for name, each in others)
    return RegisteredSchema(number, AVRO, json.dumps(document), references)


def encoded(number: int, document: Any, *rows: Any) -> list[bytes]:
    parsed = fastavro.parse_schema(document)
    found = []
    for row in rows:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, parsed, row)
        found.append(prefix_of(number) + stream.getvalue())
    return found


def columns(parser: RegistryColumns, values: Sequence[bytes | None]) -> list[Any]:
    """Parse values with all columns; return the rows, or the reason for a bad one."""
    found = parser.parse(pa.array(values, pa.binary()), parser.schema)
    assert {name: array.type for name, array in found.columns.items()} == {
        field.name: field.type for field in parser.schema
    }
    rows: list[Any] = pa.table(found.columns).to_pylist()
    assert len(rows) == len(values)
    for row, reason in zip(found.bad, found.reasons, strict=True):
        assert not any(value is not None for value in rows[row].values())
        rows[row] = reason
    return rows


PLAIN = [
    Kind("boolean", st.booleans()),
    Kind("int", st.integers(-(2**31), 2**31 - 1)),
    Kind("long", st.integers(-(2**63), 2**63 - 1)),
    Kind("float", st.floats(width=32, allow_nan=False)),
    Kind("double", st.floats(allow_nan=False)),
    Kind("bytes", st.binary(max_size=20)),
    Kind("string", st.text(max_size=20)),
    Kind({"type": "long", "logicalType": "timestamp-nanos"}, st.integers(-(2**63), 2**63 - 1)),
    Kind(
        {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 3},
        st.decimals(-(10**16), 10**16, places=3),
    ),
    Kind(
        {"type": "long", "logicalType": "timestamp-millis"},
        st.datetimes(timezones=st.just(datetime.UTC)).map(
            lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000)
        ),
    ),
    Kind({"type": "int", "logicalType": "date"}, st.dates()),
    Kind(
        {"type": "int", "logicalType": "time-millis"},
        st.times().map(lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000)),
        lambda at: ((at.hour * 60 + at.minute) * 60 + at.second) * 10**6 + at.microsecond,
    ),
]


def _named(number: int) -> st.SearchStrategy[Kind]:
    return st.sampled_from(
        [
            Kind(
                {"type": "enum", "name": f"Enum{number}", "symbols": ["A", "B"]},
                st.sampled_from(["A", "B"]),
            ),
            Kind(
                {"type": "fixed", "name": f"Fixed{number}", "size": 3},
                st.binary(min_size=3, max_size=3),
            ),
        ]
    )


@st.composite
def kinds(draw: st.DrawFn, depth: int = 2) -> Kind:
    """Any type that a column can have."""
    number = next(_numbers)
    plain = st.sampled_from(PLAIN) | _named(number)
    if depth == 0:
        return draw(plain)
    inner = kinds(depth - 1)
    what = draw(st.sampled_from(["plain", "plain", "null", "array", "map", "record", "union"]))
    if what == "plain":
        return draw(plain)
    if what == "union":
        one, other = draw(st.permutations(PLAIN))[:2]
        return _union(one, other)
    if what == "record":
        parts = draw(st.lists(inner, min_size=1, max_size=3))
        return _record(f"Record{number}", parts)
    part = draw(inner)
    if what == "array":
        return Kind(
            {"type": "array", "items": part.schema},
            st.lists(part.values, max_size=3),
            lambda found: [part.expected(each) for each in found],
        )
    if what == "map":
        return Kind(
            {"type": "map", "values": part.schema},
            st.dictionaries(st.text(max_size=5), part.values, max_size=3),
            lambda found: [(key, part.expected(each)) for key, each in found.items()],
        )
    if isinstance(part.schema, list):
        return part  # a union cannot contain a union
    return Kind(
        ["null", part.schema],
        st.none() | part.values,
        lambda found: None if found is None else part.expected(found),
    )


def _record(name: str, parts: list[Kind]) -> Kind:
    fields = [(f"f{number}", part) for number, part in enumerate(parts)]
    return Kind(
        record(*((field, part.schema) for field, part in fields), name=name),
        st.fixed_dictionaries({field: part.values for field, part in fields}),
        lambda found: {field: part.expected(found[field]) for field, part in fields},
    )


def _union(one: Kind, other: Kind) -> Kind:
    """A union of two types; fastavro takes the branch from a pair of type and value."""
    schemas = [one.schema, other.schema]
    bases = {each["type"] if isinstance(each, dict) else each for each in schemas}
    if len(bases) < 2 or bases in ({"int", "long"}, {"float", "double"}):
        return one
    return Kind(
        {"type": "record", "name": "Union", "fields": []} | _union_record(schemas),
        st.integers(0, 1).flatmap(
            lambda at: (one, other)[at].values.map(lambda value: {"u": Branch(at, value)})
        ),
        lambda found: {
            "u": {
                f"member{at}": (one, other)[at].expected(found["u"].value)
                if found["u"].number == at
                else None
                for at in (0, 1)
            }
        },
    )


class Branch(NamedTuple):
    number: int
    value: Any


def _union_record(schemas: list[Any]) -> dict[str, Any]:
    name = f"Union{next(_numbers)}"
    return {"name": name, "fields": [{"name": "u", "type": schemas}]}


def written(schema: Any, value: Any) -> bytes:
    """Encode a value; the branch of a union is explicit, which fastavro would otherwise guess."""
    stream = io.BytesIO()
    if isinstance(value, Branch):
        stream.write(bytes([2 * value.number]))
        return stream.getvalue() + written(schema[value.number], value.value)
    if isinstance(schema, dict) and schema["type"] == "record":
        return b"".join(written(each["type"], value[each["name"]]) for each in schema["fields"])
    if isinstance(schema, dict) and schema["type"] == "array":
        items = b"".join(written(schema["items"], each) for each in value)
        return _count(len(value)) + items + (b"\0" if value else b"")
    if isinstance(schema, dict) and schema["type"] == "map":
        items = b"".join(
            written("string", key) + written(schema["values"], each) for key, each in value.items()
        )
        return _count(len(value)) + items + (b"\0" if value else b"")
    if isinstance(schema, list):
        return b"\0" if value is None else b"\2" + written(schema[1], value)
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema, {}), value)
    return stream.getvalue()


def _count(number: int) -> bytes:
    return bytes([2 * number])


@given(st.data())
def test_any_schema(data: st.DataObject) -> None:
    """What fastavro writes is in the columns."""
    parts = data.draw(st.lists(kinds(), min_size=1, max_size=4))
    whole = _record("Row", parts)
    rows = data.draw(st.lists(whole.values, min_size=1, max_size=4))
    values = [prefix_of(7) + written(whole.schema, row) for row in rows]
    parser = RegistryColumns(registered(7, whole.schema))
    assert columns(parser, values) == [whole.expected(row) for row in rows]


FIELDS: dict[str, list[Any]] = {
    "a": ["int", "long", "double"],
    "b": ["string", "bytes"],
    "c": [["null", "int"], ["null", "long"], ["long", "null"]],
    "d": [{"type": "array", "items": "int"}, {"type": "array", "items": "long"}],
    "e": ["boolean"],
}
SAMPLES: dict[str, st.SearchStrategy[Any]] = {
    "a": st.integers(-9, 9),
    "b": st.sampled_from(["", "x", "über"]),
    "c": st.none() | st.integers(-9, 9),
    "d": st.lists(st.integers(-9, 9), max_size=2),
    "e": st.booleans(),
}
DEFAULTS = {"a": 5, "b": "none", "c": None, "d": [], "e": True}


@st.composite
def versions(draw: st.DrawFn) -> dict[str, Any]:
    """A record with some of the fields."""
    fields = []
    for name in draw(st.lists(st.sampled_from(sorted(FIELDS)), min_size=1, unique=True)):
        kind = draw(st.sampled_from(FIELDS[name]))
        default = 0 if name == "c" and kind[0] != "null" else DEFAULTS[name]
        fields.append({"name": name, "type": kind, "default": default})
    return {"type": "record", "name": "Row", "fields": fields}


VERSIONS = versions()


@given(st.data())
def test_a_schema_that_changes(data: st.DataObject) -> None:
    """Values are converted as fastavro converts them, in bulk or one by one."""

    old, new = data.draw(VERSIONS), data.draw(VERSIONS)
    rows = data.draw(
        st.lists(
            st.fixed_dictionaries({each["name"]: SAMPLES[each["name"]] for each in old["fields"]})
        )
    )
    for row in rows:
        for each in old["fields"]:
            if each["type"] == "bytes":
                row[each["name"]] = row[each["name"]].encode()
    values = encoded(1, old, *rows)
    expected: list[Any] = []
    for value in values:
        try:
            expected.append(
                fastavro.schemaless_reader(
                    io.BytesIO(value[5:]), fastavro.parse_schema(old), fastavro.parse_schema(new)
                )
            )
        except fastavro.read.SchemaResolutionError:
            expected.append("the value cannot be converted from schema 1 to schema 2")
    for row in expected:
        if isinstance(row, dict) and isinstance(row.get("b"), str):
            kind = next(each["type"] for each in new["fields"] if each["name"] == "b")
            row["b"] = row["b"].encode() if kind == "bytes" else row["b"]
    parser = RegistryColumns(registered(2, new), [registered(1, old)])
    assert columns(parser, values) == expected


def test_units_are_converted() -> None:
    """Avro's resolution takes no notice of units, so milliseconds would become microseconds."""
    millis, micros = (
        {"type": "long", "logicalType": f"timestamp-{unit}"} for unit in ("millis", "micros")
    )
    at = datetime.datetime(2026, 1, 2, 3, 4, 5, 678_000, datetime.UTC)
    for more in ([], [("n", {"type": "array", "items": "int"})]):  # in bulk, one by one
        old = record(("at", millis), *more)
        new = record(
            ("at", micros), *((name, {"type": "array", "items": "long"}) for name, _ in more)
        )
        row = {"at": at, "n": [1]}
        parser = RegistryColumns(registered(2, new), [registered(1, old)])
        found = columns(parser, encoded(1, old, row) + encoded(2, new, row))
        assert [each["at"] for each in found] == [at, at]


def test_references() -> None:
    money = record(
        ("amount", "long"),
        ("unit", {"type": "enum", "name": "Unit", "symbols": ["EUR"]}),
        name="Money",
    )
    order = record(("price", "shop.Money"), ("unit", ["null", "shop.Unit"]), ("fee", "Money"))
    parser = RegistryColumns(registered(3, order, ("shop.Money", money)))
    row = {
        "price": {"amount": 5, "unit": "EUR"},
        "unit": "EUR",
        "fee": {"amount": 1, "unit": "EUR"},
    }
    whole = record(("price", money), ("unit", ["null", "shop.Unit"]), ("fee", "shop.Money"))
    assert columns(parser, encoded(3, whole, row)) == [row]


def test_bad_values_have_reasons() -> None:
    row = record(("id", "long"))
    other = record(("id", "string"))
    known = {2: registered(2, other), 9: RegisteredSchema(9, "JSON", "{}")}
    parser = RegistryColumns(registered(1, row), look_up=lambda _: known)
    good = encoded(1, row, {"id": 7})[0]
    values = [good, None, b"", b"{}", b"\1\0\0\0\1\0", good + b"x", good[:5]]
    values += [prefix_of(5) + b"x", prefix_of(9) + b"{}", *encoded(2, other, {"id": "x"})]
    no_id = "the value has no schema id: it does not start with a zero byte and four bytes"
    assert columns(parser, values) == [
        {"id": 7},
        {"id": None},
        no_id,
        no_id,
        no_id,
        "the value does not match schema 1",
        "the value does not match schema 1",
        "the registry has no schema 5",
        "schema 9 has the type JSON, not AVRO",
        "the value cannot be converted from schema 2 to schema 1",
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [(["int", "long"], "long"), (["null", "int", "long"], ["null", "long"])],
)
def test_a_union_that_is_narrowed_is_a_raw_error(old: Any, new: Any) -> None:
    parser = RegistryColumns(registered(2, record(("n", new))), [registered(1, record(("n", old)))])
    values = encoded(1, record(("n", old)), {"n": 5}, {"n": 7})
    assert columns(parser, [*values, values[0] + b"x"]) == [
        {"n": 5},
        {"n": 7},
        "the value does not match schema 1",
    ]


def test_a_damaged_value_of_another_schema() -> None:
    old, new = (
        record(("id", "int")),
        record(("id", "long"), ("x", {"type": "array", "items": "int"})),
    )
    new["fields"][1]["default"] = [1]
    parser = RegistryColumns(registered(2, new), [registered(1, old)])
    value = encoded(1, old, {"id": 7})[0]
    assert columns(parser, [value, value + b"x"]) == [
        {"id": 7, "x": [1]},
        "the value does not match schema 1",
    ]


def test_a_registry_that_does_not_answer_is_not_a_bad_value() -> None:
    def look_up(numbers: Sequence[int]) -> dict[int, RegisteredSchema]:
        raise ConnectionError(numbers)

    parser = RegistryColumns(registered(1, record(("id", "long"))), look_up=look_up)
    with pytest.raises(ConnectionError):
        columns(parser, [prefix_of(2) + b"\0"])


def test_a_known_id_is_looked_up_once_and_an_unknown_one_again() -> None:
    row = record(("id", "long"))
    asked = []

    def look_up(numbers: Sequence[int]) -> dict[int, RegisteredSchema]:
        asked.append(list(numbers))
        return {number: registered(number, row) for number in numbers if number < 5}

    parser = RegistryColumns(registered(1, row), look_up=look_up)
    values = [encoded(number, row, {"id": number})[0] for number in (1, 2, 9, 2, 9)]
    for _ in range(2):
        found = columns(parser, values)
        assert found[:2] + found[3:4] == [{"id": 1}, {"id": 2}, {"id": 2}]
    assert asked == [[2, 9], [9]], "once in each call"
    assert {each.id for each in parser.known()} == {1, 2}


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("null", "x: "),
        ({"type": "array", "items": record(("next", ["null", "shop.Row"]))}, "x[]"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 39}, "x: "),
    ],
)
def test_a_field_that_cannot_be_a_column(kind: Any, path: str) -> None:
    parser = RegistryColumns(registered(1, {"type": "record", "name": "T", "fields": [
        {"name": "x", "type": kind}, {"name": "y", "type": "int"},
    ]}))  # fmt: skip
    with pytest.raises(InvalidSchemaError, match=r"schema 1: x"):
        _ = parser.schema
    assert parser.type_of("y") == pa.int32(), "it can be left out"
    assert path


def test_records_without_fields_are_dropped() -> None:
    empty = record(name="Empty")
    row = record(
        ("id", "int"), ("none", empty), ("in", record(("e", "shop.Empty"), ("x", "int"), name="In"))
    )
    parser = RegistryColumns(registered(1, row))
    assert parser.dropped == ("none",)
    value = encoded(1, row, {"id": 1, "none": {}, "in": {"e": {}, "x": 2}})
    assert columns(parser, value) == [{"id": 1, "in": {"x": 2}}]


def test_a_pickled_parser() -> None:
    row = record(
        ("id", "long"),
        ("price", {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}),
    )
    parser = RegistryColumns(registered(1, row))
    value = encoded(1, row, {"id": 7, "price": decimal.Decimal("1.50")})
    assert columns(parser, value) == columns(pickle.loads(pickle.dumps(parser)), value)


def test_a_schema_that_is_not_a_record_has_one_column() -> None:
    parser = RegistryColumns(registered(1, "string"))
    assert columns(parser, encoded(1, "string", "x")) == [{"value": "x"}]


def test_flat_values_of_several_schemas_are_read_by_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither the reader's own values nor older ones take a Python object each."""
    old = record(("id", "int"), ("name", "string"))
    new = record(("id", "long"), ("name", ["null", "string"]), ("city", ["null", "string"]))
    new["fields"][2]["default"] = None
    parser = RegistryColumns(registered(2, new), [registered(1, old)])
    values = encoded(1, old, {"id": 1, "name": "a"}) + encoded(
        2, new, {"id": 2, "name": None, "city": "b"}
    )

    def fail(*_: object) -> None:
        raise AssertionError("a value went through fastavro")

    monkeypatch.setattr("strandlog.formats.avro_values._whole", fail)
    assert columns(parser, values) == [
        {"id": 1, "name": "a", "city": None},
        {"id": 2, "name": None, "city": "b"},
    ]


def test_defaults_that_are_not_plain_json_are_values_and_not_faults() -> None:
    """Bytes are one character per byte in a schema, so that "\xff" is one byte, not two."""
    price = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    inner = {
        "type": "record",
        "name": "Inner",
        "fields": [{"name": "b", "type": "bytes"}, {"name": "n", "type": "int", "default": 7}],
    }
    old = record(("a", "int"))
    new = record(("a", "int"))
    new["fields"] += [
        {"name": "raw", "type": "bytes", "default": "\xff\x00"},
        {"name": "fix", "type": {"type": "fixed", "name": "F", "size": 2}, "default": "\x80a"},
        {"name": "price", "type": price, "default": "\x04\xe2"},
        {"name": "maybe", "type": ["bytes", "null"], "default": "\xfe"},
        {"name": "inner", "type": inner, "default": {"b": "\xfd"}},
        {"name": "list", "type": {"type": "array", "items": "bytes"}, "default": ["\xfc"]},
        {"name": "either", "type": ["string", "long"], "default": "x"},
    ]
    columns = RegistryColumns(registered(2, new), [registered(1, old)])
    parsed = columns.parse(pa.array(encoded(1, old, {"a": 1}), pa.binary()), columns.schema)
    assert parsed.reasons == []
    assert {name: column.to_pylist()[0] for name, column in parsed.columns.items()} == {
        "a": 1,
        "raw": b"\xff\x00",
        "fix": b"\x80a",
        "price": decimal.Decimal("12.50"),
        "maybe": b"\xfe",
        "inner": {"b": b"\xfd", "n": 7},
        "list": [b"\xfc"],
        "either": {"member0": "x", "member1": None},
    }
