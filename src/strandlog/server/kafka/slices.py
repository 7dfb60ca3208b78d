"""Work on the many items of one request in slices, so that other requests have their turn.

What is done for one item is small; a request may have thousands of them. After `SLICE_SECONDS` the
rest is left to a timer that is due at once: the event loop looks at all sockets before it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from strandlog.clock import stopwatch
from strandlog.server.core import ServerCore
from strandlog.server.kafka.request import Request

logger = logging.getLogger(__name__)

SLICE_SECONDS = 0.005
LOOK_EVERY = 16  # items between two looks at the clock

Item = TypeVar("Item")
Row = TypeVar("Row")


class Slices(Generic[Item, Row]):
    """The items of one request, on their way to rows of its reply."""

    def __init__(
        self,
        core: ServerCore,
        request: Request,
        work: Callable[[Item], Row],
        done: Callable[[list[Row]], None],
    ) -> None:
        self._core = core
        self._request = request
        self._work = work
        self._done = done
        self._rows: list[Row] = []

    def run(self, items: Iterable[Item]) -> None:
        """Do all of them, and `done` with the rows; at once when that is quick."""
        if self._slice(left := iter(items)):
            self._done(self._rows)
        else:
            self._later(left)

    def _later(self, left: Iterator[Item]) -> None:
        now_ms = self._core.clock.monotonic_ms()
        self._core.timers.schedule(now_ms, lambda: self._go_on(left))

    def _go_on(self, left: Iterator[Item]) -> None:
        try:
            if not self._request.connection.is_open:
                return
            if self._slice(left):
                self._done(self._rows)
            else:
                self._later(left)
        except Exception:
            host = self._request.connection.peer_host
            logger.exception("a request of %s went wrong; hanging up", host)
            self._request.slot.fail()

    def _slice(self, left: Iterator[Item]) -> bool:
        """Work for a moment; True when nothing is left."""
        end = stopwatch() + SLICE_SECONDS
        for number, item in enumerate(left, 1):
            self._rows.append(self._work(item))
            if not number % LOOK_EVERY and stopwatch() > end:
                return False
        return True
