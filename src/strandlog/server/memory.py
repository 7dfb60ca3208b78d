"""Limits the total bytes of requests and responses that all connections hold.

    requests    incomplete frames, frames that wait to be handled, records that are being appended
    replies     responses that the client has not read; views of mapped log files do not count

Small frames do not count. Each of the two is a `ByteBudget` with a server-wide limit:

    requests    above the limit, the server stops reading from connections in the middle of a large
                frame, except the one whose frame lacks the fewest bytes (`favoured`), so that at
                least one can finish
    replies     a Fetch returns no more than the remaining budget, but at least one batch (`room`)
    both        above the limit, a connection is closed after the server has been waiting for its
                client to send or read data for `stall_ms`
    both        above `hard_limit`, the connections with the most bytes, weighted by how long they
                have stalled, are closed immediately until the total is within it

Memory is therefore bounded whatever the clients do, and every connection that keeps sending and
reading makes progress. The check runs every `CHECK_SECONDS`, only while a budget is over its limit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from strandlog.clock import Clock, stopwatch
from strandlog.config.tables.broker import BrokerSettings

logger = logging.getLogger(__name__)

CHECK_SECONDS = 0.1
QUIET_SECONDS = 1.0


class Holder(Protocol):
    """The interface of a connection that a budget uses."""

    peer_host: str

    def stalled_ms(self, now_ms: int) -> int:
        """Return how long the server has been waiting for the client to send or read data, or 0."""

    def missing_bytes(self) -> int:
        """Return the number of bytes that a large incomplete frame lacks, or 0."""

    def regulate(self) -> None:
        """Pause or resume reading, according to the budgets."""

    def abort(self) -> None:
        """Close the connection immediately and release its bytes."""


class DecodingGate:
    """Limits the bytes of large requests that are in progress concurrently.

    A decoded request takes up to a hundred times the memory of its encoded bytes. A request may
    always enter an empty gate; otherwise, it waits until there is room for it (`wait`). Requests
    enter in order: a request that would fit waits behind a larger one, which a stream of small
    requests could otherwise block forever.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: dict[Callable[[], None], None] = {}  # oldest first
        self._is_opening = False  # `_open` is scheduled
        self.total = 0

    def has_room(self, size: int) -> bool:
        """Return whether a request may enter. If not, it has to `wait`."""
        return not self._waiting and (not self.total or self.total + size <= self._limit)

    def enter(self, size: int) -> None:
        self.total += size

    def leave(self, size: int) -> None:
        """Stop counting a request, and let the waiting ones check whether there is room now."""
        self.total -= size
        if self._waiting and not self._is_opening:
            self._is_opening = True
            asyncio.get_running_loop().call_soon(self._open)

    def _open(self) -> None:
        self._is_opening = False
        waiting, self._waiting = self._waiting, {}
        for run in waiting:  # requests that do not fit wait again, in the same order
            run()

    def wait(self, run: Callable[[], None]) -> None:
        """Call `run` when there may be room. A request that already waits keeps its position."""
        self._waiting[run] = None


class ByteBudget:
    """The bytes that connections hold for one purpose."""

    def __init__(self, what: str, limit: int, hard_limit: int, stall_ms: int, clock: Clock) -> None:
        self._what = what
        self.limit = limit
        self._hard_limit = hard_limit
        self._stall_ms = stall_ms
        self._clock = clock
        self._held: dict[Holder, int] = {}
        self._check_handle: asyncio.TimerHandle | None = None
        self._quiet_until = 0.0
        self.total = 0
        self.closed = 0  # connections that were closed because of the bytes they held
        self.favoured: Holder | None = None

    @property
    def is_over(self) -> bool:
        return self.total > self.limit

    def room(self) -> int:
        """Return the number of bytes left below the limit."""
        return max(0, self.limit - self.total)

    def must_wait(self, holder: Holder) -> bool:
        """Return whether a connection in the middle of a frame has to wait."""
        return self.total > self.limit and holder is not self.favoured

    def hold(self, holder: Holder, count: int) -> None:
        """Record how many bytes a connection currently holds."""
        before = self._held.get(holder, 0)
        if count:
            self._held[holder] = count
        elif before:
            del self._held[holder]
        self.total += count - before
        if self.total > self.limit:
            if count > before and self.total > self._hard_limit:
                self._shed()
            if self._check_handle is None:
                self._check_soon()
        elif self._check_handle is not None and count < before:
            self._relax()

    def _check_soon(self) -> None:
        loop = asyncio.get_running_loop()
        if self.favoured is None:
            self._favour()
        self._check_handle = loop.call_later(CHECK_SECONDS, self._check)

    def _check(self) -> None:
        self._check_handle = None
        now_ms = self._clock.monotonic_ms()
        for holder in [each for each in self._held if each.stalled_ms(now_ms) >= self._stall_ms]:
            if self.total > self.limit:
                self._close(holder)
        if self.total > self.limit:
            self._favour()
            self._check_soon()
        else:
            self._relax()

    def _favour(self) -> None:
        """Resume reading from the connection whose frame lacks the fewest bytes."""
        unfinished = [each for each in self._held if each.missing_bytes() > 0]
        self.favoured = min(unfinished, key=lambda each: each.missing_bytes(), default=None)
        if self.favoured is not None:
            self.favoured.regulate()

    def _relax(self) -> None:
        """Resume reading from all connections, now that the total is within the limit."""
        if self._check_handle is not None:
            self._check_handle.cancel()
            self._check_handle = None
        self.favoured = None
        for holder in list(self._held):
            holder.regulate()

    def _shed(self) -> None:
        """Close connections, the largest weight first, until the total is within the hard limit."""
        now_ms = self._clock.monotonic_ms()
        while self.total > self._hard_limit and self._held:
            self._close(max(self._held, key=lambda each: self._weight(each, now_ms)))

    def _weight(self, holder: Holder, now_ms: int) -> int:
        return self._held[holder] * (1 + holder.stalled_ms(now_ms))

    def _close(self, holder: Holder) -> None:
        count = self._held.pop(holder, 0)
        self.total -= count
        self.closed += 1
        if self.favoured is holder:
            self.favoured = None
        now = stopwatch()
        if now >= self._quiet_until:
            self._quiet_until = now + QUIET_SECONDS
            logger.warning(
                "closing the connection from %s: it holds %d bytes of %s; all connections "
                "hold %d bytes, and the limit is %d",
                holder.peer_host,
                count,
                self._what,
                self.total + count,
                self.limit,
            )
        holder.abort()


def request_budget(settings: BrokerSettings, clock: Clock) -> ByteBudget:
    """Create the budget for all requests."""
    queued = settings.queued_max_request_bytes
    # Above the limit, one connection may still finish its frame, however large.
    most = queued + settings.socket_request_max_bytes
    return ByteBudget("requests", queued, most, settings.queued_stall_timeout_ms, clock)


def response_budget(settings: BrokerSettings, clock: Clock) -> ByteBudget:
    """Create the budget for all responses."""
    queued = settings.queued_max_response_bytes
    return ByteBudget("replies", queued, 2 * queued, settings.queued_stall_timeout_ms, clock)
