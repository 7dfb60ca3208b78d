"""Listens for gRPC clients: the log, the health service and reflection.

A message is at most as large as a request of a Kafka client may be. When the server stops, new
calls are refused at once; those that follow a partition end, others have the time that the drain
leaves them.
"""

from __future__ import annotations

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from strandlog.protocol.rpc import log_pb2
from strandlog.protocol.rpc.log_pb2_grpc import add_LogServiceServicer_to_server
from strandlog.server.core import ServerCore
from strandlog.server.grpc.service import LogServicer

SERVICE = log_pb2.DESCRIPTOR.services_by_name["LogService"].full_name
MOST_CALLS = 4096  # at the same time; more are told to come back


class GrpcDoor:
    """One broker, as gRPC clients see it."""

    def __init__(self, core: ServerCore, host: str, port: int) -> None:
        limit = core.broker.settings.socket_request_max_bytes
        self._server = grpc.aio.server(
            maximum_concurrent_rpcs=MOST_CALLS,
            options=[
                ("grpc.max_receive_message_length", limit),
                ("grpc.max_send_message_length", limit),
                ("grpc.so_reuseport", 0),  # two servers on one port would share its clients
            ],
        )
        add_LogServiceServicer_to_server(LogServicer(core), self._server)
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            [SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME], self._server
        )
        self._host = host
        self._asked_port = port

    async def start(self) -> tuple[str, int]:
        """Listen; the address."""
        where = f"[{self._host}]" if ":" in self._host else self._host
        try:
            port = self._server.add_insecure_port(f"{where}:{self._asked_port}")
        except RuntimeError as error:
            raise OSError(
                f"gRPC cannot listen on {where}:{self._asked_port}: choose another --grpc-port, or "
                f"--no-grpc"
            ) from error
        await self._server.start()
        for name in ("", SERVICE):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        return self._host, port

    def begin(self) -> None:
        """Everything is loaded."""

    async def stop(self, grace_seconds: float) -> None:
        """Take no more calls, give those that are under way some time, hang up."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_seconds)
