"""Sparse index from timestamp to offset, in Kafka's format.

    entry: i64 largest timestamp so far | i32 offset relative to the base    big-endian, ascending

An entry states that the largest timestamp of the batch that ends with `offset` is `timestamp`, and
that all earlier timestamps are smaller. Readers check entries against the log. The last entry of a
sealed segment holds its largest timestamp.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from strandlog.model import Buffer
from strandlog.storage.segment.sparse_index import SparseIndex, count_at_or_below

ENTRY = struct.Struct(">qi")
_TIMESTAMP, _OFFSET = 0, 1


class TimeEntry(NamedTuple):
    """The batch that ends with `offset` is the first to reach `timestamp`."""

    timestamp: int
    offset: int


NO_TIME_ENTRY = TimeEntry(-1, -1)


def search(entries: Buffer, base_offset: int, target_timestamp: int) -> TimeEntry | None:
    """Return the last entry whose timestamp is at or below the target, or None."""
    return entry_before(entries, base_offset, count_up_to(entries, target_timestamp))


def count_up_to(entries: Buffer, target_timestamp: int) -> int:
    """Count the entries whose timestamp is at or below the target."""
    return count_at_or_below(entries, ENTRY, _TIMESTAMP, target_timestamp)


def last_two(
    entries: Buffer, base_offset: int, target_timestamp: int
) -> tuple[TimeEntry | None, TimeEntry | None]:
    """Return the last two entries whose timestamps are at or below the target."""
    count = count_up_to(entries, target_timestamp)
    return entry_before(entries, base_offset, count - 1), entry_before(entries, base_offset, count)


def entry_before(entries: Buffer, base_offset: int, count: int) -> TimeEntry | None:
    """Return the last of the first `count` entries, or None if `count` is not positive."""
    if count <= 0:
        return None
    timestamp, relative = ENTRY.unpack_from(entries, (count - 1) * ENTRY.size)
    return TimeEntry(timestamp, base_offset + relative)


class TimeIndex(SparseIndex):
    """The time index of a segment that is being written."""

    __slots__ = ()
    layout = ENTRY

    def append(self, entry: TimeEntry) -> None:
        """Append a new largest timestamp. The caller ensures that it is larger than the last."""
        self.add(ENTRY.pack(entry.timestamp, entry.offset - self.base_offset))

    def lookup(self, target_timestamp: int) -> TimeEntry | None:
        """Return the last entry whose timestamp is at or below the target, or None."""
        return self.last_two(target_timestamp)[1]

    def last_two(self, target_timestamp: int) -> tuple[TimeEntry | None, TimeEntry | None]:
        """Return the last two entries whose timestamps are at or below the target."""
        count = self.count_at_or_below(_TIMESTAMP, target_timestamp)
        return self.entry_before(count - 1), self.entry_before(count)

    def last_below(self, offset: int) -> TimeEntry | None:
        """Return the last entry of a batch that ends below an offset, or None."""
        return self.entry_before(self.count_at_or_below(_OFFSET, offset - 1 - self.base_offset))

    @property
    def last(self) -> TimeEntry | None:
        return self.entry_before(self.size_bytes // ENTRY.size)

    def entry_before(self, count: int) -> TimeEntry | None:
        """Return the last of the first `count` entries, or None if `count` is not positive or the
        entry is lost."""
        if count <= 0:
            return None
        found = self.entry(count - 1)
        if found is None:
            return None
        timestamp, relative = found
        return TimeEntry(timestamp, self.base_offset + relative)

    def ascending_count_up_to(self, offset: int) -> int:
        """Count the entries up to `offset`. Return 0 if one of them is out of order.

        This checks every entry, because a binary search would assume that they ascend.
        """
        last: tuple[int, ...] = (-1, -1)
        for number, entry in enumerate(self.all_entries()):
            if entry[_OFFSET] + self.base_offset > offset:
                return number
            if entry[_TIMESTAMP] <= last[_TIMESTAMP] or entry[_OFFSET] <= last[_OFFSET]:
                return 0
            last = entry
        return self.size_bytes // ENTRY.size
