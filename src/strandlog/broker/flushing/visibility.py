"""Delays requests that read the end of a partition until a flush has made all appends visible.

Readers only see durable records, and a partition that no request waits for may be flushed only
`flush.ms` after an append. A client that sends a record with acks=1 and then asks for the end
offset would therefore miss that record. So a request that reads the end (for example ListOffsets,
Fetch, DeleteRecords, or one for the lag of a group) triggers a flush and is answered after it:

    high watermark == log end offset     nothing to wait for: answered immediately
    high watermark <  log end offset     answered when everything that was appended before the
                                         request is durable, whatever is appended later
    the last fsync failed                answered immediately, from the durable records

The wait is bounded (`visibility.max.wait.ms`). If the disk takes longer or fails, or the partition
is deleted, the request continues with the records that are durable. That is still correct, because
the records after them may never become durable. Requests that wait for the same end offset of the
same partition share one callback, and a partition has at most one fsync in flight, so any number of
concurrent requests costs at most two fsyncs per partition that they read.

In the embedded library an interrupt (Ctrl-C) may occur between any two lines. The interrupted
request is withdrawn, so that it neither runs later nor blocks the next one.

With `log.durability=page_cache` readers see all appended records, and no request waits here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from strandlog.broker.flushing.durability import BULK_PARTITIONS, Durability
from strandlog.broker.reads.fetch import has_more_to_show
from strandlog.broker.timers import Timer, Timers
from strandlog.clock import Clock
from strandlog.storage.partition.log import PartitionLog

End = tuple[PartitionLog, int]


class _Request:
    """A request that waits until some partitions are visible up to given end offsets."""

    __slots__ = ("_ends", "_then", "_timer")

    def __init__(self, ends: set[End], then: Callable[[], None]) -> None:
        self._ends = ends
        self._then: Callable[[], None] | None = then
        self._timer: Timer | None = None

    def set_timer(self, timer: Timer) -> None:
        self._timer = timer

    def end_visible(self, end: End) -> None:
        """Stop waiting for an end offset that has become visible or never will."""
        self._ends.discard(end)
        if not self._ends:
            self.finish()

    def cancel(self) -> None:
        """Drop the request without answering it."""
        self._then = None
        self.finish()

    def finish(self) -> set[End]:
        """Answer the request, unless that has been done or it was cancelled; return the end offsets
        that it was still waiting for."""
        then, self._then = self._then, None
        left, self._ends = self._ends, set()
        if self._timer is not None:
            self._timer.cancel()
        if then is not None:
            then()
        return left


class Visibility:
    """The requests of one broker that wait until earlier appends are visible."""

    def __init__(
        self, durability: Durability, timers: Timers, clock: Clock, max_wait_ms: int
    ) -> None:
        self._durability = durability
        self._timers = timers
        self._clock = clock
        self._max_wait_ms = max_wait_ms
        self._waiting: dict[End, dict[_Request, None]] = {}

    def when_visible(self, logs: Iterable[PartitionLog], then: Callable[[], None]) -> bool:
        """Call `then` once readers can see everything that has been appended to these partitions,
        or when the disk fails or takes too long, or a partition is deleted.

        Return True if there was nothing to wait for and `then` has been called.
        """
        ends = {(log, log.log_end_offset) for log in logs if has_more_to_show(log)}
        if not ends:
            then()
            return True
        request = _Request(set(ends), then)
        try:
            self._register(request, ends)
        except BaseException:
            self._withdraw(request, ends)
            raise
        return False

    def _register(self, request: _Request, ends: set[End]) -> None:
        deadline_ms = self._clock.monotonic_ms() + self._max_wait_ms
        request.set_timer(self._timers.schedule(deadline_ms, lambda: self._give_up(request)))
        for end in ends:
            if end in self._waiting:
                self._waiting[end][request] = None
            else:
                self._waiting[end] = {request: None}
                self._wait_for(end, is_bulk=len(ends) > BULK_PARTITIONS)

    def _withdraw(self, request: _Request, ends: set[End]) -> None:
        """Remove a request whose caller was interrupted, so that it is never executed.

        An end offset that no other request waits for is removed too: its flush may not have been
        started, and the next request that waits for it has to start one.
        """
        request.cancel()
        for end in ends:
            requests = self._waiting.get(end, {})
            requests.pop(request, None)
            if not requests:
                self._waiting.pop(end, None)

    def _wait_for(self, end: End, *, is_bulk: bool) -> None:
        # The error is ignored: the request is then answered from the durable records.
        self._durability.when_durable(*end, lambda _error: self._end_visible(end), is_bulk=is_bulk)

    def _end_visible(self, end: End) -> None:
        for request in self._waiting.pop(end, ()):
            request.end_visible(end)

    def _give_up(self, request: _Request) -> None:
        """Answer a request that timed out; callbacks stay registered until the flush is done."""
        for end in request.finish():
            if end in self._waiting:
                self._waiting[end].pop(request, None)
