"""Binds the HTTP socket before the broker is ready; loads and runs the web application afterwards.

    start    bind the socket: from now on the kernel queues connections
    serve    load the web framework in a thread, then accept connections, with or without TLS
    stop     end the live streams, wait for requests to finish, close the remaining connections

A broker starts in a third of a second; loading the framework takes about as long. So this module,
which is imported before the broker reports that it is ready, must not import the framework.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING

from strandlog.broker.broker import Broker
from strandlog.broker.context import Principal
from strandlog.config.authentication import is_loopback
from strandlog.config.limits.http import HTTP_HEALTH_CONNECTIONS, HTTP_STALL_SECONDS
from strandlog.config.resolve import ResolvedSetting
from strandlog.config.tables.server import Address
from strandlog.server.access.logins import Logins
from strandlog.server.background import ServerRuntime
from strandlog.server.network.acceptor import Acceptor, Room, Slot, Tls
from strandlog.server.network.connection_limits import ConnectionLimits
from strandlog.server.tls import TlsContexts

if TYPE_CHECKING:
    from strandlog.server.http.app import HttpServer

logger = logging.getLogger(__name__)

NEEDED = ("starlette", "uvicorn", "prometheus_client", "msgspec")
BACKLOG = 256


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """Address, allowed host names, the server details that the API reports, and the means to
    authenticate clients."""

    host: str
    port: int
    hosts: tuple[str, ...] = ()  # allowed in addition to IP addresses and localhost
    chosen: Mapping[str, ResolvedSetting] = field(
        default_factory=dict
    )  # settings with their origin
    kafka_address: str = ""
    data: str = ""
    # Maps the client certificate of a TLS connection to its principal; None if TLS is not used.
    principal_of: Callable[[bytes | None], Principal | None] | None = None
    logins: Logins | None = None  # shared with gRPC; if None, HttpState creates its own


class HttpListener:
    """Serves one broker over HTTP."""

    def __init__(
        self,
        broker: Broker,
        runtime: ServerRuntime,
        options: HttpOptions,
        on_crash: Callable[[str, BaseException], None],
        limits: ConnectionLimits,
        tls: TlsContexts | None = None,
    ) -> None:
        for name in NEEDED:
            if find_spec(name) is None:
                raise ImportError(f"{name} is not installed", name=name)
        self._broker = broker
        self._runtime = runtime
        self._options = options
        self._on_crash = on_crash
        self._acceptor = Acceptor(
            "http",
            self._connection,
            limits,
            broker.metrics,
            room=Room(
                broker.settings.http_max_connections + HTTP_HEALTH_CONNECTIONS,
                "http.max.connections",
                self._refused,
                self._close_idlest,
            ),
            tls=None if tls is None else Tls(tls.current, tls.handshake_seconds),
        )
        self._server: HttpServer | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = False

    async def start(self) -> Address:
        """Bind the socket and return its address."""
        host, port = self._options.host, self._options.port
        try:
            _, port = await self._acceptor.bind(host, port, BACKLOG)
        except OSError as error:
            number = error.errno or 0  # negative if the host name cannot be resolved
            reason = os.strerror(number) if number > 0 else error.strerror or str(error)
            raise OSError(
                f"HTTP cannot listen on {host}:{port} ({reason.lower()}): set http.listener "
                f"to another address or --http-port to another port, or use --no-http"
            ) from error
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux only; accepted connections inherit it
            stall_ms = HTTP_STALL_SECONDS * 1000
            for listening in self._acceptor.sockets:
                listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, stall_ms)
        is_plain = self._options.principal_of is None
        if (
            is_plain
            and self._broker.settings.http_authentication != "none"
            and not is_loopback(host)
        ):
            logger.warning(
                "HTTP on %s:%d is not encrypted: the network can read passwords, tokens and "
                "sessions; use https:// in http.listener",
                host,
                port,
            )
        return Address(host, port)

    def serve(self) -> None:
        self._task = asyncio.create_task(self._serve(), name="HTTP")
        self._task.add_done_callback(self._ended)

    async def _serve(self) -> None:
        server = await asyncio.to_thread(_load, self._broker, self._runtime, self._options)
        if not self._is_stopping:
            self._server = server
            await server.serve(self._acceptor.start)

    def _connection(self, slot: Slot) -> asyncio.Protocol:
        assert self._server is not None, "the acceptor starts after the server"
        return self._server.connection(slot)

    def _refused(self) -> None:
        self._broker.metrics.http_connections_refused += 1

    def _close_idlest(self) -> bool:
        return self._server is not None and self._server.connections.close_idlest()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_crash("HTTP", error)

    def stop_accepting(self) -> None:
        self._acceptor.stop()

    async def stop(self, grace_seconds: float) -> None:
        self._is_stopping = True
        self.stop_accepting()
        if self._server is not None:
            self._server.stop(grace_seconds)
        if self._task is not None:
            await asyncio.wait([self._task])


def _load(broker: Broker, runtime: ServerRuntime, options: HttpOptions) -> HttpServer:
    from strandlog.server.http.app import HttpServer  # noqa: PLC0415 - slow to import

    return HttpServer(broker, runtime, options)
