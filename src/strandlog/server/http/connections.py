"""Limits the number of HTTP connections and their idle time.

    up to http.max.connections     served
    above it, if one is idle       served; the connection that has been idle the longest is closed
    above it, if none is idle      may request /healthz and /readyz; anything else gets a 503 and
                                   closes the connection, so that a retry can find room
    above it by more than HTTP_HEALTH_CONNECTIONS, if none is idle: closed immediately

So idle connections never block an active client, and health checks still get a response on a busy
server. A connection is idle while no request is being processed: between two requests, and also
while the headers of a request arrive slowly. An idle connection is closed after
http.idle.timeout.ms.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from strandlog.broker.metrics import Metrics
from strandlog.clock import stopwatch
from strandlog.config.limits.http import HTTP_HEALTH_CONNECTIONS
from strandlog.server.http.parsing import BoundedParser
from strandlog.server.http.problems import CLOSE, HttpError, problem_response
from strandlog.server.network.acceptor import Slot, closing_on_error

HEALTH_PATHS = ("/healthz", "/readyz")
LOOKS = 10  # checks for idle connections per idle timeout


class Connections:
    """All HTTP connections of a server, least recently active first."""

    def __init__(self, limit: int, idle_seconds: float, metrics: Metrics) -> None:
        self._limit = limit
        self._idle_seconds = idle_seconds
        self._metrics = metrics
        self._open: dict[HttpConnection, None] = {}
        self._by_client: dict[tuple[str, int], HttpConnection] = {}
        self._alarm: asyncio.TimerHandle | None = None

    def protocol(self) -> type[HttpConnection]:
        """Return the protocol class for uvicorn; its connections report to this registry."""
        return type("BoundConnection", (HttpConnection,), {"registry": self})

    def opened(self, connection: HttpConnection) -> bool:
        """Register a new connection; return False if the limit is reached and it must be closed."""
        self._metrics.http_connections_accepted += 1
        if len(self._open) >= self._limit and not self.close_idlest():
            connection.app = _only_health(connection.app)
            if len(self._open) >= self._limit + HTTP_HEALTH_CONNECTIONS:
                self._metrics.http_connections_refused += 1
                return False
        self._open[connection] = None
        if connection.client is not None:
            self._by_client[connection.client] = connection
        self._metrics.http_connections_open = len(self._open)
        self._set_alarm()
        return True

    def closed(self, connection: HttpConnection) -> None:
        self._open.pop(connection, None)
        connection.slot.release()
        if connection.client is not None and self._by_client.get(connection.client) is connection:
            del self._by_client[connection.client]
        self._metrics.http_connections_open = len(self._open)

    def moved(self, connection: HttpConnection) -> None:
        """Mark a connection as the most recently active, because a request started or ended."""
        if self._open.pop(connection, 0) is None:
            self._open[connection] = None

    def abort(self, client: tuple[str, int] | None) -> None:
        """Close the connection of a client and discard its unsent data."""
        connection = None if client is None else self._by_client.get(client)
        if connection is not None:
            connection.transport.abort()

    # -- idle connections --------------------------------------------------------------------------

    def close_idlest(self) -> bool:
        """Close the connection that has been idle the longest; return whether one was idle."""
        for connection in self._open:
            if connection.is_idle():
                self._metrics.http_connections_idle_closed += 1
                self.closed(connection)
                connection.transport.abort()
                return True
        return False

    def _set_alarm(self) -> None:
        if self._alarm is None and self._open:
            loop = asyncio.get_running_loop()
            self._alarm = loop.call_later(self._idle_seconds / LOOKS, self._close_idle)

    def _close_idle(self) -> None:
        self._alarm = None
        since = stopwatch() - self._idle_seconds
        for connection in list(self._open):
            if connection.is_idle() and connection.idle_since < since:
                self._metrics.http_connections_idle_closed += 1
                connection.transport.abort()
        self._set_alarm()


class HttpConnection(H11Protocol):
    """A uvicorn connection that reports its activity to the registry.

    With TLS, `strandlog.certificate` in the scope of each request is the client's certificate
    (DER), or None if the client has none.
    """

    registry: Connections  # set by `Connections.protocol`
    slot: Slot  # counts towards the connection limits; set by `HttpServer.connection`

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.conn = BoundedParser()
        self.idle_since = stopwatch()

    def is_idle(self) -> bool:
        """Return whether no request is being processed."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        with closing_on_error(transport, self.slot.host):
            super().connection_made(transport)
            self._open(transport)

    def _open(self, transport: asyncio.Transport) -> None:
        tls = transport.get_extra_info("ssl_object")
        if tls is not None:
            self.app = _with_certificate(self.app, tls.getpeercert(True))
        if not self.registry.opened(self):
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.registry.closed(self)
        super().connection_lost(exc)

    def handle_events(self) -> None:
        was_idle = self.is_idle()
        super().handle_events()
        if was_idle and not self.is_idle():
            self.registry.moved(self)

    def on_response_complete(self) -> None:
        self.idle_since = stopwatch()
        self.registry.moved(self)
        super().on_response_complete()


def _with_certificate(app: Any, certificate: bytes | None) -> Any:
    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        scope["strandlog.certificate"] = certificate
        await app(scope, receive, send)

    return serve


def _only_health(app: Any) -> Callable[[Scope, Receive, Send], Any]:
    """Return an application that serves only health checks, for connections over the limit."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in HEALTH_PATHS:
            await app(scope, receive, send)
            return
        busy = HttpError(503, "Too many connections", "retry in a moment", CLOSE)
        await problem_response(busy)(scope, receive, send)

    return serve
