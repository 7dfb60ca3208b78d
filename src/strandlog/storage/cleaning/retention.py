"""Which segments are too old or too many. Pure decisions; `PartitionLog.drop_oldest` carries them
out.

Segments go from the old end only, whole, and in this order of reasons: below the log start offset,
over retention.bytes, older than retention.ms. The age of a segment is that of its newest record.
The active segment goes too when its newest record is too old (a new, empty one takes its place),
but never for its size: at least one segment stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from strandlog.config.tables.topic import LogSettings


class SegmentFacts(NamedTuple):
    """What retention needs to know of a segment."""

    end_offset: int
    size_bytes: int
    newest_ms: int  # the newest record's time, or when the segment was last seen to grow


def below_log_start(segments: Sequence[SegmentFacts], log_start_offset: int) -> int:
    """How many segments, from the oldest, hold only deleted records. The active one stays."""
    count = 0
    for segment in segments[:-1]:
        if segment.end_offset > log_start_offset:
            break
        count += 1
    return count


def over_size(segments: Sequence[SegmentFacts], retention_bytes: int) -> int:
    """How many segments, from the oldest, can go with at least retention_bytes left."""
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


def too_old(segments: Sequence[SegmentFacts], retention_ms: int, now_ms: int) -> int:
    """How many segments, from the oldest, have no record younger than retention_ms."""
    if retention_ms < 0:
        return 0
    count = 0
    for segment in segments:
        # One that compaction or truncation emptied has no record to wait for.
        if segment.size_bytes and now_ms - segment.newest_ms <= retention_ms:
            break
        count += 1
    if count == len(segments) and not segments[-1].size_bytes:
        count -= 1  # an empty active segment has nothing to lose
    return count


def expired(
    segments: Sequence[SegmentFacts], log_start_offset: int, settings: LogSettings, now_ms: int
) -> int:
    """How many segments, from the oldest, may go now."""
    count = below_log_start(segments, log_start_offset)
    if settings.deletes:
        count = max(
            count,
            over_size(segments, settings.retention_bytes),
            too_old(segments, settings.retention_ms, now_ms),
        )
    return count
