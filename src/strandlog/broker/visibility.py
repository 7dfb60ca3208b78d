"""Requests that look at the end of partitions wait for the sync that shows them all of it.

Readers see what is durable, and a partition that no request waits for is synced up to 100 ms after
an append. A client that sends a record with acks=1 and asks for the end offset right afterwards
would not find it. So a request that looks (ListOffsets, Fetch, DeleteRecords, a lookup by time, the
lag of a group) makes the sync due at once and is answered after it:

    high watermark == log end offset     nothing to wait for: answered at once
    high watermark <  log end offset     answered when all that was written before the request came
                                         is durable; what comes later is not waited for

The wait is bounded (`visibility.max.wait.ms`). When the disk takes longer, or fails, or the
partition is deleted, the request is answered with what is durable: that is true, and the records
behind it may never become so. Requests that wait for the same end of the same partition share one
waiter, and `Durability` has at most one sync of a partition under way; so any number of requests
costs at most two syncs of each partition they look at.

With durability "page_cache" readers see what is written, and no request waits here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from strandlog.broker.durability import BULK_PARTITIONS, Durability
from strandlog.broker.fetch import has_more_to_show
from strandlog.broker.timers import Timer, Timers
from strandlog.clock import Clock
from strandlog.storage.partition.log import PartitionLog

End = tuple[PartitionLog, int]


class Look:
    """One request that waits for the ends of some partitions."""

    __slots__ = ("_ends", "_then", "_timer")

    def __init__(self, ends: set[End], then: Callable[[], None]) -> None:
        self._ends = ends
        self._then: Callable[[], None] | None = then
        self._timer: Timer | None = None

    def set_timer(self, timer: Timer) -> None:
        self._timer = timer

    def saw(self, end: End) -> None:
        """One of the ends became visible, or never will."""
        self._ends.discard(end)
        if not self._ends:
            self.finish()

    def finish(self) -> set[End]:
        """Answer the request, once; returns the ends that it waited for in vain."""
        then, self._then = self._then, None
        left, self._ends = self._ends, set()
        if self._timer is not None:
            self._timer.cancel()
        if then is not None:
            then()
        return left


class Visibility:
    """All requests of one broker that wait to see what was written before them."""

    def __init__(
        self, durability: Durability, timers: Timers, clock: Clock, max_wait_ms: int
    ) -> None:
        self._durability = durability
        self._timers = timers
        self._clock = clock
        self._max_wait_ms = max_wait_ms
        self._looks: dict[End, dict[Look, None]] = {}

    def when_visible(self, logs: Iterable[PartitionLog], then: Callable[[], None]) -> bool:
        """Call `then` when readers see all that is in these partitions now, or the wait is over.

        True when there was nothing to wait for and `then` was called already.
        """
        ends = {(log, log.log_end_offset) for log in logs if has_more_to_show(log)}
        if not ends:
            then()
            return True
        look = Look(set(ends), then)
        deadline_ms = self._clock.monotonic_ms() + self._max_wait_ms
        look.set_timer(self._timers.schedule(deadline_ms, lambda: self._give_up(look)))
        for end in ends:
            if end in self._looks:
                self._looks[end][look] = None
            else:
                self._looks[end] = {look: None}
                self._wait_for(end, is_bulk=len(ends) > BULK_PARTITIONS)
        return False

    def _wait_for(self, end: End, *, is_bulk: bool) -> None:
        # An error is no reason to refuse: what is durable is the answer then, too.
        self._durability.when_durable(*end, lambda _error: self._saw(end), is_bulk=is_bulk)

    def _saw(self, end: End) -> None:
        for look in self._looks.pop(end, ()):
            look.saw(end)

    def _give_up(self, look: Look) -> None:
        """The disk takes too long. The waiter of an end stays, for it is due with the sync."""
        for end in look.finish():
            if end in self._looks:
                self._looks[end].pop(look, None)
