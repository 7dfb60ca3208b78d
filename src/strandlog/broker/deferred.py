"""`Deferred`, a result that may become available later, and procedures that await several of them.

    open ──complete(value)──▶ done: result() returns the value
      └────fail(error)──────▶ done: result() raises the error

Only the first completion takes effect; later ones change nothing and return False. Completing a
result twice is not an error, because a client may disconnect just before the broker answers it.

`deadline_ms` is the time on the monotonic clock at which a broker timer next rechecks the result.
None means that no such time is set.

Callbacks run inside `complete` or `fail`, each once, in the order they were added. Because
a callback may call back into the state machine that completes the result, a state machine collects
its results in a `CompletionQueue`, which completes them at the end of the step or later, when the
state is consistent.

A procedure is a generator that yields the `Deferred` it waits for and receives its value, or its
error as an exception. `run` drives it; as long as results are already available, it continues
without registering a callback.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from types import TracebackType
from typing import Any, Generic, TypeAlias, TypeVar, cast

from strandlog.errors import StrandlogError

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)


class Deferred(Generic[T]):
    """A value that is available now or later."""

    __slots__ = ("_callbacks", "_error", "_is_done", "_value", "deadline_ms")

    def __init__(self, deadline_ms: int | None = None) -> None:
        self.deadline_ms = deadline_ms
        self._callbacks: list[Callable[[Deferred[T]], None]] = []
        self._value: T | None = None
        self._error: Exception | None = None
        self._is_done = False

    @classmethod
    def done(cls, value: T) -> Deferred[T]:
        """Return a deferred result that is already complete."""
        result = cls()
        result.complete(value)
        return result

    @classmethod
    def failed(cls, error: Exception) -> Deferred[T]:
        """Return a deferred result that has already failed."""
        result = cls()
        result.fail(error)
        return result

    @property
    def is_done(self) -> bool:
        return self._is_done

    @property
    def error(self) -> Exception | None:
        """The error that the result failed with; None while it is open or if it succeeded."""
        return self._error

    def result(self) -> T:
        """Return the value or raise the error; the result must be done."""
        assert self._is_done, "the result is not available yet; see is_done"
        if self._error is not None:
            raise self._error
        return cast(T, self._value)

    def complete(self, value: T) -> bool:
        """Set the value and run the callbacks; return False if the result was already done."""
        if self._is_done:
            return False
        self._value = value
        self._finish()
        return True

    def fail(self, error: Exception) -> bool:
        """Set the error and run the callbacks; return False if the result was already done."""
        if self._is_done:
            return False
        self._error = error
        self._finish()
        return True

    def on_done(self, callback: Callable[[Deferred[T]], None]) -> None:
        """Call `callback` once: immediately if the result is done, otherwise on completion."""
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


def deferred(ask: Callable[[], Deferred[T]]) -> Deferred[T]:
    """Call `ask` and return its result; if it raises a `StrandlogError`, return a failed result."""
    try:
        return ask()
    except StrandlogError as error:
        return Deferred.failed(error)


def as_result(error: E) -> E:
    """Return a caught error without its traceback, for a list of results. The frames of a traceback
    usually refer to that list. With many errors, the garbage collector would stop the event loop
    for a long time to find these cycles."""
    return error.with_traceback(None)


Procedure: TypeAlias = Generator[Deferred[Any], Any, T]


def run(procedure: Procedure[T], reply: Deferred[T] | None = None) -> Deferred[T]:
    """Drive a procedure; complete `reply` with its return value, or fail it with the
    `StrandlogError` that it raises. An error raised before the first `yield` goes to the caller."""
    reply = Deferred() if reply is None else reply

    def resume(awaited: Deferred[Any]) -> None:
        while awaited.is_done:
            try:
                if awaited.error is None:
                    awaited = procedure.send(awaited.result())
                else:
                    awaited = procedure.throw(awaited.error)
            except StopIteration as end:
                reply.complete(end.value)
                return
            except StrandlogError as error:
                reply.fail(error)
                return
        awaited.on_done(resume)

    try:
        first = next(procedure)
    except StopIteration as end:
        reply.complete(end.value)
    else:
        first.on_done(resume)
    return reply


def gather(results: Sequence[Deferred[Any]]) -> Deferred[None]:
    """Return a result that completes when all `results` are done, whether or not they failed."""
    gathered: Deferred[None] = Deferred()
    left = len(results) + 1

    def one_done(_: Deferred[Any] | None) -> None:
        nonlocal left
        left -= 1
        if not left:
            gathered.complete(None)

    for result in results:
        result.on_done(one_done)
    one_done(None)
    return gathered


COMPLETED_AT_ONCE = 64


class CompletionQueue:
    """Collects results and completes them at the end of the current step: `with queue: …`.

    Completing a result may send a response, and one step may complete thousands of results. At most
    `COMPLETED_AT_ONCE` are completed at the end of the step; `deliver_later` schedules `deliver`,
    which completes the next batch in order, after other work has had a chance to run.
    """

    __slots__ = ("_deliver_later", "_depth", "_is_later_due", "_results")

    def __init__(self, deliver_later: Callable[[], None]) -> None:
        self._results: deque[tuple[Deferred[Any], object, Exception | None]] = deque()
        self._depth = 0
        self._deliver_later = deliver_later
        self._is_later_due = False

    def complete(self, result: Deferred[T], value: T) -> None:
        self._results.append((result, value, None))

    def fail(self, result: Deferred[T], error: Exception) -> None:
        self._results.append((result, None, error))

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
            self._complete_some()

    def deliver(self) -> None:
        """Complete the next batch of the remaining results."""
        self._is_later_due = False
        self._complete_some()

    def _complete_some(self) -> None:
        count = 0
        while self._results and count < COMPLETED_AT_ONCE:
            count += 1
            result, value, error = self._results.popleft()
            if error is None:
                result.complete(value)
            else:
                result.fail(error)
        if self._results and not self._is_later_due:
            self._is_later_due = True
            self._deliver_later()
