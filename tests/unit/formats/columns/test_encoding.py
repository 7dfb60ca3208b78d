"""Columns as values of a registry: other decoders read what the encoders write."""

from __future__ import annotations

import base64
import datetime
import decimal
import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandlog.errors import DataError, InvalidSchemaError

pa = pytest.importorskip("pyarrow", reason="columns need the spark extra")
fastavro = pytest.importorskip("fastavro", reason="Avro needs the spark extra")

from strandlog.formats.columns.avro_encode import AvroValueEncoder  # noqa: E402
from strandlog.formats.columns.descriptors import message_class  # noqa: E402
from strandlog.formats.columns.encoding import described, nullable, value_encoder  # noqa: E402
from strandlog.formats.columns.registry import RegistryColumns  # noqa: E402
from strandlog.formats.registered_schema import (  # noqa: E402
    AVRO,
    JSON,
    PROTOBUF,
    RegisteredSchema,
)

NAIVE = st.datetimes()
AWARE = st.datetimes(timezones=st.just(datetime.UTC))
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
PLAIN: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "b": (pa.bool_(), st.booleans()),
    "i8": (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    "i": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "l": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "f": (pa.float32(), st.floats(width=32, allow_nan=False, allow_infinity=False)),
    "d": (pa.float64(), st.floats(allow_nan=False, allow_infinity=False)),
    "s": (pa.string(), TEXT),
    "y": (pa.binary(), st.binary(max_size=12)),
    "at": (pa.timestamp("us", "UTC"), AWARE),
}
ALSO_IN_AVRO = {
    "day": (pa.date32(), st.dates()),
    "local": (pa.timestamp("us"), NAIVE),
    "n": (pa.decimal128(18, 3), st.decimals(-(10**14), 10**14, places=3)),
}
INNER = pa.struct([("x", pa.int32()), ("y", pa.string())])
INNERS = st.fixed_dictionaries({"x": st.integers(-9, 9), "y": TEXT})
NESTED: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "list": (pa.list_(pa.field("e", pa.string(), False)), st.lists(TEXT, max_size=3)),
    "map": (
        pa.map_(pa.string(), pa.field("v", pa.int64(), False)),
        st.dictionaries(TEXT, st.integers(-9, 9), max_size=3).map(
            lambda found: list(found.items())
        ),
    ),
    "in": (INNER, INNERS),
    "ins": (pa.list_(pa.field("e", INNER, False)), st.lists(INNERS, max_size=2)),
}


@st.composite
def tables(draw: st.DrawFn, kinds: dict[str, tuple[Any, st.SearchStrategy[Any]]]) -> Any:
    """Rows of some of the columns, each nullable or not; sliced or not."""
    names = draw(st.lists(st.sampled_from(sorted(kinds)), min_size=1, unique=True))
    count, skipped = draw(st.integers(1, 8)), draw(st.integers(0, 2))
    fields, arrays = [], []
    for name in names:
        kind, values = kinds[name]
        is_nullable = draw(st.booleans())
        fields.append(pa.field(name, kind, is_nullable))
        some = st.none() | values if is_nullable else values
        rows = draw(st.lists(some, min_size=count + skipped, max_size=count + skipped))
        arrays.append(pa.array(rows, kind))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)).slice(skipped)


def registered(rows: Any, kind: str) -> RegisteredSchema:
    return RegisteredSchema(7, kind, described(rows.schema, kind, "orders", None))


def with_lists(rows: list[Any]) -> list[Any]:
    """Maps as lists of pairs, as Arrow has them."""
    return [
        {
            name: list(value.items()) if name == "map" and value is not None else value
            for name, value in row.items()
        }
        for row in rows
    ]


@given(tables(PLAIN | ALSO_IN_AVRO | NESTED))
def test_avro(rows: Any) -> None:
    schema = registered(rows, AVRO)
    values = value_encoder(schema, rows.schema).encode(rows)
    parsed = fastavro.parse_schema(json.loads(schema.text))
    found = []
    for value in values.to_pylist():
        assert value[:5] == b"\0\0\0\0\7"
        stream = io.BytesIO(value[5:])
        found.append(fastavro.schemaless_reader(stream, parsed))
        assert stream.read() == b""
    assert with_lists(found) == rows.to_pylist()


@given(tables(PLAIN | ALSO_IN_AVRO | NESTED))
def test_avro_and_back(rows: Any) -> None:
    schema = registered(rows, AVRO)
    parser = RegistryColumns(schema)
    found = parser.parse(value_encoder(schema, rows.schema).encode(rows), parser.schema)
    assert found.bad == []
    assert pa.table(found.columns).to_pylist() == rows.to_pylist()


@given(tables(PLAIN | ALSO_IN_AVRO))
def test_avro_in_bulk_and_one_by_one_are_the_same(rows: Any) -> None:
    encoder = AvroValueEncoder(registered(rows, AVRO), rows.schema)
    assert encoder._program is not None, "these columns have a compiled loop"
    assert encoder.encode(rows).to_pylist() == encoder._encode_each(rows).to_pylist()


def in_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.datetime):
        text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
        return f"{text}Z" if value.tzinfo else text
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, list):
        if value and isinstance(value[0], tuple):
            return {key: in_json(each) for key, each in value}
        return [in_json(each) for each in value]
    if isinstance(value, dict):
        return {name: in_json(each) for name, each in value.items()}
    return value


@given(tables(PLAIN | ALSO_IN_AVRO | NESTED))
def test_json(rows: Any) -> None:
    schema = registered(rows, JSON)
    values = value_encoder(schema, rows.schema).encode(rows).to_pylist()
    assert all(value[:5] == b"\0\0\0\0\7" for value in values)
    found = [json.loads(value[5:], parse_float=decimal.Decimal) for value in values]
    for row, expected in zip(found, rows.to_pylist(), strict=True):
        for name, value in expected.items():
            got = row[name]
            if name == "f" and got is not None:
                assert pa.scalar(float(got), pa.float32()).as_py() == value
            elif name in ("map",) and value == []:
                assert got == {}
            else:
                assert (float(got) if name == "d" and got is not None else got) == in_json(value)


@given(tables(PLAIN | NESTED))
def test_json_matches_its_schema(rows: Any) -> None:
    jsonschema_rs = pytest.importorskip("jsonschema_rs", reason="needs the schemas extra")
    schema = registered(rows, JSON)
    validator = jsonschema_rs.validator_for(json.loads(schema.text))
    for value in value_encoder(schema, rows.schema).encode(rows).to_pylist():
        validator.validate(json.loads(value[5:]))


@given(tables(PLAIN | NESTED))
def test_protobuf_and_back(rows: Any) -> None:
    pytest.importorskip("google.protobuf", reason="Protobuf needs the spark extra")
    schema = registered(rows, PROTOBUF)
    parser = RegistryColumns(schema)
    values = value_encoder(schema, rows.schema).encode(rows)
    message_class(schema, (0,)).FromString(values[0].as_py()[6:])
    found = parser.parse(values, parser.schema)
    assert found.bad == []
    expected = rows.to_pylist()
    for row in expected:
        for name in ("list", "ins", "map"):
            if name in row and row[name] is None:
                row[name] = []  # Protobuf does not distinguish these
    assert ordered(pa.table(found.columns).to_pylist()) == ordered(expected)


def ordered(rows: list[Any]) -> list[Any]:
    """Rows with sorted maps: Protobuf does not keep their order."""
    return [row | {"map": sorted(row["map"])} if "map" in row else row for row in rows]


def test_a_new_version_keeps_the_name_of_the_record() -> None:
    columns = pa.schema([("id", pa.int64())])
    latest = RegisteredSchema(
        1, AVRO, '{"type": "record", "name": "Order", "namespace": "shop", "fields": []}'
    )
    assert json.loads(described(columns, AVRO, "orders-2", None))["name"] == "orders_2"
    document = json.loads(described(columns, AVRO, "orders-2", latest))
    assert (document["name"], document["namespace"]) == ("Order", "shop")
    assert document["fields"] == [{"name": "id", "type": ["null", "long"], "default": None}]


@pytest.mark.parametrize("kind", [AVRO, JSON, PROTOBUF])
def test_a_column_without_a_counterpart(kind: str) -> None:
    columns = pa.schema([("x", pa.struct([("t", pa.duration("us"))]))])
    with pytest.raises(InvalidSchemaError, match=r"column x\.?t? of type .* has no counterpart"):
        described(columns, kind, "orders", None)
    with pytest.raises(InvalidSchemaError, match="at least one column"):
        described(pa.schema([]), kind, "orders", None)


def test_nullable_columns_at_all_levels() -> None:
    def kinds(is_nullable: bool) -> Any:
        inner = pa.struct([pa.field("x", pa.int32(), is_nullable)])
        return pa.schema(
            [
                pa.field("a", pa.list_(pa.field("e", inner, is_nullable)), is_nullable),
                pa.field("m", pa.map_(pa.string(), pa.field("v", inner, is_nullable)), is_nullable),
            ]
        )

    assert nullable(kinds(False)).equals(kinds(True))
    assert not kinds(False).equals(kinds(True))


def test_json_has_no_nan() -> None:
    rows = pa.RecordBatch.from_arrays([pa.array([1.0, float("nan")])], names=["x"])
    with pytest.raises(DataError, match="column x has NaN or infinity"):
        value_encoder(registered(rows, JSON), rows.schema).encode(rows)


def test_a_column_that_a_protobuf_message_lacks() -> None:
    rows = pa.RecordBatch.from_arrays([pa.array([1])], names=["x"])
    schema = registered(rows, PROTOBUF)
    with pytest.raises(InvalidSchemaError, match="has no field 'y'; it has x"):
        value_encoder(schema, pa.schema([("y", pa.int64())]))
    with pytest.raises(InvalidSchemaError, match="column x of type string does not fit"):
        value_encoder(schema, pa.schema([("x", pa.string())]))


@pytest.mark.parametrize("kind", [pa.list_, lambda item: pa.map_(pa.string(), item)])
def test_a_null_among_timestamps_is_an_error_of_the_data(kind: Any) -> None:
    columns = pa.schema([("at", kind(pa.timestamp("us", "UTC")))])
    schema = RegisteredSchema(1, PROTOBUF, described(columns, PROTOBUF, "Row", None))
    row = [None] if pa.types.is_list(columns[0].type) else [("k", None)]
    rows = pa.RecordBatch.from_pylist([{"at": row}], columns)
    with pytest.raises(DataError, match="does not fit schema 1"):
        value_encoder(schema, columns).encode(rows)
