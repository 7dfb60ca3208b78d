"""LRU cache of memory-mapped sealed segments; rebuilds indexes that the log contradicts.

Mapping a file takes about 20 microseconds and occupies one entry in the kernel's memory map. With
every segment mapped, a large folder would need thousands of entries. So at most `capacity` segments
are mapped; the least recently used one is unmapped first, and `on_evict` is called. A reader may
keep using a slice of an evicted map: the pages stay mapped until the slice is released.

If a file is truncated while it is mapped, accessing the missing part kills the process (SIGBUS). So
`get` first compares the size of each mapped file with the size of its mapping. It reports a
truncated file (`on_cut`) and maps the segment again. If the log is shorter than the segment should
be, `source` reads the log file instead of the mapping. The missing bytes read as zeros, which are
not a valid batch, so readers get a `CorruptSegmentError` with the offset at which the log
continues.

Index files are checked when they are mapped: they must contain only complete entries, and the last
position must lie inside the log. If a needed index is missing or wrong, both are rebuilt from the
log: on disk by the owner of the folder, if the disk accepts writes, and otherwise in memory.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator

from strandlog.errors import CorruptSegmentError, StorageError
from strandlog.storage.files import Files, MappedFile
from strandlog.storage.paths import INDEX_SUFFIX, TIME_INDEX_SUFFIX
from strandlog.storage.segment.offset_index import ENTRY as OFFSET_ENTRY
from strandlog.storage.segment.offset_index import IndexEntry
from strandlog.storage.segment.offset_index import search as search_offset
from strandlog.storage.segment.scan import (
    Batch,
    ByteSource,
    Damage,
    padded_source,
    scan,
    view_source,
)
from strandlog.storage.segment.segment import Segment, SegmentIndexes
from strandlog.storage.segment.time_index import ENTRY as TIME_ENTRY

DEFAULT_CAPACITY = 128
# Indexes up to this size are copied, which is cheaper than checking the file size on every use.
COPIED_INDEX_BYTES = 32 * 1024


class SegmentMaps:
    """The contents of one sealed segment: the log, the offset index and the time index."""

    __slots__ = ("_mapped", "index", "log", "source", "time_index")

    def __init__(self, files: Files, segment: Segment, *, owns_folder: bool) -> None:
        log = files.map(segment.log_path)
        self._mapped: list[MappedFile] = [log]
        self.log = log.view
        self.source: ByteSource = view_source(log.view)
        if len(log.view) < segment.size_bytes:
            self.source = padded_source(files, segment.log_path)
            segment.is_cut, segment.checked = True, (0, 0)  # verify what is left
        self.index = self._map_entries(files, segment.stem + INDEX_SUFFIX)
        self.time_index = self._map_entries(files, segment.stem + TIME_INDEX_SUFFIX)
        if not self._indexes_look_right(segment):
            self.rebuild(files, segment, owns_folder=owns_folder)

    def _map_entries(self, files: Files, path: str) -> memoryview:
        try:
            mapped = files.map(path)
        except FileNotFoundError:
            return memoryview(b"")
        if len(mapped.view) <= COPIED_INDEX_BYTES:
            copy = memoryview(bytes(mapped.view))
            mapped.close()
            return copy
        self._mapped.append(mapped)
        return mapped.view

    def _indexes_look_right(self, segment: Segment) -> bool:
        if not segment.size_bytes:
            return True
        if len(self.index) % OFFSET_ENTRY.size or len(self.time_index) % TIME_ENTRY.size:
            return False
        # The time index of a sealed segment holds its largest timestamp, unless no record has one.
        if not self.time_index and segment.largest is None:
            return False
        if not self.index:
            # A segment no larger than the interval needs no entries. Neither does one with a single
            # large batch, but rebuilding its index is cheap.
            return segment.size_bytes <= INTERVAL_BYTES
        last = OFFSET_ENTRY.unpack_from(self.index, len(self.index) - OFFSET_ENTRY.size)
        return 0 < int(last[1]) < segment.size_bytes

    def is_cut(self) -> bool:
        """Return whether one of the files is shorter now than when it was mapped."""
        for mapped in self._mapped:  # noqa: SIM110 - `any` costs more, and this is called often
            if mapped.is_cut():
                return True
        return False

    def lookup(self, segment: Segment, offset: int) -> IndexEntry | None:
        """Return the last index entry at or below an offset."""
        return search_offset(self.index, segment.base_offset, offset)

    def rebuild(self, files: Files, segment: Segment, *, owns_folder: bool) -> None:
        """Rebuild both indexes from the log."""
        rebuilt = SegmentIndexes(
            files, segment.stem, segment.base_offset, INTERVAL_BYTES, in_memory=True
        )
        for item in scan_segment(self.source, segment, len(self.log)):
            if isinstance(item, Damage):
                continue
            position, header = item
            rebuilt.note_header(position, header)
        rebuilt.note_largest()
        index, time_index = rebuilt.offsets.unsaved_entries, rebuilt.times.unsaved_entries
        if owns_folder:
            # A disk that rejects writes must not prevent reads; the next rebuild tries again.
            with contextlib.suppress(StorageError):
                # Write only what differs: opening a segment that needs no index must not write.
                if self.index != index:
                    files.replace(rebuilt.offsets.path, index)
                if self.time_index != time_index:
                    files.replace(rebuilt.times.path, time_index)
        self.index, self.time_index = memoryview(index), memoryview(time_index)
        segment.largest = rebuilt.largest

    def close(self) -> None:
        self.log = self.index = self.time_index = memoryview(b"")
        self.source = view_source(self.log)
        for mapped in self._mapped:
            mapped.close()
        self._mapped.clear()


class SegmentCache:
    """At most `capacity` mapped segments, shared by all partitions of a folder."""

    def __init__(
        self,
        files: Files,
        capacity: int = DEFAULT_CAPACITY,
        *,
        owns_folder: bool = True,
        on_evict: Callable[[str], None] | None = None,
        on_cut: Callable[[str], object] | None = None,
    ) -> None:
        assert capacity > 0
        self._on_cut = on_cut
        self._files = files
        self._capacity = capacity
        self._owns_folder = owns_folder
        self._on_evict = on_evict
        self._maps: OrderedDict[str, SegmentMaps] = OrderedDict()
        self.hits = 0
        self.misses = 0
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._maps)

    def get(self, segment: Segment) -> SegmentMaps:
        """Return the mapped files of a segment, mapping them first if necessary. If the log is
        missing, the owner of the folder gets a `CorruptSegmentError`, a reader gets a
        `FileNotFoundError`."""
        maps = self._maps.get(segment.stem)
        if maps is not None and maps.is_cut():
            self._note(f"{segment.stem}: a file of this segment was truncated while it was open")
            self.drop(segment.stem)
            maps = None
        if maps is not None:
            self.hits += 1
            self._maps.move_to_end(segment.stem)
            return maps
        self.misses += 1
        try:
            maps = SegmentMaps(self._files, segment, owns_folder=self._owns_folder)
        except FileNotFoundError:
            if not self._owns_folder:
                raise  # the owner may have removed it; the caller refreshes its view
            self._note(f"{segment.log_path} was removed while it was in use")
            damage = CorruptSegmentError(segment.log_path, 0, "the file is missing")
            damage.resume_offset = segment.end_offset
            raise damage from None
        self._maps[segment.stem] = maps
        while len(self._maps) > self._capacity:
            stem, oldest = self._maps.popitem(last=False)
            self._evict(stem, oldest)
        return maps

    def _note(self, problem: str) -> None:
        if self._on_cut is not None:
            self._on_cut(problem)

    def rebuild(self, segment: Segment) -> SegmentMaps:
        """Rebuild the offset and time indexes of a segment after a reader found an entry that the
        log contradicts."""
        maps = self.get(segment)
        maps.rebuild(self._files, segment, owns_folder=self._owns_folder)
        return maps

    def drop(self, stem: str) -> None:
        """Evict a segment, if it is mapped."""
        maps = self._maps.pop(stem, None)
        if maps is not None:
            self._evict(stem, maps)

    def _evict(self, stem: str, maps: SegmentMaps) -> None:
        self.evictions += 1
        maps.close()
        if self._on_evict is not None:
            self._on_evict(stem)

    def close(self) -> None:
        while self._maps:
            stem, maps = self._maps.popitem()
            self._evict(stem, maps)


# A rebuilt index need not follow the topic's index.interval.bytes; this is Kafka's default.
INTERVAL_BYTES = 4096


def scan_segment(source: ByteSource, segment: Segment, size_bytes: int) -> Iterator[Batch | Damage]:
    """Scan the first `size_bytes` of a segment and verify every checksum."""
    return scan(
        source,
        0,
        size_bytes,
        next_offset=segment.base_offset,
        crc_from_offset=0,
        end_offset=segment.end_offset,
    )
