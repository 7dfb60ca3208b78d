"""Derives the last stable offset and the aborted transactions of a partition from its files.

The newest intact producer snapshot contains the transactions that were open at its offset, and
later batches are replayed. The transaction indexes contain the transactions that were aborted
before that offset; checksums in the manifest and the snapshot prove that an index is complete. The
writer takes a snapshot with the first flush after 16 MiB, so usually little is scanned. If the
checksums of some indexes are lost, these indexes are compared with the log. If that leaves a doubt,
the whole log is scanned instead.

Damage after the snapshot may hide the marker of a transaction that is open there, so it is unknown
whether that transaction was aborted. The last stable offset then stays at the start of the
transaction until the owner writes a newer snapshot, and `CommittedView.damage` says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from strandlog.errors import CorruptSegmentError, DataError
from strandlog.record.batch import BatchView
from strandlog.storage.files import Files
from strandlog.storage.partition.producer_state import ProducerState, index_mark
from strandlog.storage.partition.replay import AbortedReplay, replay_batch
from strandlog.storage.paths import ABORT_INDEX_SUFFIX, SNAPSHOT_SUFFIX, segment_offsets
from strandlog.storage.readonly.view import PartitionView
from strandlog.storage.segment.index_check import IndexCheck
from strandlog.storage.segment.manifest import Claim, read_manifest, unchecked_runs
from strandlog.storage.segment.scan import NEVER, Damage
from strandlog.storage.segment.segment import Segment, stem_of
from strandlog.storage.segment.transaction_index import (
    AbortedTransaction,
    IndexMark,
    is_whole,
    unpacked,
)


class CommittedView(NamedTuple):
    """The offset up to which committed records may be read, and the transactions to omit.

    `open` lists the producer id and the first offset of each open transaction.
    `damage` is the error for a reader that has reached the last stable offset, if it cannot advance
    because damage may hide a marker.
    """

    last_stable_offset: int
    aborted: list[AbortedTransaction]
    damage: CorruptSegmentError | None = None
    open: Sequence[tuple[int, int]] = ()


def committed_view(files: Files, view: PartitionView) -> CommittedView:
    """Compute the committed view of a partition as of the last refresh of `view`."""
    stable_offset = view.end_offset
    producers, known_offset, aborted = _known(files, view)
    damage: CorruptSegmentError | None = None
    for segment in view.segments:
        for item in view.batches(segment, known_offset):
            if isinstance(item, Damage):
                if item.end_offset is None or item.end_offset > known_offset:
                    stable_offset = _limited(stable_offset, producers)
                    damage = damage or _hidden(segment, item.position, item.start_offset, producers)
                continue
            position, header = item
            if header.base_offset < known_offset:
                continue
            data = b""
            if header.is_control:
                data = files.read_at(segment.log_path, position, header.size_bytes)
                if not BatchView(data).is_intact():
                    stable_offset = _limited(stable_offset, producers)
                    start_offset = header.base_offset
                    damage = damage or _hidden(segment, position, start_offset, producers)
                    continue
            ended = replay_batch(producers, header, data)
            if ended is not None:
                aborted.append(ended)
    stable_offset = max(_limited(stable_offset, producers), view.start_offset)
    if stable_offset >= view.end_offset:
        return CommittedView(view.end_offset, aborted)
    open_transactions = tuple(producers.open_transactions().items())
    return CommittedView(stable_offset, aborted, damage, open_transactions)


def _known(
    files: Files, view: PartitionView
) -> tuple[ProducerState, int, list[AbortedTransaction]]:
    """Return the producer state at the offset of a snapshot, that offset, and the aborted
    transactions with markers below it."""
    manifest = read_manifest(files, view.folder)
    producers, known_offset, mark = _newest_snapshot(files, view)
    bases = [segment.base_offset for segment in view.segments]
    unchecked = unchecked_runs(manifest, bases, known_offset)
    try:
        aborted = _indexed(files, view, known_offset, mark, manifest.claims)
    except DataError:
        if not unchecked:
            raise
        return ProducerState(), 0, []
    if any(_is_in_doubt(files, view, run, aborted) for run in unchecked):
        return ProducerState(), 0, []
    return producers, known_offset, aborted


def _hidden(
    segment: Segment, position: int, start_offset: int, producers: ProducerState
) -> CorruptSegmentError | None:
    """Return the error for damage that may hide the marker of an open transaction, or None if no
    transaction is open."""
    first_open = producers.first_open_transaction()
    if first_open is None:
        return None
    reason = (
        f"the damage may hide whether the transaction that starts at offset {first_open} was "
        "committed; reading continues once the owner of the folder has written a newer snapshot"
    )
    return CorruptSegmentError(segment.log_path, position, reason, start_offset - 1)


def _limited(stable_offset: int, producers: ProducerState) -> int:
    first_open = producers.first_open_transaction()
    return stable_offset if first_open is None else min(stable_offset, first_open)


def _newest_snapshot(
    files: Files, view: PartitionView
) -> tuple[ProducerState, int, IndexMark | None]:
    """Load the newest intact producer snapshot within the view. Return its state, its offset and
    its checksum of the transaction index."""
    offsets = segment_offsets(files.list_dir(view.folder), SNAPSHOT_SUFFIX)
    for offset in reversed(offsets):
        if offset > view.end_offset:
            continue
        try:
            data = files.read(stem_of(view.folder, offset) + SNAPSHOT_SUFFIX)
        except FileNotFoundError:
            continue  # the owner has replaced it with a newer one
        state = ProducerState.from_snapshot(data)
        if state is not None:
            return state, offset, index_mark(data)
    return ProducerState(), 0, None


def _indexed(
    files: Files,
    view: PartitionView,
    end_offset: int,
    mark: IndexMark | None,
    claims: Sequence[Claim],
) -> list[AbortedTransaction]:
    """Read the aborted transactions whose markers are below `end_offset` from the indexes. Raise
    `DataError` if an index is damaged."""
    found: list[AbortedTransaction] = []
    claim_of = {claim.base_offset: claim for claim in claims}
    ends = [*(segment.base_offset for segment in view.segments[1:]), NEVER]
    for segment, segment_end in zip(view.segments, ends, strict=False):
        if segment.base_offset >= end_offset:
            break
        try:
            data = files.read(segment.stem + ABORT_INDEX_SUFFIX)
        except FileNotFoundError:
            data = b""
        entries = unpacked(data, segment.base_offset, segment_end, end_offset)
        if entries is None or not is_whole(
            entries, segment.base_offset, end_offset, claim_of.get(segment.base_offset), mark
        ):
            raise DataError(
                f"{segment.stem}{ABORT_INDEX_SUFFIX} is damaged; the owner rebuilds it at its next "
                f"start"
            )
        found += entries
    return found


def _is_in_doubt(
    files: Files, view: PartitionView, run: range, aborted: Sequence[AbortedTransaction]
) -> bool:
    """Return whether the logs of adjacent sealed segments contradict their transaction indexes, or
    may do so."""
    first, end = view.segments[run.start].base_offset, view.segments[run.stop].base_offset
    check = IndexCheck(entry for entry in aborted if first <= entry.last_offset < end)
    replay = AbortedReplay(files, check)
    for segment in view.segments[run.start : run.stop]:
        source = partial(files.read_at, segment.log_path)
        replay.replay(view.batches(segment, segment.base_offset), source, segment.stem)
    return check.is_in_doubt
