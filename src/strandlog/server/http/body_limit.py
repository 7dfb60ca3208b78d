"""Limits the memory used by request bodies and large responses.

All uploads share one budget, and all large responses share another (`peer_budget.py`). An upload
that makes no progress for http.upload.stall.ms, or is not complete after http.upload.timeout.ms,
gets a 408; it is aborted sooner if it stalls while other uploads wait for memory. A body that is
too large gets a 413. Both close the connection, so that the server need not receive the rest of the
body.

A large response acquires its share before it is built (`room`), so responses to slow clients do not
pile up in memory. It is sent in chunks, each after the client has accepted the previous one. A
client that stops reading while other responses wait for memory is disconnected.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from strandlog.config.tables.broker import BrokerSettings
from strandlog.server.http.problems import CLOSE, HttpError
from strandlog.server.peer_budget import Hold, PeerBudget, PeerTooSlowError

UNKNOWN_BODY_BYTES = 1024 * 1024  # assumed size of a body without Content-Length
UPLOAD_PATIENCE_SECONDS = 0.5
ANSWER_PATIENCE_SECONDS = 2.0
LARGE_ANSWER_BYTES = 8 * 1024 * 1024  # assumed size of a large response until it is built
PIECE_BYTES = 64 * 1024  # chunk size of a large response

Disconnect = Callable[[tuple[str, int] | None], None]


def too_large(limit: int) -> HttpError:
    words = f"the body of this request may have at most {limit} bytes; send less"
    return HttpError(413, "Content too large", words, CLOSE)


def _too_slow(words: str) -> HttpError:
    return HttpError(408, "Request timeout", f"{words}; retry the request", CLOSE)


class BodyLimit:
    """The memory budgets of one server."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._uploads = PeerBudget(settings.http_queued_max_request_bytes, UPLOAD_PATIENCE_SECONDS)
        self._answers = PeerBudget(settings.http_queued_max_response_bytes, ANSWER_PATIENCE_SECONDS)
        self._stall_seconds = settings.http_upload_stall_ms / 1000
        self._timeout_seconds = settings.http_upload_timeout_ms / 1000
        self.disconnect: Disconnect = lambda _: None  # set by the server

    @property
    def held_bytes(self) -> int:
        return self._uploads.held_bytes

    @property
    def held_answer_bytes(self) -> int:
        return self._answers.held_bytes

    @contextlib.asynccontextmanager
    async def held(self, request: Request, limit: int) -> AsyncIterator[bytes]:
        """Receive a body of at most `limit` bytes; hold its memory until the block ends."""
        length = request.headers.get("content-length", "")
        size = int(length) if length.isdigit() else min(UNKNOWN_BODY_BYTES, limit)
        if size > limit:
            raise too_large(limit)
        hold = await self._uploads.acquire(size)
        try:
            yield await self._received(request, hold, limit)
        finally:
            hold.release()

    async def _received(self, request: Request, hold: Hold, limit: int) -> bytes:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await self._parts(request, hold, limit)
        except TimeoutError:
            raise _too_slow("the body of the request did not arrive in time") from None
        except PeerTooSlowError:
            raise _too_slow("the upload made no progress while others waited for memory") from None
        except ClientDisconnect:
            raise _too_slow("the client disconnected") from None

    async def _parts(self, request: Request, hold: Hold, limit: int) -> bytes:
        parts: list[bytes] = []
        size = 0
        stream = request.stream()
        while True:
            with hold.waiting_for_peer():
                async with asyncio.timeout(self._stall_seconds):
                    part = await anext(stream, None)
            if part is None:
                return b"".join(parts)
            size += len(part)
            if size > limit:
                raise too_large(limit)
            if size > hold.size:
                hold.resize(size)
            parts.append(part)

    async def room(self) -> Hold:
        """Reserve memory for a response that may be large.

        The caller must either release the hold or pass it to `answer`, which resizes it to the
        actual size of the response.
        """
        return await self._answers.acquire(LARGE_ANSWER_BYTES)

    def answer(self, hold: Hold, body: bytes, status: int, media_type: str) -> Response:
        """Return a response that is sent in chunks and then releases the hold."""
        hold.resize(len(body))
        return _LargeAnswer(self, hold, body, status, media_type)

    async def send(self, hold: Hold, body: bytes, scope: Scope, send: Send) -> None:
        """Send a body; disconnect a client that does not read it while others wait for memory."""
        try:
            for start in range(0, len(body), PIECE_BYTES):
                piece = body[start : start + PIECE_BYTES]
                has_more = start + PIECE_BYTES < len(body)
                with hold.waiting_for_peer():
                    await send({"type": "http.response.body", "body": piece, "more_body": has_more})
        except PeerTooSlowError:
            self.disconnect(scope.get("client"))


class _LargeAnswer(Response):
    def __init__(
        self, bodies: BodyLimit, hold: Hold, body: bytes, status: int, media_type: str
    ) -> None:
        super().__init__(body, status, headers={"content-type": media_type})
        self._bodies = bodies
        self._hold = hold

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del receive
        try:
            start = {"type": "http.response.start", "status": self.status_code}
            await send({**start, "headers": self.raw_headers})
            if scope["method"] == "HEAD" or not self.body:
                await send({"type": "http.response.body", "body": b""})
            else:
                await self._bodies.send(self._hold, bytes(self.body), scope, send)
        finally:
            self._hold.release()
