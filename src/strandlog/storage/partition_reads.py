"""Reads from an open partition: by offset and by time.

A reader sees offsets from the log start offset up to the high watermark (`unflushed=True`: up to
the log end offset, for the log's own upkeep). A read inside a batch returns the whole batch; a read
inside a gap returns the next batch. `read` answers from one segment; callers go on from the offset
after what they got.

A lookup by time is exact to the record: time index to segment part, batch headers to batch, then
the records of that one batch are decoded.
"""

from __future__ import annotations

from strandlog.errors import CorruptSegmentError
from strandlog.model import TimestampOffset
from strandlog.record.batch import BatchView
from strandlog.storage import time_index
from strandlog.storage.batch_walk import Source, walk, windowed
from strandlog.storage.files import Buffer
from strandlog.storage.offset_index import IndexEntry
from strandlog.storage.partition_log import PartitionLog
from strandlog.storage.read_plan import EMPTY, ReadPlan
from strandlog.storage.segment import ActiveSegment, Segment
from strandlog.storage.time_index import NO_TIME_ENTRY, TimeEntry


def read_plan(
    log: PartitionLog, offset: int, max_bytes: int, *, unflushed: bool = False
) -> ReadPlan | None:
    """How to read from an offset on; None when there is nothing yet."""
    end_offset = log.log_end_offset if unflushed else log.high_watermark
    log.check_offset(offset, end_offset)
    if offset == end_offset:
        return None
    segment, _ = log.segments.at(offset)
    end_position = _end_position(log, segment, unflushed)
    return plan_in(log, segment, offset, max_bytes, end_position)


def _end_position(log: PartitionLog, segment: Segment, unflushed: bool) -> int:
    """Up to which byte of a segment a reader may go."""
    base, position = log.visible_place
    if unflushed or segment.base_offset < base:
        return segment.size_bytes
    return min(position, segment.size_bytes) if segment.base_offset == base else 0


def plan_in(
    log: PartitionLog, segment: Segment, offset: int, max_bytes: int, end_position: int
) -> ReadPlan:
    """A read inside one segment."""
    source, entry = _source_and_entry(log, segment, offset)
    return ReadPlan(
        source, segment.log_path, segment.base_offset, entry, end_position, offset, max_bytes
    )


def _source_and_entry(
    log: PartitionLog, segment: Segment, offset: int
) -> tuple[Source, IndexEntry | None]:
    if isinstance(segment, ActiveSegment):
        return segment.file.read, segment.indexes.offsets.lookup(offset)
    maps = log.context.cache.get(segment)
    return maps.source, maps.lookup(segment, offset)


def read(log: PartitionLog, offset: int, max_bytes: int, *, unflushed: bool = False) -> Buffer:
    """The bytes from the batch that holds `offset` on (or the next one after a gap)."""
    plan = read_plan(log, offset, max_bytes, unflushed=unflushed)
    while plan is not None:
        data = plan.execute()
        read_done(log, plan)
        if data:
            return data
        plan = plan_after(log, plan, unflushed=unflushed)
    return EMPTY


def plan_after(log: PartitionLog, plan: ReadPlan, *, unflushed: bool = False) -> ReadPlan | None:
    """The same read in the next segment, when the first had only a gap to offer."""
    _, next_base = log.segments.at(plan.offset)
    end_offset = log.log_end_offset if unflushed else log.high_watermark
    if next_base is None or next_base >= end_offset:
        return None
    return read_plan(log, next_base, plan.max_bytes, unflushed=unflushed)


def read_done(log: PartitionLog, plan: ReadPlan) -> None:
    """A plan was executed: mend the index if the log contradicted it."""
    if not plan.index_is_wrong:
        return
    segment, _ = log.segments.at(plan.offset)
    log.last_report.problems.append(f"an index of {segment.log_path} was wrong; made anew")
    if isinstance(segment, ActiveSegment):
        segment.indexes.offsets.keep(0)
    else:
        log.context.cache.rebuild(segment)


def largest_timestamp(log: PartitionLog, segment: Segment) -> TimeEntry:
    """The largest timestamp in a segment, checked against the log; -1 when no record has one."""
    if isinstance(segment, ActiveSegment):
        return segment.indexes.largest
    if segment.largest is None:
        maps = log.context.cache.get(segment)
        if segment.largest is None:
            count = len(maps.time_index) // time_index.ENTRY.size
            entry = time_index.entry_before(maps.time_index, segment.base_offset, count)
            if entry is None or not _is_true(log, segment, entry):
                log.context.cache.rebuild(segment)
            else:
                segment.largest = entry
    return segment.largest or NO_TIME_ENTRY


def _is_true(log: PartitionLog, segment: Segment, entry: TimeEntry) -> bool:
    """Whether the batch that the entry names has that timestamp."""
    if not segment.base_offset <= entry.offset:
        return False
    plan = plan_in(log, segment, entry.offset, 0, segment.size_bytes)
    try:
        data = plan.execute()
    except CorruptSegmentError:
        return False
    if not data:
        return False
    header = BatchView(data).header
    return header.last_offset == entry.offset and header.max_timestamp == entry.timestamp


def find_timestamp(log: PartitionLog, timestamp_ms: int) -> TimestampOffset | None:
    """The first record at or after a time, or None when all visible ones are older."""
    for segment in log.segments.all():
        if segment.base_offset >= log.high_watermark:
            return None
        if largest_timestamp(log, segment).timestamp >= timestamp_ms:
            found = _find_in(log, segment, timestamp_ms)
            if found is not None:
                return found
    return None


def _find_in(log: PartitionLog, segment: Segment, timestamp_ms: int) -> TimestampOffset | None:
    start = _time_start(log, segment, timestamp_ms)
    source = windowed(_source_and_entry(log, segment, segment.base_offset)[0])
    end_position = _end_position(log, segment, unflushed=False)
    batches = walk(source, start, end_position, path=segment.log_path, next_offset=0)
    for position, header in batches:
        if header.max_timestamp < timestamp_ms or header.last_offset < log.log_start_offset:
            continue
        batch = BatchView(source(position, header.size_bytes))
        batch.check()
        if header.is_control:
            continue
        limit_bytes = log.context.decompressed_max_bytes
        for record in batch.records(*log.tp, log.log_start_offset, limit_bytes):
            if record.timestamp >= timestamp_ms:
                return TimestampOffset(record.timestamp, record.offset)
    return None


def _time_start(log: PartitionLog, segment: Segment, timestamp_ms: int) -> int:
    """Where in a segment the search for a time begins: no earlier batch can be the answer."""
    # An entry at the very time is the first to reach it, so the one at or below is never too late.
    if isinstance(segment, ActiveSegment):
        entry = segment.indexes.times.lookup(timestamp_ms)
    else:
        maps = log.context.cache.get(segment)
        entry = time_index.search(maps.time_index, segment.base_offset, timestamp_ms)
    if entry is None or not _is_true(log, segment, entry):
        return 0
    plan = plan_in(log, segment, entry.offset, 0, segment.size_bytes)
    found = plan.locate()
    return found[0] if found else 0
