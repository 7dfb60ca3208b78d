"""Reads the raw batches of a range of offsets from the files of a folder, in chunks.

If a read makes no progress, either the partition ends within the range, which is an error, or the
owner of the folder is replacing a file. In the second case the read is repeated; `Patience` decides
for how long, counted from the last read that made progress.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from strandlog.errors import OffsetOutOfRangeError
from strandlog.model import Buffer, TopicPartition

if TYPE_CHECKING:
    from strandlog.client.readonly.log import ReadOnlySource
    from strandlog.storage.segment.transaction_index import AbortedTransaction


class RawChunk(NamedTuple):
    """Raw batches, and the (producer id, first offset) of the aborted transactions in them."""

    data: Buffer
    aborted: Sequence[tuple[int, int]]


class Patience(Protocol):
    """Decides how long to wait for a file that is being replaced."""

    def deadline_ms(self) -> int:
        """Return when to give up if no more data arrives from now on."""

    def wait(self, deadline_ms: int, reason: str) -> None:
        """Pause; raise an error with the reason if the deadline has passed."""


def read_range(
    source: ReadOnlySource,
    tp: TopicPartition,
    start: int,
    end: int,
    *,
    aborted: Sequence[AbortedTransaction],
    chunk_bytes: int,
    patience: Patience,
) -> Iterator[RawChunk]:
    """Yield the batches that cover [start, end) in chunks, each with the aborted transactions that
    overlap with it. The first batch can begin before `start`, and the last chunk can contain
    batches after `end`."""
    offset = start
    deadline_ms = patience.deadline_ms()
    while offset < end:
        fetched = source.fetch_raw(tp, offset, chunk_bytes)
        if len(fetched.data):
            overlapping = [
                (entry.producer_id, entry.first_offset)
                for entry in aborted
                if entry.last_offset >= offset and entry.first_offset < fetched.next_offset
            ]
            yield RawChunk(fetched.data, overlapping)
        if fetched.next_offset > offset:
            offset = fetched.next_offset
            deadline_ms = patience.deadline_ms()
            continue
        first, last = source.offset_range(tp)
        if last <= offset:
            raise OffsetOutOfRangeError(*tp, offset, first, last)
        patience.wait(deadline_ms, f"cannot read {tp} at offset {offset}")
