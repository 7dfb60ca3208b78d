"""Reads raw batches by offset up to the high watermark or the last stable offset.

A reader sees offsets from the log start offset up to the high watermark. With `unflushed=True`,
which only the owner uses, it sees everything up to the log end offset; with `committed=True`,
everything up to the last stable offset, and `aborted_in` returns the aborted transactions to skip.
A read from there up to the log end offset returns nothing; other offsets are out of range. A read
that starts inside a batch returns the complete batch; one that starts in a gap returns the next
batch. `read` returns bytes of a single segment; callers continue at the offset after the last batch
returned.

`read` raises `CorruptSegmentError` at a damaged batch. The error's `resume_offset` is the offset of
the next intact batch or, if the segment contains none, the end of the part that the reader can see.

`read` verifies only the first batch, because most callers verify each batch that they decode.
Network clients may not (librdkafka does not by default), so their reads pass `verify`: bytes that
this process did not write are then verified before they are returned for the first time. Records
appended since the start are not verified again, unless another program truncated their segment.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from strandlog.errors import CorruptSegmentError, DataError
from strandlog.model import Buffer
from strandlog.record.batch import BatchView
from strandlog.record.batch_header import HEADER_SIZE, read_header
from strandlog.record.control import ControlType, read_control
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.segment.read_plan import EMPTY, ReadPlan, locate_batch, source_and_entry
from strandlog.storage.segment.scan import batches_of_read
from strandlog.storage.segment.segment import ActiveSegment, Segment
from strandlog.storage.segment.transaction_index import AbortedTransaction
from strandlog.storage.work import run_inline

CHECKED_BYTES = 4 * 1024 * 1024
CHECKED_BATCHES = 1000


class CheckBudget:
    """How much data one request may verify, to limit the time it takes on the event loop."""

    __slots__ = ("batches", "size_bytes")

    def __init__(self) -> None:
        self.size_bytes = CHECKED_BYTES
        self.batches = CHECKED_BATCHES


def read_plan(
    log: PartitionLog,
    offset: int,
    max_bytes: int,
    *,
    unflushed: bool = False,
    committed: bool = False,
) -> ReadPlan | None:
    """Return the plan for a read from an offset, or None if there is nothing to read yet."""
    log.check_offset(offset, log.log_end_offset)
    end_offset = log.log_end_offset if unflushed else log.high_watermark
    if committed:
        end_offset = log.last_stable_offset
    if offset >= end_offset:
        return None
    segment, next_base = log.segments.at(offset)
    end_position = segment.size_bytes
    if not unflushed:
        end_position = (
            log.last_stable_position if committed else log.high_watermark_position
        ).end_in(segment)
    end_offset = end_offset if next_base is None else min(end_offset, next_base)
    return plan_in(log, segment, offset, max_bytes, end_position, end_offset)


def plan_in(
    log: PartitionLog,
    segment: Segment,
    offset: int,
    max_bytes: int,
    end_position: int,
    end_offset: int,
) -> ReadPlan:
    """Return the plan for a read in one segment, up to the given end position and offset."""
    source, entry = source_and_entry(log.cache, segment, offset)
    return ReadPlan(
        source,
        segment.log_path,
        segment.base_offset,
        entry,
        end_position,
        offset,
        max_bytes,
        end_offset=end_offset,
        has_gaps=not isinstance(segment, ActiveSegment),
        is_cut=segment.is_cut,
    )


def plan_in_whole(log: PartitionLog, segment: Segment, offset: int) -> ReadPlan:
    """Return the plan for reading one batch of a segment, even above the high watermark."""
    return plan_in(log, segment, offset, 0, segment.size_bytes, end_offset_of(log, segment))


def end_offset_of(log: PartitionLog, segment: Segment) -> int:
    return log.log_end_offset if isinstance(segment, ActiveSegment) else segment.end_offset


def read(
    log: PartitionLog,
    offset: int,
    max_bytes: int,
    *,
    unflushed: bool = False,
    committed: bool = False,
    verify: CheckBudget | None = None,
) -> Buffer:
    """Return bytes starting with the batch that contains `offset`, or the next one after a gap.
    Return an empty buffer if there is nothing to read yet.

    Without `verify`, only the first batch is verified. With `verify`, every batch that this process
    has neither written nor verified before is verified too. Batches after the one that exhausts the
    budget are left to the next read, so the first batch is always returned.
    """
    plan = read_plan(log, offset, max_bytes, unflushed=unflushed, committed=committed)
    while plan is not None:
        data = plan.execute(None if verify is None else partial(_limit_at, log, plan, verify))
        read_done(log, plan)
        if data:
            return data if verify is None else _intact_part(log, plan, data, verify)
        plan = plan_after(log, plan, unflushed=unflushed, committed=committed)
    return EMPTY


def read_batches(
    log: PartitionLog, offset: int, read_bytes: int
) -> Iterator[BatchView | CorruptSegmentError]:
    """Yield every batch from an offset to the log end offset, and an error in place of each
    damaged range. For the owner of the log only. Reads `read_bytes` at a time."""
    while offset < log.log_end_offset:
        start = offset
        try:
            data = read(log, offset, read_bytes, unflushed=True)
            if not data:
                return
            for batch in batches_of_read(
                data, path=str(log.tp), offset=offset, end_offset=log.log_end_offset
            ):
                yield batch
                offset = batch.header.next_offset
        except CorruptSegmentError as damage:
            if offset > start:
                continue  # only a read that starts at the damage finds its end
            yield damage
            if damage.resume_offset is None or damage.resume_offset <= offset:
                return
            offset = damage.resume_offset


def _limit_at(log: PartitionLog, plan: ReadPlan, budget: CheckBudget, position: int) -> int:
    """Return how many bytes to read from `position`: the maximum if they need no verification, else
    the bytes that were verified before or that the budget covers, whichever is more. The rest would
    be read only to be discarded."""
    if not _needs_check(log, plan, position):
        return plan.max_bytes
    segment, _ = log.segments.at(plan.offset)
    checked_start, checked_end = segment.checked
    known_bytes = checked_end - position if checked_start <= position else 0
    return max(known_bytes, budget.size_bytes)


def _needs_check(log: PartitionLog, plan: ReadPlan, position: int) -> bool:
    """Return whether the bytes at a position were written before this process opened the log, or
    are in a segment that has lost bytes."""
    if plan.is_cut:
        return True
    base, inherited_end = log.inherited_position
    return plan.base_offset < base or (plan.base_offset == base and position < inherited_end)


def _intact_part(log: PartitionLog, plan: ReadPlan, data: Buffer, budget: CheckBudget) -> Buffer:
    """Return the data if it needs no verification. Otherwise return its complete batches before the
    first damaged one, up to the batch that exhausts the budget. Raise `CorruptSegmentError` if the
    first batch is damaged."""
    start = plan.position
    if not _needs_check(log, plan, start):
        return data
    segment, _ = log.segments.at(plan.offset)
    checked_start, checked_end = segment.checked
    if checked_start <= start and start + len(data) <= checked_end:
        return data
    size = 0
    try:
        for batch in batches_of_read(
            data, path=plan.path, offset=plan.offset, end_offset=plan.end_offset
        ):
            size += batch.header.size_bytes
            budget.batches -= 1
            budget.size_bytes -= batch.header.size_bytes
            if budget.size_bytes <= 0 or budget.batches <= 0:
                break
    except CorruptSegmentError:
        if not size:
            raise
        # The next read starts at the damage, and its error says where the log continues.
    if checked_start <= start <= checked_end:
        segment.checked = (checked_start, max(checked_end, start + size))
    elif size > checked_end - checked_start:
        segment.checked = (start, start + size)
    intact = memoryview(data)[:size]
    if isinstance(segment, ActiveSegment) and size < len(data) // 2:
        return bytes(intact)  # a view would keep all of the data in memory
    return intact


def plan_after(
    log: PartitionLog, plan: ReadPlan, *, unflushed: bool = False, committed: bool = False
) -> ReadPlan | None:
    """Return the plan that continues in the next segment after `plan` found no batch. Return None
    if no visible segment follows."""
    _, next_base = log.segments.at(plan.offset)
    end_offset = log.log_end_offset if unflushed else log.high_watermark
    if next_base is None or next_base >= end_offset:
        return None
    return read_plan(log, next_base, plan.max_bytes, unflushed=unflushed, committed=committed)


def read_done(log: PartitionLog, plan: ReadPlan) -> None:
    """Rebuild the index of a segment if the executed plan found that the log contradicts it. The
    offset index of the active segment is emptied instead."""
    if not plan.index_is_wrong:
        return
    segment, _ = log.segments.at(plan.offset)
    log.report(f"an index of {segment.log_path} was wrong and was rebuilt")
    if isinstance(segment, ActiveSegment):
        segment.indexes.offsets.keep(0)
    else:
        log.cache.rebuild(segment)


def aborted_in(log: PartitionLog, offset: int, end_offset: int) -> list[AbortedTransaction]:
    """Return the aborted transactions that overlap a range of offsets, ordered by first offset.
    Entries from an index file are first compared with the log; if one is wrong, all are rebuilt in
    this thread."""
    found = verified_aborted(log, offset, end_offset)
    if found is None:
        run_inline(log.rebuild_aborted())
        found = log.aborted.overlapping(offset, end_offset)
    return found


def verified_aborted(
    log: PartitionLog, offset: int, end_offset: int
) -> list[AbortedTransaction] | None:
    """Do the same as `aborted_in`, but return None if an entry is wrong. The caller then rebuilds
    all entries (`PartitionLog.rebuild_aborted`)."""
    found = log.aborted.overlapping(offset, end_offset)
    unverified = [entry for entry in found if entry.last_offset in log.aborted.unverified]
    for entry in unverified:
        if not _is_aborted(log, entry):
            log.report(f"{log.folder}: a transaction index was wrong and was rebuilt")
            return None
        log.aborted.unverified.discard(entry.last_offset)
    return found


def _is_aborted(log: PartitionLog, entry: AbortedTransaction) -> bool:
    """Return whether the log contains this transaction: its marker and, unless that batch was
    removed, its first batch. If the log is damaged there, the entry is assumed to be correct."""
    if not log.log_start_offset <= entry.last_offset < log.log_end_offset:
        return False
    try:
        return _is_in_log(log, entry)
    except CorruptSegmentError as damage:
        log.report(str(damage))
        return True


def _is_in_log(log: PartitionLog, entry: AbortedTransaction) -> bool:
    marker = _batch_at(log, entry.last_offset)
    if marker is None or not _aborts(marker, entry):
        return False
    if entry.first_offset < log.log_start_offset:
        return True
    batch = _batch_at(log, entry.first_offset)
    if batch is None or batch.header.base_offset > entry.first_offset:
        return True  # removed by compaction
    first = batch.header
    return first.base_offset == entry.first_offset and first.producer_id == entry.producer_id


def _aborts(marker: BatchView, entry: AbortedTransaction) -> bool:
    header = marker.header
    is_at = (header.base_offset, header.producer_id) == (entry.last_offset, entry.producer_id)
    if not is_at or not header.is_control:
        return False
    try:
        return read_control(marker).kind is ControlType.ABORT
    except DataError:  # its outcome is unknown, so keep its records hidden
        return True


def _batch_at(log: PartitionLog, offset: int) -> BatchView | None:
    segment, _ = log.segments.at(offset)
    position = locate_batch(log.cache, segment, offset)
    if position is None:
        return None
    source, _ = source_and_entry(log.cache, segment, offset)
    header = read_header(source(position, HEADER_SIZE))
    return BatchView(source(position, header.size_bytes))
