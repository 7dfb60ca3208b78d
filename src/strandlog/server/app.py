"""Runs one broker with its listeners: startup, crash handling, draining and shutdown.

    Server() open the data folder
    start    listen, serve Kafka and gRPC clients, run timers, return the ready line
    serve    load codecs and the web framework in threads, then serve HTTP clients
    stop     stop accepting and reading, answer requests in flight for at most `drain_ms`, wait
             for the threads, close the folder cleanly

One event loop owns the broker: handlers, timers and all decisions run in it, one at a time. Only
blocking calls and long computations run elsewhere, most of them in the threads of `background.py`.
`loop_monitor` measures how late the loop is.

If a timer, a flush, maintenance or another essential task fails because of a bug, the server
reports it and shuts down (`crash`): a broker that accepts requests but no longer flushes or cleans
would be worse than no broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import signal
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from strandlog.broker.broker import Broker
from strandlog.clock import Clock, SystemClock, stopwatch
from strandlog.config.resolve import ResolvedSetting
from strandlog.config.tables.broker import BrokerSettings, broker_settings
from strandlog.config.tables.server import PLAINTEXT
from strandlog.config.tables.tls import for_listener
from strandlog.config.units import counted
from strandlog.errors import ServerCrashError
from strandlog.server.access.audit_log import AuditFile, AuditLog
from strandlog.server.access.logins import Logins
from strandlog.server.background import BrokerDriver, ServerRuntime
from strandlog.server.kafka.api import warm_up
from strandlog.server.kafka.connections import Interceptor, KafkaConnections
from strandlog.server.kafka.listener import KafkaListener
from strandlog.server.listeners import Listener, ListenerConfig, ListenerSet, check_exposure
from strandlog.server.monitoring.loop_monitor import LoopMonitor
from strandlog.server.monitoring.systemd import Systemd
from strandlog.server.network.connection_limits import ConnectionLimits
from strandlog.server.table_process import TableProcess
from strandlog.server.tls import CertificateReload, TlsContexts

if TYPE_CHECKING:
    from strandlog.server.access.jwks import JwksSource
    from strandlog.storage.files import Files

logger = logging.getLogger(__name__)

MAX_PROBLEMS_LOGGED = 100
IDLE_CHECKS = 10  # checks for idle connections per connections.max.idle.ms
DRAIN_CHECK_SECONDS = 0.01
KILLED_EXIT_CODE = 130
# How long another thread may hold the GIL while the loop waits for it. Compaction is CPU-bound:
# with Python's default of 5 ms, the loop would wait that long each time.
THREAD_SWITCH_SECONDS = 0.0005
# glibc's names and numbers for parameters of its allocator, see mallopt(3).
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_FREE_BYTES = 16 * 1024 * 1024
LARGEST_HEAP_BLOCK_BYTES = 32 * 1024 * 1024  # the most that glibc accepts
ALLOCATOR_VARIABLES = ("GLIBC_TUNABLES", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The data folder, the listeners and the settings of a server."""

    data: str
    # The Kafka listeners come first.
    listeners: tuple[ListenerConfig, ...] = (ListenerConfig("kafka", PLAINTEXT),)
    settings: BrokerSettings = field(default_factory=broker_settings)
    drain_ms: int = 5_000
    http_hosts: tuple[str, ...] = ()
    chosen: Mapping[str, ResolvedSetting] = field(
        default_factory=dict
    )  # every setting with its origin
    table_command: tuple[str, ...] = ()  # starts the process that syncs tables


def tls_contexts(
    configs: Iterable[ListenerConfig], settings: BrokerSettings, clock: Clock
) -> dict[str, TlsContexts]:
    """Load the keys and certificates of the listeners that use TLS; return the contexts by the
    listener's name."""
    return {
        each.label: TlsContexts(
            each.label, for_listener(settings, each.overrides, each.protocol), clock
        )
        for each in configs
        if each.uses_tls
    }


def token_keys(settings: BrokerSettings) -> JwksSource | None:
    """Return the configured source of keys for bearer tokens, or None if none is configured."""
    address = settings.jwks_address()
    if address is None:
        return None
    from strandlog.server.access.jwks import JwksSource  # noqa: PLC0415 - slow to import

    return JwksSource(address, settings)


def _compile_proto(texts: Mapping[str, str]) -> bytes:
    """Compile .proto files; the first call imports the compiler."""
    from strandlog.formats.protobuf.compiler import compile_proto  # noqa: PLC0415 - slow to import

    return compile_proto(texts)


def _load() -> None:
    """Load the codecs of the newest API versions, then exempt all existing objects from garbage
    collection.

    The collector visits every tracked object and blocks the event loop while it does. With the
    partitions of a large broker and the protocol schemas, each pass takes tenths of a second.
    """
    warm_up()
    gc.freeze()


class Server:
    """One broker with its listeners."""

    def __init__(
        self,
        options: ServerOptions,
        files: Files | None = None,
        interceptor: Interceptor | None = None,
    ) -> None:
        check_exposure(options.listeners, options.settings)
        self._options = options
        self._loop = asyncio.get_running_loop()
        clock = SystemClock()
        self._tls = tls_contexts(options.listeners, options.settings, clock)
        self._token_keys = token_keys(options.settings)
        self.runtime = ServerRuntime(options.settings, clock, self._wake, self.crash)
        self._audit_log = self._open_audit_log(clock)
        try:
            self.broker = Broker(
                options.data,
                files,
                clock,
                uuid.uuid4,
                options.settings,
                self.runtime,
                keeps_reserve=True,
                audit_sink=self._audit_log,
                token_keys=self._token_keys,
                proto_compiler=_compile_proto,
            )
        except BaseException:
            if self._audit_log is not None:
                self._audit_log.close()
            raise
        self._log_problems()
        self.kafka = KafkaConnections(self.broker, self.runtime, interceptor)
        self._driver = BrokerDriver(self.broker, self.crash)
        self._loop_monitor = LoopMonitor(self.broker.metrics)
        self._idle_timer: asyncio.TimerHandle | None = None
        self._listeners = ListenerSet()
        self._limits = ConnectionLimits(
            self.broker.settings, delay_ms=self.broker.connection_delay_ms
        )
        self.reload = CertificateReload(self._tls.values(), self.broker.metrics, self.crash)
        self._logins = Logins(self.broker, self.runtime.check_login)
        self._tables = TableProcess(self.broker, options.table_command, self.crash)
        self._was_ready = False
        self.crashed: asyncio.Future[None] = self._loop.create_future()

    def _open_audit_log(self, clock: Clock) -> AuditLog | None:
        settings = self._options.settings
        path = settings.audit_log_path
        if not path:
            return None

        def crash(error: BaseException) -> None:
            self._loop.call_soon_threadsafe(self.crash, "the audit log", error)

        file = AuditFile(path, settings.audit_log_max_bytes, settings.audit_log_max_files)
        return AuditLog(file, path, clock, crash)

    async def start(self) -> str:
        """Start listening and return the ready line."""
        configs = self._options.listeners
        for config in configs:
            if config.name == "kafka":
                await self._listeners.open(config, self._make_kafka)
        self.runtime.start()
        self._loop.set_exception_handler(self._on_unhandled)
        self._driver.start()
        self._loop_monitor.start()
        if self._token_keys is not None:
            self._token_keys.start()
        self._close_idle()
        for config in configs:
            if config.name != "kafka":
                await self._listeners.open(config, self._make_listener)
        self.reload.start()
        self._tables.start()
        self.kafka.dispatcher.listener_settings = {
            **self._listeners.settings(),
            "log.dirs": self.broker.path,
        }
        self._was_ready = True
        self.broker.audit.server("started")
        return f"ready {self._listeners.ready_words()} data={self._options.data}"

    async def open_listener(self, config: ListenerConfig) -> str:
        """Open a gRPC or HTTP listener while the server runs; return its address as HOST:PORT."""
        assert config.name != "kafka", "Kafka listeners are open from the start"
        listener = await self._listeners.open(config, self._make_listener)
        if listener is not None:
            listener.serve()
        return str(self._listeners.addresses[config.name][1])

    def _wake(self) -> None:
        self.kafka.end_revoked()  # changes to users are flushed, and each flush wakes the server
        self._driver.schedule()

    def _make_kafka(self, config: ListenerConfig) -> Listener:
        return KafkaListener(self.kafka, config, self._limits, self._tls.get(config.label))

    def _make_listener(self, config: ListenerConfig) -> Listener:
        """Import and create a listener other than Kafka's."""
        if config.name == "grpc":
            from strandlog.server.grpc.listener import GrpcListener  # noqa: PLC0415 - imports an optional dependency

            tls = self._tls.get(config.label)
            return GrpcListener(self.broker, config.host, config.port, self._logins, tls)
        from strandlog.server.http.listener import HttpListener, HttpOptions  # noqa: PLC0415 - imports an optional dependency

        options, tls = self._options, self._tls.get(config.label)
        _, kafka = self._listeners.addresses["kafka"]
        http = HttpOptions(
            config.host,
            config.port,
            options.http_hosts,
            options.chosen,
            str(kafka),
            options.data,
            principal_of=None if tls is None else tls.principal_of,
            logins=self._logins,
        )
        return HttpListener(self.broker, self.runtime, http, self.crash, self._limits, tls)

    def serve(self, *, warm_up: bool = True) -> None:
        """Start serving. With `warm_up`, load the codecs of the newest API versions in a thread;
        all others are loaded when a request needs them."""
        if warm_up:
            self.runtime.in_thread("loading", _load)
        self._listeners.serve()

    def _log_problems(self) -> None:
        """Log the problems found at startup, up to a limit, and warn if no client can log in."""
        problems = self.broker.problems
        for problem in problems[:MAX_PROBLEMS_LOGGED]:
            logger.warning("%s", problem)
        if len(problems) > MAX_PROBLEMS_LOGGED:
            more = len(problems) - MAX_PROBLEMS_LOGGED
            logger.warning("%s; GET /api/v1/broker lists them", counted(more, "more problem"))
        locked = [each.label for each in self._options.listeners if each.uses_sasl]
        if locked and not self.broker.can_log_in:
            import shlex  # noqa: PLC0415 - only for this message

            logger.warning(
                "no client can log in to %s, because there are no users; stop the broker and add "
                "one with 'strandlog user add NAME -d %s'",
                ", ".join(locked),
                shlex.quote(self._options.data),
            )

    # -- crashes ---------------------------------------------------------------------------------

    def crash(self, what: str, error: BaseException) -> None:
        """Shut the server down because an essential task failed, and report why."""
        logger.error("%s failed with %r; stopping", what, error, exc_info=error)
        if not self.crashed.done():
            self.crashed.set_exception(
                ServerCrashError(f"{what} failed with {error!r}; see the log")
            )

    def _on_unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle an uncaught exception. In a callback or a task, it is a bug and stops the server.
        Any other is only logged, such as one in a connection's protocol: asyncio closes that
        connection."""
        error = context.get("exception")
        # For an exception that was never retrieved, asyncio passes the task as "future".
        is_ours = "handle" in context or isinstance(context.get("future"), asyncio.Task)
        if error is not None and is_ours:
            self.crash(str(context.get("message")), error)
        else:
            loop.default_exception_handler(context)

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
        metrics = self.broker.refresh_metrics()
        requests = sum(times.count for times in metrics.request_seconds.values())
        stall = metrics.event_loop_delay_seconds
        return (
            f"{requests} requests from {metrics.connections_accepted} connections; "
            f"{metrics.produced_records} records ({metrics.produced_bytes} bytes) in, "
            f"{metrics.fetched_bytes} bytes out; {metrics.fsyncs} fsyncs; "
            f"event loop late by at most {stall.max_seconds * 1000:.0f} ms, "
            f"99 % of the time by less than {stall.quantile(0.99) * 1000:.0f} ms"
        )

    # -- stopping --------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Answer requests in flight, finish flushes and close the folder."""
        self.broker.stop_maintenance()
        self._listeners.stop_accepting()
        self.reload.stop()
        await self._tables.stop()
        if self._token_keys is not None:
            self._token_keys.stop()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        await self._drain()
        self.kafka.close_all()
        self.runtime.abandon()
        await self.runtime.settle()
        await self._driver.stop()
        closing = self.broker.flush_for_close()
        self.runtime.run_in_background("stop", closing, is_long=False)
        await self.runtime.finish()
        self._loop_monitor.stop()
        if self._was_ready:  # otherwise there is nothing to summarize
            logger.info("stopped: %s", self._summary())
        self.broker.close()
        if self._audit_log is not None:
            self.broker.audit.server("stopped")
            await asyncio.to_thread(self._audit_log.close)

    async def _drain(self) -> None:
        """Wait until pending requests are answered, everything is flushed and clients have read
        their responses, or until the drain time is over."""
        stopping = asyncio.ensure_future(self._listeners.stop())
        self.kafka.drain()
        self.broker.complete_delayed_fetches()
        deadline = stopwatch() + self._options.drain_ms / 1000
        await self._wait_until(lambda: not self._has_work(), deadline)
        flushed = self.broker.flush_all()
        await self._wait_until(lambda: flushed.is_done, deadline)
        if flushed.error is not None:
            logger.error("records may be missing on the disk: %s", flushed.error)
        for connection in self.kafka.connections():
            connection.close()
        while self.kafka.connections() and stopwatch() < deadline:
            await asyncio.sleep(DRAIN_CHECK_SECONDS)
        await stopping

    async def _wait_until(self, is_reached: Callable[[], bool], deadline: float) -> None:
        """Wait for a condition until the deadline, or until the server has crashed."""
        while not is_reached() and stopwatch() < deadline and not self.crashed.done():
            self._driver.schedule()
            await asyncio.sleep(DRAIN_CHECK_SECONDS)

    def _has_work(self) -> bool:
        return self.broker.has_waiting_requests or self.runtime.requested > 0


async def run_until_stopped(
    options: ServerOptions, say: Callable[[str], None], reload: Callable[[], None] | None = None
) -> None:
    """Run a server until SIGTERM, SIGINT or a crash; pass the ready line to `say`.

    On SIGHUP the server loads changed certificates and calls `reload` in a thread. If it has no
    certificates and no `reload`, and systemd does not run it, SIGHUP ends the process as usual.
    Raise `ServerCrashError` if the server stopped because of an internal failure. A second SIGTERM
    or SIGINT terminates the process immediately, like a crash.
    """
    sys.setswitchinterval(THREAD_SWITCH_SECONDS)
    _keep_freed_memory()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():
            sys.stderr.write(
                "stopped immediately; unflushed data will be checked at the next start\n"
            )
            sys.stderr.flush()
            os._exit(KILLED_EXIT_CODE)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    server = Server(options)
    systemd = Systemd()

    def on_hangup() -> None:
        systemd.reloading()
        server.reload.check_now()
        if reload is not None:
            server.runtime.in_thread("reading settings", reload)
        systemd.ready(ready)

    try:
        ready = await server.start()
        if server.reload.is_used or systemd.is_used or reload is not None:
            loop.add_signal_handler(signal.SIGHUP, on_hangup)
        # Otherwise SIGHUP ends the process, as usual when the terminal closes.
        say(ready)
        systemd.ready(ready)
        server.serve()
        waiting = asyncio.create_task(stop.wait())
        ends: list[asyncio.Future[Any]] = [waiting, server.crashed]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
    finally:
        systemd.stopping()
        try:
            with _first_crash(server):
                await server.stop()
        finally:
            systemd.close()


def _keep_freed_memory() -> None:
    """Let glibc keep up to `KEPT_FREE_BYTES` of freed memory at the end of the heap for the next
    request.

    By default, glibc returns the memory of a large request or response to the kernel when it is
    freed. The next large one needs new pages, which the kernel zeroes; this took about half of the
    processor time of a Fetch. Other C libraries, and an environment that sets one of the
    thresholds, are left alone.
    """
    if any(name in os.environ for name in ALLOCATOR_VARIABLES):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        # Blocks above the threshold for mmap would be mapped and unmapped one by one.
        mallopt(M_MMAP_THRESHOLD, LARGEST_HEAP_BLOCK_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_FREE_BYTES)


@contextlib.contextmanager
def _first_crash(server: Server) -> Iterator[None]:
    """Raise the crash that stopped the server, even if stopping fails too."""
    try:
        yield
    except Exception:
        if not server.crashed.done():
            raise
        logger.exception("stopping failed too")
    if server.crashed.done():
        server.crashed.result()
