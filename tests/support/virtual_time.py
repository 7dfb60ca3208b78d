"""An event loop whose time advances without waiting: where a loop would block until its next timer,
this one sets its clock to that timer.

    def test_…(monkeypatch) -> None:
        async def run() -> None: ...
        with virtual_time() as loop:
            monkeypatch.setattr(module, "stopwatch", loop.time)
            loop.run_until_complete(run())

It has no sockets and no threads to wait for. A loop without a timer and without anything else to do
would wait forever, so it fails. An exception in a callback fails the test, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
from collections.abc import Iterator
from typing import Any


class _Selector(selectors.DefaultSelector):
    """Adds the time that it should block to `now`, and returns at once."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "the event loop waits for nothing"
        self.now += max(0.0, timeout)
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop with a clock of its own, which starts at 0."""

    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)
        self.errors: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.errors.append(context))

    def time(self) -> float:
        return self._clock.now

    def block(self, seconds: float) -> None:
        """Advance the clock as code does that keeps the event loop busy."""
        self._clock.now += seconds

    async def elapse(self, seconds: float) -> None:
        """Return when the clock has advanced; timers that are due before fire first."""
        is_over = asyncio.Event()
        self.call_later(seconds, is_over.set)
        await is_over.wait()


@contextlib.contextmanager
def virtual_time() -> Iterator[VirtualTimeLoop]:
    """A loop, which is closed afterwards."""
    loop = VirtualTimeLoop()
    try:
        yield loop
    finally:
        loop.close()
    assert loop.errors == []
