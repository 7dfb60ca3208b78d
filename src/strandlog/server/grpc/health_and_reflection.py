"""The health and reflection services, with the same limits as all other calls. Health checks need
no credentials; reflection does, where they are required.

The handlers of grpcio read requests as soon as they arrive: a thousand incomplete health checks of
4 MB each would take 4 GB. Here, health checks are received like any call (`calls.py`). A reflection
stream carries many requests; the few streams that can be open at the same time share a separate
budget, and a silent stream is closed when others wait. Requests of both services that are larger
than `GRPC_MAX_NAME_BYTES` are rejected.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2

from strandlog.broker.context import RequestContext
from strandlog.config.limits.grpc import GRPC_MAX_NAME_BYTES, GRPC_REFLECTION_STREAMS
from strandlog.config.tables.broker import BrokerSettings
from strandlog.errors import UnknownServiceError
from strandlog.server.grpc.calls import UPLOAD_PATIENCE_SECONDS, Calls, encoded, small
from strandlog.server.peer_budget import Hold, PeerBudget

HEALTH_SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
REFLECTION_SERVICE = "grpc.reflection.v1alpha.ServerReflection"

Handlers = dict[str, grpc.RpcMethodHandler]


class Health:
    """The standard health service: SERVING until the server stops."""

    def __init__(self, services: tuple[str, ...]) -> None:
        self._services = services
        self._stopping = asyncio.Event()

    def handlers(self, calls: Calls) -> Handlers:
        return {
            "Check": calls.unary(self._check, is_open=True),
            "Watch": calls.streaming(self._watch, is_open=True),
        }

    def stop(self) -> None:
        self._stopping.set()

    def _status(self, service: str) -> health_pb2.HealthCheckResponse:
        response = health_pb2.HealthCheckResponse
        if service and service not in self._services:
            return response(status=response.SERVICE_UNKNOWN)
        is_stopping = self._stopping.is_set()
        return response(status=response.NOT_SERVING if is_stopping else response.SERVING)

    async def _check(self, _: RequestContext, data: bytes) -> bytes:
        service = small(health_pb2.HealthCheckRequest, data, GRPC_MAX_NAME_BYTES).service
        found = self._status(service)
        if found.status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN:
            raise UnknownServiceError(f"unknown service {service!r}")
        return encoded(found)

    async def _watch(self, _: RequestContext, data: bytes, call: Any) -> None:
        service = small(health_pb2.HealthCheckRequest, data, GRPC_MAX_NAME_BYTES).service
        await call.write(encoded(self._status(service)))
        await self._stopping.wait()
        await call.write(encoded(self._status(service)))


class Reflection:
    """The standard reflection service, which returns the services and their descriptors.

    Its implementation, with the descriptors of all of Protobuf's own types, is loaded in a thread
    by the first call."""

    def __init__(self, services: tuple[str, ...], settings: BrokerSettings) -> None:
        self._services = services
        self._max_bytes = settings.grpc_request_max_bytes
        self._budget = PeerBudget(
            GRPC_REFLECTION_STREAMS * self._max_bytes, UPLOAD_PATIENCE_SECONDS
        )

    def handlers(self, calls: Calls) -> Handlers:
        return {"ServerReflectionInfo": calls.open_ended(self._reflection)}

    async def _reflection(self, context: Any) -> None:
        hold = await self._budget.acquire(self._max_bytes)
        try:
            reflection = await asyncio.to_thread(_load_reflection)
            servicer = reflection.aio.ReflectionServicer(self._services)
            async for answer in servicer.ServerReflectionInfo(_requests(context, hold), None):
                await _write(context, hold, answer)
        finally:
            hold.release()


def _load_reflection() -> Any:
    from grpc_reflection.v1alpha import reflection  # noqa: PLC0415 - rarely needed

    return reflection


async def _requests(context: Any, hold: Hold) -> AsyncIterator[Message]:
    from grpc_reflection.v1alpha import reflection_pb2  # noqa: PLC0415 - see _load_reflection

    while True:
        with hold.waiting_for_peer():
            data = await context.read()
        if data is grpc.aio.EOF:
            return
        yield small(reflection_pb2.ServerReflectionRequest, data, GRPC_MAX_NAME_BYTES)


async def _write(context: Any, hold: Hold, message: Message) -> None:
    with hold.waiting_for_peer():
        await context.write(encoded(message))


def service_names(own: str) -> tuple[str, ...]:
    """Return the names of all services of the server, for reflection."""
    return own, HEALTH_SERVICE, REFLECTION_SERVICE
