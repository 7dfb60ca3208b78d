"""Who waits for which partition to be on disk, and what is to be synced next.

    appended ──▶ dirty ──take()──▶ syncing ──done()──▶ clean, or dirty again if more came meanwhile

The core decides, somebody else waits for the disk: `take` hands out plans for all dirty partitions
at once (group commit), any thread executes them, `done` brings the outcome back to the owner's
thread. A partition has at most one sync under way: when one of two fails, the kernel calls the
pages clean, and the other would vouch for lost bytes.

After each successful sync `on_visible` is told that readers may see more, and everybody who waited
for an offset below the new end hears about it. A failed sync fails all who wait for that partition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from strandlog.errors import StorageError
from strandlog.storage.flush_plan import FlushPlan
from strandlog.storage.partition_log import PartitionLog

Waiter = Callable[[StorageError | None], None]


class SyncJob(NamedTuple):
    """One partition's sync, to be executed anywhere."""

    log: PartitionLog
    plan: FlushPlan


class Durability:
    """The syncs of one broker. `syncing` is shared with the chores, which leave those alone."""

    def __init__(
        self, syncing: set[PartitionLog], on_visible: Callable[[PartitionLog], None]
    ) -> None:
        self._syncing = syncing
        self._on_visible = on_visible
        self._dirty: set[PartitionLog] = set()
        self._waiters: dict[PartitionLog, list[tuple[int, Waiter]]] = {}

    @property
    def has_work(self) -> bool:
        """Whether `take` would hand something out."""
        return not self._dirty <= self._syncing

    def appended(self, log: PartitionLog) -> None:
        """Something was written that is not on disk yet."""
        self._dirty.add(log)

    def when_durable(self, log: PartitionLog, end_offset: int, waiter: Waiter) -> None:
        """Call back once everything below `end_offset` is on disk, or will not be."""
        if log.flushed_offset >= end_offset:
            waiter(None)
        else:
            self._waiters.setdefault(log, []).append((end_offset, waiter))
            self._dirty.add(log)

    def take(self) -> list[SyncJob]:
        """Plans for every dirty partition that is not being synced already."""
        jobs = []
        for log in self._dirty - self._syncing:
            self._dirty.discard(log)
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
            self._dirty.add(log)

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
        self._dirty.discard(log)
        self._tell(log, StorageError(f"{log.tp} was deleted before its records were on disk"))
