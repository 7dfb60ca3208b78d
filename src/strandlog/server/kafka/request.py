"""One Kafka request: header, decoded body, reply.

A request of some megabytes can name one partition a hundred thousand times. `asked_once` collects
each partition once, as Kafka does with its maps, and `answered` builds one row for each; what an
API does about a partition that is named twice is up to its handler (`Asked.repeated`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from strandlog.errors import StrandlogError
from strandlog.protocol.kafka.decoder import ANY_NUMBER, decode_request, decode_request_steps
from strandlog.protocol.kafka.encoder import encode_response_steps, response_encoder
from strandlog.protocol.kafka.headers import RequestHeader, response_header
from strandlog.server.kafka.connection import Buffer, Connection, PendingReply
from strandlog.storage.work import Work, yield_control

LARGE_FRAME_BYTES = 16 * 1024
NO_FRAME = memoryview(b"")

T = TypeVar("T")

logger = logging.getLogger(__name__)

REPLY_MAX_BYTES = 2**31 - 1 - 1024
MAX_SETTINGS = 1000  # of one topic or broker in one request


class Request:
    """What a handler gets: who asks, what, and where the answer goes."""

    __slots__ = ("connection", "frame", "header", "max_elements", "slot")

    def __init__(
        self,
        header: RequestHeader,
        frame: memoryview,
        slot: PendingReply,
        connection: Connection,
        max_elements: int,
    ) -> None:
        self.max_elements = max_elements
        self.header = header
        self.frame = frame
        self.slot = slot
        self.connection = connection

    def is_abandoned(self) -> bool:
        """Whether the client is gone; any thread may ask."""
        return not self.connection.is_open

    @property
    def version(self) -> int:
        return self.header.version

    def body(self, max_items: int = ANY_NUMBER) -> Any:
        """The request, parsed; `DataError` when it cannot be, or has more items than that."""
        header = self.header
        limit = min(max_items, self.max_elements)
        body = decode_request(
            header.api_key, header.version, self.frame, header.body_position, limit
        )
        self._release()
        return body

    def reading(self, max_items: int = ANY_NUMBER) -> Work[Any]:
        """The same in steps, for requests that may be large."""
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
        """A parsed request needs its bytes no more, though it may wait long for its answer."""
        self.frame = NO_FRAME
        self.slot.release_frame()

    def reply(self, body: Mapping[str, Any]) -> None:
        """Answer with a dictionary of fields."""
        header = self.header
        self.reply_buffers([response_encoder(header.api_key, header.version)(body)])

    def replying(self, body: Mapping[str, Any]) -> Work[None]:
        """The same in steps, for answers that may be large."""
        header = self.header
        encoded = yield from breathing(encode_response_steps(header.api_key, header.version, body))
        self.reply_buffers([encoded])

    def reply_buffers(self, buffers: Sequence[Buffer]) -> None:
        """Answer with bytes that are ready."""
        header = self.header
        head = response_header(header.api_key, header.version, header.correlation_id)
        if sum(map(len, buffers)) > REPLY_MAX_BYTES:
            # Its length would read as a negative number at the other end.
            logger.error(
                "the reply to a %s request of %s is over 2 GB; hanging up",
                self.slot.api,
                self.connection.peer_host,
            )
            self.slot.fail()
            return
        self.slot.fill([head, *buffers])


def breathing(steps: Generator[None, None, T]) -> Work[T]:
    """A generator of pure computation as steps without slow parts."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        yield yield_control


# -- partitions, each once ------------------------------------------------------------------------


class Asked(NamedTuple):
    """What a request asks about."""

    topics: dict[str, dict[int, Any]]  # by name and partition: the last row of the request
    repeated: set[tuple[str, int]]


def asked_once(
    topics: Iterable[Any],
    rows_of: Callable[[Any], Iterable[Any]],
    number_of: Callable[[Any], int] = int,
    name_of: Callable[[Any], str] = lambda topic: str(topic.name),
) -> Work[Asked]:
    """Collect rows of the form topic, partition."""
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
