"""Finds the batch that holds an offset in one segment and returns the bytes from there on.

The partition creates a `ReadPlan`. Executing it needs no lock, because bytes below its end no
longer change. The result starts with the batch that holds the offset (or the next batch: gaps are
normal after compaction), has at most `max_bytes`, and may end inside a batch. But the first batch
is always complete, however large it is (KIP-74), so a reader always makes progress.

A plan verifies what it uses. The index entry that it starts from is checked against the log; if the
log contradicts the entry, the plan starts at the beginning of the segment and sets
`index_is_wrong`, so that the owner rebuilds the index. The checksum of the first batch is verified,
or that of the last batch if all batches end before the offset. The error for a damaged batch
contains `resume_offset`, so that a reader can skip the damage: the offset of the next intact batch
or, if there is none, the end of the readable part, if that is known.
"""

from __future__ import annotations

from collections.abc import Callable

from strandlog.model import Buffer
from strandlog.record.batch_header import HEADER_SIZE, BatchHeader, read_header
from strandlog.storage.segment.cache import SegmentCache
from strandlog.storage.segment.offset_index import IndexEntry
from strandlog.storage.segment.scan import (
    NEVER,
    Batch,
    ByteSource,
    Damage,
    buffered,
    crc_matches,
    header_error,
    scan,
)
from strandlog.storage.segment.segment import ActiveSegment, Segment

EMPTY = memoryview(b"")


class ReadPlan:
    """A read of one segment."""

    __slots__ = (
        "_entry",
        "_has_gaps",
        "_source",
        "base_offset",
        "end_offset",
        "end_position",
        "index_is_wrong",
        "is_cut",
        "max_bytes",
        "offset",
        "path",
        "position",
    )

    def __init__(
        self,
        source: ByteSource,
        path: str,
        base_offset: int,
        entry: IndexEntry | None,
        end_position: int,
        offset: int,
        max_bytes: int,
        *,
        end_offset: int = NEVER,
        has_gaps: bool = True,
        is_cut: bool = False,
    ) -> None:
        """Create a plan. `end_offset` is the first offset beyond the readable part; `is_cut` says
        that the log file has lost bytes."""
        self._source = source
        self._entry = entry
        self._has_gaps = has_gaps
        self.path = path
        self.base_offset = base_offset
        self.end_position = end_position
        self.offset = offset
        self.max_bytes = max_bytes
        self.end_offset = end_offset
        self.index_is_wrong = False
        self.is_cut = is_cut
        self.position = 0  # where the returned bytes start; set by `execute`

    def execute(self, limit_at: Callable[[int], int] | None = None) -> Buffer:
        """Return the bytes, or an empty buffer if no batch ends at or after the offset. `limit_at`
        is called with the start position and may lower `max_bytes`."""
        found = self.locate()
        if found is None:
            return EMPTY
        self.position = position = found.position
        most = self.max_bytes if limit_at is None else min(self.max_bytes, limit_at(position))
        length = min(max(found.header.size_bytes, most), self.end_position - position)
        return self._source(position, length)

    def locate(self) -> Batch | None:
        """Return the first batch that ends at or after the offset, or None."""
        entry, source = self._entry, buffered(self._source)
        if entry is not None:
            header = indexed_header(self._source, entry, self.end_position)
            if header is not None:
                return self._find(source, entry.position, header.base_offset)
            self.index_is_wrong = True
        return self._find(source, 0, self.base_offset)

    def _find(self, source: ByteSource, position: int, next_offset: int) -> Batch | None:
        last: Batch | None = None
        for item in scan(
            source,
            position,
            self.end_position,
            next_offset=next_offset,
            crc_from_offset=self.offset,
            end_offset=self.end_offset,
            has_gaps=self._has_gaps,
        ):
            if isinstance(item, Damage):
                self._batch_after(item)
            elif item.header.last_offset >= self.offset:
                return item
            else:
                last = item
        if last is None or crc_matches(source, last):
            return None
        # If the length of the last batch is wrong, it may hide the batches that follow.
        damage = Damage(
            source,
            last.position,
            self.end_position,
            last.header.base_offset,
            "checksum does not match",
        )
        following = self._batch_after(damage)
        return self._find(source, following.position, following.header.base_offset)

    def _batch_after(self, damage: Damage) -> Batch:
        """Return the intact batch after the damage. Raise `CorruptSegmentError` unless it starts
        at or before the offset."""
        following = damage.next_batch
        if following is not None and following.header.base_offset <= self.offset:
            return following
        error = damage.error(self.path)
        if following is not None:
            error.resume_offset = following.header.base_offset
        elif self.end_offset < NEVER:
            error.resume_offset = self.end_offset
        raise error


def indexed_header(source: ByteSource, entry: IndexEntry, end_position: int) -> BatchHeader | None:
    """Return the header of the batch that an index entry refers to, or None if the log
    contradicts the entry."""
    room = end_position - entry.position
    if room < HEADER_SIZE or entry.position < 0:
        return None
    raw = source(entry.position, HEADER_SIZE)
    if len(raw) < HEADER_SIZE:
        return None
    header = read_header(raw)
    is_right = not header_error(header, 0, room) and header.last_offset == entry.offset
    return header if is_right else None


def source_and_entry(
    cache: SegmentCache, segment: Segment, offset: int
) -> tuple[ByteSource, IndexEntry | None]:
    """Return the byte source of a segment and the last index entry at or below an offset."""
    if isinstance(segment, ActiveSegment):
        return segment.file.read, segment.indexes.offsets.lookup(offset)
    maps = cache.get(segment)
    return maps.source, maps.lookup(segment, offset)


def locate_batch(cache: SegmentCache, segment: Segment, offset: int) -> int | None:
    """Return the position of the first batch that ends at or after an offset, or None."""
    source, entry = source_and_entry(cache, segment, offset)
    plan = ReadPlan(
        source, segment.log_path, segment.base_offset, entry, segment.size_bytes, offset, 0
    )
    found = plan.locate()
    return None if found is None else found.position
