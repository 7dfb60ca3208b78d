"""Finds where a search for a timestamp must start in a segment, using its time index.

A time index entry names the first batch to reach its timestamp, so no batch before the last entry
at or below the wanted timestamp can match. The log is scanned from the previous entry, because a
wrong entry could name a later batch with the same timestamp.

The last entry in the time index of a sealed segment names the batch with the largest timestamp,
unless the index file was truncated. To detect this, `is_largest` compares a few of the following
batches; if timestamps ascend, the next batch already has a larger one.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

from strandlog.errors import CorruptSegmentError
from strandlog.storage.segment.scan import Batch, ByteSource, Damage, buffered, scan
from strandlog.storage.segment.segment import Segment
from strandlog.storage.segment.time_index import TimeEntry

CHECKED_AFTER_LAST = 32  # batches after the last entry; each may be a page that is not in memory


class SearchStart(NamedTuple):
    """The position where a search starts, and the lowest offset that the first batch may have."""

    position: int
    next_offset: int


def search_start(
    source: ByteSource,
    segment: Segment,
    end_offset: int,
    entries: tuple[TimeEntry | None, TimeEntry | None],
    locate: Callable[[int], Batch | None],
) -> SearchStart:
    """Return where to start the search, given the last two entries at or below the timestamp: at
    the batch of the last entry, or at the start of the segment if there is no entry or the log
    contradicts one.

    `locate` returns the first batch of the segment that ends at or after an offset.
    """
    first = SearchStart(0, segment.base_offset)
    before, entry = entries
    if entry is None:
        return first
    start = first
    if before is not None:
        if not segment.base_offset <= before.offset < entry.offset:
            return first
        try:
            found = locate(before.offset)
        except CorruptSegmentError:
            return first
        if found is None or not _names(before, found):
            return first
        start = SearchStart(found.position, 0)
    for item in scan(
        buffered(source),
        start.position,
        segment.size_bytes,
        next_offset=start.next_offset,
        end_offset=end_offset,
    ):
        if isinstance(item, Damage):
            return first
        position, header = item
        if header.last_offset >= entry.offset:
            return SearchStart(position, header.base_offset) if _names(entry, item) else first
        if header.max_timestamp >= entry.timestamp:
            return first
    return first


def _names(entry: TimeEntry, batch: Batch) -> bool:
    return (batch.header.max_timestamp, batch.header.last_offset) == entry


def is_largest(source: ByteSource, segment: Segment, batch: Batch) -> bool:
    """Return whether none of the next `CHECKED_AFTER_LAST` batches of a sealed segment, up to the
    first damage, has a larger timestamp."""
    following = scan(
        buffered(source),
        batch.position,
        segment.size_bytes,
        next_offset=batch.header.base_offset,
        end_offset=segment.end_offset,
    )
    largest = batch.header.max_timestamp
    for item in islice(following, 1 + CHECKED_AFTER_LAST):
        if isinstance(item, Damage):
            break
        if item.header.max_timestamp > largest:
            return False
    return True
