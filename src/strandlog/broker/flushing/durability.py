"""Group commit: decides which partitions to fsync next, and completes the requests that wait.

    appended ──▶ dirty ──take_flushes()──▶ busy ──flush_done()──▶ clean (dirty again if more was
                   │                         │                    appended since)
                   │                         └──flush_dropped()──▶ dirty
                   └─ urgent, as soon as a request waits

A partition is due for a flush as soon as a request waits for it, for example an acks=all produce
request, a request that must see earlier writes (see visibility.py), or a delayed fetch. It is also
due once the broker has written table records or a marker to it (`written`), or once it has
`flush.messages` unflushed records. Otherwise it is due `flush.ms` after its first unflushed append;
an earlier fsync would only delay later writes, because the file system blocks them while it
commits.

`take_flushes` returns jobs for the partitions that are due. Any thread may execute them;
`flush_done` runs in the broker's thread, advances the high watermark and completes the waiting
requests. A failed fsync fails all requests that wait for the partition, and the partition is not
flushed again until maintenance has repaired it. `next_due_ms` returns the time at which the next
flush is due. If the runtime does not execute flushes, `when_durable` flushes the partition itself,
unless it is busy. After such a flush, or one by a thread of the embedded library, the partition
stays marked dirty until its scheduled flush, which may then find nothing to do or flush later
records early.

In the embedded library an interrupt (Ctrl-C) may occur between any two lines. A job is therefore
added to the caller's list before its partition is marked busy, the partition stays dirty until
then, and `flush_done` and `flush_dropped` may be called twice. A partition whose own state may be
inconsistent is reopened.

A busy partition has an fsync in flight, or a maintenance task is changing its segments (`hold`,
`release`). It never has two fsyncs in flight: after one fails, the kernel marks the pages clean,
and the other would report success for lost bytes.

One request can write to thousands of partitions. So `take_flushes` returns at most `MAX_JOBS` jobs.
Partitions that a small request (`is_bulk` is False) waits for come first, and so do partitions that
requests still wait for after a flush, but some jobs are reserved for the others. This way a
producer does not have to wait until all partitions of another producer's large request are on disk.

With `log.durability=page_cache` only `flush_all` waits for fsyncs, and readers see records
immediately. `flush.ms` and `flush.messages` still apply.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

from strandlog.broker.deferred import Deferred
from strandlog.broker.reads.fetch import DelayedFetches
from strandlog.broker.runtime import FlushJob, Runtime
from strandlog.clock import Clock
from strandlog.config.setting import MAX_LONG
from strandlog.config.tables.broker import BrokerSettings
from strandlog.errors import StorageError
from strandlog.storage.partition.log import PartitionLog

OnDurable = Callable[[StorageError | None], None]

DUE_NOW_MS = 0
MAX_JOBS = 64  # maximum number of jobs per group commit
RESERVED_JOBS = 16  # jobs per group commit that are reserved for partitions that are not urgent
BULK_PARTITIONS = 16  # a request that waits for more partitions than this is a bulk request
NEVER_MS = 2**62  # a flush that would be due at this time or later is not scheduled
_new_tuple = tuple.__new__  # three times as fast as the named tuple's own constructor


class Durability:
    """Schedules the flushes of one broker."""

    def __init__(
        self,
        clock: Clock,
        settings: BrokerSettings,
        delayed_fetches: DelayedFetches,
        runtime: Runtime,
        reopen: Callable[[PartitionLog], None],
    ) -> None:
        """Create the scheduler; `reopen` is called for a partition whose change was interrupted."""
        self.waits_for_fsync = settings.waits_for_fsync
        self.busy: set[PartitionLog] = set()
        self._clock = clock
        self._fetches = delayed_fetches
        self._runtime = runtime
        self._reopen = reopen
        # When each dirty partition is due for a flush if no request waits for it.
        self._dirty: dict[PartitionLog, int] = {}
        self._due: list[tuple[int, int, PartitionLog]] = []  # heap; may hold stale entries
        self._entries = 0
        # Dirty partitions to flush first: a small request waits for them, or requests still wait
        # for them after a flush.
        self._urgent: dict[PartitionLog, None] = {}
        # Dirty partitions to flush now for any other reason.
        self._bulk: dict[PartitionLog, None] = {}
        self._waiting: dict[PartitionLog, list[tuple[int, OnDurable]]] = {}

    # -- scheduling ------------------------------------------------------------------------------

    def is_due(self) -> bool:
        """Return whether the flush of a partition that is not busy is due now."""
        due_ms = self.next_due_ms()
        return due_ms is not None and due_ms <= self._clock.monotonic_ms()

    def next_due_ms(self) -> int | None:
        """Return when the next flush is due, on the monotonic clock; this may be in the past.
        Return None if no partition that is not busy has a scheduled flush."""
        if not (self._urgent.keys() <= self.busy and self._bulk.keys() <= self.busy):
            return DUE_NOW_MS
        due = self._due
        while due and self._dirty.get(due[0][2]) != due[0][0]:
            heapq.heappop(due)  # stale: the partition was flushed or rescheduled
        if not due:
            return None
        if due[0][2] not in self.busy:
            return due[0][0]
        return min((at for log, at in self._dirty.items() if log not in self.busy), default=None)

    def appended(self, log: PartitionLog) -> None:
        """Schedule a flush after records have been appended."""
        settings = log.settings
        if log not in self._dirty:
            self._note_dirty(log, self._clock.monotonic_ms() + settings.flush_ms)
            self._runtime.wake()
        if not self.waits_for_fsync:
            self._fetches.high_watermark_moved(log)
        elif self._fetches.is_awaited(log):
            self._make_bulk(log)
        if settings.flush_messages < MAX_LONG and log.unflushed_count >= settings.flush_messages:
            self._make_bulk(log)

    def settings_changed(self) -> None:
        """Bring flushes forward if `flush.ms` or `flush.messages` has been lowered."""
        now_ms = self._clock.monotonic_ms()
        for log, due_ms in list(self._dirty.items()):
            if now_ms + log.settings.flush_ms < due_ms:
                self._note_dirty(log, now_ms + log.settings.flush_ms)
            if log.unflushed_count >= log.settings.flush_messages:
                self._make_bulk(log)
        self._runtime.wake()

    def written(self, log: PartitionLog) -> None:
        """Schedule a flush after the broker has written table records or a marker. If requests wait
        for fsyncs, the flush is due immediately; and if the runtime does not execute flushes, flush
        here, unless the partition is busy, and raise `StorageError` if that fails."""
        self.appended(log)
        if not self.waits_for_fsync:
            return
        self._make_bulk(log)
        if not self._runtime.executes_flushes and log not in self.busy:
            self._flush_here(log)
            if log.failure is not None:
                raise StorageError(str(log.failure))

    def _note_dirty(self, log: PartitionLog, due_ms: int) -> None:
        if due_ms < NEVER_MS:
            self._entries += 1
            heapq.heappush(self._due, (due_ms, self._entries, log))
            if len(self._due) > 2 * len(self._dirty) + MAX_JOBS:
                self._drop_stale_entries()
        # Set last: an interrupt may leave a stale heap entry behind, but must not leave a dirty
        # partition without its entry.
        self._dirty[log] = due_ms

    def _rebuild_heap(self) -> None:
        """Restore heap entries that an interrupted search for due partitions has removed."""
        self._due = []
        for log, due_ms in list(self._dirty.items()):
            self._note_dirty(log, due_ms)

    def _drop_stale_entries(self) -> None:
        self._due = [entry for entry in self._due if self._dirty.get(entry[2]) == entry[0]]
        heapq.heapify(self._due)

    def _make_bulk(self, log: PartitionLog) -> None:
        if log not in self._urgent and log not in self._bulk:
            self._bulk[log] = None
            self._runtime.wake()

    # -- waiting ---------------------------------------------------------------------------------

    def when_durable(
        self, log: PartitionLog, end_offset: int, on_durable: OnDurable, *, is_bulk: bool = False
    ) -> None:
        """Call `on_durable` once everything below `end_offset` is as durable as acks=all promises,
        or with an error if the disk fails or the partition is deleted. `is_bulk` marks a request
        that waits for many partitions.
        """
        if not self.waits_for_fsync or log.flushed_offset >= end_offset:
            on_durable(None)
            return
        self._wait_for_flush(log, end_offset, on_durable, is_bulk=is_bulk)

    def flush_all(self, logs: Iterable[PartitionLog]) -> Deferred[None]:
        """Flush everything that has been appended to these partitions, even with `page_cache`. The
        result completes when all of it is on disk. If some of it cannot be flushed, for example
        because its partition waits for a repair after a failed fsync, the result fails with the
        first error, once everything else is on disk."""
        result: Deferred[None] = Deferred()
        unflushed = [log for log in logs if log.unflushed_count]
        left, failure = len(unflushed) + 1, None

        def one_done(error: StorageError | None) -> None:
            nonlocal left, failure
            left, failure = left - 1, failure or error
            if left:
                return
            if failure is None:
                result.complete(None)
            else:
                result.fail(failure)

        for log in unflushed:
            self._wait_for_flush(log, log.log_end_offset, one_done, is_bulk=True)
        one_done(None)
        return result

    def _wait_for_flush(
        self, log: PartitionLog, end_offset: int, on_durable: OnDurable, *, is_bulk: bool
    ) -> None:
        self._waiting.setdefault(log, []).append((end_offset, on_durable))
        self._make_urgent(log, is_bulk=is_bulk)
        if not self._runtime.executes_flushes and log not in self.busy:
            self._flush_here(log)

    def _make_urgent(self, log: PartitionLog, *, is_bulk: bool) -> None:
        if log not in self._dirty:
            self._note_dirty(log, self._clock.monotonic_ms() + log.settings.flush_ms)
        if is_bulk:
            self._make_bulk(log)
        elif log not in self._urgent:
            self._urgent[log] = None
            self._bulk.pop(log, None)
            self._runtime.wake()

    def unflushed(self) -> set[PartitionLog]:
        """Return the partitions that are dirty or busy, so they may have records that are not on
        disk yet. Partitions that wait for a repair after a failed fsync may be missing."""
        return self.busy.union(self._dirty)

    @property
    def has_waiting(self) -> bool:
        """Whether a request waits for the disk."""
        return bool(self._waiting)

    # -- flushing --------------------------------------------------------------------------------

    def take_flushes(self, max_partitions: int | None = None) -> list[FlushJob]:
        """Return flush jobs for partitions that are due and not busy: at most `MAX_JOBS`, and at
        most `max_partitions`."""
        jobs: list[FlushJob] = []
        for log in self._due_logs()[:max_partitions]:
            self.begin_flush(log, jobs)
            self._dirty.pop(log, None)
        return jobs

    def begin_flush(self, log: PartitionLog, taken: list[FlushJob]) -> None:
        """Add a job for a partition that is not busy to `taken`, unless it needs no flush. The
        caller executes the job and calls `flush_done` or `flush_dropped`.

        A partition with a job stays dirty: removing it here and scheduling it again at the next
        append would add to the cost of every record that a thread sends with acks=all.
        """
        try:
            plan = log.flush_plan()
        except BaseException:
            self._reopen(log)
            raise
        if plan is None:
            self._clean(log)
            self._complete(log, log.failure)
            return
        taken.append(_new_tuple(FlushJob, (log, plan)))
        self.busy.add(log)
        self._urgent.pop(log, None)
        self._bulk.pop(log, None)

    def _due_logs(self) -> list[PartitionLog]:
        now_ms = self._clock.monotonic_ms()
        urgent = [log for log in self._urgent if log not in self.busy]
        others: dict[PartitionLog, None] = {}
        for log in self._bulk:
            if len(others) == MAX_JOBS:
                break
            if log not in self.busy:
                others[log] = None
        self._add_overdue(others, now_ms)
        room = max(MAX_JOBS - len(others), MAX_JOBS - RESERVED_JOBS)
        due = urgent[:room]
        return due + list(others)[: MAX_JOBS - len(due)]

    def _add_overdue(self, others: dict[PartitionLog, None], now_ms: int) -> None:
        """Add partitions whose flush.ms has elapsed, until there are `MAX_JOBS`. Their heap entries
        are kept."""
        kept = []
        while self._due and self._due[0][0] <= now_ms and len(others) < MAX_JOBS:
            entry = heapq.heappop(self._due)
            due_ms, _, log = entry
            if self._dirty.get(log) != due_ms:
                continue
            kept.append(entry)
            if log not in self.busy and log not in self._urgent:
                others[log] = None
        for entry in kept:
            heapq.heappush(self._due, entry)

    def _clean(self, log: PartitionLog) -> None:
        self._dirty.pop(log, None)
        self._urgent.pop(log, None)
        self._bulk.pop(log, None)

    def flush_done(self, job: FlushJob, error: StorageError | None) -> None:
        """Process the outcome of a job: `error` is None if the flush succeeded."""
        log = job.log
        try:
            if error is None:
                log.flush_completed(job.plan)
            else:
                log.flush_failed(job.plan, error)
        except BaseException:
            self._reopen(log)
            raise
        self.busy.discard(log)
        if error is None:
            self._fetches.high_watermark_moved(log)
        if log in self._waiting:
            self._complete(log, error)
            self._flush_rest(log)

    def flush_dropped(self, job: FlushJob) -> None:
        """Reschedule the flush of a job that was not executed."""
        self.busy.discard(job.log)
        self._flush_rest(job.log)
        if job.log not in self._dirty:
            self._note_dirty(job.log, self._clock.monotonic_ms())

    def _flush_rest(self, log: PartitionLog) -> None:
        if log in self._waiting:
            self._make_urgent(log, is_bulk=False)

    def flush_due(self) -> list[StorageError]:
        """Execute due flushes, at most `MAX_JOBS`, in this thread, for a runtime that does not
        execute flushes. Return the errors."""
        try:
            due = self._due_logs()
        except BaseException:
            self._rebuild_heap()
            raise
        errors = []
        for log in due:
            error = self._flush_here(log)
            self._dirty.pop(log, None)
            if error is not None:
                errors.append(error)
        return errors

    def try_flush(self, log: PartitionLog) -> None:
        """Flush a partition in this thread, unless it is busy, so that a reader sees all of its
        records.

        After a failed fsync, only maintenance may flush the partition again, because maintenance
        rewrites the tail first. Errors are not raised: the records stay invisible, and the writer
        gets the error.
        """
        if log.failure is None and log not in self.busy:
            self._flush_here(log)

    def _flush_here(self, log: PartitionLog) -> StorageError | None:
        """Flush a partition that is not busy, in this thread; return the disk error, if any."""
        taken: list[FlushJob] = []
        failure: StorageError | None = None
        try:
            self.begin_flush(log, taken)
            for job in taken:
                failure = _execute(job)
                self.flush_done(job, failure)
        except BaseException:
            for job in taken:
                if failure is None:
                    self.flush_dropped(job)
                else:  # record the failed fsync: the next one would wrongly succeed
                    self.flush_done(job, failure)
            raise
        return failure

    # -- busy partitions -------------------------------------------------------------------------

    def is_busy(self, log: PartitionLog) -> bool:
        """Return whether an fsync of the partition is in flight, or a maintenance task is changing
        its segments."""
        return log in self.busy

    def hold(self, log: PartitionLog) -> None:
        """Block flushes of the partition while a maintenance task changes its segments."""
        self.busy.add(log)

    def release(self, log: PartitionLog) -> None:
        """Allow flushes again, after a maintenance task has finished.

        Complete the requests whose records are now durable; if the partition has failed, fail all
        requests that wait for it.
        """
        self.busy.discard(log)
        if log.failure is not None:
            self._complete(log, log.failure)
            return
        self._fetches.high_watermark_moved(log)
        self._complete(log, None)
        self._flush_rest(log)
        if log in self._dirty:
            self._runtime.wake()

    # -- completing ------------------------------------------------------------------------------

    def _complete(self, log: PartitionLog, error: StorageError | None) -> None:
        kept = []
        for end_offset, on_durable in self._waiting.pop(log, ()):
            if error is not None or log.flushed_offset >= end_offset:
                on_durable(error)
            else:
                kept.append((end_offset, on_durable))
        if kept:
            self._waiting[log] = kept + self._waiting.get(log, [])

    def deleted(self, logs: Iterable[PartitionLog]) -> None:
        """Forget deleted partitions, and fail the requests that wait for them."""
        for log in logs:
            self._clean(log)
            self._complete(log, StorageError(f"{log.tp} was deleted before it was flushed"))
        self._drop_stale_entries()  # stale entries would keep the logs in memory


def _execute(job: FlushJob) -> StorageError | None:
    """Execute a flush; return the disk error, if any."""
    try:
        job.plan.execute()
    except StorageError as error:
        return error
    return None
