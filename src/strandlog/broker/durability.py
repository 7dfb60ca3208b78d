"""Who waits for which partition to be on disk, and what is to be synced when.

    appended ──▶ dirty ──take()──▶ syncing ──done()──▶ clean, or dirty again if more came meanwhile
                   │
                   └─ urgent, as soon as somebody waits

A producer waits for its acknowledgement, or a request for records that were written before it came
(`when_durable`; see visibility.py), or a parked reader for more (`is_awaited`). Such a partition is
due at once. Any other one is due `lazy_sync_ms` after its first unsynced append: a sync after each
request would help no client and would hold the next writes up, for a file system that commits lets
them wait.

The core decides, somebody else waits for the disk: `take` hands out plans for all partitions that
are due (group commit), any thread executes them, `done` brings the outcome back to the owner's
thread. `next_due_ms` says when `take` has something to hand out. A partition has at most one sync
under way: when one of two fails, the kernel calls the pages clean, and the other would vouch for
lost bytes.

After each successful sync `on_visible` is told that readers may see more, and everybody who waited
for an offset below the new end hears about it. A failed sync fails all who wait for that partition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from strandlog.clock import Clock
from strandlog.errors import StorageError
from strandlog.storage.flush_plan import FlushPlan
from strandlog.storage.partition_log import PartitionLog

Waiter = Callable[[StorageError | None], None]

LAZY_SYNC_MS = 100
AT_ONCE_MS = 0


class SyncJob(NamedTuple):
    """One partition's sync, to be executed anywhere."""

    log: PartitionLog
    plan: FlushPlan


class Durability:
    """The syncs of one broker. `syncing` is shared with the chores, which leave those alone."""

    def __init__(
        self,
        clock: Clock,
        syncing: set[PartitionLog],
        on_visible: Callable[[PartitionLog], None],
        lazy_sync_ms: int = LAZY_SYNC_MS,
    ) -> None:
        self._clock = clock
        self._syncing = syncing
        self._on_visible = on_visible
        self._lazy_sync_ms = lazy_sync_ms
        # By when each is to be synced. All wait equally long, so the first one is due first.
        self._dirty: dict[PartitionLog, int] = {}
        self._urgent: set[PartitionLog] = set()  # some of the dirty ones
        self._waiters: dict[PartitionLog, list[tuple[int, Waiter]]] = {}

    def is_due(self) -> bool:
        """Whether `take` has something to hand out now."""
        due_ms = self.next_due_ms()
        return due_ms is not None and due_ms <= self._clock.monotonic_ms()

    def next_due_ms(self) -> int | None:
        """When `take` has something to hand out, on the monotonic clock; None while nothing is
        dirty but what is being synced."""
        if self._urgent and not self._urgent <= self._syncing:
            return AT_ONCE_MS
        for log, due_ms in self._dirty.items():
            if log not in self._syncing:
                return due_ms
        return None

    def appended(self, log: PartitionLog, *, is_awaited: bool = False) -> None:
        """Something was written that is not on disk yet, and perhaps a reader waits for it."""
        if log not in self._dirty:
            self._dirty[log] = self._clock.monotonic_ms() + self._lazy_sync_ms
        if is_awaited:
            self._urgent.add(log)

    def when_durable(self, log: PartitionLog, end_offset: int, waiter: Waiter) -> None:
        """Call back once everything below `end_offset` is on disk, or will not be."""
        if log.flushed_offset >= end_offset:
            waiter(None)
        else:
            self._waiters.setdefault(log, []).append((end_offset, waiter))
            self.appended(log, is_awaited=True)

    def unsynced(self) -> set[PartitionLog]:
        """Every partition that may have records which are not on disk."""
        return self._syncing.union(self._dirty)

    def take(self) -> list[SyncJob]:
        """Plans for every partition that is due and not being synced already."""
        jobs = []
        for log in self._due():
            self._clean(log)
            if log.failure is not None:
                self._tell(log, log.failure)
                continue
            plan = log.flush_plan()
            if plan is not None:
                self._syncing.add(log)
                jobs.append(SyncJob(log, plan))
            else:
                self._tell(log, None)
        return jobs

    def _due(self) -> set[PartitionLog]:
        now_ms = self._clock.monotonic_ms()
        due = set(self._urgent)
        for log, due_ms in self._dirty.items():
            if due_ms > now_ms:
                break
            due.add(log)
        return due - self._syncing

    def _clean(self, log: PartitionLog) -> None:
        self._dirty.pop(log, None)
        self._urgent.discard(log)

    def done(self, job: SyncJob, error: StorageError | None) -> None:
        """A plan was executed, or could not be."""
        log = job.log
        self._syncing.discard(log)
        if error is None:
            log.flush_completed(job.plan)
            self._on_visible(log)
        else:
            log.flush_failed(job.plan, error)
        self._tell(log, error)
        if log in self._waiters:
            self.appended(log, is_awaited=True)

    def released(self, log: PartitionLog) -> None:
        """A chore synced the partition and lets go of it."""
        if log.failure is not None:
            self._tell(log, log.failure)
            return
        self._on_visible(log)
        self._tell(log, None)
        if log in self._waiters:
            self.appended(log, is_awaited=True)

    @property
    def has_waiters(self) -> bool:
        """Whether somebody waits for the disk."""
        return bool(self._waiters)

    def _tell(self, log: PartitionLog, error: StorageError | None) -> None:
        waiters = self._waiters.pop(log, [])
        kept = []
        for end_offset, waiter in waiters:
            if error is not None or log.flushed_offset >= end_offset:
                waiter(error)
            else:
                kept.append((end_offset, waiter))
        if kept:
            self._waiters[log] = kept

    def forget(self, log: PartitionLog) -> None:
        """The partition is deleted: who waits for it waits for nothing."""
        self._clean(log)
        self._tell(log, StorageError(f"{log.tp} was deleted before its records were on disk"))
