"""Determines which batches a read_committed reader must skip.

The response to a read_committed fetch lists the aborted transactions that overlap it, as pairs of
producer id and first offset. They are applied to the batches in order:

    an aborted transaction starts   at the first batch that reaches its first offset
    it ends                         at that producer's ABORT marker
    in between                      all transactional batches of that producer are skipped

A producer may have several aborted transactions in one fetch, with committed ones between them, so
batches are skipped by transaction and not by producer. COMMIT markers have no effect here, because
committed transactions are not listed. Control batches are always skipped.
"""

from __future__ import annotations

from collections.abc import Iterable

from strandlog.model import NO_PRODUCER_ID
from strandlog.record.batch import BatchView
from strandlog.record.control import is_abort_marker


class AbortedBatches:
    """Decides for each batch of a fetch, in log order, whether to skip it."""

    __slots__ = ("_open", "_waiting")

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        """`aborted` contains a (producer id, first offset) pair for each aborted transaction."""
        # In descending order, so that the next transaction can be popped off the end.
        self._waiting = sorted(((first, producer) for producer, first in aborted), reverse=True)
        self._open: set[int] = set()

    def hides(self, view: BatchView) -> bool:
        """Return whether the next batch is a control batch or part of an aborted transaction.

        The batch must have passed `BatchView.check`.
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
