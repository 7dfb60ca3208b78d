"""Where a consumer stands in one partition, and what it has read ahead.

    position     the offset of the next record that the program gets; NO_POSITION while there is
                 none to begin with (nothing committed, and no rule where to begin instead)
    settled at   where it began or last committed: at the same place nothing is under way

What is read ahead is as it was asked for last, records or columns; who asks for the other kind
makes it read again from the position.

Nothing that was taken is lost to an error: a read that fails behind records that are there already
ends in front of it, and the next one begins with it.
"""

from __future__ import annotations

from typing import Any

from strandlog.client.record_source import Decode, RecordSource
from strandlog.errors import StrandlogError
from strandlog.model import TopicPartition

NO_POSITION = -1


class Cursor:
    """A place in one partition."""

    __slots__ = ("_ahead", "_ahead_end", "_decode", "_taken", "position", "settled_at", "tp")

    def __init__(self, tp: TopicPartition, position: int) -> None:
        self.tp = tp
        self.position = position
        self.settled_at = position
        self._ahead: Any = []
        self._decode: Decode | None = None
        self._taken = 0
        self._ahead_end = position

    @property
    def is_settled(self) -> bool:
        """Whether everything that was handed out is committed."""
        return self.position == self.settled_at

    def seek(self, offset: int) -> None:
        self.position = self._ahead_end = offset
        self._ahead, self._taken = [], 0

    def take(self, source: RecordSource, count: int, decode: Decode) -> Any:
        """Up to `count` records from the position on; the position follows.

        They come as `decode` makes them, or in an empty list when there are none.
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
        """Read ahead; False when there is nothing to be had yet."""
        while True:
            try:
                fetched = source.fetch(self.tp, self._ahead_end, decode)
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
            self.position = self._ahead_end  # a gap, or records that are not for readers
