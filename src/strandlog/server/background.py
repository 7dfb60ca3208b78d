"""Does work in steps: the slow parts in threads, everything between them in the event loop.

    disk       one thread for everything that waits for the disk and is short: parts that write the
               same file never meet
    cleaner    one thread for compaction, which may take minutes
    crew       a few threads for parts that may be done at the same time
    decoder    one thread that decodes large batches, one after the other: so what is unpacked at
               the same time is bounded by one batch, and requests take turns batch by batch

Steps that change topics are done one after the other (`in_turn`), in the order in which they were
asked for. Work that ends with an error that it did not take care of is a mistake of ours
(`on_crash`): nobody knows in which state it was left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from strandlog.clock import stopwatch
from strandlog.server.turns import SLICE_SECONDS
from strandlog.storage.work import Parallel, Step, Work, yield_control

logger = logging.getLogger(__name__)

LONG_IN_LOOP_SECONDS = 0.05
CREW_SIZE = 8


class SlowWork:
    """The threads of one server, apart from the one that syncs."""

    def __init__(self, on_crash: Callable[[str, BaseException], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="strandlog-disk")
        self._cleaner = ThreadPoolExecutor(1, thread_name_prefix="strandlog-cleaner")
        self._decoder = ThreadPoolExecutor(1, thread_name_prefix="strandlog-decoder")
        self._crew = ThreadPoolExecutor(CREW_SIZE, thread_name_prefix="strandlog-crew")
        self._on_crash = on_crash
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_abandoned = False
        self._queued: set[Future[object]] = set()  # parts of what requests asked for
        self.asked = 0  # how many of the tasks a request waits for

    def begin_chore(self, name: str, steps: Work[None], *, is_long: bool) -> None:
        """Do a chore; it takes care of its own errors."""
        pool = self._cleaner if is_long else self._disk
        self._spawn(name, self._drive(name, steps, pool))

    def in_decoder(self, name: str, steps: Work[None]) -> None:
        """Do what a client asked for and needs the records of large batches."""
        self.asked += 1
        self._spawn(name, self._finish_decoding(name, steps))

    async def _finish_decoding(self, name: str, steps: Work[None]) -> None:
        try:
            await self._drive(name, steps, self._decoder, is_asked=True)
        finally:
            self.asked -= 1

    def in_turn(self, name: str, steps: Work[None]) -> None:
        """Do what somebody asked for, after all that was asked for before it."""
        self.asked += 1
        self._spawn(name, self._finish_asked(name, steps))

    async def _finish_asked(self, name: str, steps: Work[None]) -> None:
        try:
            async with self._turn:
                await self._drive(name, steps, self._disk, is_asked=True)
        finally:
            self.asked -= 1

    def abandon(self) -> None:
        """The server stops and waited long enough: end what requests asked for at its next step.

        What that leaves behind is what a crash at this step would, or less: steps undo what they
        have begun. Parts that no thread has taken up yet are dropped.
        """
        self._is_abandoned = True
        for part in list(self._queued):
            part.cancel()

    def in_thread(self, name: str, part: Step) -> None:
        """Do one part that nobody waits for."""

        async def do() -> None:
            await self._loop.run_in_executor(self._disk, part)

        self._spawn(name, do())

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_crash(task.get_name(), error)

    async def _drive(
        self, name: str, steps: Work[None], pool: ThreadPoolExecutor, *, is_asked: bool = False
    ) -> None:
        error: BaseException | None = None
        while True:
            began = stopwatch()
            if is_asked and self._is_abandoned:
                steps.close()
                return
            try:
                part = next(steps) if error is None else steps.throw(error)
                while part is yield_control and stopwatch() - began < SLICE_SECONDS:
                    part = next(steps)
            except StopIteration:
                return
            finally:
                if stopwatch() - began > LONG_IN_LOOP_SECONDS:
                    took_ms = (stopwatch() - began) * 1000
                    logger.warning("%s kept the event loop busy for %d ms", name, took_ms)
            if part is yield_control:
                error = None
                await asyncio.sleep(0)
            else:
                error = await self._outcome(part, pool, is_asked=is_asked)

    async def _outcome(
        self, part: Step, pool: ThreadPoolExecutor, *, is_asked: bool
    ) -> BaseException | None:
        parts = [part]
        if isinstance(part, Parallel):
            parts, pool = list(part.steps), self._crew
        running = [pool.submit(each) for each in parts]
        if is_asked:
            self._queued.update(running)
        outcomes = await asyncio.gather(*map(asyncio.wrap_future, running), return_exceptions=True)
        self._queued.difference_update(running)
        return next((each for each in outcomes if isinstance(each, BaseException)), None)

    async def settle(self) -> None:
        """Wait until everything that was begun is done."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def finish(self) -> None:
        """Wait until everything that was begun is done, then end the threads."""
        await self.settle()
        for pool in (self._disk, self._cleaner, self._decoder, self._crew):
            pool.shutdown()
