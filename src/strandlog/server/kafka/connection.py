"""One client's socket.

    bytes ─▶ frames ─▶ dispatch ─▶ reply slots ─▶ bytes, in the order of the requests

A reply may come later (a long poll, a join, a sync to disk); those behind it wait in their slots,
because Kafka's protocol answers in order. At most `max_inflight` requests are being worked on;
reading stops at that, and while the peer does not take what was written, so a client costs a
bounded amount of memory whatever it does. A request that cannot be read, or a Produce with acks=0
that fails, closes the connection: there is no other way to tell.

At the end (`drain`) nothing more is read; what is under way is answered, and when all of it is
written the connection closes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from strandlog.broker.metrics import Metrics
from strandlog.clock import Clock, stopwatch
from strandlog.errors import DataError
from strandlog.protocol.kafka.framing import FrameSplitter
from strandlog.storage.partition_log import PartitionLog

Buffer = bytes | bytearray | memoryview
logger = logging.getLogger(__name__)

WRITE_HIGH_WATER_BYTES = 1024 * 1024
WRITE_AT_ONCE_BYTES = 16 * 1024
JOINED_BYTES = 16 * 1024  # so little is written quicker as one buffer, copied together


class Slot:
    """The place of one reply in the order of replies."""

    __slots__ = ("_connection", "api", "began", "buffers", "is_filled", "on_abandoned")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.buffers: Sequence[Buffer] | None = None
        self.is_filled = False
        self.on_abandoned: Callable[[], None] | None = None
        self.api = ""  # which request this answers, once that is known
        self.began = stopwatch()

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.buffers)) if self.buffers else 0

    def fill(self, buffers: Sequence[Buffer] | None) -> None:
        """The reply, without its length; None for a request that gets none."""
        if not self.is_filled:
            self.buffers = buffers
            self.is_filled = True
            self._connection.slot_filled(self)

    def fail(self) -> None:
        """There is no way to answer: hang up."""
        self._connection.count_failure()
        self._connection.abort()


class Door(Protocol):
    """What a connection needs of the server around it."""

    max_frame_bytes: int
    max_inflight: int
    metrics: Metrics
    clock: Clock

    def handle(self, frame: memoryview, slot: Slot, connection: Connection) -> None:
        """Work on one request; fills the slot now or later."""

    def worked(self) -> None:
        """All requests that may be under way were begun."""

    def opened(self, connection: Connection) -> bool:
        """A client connected; False when there is no room for it."""

    def closed(self, connection: Connection) -> None:
        """A client went."""


class Connection(asyncio.Protocol):
    """One client."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._splitter = FrameSplitter(door.max_frame_bytes)
        self._slots: deque[Slot] = deque()
        self._waiting: deque[memoryview] = deque()
        self._transport: asyncio.Transport | None = None
        self._peer_reads = True
        self._is_paused = False
        self._is_working = False
        self._is_draining = False
        self.answered_at: dict[PartitionLog, int] = {}  # where fetches began that got records
        self.last_active_ms = 0
        self.local_address: tuple[str, int] = ("127.0.0.1", 0)
        self.peer_host = ""

    # -- asyncio ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's, they only behave like them.
        self._transport = transport = cast(asyncio.Transport, transport)
        local, peer = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
        self.local_address = (local[0], local[1]) if local else self.local_address
        self.peer_host = peer[0] if peer else ""
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        self.last_active_ms = self._door.clock.monotonic_ms()
        if not self._door.opened(self):
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._transport = None
        self._waiting.clear()
        for slot in self._slots:
            if slot.on_abandoned is not None and not slot.is_filled:
                slot.on_abandoned()
        self._door.metrics.requests_in_flight -= len(self._slots)
        self._door.metrics.connections_paused -= self._is_paused
        self._slots.clear()
        self._is_paused = False
        self._door.closed(self)

    def pause_writing(self) -> None:
        self._peer_reads = False
        self._regulate()

    def resume_writing(self) -> None:
        self._peer_reads = True
        self._work()

    def data_received(self, data: bytes) -> None:
        self.last_active_ms = self._door.clock.monotonic_ms()
        try:
            self._waiting.extend(self._splitter.feed(data))
        except DataError as error:
            logger.warning("%s: %s; hanging up", self.peer_host, error)
            self.abort()
            return
        self._work()

    # -- work ------------------------------------------------------------------------------------

    def _work(self) -> None:
        """Begin as many requests as may be under way."""
        self._is_working = True  # replies that are ready at once go out together
        while self._waiting and self._peer_reads and len(self._slots) < self._door.max_inflight:
            slot = Slot(self)
            self._slots.append(slot)
            self._door.metrics.requests_in_flight += 1
            self._door.handle(self._waiting.popleft(), slot, self)
            if slot.is_filled and (
                slot.size_bytes > WRITE_AT_ONCE_BYTES or len(self._slots) == self._door.max_inflight
            ):
                self._write_ready()  # and hear at once when the peer does not keep up
        self._is_working = False
        self._write_ready()
        self._regulate()
        self._door.worked()

    def _regulate(self) -> None:
        """Read on only while there is room for more work."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        should_pause = bool(self._waiting) or not self._peer_reads or self._is_draining
        if should_pause != self._is_paused:
            self._is_paused = should_pause
            self._door.metrics.connections_paused += 1 if should_pause else -1
            if should_pause:
                transport.pause_reading()
            else:
                transport.resume_reading()

    def slot_filled(self, slot: Slot) -> None:
        """Write what is ready, unless more is about to be."""
        if slot.api:
            self._door.metrics.request_done(slot.api, stopwatch() - slot.began)
        if self._is_working:
            return
        self.last_active_ms = self._door.clock.monotonic_ms()
        self._write_ready()
        if self._waiting:
            # Not from here: the one who filled the slot is in the middle of something.
            asyncio.get_running_loop().call_soon(self._work)

    def _write_ready(self) -> None:
        """Write the replies that are next in order and filled."""
        transport = self._transport
        if transport is None:
            return
        out: list[Buffer] = []
        out_bytes = 0
        while self._slots and self._slots[0].is_filled:
            slot = self._slots.popleft()
            self._door.metrics.requests_in_flight -= 1
            if slot.buffers is not None:
                size = slot.size_bytes
                out.append(size.to_bytes(4))
                out += slot.buffers
                out_bytes += size
        if out_bytes > JOINED_BYTES:
            transport.writelines(out)
        elif out:
            transport.write(b"".join(out))
        if self._is_draining and not self._slots:
            transport.close()  # once everything is written

    # -- the end ---------------------------------------------------------------------------------

    def is_idle(self, since_ms: int) -> bool:
        """Whether nothing came, went or was under way since then."""
        return not self._slots and self.last_active_ms < since_ms

    def drain(self) -> None:
        """Read nothing more; close when everything that is under way is answered."""
        self._is_draining = True
        self._waiting.clear()
        self._regulate()
        self._write_ready()

    def close(self) -> None:
        """Hang up when everything that was written is taken."""
        if self._transport is not None:
            self._transport.close()

    def count_failure(self) -> None:
        self._door.metrics.failed_requests += 1

    def abort(self) -> None:
        """Hang up at once."""
        if self._transport is not None:
            self._transport.abort()
