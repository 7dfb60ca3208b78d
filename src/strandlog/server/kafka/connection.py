"""One client's socket.

    bytes ─▶ frames ─▶ dispatch ─▶ reply slots ─▶ unsent ─▶ transport, in the order of the requests

A reply may come later (a long poll, a join, a sync to disk); those behind it wait in their slots,
because Kafka's protocol answers in order. At most `max_inflight` requests are being worked on, and
none is begun behind one that is worked on in slices (`hold_line`). A frame is cut out of the bytes
when it is about to begin; the bytes behind it stay as they arrived. After a request that kept the
event loop for long the next ones are begun one at a time, in turns with other connections of that
kind (`turns.py`). Reading stops at that, while the peer does not take what was written, and while
the server is out of memory for requests. A request that cannot be read, or a Produce with acks=0
that fails, closes the connection: there is no other way to report it.

The transport copies what it cannot send. So it gets a large reply in pieces, the next one when the
peer has taken the last (`_send`); until then the rest stays where it is, as views of the log. What
a connection holds is reported to two budgets of the server (`memory.py`).

At the end (`drain`) nothing more is read; what is under way is answered, and when all of it is
written the connection closes.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from strandlog.broker.metrics import Metrics
from strandlog.clock import Clock, stopwatch
from strandlog.errors import DataError
from strandlog.protocol.kafka.framing import FrameSplitter, compacted
from strandlog.server.memory import ByteBudget, DecodingGate
from strandlog.server.turns import Turns
from strandlog.storage.partition.log import PartitionLog

Buffer = bytes | bytearray | memoryview
logger = logging.getLogger(__name__)

WRITE_HIGH_WATER_BYTES = 128 * 1024  # the transport copies this much for a peer that stops reading
PIECE_BYTES = 256 * 1024  # of a large reply, handed to the transport at once
WRITE_AT_ONCE_BYTES = 16 * 1024
LONG_SECONDS = 0.002  # a connection whose requests take longer waits for its turn
TURN_SECONDS = 0.0001  # of one turn: hundreds of connections may wait for theirs
COUNTED_FRAME_BYTES = 16 * 1024  # smaller frames are not worth counting
GATED_FRAME_BYTES = 32 * 1024  # larger ones, except Produce, pass the gate (`DecodingGate`)
PRODUCE = b"\0\0"  # the api key, the first bytes of a request
JOINED_BYTES = 16 * 1024  # so little is written quicker as one buffer, copied together


class Slot:
    """The place of one reply in the order of replies."""

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
        self.gated_bytes = gated_bytes  # of a large request, until it leaves the gate
        self.frame_bytes = frame_bytes  # of the request, as long as it is kept and worth counting
        self.buffers: Sequence[Buffer] | None = None
        self.size_bytes = 0
        self.copied_bytes = 0  # of a large reply: what is not a view of a mapped file
        self.is_filled = False
        self.on_abandoned: Callable[[], None] | None = None
        self.api = ""  # which request this answers, once that is known
        self.began = stopwatch()

    def fill(self, buffers: Sequence[Buffer] | None) -> None:
        """The reply, without its length; None for a request that gets none."""
        if self.is_filled:
            return
        self.buffers = buffers
        self.is_filled = True
        if buffers:
            self.size_bytes = sum(map(len, buffers))
            if self.size_bytes > WRITE_AT_ONCE_BYTES:
                self.copied_bytes = sum([len(each) for each in buffers if not _is_mapped(each)])
        self.release_frame()
        if self.gated_bytes:
            self.leave_gate()
        self._connection.slot_filled(self)

    def release_frame(self) -> None:
        """The bytes of the request are no longer needed."""
        if self.frame_bytes:
            self._connection.frame_released(self.frame_bytes)
            self.frame_bytes = 0

    def leave_gate(self) -> None:
        """What was decoded is needed no longer, or bounded otherwise."""
        if self.gated_bytes:
            self._connection.gate_left(self.gated_bytes)
            self.gated_bytes = 0

    def fail(self) -> None:
        """There is no way to answer: hang up."""
        self._connection.count_failure()
        self._connection.abort()


def _gated_bytes(frame: memoryview) -> int:
    """The size of a request that has to pass the gate, else 0."""
    return len(frame) if len(frame) >= GATED_FRAME_BYTES and frame[:2] != PRODUCE else 0


def _is_mapped(buffer: Buffer) -> bool:
    return type(buffer) is memoryview and isinstance(buffer.obj, mmap.mmap)


class Door(Protocol):
    """What a connection needs of the server around it."""

    max_frame_bytes: int
    max_other_frame_bytes: int
    max_inflight: int
    requests: ByteBudget
    replies: ByteBudget
    decoding: DecodingGate
    turns: Turns
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
        self._splitter = FrameSplitter(door.max_frame_bytes, door.max_other_frame_bytes)
        self._slots: deque[Slot] = deque()
        self._next: memoryview | None = None  # the next whole frame; those behind it are not cut
        self._unsent: deque[Buffer] = deque()  # of replies whose turn it is
        self._unsent_bytes = 0
        self._frame_bytes = 0  # of whole frames that are kept
        self._copied_bytes = 0  # of replies that the peer has not taken
        self._counted = (0, 0)  # what the budgets know
        self._transport: asyncio.Transport | None = None
        self._peer_reads = True
        self._is_paused = False
        self._is_working = False
        self._holds = 0  # requests that no other may be begun behind
        self._takes_long = False
        self._awaits_turn = False
        self._is_draining = False
        self._moved_ms = 0  # when the peer last sent or took something
        self._buffered_then = 0  # by the transport, when that was last looked at
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
        self._abandon()
        self._door.closed(self)

    def _abandon(self) -> None:
        """Give back at once what this connection holds: no reply can be sent any more."""
        slots = list(self._slots)
        self._door.metrics.requests_in_flight -= len(slots)
        self._door.metrics.connections_paused -= self._is_paused
        self._is_paused = False
        self._slots.clear()
        self._next = None
        self._unsent.clear()
        self._door.requests.hold(self, 0)
        self._door.replies.hold(self, 0)
        for slot in slots:
            slot.leave_gate()
            if slot.on_abandoned is not None and not slot.is_filled:
                slot.on_abandoned()

    def pause_writing(self) -> None:
        self._peer_reads = False
        self._moved_ms = self._door.clock.monotonic_ms()
        self.regulate()

    def resume_writing(self) -> None:
        self._peer_reads = True
        self._send()
        self._work()

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._is_draining:
            return
        self.last_active_ms = self._moved_ms = self._door.clock.monotonic_ms()
        self._splitter.feed(data)
        if self._next is None:
            self._cut()
        self._work()

    def _cut(self) -> None:
        """Take the next frame out of what has arrived."""
        try:
            self._next = self._splitter.cut()
        except DataError as error:
            logger.warning("%s: %s; hanging up", self.peer_host, error)
            self.abort()
            return
        if self._next is not None and len(self._next) >= COUNTED_FRAME_BYTES:
            self._frame_bytes += len(self._next)

    # -- work ------------------------------------------------------------------------------------

    def _may_begin(self) -> bool:
        return (
            self._next is not None
            and self._peer_reads
            and not self._holds
            and len(self._slots) < self._door.max_inflight
            and self._passes_gate(self._next)
        )

    def _passes_gate(self, frame: memoryview) -> bool:
        gated = _gated_bytes(frame)
        if not gated or self._door.decoding.has_room(gated):
            return True
        self._door.decoding.wait(self._pass_gate)
        return False

    def _pass_gate(self) -> None:
        if self._transport is not None:
            self._work()

    def gate_left(self, count: int) -> None:
        self._door.decoding.leave(count)

    def _work(self) -> None:
        """Begin as many requests as may be under way, or queue up for a turn."""
        if not self._takes_long and self._next is not None and self._door.turns.may_begin():
            self._begin(self._door.max_inflight, LONG_SECONDS)
        self._queue_up()

    def _queue_up(self) -> None:
        """Wait for a turn if requests are left that may begin."""
        if not self._awaits_turn and self._may_begin():
            self._awaits_turn = True
            self._door.turns.add(self._take_turn)
        elif self._next is not None:  # it waits, perhaps for long
            self._next = compacted(self._next)
            self._splitter.compact()
        self._account()  # whether or not a request was begun: an unfinished frame grows
        self.regulate()

    def _take_turn(self) -> None:
        self._awaits_turn = False
        self._begin(1 if self._takes_long else self._door.max_inflight, TURN_SECONDS)
        self._queue_up()

    def _begin(self, most: int, seconds: float) -> None:
        """Begin so many requests, fewer when they take longer than that."""
        began = stopwatch()
        self._is_working = True  # replies that are ready at once go out together
        while most and (frame := self._next) is not None and self._may_begin():
            most -= 1
            self._next = None
            gated = _gated_bytes(frame)
            if gated:
                self._door.decoding.enter(gated)
            slot = Slot(self, len(frame) if len(frame) >= COUNTED_FRAME_BYTES else 0, gated)
            self._slots.append(slot)
            self._door.metrics.requests_in_flight += 1
            self._door.handle(frame, slot, self)
            if self._transport is not None:
                self._cut()
            if slot.is_filled and (
                slot.size_bytes > WRITE_AT_ONCE_BYTES or len(self._slots) == self._door.max_inflight
            ):
                self._write_ready()  # and hear at once when the peer does not keep up
            if stopwatch() - began > seconds:
                break
        self._is_working = False
        self._write_ready()
        self._takes_long = stopwatch() - began > LONG_SECONDS
        self._door.worked()

    def hold_line(self) -> None:
        """Begin no other request until `release_line`, which is called once for each hold."""
        self._holds += 1

    def release_line(self) -> None:
        """The request that needed several turns is done, or waits for something else."""
        self._holds -= 1
        if not self._holds and self._next is not None and not self._is_working:
            asyncio.get_running_loop().call_soon(self._work)

    def regulate(self) -> None:
        """Read on only while there is room for more work."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        should_pause = (
            self._next is not None
            or not self._peer_reads
            or self._is_draining
            or (
                self._splitter.buffered_bytes >= COUNTED_FRAME_BYTES
                and self._door.requests.must_wait(self)
            )
        )
        if should_pause != self._is_paused:
            self._is_paused = should_pause
            self._door.metrics.connections_paused += 1 if should_pause else -1
            if should_pause:
                transport.pause_reading()
            else:
                self._moved_ms = self._door.clock.monotonic_ms()
                transport.resume_reading()

    def slot_filled(self, slot: Slot) -> None:
        """Write what is ready, unless more is about to be."""
        if self._transport is None:
            slot.buffers = None
            return
        self._copied_bytes += slot.copied_bytes
        if slot.api:
            self._door.metrics.request_done(slot.api, stopwatch() - slot.began)
        if self._is_working:
            return
        self.last_active_ms = self._door.clock.monotonic_ms()
        self._write_ready()
        self._account()
        if self._next is not None:
            # Not from here: the one who filled the slot is in the middle of something.
            asyncio.get_running_loop().call_soon(self._work)

    def _write_ready(self) -> None:
        """Write the replies that are next in order and filled."""
        slots, unsent = self._slots, self._unsent
        while slots and slots[0].is_filled:
            slot = slots.popleft()
            self._door.metrics.requests_in_flight -= 1
            if slot.buffers is not None:
                unsent.append(slot.size_bytes.to_bytes(4))
                unsent += slot.buffers
                self._unsent_bytes += 4 + slot.size_bytes
        if unsent or self._is_draining:
            self._send()

    def _send(self) -> None:
        """Hand the transport as much as the peer takes."""
        transport = self._transport
        if transport is None:
            return
        unsent = self._unsent
        if self._peer_reads and 0 < self._unsent_bytes <= JOINED_BYTES:
            joined = b"".join(unsent)
            unsent.clear()
            self._unsent_bytes = 0
            transport.write(joined)
        while unsent and self._peer_reads:
            piece = self._next_piece()
            transport.writelines(piece)
        if not unsent:
            self._unsent_bytes = 0
            self._copied_bytes = sum([slot.copied_bytes for slot in self._slots])
            if self._is_draining and not self._slots:
                transport.close()  # once everything is written

    def _next_piece(self) -> list[Buffer]:
        """The next `PIECE_BYTES` of what is unsent."""
        unsent = self._unsent
        piece: list[Buffer] = []
        left = PIECE_BYTES
        while unsent and left:
            buffer = unsent.popleft()
            if len(buffer) <= left:
                # The end of a large buffer is copied: as a view it would keep all of it in memory.
                whole = type(buffer) is not memoryview or _is_mapped(buffer)
                piece.append(buffer if whole else bytes(buffer))
                left -= len(buffer)
            else:
                view = memoryview(buffer)
                piece.append(view[:left])
                unsent.appendleft(view[left:])
                left = 0
        self._unsent_bytes -= PIECE_BYTES - left
        return piece

    # -- memory ----------------------------------------------------------------------------------

    def frame_released(self, count: int) -> None:
        self._frame_bytes -= count

    def _account(self) -> None:
        """Tell the budgets what this connection holds."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        requests = self._splitter.buffered_bytes
        requests = self._frame_bytes + (requests if requests >= COUNTED_FRAME_BYTES else 0)
        replies = self._copied_bytes
        if not self._peer_reads:
            replies += transport.get_write_buffer_size()
        if (requests, replies) != self._counted:
            was_requests, was_replies = self._counted
            self._counted = (requests, replies)
            if requests != was_requests:
                self._door.requests.hold(self, requests)
            if replies != was_replies:
                self._door.replies.hold(self, replies)

    def missing_bytes(self) -> int:
        """How many bytes the unfinished frame lacks; 0 if there is none worth counting."""
        is_counted = self._splitter.buffered_bytes >= COUNTED_FRAME_BYTES
        return self._splitter.missing_bytes if is_counted and self._next is None else 0

    def stalled_ms(self, now_ms: int) -> int:
        """How long the peer has sent and taken nothing although it could."""
        transport = self._transport
        if transport is None:
            return 0
        if not self._peer_reads:
            buffered = transport.get_write_buffer_size()
            if buffered < self._buffered_then:
                self._moved_ms = now_ms
            self._buffered_then = buffered
            return now_ms - self._moved_ms
        is_awaited = self.missing_bytes() > 0 and not self._is_paused
        return now_ms - self._moved_ms if is_awaited else 0

    # -- the end ---------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether the client can still be answered."""
        return self._transport is not None and not self._transport.is_closing()

    def is_idle(self, since_ms: int) -> bool:
        """Whether nothing came, went or was under way since then."""
        return not self._slots and self.last_active_ms < since_ms

    def drain(self) -> None:
        """Read nothing more; close when everything that is under way is answered."""
        self._is_draining = True
        self._next = None
        self.regulate()
        self._write_ready()

    def close(self) -> None:
        """Hang up when everything that was written is taken."""
        if self._transport is not None:
            self._transport.close()

    def count_failure(self) -> None:
        self._door.metrics.failed_requests += 1

    def abort(self) -> None:
        """Close at once."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
            self._abandon()
