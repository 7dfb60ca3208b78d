"""Avro values as columns: types, prefixes of registries, schemas that change, damage."""

from __future__ import annotations

import datetime
import decimal
import io
import json
import pickle
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandlog.errors import InvalidSettingError
from strandlog.spark.option_checks import avro_form
from strandlog.spark.options import BATCH, Options, parse_options

pa = pytest.importorskip("pyarrow", reason="Spark tests need the spark extra")
fastavro = pytest.importorskip("fastavro", reason="Avro needs the spark extra")
pytest.importorskip("pyspark", reason="Spark tests need the spark extra")

from pyspark.sql.types import (  # noqa: E402
    ArrayType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from strandlog.spark.schema import check_schema, record_schema  # noqa: E402
from strandlog.spark.source.decoder import Decoder  # noqa: E402

FIVE = datetime.datetime(2013, 1, 1, 5, tzinfo=datetime.UTC)
MICROS = datetime.timedelta(microseconds=7)
TWO = {"type": "record", "name": "Two", "fields": [
    {"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]},
]}  # fmt: skip


KINDS = {"INT": IntegerType(), "BIGINT": LongType(), "STRING": StringType()}


def columns(ddl: str) -> StructType:
    """A small part of Spark's DDL, which needs a running Java."""
    words = (column.split() for column in ddl.split(", "))
    return StructType([StructField(name, KINDS[kind]) for name, kind in words])


def record(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {
        "type": "record",
        "name": "Row",
        "namespace": "shop",
        "fields": [{"name": name, "type": kind} for name, kind in fields],
    }


def options(schema: Any = TWO, **more: str) -> Options:
    base = {"bootstrap.servers": "h:1", "subscribe": "t", "valueFormat": "avro"}
    text = {} if schema is None else {"avroSchema": json.dumps(schema)}
    return parse_options(BATCH, base | text | more)


def encoded(schema: Any, *rows: Any, prefix: bytes = b"") -> list[bytes]:
    found = []
    for row in rows:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), row)
        found.append(prefix + stream.getvalue())
    return found


def decoded(
    asked: Options, values: Sequence[bytes | None], wanted: str | StructType | None = None
) -> list[Any]:
    schema = record_schema(asked) if wanted is None else wanted
    if isinstance(schema, str):
        schema = columns(schema)
    check_schema(schema, asked)
    decoder = pickle.loads(pickle.dumps(Decoder(asked, schema)))
    arrays = [pa.array(values, pa.binary()), pa.array(range(len(values)), pa.int64())]
    batch = decoder._typed(pa.record_batch(arrays, ["value", "offset"]))
    batch.validate(full=True)
    return list(batch.to_pylist())


@pytest.mark.parametrize(
    ("kind", "spark", "given", "expected"),
    [
        ("boolean", "boolean", True, True),
        ("int", "int", -3, -3),
        ("long", "bigint", 1 << 40, 1 << 40),
        ("float", "float", 0.5, 0.5),
        ("double", "double", 0.1, 0.1),
        ("bytes", "binary", b"\0\xff", b"\0\xff"),
        ("string", "string", "grün", "grün"),
        (["null", "string"], "string", None, None),
        (["string", "null"], "string", "x", "x"),
        (["null", "int", "long"], "bigint", 5, 5),
        (["float", "double"], "double", 0.5, 0.5),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "string", "B", "B"),
        ({"type": "fixed", "name": "F", "size": 3}, "binary", b"abc", b"abc"),
        ({"type": "array", "items": "int"}, "array<int>", [1, 2], [1, 2]),
        ({"type": "map", "values": ["null", "int"]}, "map<string,int>",
         {"a": 1, "b": None}, [("a", 1), ("b", None)]),
        (record(("x", "int"), ("y", {"type": "array", "items": "string"})),
         "struct<x:int,y:array<string>>", {"x": 1, "y": ["z"]}, {"x": 1, "y": ["z"]}),
        ({"type": "int", "logicalType": "date"}, "date",
         datetime.date(2013, 1, 1), datetime.date(2013, 1, 1)),
        ({"type": "long", "logicalType": "timestamp-millis"}, "timestamp",
         FIVE, FIVE),
        ({"type": "long", "logicalType": "timestamp-micros"}, "timestamp",
         FIVE + MICROS, FIVE + MICROS),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, "timestamp_ntz",
         datetime.datetime(2013, 1, 1, 5), datetime.datetime(2013, 1, 1, 5)),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
         "decimal(9,2)", decimal.Decimal("-12.34"), decimal.Decimal("-12.34")),
        ({"type": "fixed", "name": "D", "size": 8, "logicalType": "decimal", "precision": 9},
         "decimal(9,0)", decimal.Decimal(7), decimal.Decimal(7)),
        ({"type": "int", "logicalType": "time-millis"}, "int", datetime.time(0, 0, 1), 1000),
    ],
)  # fmt: skip
def test_types(kind: Any, spark: str, given: Any, expected: Any) -> None:
    inner = kind | {"name": "Inner"} if isinstance(kind, dict) and "fields" in kind else kind
    for shape in (inner, ["null", inner] if not isinstance(inner, list) else inner):
        asked = options(record(("c", shape)))
        assert record_schema(asked).simpleString() == f"struct<c:{spark},_corrupt:string>"
        [row] = decoded(asked, list(encoded(record(("c", shape)), {"c": given})))
        assert row == {"c": expected, "_corrupt": None}


def test_a_type_is_used_again_by_its_name() -> None:
    color = {"type": "enum", "name": "Color", "symbols": ["RED"]}
    schema = record(("a", color), ("b", "Color"), ("c", {"type": "array", "items": "shop.Color"}))
    [row] = decoded(options(schema), list(encoded(schema, {"a": "RED", "b": "RED", "c": ["RED"]})))
    assert row == {"a": "RED", "b": "RED", "c": ["RED"], "_corrupt": None}


def test_a_schema_that_is_not_a_record_is_one_column() -> None:
    assert decoded(options("string"), list(encoded("string", "a", "b"))) == [
        {"value": "a", "_corrupt": None},
        {"value": "b", "_corrupt": None},
    ]


def test_only_values_that_do_not_parse_are_corrupt() -> None:
    good, other = encoded(TWO, {"id": 1, "name": "a"}, {"id": 2, "name": None})
    values = [good, b"junk", None, good[:-1], good + b"\0", b"", other, b"\x02\x04"]
    rows = decoded(options(), values, "offset BIGINT, id BIGINT, name STRING, _corrupt STRING")
    assert [row["id"] for row in rows] == [1, None, None, None, None, None, 2, None]
    bad = {row["offset"]: row["_corrupt"] for row in rows if row["_corrupt"] is not None}
    assert {at: bytes.fromhex(text) for at, text in bad.items()} == {
        at: values[at] for at in (1, 3, 4, 5, 7)
    }


def test_a_time_outside_of_sparks_range_does_not_fail_a_query() -> None:
    millis = {"type": "long", "logicalType": "timestamp-millis"}
    schema = record(("id", "int"), ("at", millis), ("more", {"type": "array", "items": millis}))
    plain = record(("id", "int"), ("at", "long"), ("more", {"type": "array", "items": "long"}))
    times = [(0, [0]), (2**62, []), (0, [1, 2**62]), (5, [])]
    rows = [{"id": at, "at": time, "more": more} for at, (time, more) in enumerate(times)]
    values = encoded(plain, *rows)
    found = decoded(options(schema), values)
    assert [row["id"] for row in found] == [0, None, None, 3]
    assert [row["_corrupt"] for row in found] == [None, values[1].hex(), values[2].hex(), None]


def test_nanoseconds_are_truncated() -> None:
    schema = record(("at", {"type": "long", "logicalType": "timestamp-nanos"}))
    [row] = decoded(options(schema), encoded(record(("at", "long")), {"at": 1_500_999}))
    assert row["at"].microsecond == 1500


def test_a_short_and_a_long_value_side_by_side_are_both_corrupt() -> None:
    # Read one after the other, without their ends, they would be two valid rows.
    first, second = encoded(TWO, {"id": 1, "name": "abc"}, {"id": 2, "name": "d"})
    rows = decoded(options(), [first + second[:1], second[1:]])
    assert [row["id"] for row in rows] == [None, None]
    assert all(row["_corrupt"] is not None for row in rows)


@given(st.lists(st.none() | st.binary(max_size=12), max_size=20))
def test_random_bytes_do_not_fail_a_query(values: list[bytes | None]) -> None:
    rows = decoded(options(), values)
    assert len(rows) == len(values)
    for value, row in zip(values, rows, strict=True):
        if value is None:
            assert set(row.values()) == {None}


PREFIX = b"\0\0\0\0\x11"


@pytest.mark.parametrize("prefix", ["auto", "confluent"])
def test_the_prefix_of_a_schema_registry_is_removed(prefix: str) -> None:
    values = encoded(TWO, {"id": 7, "name": "x"}, {"id": 8, "name": None}, prefix=PREFIX)
    rows = decoded(options(avroPrefix=prefix), list(values))
    assert [row["id"] for row in rows] == [7, 8]


def test_values_with_and_without_a_prefix_in_one_topic() -> None:
    plain = encoded(TWO, *({"id": number, "name": "n" * number} for number in range(40)))
    prefixed = encoded(TWO, *({"id": number, "name": None} for number in range(40)), prefix=PREFIX)
    mixed = [value for pair in zip(plain, prefixed, strict=True) for value in pair]
    rows = decoded(options(), list(mixed))
    assert [row["id"] for row in rows] == [number for number in range(40) for _ in range(2)]


def test_a_prefix_with_avro_prefix_none_is_corrupt() -> None:
    [with_prefix] = encoded(TWO, {"id": 7, "name": "x"}, prefix=PREFIX)
    [without] = encoded(TWO, {"id": 7, "name": "x"})
    assert decoded(options(avroPrefix="none"), [with_prefix])[0]["_corrupt"] is not None
    assert decoded(options(avroPrefix="confluent"), [without])[0]["_corrupt"] is not None


OLD = record(("id", "int"))
NEW = {**record(("id", "long")), "fields": [
    {"name": "id", "type": "long"}, {"name": "name", "type": "string", "default": "none"},
]}  # fmt: skip


def test_writers_with_several_schemas() -> None:
    by_id = json.dumps({"5": OLD, "300": NEW})
    old = encoded(OLD, {"id": 1}, {"id": 2}, prefix=b"\0\0\0\0\x05")
    new = encoded(NEW, {"id": 3, "name": "c"}, prefix=b"\0\0\0\x01\x2c")
    unknown = encoded(NEW, {"id": 4, "name": "d"}, prefix=b"\0\0\0\0\x09")
    values = [old[0], *new, None, old[1], *unknown]
    for schema in (NEW, None):  # that of the highest id, unless another is asked for
        rows = decoded(options(schema, avroSchemas=by_id), values)
        assert [(row["id"], row["name"]) for row in rows] == [
            (1, "none"), (3, "c"), (None, None), (2, "none"), (None, None),
        ]  # fmt: skip
        assert [row["_corrupt"] is not None for row in rows] == [False] * 4 + [True]


def test_a_field_takes_precedence_over_a_column_of_the_record() -> None:
    schema = record(("offset", "string"), ("id", "int"))
    values = list(encoded(schema, {"offset": "mine", "id": 1}))
    assert decoded(options(schema), values)[0]["offset"] == "mine"
    other = record(("id", "int"))
    rows = decoded(options(other), list(encoded(other, {"id": 1})), "id INT, offset BIGINT")
    assert rows == [{"id": 1, "offset": 0}]


NODE = record(("id", "int"), ("next", ["null", "shop.Row"]))


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (record(("x", ["string", "int"])), "'x' for avroSchema: a union of string, int"),
        (record(("x", "null")), "type null cannot be a column"),
        (NODE, "shop.Row contains itself"),
        (record(("x", {"type": "bytes", "logicalType": "decimal", "precision": 50})), "38"),
        (record(("x", "Nowhere")), "Nowhere"),
        ({"type": "record", "fields": []}, "an Avro schema"),
        ([1], "an Avro schema"),
    ],
)
def test_a_type_without_a_column_is_an_error_that_names_it(schema: Any, words: str) -> None:
    with pytest.raises(InvalidSettingError) as error:
        record_schema(options(schema))
    assert words in str(error.value)


def test_a_field_without_a_column_can_be_left_out() -> None:
    values = encoded(NODE, {"id": 1, "next": {"id": 2, "next": None}})
    assert decoded(options(NODE), list(values), "id INT") == [{"id": 1}]


@pytest.mark.parametrize(
    ("ddl", "words"),
    [
        ("id STRING", "id is bigint in avroSchema"),
        ("nothing INT", "avroSchema has no such field; it has id, name"),
        ("_corrupt INT", "_corrupt must be a STRING, or a STRUCT"),
        ("offset STRING", "the record column offset has type bigint"),
    ],
)
def test_a_user_schema_must_match_the_avro_schema(ddl: str, words: str) -> None:
    with pytest.raises(InvalidSettingError) as error:
        check_schema(columns(ddl), options())
    assert words in str(error.value)


FLAT = record(
    ("flag", "boolean"),
    ("small", ["null", "int"]),
    ("large", "long"),
    ("kind", [{"type": "enum", "name": "Kind", "symbols": ["A", "B", "C"]}, "null"]),
    ("ratio", "float"),
    ("exact", ["null", "double"]),
    ("text", "string"),
    ("raw", ["null", "bytes"]),
    ("code", {"type": "fixed", "name": "Code", "size": 2}),
    ("price", {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 3}),
    ("day", {"type": "int", "logicalType": "date"}),
    ("at", ["null", {"type": "long", "logicalType": "timestamp-micros"}]),
)
INTS = st.integers(-(2**31), 2**31 - 1)
FLAT_ROWS = st.fixed_dictionaries(
    {
        "flag": st.booleans(),
        "small": st.none() | INTS,
        "large": st.integers(-(2**63), 2**63 - 1),
        "kind": st.none() | st.sampled_from("ABC"),
        "ratio": st.floats(width=32, allow_nan=False),
        "exact": st.none() | st.floats(allow_nan=False),
        "text": st.text(max_size=5),
        "raw": st.none() | st.binary(max_size=5),
        "code": st.binary(min_size=2, max_size=2),
        "price": st.decimals(-(10**16), 10**16, places=3),
        "day": st.dates(datetime.date(1900, 1, 1), datetime.date(2100, 1, 1)),
        "at": st.none() | st.datetimes(
            datetime.datetime(1900, 1, 1), datetime.datetime(2100, 1, 1),
            timezones=st.just(datetime.UTC),
        ),
    }
)  # fmt: skip


@st.composite
def flat_values(draw: Any) -> list[bytes | None]:
    """Good values, and some that were changed, cut or lengthened, or have a prefix."""
    values: list[bytes | None] = []
    for value in encoded(FLAT, *draw(st.lists(FLAT_ROWS, max_size=8))):
        damage = draw(st.sampled_from(["none", "none", "change", "cut", "more", "prefix", "null"]))
        at = draw(st.integers(0, len(value) - 1))
        changed = draw(st.binary(min_size=1, max_size=1))
        values.append({
            "none": value,
            "change": value[:at] + changed + value[at + 1 :],
            "cut": value[:at],
            "more": value + changed,
            "prefix": PREFIX + value,
            "null": None,
        }[damage])  # fmt: skip
    return values


def bits(array: Any) -> Any:
    """Floats as numbers, for what is no number equals nothing."""
    kinds = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}
    return array.view(kinds.get(array.type, array.type))


@given(flat_values(), st.sampled_from(["auto", "none", "confluent"]))
def test_compiled_loops_read_the_same_as_fastavro(values: list[bytes | None], prefix: str) -> None:
    from strandlog.formats.avro_values import AvroValues

    form = avro_form(options(FLAT, avroPrefix=prefix))
    names = tuple(field["name"] for field in FLAT["fields"])
    quick, slow = AvroValues(form, names), AvroValues(form, names)
    assert quick._flat is not None
    slow.__dict__["_flat"] = None
    schema = pa.schema([(name, quick._columns.type_of(name)) for name in names])
    array = pa.array([None, *values, None], pa.binary()).slice(1, len(values))
    by_kernels, by_decoder = quick.parse(array, schema), slow.parse(array, schema)
    assert by_kernels.bad == by_decoder.bad
    for name in names:
        by_kernels.columns[name].validate(full=True)
        assert bits(by_kernels.columns[name]).equals(bits(by_decoder.columns[name])), name


@pytest.mark.parametrize(
    ("kind", "is_flat"),
    [
        ("long", True),
        (["null", {"type": "fixed", "name": "F", "size": 3}], True),
        ({"type": "array", "items": "int"}, False),
        (["null", "int", "long"], False),
        (["int"], False),
    ],
)
def test_compiled_loops_are_for_flat_records(kind: Any, is_flat: bool) -> None:
    from strandlog.formats.avro_values import AvroValues

    found = AvroValues(avro_form(options(record(("c", kind), ("d", "string")))), ("c",))
    assert (found._flat is not None) == is_flat


@pytest.mark.parametrize(
    "items",
    ["null", {"type": "fixed", "name": "None", "size": 0}, record(), record(("none", "null"))],
)
def test_an_array_of_empty_items_is_an_error(items: Any) -> None:
    hidden = record(("id", "long"), ("many", ["null", {"type": "array", "items": items}]))
    hidden["name"] = "Outer"
    with pytest.raises(InvalidSettingError, match="at least one byte"):
        Decoder(options(hidden), columns("id BIGINT"))


def test_a_corrupt_value_is_kept_whole_and_does_not_affect_others() -> None:
    """In nested values too, which are decoded one by one, and where Arrow cannot hold a field."""
    price = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
    schema = record(("id", "long"), ("prices", {"type": "array", "items": price}))
    raw = record(("id", "long"), ("prices", {"type": "array", "items": "bytes"}))
    good, wide = encoded(
        raw, {"id": 1, "prices": [b"\x01"]}, {"id": 2, "prices": [b"\x7f\xff\xff\xff"]}
    )
    values = [good, wide, b"junk", b"", good] * 40
    whole = StructType().add("value", "binary").add("offset", "long").add("reason", "string")
    prices = ArrayType(DecimalType(4, 2))
    wanted = StructType().add("id", "long").add("prices", prices).add("_corrupt", whole)
    rows = decoded(options(schema), values, wanted)
    assert [row["id"] for row in rows] == [1, None, None, None, 1] * 40
    faults = [row["_corrupt"] for row in rows if row["_corrupt"] is not None]
    assert [fault["value"] for fault in faults] == [wide, b"junk", b""] * 40
    assert faults[0]["offset"] == 1
    assert faults[0]["reason"] == "the value does not match the Avro schema"


CHAIN = {"type": "record", "name": "Node", "fields": [
    {"name": "id", "type": "long"}, {"name": "next", "type": ["null", "Node"]},
]}  # fmt: skip
TREE = {"type": "record", "name": "Node", "fields": [
    {"name": "id", "type": "long"}, {"name": "inner", "type": {"type": "array", "items": "Node"}},
    {"name": "by_name", "type": {"type": "map", "values": ["null", "Node"]}},
]}  # fmt: skip


@pytest.mark.parametrize("levels", [1_001, 100_000])
@pytest.mark.parametrize(
    ("schema", "down", "bottom"),
    [(CHAIN, b"\x02\x02", b"\x02\x00"), (TREE, b"\x02\x02", b"\x02\0\0")],
)
def test_a_value_that_nests_too_deeply_does_not_crash_the_process(
    schema: Any, down: bytes, bottom: bytes, levels: int
) -> None:
    up = b"" if schema is CHAIN else b"\0\0"
    deep = down * levels + bottom + up * levels
    allowed = 999 if schema is CHAIN else 499  # an array is a level too
    values = [bottom, deep, down * allowed + bottom + up * allowed, bottom]
    rows = decoded(options(schema), values, columns("id BIGINT").add("_corrupt", "string"))
    assert [row["id"] for row in rows] == [1, None, 1, 1]
    assert rows[1]["_corrupt"] == deep.hex()


@pytest.mark.parametrize(
    ("schema", "value", "is_bad"),
    [
        (CHAIN, b"\x02\x02" + b"\x80" * 5000 + b"\x00\x00", True),
        (CHAIN, b"\x02\x02" * 600 + b"\x02", True),
        (CHAIN, b"\x02\x08" * 600, True),
        (TREE, b"\x02\xd0\x0f" + b"\x02\0\0" * 1000 + b"\0\0", False),
        (TREE, b"\x02\0\x02\xa0\x1f" + b"k" * 2000 + b"\x00\0", False),
        (TREE, b"\x02\x01\xd8\x36" + b"\x02\0\0" * 1160 + b"\0\0", True),
    ],
)
def test_a_long_value_of_a_recursive_record(schema: Any, value: bytes, is_bad: bool) -> None:
    (row,) = decoded(options(schema), [value], columns("id BIGINT").add("_corrupt", "string"))
    assert (row["_corrupt"] is not None, row["id"]) == (is_bad, None if is_bad else 1)


def test_a_record_that_always_contains_itself_is_an_error() -> None:
    endless = {"type": "record", "name": "Node", "fields": [
        {"name": "id", "type": "long"}, {"name": "next", "type": "Node"},
    ]}  # fmt: skip
    with pytest.raises(InvalidSettingError, match="must not always contain itself"):
        Decoder(options(endless), columns("id BIGINT"))


@pytest.mark.parametrize("kind", ["bytes", "nested"])
def test_a_decimal_of_a_megabyte_is_not_converted(kind: str) -> None:
    """fastavro takes minutes to turn it into a decimal that no column can hold."""
    price: Any = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2}
    raw: Any = "bytes"
    if kind == "nested":
        price, raw = {"type": "array", "items": price}, {"type": "array", "items": raw}
    digits = [b"\x7f" * 1_000_000, (10**38 - 1).to_bytes(16), bytes(900) + b"\x07", b"\xff" * 900]
    given = [{"d": [each] if kind == "nested" else each} for each in digits]
    values = encoded(record(("d", raw)), *given)
    column = DecimalType(38, 2) if kind == "bytes" else ArrayType(DecimalType(38, 2))
    rows = decoded(options(record(("d", price))), values, StructType().add("d", column))
    expected = [None, decimal.Decimal(10**38 - 1).scaleb(-2, decimal.Context(38)), "0.07", "-0.01"]
    wanted = [None if each is None else decimal.Decimal(each) for each in expected]
    assert [row["d"] for row in rows] == [
        each if kind == "bytes" or each is None else [each] for each in wanted
    ]
