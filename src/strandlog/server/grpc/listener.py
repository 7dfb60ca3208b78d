"""Serves LogService, health and reflection over gRPC.

All resources that a client can use are limited: connections, calls, the size of messages and
metadata, and the memory of calls that wait for their clients (`calls.py`, `service.py`).
A connection without calls is closed after grpc.idle.timeout.ms; one that does not complete its
handshake is closed after the handshake timeout (`_handshake_ms`).

When the server stops, it rejects new calls immediately; running calls, including streams that
follow a partition, are cancelled after the grace period.
"""

from __future__ import annotations

import asyncio

import grpc

from strandlog.broker.broker import Broker
from strandlog.config.limits.grpc import GRPC_HANDSHAKE_TIMEOUT_MS, GRPC_MAX_METADATA_BYTES
from strandlog.config.setting import MAX_INT
from strandlog.config.tables.server import Address
from strandlog.protocol.rpc import log_pb2
from strandlog.server.access.logins import Logins
from strandlog.server.grpc.authentication import GrpcAuthentication
from strandlog.server.grpc.calls import Calls
from strandlog.server.grpc.credentials import server_credentials
from strandlog.server.grpc.disconnect import hang_up_all
from strandlog.server.grpc.health_and_reflection import (
    HEALTH_SERVICE,
    REFLECTION_SERVICE,
    Health,
    Reflection,
    service_names,
)
from strandlog.server.grpc.service import LogService
from strandlog.server.tls import TlsContexts

SERVICE = log_pb2.DESCRIPTOR.services_by_name["LogService"].full_name
MAX_MESSAGE_BYTES = 2**31 - 1  # no limit on responses; consume.py splits the results of Consume


def _handshake_ms(tls: TlsContexts | None) -> int:
    """Return the time for the HTTP/2 handshake and, with TLS, the TLS handshake before it."""
    return GRPC_HANDSHAKE_TIMEOUT_MS if tls is None else tls.settings.ssl_handshake_timeout_ms


class GrpcListener:
    """Serves one broker over gRPC."""

    def __init__(
        self,
        broker: Broker,
        host: str,
        port: int,
        logins: Logins,
        tls: TlsContexts | None = None,
    ) -> None:
        settings = broker.settings
        self._tls = tls
        self._server = grpc.aio.server(
            maximum_concurrent_rpcs=settings.grpc_max_calls,
            options=[
                ("grpc.max_receive_message_length", settings.grpc_request_max_bytes),
                ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
                ("grpc.max_metadata_size", GRPC_MAX_METADATA_BYTES),
                ("grpc.max_concurrent_streams", settings.grpc_connection_max_calls),
                ("grpc.max_allowed_incoming_connections", settings.grpc_max_connections),
                ("grpc.max_connection_idle_ms", min(settings.grpc_idle_timeout_ms, MAX_INT)),
                ("grpc.server_handshake_timeout_ms", _handshake_ms(tls)),
                # gRPC resets calls at random when more than this many wait to be accepted by the
                # event loop. With its default, 1000, a burst of streams could cancel other calls.
                ("grpc.server.max_pending_requests", 2 * settings.grpc_max_calls),
                ("grpc.server.max_pending_requests_hard_limit", 4 * settings.grpc_max_calls),
                (
                    "grpc.http2.bdp_probe",
                    0,
                ),  # otherwise gRPC buffers megabytes per unread call
                ("grpc.so_reuseport", 0),  # otherwise two servers could share one port
            ],
        )
        principal_of = None if tls is None else tls.principal_of
        authentication = GrpcAuthentication(broker, host, logins, principal_of)
        calls = Calls(broker, authentication, lambda: self._port)
        self._health = Health((SERVICE,))
        for name, handlers in {
            SERVICE: LogService(broker).handlers(calls),
            HEALTH_SERVICE: self._health.handlers(calls),
            REFLECTION_SERVICE: Reflection(service_names(SERVICE), settings).handlers(calls),
        }.items():
            handler = grpc.method_handlers_generic_handler(name, handlers)
            self._server.add_generic_rpc_handlers((handler,))
        self._host = host
        self._asked_port = port
        self._port = 0  # the actual port, once the server is listening

    async def start(self) -> Address:
        """Bind the socket and return its address."""
        where = f"[{self._host}]" if ":" in self._host else self._host
        try:
            address = f"{where}:{self._asked_port}"
            if self._tls is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, server_credentials(self._tls))
        except RuntimeError as error:
            raise OSError(
                f"gRPC cannot listen on {where}:{self._asked_port}: set grpc.listener to another "
                f"address or --grpc-port to another port, or use --no-grpc"
            ) from error
        await self._server.start()
        self._port = port
        return Address(self._host, port)

    def serve(self) -> None:
        """Do nothing: the listener serves calls from `start` on."""

    def stop_accepting(self) -> None:
        """Do nothing: only `stop` can stop gRPC from accepting connections."""

    async def stop(self, grace_seconds: float) -> None:
        """Reject new calls, wait for running ones until the grace period ends, then cancel them and
        close the connections."""
        self._health.stop()
        stopping = asyncio.ensure_future(self._server.stop(grace_seconds))
        if not (await asyncio.wait({stopping}, timeout=grace_seconds + 1))[0]:
            # gRPC would wait 20 s for a client that does not read.
            hang_up_all(self._port)
        await stopping
