"""Starts the doors, keeps the broker going, and stops everything in order.

    start    open the folder, listen, say `ready`
    run      requests through the doors; syncs, chores and changes of topics in threads; timers
    stop     listen no more, read no more, answer what is under way for at most `drain_ms`, wait
             for the threads, close the folder cleanly

One event loop owns the broker: handlers, timers and all that chores decide run in it, one at a
time. Only the disk is waited for elsewhere: flush plans are executed in worker threads, the
partitions that are due at once; the slow parts of chores and of changes of topics in others
(`slow_work.py`). How long the loop is kept from its work is measured (`heartbeat.py`).

When one of these tasks dies of a mistake of ours the server stops and says so (`crash`): a broker
that takes requests and no longer syncs, or cleans, would be worse than none.
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
from strandlog.server.core import ServerCore
from strandlog.server.kafka.api import warm_up
from strandlog.server.kafka.listener import KafkaListener
from strandlog.server.listeners import Listener, ListenerConfig, ListenerSet
from strandlog.server.loop_monitor import Heartbeat
from strandlog.storage.files import DiskFiles, Files

logger = logging.getLogger(__name__)

LONGEST_NAP_MS = 1000
MAX_PROBLEMS_LOGGED = 100
IDLE_LOOKS = 10  # during the time that a client may be silent
DRAIN_LOOK_SECONDS = 0.01
SYNC_THREADS = 8
FEW_SYNCS = 4  # take less time one after the other than to be spread over threads
KILLED_EXIT_CODE = 130
# How long another thread may keep the interpreter while the loop wants it. Compaction computes;
# with Python's 5 ms each turn of the loop waited so long for it.
THREAD_SWITCH_SECONDS = 0.0005


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The data folder, the listeners and the settings of a server."""

    data: str
    listeners: tuple[ListenerConfig, ...] = (ListenerConfig("kafka", PLAINTEXT),)  # Kafka's first
    settings: BrokerSettings = field(default_factory=broker_settings)
    drain_ms: int = 5_000
    http_hosts: tuple[str, ...] = ()
    chosen: Mapping[str, ResolvedSetting] = field(
        default_factory=dict
    )  # every setting with its origin


def execute_all(jobs: list[FlushJob]) -> list[StorageError | None]:
    """Execute flush plans one after the other; the outcome of each."""
    outcomes: list[StorageError | None] = []
    for job in jobs:
        try:
            job.plan.execute()
            outcomes.append(None)
        except StorageError as error:
            outcomes.append(error)
    return outcomes


def _load() -> None:
    """Load what requests need, then take all that is there out of garbage collections.

    The collector looks at every object that it knows, in the event loop: with the partitions of a
    large broker and the schemas of the protocol that takes tenths of a second each time.
    """
    warm_up()
    gc.freeze()


class Server:
    """One broker with its doors open."""

    def __init__(self, options: ServerOptions, files: Files | None = None) -> None:
        self._options = options
        self._loop = asyncio.get_running_loop()
        files = files or DiskFiles(options.settings.dir_mode)
        clock = SystemClock()
        self._runtime = ServerRuntime(options.settings, clock, self._on_work, self.crash)
        self.broker = Broker(
            options.data,
            files,
            clock,
            uuid.uuid4,
            options.settings,
            self._runtime,
            keeps_reserve=True,
        )
        self._log_problems()
        self.core = ServerCore(self.broker, self._runtime)
        self.kafka = KafkaListener(self.broker, self._runtime, options.listeners[0])
        self._pool = ThreadPoolExecutor(SYNC_THREADS, thread_name_prefix="strandlog-sync")
        self._sync_wanted = asyncio.Event()
        self._heartbeat = Heartbeat(self.broker.metrics)
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_ms = 0
        self._idle_look: asyncio.TimerHandle | None = None
        self._listeners = ListenerSet()
        self._syncer: asyncio.Task[None] | None = None
        self._was_ready = False
        self.crashed: asyncio.Future[None] = self._loop.create_future()

    async def start(self) -> str:
        """Start listening; returns the ready line."""
        kafka, *others = self._options.listeners
        await self._listeners.open(kafka, lambda _: self.kafka)
        self._loop.set_exception_handler(self._heard_of)
        self._syncer = asyncio.create_task(self._sync_for_ever(), name="syncing")
        self._syncer.add_done_callback(self._syncer_ended)
        self._heartbeat.start()
        self._look_for_idle()
        self._set_alarm()
        for config in others:
            await self._listeners.open(config, self._make_listener)
        self.kafka.dispatcher.listener_settings = {
            **self._listeners.settings(),
            "log.dirs": self.broker.log_dir.path,
        }
        self._was_ready = True
        return f"ready {self._listeners.ready_words()} data={self._options.data}"

    def _make_listener(self, config: ListenerConfig) -> Listener:
        """Load a listener other than Kafka's and make it."""
        if config.name == "grpc":
            from strandlog.server.grpc.listener import GrpcListener  # noqa: PLC0415 - an extra

            return GrpcListener(self.core, config.host, config.port)
        from strandlog.server.http.listener import HttpListener, HttpOptions  # noqa: PLC0415 - an extra

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
        return HttpListener(self.core, http, self.crash)

    def warm_up(self) -> None:
        """Load what the first requests need, while nobody waits for it."""
        self._runtime.in_thread("loading", _load)
        self._listeners.serve()

    def _log_problems(self) -> None:
        """Log what the start found wrong, up to a limit."""
        problems = self.broker.problems
        for problem in problems[:MAX_PROBLEMS_LOGGED]:
            logger.warning("%s", problem)
        if len(problems) > MAX_PROBLEMS_LOGGED:
            more = len(problems) - MAX_PROBLEMS_LOGGED
            logger.warning("%d more problems; GET /api/v1/broker lists them", more)

    # -- trouble ---------------------------------------------------------------------------------

    def crash(self, what: str, error: BaseException) -> None:
        """A task died that the broker cannot do without: stop, and say why."""
        logger.error("%s died of %r; stopping", what, error, exc_info=error)
        if not self.crashed.done():
            self.crashed.set_exception(ServerCrashError(f"{what} died of {error!r}; see the log"))

    def _syncer_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.crash("syncing", error)

    def _heard_of(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An exception that no code caught. One in a callback or a task is a bug of the server; one
        in the protocol of a connection ends that connection only."""
        error = context.get("exception")
        # asyncio reports the exception of a task that was lost under "future".
        is_ours = "handle" in context or isinstance(context.get("future"), asyncio.Task)
        if error is not None and is_ours:
            self.crash(str(context.get("message")), error)
        else:
            loop.default_exception_handler(context)

    # -- syncing ---------------------------------------------------------------------------------

    def _on_work(self) -> None:
        """Something was asked of the broker: there may be something to sync or to wait for."""
        if self.broker.durability.is_due():
            self._sync_wanted.set()
        self._set_alarm()

    async def _sync_for_ever(self) -> None:
        metrics = self.broker.metrics
        while True:
            await self._sync_wanted.wait()
            self._sync_wanted.clear()
            jobs = self.broker.take_flushes()
            if not jobs:
                self._on_work()  # `take_flushes` looks at some partitions only
                continue
            began = stopwatch()
            if len(jobs) <= FEW_SYNCS:
                outcomes = await self._loop.run_in_executor(self._pool, execute_all, jobs)
            else:
                outcomes = await self._execute_together(jobs)
            metrics.fsyncs += len(jobs)
            metrics.fsync_seconds.observe(stopwatch() - began)
            for job, outcome in zip(jobs, outcomes, strict=True):
                metrics.fsync_failures += outcome is not None
                self.broker.flush_done(job, outcome)
            self._on_work()

    async def _execute_together(self, jobs: list[FlushJob]) -> list[StorageError | None]:
        """A file system makes many small files durable at once nearly as quickly as one."""
        running = [self._loop.run_in_executor(self._pool, execute_all, [job]) for job in jobs]
        return [outcome for [outcome] in await asyncio.gather(*running)]

    # -- time ------------------------------------------------------------------------------------

    def _set_alarm(self) -> None:
        """Wake up for the next deadline, unless an alarm is set for that time or earlier."""
        due_ms = self.broker.next_deadline_ms(with_flushes=not self._sync_wanted.is_set())
        if self._alarm is not None:
            if self._alarm_ms <= due_ms:
                return
            self._alarm.cancel()
        delay_ms = min(max(0, due_ms - self.broker.clock.monotonic_ms()), LONGEST_NAP_MS)
        self._alarm_ms = due_ms
        self._alarm = self._loop.call_later(delay_ms / 1000, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self.broker.tick()
        self._on_work()

    def _look_for_idle(self) -> None:
        max_idle_ms = self._options.settings.connections_max_idle_ms
        self.kafka.close_idle(max_idle_ms)
        nap_seconds = max_idle_ms / 1000 / IDLE_LOOKS
        self._idle_look = self._loop.call_later(nap_seconds, self._look_for_idle)

    # -- figures ---------------------------------------------------------------------------------

    def metrics(self) -> dict[str, Any]:
        """Every figure of the table (`broker/metrics.py`), as it is now."""
        return self.core.up_to_date_metrics().snapshot()

    def _summary(self) -> str:
        metrics = self.broker.metrics
        requests = sum(times.count for times in metrics.request_seconds.values())
        stall = metrics.event_loop_delay_seconds
        return (
            f"{requests} requests of {metrics.connections_accepted} connections; "
            f"{metrics.produced_records} records ({metrics.produced_bytes} bytes) in, "
            f"{self.broker.delayed_fetches.read_bytes} bytes out; {metrics.fsyncs} syncs; "
            f"event loop late by at most {stall.max_seconds * 1000:.0f} ms, "
            f"99 % of the time by less than {stall.quantile(0.99) * 1000:.0f} ms"
        )

    # -- the end ---------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Answer what is under way, finish what is being synced, close the folder."""
        self.broker.stop_maintenance()
        self.kafka.stop_accepting()
        for timer in (self._idle_look, self._alarm):
            if timer is not None:
                timer.cancel()
        await self._drain()
        self.kafka.close_all()
        self._runtime.abandon()
        await self._runtime.settle()
        if self._syncer is not None:
            self._syncer.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._syncer
        self._pool.shutdown(wait=True)
        closing = self.broker.log_dir.flushing_for_close()
        self._runtime.run_in_background("stop", closing, is_long=False)
        await self._runtime.finish()
        self._heartbeat.stop()
        if self._alarm is not None:
            self._alarm.cancel()
        if self._was_ready:  # a broker that never served has nothing to sum up, but an error
            logger.info("stopped: %s", self._summary())
        self.broker.close()

    async def _drain(self) -> None:
        """Let requests that wait for the disk be answered, and replies be taken."""
        stopping = asyncio.ensure_future(self._listeners.stop())
        self.kafka.drain()
        self.broker.complete_delayed_fetches()
        deadline = stopwatch() + self._options.drain_ms / 1000
        while self._has_work() and stopwatch() < deadline and not self.crashed.done():
            self._on_work()
            await asyncio.sleep(DRAIN_LOOK_SECONDS)
        for connection in self.kafka.connections():
            connection.close()
        while self.kafka.connections() and stopwatch() < deadline:
            await asyncio.sleep(DRAIN_LOOK_SECONDS)
        await stopping

    def _has_work(self) -> bool:
        return self.broker.has_waiting_requests or self._runtime.requested > 0


async def run_until_stopped(options: ServerOptions, say: Callable[[str], None]) -> None:
    """Run a server until SIGTERM or SIGINT; `say` gets the line that it is ready.

    `ServerCrashError` when it stopped by itself. A second signal ends the process at once, as a
    crash would.
    """
    sys.setswitchinterval(THREAD_SWITCH_SECONDS)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def told_to_stop() -> None:
        if stop.is_set():
            sys.stderr.write("stopped at once: the next start checks what was not on disk\n")
            sys.stderr.flush()
            os._exit(KILLED_EXIT_CODE)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told_to_stop)
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
    """Whatever goes wrong at the end: what made the server stop is what is told."""
    try:
        yield
    except Exception:
        if not server.crashed.done():
            raise
        logger.exception("stopping went wrong, too")
    if server.crashed.done():
        server.crashed.result()
