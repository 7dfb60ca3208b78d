"""One Kafka request: header, decoded body, reply.

A request of some megabytes can name one partition a hundred thousand times. `asked_once` collects
each partition once, as Kafka does with its maps, and `answered` builds one row for each; what an
API does about a partition that is named twice is up to its handler (`Asked.repeated`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from strandlog.broker.context import RequestContext
from strandlog.broker.deferred import Deferred
from strandlog.broker.runtime import Work, yield_control
from strandlog.config.setting import Value
from strandlog.errors import StrandlogError
from strandlog.protocol.kafka.decoder import ANY_NUMBER, decode_request, decode_request_steps
from strandlog.protocol.kafka.encoder import encode_response_steps, response_encoder
from strandlog.protocol.kafka.headers import RequestHeader, response_header
from strandlog.server.kafka.connection import Buffer, Connection, PendingReply

if TYPE_CHECKING:
    from strandlog.server.kafka.dispatch import Dispatcher

LARGE_FRAME_BYTES = 16 * 1024
NO_FRAME = memoryview(b"")

T = TypeVar("T")

logger = logging.getLogger(__name__)

REPLY_MAX_BYTES = 2**31 - 1 - 1024
MAX_SETTINGS = 1000  # of one topic or broker in one request


class Request:
    """One request, as its handler sees it."""

    __slots__ = ("_dispatcher", "connection", "frame", "header", "pending")

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
        self.pending = pending  # its reply
        self.connection = connection

    @property
    def context(self) -> RequestContext:
        """The principal, client and listener that the request comes from."""
        return self.connection.context

    @property
    def max_elements(self) -> int:
        """How many items its arrays may have together."""
        return self._dispatcher.max_elements

    @property
    def advertised(self) -> tuple[str, int]:
        """The address of the broker for this client."""
        return self._dispatcher.advertised(self.connection)

    @property
    def listener_settings(self) -> Mapping[str, Value]:
        """Where the broker listens and keeps its data, by setting."""
        return self._dispatcher.listener_settings

    def is_abandoned(self) -> bool:
        """Whether the client is gone; any thread may ask."""
        return not self.connection.is_open

    @property
    def version(self) -> int:
        return self.header.version

    def body(self, max_items: int = ANY_NUMBER) -> Any:
        """Decode the request; `DataError` if it is invalid or has more than `max_items` items."""
        header = self.header
        limit = min(max_items, self.max_elements)
        body = decode_request(
            header.api_key, header.version, self.frame, header.body_position, limit
        )
        self._release()
        return body

    def reading(self, max_items: int = ANY_NUMBER) -> Work[Any]:
        """`body` in steps, for requests that may be large."""
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
        """Release the bytes of a decoded request, which may wait long for its response."""
        self.frame = NO_FRAME
        self.pending.release_frame()

    def reply(self, body: Mapping[str, Any]) -> None:
        """Send a response, given as a dictionary of fields."""
        header = self.header
        self.reply_buffers([response_encoder(header.api_key, header.version)(body)])

    def replying(self, body: Mapping[str, Any]) -> Work[None]:
        """`reply` in steps, for responses that may be large."""
        header = self.header
        encoded = yield from breathing(encode_response_steps(header.api_key, header.version, body))
        self.reply_buffers([encoded])

    def reply_buffers(self, buffers: Sequence[Buffer]) -> None:
        """Send an encoded response."""
        header = self.header
        head = response_header(header.api_key, header.version, header.correlation_id)
        if sum(map(len, buffers)) > REPLY_MAX_BYTES:
            # The client would read its length as a negative number.
            logger.error(
                "the response to a %s request from %s is over 2 GB; closing the connection",
                self.pending.api,
                self.connection.peer_host,
            )
            self.pending.fail()
            return
        self.pending.fill([head, *buffers])

    # -- work that takes longer ------------------------------------------------------------------

    def in_slices(self, work: Work[None]) -> None:
        """Run work in the event loop, with pauses for other connections when it takes long."""
        self._dispatcher.run_in_slices(self, work)

    def reply_in_slices(self, body: Mapping[str, Any]) -> None:
        """Send a response that may be large."""
        self.in_slices(self.replying(body))

    def in_decoder(self, work: Work[T], then: Callable[[T], None]) -> None:
        """Run work whose slow steps decode large batches, then `then`."""
        self._dispatcher.run_in_decoder(self, work, then)

    def when_done(
        self,
        result: Deferred[T],
        then: Callable[[T], None],
        failed: Callable[[StrandlogError], None] | None = None,
        *,
        in_line: bool = False,
    ) -> None:
        """Call `then` with the result of the broker, or `failed` with its error. An error without
        `failed`, and any other exception, closes the connection. With `in_line` the connection
        begins no other request until then."""
        if in_line:
            self.connection.hold_line()

        def done(finished: Deferred[T]) -> None:
            if in_line:
                self.connection.release_line()  # the next request begins after this call
            error = finished.error
            if failed is not None and isinstance(error, StrandlogError):
                failed(error)
            else:
                then(finished.result())

        result.on_done(lambda finished: self._dispatcher.guard(self, lambda: done(finished)))


def breathing(steps: Generator[None, None, T]) -> Work[T]:
    """Turn a generator of pure computation into work without slow steps."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        yield yield_control


# -- partitions, each once ------------------------------------------------------------------------


class Asked(NamedTuple):
    """The partitions that a request names, each once."""

    topics: dict[str, dict[int, Any]]  # by name and partition: the last row of the request
    repeated: set[tuple[str, int]]


def asked_once(
    topics: Iterable[Any],
    rows_of: Callable[[Any], Iterable[Any]],
    number_of: Callable[[Any], int] = int,
    name_of: Callable[[Any], str] = lambda topic: str(topic.name),
) -> Work[Asked]:
    """Collect the rows of a request by topic and partition."""
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
    """The rows of a response: one for each partition, an error where `answer` raises one."""
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
