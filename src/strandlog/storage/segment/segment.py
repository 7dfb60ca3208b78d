"""One segment (log file and indexes), the active segment, and the ordered list of segments.

A `Segment` is sealed: its files no longer change. It uses a few hundred bytes of memory and no open
file; its bytes are read through the segment cache. An `ActiveSegment` is the last segment of a
partition and the only one that grows. Sealing turns an `ActiveSegment` into a `Segment`.

In a `SegmentList`, base offsets ascend strictly and the active segment is last. A segment covers
the offsets from its own base offset up to the base offset of the next segment.

`SegmentIndexes.note` implements the indexing rule for appends, recovery, compaction and the rebuild
of a wrong index: if more bytes than the interval (index.interval.bytes; Kafka's default for a
rebuild) have been written since the last entry, the current batch gets an entry.

`OpenFiles` limits the number of active segments whose log files are open. Above the limit it
releases the file that was opened first; the next use reopens it. Nothing is lost: the bytes are in
the page cache, and an fsync through any descriptor covers the entire file.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from strandlog.config.tables.topic import LogSettings
from strandlog.errors import StorageError
from strandlog.model import Buffer
from strandlog.record.batch_header import BatchHeader
from strandlog.record.checksum import crc32c
from strandlog.storage.files import Files, LogFile
from strandlog.storage.paths import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SIDE_SUFFIXES,
    TIME_INDEX_SUFFIX,
    join,
    segment_stem,
)
from strandlog.storage.segment.offset_index import OffsetIndex
from strandlog.storage.segment.time_index import NO_TIME_ENTRY, TimeEntry, TimeIndex

DEFAULT_OPEN_FILES = 1000


class HoldsFile(Protocol):
    """An object that holds a file open and can reopen it."""

    def forget_file(self) -> None:
        """Release the file."""


class OpenFiles:
    """The holders of open files, in the order in which the files were opened."""

    def __init__(self, limit: int = DEFAULT_OPEN_FILES) -> None:
        assert limit > 0
        self._limit = limit
        self._holders: OrderedDict[HoldsFile, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    def opened(self, holder: HoldsFile) -> None:
        """Register an opened file. Above the limit, release the files that were opened first."""
        self._holders[holder] = None
        while len(self._holders) > self._limit:
            oldest, _ = self._holders.popitem(last=False)
            oldest.forget_file()

    def closed(self, holder: HoldsFile) -> None:
        """Unregister a file that was released."""
        self._holders.pop(holder, None)


MAX_RELATIVE_OFFSET = 2**31 - 1
_new_tuple = tuple.__new__  # a third of the cost of calling the class
SAVE_AT_ENTRIES = 64


class Segment:
    """A sealed segment, with its offsets, size and largest timestamp."""

    __slots__ = ("base_offset", "checked", "end_offset", "is_cut", "largest", "size_bytes", "stem")

    def __init__(
        self, stem: str, base_offset: int, size_bytes: int, largest: TimeEntry | None = None
    ) -> None:
        self.stem = stem
        self.base_offset = base_offset
        # The base offset of the next segment once it is known; until then, the upper bound that
        # relative offsets in the indexes allow.
        self.end_offset = base_offset + MAX_RELATIVE_OFFSET + 1
        self.size_bytes = size_bytes
        self.largest = largest  # entry with the largest timestamp; None until the index is read
        self.checked = (0, 0)  # byte range whose checksums have been verified (read.py)
        self.is_cut = False  # whether the log file has lost bytes, which read as zeros (cache.py)

    @property
    def log_path(self) -> str:
        return self.stem + LOG_SUFFIX

    @property
    def paths(self) -> list[str]:
        """The paths of all files that a segment may have."""
        return [self.log_path, *(self.stem + suffix for suffix in SIDE_SUFFIXES)]


def stem_of(folder: str, base_offset: int) -> str:
    """Return the path of a segment's files without the suffix."""
    return join(folder, segment_stem(base_offset))


class SegmentIndexes:
    """The offset and time indexes of a segment that is being written, and the rule for adding
    entries."""

    __slots__ = (
        "_bytes_since_entry",
        "_in_memory",
        "_interval_bytes",
        "largest",
        "offsets",
        "size_bytes",
        "times",
    )

    def __init__(
        self,
        files: Files,
        stem: str,
        base_offset: int,
        interval_bytes: int,
        *,
        state: str = "",
        in_memory: bool = False,
        is_new: bool = False,
    ) -> None:
        """Open both indexes. `state` is an additional suffix of the file names: `.cleaned` for a
        compaction in progress. With `in_memory`, files are neither read nor written. `is_new` means
        that there are no files to read."""
        is_new = is_new or in_memory
        index_path, time_path = (stem + s + state for s in (INDEX_SUFFIX, TIME_INDEX_SUFFIX))
        self.offsets = OffsetIndex(files, index_path, base_offset, is_new=is_new)
        self.times = TimeIndex(files, time_path, base_offset, is_new=is_new)
        self.largest = self.times.last or NO_TIME_ENTRY
        self._interval_bytes = interval_bytes
        self._in_memory = in_memory
        self._bytes_since_entry = 0
        self.size_bytes = self._larger_size_bytes()

    def _larger_size_bytes(self) -> int:
        return max(self.offsets.size_bytes, self.times.size_bytes)

    def note(self, position: int, size: int, last_offset: int, max_timestamp: int) -> None:
        """Update the indexes for a batch at `position`."""
        if max_timestamp > self.largest.timestamp:
            self.largest = TimeEntry(max_timestamp, last_offset)
        if self._bytes_since_entry > self._interval_bytes:
            self.offsets.append(last_offset, position)
            self.note_largest()
            self._bytes_since_entry = 0
            self.size_bytes = self._larger_size_bytes()
            if self.offsets.unsaved_count >= SAVE_AT_ENTRIES and not self._in_memory:
                # The append must not fail because of an index; saving is retried later.
                with contextlib.suppress(StorageError):
                    self.save()
        self._bytes_since_entry += size

    def note_header(self, position: int, header: BatchHeader) -> None:
        """Update the indexes for a batch that was read from the log."""
        self.note(position, header.size_bytes, header.last_offset, header.max_timestamp)

    def note_largest(self) -> None:
        """Add the largest timestamp to the time index, unless it is already there."""
        last = self.times.last
        if self.largest.timestamp > (last.timestamp if last else -1):
            self.times.append(self.largest)

    def keep_first(self, offset_count: int, time_count: int) -> None:
        """Truncate both indexes to the given numbers of entries."""
        self.offsets.keep(offset_count)
        self.times.keep(time_count)
        self.largest = self.times.last or NO_TIME_ENTRY
        self._bytes_since_entry = 0
        self.size_bytes = self._larger_size_bytes()

    def save(self) -> None:
        """Write new entries to both files. Afterwards either both files exist or neither: if only
        one existed, Kafka would consider the other lost and scan the entire log file."""
        try:
            self._save()
        except FileNotFoundError as error:
            raise StorageError(
                f"could not write {self.offsets.path}: its folder is missing"
            ) from error

    def _save(self) -> None:
        self.times.save()
        self.offsets.save()
        if self.times.has_file != self.offsets.has_file:
            self.times.make_file()
            self.offsets.make_file()

    def finish(self) -> None:
        """Complete the indexes of a segment: add the largest timestamp to the time index and
        save."""
        self.note_largest()
        self.save()


class ActiveSegment(Segment):
    """The last segment of a partition, to which batches are appended."""

    __slots__ = ("_files", "_log_file", "created_ms", "first_timestamp", "indexes", "open_files")

    def __init__(
        self,
        files: Files,
        stem: str,
        base_offset: int,
        interval_bytes: int,
        created_ms: int,
        *,
        is_new: bool = False,
    ) -> None:
        """Create the segment, without opening its log file. `is_new` means that it has no files."""
        super().__init__(stem, base_offset, 0)
        self._files = files
        self._log_file: LogFile | None = None
        self.indexes = SegmentIndexes(files, stem, base_offset, interval_bytes, is_new=is_new)
        self.created_ms = created_ms
        self.first_timestamp = -1
        self.open_files: OpenFiles | None = None  # limits the number of open files

    @property
    def file(self) -> LogFile:
        """The log file, opened on first use so that an idle partition holds no open file."""
        return self._log_file if self._log_file is not None else self.open_file()

    def open_file(self) -> LogFile:
        """Open the log file, creating it if it does not exist. Raise `StorageError` if its folder
        is missing, or if the file has lost bytes since it was last open: appended records would be
        at the wrong position."""
        try:
            self._log_file = self._files.open_log(self.log_path)
        except FileNotFoundError as error:
            raise StorageError(f"could not open {self.log_path}: its folder is missing") from error
        if self._log_file.size > self.size_bytes:
            # A write failed part-way, and so did the attempt to undo it.
            self._log_file.truncate(self.size_bytes)
        elif self._log_file.size < self.size_bytes:
            size, self._log_file = self._log_file.size, None
            raise StorageError(
                f"{self.log_path} has {size} bytes instead of {self.size_bytes}: it was truncated "
                "or removed while it was closed"
            )
        if self.open_files is not None:
            self.open_files.opened(self)
        return self._log_file

    def append(
        self, buffers: Sequence[Buffer], size: int, last_offset: int, max_timestamp: int
    ) -> None:
        """Append one batch, given as one or more buffers."""
        position = self.size_bytes
        (self._log_file or self.open_file()).append(buffers)
        self.size_bytes = position + size
        if self.first_timestamp < 0:
            self.first_timestamp = max_timestamp
        self.indexes.note(position, size, last_offset, max_timestamp)

    def should_roll(
        self, size: int, last_offset: int, max_timestamp: int, now_ms: int, settings: LogSettings
    ) -> bool:
        """Return whether the next batch belongs in a new segment."""
        if last_offset - self.base_offset > MAX_RELATIVE_OFFSET:
            return True
        if not self.size_bytes:
            return False
        if self.size_bytes + size > settings.segment_bytes:
            return True
        if self.indexes.size_bytes + 12 > settings.segment_index_bytes:
            return True
        # Use record timestamps if there are any, so that a replay of old data rolls the same way.
        if self.first_timestamp >= 0 and max_timestamp >= 0:
            age_ms = max_timestamp - self.first_timestamp
        else:
            age_ms = now_ms - self.created_ms
        if age_ms <= settings.segment_ms - settings.segment_jitter_ms:
            return False
        jitter_ms = self._jitter_ms(min(settings.segment_jitter_ms, settings.segment_ms))
        return age_ms > settings.segment_ms - jitter_ms

    def _jitter_ms(self, at_most_ms: int) -> int:
        """Return a jitter that differs between segments but not between runs."""
        return crc32c(self.stem.encode()) % at_most_ms if at_most_ms else 0

    def seal(self) -> Segment:
        """Seal this segment. The caller keeps the log file open until it is synced."""
        self.indexes.finish()
        return Segment(self.stem, self.base_offset, self.size_bytes, self.indexes.largest)

    def forget_file(self) -> None:
        """Release the file. A flush plan that still has to sync the file keeps it open."""
        self._log_file = None
        if self.open_files is not None:
            self.open_files.closed(self)


class LogPosition(NamedTuple):
    """A position in the log, as a byte position in one of its segments."""

    segment_base: int
    position: int

    def end_in(self, segment: Segment) -> int:
        """Return how many bytes of a segment lie below this position."""
        if segment.base_offset < self.segment_base:
            return segment.size_bytes
        if segment.base_offset > self.segment_base:
            return 0
        return min(self.position, segment.size_bytes)


class SegmentList:
    """The segments of one partition, in order."""

    __slots__ = ("_bases", "active", "sealed")

    def __init__(self, sealed: list[Segment], active: ActiveSegment) -> None:
        self.sealed = sealed
        self.active = active
        self._bases = [segment.base_offset for segment in sealed]
        assert [*self._bases, active.base_offset] == sorted({*self._bases, active.base_offset})
        self._tell_ends()

    def __len__(self) -> int:
        return len(self.sealed) + 1

    @property
    def first_base(self) -> int:
        return self._bases[0] if self._bases else self.active.base_offset

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.sealed) + self.active.size_bytes

    @property
    def end_position(self) -> LogPosition:
        """The position of the log end offset."""
        return _new_tuple(LogPosition, (self.active.base_offset, self.active.size_bytes))

    def all(self) -> list[Segment]:
        """Return all segments, oldest first."""
        return [*self.sealed, self.active]

    def at(self, offset: int) -> tuple[Segment, int | None]:
        """Return the segment that covers an offset, and the base offset of the next segment (None
        for the active segment)."""
        if offset >= self.active.base_offset or not self.sealed:
            return self.active, None
        number = max(0, bisect_right(self._bases, offset) - 1)
        return self.sealed[number], self.end_of(number)

    def end_of(self, number: int) -> int:
        """Return the end offset (exclusive) of the sealed segment with the given number."""
        if number + 1 < len(self._bases):
            return self._bases[number + 1]
        return self.active.base_offset

    def roll(self, sealed: Segment, active: ActiveSegment) -> None:
        """Replace the active segment, which was sealed, with a new one."""
        assert sealed.base_offset == self.active.base_offset < active.base_offset
        self.sealed.append(sealed)
        self._bases.append(sealed.base_offset)
        self.active = active
        sealed.end_offset = active.base_offset

    def replace(self, old: Sequence[Segment], new: Segment | None) -> None:
        """Replace consecutive sealed segments with one segment, or remove them."""
        first = self.sealed.index(old[0])
        assert self.sealed[first : first + len(old)] == list(old)
        self.sealed[first : first + len(old)] = [new] if new else []
        self._bases = [segment.base_offset for segment in self.sealed]
        self._tell_ends()

    def _tell_ends(self) -> None:
        for number, segment in enumerate(self.sealed):
            segment.end_offset = self.end_of(number)
