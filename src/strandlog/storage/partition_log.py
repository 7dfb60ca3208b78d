"""The log of one partition: append, flush, trim.

    log start offset <= high watermark <= log end offset

    log end offset     the next record gets it; it only grows, whatever is deleted or truncated
    flushed offset     everything below is on disk
    high watermark     what readers may see: the flushed offset with durability "fsync", the log end
                       offset with durability "page_cache"
    log start offset   what lies below was deleted; grows with retention and delete_records

One thread owns a PartitionLog. It never waits: an append returns when the bytes are written, and
what must be synced comes as a `FlushPlan` that any thread may execute. Reading is in
partition_reads.py.

After a failed write or sync the log refuses appends (`failure`) until `revalidate` has read the
unsynced tail back, checked it, written it once more and synced it: a page cache that failed to sync
calls its pages clean, so syncing again without writing again would prove nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from strandlog.clock import Clock
from strandlog.config.topic_settings import LogSettings
from strandlog.errors import OffsetOutOfRangeError, StorageError
from strandlog.model import TopicPartition
from strandlog.record.batch_header import PREFIX_SIZE, BatchHeader, stamp, stamped_prefix
from strandlog.record.batch_header import stamp_append_time as stamp_time
from strandlog.record.codecs import DEFAULT_DECOMPRESSED_LIMIT_BYTES
from strandlog.storage.batch_checks import check_batch, split_batches
from strandlog.storage.batch_walk import view_source, walk
from strandlog.storage.file_remover import FileRemover
from strandlog.storage.files import Buffer, Files, LogFile
from strandlog.storage.flush_plan import FlushPlan
from strandlog.storage.paths import (
    INDEX_SUFFIX,
    RECOVERY_POINT,
    SIDE_SUFFIXES,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    join,
)
from strandlog.storage.producer_state import ProducerState
from strandlog.storage.read_plan import ReadPlan
from strandlog.storage.recovery import Recovered, Recovery
from strandlog.storage.recovery_point import RecoveryPoint, write_recovery_point
from strandlog.storage.segment import ActiveSegment, Segment, stem_of
from strandlog.storage.segment_cache import SegmentCache

LEADER_EPOCH = 0  # one node leads everything, always
SNAPSHOT_EVERY_BYTES = 16 * 1024 * 1024


class AppendResult(NamedTuple):
    """What became of one append."""

    base_offset: int
    last_offset: int
    append_time_ms: int  # -1 unless the topic stamps append times
    is_duplicate: bool = False


class LogContext(NamedTuple):
    """What all partitions of a folder share."""

    files: Files
    clock: Clock
    cache: SegmentCache
    remover: FileRemover
    waits_for_sync: bool = True  # durability "fsync"
    decompressed_max_bytes: int = DEFAULT_DECOMPRESSED_LIMIT_BYTES


class PartitionLog:
    """One partition, opened by its owner."""

    __slots__ = (
        "_dirty_sealed",
        "_epoch",
        "_flushed_place",
        "_names_changed",
        "_names_synced",
        "_point",
        "_since_snapshot_bytes",
        "_snapshot_due",
        "context",
        "failure",
        "first_unflushed_ms",
        "flushed_offset",
        "folder",
        "high_watermark",
        "last_report",
        "log_end_offset",
        "log_start_offset",
        "producers",
        "segments",
        "settings",
        "tp",
        "visible_place",
    )

    def __init__(
        self,
        tp: TopicPartition,
        folder: str,
        settings: LogSettings,
        context: LogContext,
        log_start_offset: int = 0,
    ) -> None:
        """Open the folder's log, recovering whatever the last stop left."""
        self.tp = tp
        self.folder = folder
        self.settings = settings
        self.context = context
        now_ms = context.clock.now_ms()
        recovered = Recovery(context.files, folder, settings, now_ms).run(log_start_offset)
        self.segments = recovered.segments
        self.producers: ProducerState = recovered.producers
        self.last_report = recovered.report
        self.log_end_offset = recovered.log_end_offset
        self.log_start_offset = max(self.segments.first_base, log_start_offset)
        self.flushed_offset = self.high_watermark = recovered.log_end_offset
        self.failure: StorageError | None = None
        self.first_unflushed_ms: int | None = None
        self._point = recovered.point
        self._epoch = 0
        self._dirty_sealed: list[tuple[Segment, LogFile]] = []
        self._names_changed = self._names_synced = 0  # how often; see flush_plan
        self._since_snapshot_bytes = 0
        self._snapshot_due = False
        self.visible_place = (self.segments.active.base_offset, self.segments.active.size_bytes)
        self._flushed_place = self.visible_place
        if recovered.needs_flush:
            self._flush_recovered(recovered)

    def _flush_recovered(self, recovered: Recovered) -> None:
        """What recovery read or changed must be on disk before it is served."""
        self.flushed_offset = min(recovered.point.offset, self.log_end_offset - 1)
        self._snapshot_due = True
        self._names_changed += 1
        self.flush()

    # -- append ------------------------------------------------------------------------------

    def append(self, data: Buffer, *, is_control: bool = False) -> AppendResult:
        """Write one or more whole batches; all of them are checked before the first is written.

        A writable buffer is stamped in place with its offsets; a read-only one is left alone.
        """
        if self.failure is not None:
            raise StorageError(str(self.failure))
        now_ms = self.context.clock.now_ms()
        batches = split_batches(data)
        for header, view in batches:
            check_batch(header, view, self.settings, now_ms, is_control=is_control)
            if header.producer_id >= 0 and not is_control:
                old = self.producers.check(header)
                if old is not None:
                    return AppendResult(old.first_offset, old.last_offset, -1, is_duplicate=True)
        base_offset = self.log_end_offset
        for header, view in batches:
            self._write(header, view, now_ms)
        append_time_ms = now_ms if self.settings.stamps_append_time else -1
        return AppendResult(base_offset, self.log_end_offset - 1, append_time_ms)

    def _write(self, header: BatchHeader, view: memoryview, now_ms: int) -> None:
        base_offset = self.log_end_offset
        last_offset = base_offset + header.last_offset_delta
        max_timestamp = header.max_timestamp
        size = len(view)
        if self.settings.stamps_append_time:
            max_timestamp = now_ms
            view = view if not view.readonly else memoryview(bytearray(view))
            stamp_time(view, now_ms)
        buffers: list[Buffer]
        if view.readonly:
            prefix = stamped_prefix(base_offset, header.batch_length, LEADER_EPOCH)
            buffers = [prefix, view[PREFIX_SIZE:]]
        else:
            stamp(view, base_offset, LEADER_EPOCH)
            buffers = [view]
        active = self.segments.active
        if active.should_roll(size, last_offset, max_timestamp, now_ms, self.settings):
            self.roll()
            active = self.segments.active
        if not active.size_bytes:
            self._names_changed += 1
        active.append(buffers, size, last_offset, max_timestamp)
        self.log_end_offset = last_offset + 1
        self._since_snapshot_bytes += size
        if self.first_unflushed_ms is None:
            self.first_unflushed_ms = now_ms
        if header.producer_id >= 0 and not header.is_control:
            self.producers.update(header, base_offset)
        if not self.context.waits_for_sync:
            self._show_up_to(self.log_end_offset, (active.base_offset, active.size_bytes))

    def roll(self) -> None:
        """Seal the active segment and begin a new one at the log end offset."""
        active = self.segments.active
        if not active.size_bytes:
            return
        sealed = active.seal()
        self._dirty_sealed.append((sealed, active.file))
        active.forget_file()
        self.segments.roll(sealed, self._new_active(self.log_end_offset))
        self._snapshot_due = True
        self._names_changed += 1

    def _new_active(self, base_offset: int) -> ActiveSegment:
        return ActiveSegment(
            self.context.files,
            stem_of(self.folder, base_offset),
            base_offset,
            self.settings.index_interval_bytes,
            self.context.clock.now_ms(),
        )

    # -- flush -------------------------------------------------------------------------------

    @property
    def unflushed_count(self) -> int:
        return self.log_end_offset - self.flushed_offset

    def flush_plan(self) -> FlushPlan | None:
        """What to sync so that everything written so far is durable; None when it is already."""
        if self.flushed_offset == self.log_end_offset and not self._snapshot_due:
            return None
        active = self.segments.active
        side_paths = [
            sealed.stem + suffix
            for sealed, _ in self._dirty_sealed
            for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX)
            if self.context.files.exists(sealed.stem + suffix)
        ]
        snapshot_offset = self._point.snapshot_offset
        if self._snapshot_due or self._since_snapshot_bytes >= SNAPSHOT_EVERY_BYTES:
            snapshot_offset = self.log_end_offset
            side_paths += self._write_snapshot()
            self._since_snapshot_bytes, self._snapshot_due = 0, False
        # Until a plan that syncs the folder is completed, every plan does: they may overtake.
        folder = self.folder if self._names_changed != self._names_synced else None
        return FlushPlan(
            self.context.files,
            side_paths=side_paths,
            log_files=[*(file for _, file in self._dirty_sealed), active.file],
            folder=folder,
            end_offset=self.log_end_offset,
            snapshot_offset=snapshot_offset,
            place=(active.base_offset, active.size_bytes),
            names_version=self._names_changed,
            epoch=self._epoch,
        )

    def _write_snapshot(self) -> list[str]:
        """Bring the indexes up to date and write the producer state; returns what to sync."""
        files, active = self.context.files, self.segments.active
        active.indexes.finish()
        path = stem_of(self.folder, self.log_end_offset) + SNAPSHOT_SUFFIX
        files.remove(path)
        files.append_to(path, self.producers.snapshot())
        self._names_changed += 1
        written = [active.stem + INDEX_SUFFIX, active.stem + TIME_INDEX_SUFFIX]
        return [path, *filter(files.exists, written)]

    def flush_completed(self, plan: FlushPlan) -> None:
        """A plan was executed: show what it made durable."""
        if plan.epoch != self._epoch or plan.end_offset < self.flushed_offset:
            return  # the log was truncated since, or a newer plan was quicker
        old_snapshot = self._point.snapshot_offset
        self.flushed_offset = plan.end_offset
        self._flushed_place = plan.place
        self._names_synced = max(self._names_synced, plan.names_version)
        synced = plan.log_files
        self._dirty_sealed = [pair for pair in self._dirty_sealed if pair[1] not in synced]
        if plan.end_offset == self.log_end_offset:
            self.first_unflushed_ms = None
        else:
            self.first_unflushed_ms = self.context.clock.now_ms()
        self._move_point(plan.end_offset, max(old_snapshot, plan.snapshot_offset))
        if plan.snapshot_offset > old_snapshot and old_snapshot:
            self.context.files.remove(stem_of(self.folder, old_snapshot) + SNAPSHOT_SUFFIX)
        if self.context.waits_for_sync:
            self._show_up_to(plan.end_offset, plan.place)

    def _move_point(self, offset: int, snapshot_offset: int) -> None:
        self._point = RecoveryPoint(
            offset, snapshot_offset, self._point.sequence + 1, self.context.waits_for_sync
        )
        write_recovery_point(self.context.files, join(self.folder, RECOVERY_POINT), self._point)

    def _show_up_to(self, offset: int, place: tuple[int, int]) -> None:
        self.high_watermark = offset
        self.visible_place = place

    def flush_failed(self, plan: FlushPlan, error: StorageError) -> None:
        """A plan could not be executed: from now on nothing is acknowledged."""
        if plan.epoch == self._epoch:
            self._snapshot_due = True
            self.failure = StorageError(
                f"{self.tp} stopped taking records: {error}; it goes on once its unsynced tail "
                f"was read back, checked and synced"
            )

    def flush(self) -> None:
        """Make everything durable now, in this thread."""
        plan = self.flush_plan()
        if plan is None:
            return
        try:
            plan.execute()
        except StorageError as error:
            self.flush_failed(plan, error)
            raise
        self.flush_completed(plan)

    def revalidate(self) -> None:
        """Go on after a failed sync, if the unsynced tail turns out to be whole."""
        tails = [*self._dirty_sealed, (self.segments.active, self.segments.active.file)]
        for segment, file in tails:
            base, position = self._flushed_place
            start = position if segment.base_offset == base else 0
            length = segment.size_bytes - start
            data = file.read(start, length)
            for _ in walk(
                view_source(memoryview(data)),
                0,
                length,
                path=segment.log_path,
                next_offset=segment.base_offset,
                crc_from_offset=0,
            ):
                pass
            file.overwrite(start, data)
        self.failure = None
        self.flush()

    # -- trim --------------------------------------------------------------------------------

    def check_offset(self, offset: int, end_offset: int) -> None:
        """Raise unless a reader may stand at this offset."""
        if not self.log_start_offset <= offset <= end_offset:
            raise OffsetOutOfRangeError(*self.tp, offset, self.log_start_offset, end_offset)

    def raise_log_start(self, offset: int) -> None:
        """Delete records below an offset, at most up to the high watermark."""
        if offset > self.high_watermark or offset < 0:
            raise OffsetOutOfRangeError(
                *self.tp, offset, self.log_start_offset, self.high_watermark
            )
        self.log_start_offset = max(self.log_start_offset, offset)

    def drop_oldest(self, count: int) -> int:
        """Remove that many segments from the old end; returns their bytes."""
        if count == len(self.segments):
            self.roll()
            self.begin_active_file()
        doomed = self.segments.sealed[:count]
        if not doomed:
            return 0
        self._retire(doomed)
        self.log_start_offset = max(self.log_start_offset, self.segments.first_base)
        return sum(segment.size_bytes for segment in doomed)

    def _retire(self, doomed: list[Segment]) -> None:
        due_ms = self.context.clock.now_ms() + self.settings.file_delete_delay_ms
        for segment in doomed:
            self.context.cache.drop(segment.stem)
            for path in segment.paths:
                self.context.remover.retire(path, due_ms)
        gone = {segment.stem for segment in doomed}
        self._dirty_sealed = [pair for pair in self._dirty_sealed if pair[0].stem not in gone]
        self.segments.replace(doomed, None)

    def truncate_to(self, offset: int) -> None:
        """Remove the batch that holds `offset` and everything after it.

        The log end offset stays: a new segment is begun there first, so that whatever happens from
        then on, the offsets of what is removed are not given out again.
        """
        self.check_offset(offset, self.log_end_offset)
        self.flush()
        self.roll()
        self.begin_active_file()
        self._epoch += 1
        while self.segments.sealed and self.segments.sealed[-1].base_offset >= offset:
            self._retire(self.segments.sealed[-1:])
        if self.segments.sealed:
            self._cut_last_sealed(offset)
        place = (self.segments.active.base_offset, self.segments.active.size_bytes)
        self.visible_place = self._flushed_place = place
        self.log_start_offset = min(self.log_start_offset, self.log_end_offset)

    def begin_active_file(self) -> None:
        """Make the name of the active segment durable: it says which offset comes next."""
        self.segments.active.file.sync()
        self.context.files.sync_dir(self.folder)

    def _cut_last_sealed(self, offset: int) -> None:
        segment = self.segments.sealed[-1]
        maps = self.context.cache.get(segment)
        entry = maps.lookup(segment, offset)
        plan = ReadPlan(
            maps.source, segment.log_path, segment.base_offset, entry, segment.size_bytes, offset, 0
        )
        found = plan.locate()
        if found is None:
            return
        del maps, plan
        self.context.cache.drop(segment.stem)
        files = self.context.files
        files.truncate(segment.log_path, found[0])
        files.sync_file(segment.log_path)
        for suffix in SIDE_SUFFIXES:
            files.remove(segment.stem + suffix)
        segment.size_bytes = found[0]
        segment.largest = None

    def replace_segments(self, old: list[Segment], new: Segment, swap: Callable[[], None]) -> None:
        """Put a compacted segment in the place of its originals; `swap` moves the files."""
        for segment in old:
            self.context.cache.drop(segment.stem)
        swap()
        self.segments.replace(old, new)

    def close(self) -> None:
        """Make everything durable and leave both points at the end, for a quick start."""
        if self.failure is None:
            self._snapshot_due = self._snapshot_due or (
                self._point.snapshot_offset != self.log_end_offset
            )
            self.flush()
        self.abandon()

    def abandon(self) -> None:
        """Let go of the files without another write."""
        for segment in self.segments.all():
            self.context.cache.drop(segment.stem)
        self.segments.active.forget_file()
