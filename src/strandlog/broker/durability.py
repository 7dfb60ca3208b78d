"""Who waits for which partition to be on disk, and what is to be synced when.

    appended ──▶ dirty ──take()──▶ syncing ──done()──▶ clean, or dirty again if more came meanwhile
                   │
                   └─ urgent, as soon as somebody waits

A producer waits for its acknowledgement, or a request for records that were written before it came
(`when_durable`; see visibility.py), or a parked reader for more (`is_awaited`). Such a partition is
due at once. Any other one is due `lazy_sync_ms` after its first unsynced append: a sync after each
request would help no client and would hold the next writes up, for a file system that commits lets
them wait.

The core decides, threads wait for the disk: `take` hands out plans for the partitions that are due
(group commit), any thread executes them, `done` brings the outcome back to the owner's thread.
`next_due_ms` says when `take` has something to hand out. A partition has at most one sync under
way: when one of two fails, the kernel calls the pages clean, and the other would vouch for lost
bytes.

One request can write to thousands of partitions. So `take` hands out at most `MAX_JOBS`, first
those that requests of few partitions wait for (`is_bulk` is false), and keeps some places for the
others: a producer does not wait until all partitions of another one are on disk.

After each successful sync `on_visible` is told that readers may see more, and everybody who waited
for an offset below the new end hears about it. A failed sync fails all who wait for that partition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from strandlog.clock import Clock
from strandlog.errors import StorageError
from strandlog.storage.partition.flush_plan import FlushPlan
from strandlog.storage.partition.log import PartitionLog

Waiter = Callable[[StorageError | None], None]

LAZY_SYNC_MS = 100
AT_ONCE_MS = 0
MAX_JOBS = 64  # of one group commit
KEPT_JOBS = 16  # of those, for partitions that only requests of many partitions wait for
BULK_PARTITIONS = 16  # a request that waits for more of them is one of many partitions


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
        # Some of the dirty ones: requests of few partitions wait for these,
        self._urgent: dict[PartitionLog, None] = {}
        # requests of many partitions or parked readers for these.
        self._bulk: dict[PartitionLog, None] = {}
        self._waiters: dict[PartitionLog, list[tuple[int, Waiter]]] = {}

    def is_due(self) -> bool:
        """Whether `take` has something to hand out now."""
        due_ms = self.next_due_ms()
        return due_ms is not None and due_ms <= self._clock.monotonic_ms()

    def next_due_ms(self) -> int | None:
        """When `take` has something to hand out, on the monotonic clock; None while nothing is
        dirty but what is being synced."""
        if not (self._urgent.keys() <= self._syncing and self._bulk.keys() <= self._syncing):
            return AT_ONCE_MS
        for log, due_ms in self._dirty.items():
            if log not in self._syncing:
                return due_ms
        return None

    def appended(self, log: PartitionLog, *, is_awaited: bool = False) -> None:
        """Something was written that is not on disk yet, and perhaps a reader waits for it."""
        if log not in self._dirty:
            self._dirty[log] = self._clock.monotonic_ms() + self._lazy_sync_ms
        if is_awaited and log not in self._urgent:
            self._bulk[log] = None

    def when_durable(
        self, log: PartitionLog, end_offset: int, waiter: Waiter, *, is_bulk: bool = False
    ) -> None:
        """Call back once everything below `end_offset` is on disk, or will not be. `is_bulk` is for
        a request that waits for many partitions."""
        if log.flushed_offset >= end_offset:
            waiter(None)
            return
        self._waiters.setdefault(log, []).append((end_offset, waiter))
        self._wait(log, is_bulk=is_bulk)

    def _wait(self, log: PartitionLog, *, is_bulk: bool) -> None:
        self.appended(log, is_awaited=is_bulk)
        if not is_bulk:
            self._bulk.pop(log, None)
            self._urgent[log] = None

    def unsynced(self) -> set[PartitionLog]:
        """Every partition that may have records which are not on disk."""
        return self._syncing.union(self._dirty)

    def take(self) -> list[SyncJob]:
        """Plans for partitions that are due and not being synced already, at most `MAX_JOBS`."""
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

    def _due(self) -> list[PartitionLog]:
        now_ms = self._clock.monotonic_ms()
        urgent = [log for log in self._urgent if log not in self._syncing]
        others: dict[PartitionLog, None] = {}
        for log in self._bulk:
            if len(others) == MAX_JOBS:
                break
            if log not in self._syncing:
                others[log] = None
        for log, due_ms in self._dirty.items():
            if due_ms > now_ms or len(others) == MAX_JOBS:
                break
            if log not in self._syncing and log not in self._urgent:
                others[log] = None
        room = max(MAX_JOBS - len(others), MAX_JOBS - KEPT_JOBS)
        due = urgent[:room]
        return due + list(others)[: MAX_JOBS - len(due)]

    def _clean(self, log: PartitionLog) -> None:
        self._dirty.pop(log, None)
        self._urgent.pop(log, None)
        self._bulk.pop(log, None)

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
            self._wait(log, is_bulk=False)

    def released(self, log: PartitionLog) -> None:
        """A chore synced the partition and lets go of it."""
        if log.failure is not None:
            self._tell(log, log.failure)
            return
        self._on_visible(log)
        self._tell(log, None)
        if log in self._waiters:
            self._wait(log, is_bulk=False)

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
