"""Compares transaction indexes that have no checksum with the log.

The manifest stores the checksums of the transaction indexes of sealed segments. If some of these
checksums are lost, nothing shows that the indexes are complete. So recovery and readers of the
folder derive the aborted transactions of the segments from the log (partition/replay.py) and
compare them with the loaded entries. If this leaves a doubt (`is_in_doubt`), recovery compares the
whole log. A loaded entry can be correct although it differs from the derived one, because the
replay did not read records that were removed, are damaged or are in an earlier segment:

    no derived entry   retention or compaction removed all records of the transaction, or they are
                       in an earlier segment; the marker was read
    earlier offsets    compaction or retention removed the first batches of this transaction, or of
                       the oldest one that was open when it ended
    damage             damage hides the marker of this transaction or of the producer's previous
                       one, so the replay does not know where it ended; the loaded entry is used
    damage after the   damage may hide the marker of the oldest transaction that was open when this
    stable offset      one ended; the last stable offset of the entry is accepted

Every other difference makes the index wrong.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from strandlog.record.batch_header import BatchHeader
from strandlog.storage.segment.scan import NEVER
from strandlog.storage.segment.transaction_index import AbortedTransaction


class IndexCheck:
    """The entries that were loaded from the indexes, and the findings of a replay of the log."""

    def __init__(self, loaded: Iterable[AbortedTransaction]) -> None:
        self._loaded = {entry.last_offset: entry for entry in loaded}
        named = {offset for entry in self._loaded.values() for offset in entry[1:]}
        self._named = sorted(named)
        self._present: set[int] = set()  # offsets in entries that are in a batch of the log
        self._damage: list[tuple[int, int]] = []  # damaged ranges of offsets, in order
        self._markers: dict[int, int] = {}  # the last marker read of each producer
        self._derived: dict[int, AbortedTransaction] = {}
        self._bounds: dict[int, int] = {}  # offset after the producer's previous marker
        self._empty: set[tuple[int, int]] = set()  # aborting markers without records

    def note_damage(self, start_offset: int, end_offset: int) -> None:
        """Record a damaged range of the log."""
        self._damage.append((start_offset, end_offset))

    def note_batch(self, header: BatchHeader) -> None:
        """Record an intact batch of the log."""
        self._present.update(self._named_in(header.base_offset, header.next_offset))

    def note_marker(
        self, header: BatchHeader, ended: AbortedTransaction | None, *, is_abort: bool
    ) -> None:
        """Record a marker, and the transaction that it aborted, if any."""
        offset, producer_id = header.base_offset, header.producer_id
        if ended is not None:
            self._derived[offset] = ended
            self._bounds[offset] = self._markers.get(producer_id, -1) + 1
        elif is_abort:
            self._empty.add((producer_id, offset))
        self._markers[producer_id] = offset

    def _named_in(self, offset: int, end_offset: int) -> list[int]:
        start = bisect_left(self._named, offset)
        return self._named[start : bisect_left(self._named, end_offset)]

    def resolved(self, derived: Iterable[AbortedTransaction]) -> list[AbortedTransaction]:
        """Return the derived entries, replaced by the loaded ones where damage hides a marker."""
        entries = {entry.last_offset: entry for entry in derived}
        entries |= {last: e for last, e in self._loaded.items() if self._is_hidden(e)}
        return [entries[last] for last in sorted(entries)]

    def _is_hidden(self, loaded: AbortedTransaction) -> bool:
        """Return whether damage hides the marker of a loaded transaction, or the producer's
        previous marker."""
        derived = self._derived.get(loaded.last_offset)
        if derived is None:
            return self._is_damaged(loaded.last_offset, loaded.last_offset + 1)
        return loaded.producer_id == derived.producer_id and self._is_damaged(
            derived.first_offset, loaded.first_offset
        )

    def _is_damaged(self, offset: int, end_offset: int) -> bool:
        return any(start < end_offset and offset < end for start, end in self._damage)

    @property
    def is_in_doubt(self) -> bool:
        """Whether the indexes contradict the log, or may do so: damage, or an aborting marker whose
        records were not read, can only be judged with earlier segments."""
        return (
            bool(self._damage)
            or any(offset not in self._loaded for _, offset in self._empty)
            or bool(self.wrong_markers(NEVER))
        )

    def wrong_markers(self, trusted_offset: int) -> list[int]:
        """Return the marker offsets at which the indexes contradict the log. Entries were loaded
        up to `trusted_offset`."""
        offsets = self._loaded.keys() | {last for last in self._derived if last < trusted_offset}
        return sorted(last for last in offsets if not self._is_right(last))

    def _is_right(self, last_offset: int) -> bool:
        loaded, derived = self._loaded.get(last_offset), self._derived.get(last_offset)
        if loaded is None:
            return False
        if self._is_hidden(loaded):
            return True
        if derived is None:
            return (loaded.producer_id, last_offset) in self._empty
        return (
            loaded.producer_id == derived.producer_id
            and loaded.first_offset >= self._bounds[last_offset]
            and self._may_be(loaded.first_offset, derived.first_offset)
            and (
                self._may_be(loaded.last_stable_offset, derived.last_stable_offset)
                or self._is_damaged(derived.last_stable_offset, last_offset)
            )
        )

    def _may_be(self, loaded: int, derived: int) -> bool:
        """Return whether a loaded offset equals the derived one, or is an earlier offset that the
        log no longer contains."""
        return loaded == derived or (loaded < derived and loaded not in self._present)
