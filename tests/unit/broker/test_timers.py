"""Timers fire once, in order, never when cancelled, and the heap does not grow with heartbeats."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandlog.broker.timers import Timer, Timers


def note(heard: list[str], word: str) -> Callable[[], None]:
    return lambda: heard.append(word)


def test_due_timers_fire_in_order_of_deadline_then_of_creation() -> None:
    timers, heard = Timers(), list[str]()
    timers.schedule(20, note(heard, "c"))
    timers.schedule(10, note(heard, "a"))
    timers.schedule(10, note(heard, "b"))
    timers.schedule(30, note(heard, "d"))
    assert timers.next_deadline_ms() == 10
    assert timers.run_due(9) == 0
    assert timers.run_due(20) == 3
    assert heard == ["a", "b", "c"]
    assert timers.next_deadline_ms() == 30
    timers.run_due(1000)
    assert timers.next_deadline_ms() is None


def test_a_cancelled_timer_never_fires() -> None:
    timers, heard = Timers(), list[str]()
    timer = timers.schedule(10, note(heard, "x"))
    timer.cancel()
    timer.cancel()
    assert not timer.is_waiting
    assert timers.next_deadline_ms() is None
    assert timers.run_due(10) == 0


def test_a_timer_moves_to_later_and_to_earlier() -> None:
    timers, heard = Timers(), list[str]()
    timer = timers.schedule(10, note(heard, "x"))
    timer.reschedule(30)
    assert timers.run_due(10) == 0
    assert timers.next_deadline_ms() == 30
    timer.reschedule(20)
    assert timers.next_deadline_ms() == 20
    assert timers.run_due(20) == 1
    assert timers.run_due(30) == 0
    timer.reschedule(40)
    assert timers.run_due(40) == 1
    assert heard == ["x", "x"]


def test_a_callback_may_cancel_or_move_a_timer_that_is_due_as_well() -> None:
    timers, heard = Timers(), list[str]()
    victims: list[Timer] = []

    def interfere() -> None:
        victims[0].cancel()
        victims[1].reschedule(50)

    timers.schedule(1, interfere)
    victims += [timers.schedule(2, note(heard, "x")), timers.schedule(3, note(heard, "y"))]
    assert timers.run_due(10) == 1
    assert timers.next_deadline_ms() == 50
    assert timers.run_due(50) == 1
    assert heard == ["y"]


def test_a_timer_set_for_now_by_a_callback_waits_for_the_next_run() -> None:
    timers, heard = Timers(), list[str]()

    def again() -> None:
        timers.schedule(1, note(heard, "again"))

    timers.schedule(1, again)
    assert timers.run_due(1) == 1
    assert heard == []
    assert timers.next_deadline_ms() == 1
    assert timers.run_due(1) == 1
    assert heard == ["again"]


def test_a_failing_callback_does_not_lose_the_others() -> None:
    timers, heard = Timers(), list[str]()

    def fail() -> None:
        raise KeyError("x")

    timers.schedule(1, fail)
    timers.schedule(2, note(heard, "y"))
    with pytest.raises(KeyError):
        timers.run_due(5)
    assert timers.run_due(5) == 1
    assert heard == ["y"]


def test_heartbeats_do_not_make_the_heap_grow() -> None:
    timers = Timers()
    timer = timers.schedule(10, lambda: None)
    for now in range(10_000):
        timer.reschedule(now + 10)
    for now in range(10_000):
        timers.schedule(now, lambda: None).cancel()
    assert len(timers._heap) < 200
    assert timers.next_deadline_ms() == 10_009


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["schedule", "cancel", "move", "run"]),
            st.integers(0, 9),
            st.integers(0, 30),
        ),
        max_size=60,
    )
)
def test_timers_behave_as_a_plain_table_of_deadlines(steps: list[tuple[str, int, int]]) -> None:
    timers, fired = Timers(), list[int]()
    made: list[Timer] = []
    table: dict[int, int] = {}
    now = 0
    for step, index, amount in steps:
        match step:
            case "schedule":
                number = len(made)
                made.append(timers.schedule(now + amount, partial(fired.append, number)))
                table[number] = now + amount
            case "cancel" if made:
                made[index % len(made)].cancel()
                table.pop(index % len(made), None)
            case "move" if made:
                made[index % len(made)].reschedule(now + amount)
                table[index % len(made)] = now + amount
            case "run":
                now += amount
                expected = {n for n, deadline in table.items() if deadline <= now}
                fired.clear()
                timers.run_due(now)
                assert set(fired) == expected
                assert [table[n] for n in fired] == sorted(table[n] for n in fired)
                table = {n: deadline for n, deadline in table.items() if n not in expected}
        assert timers.next_deadline_ms() == min(table.values(), default=None)
