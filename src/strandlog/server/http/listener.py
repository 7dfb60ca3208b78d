"""Binds the HTTP socket before the broker is ready; loads and runs the web application afterwards.

    start    bind the socket: from now on the kernel queues connections
    serve    load the web framework in a thread, then serve
    stop     end the live streams, wait for requests to finish, close the remaining connections

A broker starts in a third of a second; loading the framework takes about as long. So this module,
which is imported before the broker reports that it is ready, must not import the framework.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING

from strandlog.broker.broker import Broker
from strandlog.config.limits import HTTP_STALL_SECONDS
from strandlog.config.resolve import ResolvedSetting
from strandlog.config.tables.server import Address
from strandlog.server.background import ServerRuntime

if TYPE_CHECKING:
    from strandlog.server.http.app import HttpServer

NEEDED = ("starlette", "uvicorn", "prometheus_client", "msgspec")
BACKLOG = 256


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """Address, allowed host names, and the server details that the API reports."""

    host: str
    port: int
    hosts: tuple[str, ...] = ()  # allowed in addition to IP addresses and localhost
    chosen: Mapping[str, ResolvedSetting] = field(
        default_factory=dict
    )  # settings with their origin
    kafka_address: str = ""
    data: str = ""


class HttpListener:
    """Serves one broker over HTTP."""

    def __init__(
        self,
        broker: Broker,
        runtime: ServerRuntime,
        options: HttpOptions,
        on_crash: Callable[[str, BaseException], None],
    ) -> None:
        for name in NEEDED:
            if find_spec(name) is None:
                raise ImportError(f"{name} is not installed", name=name)
        self._broker = broker
        self._runtime = runtime
        self._options = options
        self._on_crash = on_crash
        self._socket: socket.socket | None = None
        self._server: HttpServer | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = False

    async def start(self) -> Address:
        """Bind the socket and return its address."""
        host, port = self._options.host, self._options.port
        try:
            [found, *_] = await asyncio.get_running_loop().getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            self._socket = socket.create_server(found[4][:2], family=found[0], backlog=BACKLOG)
        except OSError as error:
            raise OSError(
                f"HTTP cannot listen on {host}:{port} ({error.strerror}): set http.listener "
                f"to another address or --http-port to another port, or use --no-http"
            ) from error
        self._socket.setblocking(False)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux only; accepted connections inherit it
            stall_ms = HTTP_STALL_SECONDS * 1000
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, stall_ms)
        return Address(host, self._socket.getsockname()[1])

    def serve(self) -> None:
        self._task = asyncio.create_task(self._serve(), name="HTTP")
        self._task.add_done_callback(self._ended)

    async def _serve(self) -> None:
        assert self._socket is not None, "start was called"
        server = await asyncio.to_thread(_load, self._broker, self._runtime, self._options)
        if not self._is_stopping:
            self._server = server
            await server.serve(self._socket)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_crash("HTTP", error)

    async def stop(self, grace_seconds: float) -> None:
        self._is_stopping = True
        if self._server is not None:
            self._server.stop(grace_seconds)
        if self._task is not None:
            await asyncio.wait([self._task])
        if self._socket is not None:
            self._socket.close()


def _load(broker: Broker, runtime: ServerRuntime, options: HttpOptions) -> HttpServer:
    from strandlog.server.http.app import HttpServer  # noqa: PLC0415 - slow to import

    return HttpServer(broker, runtime, options)
