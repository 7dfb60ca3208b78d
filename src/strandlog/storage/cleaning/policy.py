"""Decides when a log is compacted, up to which offset, and which segments are merged.

A log may be compacted up to the first segment that is active, is not yet durable, reaches past the
last stable offset, or holds a record younger than min.compaction.lag.ms. Compaction is due when,
below that segment, the fraction of bytes that has never been compacted exceeds
min.cleanable.dirty.ratio, or when the newest record of the oldest uncompacted segment is older than
max.compaction.lag.ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from strandlog.config.tables.topic import LogSettings
from strandlog.storage.cleaning.retention import SegmentSummary, summarize
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.segment.segment import MAX_RELATIVE_OFFSET, Segment


class LogToClean(NamedTuple):
    """How dirty a log is, the offset up to which it may be compacted, and whether it is due."""

    end_offset: int
    dirty_bytes: int
    total_bytes: int
    is_due: bool

    @property
    def dirty_ratio(self) -> float:
        return self.dirty_bytes / self.total_bytes if self.total_bytes else 0.0


def compaction_need(
    sealed: Sequence[SegmentSummary],
    first_dirty_offset: int,
    stable_offset: int,
    settings: LogSettings,
    now_ms: int,
) -> LogToClean:
    """Decide from the sealed segments, oldest first, whether and how far to compact a log."""
    end_offset, dirty_bytes, total_bytes = 0, 0, 0
    oldest_dirty_ms: int | None = None
    for segment in sealed:
        too_young = now_ms - segment.newest_ms < settings.min_compaction_lag_ms
        if too_young or segment.end_offset > stable_offset:
            break
        end_offset = segment.end_offset
        total_bytes += segment.size_bytes
        if segment.end_offset > first_dirty_offset:
            dirty_bytes += segment.size_bytes
            if oldest_dirty_ms is None:
                oldest_dirty_ms = segment.newest_ms
    need = LogToClean(end_offset, dirty_bytes, total_bytes, is_due=False)
    if not dirty_bytes:
        return need
    waits_too_long = (
        oldest_dirty_ms is not None and now_ms - oldest_dirty_ms > settings.max_compaction_lag_ms
    )
    is_dirty = need.dirty_ratio > settings.min_cleanable_dirty_ratio
    return need._replace(is_due=is_dirty or waits_too_long)


def groups(
    segments: Sequence[Segment], settings: LogSettings, end_offset: int
) -> list[list[Segment]]:
    """Group consecutive segments that fit into one segment. Compaction shrinks segments and merges
    each group, so that small segments do not accumulate."""
    runs: list[list[Segment]] = []
    size = 0
    for number, segment in enumerate(segments):
        end = segments[number + 1].base_offset if number + 1 < len(segments) else end_offset
        fits = (
            runs
            and size + segment.size_bytes <= settings.segment_bytes
            and end - runs[-1][0].base_offset <= MAX_RELATIVE_OFFSET
        )
        if fits:
            runs[-1].append(segment)
            size += segment.size_bytes
        else:
            runs.append([segment])
            size = segment.size_bytes
    return runs


def need_for_compaction(log: PartitionLog, first_dirty_offset: int) -> LogToClean:
    """Decide whether and how far to compact a log, according to its topic's settings."""
    now_ms = log.context.clock.now_ms()
    stable_offset = min(log.last_stable_offset, log.flushed_offset)
    sealed = [summarize(log, segment, now_ms) for segment in log.segments.sealed]
    return compaction_need(sealed, first_dirty_offset, stable_offset, log.settings, now_ms)
