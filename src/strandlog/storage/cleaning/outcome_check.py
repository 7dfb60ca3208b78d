"""Compares the aborted transactions that a compaction relies on with the markers in the log.

A wrong transaction index would make a compaction remove committed records, or keep aborted ones and
remove the committed records that they seem to supersede. The index has checksums only where the
manifest or a snapshot stores one (transaction_index.py), and most entries are compared with the log
only when a reader needs them. So the compaction compares while it reads: the transactional batches
of a producer up to its next marker are one transaction, and the marker says how it ended. A marker
that cannot be decoded is skipped, as in replay.py.
"""

from __future__ import annotations

from strandlog.errors import DataError
from strandlog.record.batch import BatchView
from strandlog.record.batch_header import BatchHeader
from strandlog.record.control import ControlType, read_control


class OutcomeCheck:
    """The transactions that are open at one position of the log, and whether the outcome of any
    earlier transaction contradicts the index."""

    __slots__ = ("_said", "is_refuted")

    def __init__(self) -> None:
        # What the index says about the batches of each open transaction, by producer id.
        self._said: dict[int, set[bool]] = {}
        self.is_refuted = False

    @property
    def has_open(self) -> bool:
        """Whether there is an open transaction, whose marker has not been read yet."""
        return bool(self._said)

    def note(self, header: BatchHeader, *, is_aborted: bool) -> None:
        """Record what the index says about a batch with records of a transaction."""
        self._said.setdefault(header.producer_id, set()).add(is_aborted)

    def note_marker(self, header: BatchHeader, batch: BatchView) -> None:
        """Compare the index with a marker."""
        if header.producer_id not in self._said:
            return
        try:
            is_aborted = read_control(batch).kind is ControlType.ABORT
        except DataError:
            return
        self.is_refuted |= self._said.pop(header.producer_id) != {is_aborted}

    def end(self) -> None:
        """Check the transactions whose markers are not in the sealed segments: the index must say
        the same about all batches of one transaction."""
        self.is_refuted |= any(len(said) > 1 for said in self._said.values())
