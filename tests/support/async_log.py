"""For tests of the asyncio API: hold up the worker threads of a log, run tasks beside a test."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import strandlog.aio

Program = Callable[[strandlog.aio.Log], Coroutine[Any, Any, None]]
Run = Callable[[Program], None]


@contextlib.contextmanager
def blocked(log: strandlog.aio.Log) -> Iterator[None]:
    """Hold the lock of the synchronous log in another thread, as a slow disk would."""
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with log._log.lock:
            held.set()
            release.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        yield
    finally:
        release.set()
        thread.join()


async def turns(count: int = 20) -> None:
    """Let the other tasks run."""
    for _ in range(count):
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def background(work: Coroutine[Any, Any, Any]) -> AsyncIterator[asyncio.Task[Any]]:
    """Run a task beside the block; cancel it at the end."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
