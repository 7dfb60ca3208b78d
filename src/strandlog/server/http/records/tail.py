"""The newest records of a topic, for somebody who looks at them as they come.

A tail begins at the end. Each look gives at most `limit` records: when more came since the last
one, the older are skipped and counted, so that whoever looks is always at the end, and a look costs
the same however much a topic takes. Through a filter a look goes over more, for what passes may be
rare; what it does not get to is skipped and counted as well.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from msgspec import Struct

from strandlog.clock import stopwatch
from strandlog.errors import CorruptSegmentError
from strandlog.model import Record
from strandlog.server.awaiting import visible
from strandlog.server.http.records.filter import Test
from strandlog.server.http.records.payload import JsonRecord, PayloadFormat, json_records
from strandlog.server.http.records.scan import ScanLimits, ScanResult, scan
from strandlog.server.http.state import HttpState
from strandlog.server.record_io import fetch
from strandlog.storage.partition.log import PartitionLog

MAX_PARTITIONS = 20  # that one look reads from; the others have their turn at the next
PIECE_BYTES = 64 * 1024
SEARCH_BYTES = 1024 * 1024
MAX_BYTES = 4 * 1024 * 1024
MAX_SECONDS = 0.5
MAX_SHOWN_BYTES = 256 * 1024  # of one look, as JSON: a client may leave it unread


class TailOptions(NamedTuple):
    """What a tail shows: of one partition or all, what passes, so many of them, in which form."""

    partition: int | None
    test: Test | None
    limit: int
    format: PayloadFormat
    max_value_bytes: int


class RecordsEvent(Struct):
    """Records that came since the last look, by time; `skipped` offsets went by unseen."""

    topic: str
    records: list[JsonRecord]
    skipped: int


class Tail:
    """One look after the other at the end of a topic."""

    def __init__(self, state: HttpState, topic: str, options: TailOptions) -> None:
        self._state = state
        self._topic = topic
        self._options = options
        self._next: dict[int, int] = {}
        self.go_to_end()

    def go_to_end(self) -> None:
        """Show only what comes from now on."""
        self._next = {log.tp.partition: log.high_watermark for log in self.logs()}

    def logs(self) -> list[PartitionLog]:
        """The partitions it shows."""
        catalog = self._state.broker.catalog
        if self._options.partition is not None:
            return [catalog.log(self._topic, self._options.partition)]
        return list(catalog.logs(self._topic))

    async def newest(self) -> RecordsEvent:
        """What came since the last look. TopicNotFoundError when the topic is gone."""
        await visible(self._state.core, self.logs())
        behind = []
        for log in self.logs():
            number = log.tp.partition
            # A partition that was not there before is new as a whole; one that begins anew, too.
            if self._next.setdefault(number, log.log_start_offset) > log.high_watermark:
                self._next[number] = log.log_start_offset
            if self._next[number] < log.high_watermark:
                behind.append(log)
        behind.sort(key=lambda log: self._next[log.tp.partition] - log.high_watermark)
        shown: list[JsonRecord] = []
        skipped = 0
        reading = behind[:MAX_PARTITIONS]
        for log in reading:
            async with self._state.tails:
                found, passed_over = await self._read(log, len(reading))
            shown += found
            skipped += passed_over
        shown.sort(key=lambda record: (record.timestamp_ms, record.partition, record.offset))
        return RecordsEvent(self._topic, shown, skipped)

    async def _read(self, log: PartitionLog, count: int) -> tuple[list[JsonRecord], int]:
        """The last records of one of `count` partitions, and how many offsets were skipped."""
        share = max(1, self._options.limit // count)
        number, end = log.tp.partition, log.high_watermark
        test = self._options.test
        begin = max(self._next[number], log.log_start_offset)
        if test is None:
            begin = max(begin, end - share)
        skipped = begin - self._next[number]
        size = PIECE_BYTES if test is None else SEARCH_BYTES
        try:
            data = await fetch(self._state.core, log.tp, begin, max_bytes=size)
        except CorruptSegmentError:
            self._next[number] = end  # whoever looks for records is told (`browse.py`)
            return [], end - begin + skipped
        deadline = stopwatch() + MAX_SECONDS
        batch_bytes = self._state.broker.settings.decompressed_max_bytes
        bounds = ScanLimits(end, share, MAX_BYTES, deadline, batch_bytes)

        def read() -> tuple[ScanResult, list[JsonRecord]]:
            piece = scan(data, begin, test, bounds)
            return piece, self._shown(piece.passed, count)

        piece, shown = await asyncio.to_thread(read)
        skipped += sum(bad.last_offset - bad.offset + 1 for bad in piece.problems)
        skipped += len(piece.not_searched)
        stand = piece.next_offset if piece.next_offset > begin else end
        if test is not None:
            skipped += end - stand
            stand = end
        self._next[number] = stand
        return shown, skipped

    def _shown(self, records: list[Record], count: int) -> list[JsonRecord]:
        options = self._options
        return json_records(
            records, options.format, options.max_value_bytes, MAX_SHOWN_BYTES // count
        )


async def begin_tail(state: HttpState, topic: str, options: TailOptions) -> Tail:
    """A tail behind all that was written before this call."""
    tail = Tail(state, topic, options)
    await visible(state.core, tail.logs())
    tail.go_to_end()
    return tail
