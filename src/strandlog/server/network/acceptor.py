"""Accepts the connections of one listener, with or without TLS.

    listening ─▶ accepted ─▶ first bytes ─▶ TLS handshake ─▶ the listener's protocol
                    │            │               │
                 limits      plaintext?    deadline, failure
                 (closed)     (closed)        (closed)

A connection counts towards the limits from the moment it is accepted, before it has sent a byte. A
plain listener hands it to its protocol immediately. With TLS, the handshake starts with the
client's first bytes, so a silent connection costs a socket and no buffers, and a plaintext client
is logged as such instead of as a failed handshake. First bytes and handshake have one deadline.

At most `TLS_MAX_HANDSHAKES` connections of a listener can be in their handshake; a further one
replaces the oldest. If a limit on all connections is reached (`Room`), a new one also replaces an
idle HTTP connection or the oldest handshake or SASL login, and is rejected only if there is none.
So thousands of half-open handshakes and logins neither keep other clients out nor use unbounded
memory.

If a connection cannot be accepted, for example because the process has no file descriptor left,
accepting pauses for a second, and clients wait in the backlog. Without the pause, the loop would
spin, because the socket stays readable.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, NamedTuple, Protocol, cast

from strandlog.broker.metrics import Metrics
from strandlog.clock import stopwatch
from strandlog.config.limits.access import MAX_CONNECTIONS_OVER_QUOTA
from strandlog.config.limits.tls import TLS_MAX_HANDSHAKES
from strandlog.config.tables.server import Address
from strandlog.server.network.connection_limits import ConnectionLimits, plain_host

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 1.0  # pause after an error that would occur again immediately
SHUTDOWN_SECONDS = 2.0  # how long to wait for the client's close_notify
PEEKED_BYTES = 8
FIRST_READ_BYTES = 64 * 1024
TLS_HANDSHAKE = 0x16  # the first byte of a ClientHello
UNEXPECTED_MESSAGE = b"\x15\x03\x03\x00\x02\x02\x0a"  # a fatal alert in TLS 1.2
TRANSIENT_ERRORS = (BlockingIOError, InterruptedError, ConnectionAbortedError)


class Replaceable(Protocol):
    """Connections that new ones may replace, because their clients have not authenticated yet."""

    def drop_oldest(self) -> bool:
        """Close the connection that has waited the longest; return whether there was one."""


class Room:
    """The limit on the connections of a group of listeners, and their current number."""

    def __init__(
        self,
        limit: int,
        setting: str,
        on_refused: Callable[[], None],
        close_idle: Callable[[], bool] | None = None,
    ) -> None:
        """`on_refused` is called for each new connection that is rejected because of `setting`.
        `close_idle` closes an idle connection, if there is one, to make room for a new one."""
        self.limit = limit
        self.used = 0
        self.setting = setting
        self.on_refused = on_refused
        self._close_idle = close_idle
        self._replaceable: list[Replaceable] = []

    def share(self, replaceable: Replaceable) -> None:
        """Let new connections replace those of `replaceable` when the limit is reached."""
        self._replaceable.append(replaceable)

    def has_place(self) -> bool:
        """Return whether there is room for one more connection, if necessary by closing an idle
        one or one whose client has not authenticated yet."""
        return (
            self.used < self.limit
            or (self._close_idle is not None and self._close_idle())
            or any(each.drop_oldest() for each in self._replaceable)
        )


class Tls(NamedTuple):
    """The TLS options of a listener."""

    context: Callable[[], ssl.SSLContext]  # returns the context for the next handshake
    handshake_seconds: float


class Slot:
    """One connection's share of the limits; `release` it once the connection is closed."""

    __slots__ = ("_acceptor", "accepted", "host")

    def __init__(self, acceptor: Acceptor, host: str) -> None:
        self._acceptor: Acceptor | None = acceptor
        self.host = host
        self.accepted = stopwatch()

    def release(self) -> None:
        """Stop counting the connection; further calls have no effect."""
        acceptor, self._acceptor = self._acceptor, None
        if acceptor is not None:
            acceptor.released(self)


class _Handshake:
    """A connection before the end of its TLS handshake."""

    __slots__ = ("deadline", "end", "slot", "sock", "task")

    def __init__(self, sock: socket.socket, slot: Slot, deadline: float) -> None:
        self.sock = sock
        self.slot = slot
        self.deadline = deadline
        self.task: asyncio.Task[None] | None = None  # None: waiting for the first bytes
        self.end = ""  # why the server ended the handshake, if it did


class Acceptor:
    """Accepts connections and passes each to a protocol of its own."""

    def __init__(
        self,
        label: str,
        make_protocol: Callable[[Slot], asyncio.Protocol],
        limits: ConnectionLimits,
        metrics: Metrics,
        *,
        room: Room | None = None,
        tls: Tls | None = None,
    ) -> None:
        self._label = label
        self._make_protocol = make_protocol
        self._limits = limits
        self._metrics = metrics
        self._room = room
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self.sockets: list[socket.socket] = []  # the listening sockets
        self._handshakes: dict[_Handshake, None] = {}  # oldest first
        self._over_quota: set[socket.socket] = set()  # sockets to close after a delay
        self._tasks: set[asyncio.Task[None]] = set()
        self._alarm: asyncio.TimerHandle | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._is_stopped = False
        if room is not None:
            room.share(self)

    # -- listening -------------------------------------------------------------------------------

    async def bind(self, host: str, port: int, backlog: int) -> Address:
        """Listen on all addresses of a host, and return the first; clients wait until `start`.

        A machine without IPv6 may still resolve localhost to ::1, so an address that does not exist
        is an error only if the host has no other address.
        """
        try:
            infos = await self._loop.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
        except UnicodeError as error:
            raise socket.gaierror(socket.EAI_NONAME, "not a valid host name") from error
        missing: OSError | None = None
        for family, _, _, _, address in dict.fromkeys(infos):
            try:
                where: Any = (address[0], port, *address[2:])
                listening = socket.create_server(where, family=family, backlog=backlog)
            except OSError as error:
                if error.errno == errno.EADDRNOTAVAIL:
                    missing = error
                    continue
                self.stop()
                raise
            self.sockets.append(listening)
            listening.setblocking(False)
            port = listening.getsockname()[1]  # the host's other addresses use the same port
        if not self.sockets:
            assert missing is not None, "getaddrinfo returns at least one address"
            raise missing
        return Address(*self.sockets[0].getsockname()[:2])

    def start(self) -> None:
        """Start accepting."""
        if not self._is_stopped:
            for listening in self.sockets:
                self._loop.add_reader(listening, self._accept, listening)

    def stop(self) -> None:
        """Stop listening. Close connections that have not finished their handshake, and those that
        exceed a quota."""
        self._is_stopped = True
        for timer in (self._alarm, self._pause):
            if timer is not None:
                timer.cancel()
        for listening in self.sockets:
            self._loop.remove_reader(listening)
            listening.close()
        self.sockets.clear()
        for sock in list(self._over_quota):
            self._close_over_quota(sock)
        for handshake in list(self._handshakes):
            self._drop(handshake)

    # -- accepting -------------------------------------------------------------------------------

    def _accept(self, listening: socket.socket) -> None:
        """Accept one connection per turn of the event loop, so that a burst of new clients does
        not delay the others."""
        wait_seconds = self._limits.wait_seconds()
        if wait_seconds > 0:
            self._metrics.connections_delayed += 1
            self._pause_for(wait_seconds)
            return
        try:
            sock, peer = listening.accept()
        except TRANSIENT_ERRORS:
            return
        except OSError as error:
            self._cannot_accept(error)
            return
        self._limits.accepted()
        self._accepted(sock, plain_host(peer[0]))

    def _cannot_accept(self, error: OSError) -> None:
        self._metrics.accept_failures += 1
        hint = ""
        if error.errno in (errno.EMFILE, errno.ENFILE):
            hint = "; raise the limit on open files or lower max.connections"
        logger.error(
            "listener %s cannot accept connections: %s%s; trying again in %d s",
            self._label,
            error.strerror,
            hint,
            PAUSE_SECONDS,
        )
        self._pause_for(PAUSE_SECONDS)

    def _pause_for(self, seconds: float) -> None:
        for listening in self.sockets:
            self._loop.remove_reader(listening)
        self._pause = self._loop.call_later(seconds, self.start)

    def _accepted(self, sock: socket.socket, host: str) -> None:
        sock.setblocking(False)
        if delay_ms := self._limits.delay_ms(host):
            self._close_later(sock, delay_ms)
            return
        if not self._limits.open(host):
            self._metrics.connections_refused_per_ip += 1
            logger.warning(
                "rejecting the connection from %s: it has %d connections; raise "
                "max.connections.per.ip",
                host,
                self._limits.limit_of(host),
            )
            sock.close()
            return
        if self._room is not None and not self._room.has_place():
            self._limits.close(host)
            self._room.on_refused()
            logger.warning(
                "rejecting the connection from %s: %d clients are connected; raise %s",
                host,
                self._room.used,
                self._room.setting,
            )
            sock.close()
            return
        slot = Slot(self, host)
        if self._room is not None:
            self._room.used += 1
        if self._tls is None:
            self._run(self._connect(sock, slot))
        else:
            self._await_first_bytes(sock, slot, self._tls)

    def _close_later(self, sock: socket.socket, delay_ms: int) -> None:
        """Close a connection that exceeds its address's quota, without reading from it. The delay
        slows down a client that reconnects immediately."""
        if len(self._over_quota) >= MAX_CONNECTIONS_OVER_QUOTA:
            sock.close()
            return
        self._over_quota.add(sock)
        self._loop.call_later(delay_ms / 1000, self._close_over_quota, sock)

    def _close_over_quota(self, sock: socket.socket) -> None:
        self._over_quota.discard(sock)
        sock.close()

    def released(self, slot: Slot) -> None:
        """Stop counting a connection; called by its slot."""
        self._limits.close(slot.host)
        if self._room is not None:
            self._room.used -= 1

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)  # the loop itself keeps only weak references
        task.add_done_callback(self._tasks.discard)
        return task

    async def _connect(self, sock: socket.socket, slot: Slot) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: self._make_protocol(slot), sock)
        except OSError:  # the client has disconnected already
            slot.release()
            sock.close()

    # -- TLS -------------------------------------------------------------------------------------

    def _await_first_bytes(self, sock: socket.socket, slot: Slot, tls: Tls) -> None:
        if len(self._handshakes) >= TLS_MAX_HANDSHAKES:
            self.drop_oldest()
        handshake = _Handshake(sock, slot, stopwatch() + tls.handshake_seconds)
        self._handshakes[handshake] = None
        self._loop.add_reader(sock, self._first_bytes, handshake, tls)
        self._set_alarm()

    def _first_bytes(self, handshake: _Handshake, tls: Tls) -> None:
        """Start the handshake if the client's first byte is that of a ClientHello."""
        try:
            begin = handshake.sock.recv(PEEKED_BYTES, socket.MSG_PEEK)
        except TRANSIENT_ERRORS:
            return
        except OSError:
            begin = b""
        self._loop.remove_reader(handshake.sock)
        if begin and begin[0] == TLS_HANDSHAKE:
            handshake.task = self._run(self._shake_hands(handshake, tls))
            return
        if begin:
            self._metrics.tls_handshake_failures += 1
            logger.warning(
                "closing the connection from %s: plaintext client on the TLS listener %s",
                handshake.slot.host,
                self._label,
            )
            _send_alert(handshake.sock)
        self._drop(handshake)  # without a byte, the client has only checked the port

    async def _shake_hands(self, handshake: _Handshake, tls: Tls) -> None:
        slot = handshake.slot
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._make_protocol(slot),
                handshake.sock,
                ssl=tls.context(),
                # `_end_late` ends the handshake before this timeout does.
                ssl_handshake_timeout=tls.handshake_seconds + PAUSE_SECONDS,
                ssl_shutdown_timeout=SHUTDOWN_SECONDS,
            )
        except (OSError, asyncio.CancelledError) as error:
            self._failed(handshake, error)
            slot.release()
            handshake.sock.close()
        else:
            _acknowledge(handshake.sock)
        finally:
            self._handshakes.pop(handshake, None)

    def _failed(self, handshake: _Handshake, error: BaseException) -> None:
        if self._is_stopped:
            return
        self._metrics.tls_handshake_failures += 1
        if isinstance(error, ssl.SSLCertVerificationError):
            reason = f"the client's certificate: {error.verify_message}"
        elif isinstance(error, ssl.SSLError):
            reason = (error.reason or str(error)).lower().replace("_", " ")
        else:
            reason = handshake.end or str(error) or "the client disconnected"
        logger.warning(
            "TLS handshake with %s on listener %s failed: %s",
            handshake.slot.host,
            self._label,
            reason,
        )

    def _set_alarm(self) -> None:
        if self._alarm is None and self._handshakes:
            oldest = next(iter(self._handshakes))
            wait_seconds = max(0.0, oldest.deadline - stopwatch())
            self._alarm = self._loop.call_later(wait_seconds, self._end_late)

    def _end_late(self) -> None:
        """Close the connections whose deadline has passed."""
        self._alarm = None
        now = stopwatch()
        for handshake in list(self._handshakes):
            if handshake.deadline > now:
                break
            if handshake.task is None:  # otherwise `_failed` counts it
                self._metrics.tls_handshake_failures += 1
            self._drop(handshake, "it took longer than ssl.handshake.timeout.ms")
        self._set_alarm()

    def drop_oldest(self) -> bool:
        """Close the connection that has been in its handshake for the longest time; return whether
        there was one."""
        for handshake in self._handshakes:
            self._metrics.tls_handshakes_dropped += 1
            self._drop(handshake, "a newer connection replaced it")
            return True
        return False

    def _drop(self, handshake: _Handshake, why: str = "") -> None:
        self._handshakes.pop(handshake, None)
        if handshake.task is not None:
            handshake.end = why
            handshake.task.cancel()
        else:
            self._loop.remove_reader(handshake.sock)
            handshake.sock.close()
        handshake.slot.release()


@contextlib.contextmanager
def closing_on_error(transport: asyncio.BaseTransport, host: str) -> Iterator[None]:
    """Close a connection and log the error if a bug prevents its protocol from opening it. Without
    this, asyncio would report it as a failed callback, which stops the server."""
    try:
        yield
    except Exception:
        logger.exception(
            "internal error while opening a connection from %s; closing the connection", host
        )
        cast(asyncio.Transport, transport).abort()


def _acknowledge(sock: socket.socket) -> None:
    """Acknowledge the end of a handshake immediately. In TLS 1.3 the server has nothing to send at
    that point, and a client with Nagle's algorithm (librdkafka by default) waits for the
    acknowledgement before it sends its first request; the kernel would delay it by 40 ms."""
    if hasattr(socket, "TCP_QUICKACK"):  # Linux only
        with contextlib.suppress(OSError):  # the socket is closed already
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def _send_alert(sock: socket.socket) -> None:
    """Send a TLS alert to a plaintext client, as Kafka does. Read the client's data first: unread
    data would turn the close into a reset, which may overtake the alert."""
    with contextlib.suppress(OSError):
        sock.recv(FIRST_READ_BYTES)
        sock.send(UNEXPECTED_MESSAGE)
