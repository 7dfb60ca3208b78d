"""Walks the part of one segment that a start does not trust.

`trusted_start` finds where that part begins: at the snapshot point, found through the index. An
index entry that the log contradicts makes the whole segment untrusted. `scan_segment` then walks to
the end with checksums, noting each batch, and tells torn from damaged by the recovery point (see
recovery.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from strandlog.errors import CorruptSegmentError
from strandlog.record.batch_header import HEADER_SIZE, BatchHeader, read_header
from strandlog.storage.segment.batch_walk import NEVER, next_intact, problem_with, view_source, walk
from strandlog.storage.segment.offset_index import IndexEntry
from strandlog.storage.segment.segment import Segment, SegmentIndexes
from strandlog.storage.segment.time_index import TimeEntry


class Damage(NamedTuple):
    """Bytes of a log that no longer hold the records they once held."""

    position: int
    end_position: int
    start_offset: int
    end_offset: int | None  # None when nothing intact follows in this segment
    reason: str


@dataclass(slots=True)
class SegmentScan:
    """Where a walk ended and what it met."""

    next_offset: int
    walked_bytes: int = 0
    torn_position: int | None = None
    damage: list[Damage] = field(default_factory=list)


def entry_is_true(view: memoryview, entry: IndexEntry) -> bool:
    """Whether a batch begins at the position and ends with the offset that the entry says."""
    room = len(view) - entry.position
    if entry.position < 0 or room < HEADER_SIZE:
        return False
    header = read_header(view, entry.position)
    return not problem_with(header, 0, room) and header.last_offset == entry.offset


def trusted_start(
    view: memoryview,
    segment: Segment,
    indexes: SegmentIndexes,
    trusted_offset: int,
    *,
    is_last: bool,
) -> tuple[int, int]:
    """(position, next offset) where the untrusted part begins; the indexes are cut to match."""
    if trusted_offset > segment.base_offset:
        counts = _trusted_entries(view, segment, indexes, trusted_offset)
        if counts is not None:
            indexes.keep_first(*counts)
            start = _walk_to(view, segment, indexes.offsets.last, trusted_offset, is_last=is_last)
            if start is not None:
                return start
    indexes.keep_first(0, 0)
    return 0, segment.base_offset


def _trusted_entries(
    view: memoryview, segment: Segment, indexes: SegmentIndexes, trusted_offset: int
) -> tuple[int, int] | None:
    """How many entries of each index are about what is trusted; None when they are in doubt.

    What was written after the last sync may be anything. So the last entries that count are checked
    against the log, and unless the time index ends there, all of it is looked at: the largest
    timestamp must not be missed.
    """
    offsets, times = indexes.offsets, indexes.times
    offset_count = offsets.count_up_to(trusted_offset - 1)
    entry = offsets.entry_before(offset_count)
    if entry is not None and not entry_is_true(view, entry):
        return None
    largest = times.last
    time_count = times.size_bytes // times.layout.size
    if largest is not None and largest.offset >= trusted_offset:
        time_count = times.ascending_count_up_to(trusted_offset - 1)
        largest = times.entry_before(time_count)
    if largest is None or not _time_entry_is_true(view, segment, entry, largest):
        return None
    return offset_count, time_count


def _time_entry_is_true(
    view: memoryview, segment: Segment, index_entry: IndexEntry | None, entry: TimeEntry
) -> bool:
    """Whether a batch ends with the offset of the entry and has its timestamp."""
    start = index_entry.position if index_entry and index_entry.offset <= entry.offset else 0
    try:
        for _, header in walk(
            view_source(view), start, len(view), path=segment.log_path, next_offset=0
        ):
            if header.last_offset >= entry.offset:
                return (header.max_timestamp, header.last_offset) == entry
    except CorruptSegmentError:
        return False
    return False


def _walk_to(
    view: memoryview,
    segment: Segment,
    entry: IndexEntry | None,
    trusted_offset: int,
    *,
    is_last: bool,
) -> tuple[int, int] | None:
    """(position, next offset) of the trusted offset; None when the log has no such place."""
    position, next_offset = 0, segment.base_offset
    if entry is not None:
        position, next_offset = entry.position, read_header(view, entry.position).base_offset
    try:
        for found, header in walk(
            view_source(view),
            position,
            len(view),
            path=segment.log_path,
            next_offset=next_offset,
            has_gaps=not is_last,
        ):
            if header.base_offset >= trusted_offset:
                position = found
                break
            position, next_offset = found + header.size_bytes, header.next_offset
    except CorruptSegmentError as problem:
        if problem.offset is None or problem.offset + 1 < trusted_offset:
            return None
    # The points lie between two batches. Only compaction leaves a gap, never in the last segment.
    if next_offset > trusted_offset or (is_last and next_offset < trusted_offset):
        return None
    return position, next_offset


def scan_segment(
    view: memoryview,
    segment: Segment,
    start: tuple[int, int],
    recovery_point: int,
    on_batch: Callable[[int, BatchHeader], None],
    *,
    end_offset: int | None = None,
) -> SegmentScan:
    """Walk from `start` to the end of the segment or to its torn tail.

    `end_offset` is where the next segment begins; the last one has none, and no gaps either.
    """
    position, next_offset = start
    scan = SegmentScan(next_offset)
    source = view_source(view)
    while True:
        try:
            for found, header in walk(
                source,
                position,
                len(view),
                path=segment.log_path,
                next_offset=scan.next_offset,
                crc_from_offset=0,
                end_offset=NEVER if end_offset is None else end_offset,
                has_gaps=end_offset is not None,
            ):
                on_batch(found, header)
                scan.walked_bytes += header.size_bytes
                scan.next_offset = header.next_offset
        except CorruptSegmentError as problem:
            if scan.next_offset >= recovery_point:
                scan.torn_position = problem.position
                return scan
            intact = next_intact(source, problem.position, len(view), scan.next_offset)
            end = intact[0] if intact else len(view)
            damaged_to = intact[1].base_offset if intact else None
            scan.damage.append(
                Damage(problem.position, end, scan.next_offset, damaged_to, problem.reason)
            )
            if intact is None:
                return scan
            position, scan.next_offset = end, intact[1].base_offset
            continue
        return scan


def intact_end(view: memoryview, position: int, next_offset: int) -> int | None:
    """The offset after the last intact batch behind a position, or None when there is none."""
    end: int | None = None
    source = view_source(view)
    while (found := next_intact(source, position, len(view), next_offset)) is not None:
        position, first = found
        try:
            for _, header in walk(
                source,
                position,
                len(view),
                path="",
                next_offset=first.base_offset,
                crc_from_offset=0,
            ):
                end = header.next_offset
        except CorruptSegmentError as problem:
            position, next_offset = problem.position, end or next_offset
        else:
            break
    return end
