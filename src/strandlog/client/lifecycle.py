"""What every open thing of the client layer has in common: it is closed, best by `with`."""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition
from types import TracebackType
from typing import Self

from strandlog.errors import ClosedError


class Closing:
    """Closes at the end of a `with` block, whatever happened in it."""

    def close(self) -> None:
        """Let go; idempotent."""
        raise AssertionError("every open thing says how it is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class OpenGuard:
    """The lock around an open thing: `with guard:` holds it and finds the thing open, or raises.

    Only checking first and locking then would let a thread that waited for the lock go on with a
    log that another one has closed meanwhile, and write into a folder that may have a new owner.
    Only waiting for the lock first would hang in a forked process, where nobody is left to unlock.
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
