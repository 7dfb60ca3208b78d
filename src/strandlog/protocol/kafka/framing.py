"""Splits a byte stream into length-prefixed frames: `feed` bytes, then `cut` frame by frame.

    frame: i32 length | that many bytes; a request starts with its api key (i16)

A negative length, or one over the limit, is an error: the stream cannot be valid. Only Produce
requests, which carry records, may be as large as the limit; all others may have a lower limit,
because a decoded request takes several times as much memory as its bytes. Memory use grows with the
bytes received, not with the length in a prefix. Each frame is a read-only view of a buffer that is
not modified afterwards, so a batch in it is written to disk without copying. If `cut` is called
until it returns None before the next `feed`, a frame that arrives in a single chunk is not copied
at all, and any other is copied once. Frames that have not been cut yet need no objects of their
own, however many there are.
"""

from __future__ import annotations

from strandlog.errors import FrameTooLargeError

LENGTH_SIZE = 4
START_SIZE = LENGTH_SIZE + 2  # the length and the api key
PRODUCE = 0
NOTHING = memoryview(b"")

# Interpreted as lengths, these starts of other protocols exceed any sensible limit: all of them are
# above 300 MB.
_HTTP_STARTS = frozenset({b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"PRI "})
_TLS_HANDSHAKE = b"\x16\x03"


class FrameSplitter:
    """Splits the byte stream of one connection into frames."""

    __slots__ = ("_buffer", "_limit_bytes", "_other_limit_bytes", "_uncut", "_wanted")

    def __init__(self, limit_bytes: int, other_limit_bytes: int | None = None) -> None:
        """Create a splitter. `other_limit_bytes` applies to all requests except Produce; it
        defaults to `limit_bytes`."""
        self._limit_bytes = limit_bytes
        self._other_limit_bytes = min(other_limit_bytes or limit_bytes, limit_bytes)
        self._buffer: bytearray | None = None  # an incomplete frame, including its length
        self._uncut = NOTHING  # received bytes after the last frame that was cut
        self._wanted = LENGTH_SIZE  # how many buffered bytes `cut` needs to continue

    def set_limits(self, limit_bytes: int, other_limit_bytes: int) -> None:
        """Change the limits, also for a frame that is still incomplete."""
        self._limit_bytes = limit_bytes
        self._other_limit_bytes = min(other_limit_bytes, limit_bytes)

    @property
    def buffered_bytes(self) -> int:
        """Number of received bytes that are not part of a frame returned by `cut`."""
        return len(self._uncut) + (len(self._buffer) if self._buffer is not None else 0)

    @property
    def missing_bytes(self) -> int:
        """Number of bytes that `cut` needs to continue: to complete the frame or, if its size is
        not known yet, to determine the size.

        Valid only after `cut` has returned None.
        """
        return self._wanted - self.buffered_bytes

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        uncut = self._uncut
        self._uncut = memoryview(bytes(uncut) + data if len(uncut) else data)

    def cut(self) -> memoryview | None:
        """Return the next complete frame without its length; None if more bytes are needed."""
        uncut = self._uncut
        while self._buffer is not None:
            missing = self._wanted - len(self._buffer)
            self._buffer += uncut[:missing]
            uncut = self._uncut = uncut[missing:]
            if len(self._buffer) < self._wanted:
                return None
            size = self._frame_size(self._buffer)
            if size is None or size > len(self._buffer):
                continue
            whole, self._buffer = self._buffer, None
            return memoryview(whole).toreadonly()[LENGTH_SIZE:]
        size = self._frame_size(uncut)
        if size is not None and size <= len(uncut):
            self._uncut = uncut[size:]
            return uncut[LENGTH_SIZE:size]
        self._buffer = bytearray(uncut) if len(uncut) else None
        self._uncut = NOTHING
        return None

    def compact(self) -> None:
        """Copy the uncut bytes if they keep a much larger chunk in memory. Called when no frame
        will be cut for a while."""
        self._uncut = compacted(self._uncut)

    def _frame_size(self, start: bytearray | memoryview) -> int | None:
        """Return the size of a frame including its length; None until enough of it has arrived."""
        if len(start) < LENGTH_SIZE:
            self._wanted = LENGTH_SIZE
            return None
        length = int.from_bytes(start[:LENGTH_SIZE], signed=True)
        if not 0 <= length <= self._limit_bytes:
            raise FrameTooLargeError(
                _other_protocol(bytes(start[:LENGTH_SIZE]))
                or f"a frame has length {length}; the limit is {self._limit_bytes} bytes"
            )
        if length > self._other_limit_bytes:
            if len(start) < START_SIZE:
                self._wanted = START_SIZE
                return None
            api_key = int.from_bytes(start[LENGTH_SIZE:START_SIZE], signed=True)
            if api_key != PRODUCE:
                raise FrameTooLargeError(
                    f"a request with API key {api_key} has length {length}; "
                    f"the limit is {self._other_limit_bytes} bytes"
                )
        self._wanted = LENGTH_SIZE + length
        return self._wanted


def compacted(view: memoryview) -> memoryview:
    """Return the view, or a copy if the view keeps a much larger buffer in memory."""
    whole = memoryview(view.obj)
    return memoryview(bytes(view)) if 2 * len(view) < len(whole) else view


def _other_protocol(start: bytes) -> str:
    """Return a message that names the protocol if the bytes look like HTTP or TLS, else ""."""
    if start in _HTTP_STARTS:
        return "HTTP client on a Kafka listener; the console and HTTP API use http.port (9095)"
    if start.startswith(_TLS_HANDSHAKE):
        return (
            "TLS client on a plaintext listener; connect it to a listener with TLS, or set "
            "security.protocol to PLAINTEXT or SASL_PLAINTEXT"
        )
    return ""
