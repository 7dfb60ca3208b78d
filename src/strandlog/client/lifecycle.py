"""Base classes of public objects, a check that they are open, and waiting on a condition."""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition
from types import TracebackType
from typing import ClassVar, Protocol, Self

from strandlog.errors import ClosedError


class PublicSurface:
    """Base class whose instances list only their public API in `dir`.

    `dir` leaves out names that start with an underscore and those in `internal_names`, which are
    meant only for other modules of strandlog.
    """

    internal_names: ClassVar[frozenset[str]] = frozenset()

    def __dir__(self) -> list[str]:
        hidden = {"internal_names", *self.internal_names}
        names = super().__dir__()
        return [name for name in names if not name.startswith("_") and name not in hidden]


class Closable(PublicSurface):
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


class OpenCheck:
    """Raises `ClosedError` at the start of a `with` block if a log, producer or consumer is closed.

    It is used on both sides of the log's lock, `with is_open, lock, is_open:`. Without the second
    check, a thread that waited for the lock could use a log that another thread had closed, and
    write to a folder that may have a new owner. Without the first check, a forked process would
    wait forever for a lock that was held by a thread of its parent.

    The check does not acquire the lock itself. An interrupt (Ctrl-C) between the `acquire()` in an
    `__enter__` method written in Python and the start of the block would leave the lock held
    forever. An `RLock` is implemented in C, so no interrupt can occur there. A `Condition` is not:
    use its lock.
    """

    __slots__ = ("_is_closed", "_is_forked", "_what")

    def __init__(
        self,
        is_closed: Callable[[], bool],
        what: str,
        is_forked: Callable[[], bool] = lambda: False,
    ) -> None:
        self._is_closed = is_closed
        self._is_forked = is_forked
        self._what = what

    def __enter__(self) -> None:
        if self._is_closed():
            raise self.error()

    def error(self) -> ClosedError:
        """Return the error, which says whether the log belongs to the parent process."""
        return ClosedError(self._what, is_forked=self._is_forked())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Do nothing: there is nothing to release."""


class _Stateful(Protocol):
    is_closed: bool


def state_of(log: _Stateful, *, is_closed: bool = False) -> str:
    """Return "open" or "closed" for the repr of a log or of one of its producers or consumers."""
    return "closed" if is_closed or log.is_closed else "open"


def wait_on(condition: Condition, seconds: float | None = None) -> None:
    """Release the lock until `condition` is notified or `seconds` have passed.

    The caller must hold the lock exactly once. `Condition.wait` does not reacquire it if an
    interrupt occurs just after releasing it, and the caller's `with` block would then raise
    RuntimeError instead of the interrupt.
    """
    try:
        condition.wait(seconds)
    except BaseException:
        if not condition._is_owned():  # type: ignore[attr-defined]
            condition.acquire()
        raise
