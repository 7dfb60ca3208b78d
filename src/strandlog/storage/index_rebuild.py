"""Makes the indexes of a sealed segment from its log, in memory.

Every batch is noted by the rule of `SegmentIndexes`. Damage in the log does not stop it: the walk
goes on at the next intact batch, so that everything readable can be found. Every batch is checked
whole, so that a damaged timestamp does not decide about the age of a segment.
"""

from __future__ import annotations

from typing import NamedTuple

from strandlog.errors import CorruptSegmentError
from strandlog.record.batch_header import BatchHeader
from strandlog.storage.batch_walk import Source, next_intact, walk
from strandlog.storage.offset_index import ENTRY as OFFSET_ENTRY
from strandlog.storage.segment import Segment
from strandlog.storage.time_index import ENTRY as TIME_ENTRY
from strandlog.storage.time_index import NO_TIME_ENTRY, TimeEntry

# A rebuilt index need not have the density of the topic's setting; this is Kafka's default.
INTERVAL_BYTES = 4096


class RebuiltIndexes(NamedTuple):
    """Entries as they go into the files, and the largest timestamp."""

    offset_entries: bytes
    time_entries: bytes
    largest: TimeEntry


def rebuilt_indexes(source: Source, segment: Segment, size_bytes: int) -> RebuiltIndexes:
    """Walk the whole log once."""
    index, times = bytearray(), bytearray()
    largest, noted = NO_TIME_ENTRY, NO_TIME_ENTRY
    since_entry = 0

    def note(position: int, header: BatchHeader) -> None:
        nonlocal largest, noted, since_entry
        if header.max_timestamp > largest.timestamp:
            largest = TimeEntry(header.max_timestamp, header.last_offset)
        if since_entry > INTERVAL_BYTES:
            index.extend(OFFSET_ENTRY.pack(header.last_offset - segment.base_offset, position))
            if largest.timestamp > noted.timestamp:
                times.extend(TIME_ENTRY.pack(largest[0], largest[1] - segment.base_offset))
                noted = largest
            since_entry = 0
        since_entry += header.size_bytes

    position, next_offset = 0, segment.base_offset
    while position < size_bytes:
        try:
            for found_at, header in walk(
                source,
                position,
                size_bytes,
                path=segment.log_path,
                next_offset=next_offset,
                crc_from_offset=0,
                end_offset=segment.end_offset,
            ):
                note(found_at, header)
                next_offset = header.next_offset
            break
        except CorruptSegmentError as damage:
            found = next_intact(source, damage.position, size_bytes, next_offset)
            if found is None:
                break
            position = found[0]
    if largest.timestamp > noted.timestamp:
        times.extend(TIME_ENTRY.pack(largest[0], largest[1] - segment.base_offset))
    return RebuiltIndexes(bytes(index), bytes(times), largest)
