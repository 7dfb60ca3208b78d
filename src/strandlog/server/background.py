"""Runs flushes, and the blocking steps of maintenance, topic changes, decoding, schemas and logins,
in threads.

`ServerRuntime` is the broker's `Runtime`. `Work` is executed in steps: its blocking calls run in
threads, everything between them in the event loop:

    disk       one thread for short blocking calls, so that no two write the same file concurrently
    cleaner    one thread for compaction, which can take minutes
    parallel   a few threads for calls that may run concurrently (`Parallel`)
    decoder    one thread that decodes large batches. It has at most one decompressed batch in
               memory, and requests alternate batch by batch
    schemas    one thread that parses and compares schemas of the registry, which can take seconds
    login      one thread that checks passwords and tokens, so that many logins delay only each
               other

Topic changes run sequentially, in the order of the requests (`run_in_order`). An exception that
work does not handle is a bug (`on_crash`): the state is unknown, so the server shuts down.

The broker calls `wake` when a flush is due or its next deadline has become earlier. This schedules
one callback; the Kafka listener handles a pending wake before it returns to the loop
(`handle_wake`), so that a flush starts as early as possible.

`BrokerDriver` calls `Broker.tick` at each deadline and executes the broker's flushes, one group
commit at a time: it takes the jobs that are due, runs their fsyncs in the flush threads, and
reports the outcomes to the broker in the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from strandlog.broker.broker import Broker
from strandlog.broker.deferred import Deferred
from strandlog.broker.metrics import Metrics
from strandlog.broker.runtime import FlushJob, Parallel, Step, Work, yield_control
from strandlog.clock import Clock, stopwatch
from strandlog.config.tables.broker import BrokerSettings
from strandlog.errors import StorageError
from strandlog.server.memory import request_budget, response_budget
from strandlog.server.turns import SLICE_SECONDS, Turns

logger = logging.getLogger(__name__)

LONG_IN_LOOP_SECONDS = 0.05
PARALLEL_THREADS = 8
FLUSH_THREADS = 8
FEW_FLUSHES = 4  # up to this many are faster in one thread than in several
MAX_SLEEP_MS = 1000

T = TypeVar("T")


class ServerRuntime:
    """The worker threads of one server, except the flush threads, and its event loop scheduling."""

    executes_flushes = True

    def __init__(
        self,
        settings: BrokerSettings,
        clock: Clock,
        on_wake: Callable[[], None],
        on_crash: Callable[[str, BaseException], None],
    ) -> None:
        """`on_wake` is called in the event loop, never from inside the broker."""
        self._loop = asyncio.get_running_loop()
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="strandlog-disk")
        self._cleaner = ThreadPoolExecutor(1, thread_name_prefix="strandlog-cleaner")
        self._decoder = ThreadPoolExecutor(1, thread_name_prefix="strandlog-decoder")
        self._schemas = ThreadPoolExecutor(1, thread_name_prefix="strandlog-schemas")
        self._login = ThreadPoolExecutor(1, thread_name_prefix="strandlog-login")
        self._parallel = ThreadPoolExecutor(
            PARALLEL_THREADS, thread_name_prefix="strandlog-parallel"
        )
        self._on_wake = on_wake
        self._on_crash = on_crash
        self.request_bytes = request_budget(settings, clock)
        self.response_bytes = response_budget(settings, clock)
        self.turns = Turns()
        self._is_wake_pending = False
        self._is_wake_scheduled = False
        self._is_started = False
        self._order = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_abandoned = False
        self._queued: set[Future[object]] = set()  # blocking calls that requests wait for
        self.requested = 0  # the number of tasks that requests wait for, except logins

    def start(self) -> None:
        """Start handling wakes, now that the broker is open."""
        self._is_started = True
        self.handle_wake()

    # -- the broker's runtime --------------------------------------------------------------------

    def wake(self) -> None:
        """Schedule `on_wake`, because a flush is due or the next deadline has become earlier."""
        self._is_wake_pending = True
        if self._is_started and not self._is_wake_scheduled:
            self._is_wake_scheduled = True
            self._loop.call_soon(self._handle_scheduled_wake)

    def _handle_scheduled_wake(self) -> None:
        self._is_wake_scheduled = False
        self.handle_wake()

    def handle_wake(self) -> None:
        """Handle a pending wake now instead of in the next iteration of the event loop."""
        if self._is_wake_pending:
            self._is_wake_pending = False
            self._on_wake()

    def run_in_background(self, name: str, work: Work[None], *, is_long: bool) -> None:
        """Execute a maintenance task, which handles its own errors."""
        pool = self._cleaner if is_long else self._disk
        self._spawn(name, self._drive(name, work, pool))

    def run_in_order(self, name: str, work: Work[None]) -> None:
        """Execute work that a request waits for, after all work passed to this method earlier."""
        self.requested += 1
        self._spawn(name, self._finish_in_order(name, work))

    async def _finish_in_order(self, name: str, work: Work[None]) -> None:
        try:
            async with self._order:
                await self._drive(name, work, self._disk, is_requested=True)
        finally:
            self.requested -= 1

    def run_soon(self, callback: Callable[[], None]) -> None:
        """Queue the callback behind the work that is already waiting."""
        self.turns.add(callback)

    def response_room(self) -> int:
        """Return how many bytes are left in the budget for responses."""
        return self.response_bytes.room()

    def report(self, problem: str) -> None:
        """Write a problem to the server's log."""
        logger.warning("%s", problem)

    # -- for listeners ---------------------------------------------------------------------------

    def run_in_decoder(self, name: str, work: Work[None]) -> None:
        """Execute work that a request waits for; its blocking steps run in the decoder thread."""
        self._run_requested(name, work, self._decoder)

    def run_login(self, work: Work[None]) -> None:
        """Execute a login that a connection waits for; its blocking steps run in the login thread.
        The work handles its own errors."""
        self._spawn("login", self._drive("login", work, self._login, is_requested=True))

    async def decode(self, name: str, work: Work[T]) -> T:
        """Execute work, with its blocking steps in the decoder thread, and return its result."""
        return await self._requested(name, work, self._decoder)

    async def process_schemas(self, name: str, work: Work[T]) -> T:
        """Execute work, with its blocking steps in the schemas thread, and return its result."""
        return await self._requested(name, work, self._schemas)

    async def check_login(self, work: Work[T]) -> T:
        """Execute a login, with its blocking steps in the login thread, and return its result."""
        result: Deferred[T] = Deferred()
        self.run_login(_with_result(work, result))
        return await as_future(result)

    def refresh_metrics(self, broker: Broker) -> Metrics:
        """Return the broker's metrics, after computing the values that are not updated
        incrementally."""
        metrics = broker.refresh_metrics()
        requests, responses = self.request_bytes, self.response_bytes
        metrics.queued_request_bytes = requests.total
        metrics.queued_response_bytes = responses.total
        metrics.connections_stalled_closed = requests.closed + responses.closed
        return metrics

    async def _requested(self, name: str, work: Work[T], pool: ThreadPoolExecutor) -> T:
        result: Deferred[T] = Deferred()
        self._run_requested(name, _with_result(work, result), pool)
        return await as_future(result)

    def _run_requested(self, name: str, work: Work[None], pool: ThreadPoolExecutor) -> None:
        self.requested += 1
        self._spawn(name, self._finish_requested(name, work, pool))

    async def _finish_requested(
        self, name: str, work: Work[None], pool: ThreadPoolExecutor
    ) -> None:
        try:
            await self._drive(name, work, pool, is_requested=True)
        finally:
            self.requested -= 1

    def abandon(self) -> None:
        """Abort the work that requests wait for, because the drain time is over.

        Each piece of work stops at its next step and rolls back what it can; at worst, the data
        folder looks as if the broker had crashed there. Calls that no thread has started are
        dropped.
        """
        self._is_abandoned = True
        for part in list(self._queued):
            part.cancel()

    def in_thread(self, name: str, part: Step) -> None:
        """Execute a call in the disk thread; no request waits for it."""

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
        self, name: str, work: Work[None], pool: ThreadPoolExecutor, *, is_requested: bool = False
    ) -> None:
        error: BaseException | None = None
        while True:
            began = stopwatch()
            if is_requested and self._is_abandoned:
                work.close()
                return
            try:
                part = next(work) if error is None else work.throw(error)
                while part is yield_control and stopwatch() - began < SLICE_SECONDS:
                    part = next(work)
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
                error = await self._outcome(part, pool, is_requested=is_requested)

    async def _outcome(
        self, part: Step, pool: ThreadPoolExecutor, *, is_requested: bool
    ) -> BaseException | None:
        parts = [part]
        if isinstance(part, Parallel):
            parts, pool = list(part.steps), self._parallel
        running = [pool.submit(each) for each in parts]
        if is_requested:
            self._queued.update(running)
        outcomes = await asyncio.gather(*map(asyncio.wrap_future, running), return_exceptions=True)
        self._queued.difference_update(running)
        return next((each for each in outcomes if isinstance(each, BaseException)), None)

    async def settle(self) -> None:
        """Wait until all work is done."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def finish(self) -> None:
        """Wait until all work is done, then shut down the threads."""
        await self.settle()
        used = (self._disk, self._cleaner, self._decoder, self._schemas, self._login)
        for pool in (*used, self._parallel):
            pool.shutdown()


def _with_result(work: Work[T], result: Deferred[T]) -> Work[None]:
    """Return the work, extended so that its value or error becomes the result."""
    try:
        value = yield from work
    except Exception as error:  # noqa: BLE001 - re-raised in the waiting coroutine
        result.fail(error)
    else:
        result.complete(value)


def execute_jobs(jobs: list[FlushJob]) -> list[StorageError | None]:
    """Execute flush plans sequentially and return the error of each, or None."""
    outcomes: list[StorageError | None] = []
    for job in jobs:
        try:
            job.plan.execute()
            outcomes.append(None)
        except StorageError as error:
            outcomes.append(error)
    return outcomes


class BrokerDriver:
    """Ticks a broker at its deadlines and executes its flushes in threads."""

    def __init__(self, broker: Broker, on_crash: Callable[[str, BaseException], None]) -> None:
        self._broker = broker
        self._on_crash = on_crash
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(FLUSH_THREADS, thread_name_prefix="strandlog-flush")
        self._flush_due = asyncio.Event()
        self._flusher: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._is_stopped = False

    def start(self) -> None:
        self._flusher = asyncio.create_task(self._flush_forever(), name="flushing")
        self._flusher.add_done_callback(self._flusher_ended)
        self._set_timer()

    def schedule(self) -> None:
        """Start the flushes that are due, and set the timer for the next deadline."""
        if self._is_stopped:
            return
        if self._broker.has_due_flushes:
            self._flush_due.set()
        self._set_timer()

    async def stop(self) -> None:
        """Start no further flushes or ticks, and wait for the fsyncs in progress."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._flusher is not None:
            self._flusher.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._flusher
        self._pool.shutdown(wait=True)

    def _flusher_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_crash("flushing", error)

    async def _flush_forever(self) -> None:
        metrics = self._broker.metrics
        while True:
            await self._flush_due.wait()
            self._flush_due.clear()
            jobs = self._broker.take_flushes()
            if not jobs:
                self.schedule()  # the due partitions needed no flush after all
                continue
            began = stopwatch()
            if len(jobs) <= FEW_FLUSHES:
                outcomes = await self._loop.run_in_executor(self._pool, execute_jobs, jobs)
            else:
                outcomes = await self._execute_parallel(jobs)
            metrics.fsyncs += len(jobs)
            metrics.fsync_seconds.observe(stopwatch() - began)
            for job, outcome in zip(jobs, outcomes, strict=True):
                metrics.fsync_failures += outcome is not None
                self._broker.flush_done(job, outcome)
            self.schedule()

    async def _execute_parallel(self, jobs: list[FlushJob]) -> list[StorageError | None]:
        """Execute flush plans in parallel: a file system flushes many small files concurrently in
        little more time than one."""
        running = [self._loop.run_in_executor(self._pool, execute_jobs, [job]) for job in jobs]
        return [outcome for [outcome] in await asyncio.gather(*running)]

    def _set_timer(self) -> None:
        """Set the timer to the next deadline, unless it already fires by then."""
        now_ms = self._broker.clock.monotonic_ms()
        due_ms = self._broker.next_deadline_ms(with_flushes=not self._flush_due.is_set())
        if due_ms is None:
            due_ms = now_ms + MAX_SLEEP_MS
        if self._timer is not None:
            if self._timer_ms <= due_ms:
                return
            self._timer.cancel()
        delay_ms = min(max(0, due_ms - now_ms), MAX_SLEEP_MS)
        self._timer_ms = due_ms
        self._timer = self._loop.call_later(delay_ms / 1000, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._broker.tick()
        self.schedule()


async def as_future(result: Deferred[T]) -> T:
    """Wait for a deferred result and return its value, or raise its error.

    Cancelling the waiting coroutine does not affect the operation itself.
    """
    if not result.is_done:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(_: Deferred[T]) -> None:
            if not future.done():
                future.set_result(None)

        result.on_done(done)
        await future
    return result.result()
