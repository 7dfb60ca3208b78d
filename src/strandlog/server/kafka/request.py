"""One Kafka request: its header, decoded body and reply.

A request of a few megabytes can name one partition a hundred thousand times. `asked_once` collects
each partition once, as Kafka does with its maps, and `answered` builds one row for each. Handlers
decide how to treat a partition that is named more than once (`Asked.repeated`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from strandlog.broker.context import RequestContext
from strandlog.broker.deferred import Deferred
from strandlog.broker.runtime import Work, yield_control
from strandlog.config.limits.kafka import RESPONSE_MAX_BYTES
from strandlog.config.setting import Value
from strandlog.config.tables.server import Address
from strandlog.errors import StrandlogError
from strandlog.model import Buffer
from strandlog.protocol.kafka.decoder import ANY_NUMBER, decode_request, decode_request_steps
from strandlog.protocol.kafka.encoder import encode_response_steps, response_encoder
from strandlog.protocol.kafka.headers import RequestHeader, response_header
from strandlog.server.kafka.connection import Connection
from strandlog.server.kafka.pending_reply import PendingReply
from strandlog.server.kafka.throttle import Meter
from strandlog.server.listeners import ListenerConfig

if TYPE_CHECKING:
    from strandlog.server.kafka.dispatch import Dispatcher

LARGE_FRAME_BYTES = 16 * 1024
NO_FRAME = memoryview(b"")

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Request:
    """One request, which is passed to its handler."""

    __slots__ = ("_dispatcher", "connection", "frame", "header", "meter", "pending")

    def __init__(
        self,
        header: RequestHeader,
        frame: memoryview,
        pending: PendingReply,
        connection: Connection,
        dispatcher: Dispatcher,
    ) -> None:
        self._dispatcher = dispatcher
        self.header = header
        self.frame = frame
        self.pending = pending  # the reply to this request
        self.connection = connection
        # None while no client has a quota.
        self.meter = Meter(pending.began) if dispatcher.broker.enforces_quotas else None

    @property
    def context(self) -> RequestContext:
        """The principal, client and listener that the request comes from."""
        return self.connection.context

    @property
    def max_elements(self) -> int:
        """The maximum number of items in all arrays of the request."""
        return self._dispatcher.max_elements

    @property
    def advertised(self) -> Address:
        """The broker's address as advertised to this client."""
        return self.connection.advertised

    @property
    def listener(self) -> ListenerConfig:
        """The listener that the client uses."""
        return self.connection.listener

    @property
    def listener_settings(self) -> Mapping[str, Value]:
        """The settings for the broker's listeners and data folder, with the values in effect."""
        return self._dispatcher.listener_settings

    def is_abandoned(self) -> bool:
        """Return whether the client has disconnected; thread-safe."""
        return not self.connection.is_open

    @property
    def version(self) -> int:
        return self.header.version

    def body(self, max_items: int = ANY_NUMBER) -> Any:
        """Decode the request; raise `DataError` if it is invalid, or if its arrays have more than
        `max_items` or `max_elements` items in total."""
        header = self.header
        limit = min(max_items, self.max_elements)
        body = decode_request(
            header.api_key, header.version, self.frame, header.body_position, limit
        )
        self._release()
        return body

    def reading(self, max_items: int = ANY_NUMBER) -> Work[Any]:
        """Decode the request like `body`, but in steps, for requests that may be large."""
        if len(self.frame) < LARGE_FRAME_BYTES:
            return self.body(max_items)
        header = self.header
        limit = min(max_items, self.max_elements)
        reading = decode_request_steps(
            header.api_key, header.version, self.frame, header.body_position, limit
        )
        body = yield from breathing(reading)
        self._release()
        return body

    def _release(self) -> None:
        """Release the bytes of a decoded request, because its response may take a while."""
        self.frame = NO_FRAME
        self.pending.release_frame()

    def reply(self, body: Mapping[str, Any]) -> None:
        """Send a response, given as a dictionary of fields."""
        header = self.header
        if self.meter is not None:
            body = {**body, "throttle_time": self.throttle_ms()}
        self.reply_buffers([response_encoder(header.api_key, header.version)(body)])

    def replying(self, body: Mapping[str, Any]) -> Work[None]:
        """Send a response like `reply`, but encode it in steps, because it may be large."""
        header = self.header
        if self.meter is not None:
            body = {**body, "throttle_time": self.throttle_ms()}
        encoded = yield from breathing(encode_response_steps(header.api_key, header.version, body))
        self.reply_buffers([encoded])

    def encoded(self, body: Mapping[str, Any]) -> list[Buffer]:
        """Encode a response with its header, to send it later."""
        header = self.header
        head = response_header(header.api_key, header.version, header.correlation_id)
        return [head, response_encoder(header.api_key, header.version)(body)]

    def reply_buffers(self, buffers: Sequence[Buffer]) -> None:
        """Send an encoded response."""
        header = self.header
        head = response_header(header.api_key, header.version, header.correlation_id)
        if sum(map(len, buffers)) > RESPONSE_MAX_BYTES:
            # The length would overflow, and the client would read a negative number.
            logger.error(
                "the response to a %s request from %s exceeds 2 GB; closing the connection",
                self.pending.api,
                self.connection.peer_host,
            )
            self.pending.fail()
            return
        self.pending.fill([head, *buffers])

    # -- quotas ----------------------------------------------------------------------------------

    def throttle_ms(self) -> int:
        """Charge the time of the request to its client and return the throttle time for the
        response. Call this once, when the response is ready. The connection is muted for that
        time."""
        return 0 if self.meter is None else self._dispatcher.throttle_ms(self, self.meter)

    def pause_client(self, throttle_ms: int) -> None:
        """Mute the connection immediately, unless `throttle_ms` is 0."""
        if throttle_ms and self.meter is not None:
            self.meter.add(throttle_ms)
            self.connection.mute(throttle_ms)

    def count_throttled(self) -> None:
        """Count a request without a response if its client exceeds a quota."""
        if self.meter is not None and self.meter.throttle_ms:
            self._dispatcher.count_throttled(self.meter.throttle_ms)

    # -- long-running work -----------------------------------------------------------------------

    def in_slices(self, work: Work[None]) -> None:
        """Run work in the event loop, yielding to other connections if it takes a while."""
        self._dispatcher.run_in_slices(self, work)

    def reply_in_slices(self, body: Mapping[str, Any]) -> None:
        """Send a response that may be large."""
        self.in_slices(self.replying(body))

    def in_decoder(self, work: Work[T], then: Callable[[T], None]) -> None:
        """Run work, with its blocking steps in the decoder thread; call `then` with the result."""
        self._dispatcher.run_in_decoder(self, work, then)

    def when_done(
        self,
        result: Deferred[T],
        then: Callable[[T], None],
        failed: Callable[[StrandlogError], None] | None = None,
        *,
        in_line: bool = False,
    ) -> None:
        """Call `then` with the broker's result, or `failed` with its error. Without `failed`, an
        error closes the connection, as does any other exception. With `in_line`, the connection
        starts no other request until the result is available."""
        if in_line:
            self.connection.hold_line()

        def done(finished: Deferred[T]) -> None:
            if in_line:
                self.connection.release_line()  # the next request starts after `done` returns
            error = finished.error
            if failed is not None and isinstance(error, StrandlogError):
                failed(error)
            else:
                then(finished.result())

        result.on_done(lambda finished: self._dispatcher.guard(self, lambda: done(finished)))

    def fail(self, error: Exception) -> None:
        """Log an exception and close the connection. This is for the callbacks of Produce and
        Fetch, which catch exceptions themselves, because `when_done` costs more."""
        self._dispatcher.fail(self, error)


def breathing(steps: Generator[None, None, T]) -> Work[T]:
    """Convert a generator to `Work` that yields control wherever the generator yields."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        yield yield_control


# -- unique partitions ----------------------------------------------------------------------------


class Asked(NamedTuple):
    """The partitions that a request names, without duplicates."""

    topics: dict[str, dict[int, Any]]  # the last entry for each topic name and partition
    repeated: set[tuple[str, int]]


def asked_once(
    topics: Iterable[Any],
    rows_of: Callable[[Any], Iterable[Any]],
    number_of: Callable[[Any], int] = int,
    name_of: Callable[[Any], str] = lambda topic: str(topic.name),
) -> Work[Asked]:
    """Group the entries of a request by topic and partition, without duplicates."""
    asked = Asked({}, set())
    for topic in topics:
        name = name_of(topic)
        rows = asked.topics.setdefault(name, {})
        yield yield_control
        for row in rows_of(topic):
            number = number_of(row)
            if number in rows:
                asked.repeated.add((name, number))
            rows[number] = row
            yield yield_control
    return asked


Answer = Callable[[str, int, Any], dict[str, Any]]


def answered(asked: Asked, answer: Answer, key: str, name_key: str) -> Work[list[dict[str, Any]]]:
    """Build one response row per partition, with an error code if `answer` raises an error."""
    topics = []
    for name, rows in asked.topics.items():
        partitions = []
        for number, row in rows.items():
            found = {key: number}
            try:
                found |= answer(name, number, row)
            except StrandlogError as error:
                found["error_code"] = error.kafka_code
            partitions.append(found)
            yield yield_control
        topics.append({name_key: name, "partitions": partitions})
    return topics
