"""Context-manager support, and a lock that rejects calls on a closed object."""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition
from types import TracebackType
from typing import Self

from strandlog.errors import ClosedError


class Closable:
    """Base class of logs, producers and consumers, which close at the end of a `with` block."""

    def close(self) -> None:
        """Release all resources. This method is idempotent."""
        raise AssertionError("subclasses implement close()")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class OpenLock:
    """A lock that can only be acquired while its object is open; otherwise raises `ClosedError`.

    The state is checked both before and after waiting for the lock. Without the second check, a
    thread that waited could use a log that another thread had closed, and write to a folder that
    may have a new owner. Without the first check, a forked process would wait forever for a lock
    that was held by a thread of its parent.
    """

    __slots__ = ("_condition", "_is_closed", "_what")

    def __init__(self, condition: Condition, is_closed: Callable[[], bool], what: str) -> None:
        self._condition = condition
        self._is_closed = is_closed
        self._what = what

    def __enter__(self) -> None:
        if not self._condition.acquire(blocking=False):
            if self._is_closed():
                raise ClosedError(self._what)
            self._condition.acquire()
        if self._is_closed():
            self._condition.release()
            raise ClosedError(self._what)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._condition.release()
