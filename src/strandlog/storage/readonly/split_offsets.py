"""Divides a range of offsets into parts of about equal size in bytes.

It splits at batch boundaries, so that no two parts decode the same batch. It takes the boundaries
from the indexes without checking them: a wrong index makes the parts uneven, or makes two of them
decode the same batch, but no part is incorrect.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from strandlog.model import Buffer
from strandlog.storage.segment.offset_index import search, search_position


class SegmentRange(NamedTuple):
    """The byte range of a segment that lies in a range of offsets."""

    base_offset: int  # base offset of the segment
    entries: Buffer  # the segment's offset index
    position: int
    end_position: int

    @property
    def size_bytes(self) -> int:
        return max(0, self.end_position - self.position)


def range_in(
    base_offset: int, entries: Buffer, size_bytes: int, start_offset: int, end_offset: int | None
) -> SegmentRange:
    """Return the part of a segment that lies in a range of offsets, as precisely as the index
    allows. If `end_offset` is None, the range extends to the end of the segment."""
    first = search(entries, base_offset, start_offset)
    position = 0 if first is None else first.position
    if end_offset is None:
        return SegmentRange(base_offset, entries, position, size_bytes)
    last = search(entries, base_offset, end_offset)
    return SegmentRange(base_offset, entries, position, 0 if last is None else last.position)


def split_offsets(ranges: Iterable[SegmentRange], pieces: int) -> list[int]:
    """Return the ascending offsets at which to split the ranges into `pieces` parts, or fewer if
    there are too few index entries."""
    ranges = list(ranges)
    total_bytes = sum(stretch.size_bytes for stretch in ranges)
    found: set[int] = set()
    bytes_before = 0
    for stretch in ranges:
        for number in range(1, pieces):
            inside = total_bytes * number // pieces - bytes_before
            if 0 <= inside < stretch.size_bytes:
                position = stretch.position + inside
                entry = search_position(stretch.entries, stretch.base_offset, position)
                found.add(stretch.base_offset if entry is None else entry.offset + 1)
        bytes_before += stretch.size_bytes
    return sorted(found)
