"""One sync for everybody who waits for one.

A thread that needs its records on disk appends under the log's lock and comes here. If no sync of
that partition is under way it leads one, without holding the lock while the disk works; others who
come meanwhile wait and find, when the sync is over, that a next one covers all of them at once.
With one thread this is a plain sync.

A partition has at most one sync under way. Two at a time would be wrong, not just slow: when one of
them fails, the kernel calls the pages clean, and the other would succeed and vouch for lost bytes.
`syncing` tells everybody else (readers, the lazy flush) which partitions to leave alone; whoever
closes or deletes a partition waits until it is idle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from threading import Condition

from strandlog.errors import StorageError
from strandlog.storage.partition.flush import FlushPlan
from strandlog.storage.partition.log import PartitionLog


class GroupCommit:
    """Syncs partitions of one log for many threads. `condition` guards the log."""

    def __init__(
        self,
        condition: Condition,
        syncing: set[PartitionLog],
        check_open: Callable[[PartitionLog], None],
        changing: Callable[[PartitionLog], AbstractContextManager[None]],
    ) -> None:
        """`check_open` raises for a partition that is gone; `changing` is the catalog's."""
        self._condition = condition
        self._syncing = syncing
        self._check_open = check_open
        self._changing = changing

    def is_syncing(self, log: PartitionLog) -> bool:
        return log in self._syncing

    def wait_durable(self, log: PartitionLog, end_offset: int) -> None:
        """Return when everything below `end_offset` is on disk. Called with the lock held once."""
        while log.flushed_offset < end_offset:
            self._check_open(log)  # it may be gone since, if this is not the first round
            if log.failure is not None:
                raise StorageError(str(log.failure))
            if log in self._syncing:
                self._condition.wait()
            else:
                self._lead(log)

    def wait_idle(self, logs: Iterable[PartitionLog]) -> bool:
        """Return when none of the partitions is being synced; True if that took a while.

        The lock was let go of then, so the caller looks at everything anew.
        """
        waited = False
        while not self._syncing.isdisjoint(logs):
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
            self._take_back(log)  # once more: Ctrl-C may have come in the middle of the first time
        if failure is not None:
            log.flush_failed(plan, failure)
            raise failure
        with self._changing(log):
            log.flush_completed(plan)

    def _execute(self, log: PartitionLog, plan: FlushPlan) -> StorageError | None:
        """Sync without the lock; returns what the disk said against it."""
        try:
            self._syncing.add(log)
            self._condition.release()
            plan.execute()
        except StorageError as error:
            return error
        return None

    def _take_back(self, log: PartitionLog) -> None:
        """Take the lock again, unless it was never let go of."""
        if not self._condition._is_owned():  # type: ignore[attr-defined]
            self._condition.acquire()
        self._syncing.discard(log)
        self._condition.notify_all()
