"""Receives gRPC calls and sends their responses and errors, for every method.

A call is authenticated before its message is received (`authentication.py`), so a client without
credentials uses no memory for messages.

Every method except reflection accepts one message. The server nevertheless declares a stream of
requests: gRPC then reads the message only when the server asks for it, so that requests that are
being received can share a budget (`grpc.queued.max.request.bytes`). Clients see no difference.

gRPC passes messages as bytes. Decoding a few megabytes of tiny fields is slow and takes a lot of
memory, so strandlog decodes them itself: within limits, in a thread unless the message is small,
and with a clear error for invalid bytes.

Clients decide how long their streams last. Streams are limited to three quarters of grpc.max.calls,
but at least one, so that they leave room for unary calls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message
from grpc import StatusCode

from strandlog.broker.broker import Broker
from strandlog.broker.context import RequestContext
from strandlog.config.limits.grpc import GRPC_SMALL_REQUEST_BYTES
from strandlog.errors import (
    MalformedMessageError,
    StrandlogError,
    ThrottlingQuotaExceededError,
    shortened,
)
from strandlog.server.grpc.authentication import Caller, GrpcAuthentication
from strandlog.server.grpc.disconnect import hang_up
from strandlog.server.metered import within_quota
from strandlog.server.peer_budget import Hold, PeerBudget, PeerTooSlowError

logger = logging.getLogger(__name__)

UPLOAD_PATIENCE_SECONDS = 0.25
RETRY_DELAY = "grpc-retry-pushback-ms"  # clients that retry automatically wait this long

T = TypeVar("T")
Request = TypeVar("Request", bound=Message)
Unary = Callable[[RequestContext, bytes], Awaitable[bytes]]
Streaming = Callable[[RequestContext, bytes, Any], Coroutine[Any, Any, None]]
OpenEnded = Callable[[Any], Coroutine[Any, Any, None]]


def parsed(kind: type[Request], data: bytes) -> Request:
    """Decode a message; raise `MalformedMessageError` if the bytes are invalid."""
    try:
        found: Request = kind.FromString(data)
    except DecodeError:
        raise MalformedMessageError(f"the request is not a valid {kind.__name__}") from None
    return found


def encoded(message: Message) -> bytes:
    data: bytes = message.SerializeToString()
    return data


def small(kind: type[Request], data: bytes, limit: int = GRPC_SMALL_REQUEST_BYTES) -> Request:
    """Decode a request that may have at most `limit` bytes."""
    if len(data) > limit:
        raise MalformedMessageError(
            f"{kind.__name__} may have at most {limit} bytes, got {len(data)}"
        )
    return parsed(kind, data)


class Calls:
    """Wraps the methods of the services in gRPC handlers."""

    def __init__(
        self, broker: Broker, authentication: GrpcAuthentication, port: Callable[[], int]
    ) -> None:
        """`port` returns the port of the listener."""
        settings = broker.settings
        self._authentication = authentication
        self._broker = broker
        self._port = port
        self._metrics = broker.metrics
        self._max_bytes = settings.grpc_request_max_bytes
        self._max_streams = max(1, settings.grpc_max_calls * 3 // 4)
        self._streams = 0
        # Each message that is being received reserves the maximum size, so only a few can be
        # received concurrently. After its arrival, a message reserves only its actual size.
        patience = min(UPLOAD_PATIENCE_SECONDS, settings.grpc_stall_timeout_ms / 1000)
        # Streams have a separate budget, so that they cannot block other calls.
        for_streams = settings.grpc_queued_max_request_bytes // 4
        self._stream_uploads = PeerBudget(for_streams, patience)
        self._uploads = PeerBudget(settings.grpc_queued_max_request_bytes - for_streams, patience)

    def unary(self, method: Unary, *, is_open: bool = False) -> grpc.RpcMethodHandler:
        """Return the handler of a method with one response; an open method needs no credentials."""

        async def handle(_: object, call: Any) -> bytes:
            async def serve() -> bytes:
                caller = await self._caller(call, method, is_open=is_open)
                work = self._received(
                    call, lambda data: method(caller.context, data), self._uploads
                )
                return await within_quota(self._broker, caller.context, work)

            response: bytes = await self._with_status(call, serve())
            return response

        return grpc.stream_unary_rpc_method_handler(handle)

    def streaming(self, method: Streaming, *, is_open: bool = False) -> grpc.RpcMethodHandler:
        """Return the handler of a method that responds with many messages."""

        async def serve(call: Any) -> None:
            caller = await self._caller(call, method, is_open=is_open)
            work = self._received(
                call, lambda data: method(caller.context, data, call), self._stream_uploads
            )
            await self._authentication.run_stream(caller.login, work)

        return self._stream(serve)

    def open_ended(self, method: OpenEnded) -> grpc.RpcMethodHandler:
        """Return the handler of a method that reads and writes messages itself."""

        async def serve(call: Any) -> None:
            caller = await self._caller(call, method)
            await self._authentication.run_stream(caller.login, method(call))

        return self._stream(serve)

    async def _caller(self, call: Any, method: Any, *, is_open: bool = False) -> Caller:
        api: str = method.__name__.strip("_")
        return await self._authentication.caller_of(call, api, is_open=is_open)

    def _stream(self, serve: OpenEnded) -> grpc.RpcMethodHandler:
        async def handle(_: object, context: Any) -> None:
            if self._streams >= self._max_streams:
                words = f"{self._streams} streams are open; close some, or raise grpc.max.calls"
                await self._abort(context, StatusCode.RESOURCE_EXHAUSTED, words)
            self._streams += 1
            try:
                await self._with_status(context, serve(context))
            finally:
                self._streams -= 1

        return grpc.stream_stream_rpc_method_handler(handle)

    async def _received(
        self, context: Any, work: Callable[[bytes], Awaitable[T]], budget: PeerBudget
    ) -> T:
        """Receive the request, then run the method."""
        hold = await budget.acquire(self._max_bytes)
        try:
            data = await self._receive(context, hold)
            hold.resize(len(data))
            return await work(data)
        finally:
            hold.release()

    async def _with_status(self, context: Any, work: Awaitable[Any]) -> Any:
        """Return the result of the work, or end the call with its error as a gRPC status."""
        try:
            return await work
        except PeerTooSlowError:
            self._metrics.grpc_calls_stalled += 1
            await asyncio.to_thread(hang_up, context.peer(), self._port())
            raise asyncio.CancelledError from None
        except StrandlogError as error:
            if isinstance(error, ThrottlingQuotaExceededError):
                context.set_trailing_metadata(((RETRY_DELAY, str(error.retry_after_ms)),))
            await self._abort(context, StatusCode[error.codes.grpc], str(error))
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            # Reading or writing a message fails with `InternalError` if the client has gone, even
            # before `done` returns True.
            if context.done() or isinstance(error, grpc.aio.InternalError):
                logger.debug("gRPC client disconnected: %r", error)
                raise asyncio.CancelledError from None
            logger.exception("internal error in a gRPC call")
            await self._abort(context, StatusCode.INTERNAL, f"{type(error).__name__}: see the log")
        raise AssertionError("abort raises")

    async def _receive(self, context: Any, hold: Hold) -> bytes:
        with hold.waiting_for_peer():
            data = await context.read()
        if data is grpc.aio.EOF:
            raise MalformedMessageError("the call has no request message")
        assert isinstance(data, bytes)
        return data

    async def _abort(self, context: Any, code: StatusCode, words: str) -> None:
        """End the call with an error; the message is sent as a header, so its size is limited."""
        await context.abort(code, shortened(words))
