"""Looks up records by timestamp, and the record with the largest timestamp.

A lookup finds the exact record: the time index narrows the search to a part of a segment, the batch
headers to a single batch, and only that batch is decoded. Transaction markers count as records, as
in Kafka; a consumer that starts at a marker skips it. A time index entry of a sealed segment is
verified against the log before it is used. A wrong entry is ignored; if it is the last one, the
index is rebuilt.

Damaged batches and batches that cannot be decoded are added to the log's report and skipped. If the
batch with the largest timestamp cannot be decoded, its last offset is returned. A large batch is
decoded in a separate step (work.py). If compaction or retention replaces the segment during that
step, the search for a timestamp restarts.
"""

from __future__ import annotations

from operator import is_

from strandlog.errors import CorruptSegmentError, DataError
from strandlog.model import TimestampOffset
from strandlog.record.batch import BatchView
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.partition.read import end_offset_of, plan_in_whole
from strandlog.storage.partition.record_checks import is_quick
from strandlog.storage.segment import time_index
from strandlog.storage.segment.read_plan import indexed_header, source_and_entry
from strandlog.storage.segment.scan import Batch, Damage, buffered, scan
from strandlog.storage.segment.segment import ActiveSegment, Segment
from strandlog.storage.segment.time_index import NO_TIME_ENTRY, TimeEntry
from strandlog.storage.segment.time_search import SearchStart, is_largest, search_start
from strandlog.storage.work import Work


def largest_timestamp(log: PartitionLog, segment: Segment) -> TimeEntry:
    """Return the largest timestamp in a segment and the last offset of its batch, verified against
    the log if the segment is sealed. Return `NO_TIME_ENTRY` if no record has a timestamp."""
    if isinstance(segment, ActiveSegment):
        return segment.indexes.largest
    if segment.largest is None:
        maps = log.cache.get(segment)
        if segment.largest is None:
            count = len(maps.time_index) // time_index.ENTRY.size
            entry = time_index.entry_before(maps.time_index, segment.base_offset, count)
            if entry is None or not _is_true(log, segment, entry):
                if segment.size_bytes:
                    log.report(f"the time index of {segment.log_path} was wrong and was rebuilt")
                log.cache.rebuild(segment)
            else:
                segment.largest = entry
    return segment.largest or NO_TIME_ENTRY


def _is_true(log: PartitionLog, segment: Segment, entry: TimeEntry) -> bool:
    """Return whether the last entry of a sealed segment is right: the batch that it refers to has
    its timestamp, and the next batches have none that is larger."""
    if not segment.base_offset <= entry.offset:
        return False
    try:
        found = plan_in_whole(log, segment, entry.offset).locate()
    except CorruptSegmentError:
        return False
    if found is None or (found.header.max_timestamp, found.header.last_offset) != entry:
        return False
    return is_largest(log.cache.get(segment).source, segment, found)


def find_latest(log: PartitionLog) -> Work[TimestampOffset | None]:
    """Return the first visible record with the largest timestamp, or None if no visible record has
    a timestamp. If its batch cannot be decoded, return the last offset of the batch. Transaction
    markers count as records, as in Kafka."""
    latest, newest = NO_TIME_ENTRY, None
    for segment in log.segments.all():
        if segment.base_offset >= log.high_watermark:
            break
        largest = largest_timestamp(log, segment)
        if largest.timestamp > latest.timestamp:
            if not log.log_start_offset <= largest.offset < log.high_watermark:
                largest = _largest_visible(log, segment)
            if largest.timestamp > latest.timestamp:
                latest, newest = largest, segment
    if newest is None:
        return None
    batch = BatchView(plan_in_whole(log, newest, latest.offset).execute())
    if batch.header.is_control:
        return TimestampOffset(*latest)
    try:
        found = yield from _search_batch(log, batch, latest.timestamp, 0)
    except DataError as error:
        log.report(f"{log.tp}: {error}")
        return TimestampOffset(*latest)  # as precise as the header allows
    if found is None or found.offset >= log.log_start_offset:
        return found
    return found._replace(offset=log.log_start_offset)  # the start of the log is inside the batch


def _largest_visible(log: PartitionLog, segment: Segment) -> TimeEntry:
    """Return the largest timestamp in the visible part of a segment and the last offset of its
    batch. Used if the largest timestamp of the entire segment is outside that part."""
    first, largest = max(log.log_start_offset, segment.base_offset), NO_TIME_ENTRY
    if isinstance(segment, ActiveSegment):  # batches before an indexed one have smaller timestamps
        entry = segment.indexes.times.last_below(log.high_watermark)
        first = first if entry is None else max(first, entry.offset)
    source, indexed = source_and_entry(log.cache, segment, first)
    end_position = log.high_watermark_position.end_in(segment)
    start = 0
    if indexed is not None and indexed_header(source, indexed, end_position) is not None:
        start = indexed.position
    end_offset = end_offset_of(log, segment)
    for item in scan(buffered(source), start, end_position, next_offset=0, end_offset=end_offset):
        if isinstance(item, Damage):
            log.report(str(item.error(segment.log_path)))
        elif item.header.last_offset >= first and item.header.max_timestamp > largest.timestamp:
            largest = TimeEntry(item.header.max_timestamp, item.header.last_offset)
    return largest


def _search_batch(
    log: PartitionLog, batch: BatchView, timestamp_ms: int, from_offset: int
) -> Work[TimestampOffset | None]:
    """Return the first record of a batch at or after a time, or None. A large batch is decoded in a
    separate step."""
    data, limit_bytes = batch.data(), log.context.settings.decompressed_max_bytes
    if is_quick(batch.header, data):
        return batch.find_timestamp(timestamp_ms, limit_bytes, from_offset)
    copy = BatchView(bytes(data))  # the file may be removed during the step
    found: list[TimestampOffset | None] = []
    yield lambda: found.append(copy.find_timestamp(timestamp_ms, limit_bytes, from_offset))
    return found[0]


def find_timestamp(log: PartitionLog, timestamp_ms: int) -> Work[TimestampOffset | None]:
    """Return the first record at or after a time, or None if all records that are visible and
    intact are older."""
    while True:
        try:
            return (yield from _find_timestamp(log, timestamp_ms))
        except _SegmentGoneError:
            pass  # restart the lookup


def _find_timestamp(log: PartitionLog, timestamp_ms: int) -> Work[TimestampOffset | None]:
    segments = log.segments.all()
    for segment in segments:
        if segment.base_offset >= log.high_watermark:
            return None
        if largest_timestamp(log, segment).timestamp >= timestamp_ms:
            found = yield from _find_in(log, segment, timestamp_ms)
            if found is not None:
                return found
            if not all(map(is_, log.segments.all(), segments)):
                raise _SegmentGoneError
    return None


class _SegmentGoneError(Exception):
    """Raised if compaction or retention changed the segments while a batch was being decoded."""


def _find_in(
    log: PartitionLog, segment: Segment, timestamp_ms: int
) -> Work[TimestampOffset | None]:
    """Return the first record of one segment at or after a time, or None. Damaged batches and
    batches that cannot be decoded are reported and skipped."""
    source = buffered(source_and_entry(log.cache, segment, segment.base_offset)[0])
    start = _time_start(log, segment, timestamp_ms)
    for item in scan(
        source,
        start.position,
        log.high_watermark_position.end_in(segment),
        next_offset=start.next_offset,
        crc_from_offset=log.log_start_offset,  # a damaged timestamp would hide the batch
        end_offset=end_offset_of(log, segment),
    ):
        if isinstance(item, Damage):
            log.report(str(item.error(segment.log_path)))
            continue
        position, header = item
        if header.max_timestamp < timestamp_ms or header.last_offset < log.log_start_offset:
            continue
        batch = BatchView(source(position, header.size_bytes))
        try:
            found = yield from _search_batch(log, batch, timestamp_ms, log.log_start_offset)
        except DataError as error:
            before = header.base_offset - 1
            damage = CorruptSegmentError(segment.log_path, position, str(error), before)
            log.report(str(damage))
            continue
        if found is not None:
            return found
        if segment not in log.segments.all():
            raise _SegmentGoneError
    return None


def _time_start(log: PartitionLog, segment: Segment, timestamp_ms: int) -> SearchStart:
    """Return where to start the search; no earlier batch can match."""
    if isinstance(segment, ActiveSegment):
        entries = segment.indexes.times.last_two(timestamp_ms)
    else:
        saved = log.cache.get(segment).time_index
        entries = time_index.last_two(saved, segment.base_offset, timestamp_ms)
    source, _ = source_and_entry(log.cache, segment, segment.base_offset)

    def locate(offset: int) -> Batch | None:
        return plan_in_whole(log, segment, offset).locate()

    return search_start(source, segment, end_offset_of(log, segment), entries, locate)
