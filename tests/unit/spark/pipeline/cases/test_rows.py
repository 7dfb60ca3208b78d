"""The comparison of rows with expected rows."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandlog.spark.pipeline.cases.rows import difference, equal

AT = datetime(2026, 1, 1, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    ("expected", "given_value", "is_equal"),
    [
        (1, 1.0, True),
        (0.3, 0.1 + 0.2, True),
        (1, True, False),
        (True, True, True),
        (1, "1", False),
        (Decimal("1.50"), 1.5, True),
        (nan, "NaN", True),
        (-inf, "-Infinity", True),
        (nan, 1.0, False),
        (None, None, True),
        (None, 0, False),
        ("a", "b", False),
        (AT, "2026-01-01T10:00:00.000Z", True),
        (AT, "2026-01-01T11:00:00.000+01:00", True),
        (AT.replace(tzinfo=None), AT, True),
        (AT, "2026-01-01T10:00:00.001Z", False),
        (AT, "later", False),
        (date(2026, 1, 1), "2026-01-01", True),
        (time(10), "10:00:00", True),
        ([1, 2], [1, 2.0], True),
        ([1, 2], [2, 1], False),
        ([1], [1, 2], False),
        ({"a": 1}, {"a": 1, "b": None}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
    ],
)
def test_values_are_equal_whatever_their_type(
    expected: Any, given_value: Any, is_equal: bool
) -> None:
    assert equal(expected, given_value) is is_equal


def test_a_time_in_milliseconds_that_is_one_second_late_is_not_equal() -> None:
    assert not equal(1_700_000_000_000, 1_700_000_001_000)
    assert equal(1_700_000_000_000, 1_700_000_000_000.5), "floating-point numbers are inexact"


def test_only_named_columns_are_compared_and_a_lacking_one_is_null() -> None:
    rows = [{"a": 1, "b": 2, "c": 3}, {"a": 2, "c": 4}]
    assert difference(1, "x", [{"a": 2}, {"a": 1, "b": 2}], rows) is None
    found = difference(1, "x", [{"a": 2, "b": 5}, {"a": 1}], rows)
    assert found is not None
    assert found.missing == ({"a": 2, "b": 5}, {"a": 1, "b": None})
    assert found.unexpected == ({"a": 1, "b": 2}, {"a": 2, "b": None})


def test_a_difference_shows_a_missing_row_with_the_row_closest_to_it() -> None:
    found = difference(
        1,
        "topic out",
        [{"carrier": "AA", "flights": 2}, {"carrier": "UA", "flights": 1}],
        [{"carrier": "DL", "flights": 9}, {"carrier": "AA", "flights": 3}],
    )
    assert found is not None
    assert found.lines() == [
        '- expected  {"carrier": "AA", "flights": 2}',
        '+ got       {"carrier": "AA", "flights": 3}',
        "            differs in flights",
        '- expected  {"carrier": "UA", "flights": 1}',
        '+ got       {"carrier": "DL", "flights": 9}',
    ]


def test_no_rows_are_expected_by_an_empty_list() -> None:
    assert difference(1, "x", [], []) is None
    found = difference(1, "x", [], [{"at": AT}])
    assert found is not None
    assert found.lines() == ['+ got       {"at": "2026-01-01T10:00:00Z"}']


rows_of_two = st.lists(st.fixed_dictionaries({"a": st.integers(0, 2), "b": st.integers(0, 2)}))


@given(rows_of_two, rows_of_two)
def test_the_difference_of_two_multisets_accounts_for_every_row(
    expected: list[dict[str, int]], rows: list[dict[str, int]]
) -> None:
    def tuples(dicts: Any) -> list[tuple[int, int]]:
        return sorted((row["a"], row["b"]) for row in dicts)

    found = difference(1, "x", expected, rows)
    if found is None:
        assert tuples(expected) == tuples(rows)
        return
    kept = tuples(expected)
    for row in tuples(found.missing):
        kept.remove(row)
    assert sorted(kept + tuples(found.unexpected)) == tuples(rows)
    assert not set(tuples(found.missing)) & set(tuples(found.unexpected))
