"""Group commit for threads: one fsync for all threads that wait for the same partition.

A thread that needs its records on disk appends under the log's lock and calls `wait_durable`. If no
fsync of that partition is in flight, the thread leads one and releases the lock while the disk
works. Threads that arrive meanwhile wait; the next fsync then covers all of them. With one thread
this is a plain fsync.

A partition has at most one fsync in flight: if one of two failed, the kernel would mark the pages
clean, and the other would report success for lost bytes. `busy` has the partitions with an fsync in
flight; readers and the lazy flush skip them, and close and delete wait until they are idle.

An interrupt (Ctrl-C) may come between any two lines. The lock is taken back in two nested `finally`
blocks, so that it is held again, and the partition is no longer busy, whichever line was hit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from threading import Condition

from strandlog.errors import StorageError
from strandlog.storage.partition.flush import FlushPlan
from strandlog.storage.partition.log import PartitionLog


class GroupCommit:
    """Flushes partitions of one log for many threads. `condition` is the log's lock."""

    def __init__(
        self,
        condition: Condition,
        busy: set[PartitionLog],
        check_open: Callable[[PartitionLog], None],
        changing: Callable[[PartitionLog], AbstractContextManager[None]],
    ) -> None:
        """`check_open` raises for a deleted partition; `changing` is `TopicCatalog.changing`."""
        self._condition = condition
        self._busy = busy
        self._check_open = check_open
        self._changing = changing

    def is_busy(self, log: PartitionLog) -> bool:
        return log in self._busy

    def wait_durable(self, log: PartitionLog, end_offset: int) -> None:
        """Return when everything below `end_offset` is on disk. The caller holds the lock once."""
        while log.flushed_offset < end_offset:
            self._check_open(log)  # the lock was released, unless this is the first round
            if log.failure is not None:
                raise StorageError(str(log.failure))
            if log in self._busy:
                self._condition.wait()
            else:
                self._lead(log)

    def wait_idle(self, logs: Iterable[PartitionLog]) -> bool:
        """Return when none of the partitions is busy; True if this had to wait.

        The lock was released then, so the caller must check everything again.
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
            self._take_back(log)  # again, in case an interrupt hit the first call
        if failure is not None:
            log.flush_failed(plan, failure)
            raise failure
        with self._changing(log):
            log.flush_completed(plan)

    def _execute(self, log: PartitionLog, plan: FlushPlan) -> StorageError | None:
        """Execute the plan without the lock; returns the error of the disk, if any."""
        try:
            self._busy.add(log)
            self._condition.release()
            plan.execute()
        except StorageError as error:
            return error
        return None

    def _take_back(self, log: PartitionLog) -> None:
        """Take the lock back, unless it was never released."""
        if not self._condition._is_owned():  # type: ignore[attr-defined]
            self._condition.acquire()
        self._busy.discard(log)
        self._condition.notify_all()
