"""Which batches a reader of committed records leaves out.

A fetch of committed records comes with the aborted transactions that overlap it, as pairs of
producer id and first offset. They are applied while the batches go by, in order:

    an aborted transaction begins   with the first batch that reaches its first offset
    it ends                         with that producer's ABORT marker
    in between                      every transactional batch of that producer is left out

One producer may have several aborted transactions in a fetch, with committed ones between them, so
what counts is where each begins and ends, not who wrote it. COMMIT markers end nothing here: a
transaction that is committed was never listed. Control batches are for no reader at all.
"""

from __future__ import annotations

from collections.abc import Iterable

from strandlog.model import NO_PRODUCER_ID
from strandlog.record.batch import BatchView
from strandlog.record.control import is_abort_marker


class AbortedBatches:
    """Tells for one batch after the other whether it is left out."""

    __slots__ = ("_open", "_waiting")

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        """`aborted` are pairs of (producer id, first offset)."""
        # The one that begins first is last, where it is taken off.
        self._waiting = sorted(((first, producer) for producer, first in aborted), reverse=True)
        self._open: set[int] = set()

    def hides(self, view: BatchView) -> bool:
        """Whether this batch, the next of the log, is a marker or part of an aborted transaction.

        The batch must have been checked.
        """
        header = view.header
        producer_id = header.producer_id
        if producer_id == NO_PRODUCER_ID or not (self._waiting or self._open):
            return header.is_control
        while self._waiting and self._waiting[-1][0] <= header.last_offset:
            self._open.add(self._waiting.pop()[1])
        if header.is_control:
            if producer_id in self._open and is_abort_marker(view):
                self._open.discard(producer_id)
            return True
        return header.is_transactional and producer_id in self._open
