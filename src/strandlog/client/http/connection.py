"""Sends requests to an HTTP server over one persistent connection, from any thread.

    unreachable, or no complete response in time    UnreachableError
    response too large                              RemoteError
    any status                                      returned; the caller handles it
    no address or credentials                       the error of `find` or of the login, unchanged

The server may close an idle connection at any time. A request that finds the connection closed is
resent once over a new connection. A DELETE always starts with a new connection, because a repeated
DELETE could fail after the first one has succeeded. Redirects are not followed.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, RemoteDisconnected
from typing import NamedTuple

from strandlog.client.http.address import HttpAddress
from strandlog.client.http.login import HttpLogin
from strandlog.clock import stopwatch
from strandlog.errors import RemoteError, UnreachableError

MAX_RESPONSE_BYTES = 64 * 1024 * 1024
READ_BYTES = 64 * 1024
_CLOSED_BY_SERVER = (RemoteDisconnected, ConnectionResetError, BrokenPipeError)


class HttpAnswer(NamedTuple):
    """An HTTP response."""

    status: int
    body: bytes


class HttpConnections:
    """Sends requests to one server, one at a time."""

    def __init__(
        self, find: Callable[[], HttpAddress], login: HttpLogin, timeout_seconds: float
    ) -> None:
        """`find` returns the address, and is called for each new connection."""
        self._find = find
        self._login = login
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._address: HttpAddress | None = None
        self._connection: HTTPConnection | None = None
        self._login_headers: dict[str, str] = {}

    @property
    def address(self) -> str:
        """The address of the last connection, or a general name before the first, for messages."""
        return str(self._address or "the HTTP server")

    @property
    def has_credentials(self) -> bool:
        """Whether requests over the last connection carried credentials in a header."""
        return bool(self._login_headers)

    def request(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> HttpAnswer:
        """Send a request and return the response. Raise `UnreachableError` if the response does
        not arrive completely and in time, or `RemoteError` if it is too large."""
        with self._lock:
            if method == "DELETE":
                self._disconnect()
            was_open = self._connection is not None
            try:
                try:
                    return self._exchange(method, path, body, headers)
                except _CLOSED_BY_SERVER:
                    if not was_open:
                        raise
                    self._disconnect()
                    return self._exchange(method, path, body, headers)
            except TimeoutError:
                self._disconnect()
                raise UnreachableError(
                    f"{self.address} did not respond within {self._timeout_seconds:g} s"
                ) from None
            except (OSError, HTTPException) as error:
                self._disconnect()
                reason = str(error) or type(error).__name__
                raise UnreachableError(f"cannot reach {self.address}: {reason}") from error
            except BaseException:
                self._disconnect()  # the next request must not read a late response to this one
                raise

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        with self._lock:
            self._disconnect()

    def _exchange(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> HttpAnswer:
        if self._connection is None:
            self._address = self._find()
            self._connection, self._login_headers = self._login.connect(
                self._address, self._timeout_seconds
            )
        assert self._address is not None
        deadline = stopwatch() + self._timeout_seconds
        self._connection.request(
            method, self._address.path + path, body, {**headers, **self._login_headers}
        )
        response = self._connection.getresponse()
        return HttpAnswer(response.status, self._body(response, deadline))

    def _body(self, response: HTTPResponse, deadline: float) -> bytes:
        """Read a response body; its size and the time until it is complete are limited."""
        pieces: list[bytes] = []
        size = 0
        while piece := response.read1(READ_BYTES):
            pieces.append(piece)
            size += len(piece)
            if size > MAX_RESPONSE_BYTES:
                raise RemoteError(
                    f"the response of {self.address} exceeds {MAX_RESPONSE_BYTES} bytes"
                )
            if stopwatch() > deadline:
                raise TimeoutError
        if response.length:
            raise HTTPException("the response is incomplete")
        response.close()  # otherwise the connection accepts no further request
        return b"".join(pieces)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.close()
