"""The worker threads of one asyncio log: they run all calls that would block the event loop.

    loop     submit(work, done) ─────────────▶ done(future), in the loop
    thread                 └──▶ work() ──────────┘

`done` runs even if the task that submitted the work no longer waits, so it can keep or release the
result. A cancelled task stops waiting immediately; the work runs to its end.

A log belongs to the event loop in which it was opened and to the process that opened it. `check`
raises an error in any other event loop or process.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from strandlog.errors import ClosedError

T = TypeVar("T")

IDLE_CHECK_SECONDS = 0.05

_forks = [0]  # the number of forks between the first process and this one


def _count_fork() -> None:
    _forks[0] += 1


os.register_at_fork(after_in_child=_count_fork)


class Workers:
    """A bounded thread pool whose results return to one event loop."""

    def __init__(self, threads: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.is_closing = False  # new calls are rejected
        self.is_closed = False  # the thread pool is shut down
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="strandlog-aio")
        self._forks = _forks[0]
        self._running = 0
        self._idle: asyncio.Future[None] | None = None

    def check(self, what: str) -> None:
        """Raise if the log is closed, or belongs to another process or event loop."""
        self.check_owner(what)
        if self.is_closing:
            raise ClosedError(what)

    def check_owner(self, what: str) -> None:
        """Raise if the log belongs to another process or event loop."""
        if self._forks != _forks[0]:
            raise ClosedError(what, is_forked=True)
        if asyncio.get_running_loop() is not self.loop:
            raise RuntimeError(
                f"this {what} belongs to another event loop; open a log in each event loop"
            )

    def submit(
        self,
        work: Callable[[], T],
        done: Callable[[Future[T]], None],
        abandoned: Callable[[T], object] | None = None,
    ) -> None:
        """Run `work` in a thread, and then `done` in the event loop.

        If the event loop is closed by then, the thread passes the result to `abandoned` instead.
        """
        self._running += 1
        future = self._executor.submit(work)
        future.add_done_callback(partial(self._return, done, abandoned))

    def _return(
        self,
        done: Callable[[Future[T]], None],
        abandoned: Callable[[T], object] | None,
        future: Future[T],
    ) -> None:
        try:
            self.loop.call_soon_threadsafe(self._deliver, done, future)
        except RuntimeError:  # the loop is closed
            if abandoned is not None and future.exception() is None:
                abandoned(future.result())

    def _deliver(self, done: Callable[[Future[T]], None], future: Future[T]) -> None:
        self._running -= 1
        if not self._running and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
        done(future)

    async def run(self, work: Callable[[], T], abandoned: Callable[[T], object] | None = None) -> T:
        """Return the result of `work`, or pass it to `abandoned` if the task is cancelled."""
        answer: asyncio.Future[T] = self.loop.create_future()

        def done(future: Future[T]) -> None:
            error = future.exception()
            if answer.done():
                if error is None:
                    abandon(future.result())
            elif error is None:
                answer.set_result(future.result())
            else:
                answer.set_exception(error)

        def abandon(result: T) -> None:
            if abandoned is not None:
                self.submit(partial(abandoned, result), ignore_outcome)

        self.submit(work, done, abandoned)
        try:
            return await answer
        except asyncio.CancelledError:
            # The result arrived in the same iteration of the loop as the cancellation.
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                abandon(answer.result())
            raise

    async def idle(self) -> None:
        """Wait until no work is running."""
        while self._running:
            self._idle = self.loop.create_future()
            await self._idle

    def shut_down_when_idle(self) -> None:
        """Shut down the thread pool after the work in progress and its cleanup are complete."""
        self.is_closing = True
        if self._running:
            self.loop.call_later(IDLE_CHECK_SECONDS, self.shut_down_when_idle)
        else:
            self.shut_down()

    def shut_down(self) -> None:
        """Shut down the thread pool; each thread ends as soon as it has no work."""
        self.is_closed = True
        self._executor.shutdown(wait=False)


def ignore_outcome(future: Future[object]) -> None:
    """Ignore the outcome of closing the objects that a cancelled task had opened."""
    future.exception()


async def finish(work: asyncio.Future[T]) -> T:
    """Wait until `work` is done, and only then raise a cancellation of this task, if any."""
    cancellation: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is not None:
        if not work.cancelled():
            work.exception()  # the cancellation takes precedence
        raise cancellation
    return work.result()
