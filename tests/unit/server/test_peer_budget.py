"""Memory that calls share while they wait for their peers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.support.virtual_time import VirtualTimeLoop, virtual_time

from strandlog.server import peer_budget
from strandlog.server.peer_budget import PeerBudget, PeerTooSlowError

PATIENCE_S = 10.0


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualTimeLoop]:
    with virtual_time() as opened:
        monkeypatch.setattr(peer_budget, "stopwatch", opened.time)
        yield opened


async def hold_until(budget: PeerBudget, size: int, peer: asyncio.Event) -> None:
    """A call that waits for its peer."""
    hold = await budget.acquire(size)
    try:
        with hold.waiting_for_peer():
            await peer.wait()
    finally:
        hold.release()


def test_calls_that_fit_hold_their_share_at_the_same_time(loop: VirtualTimeLoop) -> None:
    async def run() -> None:
        budget = PeerBudget(100, PATIENCE_S)
        holds = [await budget.acquire(50), await budget.acquire(50)]
        assert budget.held_bytes == 100
        for hold in holds:
            hold.release()
            hold.release()
        assert budget.held_bytes == 0

    loop.run_until_complete(run())


def test_the_longest_silent_peer_makes_room_for_a_call_that_waits(loop: VirtualTimeLoop) -> None:
    async def run() -> None:
        budget = PeerBudget(100, PATIENCE_S)
        never = asyncio.Event()
        silent = asyncio.create_task(hold_until(budget, 60, never))
        await asyncio.sleep(0)
        later = asyncio.create_task(hold_until(budget, 40, never))
        await asyncio.sleep(0)
        hold = await budget.acquire(50)
        with pytest.raises(PeerTooSlowError):
            await silent
        assert not later.done(), "one was enough"
        assert budget.evicted == 1
        assert budget.held_bytes == 90
        hold.release()
        later.cancel()
        await asyncio.gather(later, return_exceptions=True)
        assert budget.held_bytes == 0

    loop.run_until_complete(run())


def test_a_small_call_does_not_wait_behind_a_large_one_that_was_cancelled(
    loop: VirtualTimeLoop,
) -> None:
    async def run() -> None:
        budget = PeerBudget(100, PATIENCE_S)
        hold = await budget.acquire(90)
        large = asyncio.create_task(budget.acquire(50))
        small = asyncio.create_task(budget.acquire(5))
        await asyncio.sleep(0)
        large.cancel()
        await asyncio.wait([small], timeout=1)
        assert small.done()
        assert budget.held_bytes == 95
        hold.release()
        small.result().release()
        assert budget.held_bytes == 0

    loop.run_until_complete(run())


def test_a_silent_peer_stays_while_no_call_needs_its_share(loop: VirtualTimeLoop) -> None:
    async def run() -> None:
        budget = PeerBudget(100, PATIENCE_S)
        peer = asyncio.Event()
        silent = asyncio.create_task(hold_until(budget, 100, peer))
        await loop.elapse(5 * PATIENCE_S)
        peer.set()
        await silent

    loop.run_until_complete(run())


def test_a_call_that_works_is_not_cancelled_however_long_it_takes(loop: VirtualTimeLoop) -> None:
    async def run() -> None:
        budget = PeerBudget(100, PATIENCE_S)
        working = await budget.acquire(100)
        waiting = asyncio.create_task(budget.acquire(1))
        await loop.elapse(5 * PATIENCE_S)
        assert not waiting.done()
        working.release()
        (await waiting).release()
        assert budget.evicted == 0

    loop.run_until_complete(run())


def test_a_call_larger_than_the_budget_runs_alone(loop: VirtualTimeLoop) -> None:
    async def run() -> None:
        budget = PeerBudget(100, PATIENCE_S)
        large = await budget.acquire(1000)
        waiting = asyncio.create_task(budget.acquire(1))
        await asyncio.sleep(0)
        assert not waiting.done()
        large.release()
        (await waiting).release()

    loop.run_until_complete(run())


def test_calls_that_give_up_waiting_leave_no_trace(loop: VirtualTimeLoop) -> None:
    async def run() -> None:
        budget = PeerBudget(100, PATIENCE_S)
        hold = await budget.acquire(100)
        waiting = [asyncio.create_task(budget.acquire(10)) for _ in range(5)]
        await asyncio.sleep(0)
        for task in waiting[:2]:
            task.cancel()
        hold.release()  # in the same turn as the cancellation
        await asyncio.gather(*waiting[:2], return_exceptions=True)
        for task in waiting[2:]:
            (await task).release()
        assert budget.held_bytes == 0

    loop.run_until_complete(run())


def test_a_call_whose_bytes_wait_for_a_busy_event_loop_is_not_taken_for_silent(
    loop: VirtualTimeLoop,
) -> None:
    async def run() -> None:
        budget = PeerBudget(100, PATIENCE_S)
        peer = asyncio.Event()
        honest = asyncio.create_task(hold_until(budget, 100, peer))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(budget.acquire(100))
        for _ in range(5):  # its bytes are there, but the loop has much else to do
            await asyncio.sleep(0)
            loop.call_soon(loop.block, 2 * PATIENCE_S)
        loop.call_later(PATIENCE_S, loop.call_soon, peer.set)
        await honest
        await waiting
        assert budget.evicted == 0

    loop.run_until_complete(run())
