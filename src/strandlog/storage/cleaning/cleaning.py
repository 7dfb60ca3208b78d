"""Carries out what retention.py and compaction_policy.py decide, on one open partition."""

from __future__ import annotations

from strandlog.storage.cleaning.compaction import (
    DEFAULT_MAP_BYTES,
    CompactionPlan,
    CompactionReport,
    plan_compaction,
)
from strandlog.storage.cleaning.policy import CompactionNeed, SealedFacts, compaction_need
from strandlog.storage.cleaning.retention import SegmentFacts, expired
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.partition.read import largest_timestamp
from strandlog.storage.segment.segment import ActiveSegment, Segment


def enforce_retention(log: PartitionLog) -> int:
    """Drop the segments that are too old or too many; returns how many went."""
    count = count_expired(log)
    if count:
        log.drop_oldest(count)
    return count


def count_expired(log: PartitionLog) -> int:
    """How many of the oldest segments are to be dropped."""
    now_ms = log.context.clock.now_ms()
    segments = log.segments.all()
    ends = [*(segment.base_offset for segment in segments[1:]), log.log_end_offset]
    facts = [
        SegmentFacts(end, segment.size_bytes, _newest_ms(log, segment, now_ms))
        for segment, end in zip(segments, ends, strict=True)
    ]
    count = expired(facts, log.log_start_offset, log.settings, now_ms)
    # The log starts at most at the high watermark: what nobody could see yet stays.
    while count and facts[count - 1].end_offset > log.high_watermark:
        count -= 1
    return count


def _newest_ms(log: PartitionLog, segment: Segment, now_ms: int) -> int:
    timestamp = largest_timestamp(log, segment).timestamp
    if timestamp >= 0:
        return timestamp
    # Records without any timestamp: a segment that grows is as old as it is, a sealed one has no
    # age that could be told, and what has no age does not expire.
    return segment.created_ms if isinstance(segment, ActiveSegment) else now_ms


def need_for_compaction(log: PartitionLog, first_dirty_offset: int) -> CompactionNeed:
    """How dirty the log is, by the policy of its topic."""
    now_ms = log.context.clock.now_ms()
    stable_offset = min(log.last_stable_offset, log.flushed_offset)
    facts = [
        SealedFacts(
            segment.base_offset,
            log.segments.end_of(number),
            segment.size_bytes,
            _newest_ms(log, segment, now_ms),
        )
        for number, segment in enumerate(log.segments.sealed)
    ]
    return compaction_need(facts, first_dirty_offset, stable_offset, log.settings, now_ms)


def plan_due_compaction(
    log: PartitionLog, first_dirty_offset: int, map_bytes: int = DEFAULT_MAP_BYTES
) -> CompactionPlan | None:
    """The plan for a log that its policy calls due; None when it is not."""
    need = need_for_compaction(log, first_dirty_offset)
    if not need.is_due:
        return None
    return plan_compaction(log, first_dirty_offset, need.end_offset, map_bytes)


def compact_now(log: PartitionLog, map_bytes: int = DEFAULT_MAP_BYTES) -> CompactionReport:
    """Compact everything there is, whatever the policy says: the active segment is rolled first."""
    log.roll()
    log.flush()
    total = CompactionReport(next_dirty_offset=log.log_start_offset)
    while True:
        plan = plan_compaction(log, total.next_dirty_offset, log.last_stable_offset, map_bytes)
        if plan is None or total.next_dirty_offset >= plan.end_offset:
            return total
        plan.execute()
        report = plan.complete()
        total.records_removed += report.records_removed
        total.records_retained = report.records_retained
        total.bytes_before = total.bytes_before or report.bytes_before
        total.bytes_after = report.bytes_after
        total.next_dirty_offset = report.next_dirty_offset
