"""One request on its way through the door."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from strandlog.protocol.kafka.headers import RequestHeader, response_header
from strandlog.protocol.kafka.message_reader import ANY_NUMBER
from strandlog.protocol.kafka.messages import encoder, parse
from strandlog.server.kafka.connection import Buffer, Connection, Slot

logger = logging.getLogger(__name__)

REPLY_MAX_BYTES = 2**31 - 1 - 1024


class Request:
    """What a handler gets: who asks, what, and where the answer goes."""

    __slots__ = ("connection", "frame", "header", "slot")

    def __init__(
        self, header: RequestHeader, frame: memoryview, slot: Slot, connection: Connection
    ) -> None:
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
        return parse(header.api_key, header.version, self.frame, header.body_position, max_items)

    def reply(self, body: Mapping[str, Any]) -> None:
        """Answer with a dictionary of fields."""
        header = self.header
        self.reply_buffers([encoder(header.api_key, header.version)(body)])

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
