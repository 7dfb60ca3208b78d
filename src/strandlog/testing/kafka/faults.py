"""Faults of a test broker: failed requests, lost connections, late answers and slow disks.

    faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=2)   answers with this error
    faults.drop("Produce")                closes the connection instead of handling the request
    faults.drop("Produce", handled=True)  handles the request, then closes instead of answering
    faults.delay("Fetch", ms=200)         answers later
    faults.delay("Produce")               answers when the fault is removed
    faults.delay_fsync(ms=50)             simulates a slow disk; acks=all waits for it
    faults.refuse_connections()           closes each new connection immediately
    faults.drop_connections()             closes all connections now

All but the last return a `Fault`. Its attribute `hits` counts how often it occurred, `wait` waits
for hits, and `remove` ends the fault, as does the end of a `with` block. `fail`, `drop` and `delay`
affect the requests of one API, or of all APIs if none is named; with `topic`, only requests that
name the topic. A fault ends after `times` hits. If several faults match a request, the oldest one
that can affect it applies. On a listener with SASL, requests before the login are not affected.

`Faults` is the server's `Interceptor`: it runs in the event loop, while tests add and remove faults
in their own thread. `_active` is a tuple that is replaced under the lock and never modified, so the
event loop reads it without the lock. If there are no faults, a request costs one comparison.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from strandlog.broker.broker import Broker
from strandlog.broker.context import embedded_context
from strandlog.config.units import counted
from strandlog.errors import DataError, TopicNotFoundError
from strandlog.model import Buffer
from strandlog.protocol.kafka.api import PRODUCE
from strandlog.protocol.kafka.decoder import decode_request
from strandlog.protocol.kafka.encoder import response_encoder
from strandlog.protocol.kafka.headers import RequestHeader, read_request_header, response_header
from strandlog.server.kafka.api import SUPPORTED_VERSIONS
from strandlog.server.kafka.connection import Connection, HandleFrame
from strandlog.server.kafka.pending_reply import PendingReply
from strandlog.testing.kafka.error_responses import (
    api_named,
    can_fail,
    error_code,
    error_response,
    topics_in,
)

if TYPE_CHECKING:
    from strandlog.testing.server import ServerThread

WAIT_SECONDS = 30.0  # long enough for a busy machine; it matters only when a test fails

Action = Literal["fail", "drop", "lose", "delay", "refuse", "fsync"]
REQUEST_ACTIONS = ("fail", "drop", "lose", "delay")


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of a fault, and the requests that it affects."""

    action: Action
    api_key: int | None = None  # None: all APIs
    topic: str | None = None  # None: requests with any topics or none
    code: int = 0
    seconds: float | None = None  # None: until the fault is removed

    def affects(self, header: RequestHeader) -> bool:
        return self.action in REQUEST_ACTIONS and self.api_key in (None, header.api_key)


class Fault:
    """One fault. All methods may be called from any thread."""

    def __init__(self, effect: Effect, times: int | None, faults: Faults) -> None:
        assert times is None or times > 0, f"a fault occurs at least once, not {times} times"
        self.effect = effect
        self.times = times
        self.hits = 0
        self.removed = threading.Event()
        self._faults = faults
        self._changed = threading.Condition()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()

    def remove(self) -> None:
        """End the fault. Answers that it delays are sent. Idempotent."""
        self._faults.remove(self)

    def wait(self, hits: int = 1, timeout: float = WAIT_SECONDS) -> None:
        """Wait until the fault has had this many hits; raise TimeoutError if it takes too long."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.hits >= hits, timeout):
                raise TimeoutError(
                    f"the fault occurred {counted(self.hits, 'time')} within {timeout:g} s, "
                    f"not {hits}"
                )

    def hit(self) -> bool:
        """Count one hit; return False if the fault has ended. Only `Faults` calls this."""
        with self._changed:
            if self.removed.is_set() or self.hits == self.times:
                return False
            self.hits += 1
            self._changed.notify_all()
            return True

    @property
    def is_used_up(self) -> bool:
        return self.hits == self.times


class Faults:
    """The faults of one broker."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._active: tuple[Fault, ...] = ()
        self._not_removed: list[Fault] = []  # includes faults that have had all their hits
        self._delayed: list[_DelayedAnswer] = []
        self._server: ServerThread | None = None

    def attach(self, server: ServerThread) -> None:
        """Set the server that these faults affect. Only `KafkaBroker` calls this."""
        self._server = server

    # -- for tests -------------------------------------------------------------------------------

    def fail(
        self,
        api: str,
        error: str | int,
        *,
        times: int | None = 1,
        topic: str | None = None,
    ) -> Fault:
        """Answer requests to an API with an error, given as a Kafka error name or a numeric code.

        The request has no effect. Requests whose response has no field for an error code, such as
        Metadata for all topics, are handled as usual and do not count as hits. A Produce with
        acks=0 has no response, so the broker closes its connection instead.
        """
        key = api_named(api)
        if not can_fail(key):
            raise ValueError(f"cannot build an error response for {api}; use drop instead")
        return self._add(Effect("fail", key, topic, error_code(error)), times)

    def drop(
        self,
        api: str | None = None,
        *,
        handled: bool = False,
        times: int | None = 1,
        topic: str | None = None,
    ) -> Fault:
        """Close the connection when a request arrives. If `handled`, the request takes effect, but
        the client gets no response; idempotent producers exist for this case."""
        action: Action = "lose" if handled else "drop"
        return self._add(Effect(action, _key(api), topic), times)

    def delay(
        self,
        api: str | None = None,
        ms: float | None = None,
        *,
        times: int | None = None,
        topic: str | None = None,
    ) -> Fault:
        """Handle requests, but answer `ms` later or, without `ms`, when the fault is removed."""
        seconds = None if ms is None else ms / 1000
        return self._add(Effect("delay", _key(api), topic, seconds=seconds), times)

    def delay_fsync(self, ms: float | None = None, *, times: int | None = None) -> Fault:
        """Make each fsync take `ms` longer or, without `ms`, last until the fault is removed. A
        Produce with acks=all is answered after the fsync, and consumers see its records then."""
        seconds = None if ms is None else ms / 1000
        return self._add(Effect("fsync", seconds=seconds), times)

    def refuse_connections(self, *, times: int | None = None) -> Fault:
        """Close each new connection immediately. For clients that must see the port closed, `stop`
        the broker instead."""
        return self._add(Effect("refuse"), times)

    def drop_connections(self) -> int:
        """Close all connections now; return how many there were."""
        server = self._server
        assert server is not None, "the broker is not running"

        def close() -> int:
            connections = server.server.kafka.connections()
            for connection in connections:
                connection.abort()
            return len(connections)

        return server.call(close)

    def clear(self) -> None:
        """Remove all faults, and send the answers that they delay."""
        for fault in list(self._not_removed):
            fault.remove()

    @property
    def active(self) -> Sequence[Fault]:
        """The faults that have not been removed and can still have hits."""
        return self._active

    def _add(self, effect: Effect, times: int | None) -> Fault:
        fault = Fault(effect, times, self)
        with self._lock:
            self._active += (fault,)
            self._not_removed.append(fault)
        return fault

    def remove(self, fault: Fault) -> None:
        """End a fault; `Fault.remove` calls this."""
        self._end(fault)
        fault.removed.set()
        with self._lock:
            if fault in self._not_removed:
                self._not_removed.remove(fault)
            due = [each for each in self._delayed if each.fault is fault]
            self._delayed = [each for each in self._delayed if each.fault is not fault]
        for each in due:
            each.send_soon()

    def _end(self, fault: Fault) -> None:
        with self._lock:
            self._active = tuple(each for each in self._active if each is not fault)

    def _hit(self, fault: Fault) -> bool:
        is_hit = fault.hit()
        if fault.is_used_up:
            self._end(fault)
        return is_hit

    # -- the interceptor -------------------------------------------------------------------------

    def accepts(self) -> bool:
        """Return whether a new connection may stay open."""
        return not any(
            fault.effect.action == "refuse" and self._hit(fault) for fault in self._active
        )

    def handle(
        self, proceed: HandleFrame, frame: memoryview, reply: PendingReply, connection: Connection
    ) -> None:
        """Apply the first fault that can affect a request, or handle the request normally."""
        if self._active:
            try:
                header = read_request_header(frame, SUPPORTED_VERSIONS)
            except DataError:
                return proceed(frame, reply, connection)  # the dispatcher reports the error
            for fault in self._active:
                if (
                    fault.effect.affects(header)
                    and self._names_topic(fault.effect, header, frame)
                    and self._occurs(fault, header, proceed, frame, reply, connection)
                ):
                    return None
        return proceed(frame, reply, connection)

    def _occurs(
        self,
        fault: Fault,
        header: RequestHeader,
        proceed: HandleFrame,
        frame: memoryview,
        reply: PendingReply,
        connection: Connection,
    ) -> bool:
        """Apply the fault to the request; return False if it cannot affect it or has ended."""
        answer: Callable[[], None] | None = None
        if fault.effect.action == "fail":
            answer = _error_answer(fault.effect.code, header, frame, reply, connection)
            if answer is None:
                return False
        if not self._hit(fault):
            return False
        if answer is not None:
            answer()
        elif fault.effect.action == "drop":
            connection.abort()
        elif fault.effect.action == "lose":
            proceed(
                frame, _ChangedReply(reply, connection, lambda _: connection.abort()), connection
            )
        else:
            delayed = _DelayedAnswer(fault, reply)
            with self._lock:
                self._delayed.append(delayed)
            proceed(frame, _ChangedReply(reply, connection, delayed.ready), connection)
        return True

    def _names_topic(self, effect: Effect, header: RequestHeader, frame: memoryview) -> bool:
        if effect.topic is None:
            return True
        assert self._server is not None, "the broker is not running"
        body = _decoded(header, frame)
        broker = self._server.server.broker
        return body is not None and any(
            _topic_name(broker, topic) == effect.topic for topic in topics_in(body)
        )

    def before_fsync(self) -> None:
        """Wait as long as the active faults require; called in the thread that would fsync."""
        for fault in self._active:
            if fault.effect.action == "fsync" and self._hit(fault):
                fault.removed.wait(fault.effect.seconds)


def _key(api: str | None) -> int | None:
    return None if api is None else api_named(api)


def _topic_name(broker: Broker, topic: Any) -> str:
    """Return the name of a topic that a request gives by name or id, or "" if the id is unknown."""
    if isinstance(topic, str):
        return topic
    try:
        return broker.topic(embedded_context(), topic).name
    except TopicNotFoundError:
        return ""


def _decoded(header: RequestHeader, frame: memoryview) -> Any:
    """Return the body of a request, or None if the server does not support its version or cannot
    decode it."""
    if header.version not in SUPPORTED_VERSIONS.get(header.api_key, ()):
        return None
    try:
        return decode_request(header.api_key, header.version, frame, header.body_position)
    except DataError:
        return None


def _error_answer(
    code: int,
    header: RequestHeader,
    frame: memoryview,
    reply: PendingReply,
    connection: Connection,
) -> Callable[[], None] | None:
    """Return a function that answers with the error code, or None if no response can contain it. A
    Produce with acks=0 has no response; the function then closes the connection."""
    request = _decoded(header, frame)
    if request is None:
        return None
    if header.api_key == PRODUCE.key and request.acks == 0:
        return reply.fail  # no response could contain the error
    key, version = header.api_key, header.version
    body = error_response(key, version, request, code, connection.advertised)
    if body is None:
        return None
    answer = [
        response_header(key, version, header.correlation_id),
        response_encoder(key, version)(body),
    ]
    return lambda: reply.fill(answer)


class _ChangedReply(PendingReply):
    """A reply that passes the handler's response to a function instead of sending it."""

    __slots__ = ("_on_filled", "_original")

    def __init__(
        self,
        original: PendingReply,
        connection: Connection,
        on_filled: Callable[[Sequence[Buffer] | None], None],
    ) -> None:
        self._original = original
        self._on_filled = on_filled
        super().__init__(connection)

    @property
    def on_abandoned(self) -> Callable[[], None] | None:
        return self._original.on_abandoned

    @on_abandoned.setter
    def on_abandoned(self, callback: Callable[[], None] | None) -> None:
        self._original.on_abandoned = callback

    def hold(self, buffers: Any) -> None:
        self._original.hold(buffers)

    def fill(self, buffers: Sequence[Buffer] | None) -> None:
        if not self.is_filled:
            self.is_filled = True
            self._original.api = self.api
            self._on_filled(buffers)


class _DelayedAnswer:
    """An answer that is sent after a delay, or when its fault is removed."""

    def __init__(self, fault: Fault, reply: PendingReply) -> None:
        self.fault = fault
        self._reply = reply
        self._loop = asyncio.get_running_loop()
        self._answer: Sequence[Buffer] | None = None
        self._is_ready = False
        self._timer: asyncio.TimerHandle | None = None

    def ready(self, answer: Sequence[Buffer] | None) -> None:
        """Take the handler's answer, and send it now or start the timer."""
        self._answer, self._is_ready = answer, True
        if self.fault.removed.is_set():
            self._send()
        elif self.fault.effect.seconds is not None:
            self._timer = self._loop.call_later(self.fault.effect.seconds, self._send)

    def send_soon(self) -> None:
        """Send the answer if there is one; thread-safe. Otherwise `ready` sends it."""
        self._loop.call_soon_threadsafe(self._send)

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._is_ready:
            self._reply.fill(self._answer)
            self._answer = None
