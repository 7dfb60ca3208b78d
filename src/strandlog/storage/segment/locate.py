"""Finds the batch of an offset inside one segment, sealed or active."""

from __future__ import annotations

from strandlog.storage.segment.cache import SegmentCache
from strandlog.storage.segment.offset_index import IndexEntry
from strandlog.storage.segment.read_plan import ReadPlan
from strandlog.storage.segment.scan import ByteSource
from strandlog.storage.segment.segment import ActiveSegment, Segment


def source_and_entry(
    cache: SegmentCache, segment: Segment, offset: int
) -> tuple[ByteSource, IndexEntry | None]:
    """The bytes of a segment, and the last index entry at or below an offset."""
    if isinstance(segment, ActiveSegment):
        return segment.file.read, segment.indexes.offsets.lookup(offset)
    maps = cache.get(segment)
    return maps.source, maps.lookup(segment, offset)


def locate_batch(cache: SegmentCache, segment: Segment, offset: int) -> int | None:
    """The position of the first batch that ends at or after an offset; None when there is none."""
    source, entry = source_and_entry(cache, segment, offset)
    plan = ReadPlan(
        source, segment.log_path, segment.base_offset, entry, segment.size_bytes, offset, 0
    )
    found = plan.locate()
    return None if found is None else found.position
