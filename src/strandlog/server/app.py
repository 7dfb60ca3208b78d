"""Starts the doors, keeps the broker going, and stops everything in order.

    start    open the folder, listen, say `ready`
    run      requests through the doors; syncs in a worker thread; timers and chores when due
    stop     no new connections, wait for syncs that are under way, close the folder cleanly

One event loop owns the broker: handlers, timers and chores all run in it, one at a time. Only the
disk is waited for elsewhere: flush plans are executed in one worker thread, all dirty partitions at
once.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from strandlog.broker.broker import Broker
from strandlog.broker.durability import SyncJob
from strandlog.clock import SystemClock
from strandlog.config.broker_settings import BrokerSettings, broker_settings
from strandlog.errors import StorageError
from strandlog.server.kafka.connection import Connection
from strandlog.server.kafka.door import KafkaDoor
from strandlog.storage.files import DiskFiles

LONGEST_NAP_MS = 1000


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Where to listen and what to tell clients."""

    data: str
    host: str = "127.0.0.1"
    kafka_port: int = 9092
    advertised: tuple[str, int] | None = None
    settings: BrokerSettings = field(default_factory=broker_settings)


def execute_all(jobs: list[SyncJob]) -> list[StorageError | None]:
    """Execute flush plans one after the other; what each came to."""
    outcomes: list[StorageError | None] = []
    for job in jobs:
        try:
            job.plan.execute()
            outcomes.append(None)
        except StorageError as error:
            outcomes.append(error)
    return outcomes


class Server:
    """One broker with its doors open."""

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self._loop = asyncio.get_running_loop()
        self.broker = Broker(options.data, DiskFiles(), SystemClock(), uuid.uuid4, options.settings)
        self.door = KafkaDoor(
            self.broker,
            advertised=options.advertised,
            max_frame_bytes=options.settings.socket_request_max_bytes,
            max_connections=options.settings.max_connections,
            on_work=self._on_work,
        )
        self.broker.offsets_written = self.door.durability.appended
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="strandlog-sync")
        self._sync_wanted = asyncio.Event()
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_ms = 0
        self._listener: asyncio.Server | None = None
        self._syncer: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Listen; returns the line that says so."""
        options = self._options
        self._listener = await self._loop.create_server(
            lambda: Connection(self.door), options.host, options.kafka_port, backlog=1024
        )
        self._syncer = asyncio.create_task(self._sync_for_ever())
        self._set_alarm()
        host, port = self._listener.sockets[0].getsockname()[:2]
        return f"ready kafka={host}:{port} data={options.data}"

    # -- syncing ---------------------------------------------------------------------------------

    def _on_work(self) -> None:
        """Something was asked of the broker: there may be something to sync or to wait for."""
        if self.door.durability.is_due():
            self._sync_wanted.set()
        self._set_alarm()

    async def _sync_for_ever(self) -> None:
        while True:
            await self._sync_wanted.wait()
            self._sync_wanted.clear()
            jobs = self.door.durability.take()
            if not jobs:
                continue
            outcomes = await self._loop.run_in_executor(self._pool, execute_all, jobs)
            for job, outcome in zip(jobs, outcomes, strict=True):
                self.door.durability.done(job, outcome)
            self._on_work()

    # -- time ------------------------------------------------------------------------------------

    def _next_due_ms(self) -> int:
        due = [self.broker.next_due_ms()]
        waiting = self.door.timers.next_deadline_ms()
        if waiting is not None:
            due.append(waiting)
        syncing = self.door.durability.next_due_ms()
        if syncing is not None and not self._sync_wanted.is_set():
            due.append(syncing)
        return min(due)

    def _set_alarm(self) -> None:
        """Wake up for the next deadline, unless an alarm is set for that time or earlier."""
        due_ms = self._next_due_ms()
        if self._alarm is not None:
            if self._alarm_ms <= due_ms:
                return
            self._alarm.cancel()
        delay_ms = min(max(0, due_ms - self.broker.clock.monotonic_ms()), LONGEST_NAP_MS)
        self._alarm_ms = due_ms
        self._alarm = self._loop.call_later(delay_ms / 1000, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self.door.timers.run_due(self.broker.clock.monotonic_ms())
        self.broker.tick()
        self._on_work()

    # -- the end ---------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Hang up, finish what is being synced, close the folder."""
        if self._listener is not None:
            self._listener.close()
        if self._alarm is not None:
            self._alarm.cancel()
        self.door.close_all()
        if self._syncer is not None:
            self._syncer.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._syncer
        self._pool.shutdown(wait=True)
        self.broker.close()


async def run_until_stopped(options: ServerOptions, say: Callable[[str], None]) -> None:
    """Run a server until SIGTERM or SIGINT; `say` gets the line that it is ready."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server = Server(options)
    try:
        say(await server.start())
        await stop.wait()
    finally:
        await server.stop()
