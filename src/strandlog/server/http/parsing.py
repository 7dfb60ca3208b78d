"""Parses requests with h11 and limits the size of request heads.

h11 checks the size of a head, or of the trailers after a chunked body, only while it is incomplete.
A head that arrives in one read is parsed regardless of its size, which blocks the event loop: 20 ms
for 10,000 headers. So h11 receives the input in chunks, each only when it needs more data, and a
head with too many lines is rejected before it is parsed.
"""

from __future__ import annotations

import re

import h11

from strandlog.config.limits.http import HTTP_MAX_HEAD_BYTES, HTTP_MAX_HEAD_LINES

PIECE_BYTES = 16 * 1024

_BLANK_LINE = re.compile(rb"\n\r?\n")  # ends a head


class BoundedParser(h11.Connection):
    """The server side of one connection, with a limit on the size of request heads."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER, HTTP_MAX_HEAD_BYTES)
        self._arrived = bytearray()  # received, but not yet passed to h11

    def receive_data(self, data: bytes) -> None:
        self._arrived += data

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        while True:
            if self.their_state is h11.IDLE:
                self._check_head()
            event = super().next_event()
            if isinstance(event, h11.Request):
                _check_framing(event)
            if event is not h11.NEED_DATA or not self._arrived:
                return event
            super().receive_data(bytes(self._arrived[:PIECE_BYTES]))
            del self._arrived[:PIECE_BYTES]

    def _check_head(self) -> None:
        data, _ = self.trailing_data
        end = _BLANK_LINE.search(data)
        if data.count(b"\n", 0, end.start() if end else len(data)) > HTTP_MAX_HEAD_LINES:
            raise h11.RemoteProtocolError("too many headers", error_status_hint=431)


def _check_framing(request: h11.Request) -> None:
    """Reject a request with both length headers: if a proxy and h11 used different ones, a client
    could smuggle a request past the proxy."""
    names = {name for name, _ in request.headers}
    if {b"content-length", b"transfer-encoding"} <= names:
        raise h11.RemoteProtocolError("both Content-Length and Transfer-Encoding")
