"""A deferred result completes once and calls each callback once."""

from __future__ import annotations

import pytest

from strandlog.broker.deferred import CompletionQueue, Deferred, Procedure, gather, run
from strandlog.errors import StorageError


def test_a_value_is_available_after_completion() -> None:
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


def test_reading_an_open_result_is_an_error() -> None:
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


def test_a_completion_queue_completes_when_the_outermost_step_is_over() -> None:
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


def test_a_completion_queue_completes_even_if_the_step_fails() -> None:
    queue = CompletionQueue(lambda: None)
    pending: Deferred[int] = Deferred()
    with pytest.raises(KeyError), queue:
        queue.complete(pending, 1)
        raise KeyError("the caller hears this")
    assert pending.result() == 1


# -- procedures ----------------------------------------------------------------------------------


def test_a_procedure_waits_for_each_result_and_gets_its_value() -> None:
    first: Deferred[int] = Deferred()
    second: Deferred[int] = Deferred()

    def add() -> Procedure[int]:
        one = yield first
        other = yield second
        return int(one + other)

    reply = run(add())
    second.complete(2)
    assert not reply.is_done
    first.complete(1)
    assert reply.result() == 3


def test_a_procedure_gets_the_error_of_a_result_as_an_exception() -> None:
    waits: list[Deferred[None]] = [Deferred(), Deferred()]

    def retry() -> Procedure[str]:
        try:
            yield waits[0]
        except StorageError:
            yield waits[1]
        return "retried"

    reply = run(retry())
    waits[0].fail(StorageError("disk"))
    assert not reply.is_done
    waits[1].fail(StorageError("disk again"))
    with pytest.raises(StorageError, match="disk again"):
        reply.result()


def test_an_error_before_the_first_wait_is_raised_by_run() -> None:
    def refuse() -> Procedure[None]:
        if not waits:
            raise StorageError("nothing was started")
        yield waits[0]

    waits: list[Deferred[None]] = []
    with pytest.raises(StorageError, match="nothing was started"):
        run(refuse())


def test_a_procedure_may_fail_its_reply_and_continue() -> None:
    waits: list[Deferred[None]] = [Deferred(), Deferred()]
    reply: Deferred[str] = Deferred()
    steps: list[int] = []

    def persist() -> Procedure[str]:
        for number, wait in enumerate(waits):
            yield wait
            steps.append(number)
            reply.fail(StorageError("the caller need not wait"))
        return "done"

    run(persist(), reply)
    waits[0].complete(None)
    waits[1].complete(None)
    assert steps == [0, 1]
    assert isinstance(reply.error, StorageError)


def test_a_procedure_with_many_results_at_hand_does_not_recurse() -> None:
    def count() -> Procedure[int]:
        total = 0
        for _ in range(5_000):
            total += yield Deferred.done(1)
        return total

    assert run(count()).result() == 5_000


def test_gather_completes_after_the_last_result_whatever_its_outcome() -> None:
    waits: list[Deferred[int]] = [Deferred(), Deferred()]
    gathered = gather(waits)
    states = []
    waits[1].fail(StorageError("disk"))
    states.append(gathered.is_done)
    waits[0].complete(1)
    states.append(gathered.is_done)
    assert states == [False, True]
    assert gather([]).is_done
