"""Runs one broker with its listeners: startup, crash handling, draining and shutdown.

    start    open the data folder, listen, return the ready line
    run      serve requests; flush, maintain and change topics in threads; run timers
    stop     stop accepting and reading, answer requests in flight for at most `drain_ms`, wait
             for the threads, close the folder cleanly

One event loop owns the broker: handlers, timers and all decisions run in it, one at a time. Only
blocking calls run elsewhere: flush plans in flush threads, the blocking steps of maintenance and
topic changes in the threads of `ServerRuntime`. `loop_monitor` measures how late the loop is.

If one of these tasks fails because of a bug, the server reports it and shuts down (`crash`): a
broker that accepts requests but no longer flushes or cleans would be worse than no broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from strandlog.broker.broker import Broker
from strandlog.broker.runtime import FlushJob
from strandlog.clock import SystemClock, stopwatch
from strandlog.config.resolve import ResolvedSetting
from strandlog.config.tables.broker import BrokerSettings, broker_settings
from strandlog.config.tables.server import PLAINTEXT
from strandlog.errors import ServerCrashError, StorageError
from strandlog.server.background import ServerRuntime
from strandlog.server.kafka.api import warm_up
from strandlog.server.kafka.listener import KafkaListener
from strandlog.server.listeners import Listener, ListenerConfig, ListenerSet
from strandlog.server.loop_monitor import LoopMonitor
from strandlog.storage.files import DiskFiles, Files

logger = logging.getLogger(__name__)

MAX_SLEEP_MS = 1000
MAX_PROBLEMS_LOGGED = 100
IDLE_CHECKS = 10  # per connections.max.idle.ms
DRAIN_CHECK_SECONDS = 0.01
FLUSH_THREADS = 8
FEW_FLUSHES = 4  # up to this many are faster in sequence than spread over threads
KILLED_EXIT_CODE = 130
# How long another thread may hold the GIL while the loop waits for it. Compaction is CPU-bound:
# with Python's default of 5 ms, the loop would wait that long each time.
THREAD_SWITCH_SECONDS = 0.0005


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The data folder, the listeners and the settings of a server."""

    data: str
    listeners: tuple[ListenerConfig, ...] = (ListenerConfig("kafka", PLAINTEXT),)  # Kafka first
    settings: BrokerSettings = field(default_factory=broker_settings)
    drain_ms: int = 5_000
    http_hosts: tuple[str, ...] = ()
    chosen: Mapping[str, ResolvedSetting] = field(
        default_factory=dict
    )  # every setting with its origin


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


def _load() -> None:
    """Load the codecs that requests use, then exempt all existing objects from garbage collection.

    The collector visits every tracked object and blocks the event loop while it does. With the
    partitions of a large broker and the protocol schemas, each pass takes tenths of a second.
    """
    warm_up()
    gc.freeze()


class Server:
    """One broker with its listeners."""

    def __init__(self, options: ServerOptions, files: Files | None = None) -> None:
        self._options = options
        self._loop = asyncio.get_running_loop()
        files = files or DiskFiles(options.settings.dir_mode)
        clock = SystemClock()
        self.runtime = ServerRuntime(options.settings, clock, self._schedule, self.crash)
        self.broker = Broker(
            options.data,
            files,
            clock,
            uuid.uuid4,
            options.settings,
            self.runtime,
            keeps_reserve=True,
        )
        self._log_problems()
        self.kafka = KafkaListener(self.broker, self.runtime, options.listeners[0])
        self._pool = ThreadPoolExecutor(FLUSH_THREADS, thread_name_prefix="strandlog-flush")
        self._flush_due = asyncio.Event()
        self._loop_monitor = LoopMonitor(self.broker.metrics)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._listeners = ListenerSet()
        self._flusher: asyncio.Task[None] | None = None
        self._was_ready = False
        self.crashed: asyncio.Future[None] = self._loop.create_future()

    async def start(self) -> str:
        """Start listening and return the ready line."""
        kafka, *others = self._options.listeners
        await self._listeners.open(kafka, lambda _: self.kafka)
        self.runtime.start()
        self._loop.set_exception_handler(self._on_unhandled)
        self._flusher = asyncio.create_task(self._flush_forever(), name="flushing")
        self._flusher.add_done_callback(self._flusher_ended)
        self._loop_monitor.start()
        self._close_idle()
        self._set_timer()
        for config in others:
            await self._listeners.open(config, self._make_listener)
        self.kafka.dispatcher.listener_settings = {
            **self._listeners.settings(),
            "log.dirs": self.broker.log_dir.path,
        }
        self._was_ready = True
        return f"ready {self._listeners.ready_words()} data={self._options.data}"

    def _make_listener(self, config: ListenerConfig) -> Listener:
        """Import and create a listener other than Kafka's."""
        if config.name == "grpc":
            from strandlog.server.grpc.listener import GrpcListener  # noqa: PLC0415 - optional

            return GrpcListener(self.broker, config.host, config.port)
        from strandlog.server.http.listener import HttpListener, HttpOptions  # noqa: PLC0415 - optional

        options = self._options
        _, kafka = self._listeners.addresses["kafka"]
        http = HttpOptions(
            config.host,
            config.port,
            options.http_hosts,
            options.chosen,
            str(kafka),
            options.data,
        )
        return HttpListener(self.broker, self.runtime, http, self.crash)

    def warm_up(self) -> None:
        """Load the codecs before the first requests arrive, then let the listeners serve."""
        self.runtime.in_thread("loading", _load)
        self._listeners.serve()

    def _log_problems(self) -> None:
        """Log the problems found at startup, up to a limit."""
        problems = self.broker.problems
        for problem in problems[:MAX_PROBLEMS_LOGGED]:
            logger.warning("%s", problem)
        if len(problems) > MAX_PROBLEMS_LOGGED:
            more = len(problems) - MAX_PROBLEMS_LOGGED
            logger.warning("%d more problems; GET /api/v1/broker lists them", more)

    # -- crashes ---------------------------------------------------------------------------------

    def crash(self, what: str, error: BaseException) -> None:
        """Shut the server down because an essential task failed, and report why."""
        logger.error("%s failed with %r; stopping", what, error, exc_info=error)
        if not self.crashed.done():
            self.crashed.set_exception(
                ServerCrashError(f"{what} failed with {error!r}; see the log")
            )

    def _flusher_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.crash("flushing", error)

    def _on_unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle an uncaught exception. In a callback or a task it is a bug in the server; in the
        protocol of a connection, it only closes that connection."""
        error = context.get("exception")
        # For an exception that was never retrieved, asyncio passes the task as "future".
        is_ours = "handle" in context or isinstance(context.get("future"), asyncio.Task)
        if error is not None and is_ours:
            self.crash(str(context.get("message")), error)
        else:
            loop.default_exception_handler(context)

    # -- flushing --------------------------------------------------------------------------------

    def _schedule(self) -> None:
        """Start the flushes that are due, and set the timer for the next deadline."""
        if self.broker.durability.is_due():
            self._flush_due.set()
        self._set_timer()

    async def _flush_forever(self) -> None:
        metrics = self.broker.metrics
        while True:
            await self._flush_due.wait()
            self._flush_due.clear()
            jobs = self.broker.take_flushes()
            if not jobs:
                self._schedule()  # a partition that is due may need no flush
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
                self.broker.flush_done(job, outcome)
            self._schedule()

    async def _execute_parallel(self, jobs: list[FlushJob]) -> list[StorageError | None]:
        """Execute flush plans in parallel: a file system flushes many small files concurrently in
        little more time than one."""
        running = [self._loop.run_in_executor(self._pool, execute_jobs, [job]) for job in jobs]
        return [outcome for [outcome] in await asyncio.gather(*running)]

    # -- timers ----------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        """Set the timer to the next deadline, unless it already fires by then."""
        now_ms = self.broker.clock.monotonic_ms()
        due_ms = self.broker.next_deadline_ms(with_flushes=not self._flush_due.is_set())
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
        self.broker.tick()
        self._schedule()

    def _close_idle(self) -> None:
        max_idle_ms = self._options.settings.connections_max_idle_ms
        self.kafka.close_idle(max_idle_ms)
        nap_seconds = max_idle_ms / 1000 / IDLE_CHECKS
        self._idle_timer = self._loop.call_later(nap_seconds, self._close_idle)

    # -- metrics ---------------------------------------------------------------------------------

    def metrics(self) -> dict[str, Any]:
        """Return the current values of all metrics (`broker/metrics.py`)."""
        return self.runtime.refresh_metrics(self.broker).snapshot()

    def _summary(self) -> str:
        metrics = self.broker.metrics
        requests = sum(times.count for times in metrics.request_seconds.values())
        stall = metrics.event_loop_delay_seconds
        return (
            f"{requests} requests of {metrics.connections_accepted} connections; "
            f"{metrics.produced_records} records ({metrics.produced_bytes} bytes) in, "
            f"{self.broker.delayed_fetches.read_bytes} bytes out; {metrics.fsyncs} fsyncs; "
            f"event loop late by at most {stall.max_seconds * 1000:.0f} ms, "
            f"99 % of the time by less than {stall.quantile(0.99) * 1000:.0f} ms"
        )

    # -- stopping --------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Answer requests in flight, finish flushes and close the folder."""
        self.broker.stop_maintenance()
        self.kafka.stop_accepting()
        for timer in (self._idle_timer, self._timer):
            if timer is not None:
                timer.cancel()
        await self._drain()
        self.kafka.close_all()
        self.runtime.abandon()
        await self.runtime.settle()
        if self._flusher is not None:
            self._flusher.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._flusher
        self._pool.shutdown(wait=True)
        closing = self.broker.log_dir.flushing_for_close()
        self.runtime.run_in_background("stop", closing, is_long=False)
        await self.runtime.finish()
        self._loop_monitor.stop()
        if self._timer is not None:
            self._timer.cancel()
        if self._was_ready:  # otherwise there is nothing to summarize
            logger.info("stopped: %s", self._summary())
        self.broker.close()

    async def _drain(self) -> None:
        """Wait until pending requests are answered and clients have read their responses."""
        stopping = asyncio.ensure_future(self._listeners.stop())
        self.kafka.drain()
        self.broker.complete_delayed_fetches()
        deadline = stopwatch() + self._options.drain_ms / 1000
        while self._has_work() and stopwatch() < deadline and not self.crashed.done():
            self._schedule()
            await asyncio.sleep(DRAIN_CHECK_SECONDS)
        for connection in self.kafka.connections():
            connection.close()
        while self.kafka.connections() and stopwatch() < deadline:
            await asyncio.sleep(DRAIN_CHECK_SECONDS)
        await stopping

    def _has_work(self) -> bool:
        return self.broker.has_waiting_requests or self.runtime.requested > 0


async def run_until_stopped(options: ServerOptions, say: Callable[[str], None]) -> None:
    """Run a server until SIGTERM or SIGINT; `say` is called with the ready line.

    Raises `ServerCrashError` if the server stopped because of an internal failure. A second signal
    terminates the process immediately, like a crash.
    """
    sys.setswitchinterval(THREAD_SWITCH_SECONDS)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():
            sys.stderr.write("stopped at once: the next start checks what was not flushed\n")
            sys.stderr.flush()
            os._exit(KILLED_EXIT_CODE)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    server = Server(options)
    try:
        say(await server.start())
        server.warm_up()
        waiting = asyncio.create_task(stop.wait())
        ends: list[asyncio.Future[Any]] = [waiting, server.crashed]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
    finally:
        with _first_crash(server):
            await server.stop()


@contextlib.contextmanager
def _first_crash(server: Server) -> Iterator[None]:
    """Raise the crash that stopped the server, even if stopping fails as well."""
    try:
        yield
    except Exception:
        if not server.crashed.done():
            raise
        logger.exception("stopping failed as well")
    if server.crashed.done():
        server.crashed.result()
