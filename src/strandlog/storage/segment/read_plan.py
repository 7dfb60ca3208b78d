"""Which bytes answer a read, and reading them.

A partition makes the plan; executing it needs no lock, because bytes below the plan's end no longer
change. The answer begins with the whole batch that holds the wanted offset (or the next batch after
it: gaps are normal after compaction), goes on for about `max_bytes`, and may end inside a batch;
the first batch comes whole, however large it is (KIP-74), so a reader always gets on.

Nothing is taken on trust. The index entry that the plan starts from is checked against the log;
when the log contradicts it, the plan starts at the beginning of the segment instead and says so
(`index_is_wrong`), so that the owner rebuilds it. The first batch is checked whole, and so is the
last one of a segment that has nothing for the offset. Damage is raised with the offset at which
reading goes on (`resume_offset`); it hides the damaged batch and no other.
"""

from __future__ import annotations

from strandlog.errors import CorruptSegmentError
from strandlog.record.batch_header import HEADER_SIZE, BatchHeader, read_header
from strandlog.storage.files import Buffer
from strandlog.storage.segment.batch_walk import (
    NEVER,
    Source,
    is_intact,
    next_intact,
    problem_with,
    walk,
    windowed,
)
from strandlog.storage.segment.offset_index import IndexEntry

EMPTY = memoryview(b"")


class ReadPlan:
    """One segment's part of an answer."""

    __slots__ = (
        "_entry",
        "_has_gaps",
        "_source",
        "base_offset",
        "end_offset",
        "end_position",
        "index_is_wrong",
        "max_bytes",
        "offset",
        "path",
        "position",
    )

    def __init__(
        self,
        source: Source,
        path: str,
        base_offset: int,
        entry: IndexEntry | None,
        end_position: int,
        offset: int,
        max_bytes: int,
        *,
        end_offset: int = NEVER,
        has_gaps: bool = True,
    ) -> None:
        """`end_offset` is the first offset that the segment does not answer for."""
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
        self.position = 0  # where the bytes begin, once it was executed

    def execute(self) -> Buffer:
        """The bytes; empty when this segment has no batch at or after the offset."""
        found = self.locate()
        if found is None:
            return EMPTY
        position, size = found
        self.position = position
        length = min(max(size, self.max_bytes), self.end_position - position)
        return self._source(position, length)

    def locate(self) -> tuple[int, int] | None:
        """(position, size) of the first batch that ends at or after the offset."""
        entry = self._entry
        if entry is not None:
            base_offset = self._base_of(entry)
            if base_offset is not None:
                return self._walk(entry.position, base_offset)
            self.index_is_wrong = True
        return self._walk(0, self.base_offset)

    def _base_of(self, entry: IndexEntry) -> int | None:
        """The base offset of the entry's batch, if one begins there and ends with its offset."""
        room = self.end_position - entry.position
        if room < HEADER_SIZE or entry.position < 0:
            return None
        header = read_header(self._source(entry.position, HEADER_SIZE))
        is_true = not problem_with(header, 0, room) and header.last_offset == entry.offset
        return header.base_offset if is_true else None

    def _walk(self, position: int, next_offset: int) -> tuple[int, int] | None:
        source = windowed(self._source)
        while True:
            try:
                return self._search(source, position, next_offset)
            except CorruptSegmentError as damage:
                found = next_intact(source, damage.position, self.end_position, _after(damage))
                if found is None or found[1].base_offset > self.offset:
                    damage.resume_offset = self._resume_offset(found)
                    raise
                position, next_offset = found[0], found[1].base_offset

    def _resume_offset(self, found: tuple[int, BatchHeader] | None) -> int | None:
        if found is not None:
            return found[1].base_offset
        return self.end_offset if self.end_offset < NEVER else None

    def _search(self, source: Source, position: int, next_offset: int) -> tuple[int, int] | None:
        previous: tuple[int, BatchHeader] | None = None
        for found, header in walk(
            source,
            position,
            self.end_position,
            path=self.path,
            next_offset=next_offset,
            end_offset=self.end_offset,
            has_gaps=self._has_gaps,
        ):
            if header.last_offset >= self.offset:
                self._check(source, found, header)
                return found, header.size_bytes
            previous = found, header
        if previous is not None:
            self._check(source, *previous)
        return None

    def _check(self, source: Source, position: int, header: BatchHeader) -> None:
        if not is_intact(source, position, header):
            reason = "checksum does not match"
            raise CorruptSegmentError(self.path, position, reason, header.base_offset - 1)


def _after(damage: CorruptSegmentError) -> int:
    """The lowest offset that may follow damage."""
    return 0 if damage.offset is None else damage.offset + 1
