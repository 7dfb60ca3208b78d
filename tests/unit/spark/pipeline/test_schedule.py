"""When a scheduled pipeline runs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandlog.spark.pipeline.schedule import next_run_ms, parse_interval


@pytest.mark.parametrize(
    ("text", "interval_ms"),
    [
        ("10 min", 600_000),
        ("1 minute", 60_000),
        ("90 seconds", 90_000),
        ("5s", 5_000),
        ("1 hour", 3_600_000),
        ("2 days", 172_800_000),
        ("0 min", None),
        ("10", None),
        ("10 months", None),
        ("-1 min", None),
        ("", None),
    ],
)
def test_an_interval_has_a_number_and_a_unit(text: str, interval_ms: int | None) -> None:
    assert parse_interval(text) == interval_ms


@given(st.integers(0, 10**9), st.integers(1, 10**6), st.integers(-(10**6), 10**9))
def test_the_next_run_is_the_first_multiple_after_now(
    first_ms: int, every_ms: int, passed_ms: int
) -> None:
    now_ms = first_ms + passed_ms
    due_ms = next_run_ms(first_ms, every_ms, now_ms)
    assert (due_ms - first_ms) % every_ms == 0, "the times do not drift"
    assert due_ms > first_ms
    assert due_ms > now_ms
    assert due_ms - every_ms <= max(now_ms, first_ms)
