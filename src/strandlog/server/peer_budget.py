"""A byte budget that calls share while they wait for their peers.

A call acquires its share before it reads from its peer or sends to it; calls that do not fit wait
in FIFO order. If its peer stops reading or sending, a call keeps its share until another needs it.
Once another call has waited for half of `patience_seconds`, the budget suspects calls whose peers
have been silent for at least that time: as many as the waiting calls need, starting with the peer
that has been silent the longest. If the peer is still silent after the same time has passed again,
the call is cancelled (`PeerTooSlowError`) and its share is released. Data from a peer may be
waiting for a busy event loop, so a check that runs late does not cancel calls.

    hold = await budget.acquire(size)      waits for room
    try:
        with hold.waiting_for_peer():      the call may be cancelled inside this block
            await ...
    finally:
        hold.release()

A call that needs more than the entire budget runs alone. All methods must be called in the event
loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator

from strandlog.clock import stopwatch


class PeerTooSlowError(Exception):
    """The peer neither read nor sent data while other calls needed the memory."""


class Hold:
    """The share of the budget that one call holds."""

    __slots__ = ("_budget", "_is_evicted", "_task", "silent_since", "size", "suspected_at")

    def __init__(self, budget: PeerBudget, size: int) -> None:
        self._budget = budget
        self._task: asyncio.Task[object] | None = None
        self._is_evicted = False
        self.silent_since: float | None = None  # stopwatch time, set while waiting for the peer
        self.suspected_at: float | None = None
        self.size = size

    @contextlib.contextmanager
    def waiting_for_peer(self) -> Iterator[None]:
        self._task = asyncio.current_task()
        self.silent_since = stopwatch()
        try:
            yield
        except asyncio.CancelledError:
            if self._is_evicted and self._task is not None:
                self._task.uncancel()
                raise PeerTooSlowError from None
            raise
        finally:
            self.silent_since = self.suspected_at = None

    def evict(self) -> None:
        """Cancel the wait for the peer, which then raises `PeerTooSlowError`."""
        assert self._task is not None, "the call is waiting for its peer"
        self._is_evicted = True
        self.silent_since = None
        self._task.cancel()

    def resize(self, size: int) -> None:
        """Change the number of bytes held, without waiting for room."""
        self._budget.change(size - self.size)
        self.size = size

    def release(self) -> None:
        """Release the share; idempotent."""
        self.resize(0)
        self._budget.forget(self)


class PeerBudget:
    """The byte budget that all calls of one kind share."""

    def __init__(self, total_bytes: int, patience_seconds: float) -> None:
        self._total = total_bytes
        # Time until a call is suspected, and again until it is cancelled.
        self._patience = patience_seconds / 2
        self._waiters: deque[tuple[int, float, asyncio.Future[None]]] = deque()
        self._holds: dict[Hold, None] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_due = 0.0
        self.held_bytes = 0
        self.evicted = 0

    async def acquire(self, size: int) -> Hold:
        """Wait for room, then hold `size` bytes."""
        if self._waiters or not self._has_room(size):
            await self._turn(size)
        else:
            self.held_bytes += size
        hold = Hold(self, size)
        self._holds[hold] = None
        return hold

    def _has_room(self, size: int) -> bool:
        return self.held_bytes + size <= self._total or not self.held_bytes

    async def _turn(self, size: int) -> None:
        """Wait in FIFO order until `size` bytes are reserved for this call."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = (size, stopwatch(), future)
        self._waiters.append(waiter)
        self._set_alarm()
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.change(-size)  # the bytes were reserved just before the cancellation
            else:
                with contextlib.suppress(ValueError):  # the waiter may be gone already
                    self._waiters.remove(waiter)
                self.change(0)  # the calls behind it may fit
            raise

    def change(self, by: int) -> None:
        """Adjust the total by the given number of bytes and admit waiting calls that now fit."""
        self.held_bytes += by
        while self._waiters and self._has_room(self._waiters[0][0]):
            size, _, future = self._waiters.popleft()
            if not future.done():
                self.held_bytes += size
                future.set_result(None)

    def forget(self, hold: Hold) -> None:
        self._holds.pop(hold, None)

    # -- evicting silent peers ---------------------------------------------------------------------

    def _set_alarm(self) -> None:
        if self._alarm is None and self._waiters:
            now = stopwatch()
            self._alarm_due = max(self._waiters[0][1] + self._patience, now + self._patience / 10)
            loop = asyncio.get_running_loop()
            self._alarm = loop.call_later(self._alarm_due - now, self._look)

    def _look(self) -> None:
        """Suspect or cancel as many silent calls as the waiting calls need."""
        self._alarm = None
        if not self._waiters:
            return
        now = stopwatch()
        is_late = now - self._alarm_due > self._patience / 4
        if now - self._waiters[0][1] >= self._patience:
            missing = self.held_bytes - self._total + sum(size for size, _, _ in self._waiters)
            for hold in self._silent(now):
                if missing <= 0:
                    break
                missing -= hold.size
                if hold.suspected_at is None or is_late:
                    hold.suspected_at = now
                elif now - hold.suspected_at >= self._patience:
                    self.evicted += 1
                    hold.evict()
        self._set_alarm()

    def _silent(self, now: float) -> list[Hold]:
        """Return the calls whose peers have been silent for too long, longest first."""
        found = [
            (hold.silent_since, number, hold)
            for number, hold in enumerate(self._holds)
            if hold.silent_since is not None and now - hold.silent_since >= self._patience
        ]
        return [hold for _, _, hold in sorted(found)]
