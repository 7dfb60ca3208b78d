"""A result comes once, and everybody who asked hears of it once."""

from __future__ import annotations

import pytest

from strandlog.broker.deferred import CompletionQueue, Deferred


def test_a_value_is_there_after_completion() -> None:
    pending: Deferred[int] = Deferred(deadline_ms=5)
    states = [pending.is_done]
    assert pending.deadline_ms == 5
    assert pending.complete(1)
    assert [*states, pending.is_done] == [False, True]
    assert pending.result() == 1
    assert pending.error is None
    assert pending.deadline_ms is None


def test_an_error_is_raised_each_time() -> None:
    pending: Deferred[int] = Deferred()
    assert pending.fail(KeyError("x"))
    for _ in range(2):
        with pytest.raises(KeyError):
            pending.result()


def test_the_first_completion_counts() -> None:
    pending = Deferred.done(1)
    assert not pending.complete(2)
    assert not pending.fail(KeyError("late"))
    assert pending.result() == 1


def test_asking_too_early_is_a_mistake() -> None:
    with pytest.raises(AssertionError):
        Deferred[int]().result()


def test_callbacks_run_once_in_order_before_and_after() -> None:
    heard: list[str] = []
    pending: Deferred[int] = Deferred()
    pending.on_done(lambda done: heard.append(f"first {done.result()}"))
    pending.on_done(lambda done: heard.append(f"second {done.result()}"))
    pending.complete(7)
    pending.complete(8)
    pending.on_done(lambda done: heard.append(f"late {done.result()}"))
    assert heard == ["first 7", "second 7", "late 7"]


def test_a_completion_queue_answers_when_the_outermost_step_is_over() -> None:
    queue = CompletionQueue(lambda: None)
    first: Deferred[int] = Deferred()
    second: Deferred[int] = Deferred()
    with queue:
        with queue:
            queue.complete(first, 1)
            queue.fail(second, KeyError("x"))
        assert not first.is_done
    assert first.result() == 1
    assert isinstance(second.error, KeyError)


def test_a_callback_may_start_another_step() -> None:
    queue = CompletionQueue(lambda: None)
    first: Deferred[int] = Deferred()
    second: Deferred[int] = Deferred()

    def next_step(_: Deferred[int]) -> None:
        with queue:
            queue.complete(second, 2)

    first.on_done(next_step)
    with queue:
        queue.complete(first, 1)
    assert second.result() == 2


def test_a_completion_queue_answers_even_if_the_step_fails() -> None:
    queue = CompletionQueue(lambda: None)
    pending: Deferred[int] = Deferred()
    with pytest.raises(KeyError), queue:
        queue.complete(pending, 1)
        raise KeyError("the caller hears this")
    assert pending.result() == 1
