"""Finds the position at which recovery must start reading a segment.

Everything below the snapshot point was flushed together with its indexes, so recovery need not read
it. `trusted_start` uses the offset index to find the batch at the snapshot point. If an index entry
that it checks contradicts the log, the time index has no trusted entry, or the log below the
snapshot point is damaged or incomplete, recovery trusts nothing in the segment and reads it from
the start.
"""

from __future__ import annotations

from typing import NamedTuple

from strandlog.record.batch_header import read_header
from strandlog.storage.segment.offset_index import IndexEntry
from strandlog.storage.segment.read_plan import indexed_header
from strandlog.storage.segment.scan import Damage, scan, view_source
from strandlog.storage.segment.segment import Segment, SegmentIndexes
from strandlog.storage.segment.time_index import TimeEntry


class ScanStart(NamedTuple):
    """The position where a scan starts, and the lowest offset that the first batch may have."""

    position: int
    next_offset: int


def trusted_start(
    view: memoryview,
    segment: Segment,
    indexes: SegmentIndexes,
    trusted_offset: int,
    *,
    is_last: bool,
) -> ScanStart:
    """Return the start of the untrusted part of a segment, after truncating the indexes to the
    trusted part."""
    if trusted_offset > segment.base_offset:
        counts = _trusted_entries(view, indexes, trusted_offset)
        if counts is not None:
            indexes.keep_first(*counts)
            start = _find_offset(
                view, segment, indexes.offsets.last, trusted_offset, is_last=is_last
            )
            if start is not None:
                return start
    indexes.keep_first(0, 0)
    return ScanStart(0, segment.base_offset)


def _trusted_entries(
    view: memoryview, indexes: SegmentIndexes, trusted_offset: int
) -> tuple[int, int] | None:
    """Return how many entries of each index refer to trusted batches, or None if an entry is wrong
    or the time index has none.

    Entries written after the last sync may contain anything. The last trusted entry of each index
    is therefore checked against the log. If the time index continues beyond the trusted part, its
    trusted entries are inspected one by one, so that the largest timestamp is not missed.
    """
    offsets, times = indexes.offsets, indexes.times
    offset_count = offsets.count_up_to(trusted_offset - 1)
    entry = offsets.entry_before(offset_count)
    if entry is not None and indexed_header(view_source(view), entry, len(view)) is None:
        return None
    largest = times.last
    time_count = times.size_bytes // times.layout.size
    if largest is not None and largest.offset >= trusted_offset:
        time_count = times.ascending_count_up_to(trusted_offset - 1)
        largest = times.entry_before(time_count)
    if largest is None or not _time_entry_is_right(view, entry, largest):
        return None
    return offset_count, time_count


def _time_entry_is_right(
    view: memoryview, index_entry: IndexEntry | None, entry: TimeEntry
) -> bool:
    """Return whether there is a batch with the last offset and timestamp of the entry."""
    start = index_entry.position if index_entry and index_entry.offset <= entry.offset else 0
    for item in scan(view_source(view), start, len(view), next_offset=0):
        if isinstance(item, Damage):
            return False
        if item.header.last_offset >= entry.offset:
            return (item.header.max_timestamp, item.header.last_offset) == entry
    return False


def _find_offset(
    view: memoryview,
    segment: Segment,
    entry: IndexEntry | None,
    trusted_offset: int,
    *,
    is_last: bool,
) -> ScanStart | None:
    """Return the start of the first batch at or above the trusted offset, or the end of the segment
    if there is none. Return None if the log below that offset is damaged, if the offset is not at a
    batch boundary, or if the last segment ends below it."""
    position, next_offset = 0, segment.base_offset
    if entry is not None:
        position, next_offset = entry.position, read_header(view, entry.position).base_offset
    for item in scan(
        view_source(view), position, len(view), next_offset=next_offset, has_gaps=not is_last
    ):
        if isinstance(item, Damage):
            if next_offset < trusted_offset:
                return None
            break
        if item.header.base_offset >= trusted_offset:
            position = item.position
            break
        position, next_offset = item.position + item.header.size_bytes, item.header.next_offset
    # The trusted offset is a batch boundary. The last segment has no gaps; others may have some.
    if next_offset > trusted_offset or (is_last and next_offset < trusted_offset):
        return None
    return ScanStart(position, next_offset)
