"""Returns the newest records of a topic since the last call.

A tail starts at the end of the log. Each call returns at most `limit` records (or one per
partition that it reads, if that is more): if more were written since the last call, the older ones
are skipped and counted. So the tail stays close to the end, and the cost of a call does not depend
on how busy the topic is. With a filter, a call scans more records, because matches may be rare;
records that it does not reach are also skipped and counted. If the topic was deleted and recreated
since the last call, the tail reads the new topic from its start.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from msgspec import Struct

from strandlog.broker.access.permission import READ, TOPIC
from strandlog.broker.context import RequestContext
from strandlog.broker.topics.topic import PartitionState, Topic
from strandlog.clock import stopwatch
from strandlog.errors import CorruptSegmentError, OffsetOutOfRangeError, UnknownTopicIdError
from strandlog.model import Record
from strandlog.server.background import as_future
from strandlog.server.http.metrics.snapshot import topic_partitions
from strandlog.server.http.records.filter import Test
from strandlog.server.http.records.payload import JsonRecord, PayloadFormat, json_records
from strandlog.server.http.records.scan import ScanLimits, scan
from strandlog.server.http.state import HttpState
from strandlog.server.record_io import fetch

MAX_PARTITIONS = 20  # partitions that one call reads; later calls read the others
PIECE_BYTES = 64 * 1024
SEARCH_BYTES = 1024 * 1024
MAX_BYTES = 4 * 1024 * 1024
MAX_SECONDS = 0.5
MAX_SHOWN_BYTES = 256 * 1024  # JSON per call; it stays in memory until the client reads it


class TailOptions(NamedTuple):
    """The partition (None: all), isolation, filter, limits and format of a tail."""

    partition: int | None
    committed: bool
    test: Test | None
    limit: int
    format: PayloadFormat
    max_value_bytes: int


class RecordsEvent(Struct):
    """The newest records since the last event, ordered by time, and the number of skipped
    offsets."""

    topic: str
    records: list[JsonRecord]
    skipped: int


class Tail:
    """Follows a topic: each call of `newest` returns the newest records since the last call."""

    def __init__(
        self, state: HttpState, context: RequestContext, topic: Topic, options: TailOptions
    ) -> None:
        self._state = state
        self._broker = state.broker
        self._context = context
        self._topic = topic
        self._options = options
        self._next: dict[int, int] = {}

    async def go_to_end(self) -> None:
        """Skip everything that was written before this call."""
        self._next = {each.partition: self._end(each) for each in await self._partitions()}

    def _end(self, partition: PartitionState) -> int:
        return partition.readable_end(committed=self._options.committed)

    async def _partitions(self) -> list[PartitionState]:
        """Wait until everything written before this call is visible; return the partitions."""
        broker, context, topic = self._broker, self._context, self._topic.name
        number = self._options.partition
        if number is not None:
            broker.partition_state(context, topic, number)  # raises if the partition does not exist
            await as_future(broker.make_visible(context, [(topic, number)]))
            return [broker.partition_state(context, topic, number)]
        numbers = range(self._topic.partitions)
        await as_future(broker.make_visible(context, [(topic, each) for each in numbers]))
        return await topic_partitions(broker, context, topic)

    async def newest(self) -> RecordsEvent:
        """Return the newest records since the last call, or none while a quota is exceeded.

        Raise TopicNotFoundError if the topic was deleted.
        """
        if self._broker.fetch_delay_ms(self._context):  # the user exceeds its quota
            return RecordsEvent(self._topic.name, [], 0)
        topic = self._broker.topic(self._context, self._topic.name)
        if topic.topic_id != self._topic.topic_id:
            self._next.clear()
        self._topic = topic
        behind = []
        for each in await self._partitions():
            number, end = each.partition, self._end(each)
            # A new partition is read from its start.
            if self._next.setdefault(number, each.start_offset) < end:
                behind.append(each)
        behind.sort(key=lambda each: self._next[each.partition] - self._end(each))
        shown: list[JsonRecord] = []
        skipped = 0
        reading = behind[:MAX_PARTITIONS]
        for each in reading:
            async with self._state.tails:
                found, passed_over = await self._read(each, len(reading))
            shown += found
            skipped += passed_over
        shown.sort(key=lambda record: (record.timestamp_ms, record.partition, record.offset))
        return RecordsEvent(self._topic.name, shown, skipped)

    async def _read(self, partition: PartitionState, count: int) -> tuple[list[JsonRecord], int]:
        """Return the newest records of a partition, and the number of skipped offsets.

        `count` is the number of partitions that share the limits.
        """
        share = max(1, self._options.limit // count)
        number, end = partition.partition, self._end(partition)
        test = self._options.test
        begin = max(self._next[number], partition.start_offset)
        if test is None:
            begin = max(begin, end - share)
        skipped = begin - self._next[number]
        size = PIECE_BYTES if test is None else SEARCH_BYTES
        try:
            data = await fetch(
                self._broker,
                self._context,
                self._topic,
                number,
                begin,
                max_bytes=size,
                committed=self._options.committed,
            )
        except CorruptSegmentError:
            self._next[number] = end  # `read.py` reports the corruption
            return [], end - begin + skipped
        except UnknownTopicIdError:  # recreated since this call began; the next call notices
            return [], 0
        except OffsetOutOfRangeError as error:
            if error.start_offset <= begin:
                raise
            return [], 0  # deleted since this call began; the next call skips the gap
        deadline = stopwatch() + MAX_SECONDS
        batch_bytes = self._broker.settings.decompressed_max_bytes
        bounds = ScanLimits(end, share, MAX_BYTES, deadline, batch_bytes)

        piece = await asyncio.to_thread(scan, data, begin, test, bounds)
        shown = await self._shown(piece.passed, count)
        skipped += sum(bad.last_offset - bad.offset + 1 for bad in piece.problems)
        skipped += len(piece.not_searched)
        stand = piece.next_offset if piece.next_offset > begin else end
        if test is not None:
            skipped += end - stand
            stand = end
        self._next[number] = stand
        return shown, skipped

    async def _shown(self, records: list[Record], count: int) -> list[JsonRecord]:
        options = self._options
        decoder = self._state.value_schemas.page(self._context, records)
        return await asyncio.to_thread(
            json_records,
            records,
            options.format,
            options.max_value_bytes,
            MAX_SHOWN_BYTES // count,
            decoder,
        )


async def begin_tail(
    state: HttpState, context: RequestContext, topic: str, options: TailOptions
) -> Tail:
    """Return a tail that starts after everything that was written before this call."""
    state.broker.check_access(context, READ.on(TOPIC), topic)
    tail = Tail(state, context, state.broker.topic(context, topic), options)
    await tail.go_to_end()
    return tail
