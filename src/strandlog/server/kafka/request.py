"""One request on its way through the door."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from strandlog.protocol.kafka.headers import RequestHeader, response_header
from strandlog.protocol.kafka.messages import encoder, parse
from strandlog.server.kafka.connection import Buffer, Connection, Slot


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

    def body(self) -> Any:
        """The request, parsed; `DataError` when it cannot be."""
        header = self.header
        return parse(header.api_key, header.version, self.frame, header.body_position)

    def reply(self, body: Mapping[str, Any]) -> None:
        """Answer with a dictionary of fields."""
        header = self.header
        self.reply_buffers([encoder(header.api_key, header.version)(body)])

    def reply_buffers(self, buffers: Sequence[Buffer]) -> None:
        """Answer with bytes that are ready."""
        header = self.header
        head = response_header(header.api_key, header.version, header.correlation_id)
        self.slot.fill([head, *buffers])
