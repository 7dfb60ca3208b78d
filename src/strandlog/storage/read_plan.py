"""Which bytes answer a read, and reading them.

A partition makes the plan; executing it needs no lock, because bytes below the plan's end no longer
change. The answer begins with the whole batch that holds the wanted offset (or the next batch after
it: gaps are normal after compaction), goes on for about `max_bytes`, and may end inside a batch;
the first batch comes whole, however large it is (KIP-74), so a reader always gets on.

The index entry that the plan starts from is checked against the log. When the log contradicts it,
the plan starts at the beginning of the segment instead and says so (`index_is_wrong`), so that the
owner rebuilds it.
"""

from __future__ import annotations

from strandlog.errors import CorruptSegmentError
from strandlog.record.batch_header import HEADER_SIZE, read_header
from strandlog.storage.batch_walk import Source, next_intact, problem_with, walk, windowed
from strandlog.storage.files import Buffer
from strandlog.storage.offset_index import IndexEntry

EMPTY = memoryview(b"")


class ReadPlan:
    """One segment's part of an answer."""

    __slots__ = (
        "_entry",
        "_source",
        "base_offset",
        "end_position",
        "index_is_wrong",
        "max_bytes",
        "offset",
        "path",
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
    ) -> None:
        self._source = source
        self._entry = entry
        self.path = path
        self.base_offset = base_offset
        self.end_position = end_position
        self.offset = offset
        self.max_bytes = max_bytes
        self.index_is_wrong = False

    def execute(self) -> Buffer:
        """The bytes; empty when this segment has no batch at or after the offset."""
        found = self.locate()
        if found is None:
            return EMPTY
        position, size = found
        length = min(max(size, self.max_bytes), self.end_position - position)
        return self._source(position, length)

    def locate(self) -> tuple[int, int] | None:
        """(position, size) of the first batch that ends at or after the offset."""
        entry = self._entry
        if entry is not None:
            if self._entry_is_true(entry):
                return self._walk(entry.position, 0)
            self.index_is_wrong = True
        return self._walk(0, self.base_offset)

    def _entry_is_true(self, entry: IndexEntry) -> bool:
        """Whether a batch begins at the position and ends with the offset that the entry says."""
        room = self.end_position - entry.position
        if room < HEADER_SIZE or entry.position < 0:
            return False
        header = read_header(self._source(entry.position, HEADER_SIZE))
        return not problem_with(header, 0, room) and header.last_offset == entry.offset

    def _walk(self, position: int, next_offset: int) -> tuple[int, int] | None:
        source = windowed(self._source)
        while True:
            try:
                for found, header in walk(
                    source, position, self.end_position, path=self.path, next_offset=next_offset
                ):
                    if header.last_offset >= self.offset:
                        return found, header.size_bytes
                    next_offset = header.next_offset
            except CorruptSegmentError as damage:
                position = self._position_after(damage, source, next_offset)
                continue
            return None

    def _position_after(self, damage: CorruptSegmentError, source: Source, next_offset: int) -> int:
        """Where reading goes on when the damage ends before the wanted offset; raises otherwise."""
        found = next_intact(source, damage.position, self.end_position, next_offset)
        if found is not None:
            position, header = found
            if header.base_offset <= self.offset:
                return position
            damage.resume_offset = header.base_offset
        raise damage
