"""JSON values as columns: what parses, what does not, and that one does not harm the other."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow", reason="Spark tests need the spark extra")
pytest.importorskip("pyspark", reason="Spark tests need the spark extra")

from strandlog.spark import decoding  # noqa: E402
from strandlog.spark.decoding import as_text, parse_json  # noqa: E402

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("all", pa.list_(pa.int64()))])


def parsed(values: list[bytes | None], schema: Any = SCHEMA) -> tuple[list[Any], list[int]]:
    """(ids, or all columns of another schema; numbers of bad rows)."""
    columns, bad = parse_json(pa.array(values, pa.binary()), schema)
    for column in columns.values():
        column.validate(full=True)
        assert len(column) == len(values)
    return columns["id"].to_pylist() if "id" in columns else list(columns), bad


@pytest.mark.parametrize(
    ("value", "is_bad"),
    [
        (b'{"id": 7}', False),
        (b' {"id": 7}\r\n', False),
        (b'{"id":\n7, "other": {"x": []}}', False),
        (None, False),
        (b"", True),
        (b"oops", True),
        (b"[1]", True),
        (b"{", True),
        (b'{"id": "seven"}', True),
        (b'{"id": 1.5}', True),
        (b'{"id": 7}{"id": 8}', True),
        (b'{"id": 7}\n{"id": 8}', True),
        (b'{"name": "\xff"}', True),
        (b'{"\xff": 1}', True),
        (b"\xff", True),
    ],
)
def test_a_value_among_good_ones(value: bytes | None, is_bad: bool) -> None:
    good = b'{"id": 1, "name": "a", "all": [1, 2]}'
    ids, bad = parsed([good, value, good, None, good])
    is_seven = not is_bad and value is not None
    assert ids == [1, 7 if is_seven else None, 1, None, 1]
    assert bad == ([1] if is_bad else [])
    assert parsed([value]) == ([7 if is_seven else None], [0] if is_bad else [])


def test_nothing_at_all() -> None:
    assert parsed([]) == ([], [])
    assert parsed([None, None]) == ([None, None], [])


def test_no_column_of_the_value_is_wanted() -> None:
    assert parsed([b'{"id": 1}', b"oops", None], pa.schema([])) == ([], [1])


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.none() | st.binary(max_size=6), max_size=30))
def test_pieces_make_no_difference(given: list[int | bytes | None]) -> None:
    values = [
        json.dumps({"id": each}).encode() if isinstance(each, int) else each for each in given
    ]
    whole = parsed(values)
    usual, decoding.JSON_ROWS = decoding.JSON_ROWS, 3
    try:
        assert parsed(values) == whole
    finally:
        decoding.JSON_ROWS = usual
    assert whole[0] == [each if isinstance(each, int) else None for each in given]


def test_what_is_no_text_is_shown_as_well_as_can_be() -> None:
    assert as_text(pa.array([b"a\xffb", None, b"c"])).to_pylist() == ["a\ufffdb", None, "c"]
