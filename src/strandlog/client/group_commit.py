"""One sync for everybody who waits for one.

A thread that needs its records on disk appends under the log's lock and comes here. If no sync of
that partition is under way it leads one, without holding the lock while the disk works; others who
come meanwhile wait and find, when the sync is over, that a next one covers all of them at once.
With one thread this is a plain sync.
"""

from __future__ import annotations

from threading import Condition

from strandlog.errors import StorageError
from strandlog.storage.partition_log import PartitionLog


class GroupCommit:
    """Syncs partitions of one log for many threads. `condition` guards the log."""

    def __init__(self, condition: Condition) -> None:
        self._condition = condition
        self._syncing: set[int] = set()

    def wait_durable(self, log: PartitionLog, end_offset: int) -> None:
        """Return when everything below `end_offset` is on disk. Called with the lock held once."""
        while log.flushed_offset < end_offset:
            if log.failure is not None:
                raise log.failure
            if id(log) in self._syncing:
                self._condition.wait()
            else:
                self._lead(log)

    def _lead(self, log: PartitionLog) -> None:
        plan = log.flush_plan()
        if plan is None:
            return
        self._syncing.add(id(log))
        self._condition.release()
        failure: StorageError | None = None
        try:
            plan.execute()
        except StorageError as error:
            failure = error
        finally:
            self._condition.acquire()
            self._syncing.discard(id(log))
            self._condition.notify_all()
        if failure is not None:
            log.flush_failed(plan, failure)
            raise failure
        log.flush_completed(plan)
