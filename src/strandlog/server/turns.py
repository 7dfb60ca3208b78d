"""Schedules long-running work in the event loop, a few milliseconds per round.

Between two rounds, the loop serves its sockets and runs all short work. A request that takes a
second therefore delays a short one by at most one round, however many long requests there are.

    add(run)         call `run` once, after everything that was added before
    may_begin()      whether there is time left in this iteration of the event loop; hundreds of
                     connections with a little work each would delay the others as much as one long
                     request, so the remaining ones are queued
    share()          the time for a turn that calls several short functions: the length of a round
                     divided by the number of turns
    slices(work)     run a generator that yields wherever it may be interrupted (`yield_control`):
                     the first slice immediately, the rest in later rounds

Such a generator must not block: blocking steps belong in `ServerRuntime`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from functools import partial

from strandlog.clock import stopwatch

ROUND_SECONDS = 0.008
SLICE_SECONDS = 0.004


class Turns:
    """The queue for long-running work of one server."""

    def __init__(self) -> None:
        self._queue: deque[Callable[[], object]] = deque()
        self._is_scheduled = False
        self._is_in_pass = False
        self._pass_began = 0.0

    def may_begin(self) -> bool:
        """Return whether short work may start now instead of being queued."""
        if self._is_in_pass:
            return stopwatch() - self._pass_began < ROUND_SECONDS
        self._is_in_pass = True
        self._pass_began = stopwatch()
        asyncio.get_running_loop().call_soon(self._end_pass)
        return True

    def _end_pass(self) -> None:
        self._is_in_pass = False

    def add(self, run: Callable[[], object]) -> None:
        self._queue.append(run)
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._round)

    def share(self) -> float:
        """Return the seconds that each turn gets if this one and the queue share one round."""
        return ROUND_SECONDS / (len(self._queue) + 1)

    def _round(self) -> None:
        queue = self._queue
        began = stopwatch()
        try:
            for _ in range(len(queue)):
                queue.popleft()()
                if stopwatch() - began > ROUND_SECONDS:
                    break
        finally:
            self._is_scheduled = bool(queue)
            if queue:
                asyncio.get_running_loop().call_soon(self._round)

    def slices(self, steps: Generator[object, None, None]) -> bool:
        """Run one slice of a generator and queue the rest; return True if it has finished."""
        began = stopwatch()
        for _ in steps:
            if stopwatch() - began > SLICE_SECONDS:
                self.add(partial(self.slices, steps))
                return False
        return True
