"""A result that may come later, without waiting for it.

    open ──complete(value)──▶ done: result() returns the value
      └────fail(error)──────▶ done: result() raises the error

Done once: the first completion counts, a later one changes nothing and answers False. It is not
an assertion, because the one who waits may give up (a client hung up) while the broker is about
to answer.

`deadline_ms` is on the monotonic clock: by then the owner will have looked at it again, because a
timer is set. The owner may move it, and None means that no time was promised.

Callbacks run inside `complete`, each exactly once, in the order in which they were given. The
broker is in the middle of a step then, so a state machine collects its answers in an `Outbox` and
gives them when the step is over and its state is consistent: a callback may call it again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")


class Pending(Generic[T]):
    """A value that is there now or will be there later."""

    __slots__ = ("_callbacks", "_error", "_is_done", "_value", "deadline_ms")

    def __init__(self, deadline_ms: int | None = None) -> None:
        self.deadline_ms = deadline_ms
        self._callbacks: list[Callable[[Pending[T]], None]] = []
        self._value: T | None = None
        self._error: Exception | None = None
        self._is_done = False

    @classmethod
    def of(cls, value: T) -> Pending[T]:
        """A result that is there already."""
        pending = cls()
        pending.complete(value)
        return pending

    @property
    def is_done(self) -> bool:
        return self._is_done

    @property
    def error(self) -> Exception | None:
        """Why it failed; None while it is open and when it succeeded."""
        return self._error

    def result(self) -> T:
        """The value, or the error raised; asking too early is a mistake of the caller."""
        assert self._is_done, "this result is not there yet; see is_done"
        if self._error is not None:
            raise self._error
        return cast(T, self._value)

    def complete(self, value: T) -> bool:
        """True when this was the completion that counts."""
        if self._is_done:
            return False
        self._value = value
        self._finish()
        return True

    def fail(self, error: Exception) -> bool:
        """True when this was the completion that counts."""
        if self._is_done:
            return False
        self._error = error
        self._finish()
        return True

    def on_done(self, callback: Callable[[Pending[T]], None]) -> None:
        """Calls back once: at once when the result is there, else when it comes."""
        if self._is_done:
            callback(self)
        else:
            self._callbacks.append(callback)

    def _finish(self) -> None:
        self._is_done = True
        self.deadline_ms = None
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)


ANSWERS_AT_ONCE = 64


class Outbox:
    """Answers that are given when the step is over: `with outbox: …`.

    An answer may cost a reply on a socket, and a step may answer thousands. At most
    `ANSWERS_AT_ONCE` are given with the step; `deliver_later` sees to it that `deliver` is called
    for the others, in their order, when other work had its turn.
    """

    __slots__ = ("_answers", "_deliver_later", "_depth", "_is_later_due")

    def __init__(self, deliver_later: Callable[[], None]) -> None:
        self._answers: deque[tuple[Pending[Any], object, Exception | None]] = deque()
        self._depth = 0
        self._deliver_later = deliver_later
        self._is_later_due = False

    def complete(self, pending: Pending[T], value: T) -> None:
        self._answers.append((pending, value, None))

    def fail(self, pending: Pending[T], error: Exception) -> None:
        self._answers.append((pending, None, error))

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._depth -= 1
        if self._depth == 0 and not self._is_later_due:
            self._give()

    def deliver(self) -> None:
        """Give the next answers of those that were left."""
        self._is_later_due = False
        self._give()

    def _give(self) -> None:
        given = 0
        while self._answers and given < ANSWERS_AT_ONCE:
            given += 1
            pending, value, failure = self._answers.popleft()
            if failure is None:
                pending.complete(value)
            else:
                pending.fail(failure)
        if self._answers and not self._is_later_due:
            self._is_later_due = True
            self._deliver_later()
