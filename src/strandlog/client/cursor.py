"""A consumer's position in one partition, and the records that it has read ahead.

    position     the offset from which records are returned next; NO_POSITION if it is undefined
                 (there is no committed offset, and auto_offset_reset is "none")
    settled_at   the initial position, or the offset that the consumer last committed; if `position`
                 differs, the program may have received records that are not committed
    topic_id     the id of the topic that `position` belongs to, or "" if it is unknown; a read
                 fails if the name now belongs to another topic

Records are read ahead in the form that was last requested, either as Python records or as Arrow
columns. A request for the other form discards them and reads again from the position.

An error loses no records: a read that fails after some records returns those records, and the next
read starts at the point of failure.
"""

from __future__ import annotations

import logging
from typing import Any

from strandlog.client.record_source import Decode, RecordSource
from strandlog.errors import StrandlogError
from strandlog.model import TopicPartition

NO_POSITION = -1

logger = logging.getLogger(__name__)


class Cursor:
    """A consumer's position in one partition."""

    __slots__ = (
        "_ahead",
        "_ahead_end",
        "_decode",
        "_taken",
        "position",
        "settled_at",
        "topic_id",
        "tp",
    )

    def __init__(self, tp: TopicPartition, position: int, topic_id: str) -> None:
        self.tp = tp
        self.position = position
        self.topic_id = topic_id
        self.settled_at = position
        self._ahead: Any = []
        self._decode: Decode | None = None
        self._taken = 0
        self._ahead_end = position

    @property
    def is_settled(self) -> bool:
        """Whether `position` is the initial or the last committed one."""
        return self.position == self.settled_at

    def seek(self, offset: int) -> None:
        self.position = self._ahead_end = offset
        self._ahead, self._taken = [], 0

    def seek_in(self, source: RecordSource, offset: int) -> None:
        """Move to an offset of the topic that currently has this name."""
        self.seek(offset)
        self.topic_id = source.topic_id(self.tp)

    def take(self, source: RecordSource, count: int, decode: Decode) -> Any:
        """Return up to `count` records from the position on, and advance the position.

        The result has the type that `decode` returns, or is an empty list.
        """
        if self._decode is not decode:
            self._decode = decode
            if self._taken < len(self._ahead):
                self.seek(self.position)
        records: Any = []
        while len(records) < count:
            is_empty = self._taken == len(self._ahead)
            if is_empty and not self._fetch(source, decode, bool(records)):
                break
            found = self._ahead[self._taken : self._taken + count - len(records)]
            self._taken += len(found)
            records = records + found if records else found
        if records:
            is_all = self._taken == len(self._ahead)
            self.position = self._ahead_end if is_all else records[-1].offset + 1
        return records

    def _fetch(self, source: RecordSource, decode: Decode, has_records: bool) -> bool:
        """Read ahead; return whether there are records. `has_records` turns an error into False."""
        while True:
            try:
                self.topic_id = self.topic_id or source.topic_id(self.tp)
                fetched = source.fetch(self.tp, self._ahead_end, decode, self.topic_id)
            except StrandlogError:
                if has_records:
                    return False
                raise
            if fetched.next_offset == self._ahead_end:
                return False
            self._ahead, self._taken = fetched.records, 0
            self._ahead_end = fetched.next_offset
            if fetched.records:
                return True
            self.position = self._ahead_end  # skip a gap, or records that consumers do not see


def warn_of_reset(what: str, start: int, end: int, position: int) -> None:
    """Report that a consumer skips records or reads them again because of auto_offset_reset."""
    logger.warning(
        "%s is outside the valid range [%d, %d]; auto_offset_reset moves the consumer to offset %d",
        what,
        start,
        end,
        position,
    )
