"""When records are due, and how they are divided among clients."""

from __future__ import annotations

from threading import Event

import pytest

from strandlog.cli.bench.plan import Pace, Plan
from strandlog.clock import stopwatch

PLAN = Plan(10, None, 100, None, "all", None, 1, 3)


def test_the_records_are_divided_among_the_clients() -> None:
    assert [PLAN.share(client) for client in range(3)] == [4, 3, 3]
    assert PLAN._replace(records=None).share(0) is None


def test_without_a_rate_a_client_sends_as_fast_as_it_can() -> None:
    pace = Pace(PLAN, 0, stopwatch())
    assert len(pace.due(3)) == 3
    assert len(pace.due(3)) == 1
    assert pace.is_over


def test_a_late_client_measures_from_when_the_records_were_due() -> None:
    """Coordinated omission: a stall of one second must show in all records due in that second."""
    began = stopwatch() - 1.0
    pace = Pace(PLAN._replace(records=None, rate=300.0), 0, began)
    times = pace.due(1_000)
    assert len(times) >= 100
    assert times[:2] == [began, began + 0.01]
    assert all(time <= stopwatch() for time in times)


def test_clients_with_a_rate_take_turns() -> None:
    began = stopwatch() - 1.0
    plan = PLAN._replace(records=None, rate=3.0)
    first = [Pace(plan, client, began).due(1)[0] - began for client in range(3)]
    assert first == pytest.approx([0, 1 / 3, 2 / 3])


def test_a_stopped_client_does_not_wait_for_its_next_record() -> None:
    stop = Event()
    stop.set()
    pace = Pace(PLAN._replace(rate=0.001), 0, stopwatch() + 1_000)
    assert pace.due(5) == []
    pace.wait(stop, 1_000)


def test_values_have_the_size_and_differ() -> None:
    for size in (0, 1, 7, 1000):
        values = PLAN._replace(size=size).payloads()
        assert {len(value) for value in values} == {size}
    assert len(set(values)) > 100
