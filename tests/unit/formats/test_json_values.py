"""JSON values as columns: that faults stay where they are, and cost no more than good values."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.samples import one_in

pa = pytest.importorskip("pyarrow", reason="Spark tests need the spark extra")
pytest.importorskip("pyspark", reason="Spark tests need the spark extra")

from pyspark.sql import types as spark_types  # noqa: E402
from tests.unit.formats import json_cases  # noqa: E402

from strandlog.errors import InvalidSettingError  # noqa: E402
from strandlog.formats import json_values  # noqa: E402
from strandlog.formats.json_rows import RowParser  # noqa: E402
from strandlog.formats.json_text import may_nest_too_deeply  # noqa: E402
from strandlog.formats.json_values import JsonParser, zone_of  # noqa: E402
from strandlog.spark.options import BATCH, parse_options  # noqa: E402
from strandlog.spark.schema import check_schema  # noqa: E402

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("all", pa.list_(pa.int64()))])
ZONE = zone_of("America/New_York")


def parsed(values: Sequence[bytes | None], schema: Any = SCHEMA) -> tuple[list[Any], list[int]]:
    """(rows, numbers of bad rows)."""
    found = JsonParser(schema, ZONE).parse(pa.array(values, pa.binary()))
    for column in found.columns.values():
        column.validate(full=True)
    assert found.row_count == len(values)
    if not len(schema):
        return [], found.bad
    batch = pa.RecordBatch.from_arrays(list(found.columns.values()), schema=schema)
    assert len(batch) == len(values)
    return batch.to_pylist(), found.bad


@pytest.mark.parametrize(
    ("value", "number", "is_bad"),
    [
        (b'{"id": 7}', 7, False),
        (b' {"id": 7}\r\n', 7, False),
        (b'{"id":\n7, "other": {"x": []}}', 7, False),
        (None, None, False),
        (b"", None, True),
        (b"oops", None, True),
        (b"[1]", None, True),
        (b"{", None, True),
        (b'{"id": "seven"}', None, True),
        (b'{"id": 1.5}', None, True),
        (b'{"id": 7}{"id": 8}', 7, True),
        (b'{"id": 7}\n{"id": 8}', 7, True),
        (b'{"id": 7, "name": "\xff"}', 7, True),
        (b'{"\xff": 1, "id": 7}', 7, True),
        (b"\xff", None, True),
    ],
)
def test_a_value_among_valid_ones(value: bytes | None, number: int | None, is_bad: bool) -> None:
    good = b'{"id": 1, "name": "a", "all": [1, 2]}'
    rows, bad = parsed([good, value, good, None, good])
    assert [row["id"] for row in rows] == [1, number, 1, None, 1]
    assert bad == ([1] if is_bad else [])
    alone, bad = parsed([value])
    assert (alone[0]["id"], bad) == (number, [0] if is_bad else [])


def test_no_values() -> None:
    assert parsed([]) == ([], [])
    nothing = {"id": None, "name": None, "all": None}
    assert parsed([None, None]) == ([nothing, nothing], [])


def test_a_schema_without_columns_of_the_value() -> None:
    assert parsed([b'{"id": 1}', b"oops", None], pa.schema([])) == ([], [1])


def test_one_bad_field_leaves_the_others() -> None:
    kinds = {
        "date": pa.date32(),
        "map": pa.map_(pa.string(), pa.int32()),
        "text": pa.string(),
        "money": pa.decimal128(5, 2),
        "id": pa.int64(),
    }
    value = {"date": "no", "map": {"a": 1}, "text": 5, "money": 1.235, "id": 7}
    rows, bad = parsed([json.dumps(value).encode()], pa.schema(list(kinds.items())))
    assert rows == [
        {"date": None, "map": [("a", 1)], "text": "5", "money": Decimal("1.24"), "id": 7}
    ]
    assert bad == [0]


def test_a_bad_row_takes_no_more_work_than_a_valid_one(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 2000
    attempts: list[int] = []
    one_by_one: list[int] = []
    read, parse = json_values._read_json, RowParser.parse

    def counted_read(texts: Any, schema: Any) -> Any:
        attempts.append(len(texts))
        return read(texts, schema)

    def counted_parse(self: RowParser, values: Any) -> Any:
        one_by_one.append(len(values))
        return parse(self, values)

    monkeypatch.setattr(json_values, "_read_json", counted_read)
    monkeypatch.setattr(RowParser, "parse", counted_parse)
    rows, bad = parsed([b'{"id": "x", "name": "n"}'] * count)
    assert bad == list(range(count))
    assert all(row == {"id": None, "name": "n", "all": None} for row in rows)
    assert sum(attempts) <= 2 * count, "a value is tried at most twice"
    assert len(attempts) <= 2 + count // json_values.RETRY_ROWS
    assert sum(one_by_one) == count, "and then parsed once"

    attempts.clear()
    one_by_one.clear()
    good = [b'{"id": 1}'] * count
    assert parsed([*good, b'{"id": "x"}', *good])[1] == [count]
    assert sum(one_by_one) <= json_values.RETRY_ROWS, "one bad value makes few others slow"


KINDS = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "DECIMAL(5,2)": pa.decimal128(5, 2),
    "DECIMAL(38,10)": pa.decimal128(38, 10),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
    "ARRAY<DATE>": pa.list_(pa.date32()),
    "STRUCT<x,y>": pa.struct([("x", pa.decimal128(5, 2)), ("y", pa.timestamp("us", tz="UTC"))]),
}


@pytest.mark.parametrize("name", one_in(5, KINDS))
def test_neighbours_make_no_difference(name: str) -> None:
    """Arrow's reader, where it is used, gives what the careful way gives."""
    schema = pa.schema([("f", KINDS[name]), ("z", pa.int32())])
    values = [f'{{"f": {field}, "z": 1}}'.encode() for field in json_cases.FIELDS]
    values += [*json_cases.WHOLE, *json_cases.REPORTED]
    careful = RowParser(schema, ZONE).parse(values)
    together = JsonParser(schema, ZONE).parse(pa.array(values, pa.binary()))
    assert together.bad == careful.bad
    for number, value in enumerate(values):
        alone = JsonParser(schema, ZONE).parse(pa.array([value], pa.binary()))
        assert alone.bad == ([0] if number in careful.bad else []), value
        for column in schema.names:
            expected = careful.columns[column].slice(number, 1)
            for other in (alone.columns[column], together.columns[column].slice(number, 1)):
                assert _same(other, expected), (value, other, expected)


def _same(one: Any, other: Any) -> bool:
    is_nan = pa.types.is_floating(one.type) and str(one[0]) == str(other[0]) == "nan"
    return is_nan or one.equals(other)


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.none() | st.binary(max_size=6), max_size=30))
def test_pieces_make_no_difference(given: list[int | bytes | None]) -> None:
    values = [
        json.dumps({"id": each}).encode() if isinstance(each, int) else each for each in given
    ]
    whole = parsed(values)
    usual = json_values.JSON_ROWS, json_values.RETRY_ROWS
    json_values.JSON_ROWS, json_values.RETRY_ROWS = 5, 2
    try:
        assert parsed(values) == whole
    finally:
        json_values.JSON_ROWS, json_values.RETRY_ROWS = usual
    assert [row["id"] for row in whole[0]] == [
        each if isinstance(each, int) else None for each in given
    ]


def test_a_decimal_that_arrow_reads_wrongly_or_dies_of() -> None:
    schema = pa.schema([("d", pa.decimal128(38, 3))])
    values = [b'{"d": 12345678901234567890123456789012345678}', b'{"d": 1e-999999999}']
    assert parsed(values, schema) == ([{"d": None}, {"d": Decimal("0.000")}], [0])


def test_a_timestamp_after_2037_has_summer_time() -> None:
    schema = pa.schema([("at", pa.timestamp("us", tz="UTC"))])
    rows, _ = parsed([b'{"at": "2040-07-01T00:00:00"}'], schema)
    assert rows[0]["at"].hour == 4


@pytest.mark.parametrize("text", [b"]" * 5_000, b'\\"' + b"}" * 5_000])
def test_closing_brackets_in_a_string_do_not_hide_deep_nesting(text: bytes) -> None:
    deep = b"[" * 2_000 + b"]" * 2_000
    assert may_nest_too_deeply(b'{"a": "' + text + b'", "b": ' + deep + b"}")


def test_opening_brackets_in_a_string_are_not_nesting() -> None:
    assert not may_nest_too_deeply(b'{"a": "' + b"[" * 5_000 + b'"}')


@pytest.mark.parametrize(
    "rest",
    [b" x}", b", ", b', "deep": ' + b"[" * 3_000],
    ids=["malformed", "incomplete", "deep"],
)
def test_a_long_integer_in_a_broken_value_does_not_stop_the_query(rest: bytes) -> None:
    rows, bad = parsed([b'{"id": 1}', b'{"id": ' + b"1" * 5_000 + rest, b'{"id": 3}'])
    assert ([row["id"] for row in rows], bad) == ([1, None, 3], [1])


def test_a_long_integer_beside_single_quotes_is_read() -> None:
    rows, bad = parsed([b'{"other": ' + b"1" * 5_000 + b", 'name': 'n'}"])
    assert (rows[0]["name"], bad) == ("n", [])


def test_a_value_of_ten_megabytes() -> None:
    items = b",".join([b'{"a": [1, 2, {"b": "' + b"it is \xc3\xa9 " * 120 + b'"}]}'] * 10_000)
    assert len(items) > 10_000_000
    value = b'{"id": 7, "name": "n", "items": [' + items + b"]}"
    bad = b'{"id": "x", "name": "n", "items": [' + items + b"]}"
    rows, wrong = parsed([value, bad])
    assert [(row["id"], row["name"]) for row in rows] == [(7, "n"), (None, "n")]
    assert wrong == [1]


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (spark_types.VariantType(), "bad"),
        (spark_types.CalendarIntervalType(), "bad"),
        (spark_types.YearMonthIntervalType(), "bad"),
        (spark_types.DayTimeIntervalType(), "bad"),
        (spark_types.NullType(), "bad"),
        (spark_types.StringType("UTF8_LCASE"), "bad"),
        (spark_types.MapType(spark_types.IntegerType(), spark_types.IntegerType()), "bad"),
        (spark_types.ArrayType(spark_types.VariantType()), "bad.element"),
        (spark_types.MapType(spark_types.StringType(), spark_types.VariantType()), "bad.value"),
        (spark_types.StructType().add("in", spark_types.VariantType()), "bad.in"),
    ],
)
def test_a_type_that_cannot_be_parsed_is_an_error(kind: Any, path: str) -> None:
    options = parse_options(
        BATCH, {"bootstrap.servers": "x:1", "subscribe": "t", "valueFormat": "json"}
    )
    schema = spark_types.StructType().add("id", "long").add("bad", kind)
    with pytest.raises(InvalidSettingError, match="from_json") as caught:
        check_schema(schema, options)
    assert f"column {path} as" in str(caught.value)


def test_a_not_null_column_is_an_error() -> None:
    options = parse_options(
        BATCH, {"bootstrap.servers": "x:1", "subscribe": "t", "valueFormat": "json"}
    )
    with pytest.raises(InvalidSettingError, match="id bigint NOT NULL"):
        check_schema(spark_types.StructType().add("id", "long", nullable=False), options)
