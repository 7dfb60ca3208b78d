"""One Kafka connection: parses requests and sends the responses in request order.

    bytes ─▶ frames ─▶ dispatch ─▶ pending replies ─▶ unsent ─▶ transport, in request order

A reply may be delayed (a long poll, a join, an fsync). Later replies wait for it, because Kafka's
protocol requires responses in request order. At most `MAX_REQUESTS_IN_FLIGHT` requests are in
progress. A frame is extracted from the received bytes only when its request is next; the bytes
after it stay buffered. A complete frame (`_next`) waits while any of these conditions holds:

    in flight    `MAX_REQUESTS_IN_FLIGHT` requests of this connection are in progress
    peer         the client does not read its responses (`_peer_reads`)
    line         an earlier request of this connection must finish first, because clients rely on
                 the order (`hold_line`, `release_line`)
    gate         the request is large and not a Produce, and other large requests occupy the memory
                 for decoded requests (`DecodingGate`)
    mute         the client exceeds a quota (`throttle.py`)
    turn         requests of this connection occupied the event loop for too long, so the next ones
                 start in short turns, alternating with other connections; or this iteration of the
                 loop has no time left (`turns.py`)

The connection reads no data while a frame waits, while the client does not read its responses, or
while the connection is muted. After part of a large frame has arrived, it also reads no data while
the memory for requests is exhausted. A request that cannot be decoded, or a Produce with acks=0
that fails, closes the connection, because there is no other way to report the failure. Later
requests are not executed.

The transport copies data that it cannot send immediately. A large reply is therefore passed to it
in chunks, each after the client has read enough of the previous one (`_send`); until then, the rest
remains a view of the log. Each connection reports the bytes that it holds to two budgets of the
server (`memory.py`).

`drain` stops reading; the connection closes once requests in progress are answered and all
responses are written.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, cast

from strandlog.broker.access.audit import Audit
from strandlog.broker.context import RequestContext
from strandlog.broker.metrics import Metrics
from strandlog.clock import Clock, stopwatch
from strandlog.config.limits.kafka import MAX_REQUESTS_IN_FLIGHT
from strandlog.config.tables.server import LOOPBACK, Address
from strandlog.errors import AuthenticationError, DataError
from strandlog.model import Buffer
from strandlog.protocol.kafka.framing import FrameSplitter, compacted
from strandlog.server.kafka.pending_reply import WRITE_AT_ONCE_BYTES, PendingReply, is_mapped
from strandlog.server.kafka.throttle import Mute
from strandlog.server.listeners import ListenerConfig
from strandlog.server.memory import ByteBudget, DecodingGate
from strandlog.server.network.acceptor import Slot, closing_on_error
from strandlog.server.tls import TlsContexts
from strandlog.server.turns import Turns

if TYPE_CHECKING:
    from strandlog.server.kafka.sasl import SaslSession

logger = logging.getLogger(__name__)

WRITE_HIGH_WATER_BYTES = 128 * 1024  # with more unsent bytes, the transport calls `pause_writing`
PIECE_BYTES = 256 * 1024  # chunk size for passing a large reply to the transport
LONG_SECONDS = 0.002  # a connection whose requests take longer has to queue for a turn
MIN_TURN_SECONDS = 0.0001  # minimum length of a turn, however many connections are queued
COUNTED_FRAME_BYTES = 16 * 1024  # smaller frames do not count towards the budget
GATED_FRAME_BYTES = 32 * 1024  # from this size on, all frames but Produce enter the gate
PRODUCE = b"\0\0"  # the API key of Produce, the first bytes of a request
JOINED_BYTES = 16 * 1024  # up to this size, writing one copied buffer is faster


def _gated_bytes(frame: memoryview) -> int:
    """Return the size of a request if it has to enter the gate, otherwise 0."""
    return len(frame) if len(frame) >= GATED_FRAME_BYTES and frame[:2] != PRODUCE else 0


class ConnectionOwner(Protocol):
    """The interface of the server that a connection uses."""

    max_frame_bytes: int
    max_other_frame_bytes: int
    requests: ByteBudget
    replies: ByteBudget
    decoding: DecodingGate
    turns: Turns
    metrics: Metrics
    clock: Clock
    audit: Audit

    def handle(self, frame: memoryview, reply: PendingReply, connection: Connection) -> None:
        """Handle one request and fill its reply, now or later."""

    def worked(self) -> None:
        """Called after a connection has started a series of requests."""

    def opened(self, connection: Connection) -> None:
        """Register a new connection."""

    def begin_sasl(self, connection: Connection) -> SaslSession | None:
        """Require a new connection to authenticate, if its listener uses SASL."""

    def closed(self, connection: Connection) -> None:
        """Remove a closed connection."""


HandleFrame = Callable[[memoryview, PendingReply, "Connection"], None]


class Connection(asyncio.Protocol):
    """One client's connection."""

    def __init__(
        self,
        owner: ConnectionOwner,
        listener: ListenerConfig,
        slot: Slot,
        tls: TlsContexts | None = None,
    ) -> None:
        self._owner = owner
        self.listener = listener
        # With SASL, `guard` replaces this function while the client has to authenticate.
        self._handle: HandleFrame = owner.handle
        self._requests = owner.requests  # the budget for the bytes of requests
        self._slot = slot
        self._tls = tls
        self._splitter = FrameSplitter(owner.max_frame_bytes, owner.max_other_frame_bytes)
        self._replies: deque[PendingReply] = deque()
        self._next: memoryview | None = None  # the next complete frame
        self._unsent: deque[Buffer] = deque()  # replies to send next, in order
        self._unsent_bytes = 0
        self._frame_bytes = 0  # size of the large frames in memory
        self._copied_bytes = 0  # like `PendingReply.copied_bytes`, for all replies not sent yet
        self._counted = (0, 0)  # (requests, replies) as last reported to the budgets
        self._transport: asyncio.Transport | None = None
        self._peer_reads = True
        self._is_paused = False
        self._is_beginning = False
        self._line_holds = 0  # number of requests that block later ones
        self._takes_long = False  # the last requests were slow: the next ones queue for a turn
        self._waits_for_turn = False
        self._is_draining = False
        self._linger_seconds = 0.0  # how long a drained connection stays open after its last reply
        self._mute: Mute | None = None  # set while the connection is muted
        self._moved_ms = 0  # when the client last made progress, or the wait for it began
        self._buffered_then = 0  # bytes in the transport's buffer at the last check
        self.context = RequestContext(listener=listener.label)
        self.sasl: SaslSession | None = None
        self.last_active_ms = 0
        self.local_address = Address(LOOPBACK, 0)
        self.peer_host = ""

    @property
    def advertised(self) -> Address:
        """The broker's address as advertised to this client: the advertised address of the client's
        listener or, by default, the address that the client connected to."""
        return self.listener.advertised or self.local_address

    # -- asyncio ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's; they have the same interface.
        self._transport = cast(asyncio.Transport, transport)
        with closing_on_error(transport, self._slot.host):
            self._open(self._transport)

    def _open(self, transport: asyncio.Transport) -> None:
        local, peer = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
        self.local_address = Address(local[0], local[1]) if local else self.local_address
        self.peer_host = self.context.client_host = peer[0] if peer else ""
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        self.last_active_ms = self._owner.clock.monotonic_ms()
        self._owner.opened(self)
        self.sasl = self._owner.begin_sasl(self)
        if self._tls is not None and self.sasl is None:
            self._identify(self._tls, transport.get_extra_info("ssl_object").getpeercert(True))

    def _identify(self, tls: TlsContexts, certificate: bytes | None) -> None:
        """Set the principal of a client that has a certificate, or close the connection if the
        certificate does not map to a valid principal. This is not called with SASL: TLS checks the
        certificate, but the principal is the user who logs in."""
        try:
            principal = tls.principal_of(certificate)
        except AuthenticationError as error:
            logger.warning("closing the connection from %s: %s", self.peer_host, error)
            self._owner.audit.login(self.context, "certificate", "", str(error))
            self.abort()
            return
        if principal is not None:
            self._owner.audit.login(self.context, "certificate", principal.name)
            self.context.set_principal(principal)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._transport = None
        self._abandon()
        self._owner.closed(self)
        self.sasl, self._handle = None, self._owner.handle
        self._slot.release()

    def _abandon(self) -> None:
        """Drop all requests and replies, because no reply can be sent anymore."""
        replies = list(self._replies)
        self._owner.metrics.requests_in_flight -= len(replies)
        self._owner.metrics.connections_paused -= self._is_paused
        self._is_paused = False
        self._cancel_mute()
        self._replies.clear()
        self._next = None
        self._unsent.clear()
        self._requests.hold(self, 0)
        self._owner.replies.hold(self, 0)
        for reply in replies:
            reply.leave_gate()
            if reply.on_abandoned is not None and not reply.is_filled:
                reply.on_abandoned()

    def pause_writing(self) -> None:
        self._peer_reads = False
        self._moved_ms = self._owner.clock.monotonic_ms()
        self.regulate()

    def resume_writing(self) -> None:
        self._peer_reads = True
        self._send()
        self._begin_or_wait()

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._is_draining:
            return
        self.last_active_ms = self._moved_ms = self._owner.clock.monotonic_ms()
        self._splitter.feed(data)
        if self._next is None:
            self._cut()
        self._begin_or_wait()

    def _cut(self) -> None:
        """Extract the next complete frame from the received bytes. Close the connection if the
        frame is too large or not Kafka's."""
        try:
            self._next = self._splitter.cut()
        except DataError as error:
            logger.warning("closing the connection from %s: %s", self.peer_host, error)
            self.abort()
            return
        if self._next is not None and len(self._next) >= COUNTED_FRAME_BYTES:
            self._frame_bytes += len(self._next)

    # -- starting requests -----------------------------------------------------------------------

    def _may_begin(self) -> bool:
        """Return whether the next request may start or queue for a turn."""
        return (
            self._next is not None
            and self._peer_reads
            and not self._line_holds
            and self._mute is None
            and len(self._replies) < MAX_REQUESTS_IN_FLIGHT
            and (len(self._next) < GATED_FRAME_BYTES or self._fits_gate(self._next))
        )

    def _fits_gate(self, frame: memoryview) -> bool:
        """Return whether the gate has room for a request; if not, register `_gate_opened`."""
        gated = _gated_bytes(frame)
        if not gated or self._owner.decoding.has_room(gated):
            return True
        self._owner.decoding.wait(self._gate_opened)
        return False

    def _gate_opened(self) -> None:
        if self._transport is not None:
            self._begin_or_wait()

    def gate_left(self, count: int) -> None:
        self._owner.decoding.leave(count)

    def _begin_or_wait(self) -> None:
        """Start requests, unless they have to queue for a turn; queue if any are left."""
        if not self._takes_long and self._next is not None and self._owner.turns.may_begin():
            self._begin(LONG_SECONDS)
        self._wait_for_turn()

    def _wait_for_turn(self) -> None:
        """Queue for a turn if the next request may start. In any case, update the budgets, and
        pause or resume reading."""
        if self._next is not None:
            if not self._waits_for_turn and self._may_begin():
                self._waits_for_turn = True
                self._owner.turns.add(self._take_turn)
            else:  # the frame waits for something else, perhaps for long
                self._next = compacted(self._next)
                self._splitter.compact()
        self._account()  # even if no request started: an incomplete frame may have grown
        self.regulate()

    def _take_turn(self) -> None:
        self._waits_for_turn = False
        # One write for the replies of many requests costs much less than one for each. So a turn is
        # longer if few connections wait.
        share = min(self._owner.turns.share(), LONG_SECONDS)
        self._begin(max(share, MIN_TURN_SECONDS))
        self._wait_for_turn()

    def _begin(self, seconds: float) -> None:
        """Start requests, but none after `seconds` have passed."""
        most = MAX_REQUESTS_IN_FLIGHT
        began = stopwatch()
        self._is_beginning = True  # replies that are ready immediately are written together
        while most and (frame := self._next) is not None and self._may_begin():
            most -= 1
            self._next = None
            size = len(frame)
            if size < COUNTED_FRAME_BYTES:
                reply = PendingReply(self)
            else:
                gated = _gated_bytes(frame)
                if gated:
                    self._owner.decoding.enter(gated)
                reply = PendingReply(self, size, gated)
            self._replies.append(reply)
            self._owner.metrics.requests_in_flight += 1
            self._handle(frame, reply, self)
            if self._transport is not None and not self._is_draining:
                self._cut()
            if reply.is_filled and (
                reply.size_bytes > WRITE_AT_ONCE_BYTES
                or len(self._replies) == MAX_REQUESTS_IN_FLIGHT
            ):
                self._write_ready()  # so that pause_writing stops a client that does not keep up
            if stopwatch() - began > seconds:
                break
        self._is_beginning = False
        self._write_ready()
        self._takes_long = stopwatch() - began > LONG_SECONDS
        self._owner.worked()

    def limit_requests(self, max_frame_bytes: int, budget: ByteBudget) -> None:
        """Allow only small requests, which count towards another budget, until `unguard`."""
        self._splitter.set_limits(max_frame_bytes, max_frame_bytes)
        self._requests = budget

    @property
    def is_before_login(self) -> bool:
        """Whether the client has yet to authenticate, so its requests belong to no user."""
        return self._requests is not self._owner.requests

    def guard(self, handle: HandleFrame) -> None:
        """Pass every frame to `handle` instead of the owner, until `unguard`."""
        self._handle = handle

    def unguard(self) -> None:
        """Handle requests as usual, because the client has authenticated."""
        owner = self._owner
        self._handle = owner.handle
        if self._requests is not owner.requests:
            self._requests.hold(self, 0)
            self._requests = owner.requests
            self._counted = (0, self._counted[1])
            self._splitter.set_limits(owner.max_frame_bytes, owner.max_other_frame_bytes)

    def age_seconds(self) -> float:
        """Return the time since the connection was accepted, including its TLS handshake."""
        return stopwatch() - self._slot.accepted

    def hold_line(self) -> None:
        """Block later requests until `release_line` has been called once for each call of this
        method."""
        self._line_holds += 1

    def release_line(self) -> None:
        """Let later requests start, unless another hold blocks them."""
        self._line_holds -= 1
        if not self._line_holds and self._next is not None and not self._is_beginning:
            asyncio.get_running_loop().call_soon(self._begin_or_wait)

    def mute(self, ms: int) -> None:
        """Start no request and read nothing for `ms`, because the client exceeds a quota."""
        if self._transport is None or self._is_draining:
            return
        if self._mute is not None:
            self._mute.extend(ms)
            return
        self._mute = Mute(ms, self._owner.metrics, self._unmute)
        self._moved_ms = self._owner.clock.monotonic_ms()
        self.regulate()

    def _unmute(self) -> None:
        self._mute = None
        self._begin_or_wait()

    def _cancel_mute(self) -> None:
        if self._mute is not None:
            self._mute.cancel()
            self._mute = None

    def regulate(self) -> None:
        """Pause or resume reading, as the start of this module describes."""
        should_pause = (
            self._next is not None
            or not self._peer_reads
            or self._is_draining
            or self._mute is not None
            or (
                self._splitter.buffered_bytes >= COUNTED_FRAME_BYTES
                and self._requests.must_wait(self)
            )
        )
        if should_pause != self._is_paused:
            transport = self._transport
            if transport is None or transport.is_closing():
                return
            self._is_paused = should_pause
            self._owner.metrics.connections_paused += 1 if should_pause else -1
            if should_pause:
                transport.pause_reading()
            else:
                self._moved_ms = self._owner.clock.monotonic_ms()
                transport.resume_reading()

    def reply_grew(self, count: int) -> None:
        """Count bytes of a reply that is not ready yet."""
        self._copied_bytes += count
        self._account()

    def reply_ready(self, reply: PendingReply, held_bytes: int) -> None:
        """Write the replies that are ready, unless `_begin` will write them together. `held_bytes`
        of this reply are already counted."""
        if self._transport is None:
            reply.buffers = None
            return
        self._copied_bytes += reply.copied_bytes - held_bytes
        if reply.api:
            self._owner.metrics.request_done(reply.api, stopwatch() - reply.began)
        if self._is_beginning:
            return
        self.last_active_ms = self._owner.clock.monotonic_ms()
        self._write_ready()
        self._account()
        if self._next is not None:
            # Deferred, because the caller may not have finished its work.
            asyncio.get_running_loop().call_soon(self._begin_or_wait)

    def _write_ready(self) -> None:
        """Write the replies that are next in order and ready."""
        replies, unsent = self._replies, self._unsent
        while replies and replies[0].is_filled:
            reply = replies.popleft()
            self._owner.metrics.requests_in_flight -= 1
            if reply.buffers is not None:
                unsent.append(reply.size_bytes.to_bytes(4))
                unsent += reply.buffers
                self._unsent_bytes += 4 + reply.size_bytes
        if unsent or self._is_draining:
            self._send()

    def _send(self) -> None:
        """Pass unsent bytes to the transport while the client keeps reading. Close a drained
        connection that has nothing left to send."""
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
            if self._copied_bytes:
                self._copied_bytes = sum([reply.copied_bytes for reply in self._replies])
            if self._is_draining and not self._replies:
                if self._linger_seconds:
                    asyncio.get_running_loop().call_later(self._linger_seconds, transport.close)
                else:
                    transport.close()  # once everything is written

    def _next_piece(self) -> list[Buffer]:
        """Remove and return the next `PIECE_BYTES` of the unsent bytes."""
        unsent = self._unsent
        piece: list[Buffer] = []
        left = PIECE_BYTES
        while unsent and left:
            buffer = unsent.popleft()
            if len(buffer) <= left:
                # The end of a large buffer is copied: a view would keep all of it in memory.
                whole = type(buffer) is not memoryview or is_mapped(buffer)
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
        """Report the bytes that this connection holds to the budgets."""
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
                self._requests.hold(self, requests)
            if replies != was_replies:
                self._owner.replies.hold(self, replies)

    def missing_bytes(self) -> int:
        """Return how many bytes the incomplete frame lacks. Return 0 if less than
        `COUNTED_FRAME_BYTES` of it has arrived, if a complete frame waits, or if the connection is
        muted."""
        is_counted = self._splitter.buffered_bytes >= COUNTED_FRAME_BYTES and self._mute is None
        return self._splitter.missing_bytes if is_counted and self._next is None else 0

    def stalled_ms(self, now_ms: int) -> int:
        """Return how long the server has been waiting for the client to send or read data, or 0.
        If no request is in progress, the time during which the connection is muted counts too;
        otherwise, its requests could occupy shared memory for the whole pause."""
        transport = self._transport
        if transport is None:
            return 0
        if self._mute is not None and not self._replies:
            return now_ms - self._moved_ms
        if not self._peer_reads:
            buffered = transport.get_write_buffer_size()
            if buffered < self._buffered_then:
                self._moved_ms = now_ms
            self._buffered_then = buffered
            return now_ms - self._moved_ms
        is_awaited = self.missing_bytes() > 0 and not self._is_paused
        return now_ms - self._moved_ms if is_awaited else 0

    # -- closing ---------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether responses can still be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def is_idle(self, since_ms: int) -> bool:
        """Return whether no request is in progress, and nothing was received or answered since
        `since_ms`."""
        return not self._replies and self.last_active_ms < since_ms

    def drain(self, linger_seconds: float = 0) -> None:
        """Stop reading, and close `linger_seconds` after all requests in progress are answered."""
        self._is_draining = True
        self._linger_seconds = linger_seconds
        self._cancel_mute()
        self._next = None
        self.regulate()
        self._write_ready()

    def close(self) -> None:
        """Close the connection after the transport has sent its buffered data."""
        if self._transport is not None:
            self._transport.close()

    def count_failure(self) -> None:
        self._owner.metrics.failed_requests += 1

    def abort(self) -> None:
        """Close the connection immediately, dropping unsent data."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
            self._slot.release()
            self._abandon()
