"""The log of one partition: appends, flushes, truncation, and the offsets visible to readers.

    log start offset <= high watermark <= log end offset

    log end offset     the offset of the next record; it never decreases, even if records are
                       deleted or truncated
    flushed offset     everything below is on disk
    high watermark     readers see the records below it: the flushed offset with durability "fsync",
                       the log end offset with durability "page_cache"
    last stable offset read_committed readers see the records below it: the high watermark, or the
                       start of the oldest open transaction
    log start offset   everything below was deleted, by retention or delete_records

One thread owns a PartitionLog. Appends do not wait for a sync: `append` returns once the bytes are
written, and `flush_plan` returns a `FlushPlan` that any thread may execute. Reads are in read.py.

After a failed sync the log refuses appends (`failure`) until `rewrite_tail` has read back the
unsynced tail, verified it, rewritten it and synced it. The kernel marks pages clean even if their
sync fails, so another sync without a rewrite would prove nothing. A failed write leaves nothing
behind, so the log continues. flush.py tracks what is unsynced.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from strandlog.clock import Clock, SteadyClock
from strandlog.config.tables.broker import BrokerSettings
from strandlog.config.tables.topic import LogSettings
from strandlog.errors import InvalidRecordError, OffsetOutOfRangeError, StorageError
from strandlog.model import Buffer, TopicPartition
from strandlog.record.batch import BatchView
from strandlog.record.batch_header import PREFIX_SIZE, BatchHeader, stamp, stamped_prefix
from strandlog.record.batch_header import stamp_append_time as stamp_time
from strandlog.record.control import read_control
from strandlog.storage.file_remover import FileRemover
from strandlog.storage.files import Files
from strandlog.storage.partition.append_checks import check_batch, split_batches
from strandlog.storage.partition.flush import FlushPlan, FlushState
from strandlog.storage.partition.partition_files import PartitionFiles
from strandlog.storage.partition.producer_state import ProducerIdsSeen, ProducerState, WrittenBatch
from strandlog.storage.partition.recovery import NOT_KNOWN, KnownEnd, Recovery
from strandlog.storage.partition.replay import AbortedReplay, end_of_transaction, store_aborted
from strandlog.storage.paths import ABORT_INDEX_SUFFIX, SIDE_SUFFIXES
from strandlog.storage.segment.cache import SegmentCache
from strandlog.storage.segment.manifest import Claim
from strandlog.storage.segment.read_plan import locate_batch
from strandlog.storage.segment.segment import (
    ActiveSegment,
    LogPosition,
    OpenFiles,
    Segment,
    stem_of,
)
from strandlog.storage.segment.transaction_index import packed
from strandlog.storage.work import Work, run_inline

MAX_LISTED_PROBLEMS = 100  # clients that read damaged data cause one problem per damaged batch
_DAMAGE = "damage (for the full list, run 'strandlog log verify')"
LEADER_EPOCH = 0  # the leader never changes: there is only one node
_new_tuple = tuple.__new__  # three times as fast as the named tuple's own constructor


class AppendResult(NamedTuple):
    """The result of one append."""

    base_offset: int
    last_offset: int
    append_time_ms: int  # -1 for a duplicate, or if the topic does not stamp append times
    is_duplicate: bool = False
    log_start_offset: int = 0


class LogContext(NamedTuple):
    """The dependencies that all partitions of a data folder share."""

    files: Files
    clock: Clock
    cache: SegmentCache
    remover: FileRemover
    open_files: OpenFiles
    steady_clock: SteadyClock
    producer_ids_seen: ProducerIdsSeen
    settings: BrokerSettings
    unclean: dict[TopicPartition, PartitionLog]  # the partitions whose report is not clean


class PartitionLog:
    """The log of one partition, opened by its owner."""

    __slots__ = (
        "_batch_max_records",
        "_flusher",
        "_last_stable_position",
        "_waits_for_fsync",
        "aborted",
        "context",
        "files",
        "folder",
        "high_watermark",
        "high_watermark_position",
        "inherited_position",
        "last_report",
        "log_end_offset",
        "log_start_offset",
        "manifest",
        "producers",
        "segments",
        "settings",
        "tp",
    )

    def __init__(
        self,
        tp: TopicPartition,
        folder: str,
        settings: LogSettings,
        context: LogContext,
        log_start_offset: int = 0,
        known_end: KnownEnd = NOT_KNOWN,
        *,
        is_new: bool = False,
    ) -> None:
        """Open the log in `folder` and recover it if needed. `known_end` comes from a checkpoint
        of the data folder. `is_new` means that the folder was just created: then the recovery point
        is written, and the caller makes it durable."""
        self.tp = tp
        self.folder = folder
        self.settings = settings
        self.context = context
        self.files = PartitionFiles(context.files, folder)
        self._batch_max_records = context.settings.batch_max_records
        self._waits_for_fsync = context.settings.waits_for_fsync
        now_ms = context.clock.now_ms()
        recovery = Recovery(self.files, folder, settings, now_ms)
        recovered = recovery.begin() if is_new else recovery.run(log_start_offset, known_end)
        self.segments = recovered.segments
        self.segments.active.open_files = context.open_files
        self.producers: ProducerState = recovered.producers
        self.producers.opened(context.producer_ids_seen, context.steady_clock.now_ms())
        self.aborted = recovered.aborted
        self.last_report = recovered.report
        self.log_end_offset = recovered.log_end_offset
        self.log_start_offset = max(self.segments.first_base, log_start_offset)
        self.high_watermark = recovered.log_end_offset
        self.high_watermark_position = self.segments.end_position
        # Bytes below this position were not written by this process; see read.py.
        self.inherited_position = self.high_watermark_position
        # Cache: the most recently requested last stable offset, and its position.
        self._last_stable_position = (-1, self.high_watermark_position)
        self.manifest = recovered.manifest
        self._flusher = FlushState(folder, self.files, context, recovered)
        if recovered.needs_flush:
            self.flush()
        if is_new:
            self._flusher.begin_recovery_point()
        elif (
            recovered.needs_flush
            or recovered.point.is_provisional
            or recovered.point.bounds_readers != self._waits_for_fsync
        ):
            self.persist_recovery_point()
        if recovered.unclaimed:
            self.claim(recovered.unclaimed)
        if recovered.aborted_was_rebuilt:
            self._claim_aborted(self.segments.sealed)
        elif recovered.lost_checksum:
            self._claim_aborted(recovered.lost_checksum)
        if self.manifest.is_damaged:
            self.manifest.shorten(self.claims_of(self.segments.sealed))
        self._note_problems()

    def report(self, problem: str) -> bool:
        """Add a problem to the partition's report. Return False if it is already listed or the
        list is full."""
        is_added = self.last_report.problems.report(problem, _DAMAGE, MAX_LISTED_PROBLEMS)
        self._note_problems()
        return is_added

    def _note_problems(self) -> None:
        if not self.last_report.is_clean and not self.is_closed:
            self.context.unclean[self.tp] = self

    # -- append ------------------------------------------------------------------------------

    def append(
        self, data: Buffer, *, is_control: bool = False, from_coordinator: bool = False
    ) -> AppendResult:
        """Append one or more complete batches. All of them are checked before the first is written.
        If a write fails, the batches before it stay in the log. If the batch is a duplicate,
        nothing is written, and the result contains the offsets of the original.

        If the buffer is writable, offsets and append times are stamped into it; a read-only buffer
        is not modified.
        """
        if self._flusher.failure is not None:
            raise StorageError(str(self._flusher.failure))
        now_ms = self.context.clock.now_ms()
        batches = split_batches(data)
        for header, view in batches:
            check_batch(
                header,
                view,
                self.settings,
                now_ms,
                self._batch_max_records,
                is_control=is_control,
                from_coordinator=from_coordinator,
            )
            if is_control:
                read_control(BatchView(view))  # reject markers that cannot be decoded
            elif header.producer_id >= 0:
                old = self.check_producer(header, len(batches), is_limited=not from_coordinator)
                if old is not None:
                    now_ms = self.context.steady_clock.now_ms()
                    self.producers.touch(header.producer_id, now_ms)
                    start_offset = self.log_start_offset
                    return AppendResult(old.first_offset, old.last_offset, -1, True, start_offset)
        base_offset = self.log_end_offset
        for header, view in batches:
            self._write(header, view, now_ms)
        append_time_ms = now_ms if self.settings.stamps_append_time else -1
        last_offset = self.log_end_offset - 1
        result = (base_offset, last_offset, append_time_ms, False, self.log_start_offset)
        return _new_tuple(AppendResult, result)

    def check_producer(
        self, header: BatchHeader, batch_count: int, *, is_limited: bool = True
    ) -> WrittenBatch | None:
        """Raise an error if the producer may not append this batch. Return the original batch if
        this one is a duplicate, else None. `batch_count` is the number of batches in the append."""
        if header.producer_id < 0:
            return None
        if batch_count > 1:
            # If only one of them were a duplicate, no single result would be correct.
            raise InvalidRecordError("batches with a producer id must be appended one at a time")
        return self.producers.check(header, is_limited=is_limited)

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
        is_first = not active.size_bytes
        active.append(buffers, size, last_offset, max_timestamp)
        self.log_end_offset = last_offset + 1
        self._flusher.note_append(size, is_first=is_first)
        if header.producer_id >= 0:
            if header.is_control:
                self._end_transaction(header, view, base_offset)
            else:
                now_ms = self.context.steady_clock.now_ms()
                self.producers.update(header, base_offset, now_ms)
        if not self._waits_for_fsync:
            self._show_up_to(self.log_end_offset, self.segments.end_position)

    def _end_transaction(self, header: BatchHeader, view: memoryview, offset: int) -> None:
        """Apply a marker that was just written, so that read_committed readers can move past it."""
        now_ms = self.context.steady_clock.now_ms()
        aborted = end_of_transaction(self.producers, header, BatchView(view), offset, now_ms)
        if aborted is not None:
            self.aborted.add(aborted)

    def roll(self) -> None:
        """Seal the active segment and start a new one at the log end offset. Do nothing if the
        active segment is empty."""
        active = self.segments.active
        if not active.size_bytes:
            return
        self.save_aborted()
        sealed = active.seal()
        self._flusher.note_roll(sealed, active.file)
        active.forget_file()
        self.segments.roll(sealed, self._new_active(self.log_end_offset))

    def _new_active(self, base_offset: int) -> ActiveSegment:
        active = ActiveSegment(
            self.files,
            stem_of(self.folder, base_offset),
            base_offset,
            self.settings.index_interval_bytes,
            self.context.clock.now_ms(),
        )
        active.open_files = self.context.open_files
        return active

    def save_aborted(self) -> None:
        """Bring the transaction index of the active segment up to date."""
        active = self.segments.active
        self.aborted.save(self.files, active.stem, active.base_offset, self.log_end_offset)

    # -- visibility --------------------------------------------------------------------------

    @property
    def last_stable_offset(self) -> int:
        """The offset below which all visible records are committed, aborted or
        non-transactional."""
        return self._first_unstable(self.high_watermark)

    def _first_unstable(self, end_offset: int) -> int:
        first_offset = self.producers.first_open_transaction()
        if first_offset is None or first_offset >= end_offset:
            return end_offset
        return max(first_offset, self.log_start_offset)

    @property
    def last_stable_position(self) -> LogPosition:
        """The position of the last stable offset."""
        offset = self.last_stable_offset
        if offset == self.high_watermark:
            return self.high_watermark_position
        if self._last_stable_position[0] != offset:
            self._last_stable_position = (offset, self.position_of(offset))
        return self._last_stable_position[1]

    def position_of(self, offset: int) -> LogPosition:
        """Return the start of the first batch that ends at or after `offset`, in the segment that
        covers `offset`. If there is none, return the end of that segment."""
        segment, _ = self.segments.at(offset)
        position = locate_batch(self.cache, segment, offset)
        end = segment.size_bytes if position is None else position
        return LogPosition(segment.base_offset, end)

    # -- flush -------------------------------------------------------------------------------

    @property
    def flushed_offset(self) -> int:
        """The offset below which everything is on disk."""
        return self._flusher.flushed_offset

    @property
    def unflushed_count(self) -> int:
        return self.log_end_offset - self._flusher.flushed_offset

    @property
    def failure(self) -> StorageError | None:
        """The reason why the log refuses appends, or None."""
        return self._flusher.failure

    @property
    def is_closed(self) -> bool:
        """Whether the partition was closed or deleted."""
        return self.files.is_closed

    @property
    def cache(self) -> SegmentCache:
        """The cache of mapped segments. Raises `StorageError` once the log is closed, because a new
        topic may use the same paths."""
        self.files.check_is_open()
        return self.context.cache

    def flush_plan(self) -> FlushPlan | None:
        """Return the plan that makes all written data durable. Return None if there is nothing to
        sync, or if the log refuses appends (`failure`): after a failed sync, further syncs would
        prove nothing."""
        try:
            return self._flusher.plan(self.log_end_offset)
        except StorageError as error:  # the active file could not be opened
            self._flusher.failed(error)
            return None

    def closing_plan(self) -> FlushPlan | None:
        """Return the plan that makes everything durable and moves the recovery point and the
        snapshot point to the log end, or None as in `flush_plan`."""
        self._flusher.request_snapshot(self.log_end_offset)
        return self.flush_plan()

    def flush_completed(self, plan: FlushPlan) -> None:
        """Apply an executed plan: make the records that it synced visible, and add the segments
        that it completed to the manifest. Ignore an obsolete plan."""
        if not self._flusher.completed(plan):
            return
        if plan.sealed:
            self.claim(plan.sealed)
        if self._waits_for_fsync:
            self._show_up_to(plan.end_offset, plan.end_position)

    def claim(self, durable: Iterable[Segment]) -> None:
        """Add durable sealed segments to the manifest, unless they have been removed since."""
        kept = [segment for segment in durable if segment in self.segments.sealed]
        # An error here is harmless: the segment is durable even without a manifest entry.
        with contextlib.suppress(StorageError, FileNotFoundError):
            self.manifest.claim(self.claims_of(kept))

    def claims_of(self, sealed: Iterable[Segment]) -> list[Claim]:
        """Return the manifest entries for sealed segments."""
        return [
            Claim(
                segment.base_offset,
                segment.end_offset,
                segment.size_bytes,
                self.aborted.checksum(segment.base_offset, segment.end_offset),
            )
            for segment in sealed
        ]

    def rebuild_aborted(self) -> Work[None]:
        """Rebuild the list of aborted transactions from the log after an index proved wrong. There
        is one step per segment. If a segment is replaced before the last step, start again."""
        files, is_done = self.files, False
        while not is_done:
            read = [(segment, segment.size_bytes) for segment in self.segments.all()]
            end_offset, replay = self.log_end_offset, AbortedReplay(files)
            for segment, size_bytes in read:
                with contextlib.suppress(FileNotFoundError):  # it was removed or replaced
                    yield partial(replay.read, segment, size_bytes)
                self.files.check_is_open()
            is_done = all(self._still_has(*each) for each in read)
        replay.report_to(self.last_report.problems)
        self._note_problems()
        first_base = self.segments.first_base  # retention may have removed segments
        found = [entry for entry in replay.found if entry.last_offset >= first_base]
        found += self.aborted.ending_in(end_offset, self.log_end_offset)  # appended since
        store_aborted(files, self.segments.all(), self.aborted, found)
        self._flusher.renew_snapshot()
        self._claim_aborted(self.segments.sealed)

    def _still_has(self, segment: Segment, size_bytes: int) -> bool:
        """Return whether the bytes of a segment are unchanged: it is the same segment, or was
        active and has been sealed, or was removed by retention."""
        now, _ = self.segments.at(segment.base_offset)
        if now is segment or segment.base_offset < self.segments.first_base:
            return True
        was_active = isinstance(segment, ActiveSegment)
        is_same_file = now.base_offset == segment.base_offset and now.size_bytes >= size_bytes
        return was_active and is_same_file

    def _claim_aborted(self, sealed: Iterable[Segment]) -> None:
        with contextlib.suppress(StorageError, FileNotFoundError):
            self.manifest.claim_aborted(self.claims_of(sealed))

    def _show_up_to(self, offset: int, position: LogPosition) -> None:
        self.high_watermark = offset
        self.high_watermark_position = position

    def flush_failed(self, _plan: FlushPlan, error: StorageError) -> None:
        """Record that a plan failed. No records are acknowledged until `rewrite_tail` succeeds."""
        self._flusher.failed(error)

    def flush(self) -> None:
        """Make everything durable now, in this thread."""
        run_inline(self.flush_work())

    def flush_work(self) -> Work[None]:
        """Make all written data durable. Raise `StorageError` if a sync fails, or if the log
        refuses appends."""
        plan = self.flush_plan()
        if plan is None:
            if self.failure is not None:
                raise StorageError(str(self.failure))
            return
        try:
            yield plan.execute
        except StorageError as error:
            self.flush_failed(plan, error)
            raise
        self.flush_completed(plan)

    def rewrite_tail(self) -> Work[None]:
        """Resume after a failed sync, provided that the unsynced tail is intact. No other code may
        flush or truncate the partition until this finishes."""
        yield from self._flusher.rewrite_tail()
        yield from self.flush_work()

    # -- trim --------------------------------------------------------------------------------

    def check_offset(self, offset: int, end_offset: int) -> None:
        """Raise `OffsetOutOfRangeError` unless the offset is between the log start offset and
        `end_offset`."""
        if not self.log_start_offset <= offset <= end_offset:
            raise OffsetOutOfRangeError(*self.tp, offset, self.log_start_offset, end_offset)

    def raise_log_start(self, offset: int) -> None:
        """Raise the log start offset to `offset`, which must not exceed the high watermark. Readers
        no longer see the records below it; retention removes their segments."""
        if offset > self.high_watermark or offset < 0:
            raise OffsetOutOfRangeError(
                *self.tp, offset, self.log_start_offset, self.high_watermark
            )
        self.log_start_offset = max(self.log_start_offset, offset)

    def request_snapshot(self, offset: int) -> bool:
        """Make the next flush persist the producer state up to `offset`. Return False if it is
        durable already."""
        return self._flusher.request_snapshot(offset)

    def persist_recovery_point(self) -> None:
        """Make the recovery point itself durable. Call this before a gap is created below it."""
        self._flusher.persist_recovery_point()

    def begin_active_file(self) -> None:
        """Make the name of the active segment durable before other segments are removed. Once they
        are removed, the next offset is known only from that name."""
        self.open_active_file()
        self.files.sync_dir(self.folder)

    def open_active_file(self) -> None:
        """Ensure that the active segment has a file."""
        if not self.segments.active.size_bytes:
            self.segments.active.open_file()

    def remove_segments(self, segments: list[Segment]) -> None:
        """Remove the oldest segments and advance the log start offset accordingly."""
        self._remove_segments(segments)
        self.log_start_offset = max(self.log_start_offset, self.segments.first_base)
        self.aborted.drop_below(self.segments.first_base)

    def _remove_segments(self, segments: list[Segment]) -> None:
        due_ms = self.context.clock.now_ms() + self.settings.file_delete_delay_ms
        for segment in segments:
            self.cache.drop(segment.stem)
            for path in segment.paths:
                self.context.remover.retire(self.files, path, due_ms)
        self._flusher.forget(segments)
        self.segments.replace(segments, None)

    def truncate_to(self, offset: int) -> None:
        """Remove the batch that contains `offset` and everything after it, durably.

        The log end offset does not change: a new segment is created there first, so that the
        offsets of removed records are not reused even after a crash. Segments are removed from
        newest to oldest, so that a crash in between leaves no gap.
        """
        self.check_offset(offset, self.log_end_offset)
        self.flush()
        self.persist_recovery_point()
        self.roll()
        self.manifest.withdraw(self.segments.at(offset)[0].base_offset)
        self.manifest.sync()
        self.begin_active_file()
        while self.segments.sealed and self.segments.sealed[-1].base_offset >= offset:
            self._remove_segments(self.segments.sealed[-1:])
        if self.segments.sealed:
            self._cut_last_sealed(offset)
        self.files.sync_dir(self.folder)
        self.producers.truncate_to(offset)
        self.aborted.truncate_to(offset)
        self._last_stable_position = (-1, self.high_watermark_position)
        self._flusher.note_truncation(offset)
        self.high_watermark_position = self.segments.end_position
        self.flush()
        self.claim(self.segments.sealed[-1:])

    def _cut_last_sealed(self, offset: int) -> None:
        """Write the remaining part of the last sealed segment to a new file. The old file may be
        mapped by a reader, and a mapped file must not be truncated."""
        segment = self.segments.sealed[-1]
        position = locate_batch(self.cache, segment, offset)
        if position is None:
            return
        files = self.files
        files.replace(segment.log_path, self.cache.get(segment).log[:position])
        for suffix in SIDE_SUFFIXES:
            files.remove(segment.stem + suffix)
        kept = self.aborted.ending_in(segment.base_offset, offset)
        if kept:
            files.replace(segment.stem + ABORT_INDEX_SUFFIX, packed(kept))
        self.cache.drop(segment.stem)
        # A new object, so that a compaction in progress notices that its source has changed.
        self.segments.replace([segment], Segment(segment.stem, segment.base_offset, position))

    def replace_segments(self, old: list[Segment], new: Segment, swap: Callable[[], None]) -> None:
        """Replace segments with the compacted one; `swap` moves the files."""
        for segment in old:
            self.cache.drop(segment.stem)
        swap()
        self.segments.replace(old, new)

    def close(self) -> None:
        """Make everything durable and move the recovery point and the snapshot point to the log
        end, so that the next start is fast. After a failed sync, only release the files."""
        if self.failure is None:
            self._flusher.request_snapshot(self.log_end_offset)
            self.flush()
        self.abandon()

    def abandon(self) -> None:
        """Release the files without writing anything."""
        for segment in self.segments.all():
            self.context.cache.drop(segment.stem)
        self.segments.active.forget_file()
        self._flusher.close()
