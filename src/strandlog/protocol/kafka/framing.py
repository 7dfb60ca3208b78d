"""Bytes in, whole frames out.

    frame: i32 length | that many bytes

A length that is negative or over the limit ends the connection: what follows cannot be a frame.
Memory grows with the bytes that have arrived, never with a length that was only announced. Each
whole frame comes out as a view of one buffer that nobody writes to again, so that a batch inside it
can go to disk without a copy; a frame that arrived in one piece is not copied at all.
"""

from __future__ import annotations

from collections.abc import Iterator

from strandlog.errors import DataError

LENGTH_SIZE = 4

# Read as lengths they are over any limit that is sensible: more than 300 MB.
_HTTP_STARTS = frozenset({b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"PRI "})
_TLS_HANDSHAKE = b"\x16\x03"


class FrameTooLargeError(DataError):
    """The peer announces a frame that is over the limit, or does not speak this protocol."""


class FrameSplitter:
    """The frames of one connection."""

    __slots__ = ("_limit_bytes", "_parts", "_size", "_wanted")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._parts: list[bytes] = []
        self._size = 0
        self._wanted = LENGTH_SIZE  # how many bytes the next step needs

    @property
    def buffered_bytes(self) -> int:
        return self._size

    def feed(self, data: bytes) -> Iterator[memoryview]:
        """Take in what arrived; yields each frame that is whole now, without its length."""
        if self._parts:
            self._parts.append(data)
            self._size += len(data)
            if self._size < self._wanted:
                return
            data = b"".join(self._parts)
            self._parts.clear()
            self._size = 0
        view = memoryview(data)
        position = 0
        while True:
            rest = len(view) - position
            if rest < LENGTH_SIZE:
                self._wanted = LENGTH_SIZE
                break
            length = int.from_bytes(view[position : position + LENGTH_SIZE], signed=True)
            if not 0 <= length <= self._limit_bytes:
                raise FrameTooLargeError(
                    _other_protocol(bytes(view[position : position + LENGTH_SIZE]))
                    or f"a frame of {length} bytes was announced, the limit is {self._limit_bytes}"
                )
            if rest < LENGTH_SIZE + length:
                self._wanted = LENGTH_SIZE + length
                break
            yield view[position + LENGTH_SIZE : position + LENGTH_SIZE + length]
            position += LENGTH_SIZE + length
        if rest:
            self._parts.append(bytes(view[position:]) if position else data)
            self._size = rest


def _other_protocol(start: bytes) -> str:
    """What somebody speaks who took this port for another one; "" when it may be Kafka's."""
    if start in _HTTP_STARTS:
        return "this is HTTP on Kafka's port; the console and the API are on http.port (9095)"
    if start.startswith(_TLS_HANDSHAKE):
        return "this is TLS, which is not spoken here; set security.protocol=PLAINTEXT"
    return ""
