"""One request on its way through the door."""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping, Sequence
from typing import Any, TypeVar

from strandlog.protocol.kafka.decoder import ANY_NUMBER
from strandlog.protocol.kafka.encoder import encode_steps, encoder, parse, parse_steps
from strandlog.protocol.kafka.headers import RequestHeader, response_header
from strandlog.server.kafka.connection import Buffer, Connection, Slot
from strandlog.storage.work import Steps, breathe

LARGE_FRAME_BYTES = 16 * 1024
NO_FRAME = memoryview(b"")

T = TypeVar("T")

logger = logging.getLogger(__name__)

REPLY_MAX_BYTES = 2**31 - 1 - 1024


class Request:
    """What a handler gets: who asks, what, and where the answer goes."""

    __slots__ = ("connection", "frame", "header", "max_elements", "slot")

    def __init__(
        self,
        header: RequestHeader,
        frame: memoryview,
        slot: Slot,
        connection: Connection,
        max_elements: int,
    ) -> None:
        self.max_elements = max_elements
        self.header = header
        self.frame = frame
        self.slot = slot
        self.connection = connection

    @property
    def version(self) -> int:
        return self.header.version

    def body(self, max_items: int = ANY_NUMBER) -> Any:
        """The request, parsed; `DataError` when it cannot be, or has more items than that."""
        header = self.header
        limit = min(max_items, self.max_elements)
        body = parse(header.api_key, header.version, self.frame, header.body_position, limit)
        self._release()
        return body

    def reading(self, max_items: int = ANY_NUMBER) -> Steps[Any]:
        """The same in steps, for requests that may be large."""
        if len(self.frame) < LARGE_FRAME_BYTES:
            return self.body(max_items)
        header = self.header
        limit = min(max_items, self.max_elements)
        reading = parse_steps(
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
        self.reply_buffers([encoder(header.api_key, header.version)(body)])

    def replying(self, body: Mapping[str, Any]) -> Steps[None]:
        """The same in steps, for answers that may be large."""
        header = self.header
        encoded = yield from breathing(encode_steps(header.api_key, header.version, body))
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


def breathing(steps: Generator[None, None, T]) -> Steps[T]:
    """A generator of pure computation as steps without slow parts."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        yield breathe
