"""The figures: each is in the table once, explained, and counts what it says."""

from __future__ import annotations

import pytest

from strandlog.broker.metrics import LIMITS_SECONDS, Histogram, Metrics, table


def test_every_figure_is_explained_and_in_the_snapshot() -> None:
    rows = list(table())
    assert {row.kind for row in rows} == {"counter", "gauge", "histogram"}
    assert all(row.help.endswith(".") for row in rows)
    names = [row.exported_name for row in rows]
    assert len(set(names)) == len(names)
    assert "strandlog_produced_bytes_total" in names
    assert "strandlog_connections_open" in names
    assert list(Metrics().snapshot()) == [row.name for row in rows]


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [
        (0.0, 0),
        (LIMITS_SECONDS[0], 0),
        (0.00051, 1),
        (LIMITS_SECONDS[-1], len(LIMITS_SECONDS) - 1),
        (1e6, -1),
    ],
)
def test_limits_are_inclusive_upper_bounds(seconds: float, bucket: int) -> None:
    times = Histogram()
    times.observe(seconds)
    assert times.counts[bucket] == 1
    assert times.count == 1


def test_a_histogram_knows_sum_longest_and_quantiles() -> None:
    times = Histogram()
    assert times.quantile(0.99) == 0.0
    for milliseconds in range(1, 101):
        times.observe(milliseconds / 1000)
    assert times.sum_seconds == pytest.approx(5.05)
    assert times.max_seconds == 0.1
    assert times.quantile(0.5) == 0.05
    assert times.quantile(1.0) == 0.1
    times.observe(45.0)
    assert times.quantile(1.0) == 45.0


def test_times_of_apis_are_kept_apart() -> None:
    metrics = Metrics()
    metrics.request_done("Fetch", 0.3)
    metrics.request_done("Fetch", 0.1)
    metrics.request_done("Produce", 0.001)
    taken = metrics.snapshot()["request_seconds"]
    assert {name: times["count"] for name, times in taken.items()} == {"Fetch": 2, "Produce": 1}
