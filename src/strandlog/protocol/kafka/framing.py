"""Bytes in, whole frames out.

    frame: i32 length | i16 api key | ... that many bytes

A length that is negative or over the limit ends the connection: what follows cannot be a frame.
Only Produce requests, which carry records, may be as large as the limit; all others have a lower
one, because what is decoded takes several times as much memory as its bytes. Memory grows with the
bytes that have arrived, never with a length that was only announced. Each whole frame comes out as
a read-only view of one buffer that is not written to again, so a batch inside it goes to disk
without a copy; a frame that arrived in one piece is not copied at all, any other is copied once.
"""

from __future__ import annotations

from collections.abc import Iterator

from strandlog.errors import DataError

LENGTH_SIZE = 4
START_SIZE = LENGTH_SIZE + 2  # with the api key
PRODUCE = 0

# Read as lengths they are over any limit that is sensible: more than 300 MB.
_HTTP_STARTS = frozenset({b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"PRI "})
_TLS_HANDSHAKE = b"\x16\x03"


class FrameTooLargeError(DataError):
    """The peer announces a frame that is over the limit, or does not speak this protocol."""


class FrameSplitter:
    """The frames of one connection."""

    __slots__ = ("_buffer", "_limit_bytes", "_other_limit_bytes", "_wanted")

    def __init__(self, limit_bytes: int, other_limit_bytes: int | None = None) -> None:
        """`other_limit_bytes` is for requests that are not Produce; the same limit by default."""
        self._limit_bytes = limit_bytes
        self._other_limit_bytes = min(other_limit_bytes or limit_bytes, limit_bytes)
        self._buffer: bytearray | None = None  # an unfinished frame with its length
        self._wanted = LENGTH_SIZE  # how many bytes the next step needs

    @property
    def buffered_bytes(self) -> int:
        """How many bytes of an unfinished frame have arrived."""
        return len(self._buffer) if self._buffer is not None else 0

    @property
    def missing_bytes(self) -> int:
        """How many bytes the unfinished frame still lacks, as far as that is known."""
        return self._wanted - self.buffered_bytes

    def feed(self, data: bytes) -> Iterator[memoryview]:
        """Take in what arrived; yields each frame that is whole now, without its length."""
        rest = memoryview(data)
        while self._buffer is not None:
            missing = self._wanted - len(self._buffer)
            self._buffer += rest[:missing]
            if len(rest) < missing:
                return
            rest = rest[missing:]
            size = self._frame_size(self._buffer)
            if size is None or size > len(self._buffer):
                continue
            whole, self._buffer = self._buffer, None
            yield memoryview(whole).toreadonly()[LENGTH_SIZE:]
        while (size := self._frame_size(rest)) is not None and size <= len(rest):
            yield rest[LENGTH_SIZE:size]
            rest = rest[size:]
        self._buffer = bytearray(rest) if rest else None

    def _frame_size(self, start: bytearray | memoryview) -> int | None:
        """The size of a frame with its length, or None while too little of it is there to say."""
        if len(start) < LENGTH_SIZE:
            self._wanted = LENGTH_SIZE
            return None
        length = int.from_bytes(start[:LENGTH_SIZE], signed=True)
        if not 0 <= length <= self._limit_bytes:
            raise FrameTooLargeError(
                _other_protocol(bytes(start[:LENGTH_SIZE]))
                or f"a frame of {length} bytes was announced, the limit is {self._limit_bytes}"
            )
        if length > self._other_limit_bytes:
            if len(start) < START_SIZE:
                self._wanted = START_SIZE
                return None
            api_key = int.from_bytes(start[LENGTH_SIZE:START_SIZE], signed=True)
            if api_key != PRODUCE:
                raise FrameTooLargeError(
                    f"a request with key {api_key} announces {length} bytes, "
                    f"the limit is {self._other_limit_bytes}"
                )
        self._wanted = LENGTH_SIZE + length
        return self._wanted


def _other_protocol(start: bytes) -> str:
    """What somebody speaks who took this port for another one; "" when it may be Kafka's."""
    if start in _HTTP_STARTS:
        return "this is HTTP on Kafka's port; the console and the API are on http.port (9095)"
    if start.startswith(_TLS_HANDSHAKE):
        return "this is TLS, which is not spoken here; set security.protocol=PLAINTEXT"
    return ""
