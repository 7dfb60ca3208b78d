"""Base of the offset and time indexes: fixed-size ascending entries, written lazily.

A single writer appends entries in memory and writes them to the file in groups (`save`). The newest
1024 entries stay in memory, about 20 KiB for the two indexes of a partition; a lookup of older
entries maps the file briefly. The index is fsynced only with a producer snapshot: a crash loses
later entries, and recovery derives them from the log. Searches work on any buffer of entries.
"""

from __future__ import annotations

import struct

from strandlog.model import Buffer
from strandlog.storage.files import Files

KEEP_AT_MOST_ENTRIES = 1024


def count_at_or_below(entries: Buffer, layout: struct.Struct, field: int, target: int) -> int:
    """Count the entries whose `field` is at or below the target, by binary search. The fields must
    be in ascending order."""
    low, high = 0, len(entries) // layout.size
    while low < high:
        middle = (low + high) // 2
        if layout.unpack_from(entries, middle * layout.size)[field] <= target:
            low = middle + 1
        else:
            high = middle
    return low


class SparseIndex:
    """An index of a segment that is being written, with its newest entries in memory.

    `_tail` holds the entries from byte `_tail_start` onwards; `_saved` bytes are in the file.
    Invariant: _tail_start <= _saved <= _tail_start + len(_tail).
    """

    __slots__ = ("_files", "_saved", "_tail", "_tail_start", "base_offset", "has_file", "path")

    layout: struct.Struct

    def __init__(self, files: Files, path: str, base_offset: int, *, is_new: bool = False) -> None:
        """Open the index. `is_new` means that there is no file, or that it is to be ignored."""
        self._files = files
        self.path = path
        self.base_offset = base_offset
        self._tail = bytearray()
        self._tail_start = self._saved = 0
        self.has_file = False
        if not is_new:
            self._open_file()

    def _open_file(self) -> None:
        try:
            size = self._files.size(self.path)
        except FileNotFoundError:
            return
        self.has_file = True
        self._tail_start = self._saved = size - size % self.layout.size
        if size != self._saved:
            self._files.truncate(self.path, self._saved)

    @property
    def size_bytes(self) -> int:
        return self._tail_start + len(self._tail)

    def add(self, entry: bytes) -> None:
        """Append one packed entry in memory; `save` writes it to the file."""
        self._tail += entry

    @property
    def unsaved_count(self) -> int:
        return (self.size_bytes - self._saved) // self.layout.size

    @property
    def unsaved_entries(self) -> bytes:
        """The entries that are not yet in the file, as they will be written."""
        return bytes(self._tail[self._saved - self._tail_start :])

    def save(self) -> None:
        """Write the entries that are not yet in the file."""
        unsaved = self.unsaved_entries
        if unsaved:
            # Write at a fixed position instead of the end of the file, because an earlier write
            # may have been cut short by a full disk.
            self._files.write_at(self.path, self._saved, unsaved)
            self.has_file = True
            self._saved += len(unsaved)
        excess = len(self._tail) - KEEP_AT_MOST_ENTRIES * self.layout.size
        if excess > 0:
            del self._tail[:excess]
            self._tail_start += excess

    def make_file(self) -> None:
        """Create an empty file if the index has none."""
        if not self.has_file:
            self._files.write_at(self.path, 0, b"")
            self.has_file = True

    def keep(self, count: int) -> None:
        """Truncate the index to its first `count` entries, in memory and in the file."""
        size = count * self.layout.size
        del self._tail[max(0, size - self._tail_start) :]
        self._tail_start = min(self._tail_start, size)
        if self._saved > size:
            self._files.truncate(self.path, size)
            self._saved = size

    def count_at_or_below(self, field: int, target: int) -> int:
        """Count the entries, in the file and in memory, whose `field` is at or below the target."""
        before = self._tail_start // self.layout.size
        in_tail = count_at_or_below(self._tail, self.layout, field, target)
        if in_tail or not before:
            return before + in_tail
        try:
            mapped = self._files.map(self.path)
        except FileNotFoundError:  # another program has removed the file
            return 0
        try:
            return count_at_or_below(mapped.view[: self._tail_start], self.layout, field, target)
        finally:
            mapped.close()

    def all_entries(self) -> list[tuple[int, ...]]:
        """Return the fields of every entry, in the file and in memory."""
        on_file = b""
        if self._tail_start:
            on_file = self._files.read(self.path)[: self._tail_start]
        return list(self.layout.iter_unpack(on_file + self._tail))

    def entry(self, number: int) -> tuple[int, ...] | None:
        """Return the fields of the entry with the given number, counted from 0. Return None if
        another program has removed or truncated the file; the next start rebuilds it."""
        start = number * self.layout.size
        if start >= self._tail_start:
            return self.layout.unpack_from(self._tail, start - self._tail_start)
        try:
            found = self._files.read_at(self.path, start, self.layout.size)
        except FileNotFoundError:
            return None
        return self.layout.unpack(found) if len(found) == self.layout.size else None
