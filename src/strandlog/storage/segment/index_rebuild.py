"""Makes indexes from the log: those of a sealed segment, and which transactions were aborted.

Every batch is noted by the rule of `SegmentIndexes`. Damage in the log does not stop it: the walk
goes on at the next intact batch, so that everything readable can be found. Every batch is checked
whole, so that a damaged timestamp does not decide about the age of a segment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from strandlog.record.batch import BatchView
from strandlog.record.batch_header import BatchHeader
from strandlog.storage.files import Files
from strandlog.storage.partition.producer_state import ProducerState
from strandlog.storage.paths import ABORT_INDEX_SUFFIX
from strandlog.storage.segment.offset_index import ENTRY as OFFSET_ENTRY
from strandlog.storage.segment.scan import Batch, ByteSource, scan, view_source
from strandlog.storage.segment.segment import Segment
from strandlog.storage.segment.time_index import ENTRY as TIME_ENTRY
from strandlog.storage.segment.time_index import NO_TIME_ENTRY, TimeEntry
from strandlog.storage.segment.transaction_index import (
    AbortedTransaction,
    AbortedTransactions,
    end_of_transaction,
    packed,
)

# A rebuilt index need not have the density of the topic's setting; this is Kafka's default.
INTERVAL_BYTES = 4096


class RebuiltIndexes(NamedTuple):
    """Entries as they go into the files, and the largest timestamp."""

    offset_entries: bytes
    time_entries: bytes
    largest: TimeEntry


def rebuild_aborted(
    files: Files, segments: Sequence[Segment], aborted: AbortedTransactions
) -> None:
    """Tell the aborted transactions of a partition again, in memory and in the files of its
    segments. Those that began before the oldest segment are told from there on."""
    found: list[AbortedTransaction] = []
    producers = ProducerState()
    for segment in segments:
        if not segment.size_bytes:
            continue
        mapped = files.map(segment.log_path)
        try:
            source = view_source(mapped.view)
            for position, header in _readable(source, segment, len(mapped.view)):
                if header.producer_id < 0:
                    continue
                if not header.is_control:
                    producers.update(header, header.base_offset)
                    continue
                batch = BatchView(source(position, header.size_bytes))
                ended = end_of_transaction(producers, header, batch, header.base_offset)
                if ended is not None:
                    found.append(ended)
        finally:
            mapped.close()
    aborted.replace(found)
    for segment in segments:  # the last one, too: a start may find a snapshot and not read its log
        entries = aborted.ending_in(segment.base_offset, segment.end_offset)
        path = segment.stem + ABORT_INDEX_SUFFIX
        if entries or files.exists(path):
            files.replace(path, packed(entries))
    last = found[-1].last_offset if found else -1
    aborted.note_saved(max(segments[-1].base_offset, last + 1))


def _readable(source: ByteSource, segment: Segment, size_bytes: int) -> Iterator[Batch]:
    """Every intact batch; damage is skipped."""
    for item in scan(
        source,
        0,
        size_bytes,
        next_offset=segment.base_offset,
        crc_from_offset=0,
        end_offset=segment.end_offset,
    ):
        if isinstance(item, Batch):
            yield item


def rebuilt_indexes(source: ByteSource, segment: Segment, size_bytes: int) -> RebuiltIndexes:
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

    for position, header in _readable(source, segment, size_bytes):
        note(position, header)
    if largest.timestamp > noted.timestamp:
        times.extend(TIME_ENTRY.pack(largest[0], largest[1] - segment.base_offset))
    return RebuiltIndexes(bytes(index), bytes(times), largest)
