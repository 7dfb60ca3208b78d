"""Checks every request (Host, content type, body size) and adds security headers to responses.

The port is meant for programs on this machine or network. But any web page can make a browser send
requests to it, so these headers are checked:

    Host            must be an IP address, localhost or a name that ends in .localhost, an
                    advertised host or a name in `http.hosts` (`*` allows all); otherwise 421. A
                    page whose host name resolves to this server (DNS rebinding) sends that name
    Content-Type    must be JSON in requests that change something (`check_is_json`; the schema
                    registry has its own list, `schemas/answers.py`); otherwise 415. A form on
                    another site cannot send JSON, and without CORS headers a script there cannot
                    either. DELETE needs no content type, because no form can send it
    Content-Length  must not exceed `http.request.max.bytes`; otherwise 413. Without it, the bytes
                    are counted as they arrive (`body_limit.py`). Most routes have a lower limit
                    (`routing.py`)

Paths stay percent-encoded until they are split into segments, because the name of a group may
contain "/". `DEFAULT_HEADERS` prevent browsers from caching, sniffing or framing responses, and
pages of other origins from embedding them; an endpoint may set other values.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from strandlog.server.http.body_limit import too_large
from strandlog.server.http.problems import HttpError, problem_response

ANY_HOST = "*"
_PORT = re.compile(r"(:[0-9]*)?")
CHANGING_METHODS = frozenset({"POST", "PUT", "PATCH"})
DEFAULT_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}


def is_known_host(header: str, hosts: tuple[str, ...]) -> bool:
    """Return whether a Host header is accepted; `hosts` are in lower case."""
    if ANY_HOST in hosts:
        return True
    host = _host_of(header.strip().lower())
    if host == "localhost" or host.endswith(".localhost") or host in hosts:
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _host_of(header: str) -> str:
    """Return the host in a Host header, or "" if anything but a port follows it."""
    if header.startswith("["):
        host, _, rest = header[1:].partition("]")
    else:
        host = header.partition(":")[0]
        rest = header.removeprefix(host)
    return host if _PORT.fullmatch(rest) else ""


class RequestChecks:
    """ASGI middleware that checks requests before it calls the application."""

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...], max_body_bytes: int) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._hosts = tuple(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "uvicorn runs without websockets and lifespan"
        send = _with_headers(send)
        try:
            self._check(Headers(scope=scope))
        except HttpError as error:
            await problem_response(error)(scope, receive, send)
            return
        scope["path"] = scope["raw_path"].decode("ascii", "replace")
        # uvicorn cancels requests when the grace period ends, and would log a traceback for each.
        with contextlib.suppress(asyncio.CancelledError):
            await self._app(scope, receive, send)

    def _check(self, headers: Headers) -> None:
        host = headers.get("host", "")
        if not is_known_host(host, self._hosts):
            raise HttpError(
                421,
                "Unknown host",
                f"host {host!r} is not allowed: use an IP address, or add it to http.hosts",
            )
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self._max_body_bytes:
            raise too_large(self._max_body_bytes)


def check_is_json(request: Request) -> None:
    """Reject a POST, PUT or PATCH whose content type is not JSON, even if it has no body."""
    if request.method not in CHANGING_METHODS:
        return
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HttpError(
            415, "Unsupported media type", "send JSON with Content-Type: application/json"
        )


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in DEFAULT_HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sending
