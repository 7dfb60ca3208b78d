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


class Outbox:
    """Answers that are given when the step is over: `with outbox: …`."""

    __slots__ = ("_answers", "_depth")

    def __init__(self) -> None:
        self._answers: deque[tuple[Pending[Any], object, Exception | None]] = deque()
        self._depth = 0

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
        while self._depth == 0 and self._answers:
            pending, value, failure = self._answers.popleft()
            if failure is None:
                pending.complete(value)
            else:
                pending.fail(failure)
