"""Sparse index from offset to file position, in Kafka's format.

    entry: i32 offset relative to the base | i32 position          big-endian, both ascending

An entry states that the batch that starts at `position` ends with `offset`. A read checks an entry
against the log before using it, so a flipped bit in an index causes a rebuild, never a wrong
result.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from strandlog.model import Buffer
from strandlog.storage.segment.sparse_index import SparseIndex, count_at_or_below

ENTRY = struct.Struct(">ii")
_OFFSET = 0
_POSITION = 1


class IndexEntry(NamedTuple):
    """A batch that starts at `position` and ends with `offset` (absolute)."""

    offset: int
    position: int


def search(entries: Buffer, base_offset: int, target_offset: int) -> IndexEntry | None:
    """Return the last entry at or below the target, or None if there is none."""
    count = count_at_or_below(entries, ENTRY, _OFFSET, target_offset - base_offset)
    return _last_of(entries, count, base_offset)


def search_position(entries: Buffer, base_offset: int, position: int) -> IndexEntry | None:
    """Return the last entry whose batch starts at or before a position, or None."""
    return _last_of(entries, count_at_or_below(entries, ENTRY, _POSITION, position), base_offset)


def _last_of(entries: Buffer, count: int, base_offset: int) -> IndexEntry | None:
    if not count:
        return None
    relative, position = ENTRY.unpack_from(entries, (count - 1) * ENTRY.size)
    return IndexEntry(base_offset + relative, position)


class OffsetIndex(SparseIndex):
    """The offset index of a segment that is being written."""

    __slots__ = ()
    layout = ENTRY

    def append(self, offset: int, position: int) -> None:
        self.add(ENTRY.pack(offset - self.base_offset, position))

    def lookup(self, target_offset: int) -> IndexEntry | None:
        """Return the last entry at or below the target, or None if there is none."""
        return self.entry_before(self.count_up_to(target_offset))

    def count_up_to(self, target_offset: int) -> int:
        """Count the entries at or below the target."""
        return self.count_at_or_below(_OFFSET, target_offset - self.base_offset)

    @property
    def last(self) -> IndexEntry | None:
        return self.entry_before(self.size_bytes // ENTRY.size)

    def entry_before(self, count: int) -> IndexEntry | None:
        """Return the last of the first `count` entries, or None if `count` is not positive or the
        entry is lost."""
        if count <= 0:
            return None
        found = self.entry(count - 1)
        if found is None:
            return None
        relative, position = found
        return IndexEntry(self.base_offset + relative, position)
