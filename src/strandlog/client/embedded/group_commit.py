"""Group commit for threads: one fsync for all threads that wait for the same partition.

A thread that needs its records on disk appends them under the log's lock and calls `wait_durable`.
If no fsync of that partition is in flight, the thread starts one and releases the lock until it is
done. Threads that arrive during the fsync wait, and the next fsync covers all of them. With a
single thread, this is a plain fsync.

A partition has at most one fsync in flight. With two, if one failed, the kernel would mark the
pages as clean, and the other would report success although data was lost. `busy` contains the
partitions with an fsync in flight; readers and the lazy flush skip them, and close and delete wait
until they are idle.

An interrupt (Ctrl-C) may occur between any two lines. The lock is reacquired in two nested
`finally` blocks, so that it is held again and the partition is no longer busy, regardless of where
the interrupt occurred.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from threading import Condition

from strandlog.errors import StorageError
from strandlog.storage.partition.flush import FlushPlan
from strandlog.storage.partition.log import PartitionLog


class GroupCommit:
    """Flushes the partitions of one log on behalf of many threads."""

    def __init__(
        self,
        condition: Condition,
        busy: set[PartitionLog],
        check_open: Callable[[PartitionLog], None],
        changing: Callable[[PartitionLog], AbstractContextManager[None]],
    ) -> None:
        """Create the group commit of a log.

        `condition` is the log's lock, `check_open` raises if a partition was deleted or reopened,
        and `changing` is `TopicCatalog.guard`.
        """
        self._condition = condition
        self._busy = busy
        self._check_open = check_open
        self._changing = changing

    def is_busy(self, log: PartitionLog) -> bool:
        return log in self._busy

    def wait_durable(self, log: PartitionLog, end_offset: int) -> None:
        """Wait until everything below `end_offset` is on disk. The caller holds the lock once."""
        while log.flushed_offset < end_offset:
            self._check_open(log)  # the lock was released, except in the first iteration
            if log.failure is not None:
                raise StorageError(str(log.failure))
            if log in self._busy:
                self._condition.wait()
            else:
                self._lead(log)

    def wait_idle(self, logs: Iterable[PartitionLog]) -> bool:
        """Wait until none of the partitions is busy; return True if this had to wait.

        In that case the lock was released, so the caller must check its assumptions again.
        """
        waited = False
        while not self._busy.isdisjoint(logs):
            self._condition.wait()
            waited = True
        return waited

    def _lead(self, log: PartitionLog) -> None:
        with self._changing(log):
            plan = log.flush_plan()
        if plan is None:
            return
        failure: StorageError | None = None
        try:
            try:
                failure = self._execute(log, plan)
            finally:
                self._take_back(log)
        finally:
            self._take_back(log)  # again, in case an interrupt occurred in the first call
        if failure is not None:
            log.flush_failed(plan, failure)
            raise failure
        with self._changing(log):
            log.flush_completed(plan)

    def _execute(self, log: PartitionLog, plan: FlushPlan) -> StorageError | None:
        """Execute the plan without holding the lock; return the disk error, if any."""
        try:
            self._busy.add(log)
            self._condition.release()
            plan.execute()
        except StorageError as error:
            return error
        return None

    def _take_back(self, log: PartitionLog) -> None:
        """Reacquire the lock unless it was never released, and mark the partition as idle."""
        if not self._condition._is_owned():  # type: ignore[attr-defined]
            self._condition.acquire()
        self._busy.discard(log)
        self._condition.notify_all()
