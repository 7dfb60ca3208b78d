"""All Kafka connections of a server, across its listeners.

Closes idle connections, and drains all connections on shutdown. Connections share max.connections,
the dispatcher and the limits on memory, whichever listener accepted them.

A server may have an `Interceptor`: `strandlog.testing` uses one to inject faults. It sees each new
connection, and each request before the dispatcher does; with SASL, only requests after the login.
Without an interceptor, connections call the dispatcher directly, at no extra cost.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

from strandlog.broker.broker import Broker
from strandlog.config.limits.kafka import LARGE_REQUESTS_MAX_BYTES
from strandlog.server.background import ServerRuntime
from strandlog.server.kafka.connection import Connection, HandleFrame
from strandlog.server.kafka.dispatch import Dispatcher
from strandlog.server.kafka.pending_reply import PendingReply
from strandlog.server.kafka.sasl import SaslLogins, SaslSession
from strandlog.server.memory import DecodingGate
from strandlog.server.network.acceptor import Room


class Interceptor(Protocol):
    """Handles connections and requests before the dispatcher does, in the event loop."""

    def accepts(self) -> bool:
        """Return whether a new connection may stay open."""

    def handle(
        self,
        proceed: HandleFrame,
        frame: memoryview,
        reply: PendingReply,
        connection: Connection,
    ) -> None:
        """Handle one request; `proceed` passes it to the dispatcher. With SASL, this is called only
        for requests after the login."""


class KafkaConnections:
    """The open Kafka connections, and the parts of the server that they use (`ConnectionOwner`)."""

    def __init__(
        self, broker: Broker, runtime: ServerRuntime, interceptor: Interceptor | None = None
    ) -> None:
        self._connections: set[Connection] = set()
        self._interceptor = interceptor
        self.dispatcher = Dispatcher(broker, runtime)
        # The attributes of `ConnectionOwner`.
        self.handle: HandleFrame = self.dispatcher.handle
        if interceptor is not None:
            self.handle = partial(interceptor.handle, self.handle)
        self.worked = runtime.handle_wake
        self.metrics = broker.metrics
        self.clock = broker.clock
        self.audit = broker.audit
        settings = broker.settings
        self.room = Room(settings.max_connections, "max.connections", self._refused)
        self.max_frame_bytes = settings.socket_request_max_bytes
        self.max_other_frame_bytes = settings.control_request_max_bytes
        self.requests = runtime.request_bytes
        self.replies = runtime.response_bytes
        self.decoding = DecodingGate(LARGE_REQUESTS_MAX_BYTES)
        self.turns = runtime.turns
        self._logins = SaslLogins(broker, runtime, self.dispatcher.handle)
        self.room.share(self._logins)

    def opened(self, connection: Connection) -> None:
        """Register a new connection."""
        self._connections.add(connection)
        self.metrics.connections_accepted += 1
        self.metrics.connections_open = len(self._connections)
        if self._interceptor is not None and not self._interceptor.accepts():
            connection.abort()

    def _refused(self) -> None:
        self.metrics.connections_refused += 1

    def begin_sasl(self, connection: Connection) -> SaslSession | None:
        """Require a new connection to authenticate, if its listener uses SASL."""
        return self._logins.open(connection) if connection.listener.uses_sasl else None

    def end_revoked(self) -> None:
        """Close the connections of users whose credentials were changed or deleted."""
        self._logins.end_revoked()

    def closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._logins.closed(connection)
        self.metrics.connections_open = len(self._connections)

    def connections(self) -> list[Connection]:
        return list(self._connections)

    def close_idle(self, max_idle_ms: int) -> None:
        """Close connections with no request in progress that have been idle for `max_idle_ms`."""
        since_ms = self.clock.monotonic_ms() - max_idle_ms
        for connection in [each for each in self._connections if each.is_idle(since_ms)]:
            self.metrics.connections_idle_closed += 1
            connection.close()

    def drain(self) -> None:
        """Accept no more requests; those in progress are still answered."""
        for connection in list(self._connections):
            connection.drain()

    def close_all(self) -> None:
        self._logins.stop()
        for connection in list(self._connections):
            connection.abort()
