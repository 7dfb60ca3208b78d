"""Rewrites sealed segments so that only the last value of each key remains.

    |------ clean ------|-------- dirty --------|-- not yet --|
    log start           first dirty offset      end           log end

Pass 1 reads the dirty part and records the last offset of each key. Pass 2 copies all segments
below `end`, omitting records that are superseded by a later record with the same key. Records
without a key are kept, unless their transaction was aborted. Offsets never change, so compaction
leaves gaps. A tombstone (null value) is kept until its batch's delete horizon, which is set when
the batch is first compacted (KIP-534). A batch that loses all its records is removed unless it is
the last batch of a producer; in that case it is kept empty, because the producer's sequence numbers
must survive. Control batches are kept. Records of aborted transactions are removed and do not
supersede other records.

If the offset map is too small for all keys of the dirty part, pass 1 stops early, only the range it
covered becomes clean (up to `next_dirty_offset`), and pass 2 leaves out later segments. Beyond that
point, tombstones are neither removed nor given a delete horizon, because records that they delete
may still exist.

Compaction has three phases: plan, execute and complete. The log's owner creates the plan and
completes it. Any thread may execute it, because sealed segments do not change. Executing only
writes `.cleaned` files; completing swaps them in (swap.py). A batch that fails its checksum aborts
the compaction with `CorruptSegmentError` and leaves the originals untouched. If the list of aborted
transactions contradicts the markers in the log (outcome_check.py), the plan does not touch them
either; completing it rebuilds that list, and the next plan uses the new one. A batch that is intact
but cannot be decoded (the producer's fault) is kept unchanged and reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from strandlog.errors import CorruptSegmentError, DataError, StorageError
from strandlog.model import Buffer, Record
from strandlog.record.batch import BatchView
from strandlog.record.batch_header import BatchHeader
from strandlog.record.builder import filtered_batch
from strandlog.storage.cleaning.offset_map import SLOT_SIZE, OffsetMap
from strandlog.storage.cleaning.outcome_check import OutcomeCheck
from strandlog.storage.cleaning.policy import groups, need_for_compaction
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.partition.read import aborted_in
from strandlog.storage.paths import ABORT_INDEX_SUFFIX, CLEANED_SUFFIX, SIDE_SUFFIXES
from strandlog.storage.segment.scan import scan_strict, view_source
from strandlog.storage.segment.segment import Segment, SegmentIndexes
from strandlog.storage.segment.swap import SWAPPED_SUFFIXES, commit_swap, finish_swap
from strandlog.storage.segment.transaction_index import AbortedRanges, AbortedTransaction, packed
from strandlog.storage.work import Work, run_inline

DEFAULT_MAP_BYTES = 128 * 1024 * 1024
SMALLEST_RECORD_BYTES = 8  # used to estimate the maximum number of keys in the dirty part


@dataclass(slots=True)
class CompactionReport:
    """The outcome of one compaction."""

    records_removed: int = 0
    records_retained: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    next_dirty_offset: int = 0
    undecodable: list[str] = field(default_factory=list)  # why batches were kept unchanged


@dataclass(slots=True)
class _CleanedGroup:
    originals: list[Segment]
    cleaned: Segment


@dataclass(slots=True)
class CompactionPlan:
    """The inputs of a compaction, which do not change while it executes, and its results."""

    log: PartitionLog
    segments: list[Segment]
    first_dirty_offset: int
    end_offset: int
    map_bytes: int
    now_ms: int
    producer_offsets: set[int]
    aborted: list[AbortedTransaction]
    later: list[Segment]  # sealed segments after the chosen ones
    outcomes: OutcomeCheck | None  # None if the aborted transactions were derived from the log
    report: CompactionReport = field(default_factory=CompactionReport)
    cleaned: list[_CleanedGroup] = field(default_factory=list)
    _aborted_ranges: AbortedRanges = field(init=False)
    _is_cancelled: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._aborted_ranges = AbortedRanges(self.aborted)

    def cancel(self) -> None:
        """Make `execute` stop soon with a `StorageError`. May be called from any thread."""
        self._is_cancelled = True

    def execute(self) -> None:
        """Read the segments and write the `.cleaned` files."""
        last_offsets, map_end = self._build_map()
        self.report.next_dirty_offset = map_end
        affected = [segment for segment in self.segments if segment.base_offset < map_end]
        for group in groups(affected, self.log.settings, self.end_offset):
            self._clean(group, last_offsets, map_end)
        if self.outcomes is not None:
            self._check_ends(self.outcomes, [*self.segments[len(affected) :], *self.later])

    def _compare(self, outcomes: OutcomeCheck, header: BatchHeader, batch: BatchView) -> None:
        if header.is_control:
            outcomes.note_marker(header, batch)
        else:
            outcomes.note(header, is_aborted=self._is_aborted(header))

    def _check_ends(self, outcomes: OutcomeCheck, segments: list[Segment]) -> None:
        """Read later segments for the markers of transactions that are still open. Discard the
        cleaned files if the list of aborted transactions is wrong."""
        for segment in segments:
            if not outcomes.has_open:
                break
            for header, batch in self._batches(segment, 0):
                if header.is_control:
                    outcomes.note_marker(header, batch)
        outcomes.end()
        if outcomes.is_refuted:
            self.cleaned.clear()
            self.report = CompactionReport(next_dirty_offset=self.first_dirty_offset)

    def _build_map(self) -> tuple[OffsetMap, int]:
        """Run pass 1. Return the last offset of each key in the dirty part, and the offset at
        which the map ends: where it became full, or the end of the dirty part."""
        dirty = [s for s in self.segments if s.end_offset > self.first_dirty_offset]
        dirty_bytes = sum(segment.size_bytes for segment in dirty)
        needed_bytes = dirty_bytes // SMALLEST_RECORD_BYTES * SLOT_SIZE
        last_offsets = OffsetMap(min(self.map_bytes, needed_bytes))
        for segment in dirty:
            for header, batch in self._batches(segment, self.first_dirty_offset):
                if header.is_control or self._is_aborted(header):
                    continue
                for record in self._records(batch, self.first_dirty_offset) or ():
                    if record.key is not None and not last_offsets.put(record.key, record.offset):
                        return last_offsets, record.offset
        return last_offsets, self.end_offset

    def _batches(
        self, segment: Segment, from_offset: int
    ) -> Iterator[tuple[BatchHeader, BatchView]]:
        try:
            mapped = self.log.files.map(segment.log_path)
        except FileNotFoundError:
            raise StorageError(
                f"{segment.log_path} was removed while it was being compacted"
            ) from None
        try:
            view = mapped.view
            for position, header in scan_strict(
                view_source(view),
                0,
                len(view),
                path=segment.log_path,
                next_offset=segment.base_offset,
                crc_from_offset=from_offset,
                end_offset=segment.end_offset,
            ):
                if mapped.is_cut():
                    reason = "the file was truncated while it was being compacted"
                    raise CorruptSegmentError(segment.log_path, position, reason)
                if self._is_cancelled:
                    raise StorageError(f"the compaction of {self.log.tp} was cancelled")
                if header.next_offset > from_offset:
                    yield header, BatchView(view, position)
        finally:
            mapped.close()

    def _is_aborted(self, header: BatchHeader) -> bool:
        return header.is_transactional and self._aborted_ranges.covers(
            header.producer_id, header.base_offset
        )

    def _records(self, batch: BatchView, from_offset: int) -> list[Record] | None:
        """Decode the records of a batch that the scanner has verified. Return None if they cannot
        be decoded."""
        try:
            limit_bytes = self.log.context.settings.decompressed_max_bytes
            return batch.records(*self.log.tp, from_offset, limit_bytes)
        except DataError as error:
            if str(error) not in self.report.undecodable:
                self.report.undecodable.append(str(error))
            return None

    def _clean(self, originals: list[Segment], last_offsets: OffsetMap, map_end: int) -> None:
        """Run pass 2 for one group of segments: write the retained batches to one new file."""
        files, settings = self.log.files, self.log.settings
        first = originals[0]
        log_path = first.log_path + CLEANED_SUFFIX
        for suffix in SWAPPED_SUFFIXES:
            files.remove(first.stem + suffix + CLEANED_SUFFIX)
        target = files.open_log(log_path)
        interval_bytes = settings.index_interval_bytes
        indexes = SegmentIndexes(
            files, first.stem, first.base_offset, interval_bytes, state=CLEANED_SUFFIX
        )
        for segment in originals:
            self.report.bytes_before += segment.size_bytes
            for header, batch in self._batches(segment, 0):
                if self.outcomes is not None and header.is_transactional:
                    self._compare(self.outcomes, header, batch)
                kept = self._filtered(header, batch, last_offsets, map_end)
                if kept is not None:
                    max_timestamp = BatchView(kept).header.max_timestamp
                    indexes.note(target.size, len(kept), header.last_offset, max_timestamp)
                    target.append([kept])
        indexes.finish()
        target.sync()
        ends = range(first.base_offset, originals[-1].end_offset)
        ended = [entry for entry in self.aborted if entry.last_offset in ends]
        if ended:
            files.append_to(
                first.stem + ABORT_INDEX_SUFFIX + CLEANED_SUFFIX,
                packed(sorted(ended, key=lambda entry: entry.last_offset)),
            )
        for suffix in SIDE_SUFFIXES:
            if files.exists(first.stem + suffix + CLEANED_SUFFIX):
                files.sync_file(first.stem + suffix + CLEANED_SUFFIX)
        self.report.bytes_after += target.size
        cleaned = Segment(first.stem, first.base_offset, target.size, indexes.largest)
        self.cleaned.append(_CleanedGroup(originals, cleaned))
        target.close()

    def _filtered(
        self,
        header: BatchHeader,
        batch: BatchView,
        last_offsets: OffsetMap,
        map_end: int,
    ) -> Buffer | None:
        """Return the batch without the records to remove, or None to remove the entire batch."""
        if header.is_control or not header.record_count:
            stays = header.is_control or header.last_offset in self.producer_offsets
            return batch.data() if stays else None
        records = self._records(batch, 0)
        if records is None:
            return batch.data()
        is_clean = header.next_offset <= map_end
        is_over = header.has_delete_horizon and header.base_timestamp <= self.now_ms
        tombstones_expire = is_over and is_clean
        kept = [
            record
            for record in records
            if record.key is None
            or (
                last_offsets.get(record.key) <= record.offset
                and not (record.value is None and tombstones_expire)
            )
        ]
        if self._is_aborted(header):
            kept = []
        self.report.records_removed += len(records) - len(kept)
        self.report.records_retained += len(kept)
        if not kept and header.last_offset not in self.producer_offsets:
            return None
        has_tombstone = any(r.value is None and r.key is not None for r in kept)
        needs_horizon = has_tombstone and is_clean and not header.has_delete_horizon
        if len(kept) == len(records) and not needs_horizon:
            return batch.data()
        horizon = self.now_ms + self.log.settings.delete_retention_ms if needs_horizon else None
        return filtered_batch(header, kept, delete_horizon_ms=horizon)

    def complete(self) -> Work[CompactionReport]:
        """Swap the cleaned segments in, or rebuild the list of aborted transactions if it was
        wrong. Called by the owner of the log; no other code may flush or truncate the partition
        until this finishes. If the partition is closed or deleted before that, the next change to
        one of its files raises a `StorageError`."""
        files, folder = self.log.files, self.log.folder
        if self.outcomes is not None and self.outcomes.is_refuted:
            self.log.report(f"{folder}: a transaction index was wrong and was rebuilt")
            yield from self.log.rebuild_aborted()
            return self.report
        yield self.log.persist_recovery_point
        self.log.open_active_file()  # the file name records the next offset
        yield partial(files.sync_dir, folder)
        for group in self.cleaned:
            first = group.originals[0]
            if any(segment not in self.log.segments.sealed for segment in group.originals):
                # An original was removed or truncated after planning, so discard the cleaned files.
                for suffix in SWAPPED_SUFFIXES:
                    files.remove(first.stem + suffix + CLEANED_SUFFIX)
                continue
            self.log.manifest.withdraw(first.base_offset, group.originals[-1].end_offset)
            yield self.log.manifest.sync
            yield partial(commit_swap, files, folder, first.base_offset)
            self._swap(group)
            yield partial(files.sync_dir, folder)
            self.log.claim([group.cleaned])
        return self.report

    def _swap(self, group: _CleanedGroup) -> None:
        """Swap one group without yielding, so that readers in this process see either the old files
        or the new one."""
        context = self.log.context
        due_ms = context.clock.now_ms() + self.log.settings.file_delete_delay_ms
        base_offset = group.originals[0].base_offset
        swap = partial(
            finish_swap,
            self.log.files,
            self.log.folder,
            group.originals,
            base_offset,
            context.remover,
            due_ms,
        )
        self.log.replace_segments(group.originals, group.cleaned, swap)


def plan_compaction(
    log: PartitionLog, first_dirty_offset: int, end_offset: int, map_bytes: int = DEFAULT_MAP_BYTES
) -> CompactionPlan | None:
    """Plan the compaction of all sealed segments between the log start offset and `end_offset`.
    Return None if there are none."""
    ends = [log.segments.end_of(number) for number in range(len(log.segments.sealed))]
    chosen = [
        segment
        for segment, end in zip(log.segments.sealed, ends, strict=True)
        if end <= end_offset and end > log.log_start_offset
    ]
    if not chosen:
        return None
    last = log.segments.sealed.index(chosen[-1])
    last_end = log.segments.end_of(last)
    # The check of outcomes does not read the active segment, so check the entries with markers in
    # it here. They are few: one for each transaction that began in an earlier segment.
    active_base = log.segments.active.base_offset
    aborted_in(log, active_base - 1, active_base)
    if first_dirty_offset > log.log_end_offset:
        first_dirty_offset = 0  # the checkpointed offset belongs to a different log
    return CompactionPlan(
        log=log,
        segments=chosen,
        first_dirty_offset=max(first_dirty_offset, chosen[0].base_offset),
        end_offset=last_end,
        map_bytes=map_bytes,
        now_ms=log.context.clock.now_ms(),
        producer_offsets=log.producers.last_offsets(),
        aborted=log.aborted.overlapping(chosen[0].base_offset, last_end),
        later=log.segments.sealed[last + 1 :],
        outcomes=None if log.aborted.is_derived else OutcomeCheck(),
    )


def plan_due_compaction(
    log: PartitionLog, first_dirty_offset: int, map_bytes: int = DEFAULT_MAP_BYTES
) -> CompactionPlan | None:
    """Plan the compaction of a log if one is due under its policy, else return None."""
    need = need_for_compaction(log, first_dirty_offset)
    if not need.is_due:
        return None
    return plan_compaction(log, first_dirty_offset, need.end_offset, map_bytes)


def compact_now(log: PartitionLog, map_bytes: int = DEFAULT_MAP_BYTES) -> CompactionReport:
    """Roll the active segment, then compact the log up to the last stable offset, regardless of the
    policy."""
    log.roll()
    log.flush()
    total = CompactionReport(next_dirty_offset=log.log_start_offset)
    while True:
        plan = plan_compaction(log, total.next_dirty_offset, log.last_stable_offset, map_bytes)
        if plan is None or total.next_dirty_offset >= plan.end_offset:
            return total
        plan.execute()
        report = run_inline(plan.complete())
        total.records_removed += report.records_removed
        total.records_retained = report.records_retained
        total.bytes_before = total.bytes_before or report.bytes_before
        total.bytes_after = report.bytes_after
        total.next_dirty_offset = report.next_dirty_offset
