"""`PendingReply`: the reply to one request of a connection, until it is next to be sent."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from strandlog.clock import stopwatch
from strandlog.model import Buffer

if TYPE_CHECKING:
    from strandlog.server.kafka.connection import Connection

WRITE_AT_ONCE_BYTES = 16 * 1024


class PendingReply:
    """The reply to one request, which keeps its position in the order of replies."""

    __slots__ = (
        "_connection",
        "api",
        "began",
        "buffers",
        "copied_bytes",
        "frame_bytes",
        "gated_bytes",
        "is_filled",
        "on_abandoned",
        "size_bytes",
    )

    def __init__(self, connection: Connection, frame_bytes: int = 0, gated_bytes: int = 0) -> None:
        self._connection = connection
        self.gated_bytes = gated_bytes  # size of a large request, until it leaves the gate
        self.frame_bytes = frame_bytes  # size of the request until it is released; 0 if small
        self.buffers: Sequence[Buffer] | None = None
        self.size_bytes = 0
        # Size of a large reply, or of its records while it is encoded; mapped files do not count.
        self.copied_bytes = 0
        self.is_filled = False
        self.on_abandoned: Callable[[], None] | None = None
        self.api = ""  # the name of the API, once it is known
        self.began = stopwatch()

    def hold(self, buffers: Iterable[Buffer]) -> None:
        """Count the records that were read for a large reply towards the limit on reply memory,
        until `fill` is called. Encoding may take several turns of the event loop. If the records
        were not counted, other connections could read more and more during these turns."""
        count = copied_bytes(buffers)
        if count > WRITE_AT_ONCE_BYTES:
            self.copied_bytes = count
            self._connection.reply_grew(count)

    def fill(self, buffers: Sequence[Buffer] | None) -> None:
        """Set the reply, without its length prefix, or None for a request without a response.
        Further calls have no effect."""
        if self.is_filled:
            return
        self.buffers = buffers
        self.is_filled = True
        held_bytes, self.copied_bytes = self.copied_bytes, 0
        if buffers:
            self.size_bytes = sum(map(len, buffers))
            if self.size_bytes > WRITE_AT_ONCE_BYTES:
                self.copied_bytes = copied_bytes(buffers)
        self.release_frame()
        if self.gated_bytes:
            self.leave_gate()
        self._connection.reply_ready(self, held_bytes)

    def release_frame(self) -> None:
        """Release the bytes of the request."""
        if self.frame_bytes:
            self._connection.frame_released(self.frame_bytes)
            self.frame_bytes = 0

    def leave_gate(self) -> None:
        """Stop counting this request towards the gate's limit, so that others may enter. Called
        once the request has been answered or its connection is lost, or while it waits in the
        broker, which has its own limit on the memory of waiting requests."""
        if self.gated_bytes:
            self._connection.gate_left(self.gated_bytes)
            self.gated_bytes = 0

    def fail(self) -> None:
        """Close the connection, because no response can report the failure."""
        self._connection.count_failure()
        self._connection.abort()


def copied_bytes(buffers: Iterable[Buffer]) -> int:
    """Return the total size of the buffers that are not views of mapped files."""
    return sum([len(each) for each in buffers if not is_mapped(each)])


def is_mapped(buffer: Buffer) -> bool:
    """Return whether a buffer is a view of a mapped log file."""
    return type(buffer) is memoryview and isinstance(buffer.obj, mmap.mmap)
