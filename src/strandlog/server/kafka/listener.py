"""Binds one address and accepts Kafka connections there, with or without TLS."""

from __future__ import annotations

import errno
import os

from strandlog.config.tables.server import Address
from strandlog.server.kafka.connection import Connection
from strandlog.server.kafka.connections import KafkaConnections
from strandlog.server.listeners import ListenerConfig
from strandlog.server.network.acceptor import Acceptor, Slot, Tls
from strandlog.server.network.connection_limits import ConnectionLimits
from strandlog.server.tls import TlsContexts

BACKLOG = 1024
ADVICE = {
    errno.EADDRNOTAVAIL: "this machine has no such address: choose another --host",
    errno.EADDRINUSE: "stop the other process, or choose another --host or --port",
}


class KafkaListener:
    """One Kafka listener; its connections belong to `KafkaConnections`."""

    def __init__(
        self,
        connections: KafkaConnections,
        config: ListenerConfig,
        limits: ConnectionLimits,
        tls: TlsContexts | None,
    ) -> None:
        self._connections = connections
        self._config = config
        self._tls = tls
        self._acceptor = Acceptor(
            config.label,
            self._connection,
            limits,
            connections.metrics,
            room=connections.room,
            tls=None if tls is None else Tls(tls.current, tls.handshake_seconds),
        )

    def _connection(self, slot: Slot) -> Connection:
        return Connection(self._connections, self._config, slot, self._tls)

    async def start(self) -> Address:
        """Bind the socket, accept connections and return the address."""
        host, port = self._config.address
        try:
            address = await self._acceptor.bind(host, port, BACKLOG)
        except OSError as error:
            number = error.errno or 0  # negative if the host name cannot be resolved
            reason = os.strerror(number) if number > 0 else error.strerror or str(error)
            text = f"cannot listen on {self._config.address}: {reason.lower()}"
            found = OSError(error.errno, text)
            found.add_note(ADVICE.get(number, "choose another --host or --port"))
            raise found from error
        self._acceptor.start()
        return address

    def serve(self) -> None:
        """Do nothing: the listener serves connections from `start` on."""

    def stop_accepting(self) -> None:
        self._acceptor.stop()

    async def stop(self, grace_seconds: float) -> None:
        """Stop accepting and reading. Requests in progress are still answered, until
        `KafkaConnections.close_all` closes their connections."""
        del grace_seconds
        self.stop_accepting()
        self._connections.drain()
