"""Group commit for threads: one fsync for all threads that wait for the same partition.

A thread that needs its records on disk appends them under the log's lock and calls `complete`. If
no fsync of that partition is in flight, the thread executes one and releases the lock until it is
done. Threads that arrive during the fsync wait, and the next fsync covers all of them. With a
single thread, this is a plain fsync. The broker decides what to flush
(broker/flushing/flush_wait.py); this module only releases and reacquires the lock.

An interrupt (Ctrl-C) can occur between any two lines, even in the `finally` block that reacquires
the lock and ends the flush. If an exception leaves that block, `_flush` repeats both steps.
"""

from __future__ import annotations

from threading import Condition

from strandlog.broker.flushing.flush_wait import FlushWait
from strandlog.client.lifecycle import wait_on


class GroupCommit:
    """Executes the flushes that the threads of one log wait for."""

    def __init__(self, condition: Condition) -> None:
        """`condition` is a condition variable of the log's lock."""
        self._condition = condition

    def complete(self, wait: FlushWait) -> None:
        """Return when `wait` is over. The caller must hold the lock exactly once."""
        while not wait.is_over():
            if wait.is_blocked:
                wait_on(self._condition)
            else:
                self._flush(wait)

    def _flush(self, wait: FlushWait) -> None:
        try:
            try:
                wait.begin()
                self._condition.release()
                wait.execute()
            finally:
                self._take_back(wait)
        except BaseException:
            self._take_back(wait)  # again, in case an interrupt occurred in the first call
            raise

    def _take_back(self, wait: FlushWait) -> None:
        """Reacquire the lock if it was released, and end the flush."""
        if not self._condition._is_owned():  # type: ignore[attr-defined]
            self._condition.acquire()
        try:
            wait.end()
        finally:
            self._condition.notify_all()
