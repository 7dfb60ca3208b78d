"""The newest records of a topic, for somebody who looks at them as they come.

A tail begins at the end. Each look gives at most `limit` records: when more came since the last
one, the older are skipped and counted, so that whoever looks is always at the end, and a look costs
the same however much a topic takes.
"""

from __future__ import annotations

import asyncio

from msgspec import Struct

from strandlog.clock import stopwatch
from strandlog.errors import CorruptSegmentError
from strandlog.model import Record
from strandlog.server.http.context import Context
from strandlog.server.http.payloads import RecordShown, shown_record
from strandlog.server.http.pieces import Bounds, sift
from strandlog.server.verbs import fetch
from strandlog.storage.partition_log import PartitionLog

MOST_PARTITIONS = 20  # that one look reads from; the others have their turn at the next
PIECE_BYTES = 64 * 1024
MOST_BYTES = 4 * 1024 * 1024
MOST_SECONDS = 0.5


class RecordsTold(Struct):
    """Records that came since the last look, by time; `skipped` offsets went by unseen."""

    topic: str
    records: list[RecordShown]
    skipped: int


class Tail:
    """One look after the other at the end of a topic."""

    def __init__(
        self, context: Context, topic: str, partition: int | None, limit: int, show_bytes: int
    ) -> None:
        self._context = context
        self._topic = topic
        self._partition = partition
        self._limit = limit
        self._show_bytes = show_bytes
        self._next = {log.tp.partition: log.high_watermark for log in self._logs()}

    def _logs(self) -> list[PartitionLog]:
        catalog = self._context.broker.catalog
        if self._partition is not None:
            return [catalog.log(self._topic, self._partition)]
        return list(catalog.logs(self._topic))

    async def newest(self) -> RecordsTold:
        """What came since the last look. TopicNotFoundError when the topic is gone."""
        behind = []
        for log in self._logs():
            number = log.tp.partition
            # A partition that was not there before is new as a whole; one that begins anew, too.
            if self._next.setdefault(number, log.log_start_offset) > log.high_watermark:
                self._next[number] = log.log_start_offset
            if self._next[number] < log.high_watermark:
                behind.append(log)
        behind.sort(key=lambda log: self._next[log.tp.partition] - log.high_watermark)
        records: list[Record] = []
        skipped = 0
        reading = behind[:MOST_PARTITIONS]
        for log in reading:
            found, passed_over = await self._read(log, max(1, self._limit // len(reading)))
            records += found
            skipped += passed_over
        shown = await asyncio.to_thread(_shown, records, self._show_bytes) if records else []
        return RecordsTold(self._topic, shown, skipped)

    async def _read(self, log: PartitionLog, share: int) -> tuple[list[Record], int]:
        """The last records of a partition, and how many offsets were skipped for them."""
        number, end = log.tp.partition, log.high_watermark
        begin = max(self._next[number], log.log_start_offset, end - share)
        skipped = begin - self._next[number]
        try:
            data = await fetch(self._context.core, log.tp, begin, max_bytes=PIECE_BYTES)
        except CorruptSegmentError:
            self._next[number] = end  # whoever looks for records is told (`browse.py`)
            return [], end - begin + skipped
        deadline = stopwatch() + MOST_SECONDS
        batch_bytes = self._context.broker.settings.decompressed_max_bytes
        bounds = Bounds(end, share, MOST_BYTES, deadline, batch_bytes)
        piece = await asyncio.to_thread(sift, data, begin, None, bounds)
        self._next[number] = piece.next_offset if piece.next_offset > begin else end
        return piece.passed, skipped


def _shown(records: list[Record], show_bytes: int) -> list[RecordShown]:
    records.sort(key=lambda record: (record.timestamp, record.partition, record.offset))
    return [shown_record(record, "auto", show_bytes) for record in records]
