"""`FlushWait` lets a thread wait until records of a partition are on disk, and flush them itself if
no other thread does.

Threads that share a broker under one lock (the embedded library) commit in groups: one of them
flushes the partition while the others wait, and the next flush covers the records of all of them.
The broker has no threads and no locks, so the caller takes these steps, holding its lock except
where noted:

    wait = broker.flush_wait(context, topic, partition, end_offset)
    while not wait.is_over():      raises if the records may never be on disk
        if wait.is_blocked:        another thread flushes the partition:
            …                      release the lock until that thread has called `end`
        else:
            wait.begin()           from here on, the partition is busy
            wait.execute()         without the lock
            wait.end()             with the lock; then wake the threads that are blocked

An interrupt (Ctrl-C) may occur in any of these steps. `end` may therefore be called at any time and
repeatedly: it processes the outcome of a flush that was executed and reschedules one that was not.
Whether a wait is over depends only on offsets, not on a notification that an interrupt could lose.
"""

from __future__ import annotations

from strandlog.broker.flushing.durability import Durability
from strandlog.broker.runtime import FlushJob
from strandlog.broker.topics.catalog import TopicCatalog
from strandlog.errors import StorageError
from strandlog.storage.partition.log import PartitionLog


class FlushWait:
    """Waits until everything below an offset of one partition is on disk."""

    __slots__ = (
        "_catalog",
        "_durability",
        "_end_offset",
        "_error",
        "_is_executed",
        "_log",
        "_taken",
    )

    def __init__(
        self, catalog: TopicCatalog, durability: Durability, log: PartitionLog, end_offset: int
    ) -> None:
        self._catalog = catalog
        self._durability = durability
        self._log = log
        self._end_offset = end_offset
        self._taken: list[FlushJob] = []  # the flush between `begin` and `end`
        self._is_executed = False
        self._error: StorageError | None = None  # the error of this thread's flush

    def is_over(self) -> bool:
        """Return whether the records are on disk; raise if they may never be."""
        log = self._log
        if log.flushed_offset >= self._end_offset:
            return True
        if self._error is not None:
            raise self._error
        if not self._catalog.is_open(log):
            self._catalog.log(*log.tp)  # raises TopicNotFoundError if the partition was deleted
            raise StorageError(
                f"{log.tp} was recreated or reopened before the flush; "
                "the record may or may not be stored"
            )
        if log.failure is not None:
            raise StorageError(str(log.failure))
        return False

    @property
    def is_blocked(self) -> bool:
        """Whether the partition is busy (see durability.py)."""
        return self._log in self._durability.busy

    def begin(self) -> None:
        """Start a flush of the partition; `is_blocked` must be False."""
        self._is_executed = False
        self._durability.begin_flush(self._log, self._taken)

    def execute(self) -> None:
        """Execute the flush; any thread may do so, without the lock."""
        for job in self._taken:
            try:
                job.plan.execute()
            except StorageError as error:
                self._error = error
            self._is_executed = True

    def end(self) -> None:
        """Process the outcome of the flush, if any, or reschedule it if it was not executed."""
        for job in self._taken:
            if self._is_executed or self._error is not None:
                self._durability.flush_done(job, self._error)
            else:
                self._durability.flush_dropped(job)
        self._taken.clear()
