"""Replays batches into the producer state and the list of aborted transactions.

A transaction starts with the first transactional batch of its producer and ends with a marker. The
marker says whether it was aborted. The transaction index is derived from the markers, so it can be
rebuilt from the log if it is lost or damaged (`rebuild_aborted`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from strandlog.errors import DataError
from strandlog.model import Buffer
from strandlog.record.batch import BatchView
from strandlog.record.batch_header import BatchHeader
from strandlog.record.control import ControlType, read_control
from strandlog.storage.files import Files
from strandlog.storage.partition.producer_state import UNKNOWN_TIME, ProducerState
from strandlog.storage.paths import ABORT_INDEX_SUFFIX
from strandlog.storage.problem_list import ProblemList
from strandlog.storage.segment.cache import scan_segment
from strandlog.storage.segment.index_check import IndexCheck
from strandlog.storage.segment.scan import NEVER, Batch, ByteSource, Damage, view_source
from strandlog.storage.segment.segment import Segment
from strandlog.storage.segment.transaction_index import (
    AbortedTransaction,
    AbortedTransactions,
    packed,
)

NAMES_SHOWN = 5  # maximum number of producers that one problem lists
_UNDECODABLE = "a transaction marker cannot be decoded"


def rebuild_aborted(
    files: Files,
    segments: Sequence[Segment],
    aborted: AbortedTransactions,
    problems: ProblemList,
    check: IndexCheck | None = None,
) -> None:
    """Rebuild the aborted transactions of a partition from its log, in memory and in the index
    files. Markers that cannot be decoded, and transactions that were open where the log is damaged,
    are added to `problems`: if they were aborted, their records are no longer hidden. A `check`
    compares the loaded indexes with the log, and keeps entries whose markers damage hides."""
    replay = AbortedReplay(files, check)
    for segment in segments:
        replay.read(segment, segment.size_bytes)
    replay.report_to(problems)
    found = replay.found if check is None else check.resolved(replay.found)
    store_aborted(files, segments, aborted, found)


class AbortedReplay:
    """Derives the aborted transactions of a partition from its segments, oldest first. A
    transaction that started before the oldest segment is treated as starting at its first batch
    that is still in the log."""

    def __init__(self, files: Files, check: IndexCheck | None = None) -> None:
        self._files = files
        self._check = check  # receives all batches, markers and damage, if not None
        self._producers = ProducerState()
        self._problems = ProblemList()
        self.found: list[AbortedTransaction] = []

    def read(self, segment: Segment, size_bytes: int) -> None:
        """Read the first `size_bytes` of the next segment. May be called from any thread."""
        if not size_bytes:
            return
        mapped = self._files.map(segment.log_path)
        try:
            source = view_source(mapped.view)
            self.replay(scan_segment(source, segment, size_bytes), source, segment.stem)
        finally:
            mapped.close()

    def replay(self, batches: Iterable[Batch | Damage], source: ByteSource, place: str) -> None:
        """Replay the batches of the next segment. `source` reads the file that contains them."""
        for item in batches:
            if isinstance(item, Damage):
                report_unknown_outcomes(self._producers, place, item, self._problems)
                self._note_damage(item.start_offset, item.end_offset)
                continue
            position, header = item
            data = source(position, header.size_bytes) if header.is_control else b""
            if data and not BatchView(data).is_intact():  # readers scan without checksums
                self._note_damage(header.base_offset, header.next_offset)
                continue
            ended = replay_or_report(self._producers, header, data, self._problems)
            if ended is not None:
                self.found.append(ended)
            if self._check is not None:
                self._check.note_batch(header)
                if header.is_control:
                    self._check.note_marker(header, ended, is_abort=_is_abort(data))

    def _note_damage(self, start_offset: int, end_offset: int | None) -> None:
        if self._check is not None:
            self._check.note_damage(start_offset, NEVER if end_offset is None else end_offset)

    def report_to(self, problems: ProblemList) -> None:
        """Report the markers that cannot be decoded, and the transactions that were open where the
        log is damaged."""
        for problem in self._problems:
            problems.report(problem)


def _is_abort(data: Buffer) -> bool:
    """Return whether a marker aborts its transaction. Return True if it cannot be decoded, because
    it may do so."""
    try:
        return read_control(BatchView(data)).kind is ControlType.ABORT
    except DataError:
        return True


def store_aborted(
    files: Files,
    segments: Sequence[Segment],
    aborted: AbortedTransactions,
    found: list[AbortedTransaction],
) -> None:
    """Replace the aborted transactions of a partition, in memory and in the index files that
    differ."""
    aborted.replace(found)
    # The last segment is included, because a start that loads a snapshot may not read its log.
    for segment in segments:
        data = packed(aborted.ending_in(segment.base_offset, segment.end_offset))
        path = segment.stem + ABORT_INDEX_SUFFIX
        try:
            is_right = files.read(path) == data
        except FileNotFoundError:
            is_right = not data
        if not is_right:
            files.replace(path, data)
    last = found[-1].last_offset if found else -1
    aborted.note_saved(max(segments[-1].base_offset, last + 1))


def report_unknown_outcomes(
    producers: ProducerState, place: str, damage: Damage, problems: ProblemList
) -> None:
    """Report the transactions that were open where the log is damaged, because the damage may have
    destroyed their markers. If it did, the next marker of a producer also applies to its records
    before the damage."""
    began = producers.open_transactions()
    if not began:
        return
    names = [f"producer {key} from offset {first}" for key, first in sorted(began.items())]
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    problems.report(
        f"{place}: the damage at offset {damage.start_offset} may include the end of "
        f"transactions: {', '.join(names[:NAMES_SHOWN])}{more}. Whether they were committed or "
        "aborted is unknown; the next marker of each producer will apply to them too",
        "damage that may include the end of transactions",
    )


def replay_or_report(
    producers: ProducerState, header: BatchHeader, data: Buffer, problems: ProblemList
) -> AbortedTransaction | None:
    """Do the same as `replay_batch`, but report a marker that cannot be decoded and skip it. Its
    transaction then stays open until the producer's next marker."""
    try:
        return replay_batch(producers, header, data)
    except DataError as error:
        problem = (
            f"{_UNDECODABLE}: {error}. Whether its transaction was committed or aborted is unknown"
        )
        problems.report(problem, _UNDECODABLE)
        return None


def replay_batch(
    producers: ProducerState, header: BatchHeader, data: Buffer
) -> AbortedTransaction | None:
    """Apply a batch of the log to the producer state. Return the transaction that it aborted, if
    any.

    `data` is the complete batch; it is used for control batches only. Raise `DataError` if a
    marker cannot be decoded.
    """
    if header.producer_id < 0:
        return None
    if header.is_control:
        return end_of_transaction(producers, header, BatchView(data), header.base_offset)
    producers.update(header, header.base_offset)
    return None


def end_of_transaction(
    producers: ProducerState,
    header: BatchHeader,
    batch: BatchView,
    offset: int,
    now_ms: int = UNKNOWN_TIME,
) -> AbortedTransaction | None:
    """Apply the marker at `offset` to the producer state. Return the transaction that it aborted,
    if any. Raise `DataError` if the marker cannot be decoded."""
    marker = read_control(batch)
    first_offset = producers.end_transaction(header, marker.coordinator_epoch, now_ms)
    if marker.kind is not ControlType.ABORT or first_offset is None:
        return None
    first_open = producers.first_open_transaction()
    stable_offset = offset + 1 if first_open is None else first_open
    return AbortedTransaction(header.producer_id, first_offset, offset, stable_offset)
