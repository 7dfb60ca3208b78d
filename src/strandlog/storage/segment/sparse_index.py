"""Base of the offset and time index: fixed-size ascending entries, flushed lazily.

One writer appends entries in memory; they reach the file in groups (`save`). The newest 1024
entries stay in memory, at most 20 KiB for both indexes of a partition; a lookup further back maps
the file for a moment. Nothing is fsynced while the segment grows: a crash loses the last entries,
and recovery derives them from the log. Searches work on any buffer of entries.
"""

from __future__ import annotations

import struct

from strandlog.storage.files import Buffer, Files

KEEP_AT_MOST_ENTRIES = 1024


def count_at_or_below(entries: Buffer, layout: struct.Struct, field: int, target: int) -> int:
    """How many entries have a `field` at or below the target. Fields ascend, so this is a
    search."""
    low, high = 0, len(entries) // layout.size
    while low < high:
        middle = (low + high) // 2
        if layout.unpack_from(entries, middle * layout.size)[field] <= target:
            low = middle + 1
        else:
            high = middle
    return low


class SparseIndex:
    """The entries of the segment that is being written: some on file, the newest in memory.

    `_tail` holds the entries from byte `_tail_start` on; `_saved` bytes are on file.
    Always _tail_start <= _saved <= _tail_start + len(_tail).
    """

    __slots__ = ("_files", "_saved", "_tail", "_tail_start", "base_offset", "has_file", "path")

    layout: struct.Struct

    def __init__(self, files: Files, path: str, base_offset: int) -> None:
        self._files = files
        self.path = path
        self.base_offset = base_offset
        self._tail = bytearray()
        try:
            saved = files.size(path)
            self.has_file = True
        except FileNotFoundError:
            saved = 0
            self.has_file = False
        self._tail_start = self._saved = saved - saved % self.layout.size
        if saved != self._saved:
            files.truncate(path, self._saved)

    @property
    def size_bytes(self) -> int:
        return self._tail_start + len(self._tail)

    def add(self, entry: bytes) -> None:
        """Append one packed entry; `save` brings it to the file."""
        self._tail += entry

    @property
    def unsaved_count(self) -> int:
        return (self.size_bytes - self._saved) // self.layout.size

    def save(self) -> None:
        """Append to the file what it does not have yet."""
        unsaved = self.size_bytes - self._saved
        if unsaved:
            # At its place, not at the end: a full disk may have taken a part of it before.
            self._files.write_at(self.path, self._saved, self._tail[-unsaved:])
            self.has_file = True
            self._saved += unsaved
        excess = len(self._tail) - KEEP_AT_MOST_ENTRIES * self.layout.size
        if excess > 0:
            del self._tail[:excess]
            self._tail_start += excess

    def make_file(self) -> None:
        """Make the file, empty, unless it exists."""
        if not self.has_file:
            self._files.write_at(self.path, 0, b"")
            self.has_file = True

    def keep(self, count: int) -> None:
        """Keep the first `count` entries, in memory and on file."""
        size = count * self.layout.size
        del self._tail[max(0, size - self._tail_start) :]
        self._tail_start = min(self._tail_start, size)
        if self._saved > size:
            self._files.truncate(self.path, size)
            self._saved = size

    def count_at_or_below(self, field: int, target: int) -> int:
        """How many entries, on file and in memory, have a `field` at or below the target."""
        before = self._tail_start // self.layout.size
        in_tail = count_at_or_below(self._tail, self.layout, field, target)
        if in_tail or not before:
            return before + in_tail
        mapped = self._files.map(self.path)
        try:
            return count_at_or_below(mapped.view[: self._tail_start], self.layout, field, target)
        finally:
            mapped.close()

    def all_entries(self) -> list[tuple[int, ...]]:
        """The fields of every entry, on file and in memory."""
        on_file = b""
        if self._tail_start:
            on_file = self._files.read(self.path)[: self._tail_start]
        return list(self.layout.iter_unpack(on_file + self._tail))

    def entry(self, number: int) -> tuple[int, ...]:
        """The fields of the entry with that number, counted from 0."""
        start = number * self.layout.size
        if start >= self._tail_start:
            return self.layout.unpack_from(self._tail, start - self._tail_start)
        return self.layout.unpack(self._files.read_at(self.path, start, self.layout.size))
