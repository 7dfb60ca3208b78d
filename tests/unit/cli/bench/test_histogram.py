"""Percentiles of the histogram, against sorted lists."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from strandlog.cli.bench.histogram import Histogram

DURATIONS = st.lists(st.floats(0, 10_000), min_size=1)


@given(DURATIONS, st.sampled_from([50, 95, 99, 100]))
def test_a_percentile_is_at_most_two_percent_too_high(values: list[float], percent: int) -> None:
    one_by_one, together = Histogram(), Histogram()
    for value in values:
        one_by_one.add(value)
    together.add_all(list(values))
    exact = sorted(values)[math.ceil(len(values) * percent / 100) - 1]
    for histogram in (one_by_one, together):
        found = histogram.percentile(percent)
        assert found is not None
        assert exact - 1e-6 <= found <= exact * 1.02 + 2e-6
        assert histogram.count == len(values)
        assert histogram.max_seconds == max(values)


@given(DURATIONS, DURATIONS)
def test_merged_histograms_equal_one_histogram(first: list[float], second: list[float]) -> None:
    merged, other, whole = Histogram(), Histogram(), Histogram()
    merged.add_all(list(first))
    other.add_all(list(second))
    merged.merge(other)
    whole.add_all(first + second)
    assert [merged.percentile(p) for p in (50, 99)] == [whole.percentile(p) for p in (50, 99)]
    assert merged.count == whole.count


def test_memory_does_not_grow_with_the_number_of_values() -> None:
    histogram = Histogram()
    histogram.add(0.001, 10**12)
    histogram.add_all([number / 1e6 for number in range(100_000)])
    assert histogram.count == 10**12 + 100_000
    assert len(histogram._buckets) < 1000


def test_an_empty_histogram_has_no_percentiles() -> None:
    assert Histogram().percentile(50) is None
    assert Histogram().mean is None
