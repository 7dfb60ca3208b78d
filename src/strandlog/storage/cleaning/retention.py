"""Decides which segments have expired, and removes them.

Retention removes entire segments, oldest first, if they lie below the log start offset. With a
cleanup.policy that includes delete, it also removes segments if the log exceeds retention.bytes, or
if they are older than retention.ms. The age of a segment is the age of its newest record. The
active segment is removed only because of its age, and an empty one replaces it, so at least one
segment always remains. Segments that reach past the high watermark are not removed.

`drop_oldest` removes segments in steps (work.py):

    1  flush a producer snapshot, unless a newer one is durable, because producer state outlives
       the records
    2  withdraw the segments' entries from the manifest, and make the active segment's file name
       durable, because once all other segments are removed, only that name records the next offset
    3  rename the segments, a few at a time; the log start offset advances
    4  make the renames durable. After a crash before this step, segments may reappear; the next
       retention run removes them again

No other code may flush or truncate the partition until this work finishes; appends and reads
continue. If the partition is deleted before that, the next change to one of its files raises a
`StorageError` (partition_files.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from strandlog.config.tables.topic import LogSettings
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.partition.read import end_offset_of
from strandlog.storage.partition.time_lookup import largest_timestamp
from strandlog.storage.segment.segment import ActiveSegment, Segment
from strandlog.storage.work import Work, run_inline, yield_control


class SegmentSummary(NamedTuple):
    """The properties of a segment that retention and compaction depend on."""

    base_offset: int
    end_offset: int
    size_bytes: int
    newest_ms: int  # timestamp of the newest record, or a substitute (`_newest_ms`)


def below_log_start(segments: Sequence[SegmentSummary], log_start_offset: int) -> int:
    """Count the oldest segments that hold only deleted records, excluding the active segment."""
    count = 0
    for segment in segments[:-1]:
        if segment.end_offset > log_start_offset:
            break
        count += 1
    return count


def over_size(segments: Sequence[SegmentSummary], retention_bytes: int) -> int:
    """Count the oldest segments that can be removed while retaining at least retention_bytes."""
    if retention_bytes < 0:
        return 0
    excess = sum(segment.size_bytes for segment in segments) - retention_bytes
    count = 0
    for segment in segments[:-1]:
        excess -= segment.size_bytes
        if excess < 0:
            break
        count += 1
    return count


def too_old(segments: Sequence[SegmentSummary], retention_ms: int, now_ms: int) -> int:
    """Count the oldest segments in which every record is older than retention_ms."""
    if retention_ms < 0:
        return 0
    count = 0
    for segment in segments:
        # A segment emptied by compaction or truncation has no record to retain.
        if segment.size_bytes and now_ms - segment.newest_ms <= retention_ms:
            break
        count += 1
    if count == len(segments) and not segments[-1].size_bytes:
        count -= 1  # replacing an empty active segment would be pointless
    return count


def expired(
    segments: Sequence[SegmentSummary], log_start_offset: int, settings: LogSettings, now_ms: int
) -> int:
    """Count the oldest segments that have expired."""
    count = below_log_start(segments, log_start_offset)
    if settings.deletes:
        count = max(
            count,
            over_size(segments, settings.retention_bytes),
            too_old(segments, settings.retention_ms, now_ms),
        )
    return count


def enforce_retention(log: PartitionLog, allowed: Callable[[int], int] | None = None) -> int:
    """Remove the expired segments and return how many were removed. `allowed` receives the number
    of expired segments and returns how many of them may be removed."""
    count = count_expired(log)
    if allowed is not None:
        count = allowed(count)
    if count:
        run_inline(drop_oldest(log, count))
    return count


def count_expired(log: PartitionLog) -> int:
    """Count the oldest segments of a log that retention should remove now."""
    now_ms = log.context.clock.now_ms()
    segments = [summarize(log, segment, now_ms) for segment in log.segments.all()]
    count = expired(segments, log.log_start_offset, log.settings, now_ms)
    # The log start offset must not pass the high watermark: keep records not yet visible.
    while count and segments[count - 1].end_offset > log.high_watermark:
        count -= 1
    return count


def count_below(log: PartitionLog, count: int, offset: int) -> int:
    """Of the `count` oldest segments, count the first ones whose records all lie below an offset or
    have been deleted."""
    end_offset = max(offset, log.log_start_offset)
    segments = log.segments.all()[:count]
    found = 0
    while found < len(segments) and end_offset_of(log, segments[found]) <= end_offset:
        found += 1
    return found


def summarize(log: PartitionLog, segment: Segment, now_ms: int) -> SegmentSummary:
    """Summarize one segment of a log."""
    end_offset = end_offset_of(log, segment)
    newest_ms = _newest_ms(log, segment, now_ms)
    return SegmentSummary(segment.base_offset, end_offset, segment.size_bytes, newest_ms)


def _newest_ms(log: PartitionLog, segment: Segment, now_ms: int) -> int:
    timestamp = largest_timestamp(log, segment).timestamp
    if timestamp >= 0:
        return timestamp
    # Without timestamps, the age of the active segment counts from its creation. The age of a
    # sealed segment is unknown, so it does not expire.
    return segment.created_ms if isinstance(segment, ActiveSegment) else now_ms


RETIRED_AT_A_TIME = 25  # segments per step; each has a few files to rename


def drop_oldest(log: PartitionLog, count: int) -> Work[int]:
    """Remove the `count` oldest segments durably and return their total size in bytes."""
    if count == len(log.segments):
        log.roll()
    expired_segments = log.segments.sealed[:count]
    if not expired_segments:
        return 0
    if log.request_snapshot(expired_segments[-1].end_offset):
        yield from log.flush_work()
    log.open_active_file()
    log.manifest.withdraw(0, expired_segments[-1].end_offset)
    yield log.manifest.sync
    fsync_directory = partial(log.files.sync_dir, log.folder)
    yield fsync_directory
    for first in range(0, len(expired_segments), RETIRED_AT_A_TIME):
        log.remove_segments(expired_segments[first : first + RETIRED_AT_A_TIME])
        yield yield_control
    yield fsync_directory
    yield partial(log.manifest.shorten, log.claims_of(log.segments.sealed))
    return sum(segment.size_bytes for segment in expired_segments)
