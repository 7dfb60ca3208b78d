"""Finds where recovery must start to read a segment, by the snapshot point and index entries.

Everything below the snapshot point was flushed together with its indexes, so recovery need not read
it. `trusted_start` finds the batch at the snapshot point through the offset index. An index entry
that the log contradicts makes the whole segment untrusted, and recovery reads it from its start.
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
    """Where a scan begins, and the lowest offset that the first batch may have."""

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
    """Where the untrusted part of a segment begins; cuts the indexes to match."""
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
    """How many entries of each index are about what is trusted; None when they are in doubt.

    What was written after the last sync may be anything. So the last entries that count are checked
    against the log, and unless the time index ends there, all of it is looked at: the largest
    timestamp must not be missed.
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
    """Whether a batch ends with the offset of the entry and has its timestamp."""
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
    """Where the batch with the trusted offset begins; None if no batch begins with it."""
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
    # Both points lie between two batches. Only compaction leaves gaps, never in the last segment.
    if next_offset > trusted_offset or (is_last and next_offset < trusted_offset):
        return None
    return ScanStart(position, next_offset)
