"""How a call is received, answered and refused, whatever its method.

Every method takes one message. The server nevertheless declares it as a stream of requests: then
gRPC reads the message when we ask for it, and not before, so that requests that are being received
share a budget (`grpc.queued.max.request.bytes`). For clients there is no difference.

Messages arrive and leave as bytes. Decoding a few megabytes of tiny fields takes long and much
memory, so it happens here: within bounds, in a thread unless the message is small, and with an
error in words for bytes that are no such message.

Streams last for as long as their clients like. They get three quarters of grpc.max.calls, so that
there is always room for a call that ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message
from grpc import StatusCode

from strandlog.errors import MalformedMessageError, StrandlogError, shortened
from strandlog.server.core import ServerCore
from strandlog.server.grpc.hanging_up import hang_up
from strandlog.server.peer_budget import Hold, PeerBudget, PeerTooSlowError

logger = logging.getLogger(__name__)

SMALL_REQUEST_BYTES = 64 * 1024  # every request but Produce
UPLOAD_PATIENCE_SECONDS = 0.25

Request = TypeVar("Request", bound=Message)
Unary = Callable[[bytes], Awaitable[bytes]]
Streaming = Callable[[bytes, Any], Awaitable[None]]
OpenEnded = Callable[[Any], Awaitable[None]]


def parsed(kind: type[Request], data: bytes) -> Request:
    """The message, if it is one."""
    try:
        found: Request = kind.FromString(data)
    except DecodeError:
        raise MalformedMessageError(f"the request is not a valid {kind.__name__}") from None
    return found


def encoded(message: Message) -> bytes:
    data: bytes = message.SerializeToString()
    return data


def small(kind: type[Request], data: bytes, limit: int = SMALL_REQUEST_BYTES) -> Request:
    """The message of a method that never needs many bytes."""
    if len(data) > limit:
        raise MalformedMessageError(f"a {kind.__name__} has at most {limit} bytes, got {len(data)}")
    return parsed(kind, data)


class Calls:
    """Makes handlers out of methods."""

    def __init__(self, core: ServerCore) -> None:
        settings = core.broker.settings
        self._metrics = core.metrics
        self._max_bytes = settings.grpc_request_max_bytes
        self._max_streams = max(1, settings.grpc_max_calls * 3 // 4)
        self._streams = 0
        # A whole message may be on its way until it is here, so few can be received at once; one
        # that is all there takes no time.
        patience = min(UPLOAD_PATIENCE_SECONDS, settings.grpc_stall_timeout_ms / 1000)
        # Many streams hold up no other calls.
        for_streams = settings.grpc_queued_max_request_bytes // 4
        self._stream_uploads = PeerBudget(for_streams, patience)
        self._uploads = PeerBudget(settings.grpc_queued_max_request_bytes - for_streams, patience)

    def unary(self, method: Unary) -> grpc.RpcMethodHandler:
        async def handle(_: object, context: Any) -> bytes:
            answer: bytes = await self._answered(context, method, self._uploads)
            return answer

        return grpc.stream_unary_rpc_method_handler(handle)

    def streaming(self, method: Streaming) -> grpc.RpcMethodHandler:
        """The handler of a method that answers one message with many."""

        async def serve(context: Any) -> None:
            async def work(data: bytes) -> None:
                await method(data, context)

            await self._answered(context, work, self._stream_uploads)

        return self._stream(serve)

    def open_ended(self, method: OpenEnded) -> grpc.RpcMethodHandler:
        """The handler of a method that reads and writes as it likes."""

        async def serve(context: Any) -> None:
            await self._refused(context, method(context))

        return self._stream(serve)

    def _stream(self, serve: OpenEnded) -> grpc.RpcMethodHandler:
        async def handle(_: object, context: Any) -> None:
            if self._streams >= self._max_streams:
                words = f"{self._streams} streams are open; end some, or raise grpc.max.calls"
                await self._abort(context, StatusCode.RESOURCE_EXHAUSTED, words)
            self._streams += 1
            try:
                await serve(context)
            finally:
                self._streams -= 1

        return grpc.stream_stream_rpc_method_handler(handle)

    async def _answered(
        self, context: Any, work: Callable[[bytes], Awaitable[Any]], budget: PeerBudget
    ) -> Any:
        """Receive the request, then do the work."""
        hold = await budget.acquire(self._max_bytes)

        async def receive_and_work() -> Any:
            data = await self._received(context, hold)
            hold.resize(len(data))
            return await work(data)

        try:
            return await self._refused(context, receive_and_work())
        finally:
            hold.release()

    async def _refused(self, context: Any, work: Awaitable[Any]) -> Any:
        """What the work gives, or its error as a status."""
        try:
            return await work
        except PeerTooSlowError:
            self._metrics.grpc_calls_stalled += 1
            await asyncio.to_thread(hang_up, context.peer())
            raise asyncio.CancelledError from None
        except StrandlogError as error:
            await self._abort(context, StatusCode[error.codes.grpc], str(error))
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            if context.done():
                logger.debug("a gRPC client hung up: %r", error)
                raise asyncio.CancelledError from None
            logger.exception("a gRPC call went wrong")
            await self._abort(context, StatusCode.INTERNAL, f"{type(error).__name__}: see the log")
        raise AssertionError("abort raises")

    async def _received(self, context: Any, hold: Hold) -> bytes:
        with hold.waiting_for_peer():
            data = await context.read()
        if data is grpc.aio.EOF:
            raise MalformedMessageError("the call carries no request")
        assert isinstance(data, bytes)
        return data

    async def _abort(self, context: Any, code: StatusCode, words: str) -> None:
        """End the call with an error; the words travel in a header, which has a limit."""
        await context.abort(code, shortened(words))
