"""Accepts Kafka connections, enforces max.connections, closes idle ones and drains on shutdown."""

from __future__ import annotations

import asyncio
import errno
import logging

from strandlog.broker.broker import Broker
from strandlog.config.limits import LARGE_REQUESTS_MAX_BYTES
from strandlog.config.tables.server import Address
from strandlog.server.background import ServerRuntime
from strandlog.server.kafka.connection import Connection
from strandlog.server.kafka.dispatch import Dispatcher, OncePerSecond
from strandlog.server.listeners import ListenerConfig
from strandlog.server.memory import DecodingGate

logger = logging.getLogger(__name__)

BACKLOG = 1024


class KafkaListener:
    """The Kafka connections of one server."""

    def __init__(
        self,
        broker: Broker,
        runtime: ServerRuntime,
        config: ListenerConfig,
    ) -> None:
        self._config = config
        self._server: asyncio.Server | None = None
        self._connections: set[Connection] = set()
        self._rejected_log = OncePerSecond()
        self.dispatcher = Dispatcher(broker, runtime, config.advertised)
        # The attributes of `ConnectionOwner`.
        self.handle = self.dispatcher.handle
        self.worked = runtime.handle_wake
        self.metrics = broker.metrics
        self.clock = broker.clock
        settings = broker.settings
        self._max_connections = settings.max_connections
        self.max_frame_bytes = settings.socket_request_max_bytes
        self.max_other_frame_bytes = settings.control_request_max_bytes
        self.requests = runtime.request_bytes
        self.replies = runtime.response_bytes
        self.decoding = DecodingGate(LARGE_REQUESTS_MAX_BYTES)
        self.turns = runtime.turns

    # -- listening -------------------------------------------------------------------------------

    async def start(self) -> Address:
        """Bind the socket and return its address."""
        host, port = self._config.address
        try:
            self._server = await asyncio.get_running_loop().create_server(
                lambda: Connection(self), host, port, backlog=BACKLOG
            )
        except OSError as error:
            error.add_note(
                "this machine has no such address: choose another --host"
                if error.errno == errno.EADDRNOTAVAIL
                else "stop the other process, or choose another --host or --port"
            )
            raise
        return Address(*self._server.sockets[0].getsockname()[:2])

    def serve(self) -> None:
        """Do nothing: the listener serves connections from `start` on."""

    def stop_accepting(self) -> None:
        if self._server is not None:
            self._server.close()

    async def stop(self, grace_seconds: float) -> None:
        """Stop accepting and reading. Requests in progress are still answered, until `close_all`
        closes their connections."""
        del grace_seconds
        self.stop_accepting()
        self.drain()

    # -- connections -----------------------------------------------------------------------------

    def opened(self, connection: Connection) -> bool:
        """Register a new connection; return False if max.connections is reached."""
        if len(self._connections) >= self._max_connections:
            self.metrics.connections_refused += 1
            if self._rejected_log.may_log():
                logger.warning(
                    "rejecting the connection from %s: %d clients are connected; raise "
                    "max.connections",
                    connection.peer_host,
                    len(self._connections),
                )
            return False
        self._connections.add(connection)
        self.metrics.connections_accepted += 1
        self.metrics.connections_open = len(self._connections)
        return True

    def closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
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
        for connection in list(self._connections):
            connection.abort()
