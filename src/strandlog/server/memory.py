"""Limits the bytes of requests and responses that all connections hold together.

    requests    unfinished frames, frames that wait for their turn, records that are being appended
    replies     responses that the client has not read; views of mapped log files do not count

Each is a `ByteBudget` with a limit for the whole server. Below the limit nothing happens. Above it:

    requests    connections in the middle of a large frame are no longer read, except the one whose
                frame lacks the fewest bytes (`favoured`): so there is always one that can finish
    replies     a Fetch returns no more than what is left of the budget, or one batch (`room`)
    both        a connection that could send or read and did not for `stall_ms` is closed
    both        at `hard_limit` the connection that holds the most bytes for the longest time is
                closed at once, until the total is below it

So memory is bounded whatever the clients do, and every connection that keeps sending and reading
makes progress. The check runs every `CHECK_SECONDS`, only while a budget is over its limit.
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
    """A connection, as a budget sees it."""

    peer_host: str

    def stalled_ms(self, now_ms: int) -> int:
        """How long the client has sent and read nothing although it could; 0 while it cannot."""

    def missing_bytes(self) -> int:
        """How many bytes are missing in its unfinished frame."""

    def regulate(self) -> None:
        """Decide again whether to read."""

    def abort(self) -> None:
        """Close at once, and release its bytes."""


class DecodingGate:
    """Limits the bytes of large requests that are decoded, handled and answered at a time.

    Decoded, a request takes up to a hundred times as much memory as its bytes. One request may
    always enter; others wait until those before them are answered (`wait`).
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: dict[Callable[[], None], None] = {}
        self.total = 0

    def has_room(self, size: int) -> bool:
        return not self.total or self.total + size <= self._limit

    def enter(self, size: int) -> None:
        self.total += size

    def leave(self, size: int) -> None:
        """A request is answered, or no longer needs what was decoded."""
        self.total -= size
        waiting, self._waiting = self._waiting, {}
        for run in waiting:
            asyncio.get_running_loop().call_soon(run)

    def wait(self, run: Callable[[], None]) -> None:
        """Call `run` when there may be room."""
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
        self.closed = 0  # connections that were closed for the bytes they held
        self.favoured: Holder | None = None

    @property
    def is_over(self) -> bool:
        return self.total > self.limit

    def room(self) -> int:
        """What is left below the limit."""
        return max(0, self.limit - self.total)

    def must_wait(self, holder: Holder) -> bool:
        """Whether a connection in the middle of a frame has to wait."""
        return self.total > self.limit and holder is not self.favoured

    def hold(self, holder: Holder, count: int) -> None:
        """Note how many bytes a connection holds now."""
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
        """Let the connection read whose frame is nearest to its end."""
        unfinished = [each for each in self._held if each.missing_bytes() > 0]
        self.favoured = min(unfinished, key=lambda each: each.missing_bytes(), default=None)
        if self.favoured is not None:
            self.favoured.regulate()

    def _relax(self) -> None:
        """Below the limit again: all may read."""
        if self._check_handle is not None:
            self._check_handle.cancel()
            self._check_handle = None
        self.favoured = None
        for holder in list(self._held):
            holder.regulate()

    def _shed(self) -> None:
        """Close the connections with the most bytes until the total, new bytes included, is below
        the hard limit."""
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
                "%s closed: it holds %d bytes of %s and does not move, and %d bytes are held in "
                "total; the limit is %d",
                holder.peer_host,
                count,
                self._what,
                self.total + count,
                self.limit,
            )
        holder.abort()


def request_budget(settings: BrokerSettings, clock: Clock) -> ByteBudget:
    """The budget of all requests."""
    queued = settings.queued_max_request_bytes
    # Over the limit one connection may still finish its frame, however large.
    most = queued + settings.socket_request_max_bytes
    return ByteBudget("requests", queued, most, settings.queued_stall_timeout_ms, clock)


def response_budget(settings: BrokerSettings, clock: Clock) -> ByteBudget:
    """The budget of all responses."""
    queued = settings.queued_max_response_bytes
    return ByteBudget("replies", queued, 2 * queued, settings.queued_stall_timeout_ms, clock)
