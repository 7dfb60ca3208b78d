"""Schemas are compared and merged by strandlog's own rules."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandlog.errors import TableSchemaError
from strandlog.tables.schema import conformed, merged, plain

SIMPLE = st.sampled_from(
    [pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32()]
)
NAMES = st.sampled_from(["a", "b", "c", "d"])


def _struct(types: Any) -> Any:
    return st.dictionaries(NAMES, types, min_size=1, max_size=3).map(
        lambda fields: pa.struct(list(fields.items()))
    )


def _list(types: Any) -> Any:
    return types.map(lambda kind: pa.list_(pa.field("element", kind)))


TYPES = st.recursive(SIMPLE, lambda inner: st.one_of(_struct(inner), _list(inner)), max_leaves=4)
SCHEMAS = st.dictionaries(NAMES, TYPES, max_size=4).map(lambda fields: pa.schema(fields.items()))


@given(SCHEMAS, SCHEMAS)
def test_rows_of_both_schemas_fit_the_merged_schema(table: Any, more: Any) -> None:
    try:
        together = merged(table, more)
    except TableSchemaError:
        return
    assert merged(together, more) == together == merged(together, table)
    for schema in (table, more):
        empty = conformed(schema.empty_table(), together)
        assert empty.schema == together
        row = pa.table([pa.nulls(2, field.type) for field in schema], schema=schema)
        if schema.names:
            assert conformed(row, together).num_rows == 2


def test_values_survive() -> None:
    old = pa.schema(
        [
            ("n", pa.int32()),
            ("s", pa.struct([("x", pa.int32())])),
            ("l", pa.list_(pa.struct([("x", pa.float32())]))),
        ]
    )
    new = pa.schema(
        [
            ("n", pa.int64()),
            ("s", pa.struct([("y", pa.string())])),
            ("l", pa.list_(pa.struct([("x", pa.float64()), ("z", pa.int8())]))),
        ]
    )
    rows = pa.Table.from_pylist(
        [
            {"n": 1, "s": None, "l": None},
            {"n": None, "s": {"x": 5}, "l": [{"x": 0.5}, None]},
            {"n": 3, "s": {"x": None}, "l": []},
        ],
        schema=old,
    )
    together = merged(old, new)
    for part in (rows, rows.slice(1, 1), rows.slice(1)):
        found = conformed(part, together).to_pylist()
        for row, before in zip(found, part.to_pylist(), strict=True):
            assert row["n"] == before["n"]
            assert row["s"] == (None if before["s"] is None else {**before["s"], "y": None})
            expected = before["l"] and [each and {**each, "z": None} for each in before["l"]]
            assert row["l"] == expected


def test_a_null_map_does_not_become_an_empty_one_when_its_values_get_a_field() -> None:
    def maps(*fields: tuple[str, pa.DataType]) -> pa.Schema:
        return pa.schema([("m", pa.map_(pa.string(), pa.struct(list(fields))))])

    old, new = maps(("x", pa.int32())), maps(("x", pa.int32()), ("y", pa.string()))
    rows = pa.table(
        [pa.array([[("a", {"x": 1})], None, [], [("b", None)]], old.field(0).type)], schema=old
    )
    wanted = [[("a", {"x": 1, "y": None})], None, [], [("b", None)]]
    for first in range(4):
        found = conformed(rows.slice(first), new)
        assert found.column("m").to_pylist() == wanted[first:]


@pytest.mark.parametrize(
    ("table", "rows"),
    [
        (pa.string(), pa.int64()),
        (pa.int64(), pa.float64()),
        (pa.int64(), pa.string()),
        (pa.struct([("x", pa.int64())]), pa.int64()),
        (pa.timestamp("us", "UTC"), pa.timestamp("us")),
    ],
)
def test_types_that_lose_something_are_an_error(table: Any, rows: Any) -> None:
    with pytest.raises(TableSchemaError, match=r"column v has type .* in the table, but"):
        merged(pa.schema([("v", table)]), pa.schema([("v", rows)]))


def test_names_that_differ_only_in_case_are_an_error() -> None:
    with pytest.raises(TableSchemaError, match=r"columns s\.Name and s\.name differ only in case"):
        merged(
            pa.schema([("s", pa.struct([("Name", pa.string())]))]),
            pa.schema([("s", pa.struct([("name", pa.string())]))]),
        )


def test_two_columns_of_one_name_do_not_differ_in_case() -> None:
    message = r"two columns are named s\.a, which table formats do not allow; rename one"
    twice = pa.schema([("s", pa.struct([("a", pa.string()), ("b", pa.int64()), ("a", pa.int8())]))])
    for table in (pa.schema([]), pa.schema([("s", pa.struct([("a", pa.string())]))])):
        with pytest.raises(TableSchemaError, match=message):
            merged(table, twice)


def test_large_and_view_types_are_plain() -> None:
    schema = pa.schema(
        [
            pa.field("a", pa.large_string(), nullable=False),
            ("b", pa.binary_view()),
            ("c", pa.large_list(pa.dictionary(pa.int32(), pa.string()))),
            ("d", pa.timestamp("us", "+00:00")),
        ]
    )
    assert plain(schema) == pa.schema(
        [
            ("a", pa.string()),
            ("b", pa.binary()),
            ("c", pa.list_(pa.field("element", pa.string()))),
            ("d", pa.timestamp("us", "UTC")),
        ]
    )
