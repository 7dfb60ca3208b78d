"""Shares the event loop: work that takes long gets a few milliseconds of it per round.

Between two rounds the loop serves its sockets and all quick work. So a request that takes a second
delays a quick one by at most one round, whatever the number of long requests.

    add(run)         call `run` once, after everything that was added before
    may_begin()      whether there is time left in this pass of the event loop; hundreds of
                     connections with a little work each would delay the others as much as one long
                     request, so the rest of them wait for their turn
    slices(work)     run a generator that yields wherever it may be interrupted (`yield_control`):
                     immediately for one slice, the rest in turns

Such a generator has no blocking steps: those belong into `ServerRuntime`.
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
    """The long work of one server."""

    def __init__(self) -> None:
        self._queue: deque[Callable[[], object]] = deque()
        self._is_scheduled = False
        self._is_in_pass = False
        self._pass_began = 0.0

    def may_begin(self) -> bool:
        """Whether quick work may begin now instead of in its turn."""
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
        """Run a generator; True if it is done already."""
        began = stopwatch()
        for _ in steps:
            if stopwatch() - began > SLICE_SECONDS:
                self.add(partial(self.slices, steps))
                return False
        return True
