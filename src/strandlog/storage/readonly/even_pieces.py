"""Where to cut a range of offsets so that its pieces have about as many bytes each.

Cuts lie where a batch begins, so that nobody who reads a piece unpacks a batch of his neighbour's.
They are found in the offset indexes alone, without a look at the log: an entry there says where a
batch begins and with which offset it ends, and the next one begins behind that. An index that is
wrong makes pieces uneven, never wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from strandlog.storage.files import Buffer
from strandlog.storage.segment.offset_index import search, search_position


class Stretch(NamedTuple):
    """The part of a segment that lies in the range, from one position to another."""

    base_offset: int  # of the segment
    entries: Buffer  # its offset index
    position: int
    end_position: int

    @property
    def size_bytes(self) -> int:
        return max(0, self.end_position - self.position)


def stretch_of(
    base_offset: int, entries: Buffer, size_bytes: int, start_offset: int, end_offset: int | None
) -> Stretch:
    """What a segment of that size has of a range; `end_offset` is None for all of it."""
    first = search(entries, base_offset, start_offset)
    position = 0 if first is None else first.position
    if end_offset is None:
        return Stretch(base_offset, entries, position, size_bytes)
    last = search(entries, base_offset, end_offset)
    return Stretch(base_offset, entries, position, 0 if last is None else last.position)


def even_cuts(stretches: Iterable[Stretch], pieces: int) -> list[int]:
    """Offsets, ascending, that cut into that many pieces; fewer where there are too few batches."""
    stretches = list(stretches)
    total_bytes = sum(stretch.size_bytes for stretch in stretches)
    found: set[int] = set()
    bytes_before = 0
    for stretch in stretches:
        for number in range(1, pieces):
            inside = total_bytes * number // pieces - bytes_before
            if 0 <= inside < stretch.size_bytes:
                position = stretch.position + inside
                entry = search_position(stretch.entries, stretch.base_offset, position)
                found.add(stretch.base_offset if entry is None else entry.offset + 1)
        bytes_before += stretch.size_bytes
    return sorted(found)
