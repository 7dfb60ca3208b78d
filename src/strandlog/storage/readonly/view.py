"""Read-only view of a data folder that another process may be writing.

The view takes no lock and relies on three guarantees of the writer: bytes below the recovery point
do not change; the files of a sealed segment are replaced or removed, but never changed in place; a
new segment appears under its final name. So a reader reads up to the recovery point or, with
durability "page_cache" and without `durable_only`, up to the last complete batch. When a file is
missing, the view lists the folder again.

The owner renames the folder of a deleted topic before it creates one for a new topic of the same
name, and writes the new topic's id before any other file. So each refresh reads the topic id last:
if the id has not changed, all earlier reads were from files of the same topic. If it has, the view
discards the state of the deleted topic and starts again.

The view writes nothing: an index that is missing or wrong is rebuilt in memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TypeVar

from strandlog.errors import (
    CorruptRecordError,
    CorruptSegmentError,
    CorruptStateError,
    DataError,
    OffsetOutOfRangeError,
    TopicNotFoundError,
    UnknownLayoutError,
)
from strandlog.model import Buffer, TimestampOffset, TopicPartition
from strandlog.record.batch import BatchView
from strandlog.record.batch_header import read_header
from strandlog.storage import paths
from strandlog.storage.files import DIRECTORY, Files
from strandlog.storage.folder.checkpoint import read_offsets
from strandlog.storage.folder.log_dir import check_layout, read_topic_id
from strandlog.storage.partition.recovery_point import read_recovery_point
from strandlog.storage.paths import join, segment_offsets
from strandlog.storage.readonly.split_offsets import SegmentRange, range_in, split_offsets
from strandlog.storage.segment.cache import DEFAULT_CAPACITY, SegmentCache, SegmentMaps
from strandlog.storage.segment.manifest import Loss, losses, read_manifest
from strandlog.storage.segment.offset_index import ENTRY as OFFSET_ENTRY
from strandlog.storage.segment.offset_index import IndexEntry
from strandlog.storage.segment.offset_index import search as search_offset
from strandlog.storage.segment.read_plan import EMPTY, ReadPlan, indexed_header
from strandlog.storage.segment.scan import (
    NEVER,
    Batch,
    ByteSource,
    Damage,
    buffered,
    scan,
)
from strandlog.storage.segment.segment import Segment, stem_of
from strandlog.storage.segment.time_index import ENTRY as TIME_ENTRY
from strandlog.storage.segment.time_index import entry_before, last_two
from strandlog.storage.segment.time_search import SearchStart, is_largest, search_start

LOOKS_BEFORE_GIVING_UP = 8
T = TypeVar("T")


class SegmentReplacedError(FileNotFoundError):
    """The file has been replaced or truncated since the view listed it."""


class PartitionView:
    """A read-only view of one partition."""

    def __init__(
        self,
        files: Files,
        tp: TopicPartition,
        folder: str,
        cache: SegmentCache,
        read_log_start: Callable[[], int],
        *,
        durable_only: bool = False,
    ) -> None:
        self.tp = tp
        self._durable_only = durable_only
        self._read_log_start = read_log_start
        self.folder = folder
        self._files = files
        self._cache = cache
        self._segments: list[Segment] = []
        self._end_offset = 0
        self._durable_offset = 0  # the recovery point
        self._losses: list[Loss] | None = None  # determined at the first gap after a refresh
        self._first_base = 0  # the base offset of the first segment, or that of a lost one
        self._last_index = ("", b"")  # stem and loaded index entries of the last segment
        self._index_is_fresh = False
        self._walked = ("", 0, 0)  # end of the scan of the last segment: stem, position, offset
        self.checkpointed_log_start = 0
        self._topic_id: str | None = None  # None before the first refresh
        self.refresh()
        self.checkpointed_log_start = read_log_start()

    @property
    def topic_id(self) -> str:
        """The id of the topic that the files belonged to at the last refresh, or "" if unknown."""
        return self._topic_id or ""

    def refresh(self) -> None:
        """Reload the list of segments and the end offset for readers."""
        for _ in range(LOOKS_BEFORE_GIVING_UP):
            try:
                return self._look()
            except FileNotFoundError:  # a file was removed after it was listed
                if not self._files.exists(self.folder):
                    raise
            except CorruptStateError:
                continue  # perhaps the topic was deleted after its files were listed
        return self._look()

    def _look(self) -> None:
        try:
            names = self._files.list_dir(self.folder)
        except NotADirectoryError:
            raise UnknownLayoutError(self.folder, "it is a file, not a folder") from None
        known = {segment.stem: segment for segment in self._segments}
        segments = []
        for base in segment_offsets(names, paths.LOG_SUFFIX):
            stem = stem_of(self.folder, base)
            size = names[paths.segment_stem(base) + paths.LOG_SUFFIX]
            old = known.get(stem)
            if old is not None and size < old.size_bytes:
                self._last_index = ("", b"")  # the writer truncated the log and its index
            if old is None or old.size_bytes != size:
                self._cache.drop(stem)
                old = Segment(stem, base, size)
            segments.append(old)
        for segment, later in pairwise(segments):
            segment.end_offset = later.base_offset
        first = segments[0].base_offset if segments else 0
        if first != self._first_base:
            self._first_base = self._first_with_lost(first, names)
        self._segments = segments
        self._losses = None
        self._index_is_fresh = False
        self._end_offset = self._find_end()
        # The id is unknown while the owner creates the folder, which has no other file yet.
        known_id, found_id = self._topic_id, read_topic_id(self._files, self.folder)
        self._topic_id = found_id or known_id or ""
        if known_id not in (None, self._topic_id):
            self._forget()
            self._look()

    def _first_with_lost(self, first: int, names: dict[str, int]) -> int:
        """Return the base offset of the first segment, even if its file is lost, so that readers
        notice. The owner withdraws a segment from the manifest before it removes the file, and
        `names` was listed before the manifest is read."""
        lost = losses(read_manifest(self._files, self.folder).claims, names)
        return min([first, *(loss.claim.base_offset for loss in lost)])

    def _forget(self) -> None:
        """Discard the state of a deleted topic of the same name."""
        for segment in self._segments:
            self._cache.drop(segment.stem)
        self._segments = []
        self._last_index = ("", b"")
        self._walked = ("", 0, 0)
        self.checkpointed_log_start = self._read_log_start()

    def _find_end(self) -> int:
        """Return the first offset that readers must not see yet."""
        path = join(self.folder, paths.RECOVERY_POINT)
        point = read_recovery_point(self._files, path)
        self._durable_offset = 0 if point is None else point.offset
        if point is None:
            if any(segment.size_bytes for segment in self._segments):
                raise CorruptStateError(
                    path, "no slot is intact; the next start of the owner rewrites it"
                )
            return 0  # the partition is being created
        if point.bounds_readers or self._durable_only or not self._segments:
            return point.offset
        return max(self._end_of_last_segment(), point.offset)

    def _end_of_last_segment(self) -> int:
        """Return the offset after the last complete batch, scanning from the end of the previous
        scan."""
        last = self._segments[-1]
        stem, position, end = self._walked
        if stem != last.stem or position > last.size_bytes:
            position, end = 0, last.base_offset
        for found, header in self._whole_batches(last, position, end):
            position, end = found + header.size_bytes, header.next_offset
        self._walked = (last.stem, position, end)
        return end

    @property
    def start_offset(self) -> int:
        return min(max(self._first_base, self.checkpointed_log_start), self._end_offset)

    @property
    def end_offset(self) -> int:
        return self._end_offset

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._segments)

    @property
    def segments(self) -> list[Segment]:
        return list(self._segments)

    def read(self, offset: int, max_bytes: int) -> Buffer:
        """Return bytes starting with the batch that holds `offset`, or the next one after a gap;
        return nothing at `end_offset`. The bytes may extend past `end_offset`."""
        return self._retrying(lambda: self._read(offset, max_bytes))

    def _retrying(self, attempt: Callable[[], T]) -> T:
        for _ in range(LOOKS_BEFORE_GIVING_UP):
            try:
                return attempt()
            except FileNotFoundError:
                self.refresh()
        return attempt()

    def _read(self, offset: int, max_bytes: int) -> Buffer:
        if offset >= self._end_offset:
            self.refresh()
        if not self.start_offset <= offset <= self._end_offset:
            raise OffsetOutOfRangeError(*self.tp, offset, self.start_offset, self._end_offset)
        if offset == self._end_offset:
            return EMPTY
        for number, segment in enumerate(self._segments):
            is_last = number + 1 == len(self._segments)
            if not is_last and self._segments[number + 1].base_offset <= offset:
                continue
            if segment.base_offset >= self._end_offset:
                break
            data = self._read_in(segment, max(offset, segment.base_offset), max_bytes)
            if data:
                self._check_gap(offset, read_header(data).base_offset)
                return data
        self._check_end(offset)
        return EMPTY

    def _check_end(self, offset: int) -> None:
        """Raise `CorruptSegmentError` if the log ends at or below `offset`, but the recovery point
        is above it: another program has truncated or removed the last segment, or the disk has lost
        its end.

        The owner truncates only above the recovery point, or after it has created a segment there.
        A refresh lists the files before it reads the recovery point, so the segment may have grown
        in between, or the topic may have been deleted; therefore the files are listed again. They
        are listed twice: while the owner completes a compaction, a listing may miss the new last
        segment that the owner creates first, but already contain the compacted one.
        """
        durable_offset, topic_id = self._durable_offset, self._topic_id
        last = Segment(stem_of(self.folder, 0), 0, 0)  # if there is none
        for _ in range(2):
            self.refresh()
            if self._durable_offset < durable_offset or self._topic_id != topic_id:
                return
            if self._segments:
                last = self._segments[-1]
                if last.base_offset >= durable_offset or self._end_of_last_segment() > offset:
                    return
        reason = f"offsets {offset} to {durable_offset - 1} were durable and are lost"
        damage = CorruptSegmentError(last.log_path, last.size_bytes, reason, offset - 1)
        damage.resume_offset = durable_offset
        raise damage

    def _read_in(self, segment: Segment, offset: int, max_bytes: int) -> Buffer:
        is_last = self._is_last(segment)
        plan = self._plan(segment, offset, max_bytes)
        try:
            data = plan.execute()
        except CorruptSegmentError as damage:
            if is_last and damage.resume_offset is None:
                damage.resume_offset = self._end_offset
            raise
        if is_last and plan.index_is_wrong:
            self._last_index = ("", b"")
        return data

    def _is_last(self, segment: Segment) -> bool:
        return segment is self._segments[-1]

    def _plan(self, segment: Segment, offset: int, max_bytes: int = 0) -> ReadPlan:
        source, entry = self._source_and_entry(segment, offset)
        return ReadPlan(
            source,
            segment.log_path,
            segment.base_offset,
            entry,
            segment.size_bytes,
            offset,
            max_bytes,
            end_offset=NEVER if self._is_last(segment) else segment.end_offset,
        )

    def _check_gap(self, offset: int, next_offset: int) -> None:
        """Raise `CorruptSegmentError` if a gap covers a segment that, according to the manifest,
        was lost or truncated. Other gaps are normal after compaction."""
        if next_offset <= offset:
            return
        if self._losses is None:
            claims = read_manifest(self._files, self.folder).claims
            self._losses = losses(claims, self._files.list_dir(self.folder))
        for loss in self._losses:
            if loss.claim.base_offset < next_offset and loss.claim.end_offset > offset:
                path = stem_of(self.folder, loss.claim.base_offset) + paths.LOG_SUFFIX
                damage = CorruptSegmentError(path, loss.size_bytes or 0, loss.reason, offset - 1)
                damage.resume_offset = next_offset
                raise damage

    def _source_and_entry(
        self, segment: Segment, offset: int
    ) -> tuple[ByteSource, IndexEntry | None]:
        if not self._is_last(segment):
            maps = self._maps(segment)
            return maps.source, maps.lookup(segment, offset)
        # The next start of the owner may truncate the last segment, so it is read, never mapped.
        entries = self._entries(segment)
        entry = search_offset(entries, segment.base_offset, offset)
        if entry is not None and not 0 < entry.position < segment.size_bytes:
            entry = None
        return self._reader(segment), entry

    def _entries(self, segment: Segment) -> Buffer:
        """Return the entries of a segment's offset index."""
        if not self._is_last(segment):
            return self._maps(segment).index
        stem, entries = self._last_index
        if stem != segment.stem:
            entries = b""
        elif self._index_is_fresh:
            return entries
        entries = self._grown(segment.stem + paths.INDEX_SUFFIX, entries)
        self._last_index, self._index_is_fresh = (segment.stem, entries), True
        return entries

    def _grown(self, path: str, entries: bytes) -> bytes:
        """Return the entries of an index file. `entries` were read before and are read again only
        if the file has become shorter."""
        try:
            size = self._files.size(path)
            if size < len(entries):
                entries = b""  # the writer has rebuilt it
            if size > len(entries):
                entries += self._files.read_at(path, len(entries), size - len(entries))
        except FileNotFoundError:
            return b""
        return entries[: len(entries) - len(entries) % OFFSET_ENTRY.size]

    def split_offsets(self, start_offset: int, end_offset: int, pieces: int) -> list[int]:
        """Return the offsets at which to split a range into parts of about equal size in bytes."""
        return self._retrying(lambda: self._split_offsets(start_offset, end_offset, pieces))

    def _split_offsets(self, start_offset: int, end_offset: int, pieces: int) -> list[int]:
        ranges: list[SegmentRange] = []
        for number, segment in enumerate(self._segments):
            is_last = number + 1 == len(self._segments)
            behind = None if is_last else self._segments[number + 1].base_offset
            is_before = behind is not None and behind <= start_offset
            if is_before or segment.base_offset >= end_offset:
                continue
            # The last segment may not be readable to its end, so do not rely on its size.
            end = None if behind is not None and behind <= end_offset else end_offset
            entries = self._entries(segment)
            if is_last:
                entries = bytes(entries) + self._unsaved_entries(segment, entries, end_offset)
            size_bytes, base_offset = segment.size_bytes, segment.base_offset
            ranges.append(range_in(base_offset, entries, size_bytes, start_offset, end))
        cuts = split_offsets(ranges, pieces)
        return [offset for offset in cuts if start_offset < offset < end_offset]

    def _unsaved_entries(self, segment: Segment, saved: Buffer, end_offset: int) -> bytes:
        """Derive from the log the index entries that the owner has not yet written to the file."""
        last = search_offset(saved, segment.base_offset, end_offset)
        position = 0 if last is None else last.position
        found = bytearray()
        for at, header in self._whole_batches(segment, position, segment.base_offset):
            if header.base_offset >= end_offset:
                break
            if at > position:
                found += OFFSET_ENTRY.pack(header.last_offset - segment.base_offset, at)
        return bytes(found)

    def _maps(self, segment: Segment) -> SegmentMaps:
        """Return the mapped files of a sealed segment. Raise `SegmentReplacedError` if the owner
        has replaced its files since they were listed, because the known size is then outdated."""
        maps = self._cache.get(segment)
        if len(maps.log) != segment.size_bytes:
            self._cache.drop(segment.stem)
            raise SegmentReplacedError(segment.log_path)
        return maps

    def _reader(self, segment: Segment) -> ByteSource:
        path, files, size_bytes = segment.log_path, self._files, segment.size_bytes

        def read(position: int, length: int) -> bytes:
            data = files.read_at(path, position, length)
            if len(data) < min(length, size_bytes - position):
                raise SegmentReplacedError(path)
            return data

        return read

    def batches(self, segment: Segment, from_offset: int) -> Iterator[Batch | Damage]:
        """Yield the batches and the damage of a segment below the end offset, starting at or before
        an offset."""
        is_last = self._is_last(segment)
        if not is_last and segment.end_offset <= from_offset:
            return
        position = 0
        if from_offset > segment.base_offset:
            source, entry = self._source_and_entry(segment, from_offset)
            if entry is not None and indexed_header(source, entry, segment.size_bytes):
                position = entry.position
        yield from self._visible(segment, SearchStart(position, segment.base_offset))

    def _visible(
        self, segment: Segment, start: SearchStart, crc_from_offset: int = NEVER
    ) -> Iterator[Batch | Damage]:
        """Yield the batches and the damage of a segment below the end offset. Above it, the owner
        may be writing, or may have been killed while writing. The checksums of batches that reach
        `crc_from_offset` are verified."""
        source = buffered(self._reader(segment))
        for item in scan(
            source,
            start.position,
            segment.size_bytes,
            next_offset=start.next_offset,
            crc_from_offset=crc_from_offset,
        ):
            offset = item.header.base_offset if isinstance(item, Batch) else item.start_offset
            if offset >= self._end_offset:
                return
            yield item

    def _whole_batches(self, segment: Segment, position: int, next_offset: int) -> Iterator[Batch]:
        """Yield the complete batches of the last segment, up to the first damage or to the point
        where the owner is writing or crashed."""
        source = buffered(self._reader(segment))
        for item in scan(source, position, segment.size_bytes, next_offset=next_offset):
            if isinstance(item, Damage):
                return
            yield item

    def find_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        """Find the first record at or after a timestamp; return None if all records are older.
        Raise `CorruptSegmentError` if the log is damaged where the record may be."""
        self.refresh()
        return self._retrying(lambda: self._find_timestamp(timestamp_ms))

    def _find_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        for segment in self._segments:
            if not self._is_last(segment) and self._is_older(segment, timestamp_ms):
                continue
            start = self._time_start(segment, timestamp_ms)
            # A damaged timestamp would hide the batch, so verify the checksum of each.
            for item in self._visible(segment, start, self.start_offset):
                if isinstance(item, Damage):
                    if item.end_offset is None or item.end_offset > self.start_offset:
                        raise item.error(segment.log_path)
                    continue
                position, header = item
                if header.max_timestamp < timestamp_ms or header.last_offset < self.start_offset:
                    continue
                data = self._files.read_at(segment.log_path, position, header.size_bytes)
                batch = BatchView(data)
                try:
                    batch.check()
                except CorruptRecordError as error:
                    before = header.base_offset - 1
                    path = segment.log_path
                    raise CorruptSegmentError(path, position, str(error), before) from error
                found = self._find_in(batch, timestamp_ms)
                if found is not None:
                    return found
        return None

    def _time_start(self, segment: Segment, timestamp_ms: int) -> SearchStart:
        """Return where to start the search in a segment; no earlier batch can match."""
        source, _ = self._source_and_entry(segment, segment.base_offset)
        end_offset = NEVER if self._is_last(segment) else segment.end_offset
        entries = last_two(self._time_entries(segment), segment.base_offset, timestamp_ms)
        return search_start(
            source,
            segment,
            end_offset,
            entries,
            lambda offset: self._plan(segment, offset).locate(),
        )

    def _time_entries(self, segment: Segment) -> Buffer:
        """Return the entries of a segment's time index."""
        if not self._is_last(segment):
            return self._maps(segment).time_index
        try:
            return self._files.read(segment.stem + paths.TIME_INDEX_SUFFIX)
        except FileNotFoundError:
            return b""  # the owner has not written an entry yet

    def _is_older(self, segment: Segment, timestamp_ms: int) -> bool:
        """Return whether all records of a sealed segment are older than a timestamp, according to
        the last entry of its time index. An entry that the log contradicts is ignored."""
        if segment.largest is None:
            maps = self._maps(segment)  # sets `largest` if the index has to be rebuilt
            count = len(maps.time_index) // TIME_ENTRY.size
            entry = entry_before(maps.time_index, segment.base_offset, count)
            if segment.largest is None and entry is not None:
                with contextlib.suppress(CorruptSegmentError):
                    found = self._plan(segment, entry.offset).locate()
                    is_right = found is not None and (
                        (found.header.max_timestamp, found.header.last_offset) == entry
                        and is_largest(maps.source, segment, found)
                    )
                    if is_right:
                        segment.largest = entry
        return segment.largest is not None and segment.largest.timestamp < timestamp_ms

    def _find_in(self, batch: BatchView, timestamp_ms: int) -> TimestampOffset | None:
        """Find the first record at or after a timestamp in one intact batch. If the batch cannot be
        decoded, return its first visible offset: a consumer that reads there gets an error that
        names the batch."""
        try:
            return batch.find_timestamp(timestamp_ms, from_offset=self.start_offset)
        except DataError:
            header = batch.header
            return TimestampOffset(header.max_timestamp, max(header.base_offset, self.start_offset))


class FolderView:
    """A read-only view of a data folder."""

    def __init__(self, files: Files, path: str, *, durable_only: bool = False) -> None:
        self._durable_only = durable_only
        if not files.exists(path):
            raise UnknownLayoutError(path, "there is no such folder")
        check_layout(files, path)
        self._files = files
        self.path = path
        self._cache = SegmentCache(files, DEFAULT_CAPACITY, owns_folder=False)
        self._views: dict[TopicPartition, PartitionView] = {}

    def partitions(self) -> dict[str, int]:
        """Return the number of partitions of each topic, derived from the existing folders."""
        counts: dict[str, int] = {}
        for name, size in self._files.list_dir(self.path).items():
            tp = paths.parse_partition_dir(name) if size == DIRECTORY else None
            if tp is not None:
                counts[tp.topic] = max(counts.get(tp.topic, 0), tp.partition + 1)
        return counts

    def topic_id(self, tp: TopicPartition) -> str | None:
        """Return the id of the topic that the partition currently belongs to, or None if its folder
        does not record it. Drop the view of a deleted topic of the same name."""
        folder = join(self.path, paths.partition_dir(tp))
        if not self._files.exists(folder):
            self._views.pop(tp, None)
            raise TopicNotFoundError(tp.topic)
        found = read_topic_id(self._files, folder) or None
        view = self._views.get(tp)
        if view is not None and (view.topic_id or None) != found:
            del self._views[tp]
            for segment in view.segments:
                self._cache.drop(segment.stem)
        return found

    def read_log_starts(self) -> None:
        """Reload the log start offsets, which DeleteRecords may have advanced."""
        starts = self._log_starts()
        for tp, view in self._views.items():
            view.checkpointed_log_start = starts.get(tp, 0)

    def _log_starts(self) -> dict[TopicPartition, int]:
        return read_offsets(self._files, join(self.path, paths.LOG_START_CHECKPOINT), [])

    def view(self, tp: TopicPartition) -> PartitionView:
        """Return the view of a partition as of its last refresh."""
        found = self._views.get(tp)
        if found is None:
            folder = join(self.path, paths.partition_dir(tp))
            if not self._files.exists(folder):
                raise TopicNotFoundError(tp.topic)
            found = self._views[tp] = PartitionView(
                self._files,
                tp,
                folder,
                self._cache,
                lambda: self._log_starts().get(tp, 0),
                durable_only=self._durable_only,
            )
        return found

    def close(self) -> None:
        self._cache.close()
