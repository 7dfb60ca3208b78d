"""Runs a server in a thread of this process, for tests.

    with ServerThread(tmp_path, {"num.partitions": "3"}) as server:
        client = KafkaConsumer(bootstrap_servers=server.address)

The server is the same as in `strandlog serve`, on a free port of 127.0.0.1, with real sockets and
real files. The settings `listeners` and, with `http=True` or `grpc=True`, `http.listener` and
`grpc.listener` select other addresses and protocols. The server starts within tens of milliseconds,
because all modules are already imported. Use a separate process if a test kills the broker, sends
it a signal or measures its memory.

The server belongs to its thread. Other threads must access it only through `call`, `run` and
`wait_until`, which run code in the event loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import uvloop

from strandlog.config.origin import Origin
from strandlog.config.resolve import ResolvedSetting
from strandlog.config.setting import Value
from strandlog.config.tables.broker import BROKER_SETTINGS, broker_settings
from strandlog.config.tables.server import (
    LOOPBACK,
    SERVER_SETTINGS,
    Address,
    Endpoint,
    ServerSettings,
    server_settings,
)
from strandlog.config.tables.tls import split_override
from strandlog.server.app import Server, ServerOptions
from strandlog.server.kafka.connections import Interceptor
from strandlog.server.listeners import (
    ListenerConfig,
    ListenerName,
    listener_configs,
)
from strandlog.storage.files import Files

T = TypeVar("T")

TABLE_COMMAND = (sys.executable, "-m", "strandlog.tables.topics.worker")
START_SECONDS = 30
STOP_SECONDS = 60
CHECK_SECONDS = 0.002


class ServerThread:
    """A server in its own thread. Port 0 selects a free port, which is reused after a restart."""

    def __init__(
        self,
        data: Path | str,
        settings: Mapping[str, str] | None = None,
        *,
        http: bool = False,
        grpc: bool = False,
        port: int = 0,
        files: Files | None = None,
        table_command: tuple[str, ...] = TABLE_COMMAND,
        interceptor: Interceptor | None = None,
        warm_up: bool = True,
    ) -> None:
        """Without `warm_up`, the server loads the schema of an API when a request needs it."""
        self.data = Path(data)
        self._settings = dict(settings or {})
        self._others: tuple[tuple[ListenerName, bool], ...] = (("grpc", grpc), ("http", http))
        self._files = files
        self._table_command = table_command
        self._interceptor = interceptor
        self._warms_up = warm_up
        self.port = port
        self.ready = ""
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: Server | None = None
        self._stop: asyncio.Event | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def address(self) -> str:
        """The loopback address of the first Kafka listener, as HOST:PORT."""
        return f"127.0.0.1:{self.port}"

    @property
    def server(self) -> Server:
        """The server itself. Use it only inside `call`, `run` and `wait_until`."""
        assert self._server is not None, "the server is not running"
        return self._server

    def start(self) -> None:
        """Start the server and wait until it accepts connections. Raise the error if it fails."""
        assert self._thread is None, "the server is already running"
        started: concurrent.futures.Future[str] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="strandlog-server")
        self._thread.start()
        try:
            self.ready = started.result(START_SECONDS)
        except BaseException:
            self._join()
            raise
        self.port = int(self.listener("kafka").rpartition(":")[2])

    def stop(self) -> None:
        """Drain connections, close the data folder and wait for the thread to end."""
        if self._thread is None:
            return
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._join()

    def call(self, function: Callable[[], T], timeout_seconds: float = START_SECONDS) -> T:
        """Run a function in the server's event loop and return its result."""
        result: concurrent.futures.Future[T] = concurrent.futures.Future()

        def run() -> None:
            try:
                result.set_result(function())
            except BaseException as error:  # noqa: BLE001 - raised in the calling thread
                result.set_exception(error)

        assert self._loop is not None, "the server is not running"
        self._loop.call_soon_threadsafe(run)
        return result.result(timeout_seconds)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the server's event loop and return its result."""
        assert self._loop is not None, "the server is not running"
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def wait_until(
        self, condition: Callable[[Server], bool], what: str, timeout_seconds: float = START_SECONDS
    ) -> None:
        """Wait until a condition holds. It is evaluated periodically in the server's event loop."""
        reached: concurrent.futures.Future[None] = concurrent.futures.Future()
        assert self._loop is not None, "the server is not running"
        loop = self._loop

        def check() -> None:
            if reached.cancelled():
                return
            try:
                if condition(self.server):
                    reached.set_result(None)
                else:
                    loop.call_later(CHECK_SECONDS, check)
            except BaseException as error:  # noqa: BLE001 - raised in the calling thread
                reached.set_exception(error)

        loop.call_soon_threadsafe(check)
        try:
            reached.result(timeout_seconds)
        except TimeoutError:
            reached.cancel()
            raise TimeoutError(f"{what}: timed out after {timeout_seconds:g} s") from None

    def _listeners(
        self, server: ServerSettings, overrides: Mapping[str, Mapping[str, Value]]
    ) -> tuple[ListenerConfig, ...]:
        """Return the Kafka listeners and, if requested, those for gRPC and HTTP. Listeners that the
        settings do not name are on 127.0.0.1. The first Kafka listener keeps its port after a
        restart."""
        kafka = server.kafka
        if "listeners" not in self._settings:
            kafka = (kafka[0]._replace(address=Address(LOOPBACK, self.port)),)
        elif self.port:
            kafka = (
                kafka[0]._replace(address=kafka[0].address._replace(port=self.port)),
                *kafka[1:],
            )
        others: dict[str, Endpoint | None] = {"grpc": server.grpc, "http": server.http}
        for name, is_wanted in self._others:
            if not is_wanted:
                others[name] = None
            elif f"{name}.listener" not in self._settings:
                others[name] = Endpoint(name, name, Address(LOOPBACK, 0))
        named = ("grpc.listener", "http.listener")
        server = server._replace(kafka=kafka, grpc=others["grpc"], http=others["http"])
        return listener_configs(server, named, overrides)

    def listener(self, name: str) -> str:
        """Return the address of a listener as HOST:PORT, by its name in the ready line."""
        for word in self.ready.split():
            if word.startswith(f"{name}="):
                return word.partition("=")[2]
        raise LookupError(f"the server has no {name} listener: {self.ready}")

    def _run(self, started: concurrent.futures.Future[str]) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            try:
                runner.run(self._serve(started))
            except BaseException as error:
                if started.done():
                    raise
                started.set_exception(error)

    async def _serve(self, started: concurrent.futures.Future[str]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        of_server = {row.name: str(row.default) for row in SERVER_SETTINGS}
        of_server |= {name: each for name, each in self._settings.items() if name in of_server}
        server_values, wrong = server_settings(of_server)
        assert server_values is not None, wrong
        overrides: dict[str, dict[str, Value]] = {}
        of_broker: dict[str, object] = {}
        for name, value in self._settings.items():
            if (parts := split_override(name)) is not None:
                listener, setting = parts
                overrides.setdefault(listener, {})[setting] = BROKER_SETTINGS[setting].parse(value)
            elif name not in of_server:
                of_broker[name] = value
        given = BROKER_SETTINGS.parse(of_broker)
        origin = Origin("option", "ServerThread")
        options = ServerOptions(
            str(self.data),
            self._listeners(server_values, overrides),
            broker_settings(given),
            http_hosts=server_values.http_hosts,
            chosen={
                name: ResolvedSetting(BROKER_SETTINGS[name], value, origin)
                for name, value in given.items()
            },
            table_command=self._table_command,
        )
        self._server = server = Server(options, self._files, self._interceptor)
        try:
            line = await server.start()
            server.serve(warm_up=self._warms_up)
            started.set_result(line)
            stopped = asyncio.create_task(self._stop.wait())
            ends: list[asyncio.Future[Any]] = [stopped, server.crashed]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
        finally:
            await server.stop()
            self._server = None
        if server.crashed.done():
            server.crashed.result()

    def _join(self) -> None:
        assert self._thread is not None
        self._thread.join(STOP_SECONDS)
        assert not self._thread.is_alive(), f"the server did not stop within {STOP_SECONDS} s"
        self._thread = self._loop = self._stop = None
