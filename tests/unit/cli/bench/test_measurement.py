"""Intervals and errors of a benchmark stay bounded, and nothing is lost."""

from __future__ import annotations

from strandlog.cli.bench.measurement import MAX_INTERVALS, MAX_MESSAGES, Measurement


def test_a_long_run_merges_intervals_and_loses_no_record() -> None:
    measurement = Measurement(interval_seconds=1e-7)
    for number in range(2_000):
        measurement.add(2, 20, [number / 1e6, 0.5])
    assert len(measurement.intervals) <= MAX_INTERVALS
    assert measurement.interval_seconds > 1e-7
    total = measurement.total()
    assert (total.records, total.size_bytes, total.latency.count) == (4_000, 40_000, 4_000)
    assert total.latency.max_seconds == 0.5


def test_many_different_errors_are_counted_in_bounded_memory() -> None:
    measurement = Measurement()
    for number in range(1_000):
        measurement.add_errors(f"error {number}")
    assert measurement.errors == 1_000
    assert sum(measurement.messages.values()) == 1_000
    assert len(measurement.messages) == MAX_MESSAGES + 1
