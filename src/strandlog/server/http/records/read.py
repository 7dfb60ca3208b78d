"""Reads one page of records from an offset, a time or the end, with an optional filter.

    one request   scans records until `limit` of them match, `max_bytes` are scanned, `max_ms` have
                  elapsed or the end is reached, whichever comes first
    the cursor    is the topic id and the next offset of each partition. Every page contains one; at
                  the end of the log, clients can use it later to read the records written since
                  then. If the topic has been recreated since then, the cursor is rejected

Partitions are read round-robin in small chunks, so that one partition does not fill the page alone;
a page is ordered by time.

`last=N` returns the N newest matches; `limit` does not apply. It scans each partition backwards
from its end until N records match or the beginning is reached. If `max_bytes` or `max_ms` stops the
scan, older matches may be missing, and `is_missing_older` is true. The cursor points to the end of
the log.

Records may be deleted while a page is read. The page then continues at the new start of the log.

With `committed`, the log ends at the last stable offset, and aborted transactions are omitted.

Bytes are read in the event loop; decoding, filtering and JSON encoding run in a thread, for a few
requests at a time. Corrupt data is reported in `problems` and skipped. Keys and values with a
schema are decoded after the search, unless `decode` is false; filters see the encoded bytes.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import Annotated

from msgspec import Meta, Struct

from strandlog.broker.broker import Broker
from strandlog.broker.context import RequestContext
from strandlog.broker.reads.fetch import FetchPartitionData
from strandlog.broker.reads.offset_lookup import NOT_FOUND
from strandlog.broker.topics.topic import PartitionState, Topic
from strandlog.clock import stopwatch
from strandlog.config.limits.http import (
    HTTP_PAGE_MAX_BYTES,
    HTTP_PAGE_MAX_PROBLEMS,
    HTTP_PAGE_MAX_RECORDS,
    HTTP_PARSED_VALUE_BYTES,
    HTTP_PARSED_VALUE_ITEMS,
)
from strandlog.config.units import counted
from strandlog.errors import CorruptSegmentError, OffsetOutOfRangeError, UnknownTopicIdError
from strandlog.model import Buffer, IsolationLevel, Record, TopicPartition
from strandlog.record.batch import iter_batches
from strandlog.record.batch_header import end_offset_of
from strandlog.server.background import as_future
from strandlog.server.http.problems import bad_request
from strandlog.server.http.records.filter import RecordFilter, Test
from strandlog.server.http.records.payload import (
    JsonRecord,
    PayloadFormat,
    json_records,
)
from strandlog.server.http.records.scan import ScanLimits, ScanResult, scan, scan_back
from strandlog.server.http.routing import ApiRequest
from strandlog.server.http.state import HttpState
from strandlog.server.record_io import fetch
from strandlog.server.value_schemas import ValueSchemas

PIECE_BYTES = 256 * 1024
LEAST_PIECE_BYTES = 16 * 1024
PIECE_GROWTH = 4  # how much larger the next piece of a backward read may be than the last one
MIB = 1024 * 1024
LARGEST_OFFSET = 2**63 - 1

Offset = Annotated[int, Meta(ge=0, le=LARGEST_OFFSET)]


class RecordsQuery(RecordFilter, forbid_unknown_fields=True):
    """Where to start (cursor, offset, time_ms or last; by default the beginning of the log), the
    filter, and limits on the amount of work."""

    partition: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    cursor: str | None = None
    offset: Offset | None = None
    time_ms: Offset | None = None
    last: Annotated[int, Meta(ge=1, le=HTTP_PAGE_MAX_RECORDS)] | None = None
    limit: Annotated[int, Meta(ge=1, le=HTTP_PAGE_MAX_RECORDS)] = 100
    committed: bool = True
    format: PayloadFormat = "auto"
    decode: bool = True
    max_value_bytes: Annotated[int, Meta(ge=1, le=8 * MIB)] = 64 * 1024
    max_bytes: Annotated[int, Meta(ge=1, le=32 * MIB)] = 8 * MIB
    max_ms: Annotated[int, Meta(ge=1, le=5000)] = 1000


class RecordsPage(Struct):
    """Records ordered by time, and the cursor for the next page. `is_at_end` is true if there are
    no more records yet. `is_missing_older` is true if a limit stopped a read of the `last` records,
    so that older ones may be missing. `uncommitted_offsets` is the number of offsets that a
    committed read does not reach, because a transaction before them is open."""

    records: list[JsonRecord]
    cursor: str
    is_at_end: bool
    is_missing_older: bool
    uncommitted_offsets: int
    scanned_records: int
    scanned_bytes: int
    elapsed_ms: float
    problems: list[str]


async def read_records(state: HttpState, request: ApiRequest[RecordsQuery, None]) -> RecordsPage:
    query, context, name = request.query, request.context, request.path["topic"]
    test = query.test()
    broker = state.broker
    broker.check_fetch(context)
    topic = broker.topic(context, name)
    numbers: Iterable[int] = range(topic.partitions)
    if query.partition is not None:
        broker.partition_state(context, name, query.partition)  # raises if it does not exist
        numbers = [query.partition]
    async with state.reads:
        partitions = [(name, number) for number in numbers]
        await as_future(broker.make_visible(context, partitions))
        states = {number: broker.partition_state(context, name, number) for number in numbers}
        begins = await _begins(state, context, topic, states, query)
        chosen = {number: states[number] for number in begins}
        kind = _PageReader if query.last is None else _NewestReader
        reader = kind(broker, request, topic, test, chosen, begins)
        await reader.run()
        return await reader.page(state.value_schemas)


async def _begins(
    state: HttpState,
    context: RequestContext,
    topic: Topic,
    partitions: Mapping[int, PartitionState],
    query: RecordsQuery,
) -> dict[int, int]:
    """Return the start offset for each partition."""
    ways = (query.cursor, query.offset, query.time_ms, query.last)
    if sum(way is not None for way in ways) > 1:
        raise bad_request("give only one of cursor, offset, time_ms and last")
    if query.cursor is not None:
        return _parse_cursor(query.cursor, topic, partitions)
    isolation = IsolationLevel.of(committed=query.committed)
    begins = {}
    for number, each in partitions.items():
        start, end = each.start_offset, each.readable_end(committed=query.committed)
        if query.offset is not None:
            if query.partition is not None and not start <= query.offset <= end:
                raise OffsetOutOfRangeError(each.topic, number, query.offset, start, end)
            start = min(max(start, query.offset), end)
        elif query.time_ms is not None:
            work = state.broker.list_offset(context, each.topic, number, query.time_ms, isolation)
            found = await state.decode("records by time", work)
            start = end if found == NOT_FOUND else found.offset
        elif query.last is not None:
            start = end
        begins[number] = start
    return begins


def _parse_cursor(
    text: str, topic: Topic, partitions: Mapping[int, PartitionState]
) -> dict[int, int]:
    topic_id, _, offsets = text.partition("/")
    begins = {}
    try:
        for part in offsets.split(","):
            number, _, offset = part.partition(":")
            begins[int(number)] = min(int(offset), LARGEST_OFFSET)
    except ValueError:
        raise bad_request(
            f"invalid cursor {text[:80]!r}: use one from a previous response"
        ) from None
    if topic_id != topic.topic_id:
        raise UnknownTopicIdError(
            f"the cursor does not belong to the current topic {topic.name!r}, which may have been "
            "deleted and recreated; read from the beginning, from an offset or from a time"
        )
    if not begins.keys() <= partitions.keys() or min(begins.values()) < 0:
        raise bad_request(f"cursor {text[:80]!r} does not belong to these partitions")
    return begins


class _PageReader:
    """Reads one page, alternating between the partitions."""

    def __init__(
        self,
        broker: Broker,
        request: ApiRequest[RecordsQuery, None],
        topic: Topic,
        test: Test | None,
        partitions: Mapping[int, PartitionState],
        begins: Mapping[int, int],
    ) -> None:
        query = request.query
        self._broker = broker
        self._context = request.context
        self._topic = topic
        self._query = query
        self._test = test
        self._next = dict(begins)
        self._ends = {
            number: each.readable_end(committed=query.committed)
            for number, each in partitions.items()
        }
        self._uncommitted_offsets = sum(
            each.high_watermark - self._ends[number] for number, each in partitions.items()
        )
        for number, each in partitions.items():  # a cursor may be out of range
            inside = max(self._next[number], each.start_offset)
            self._next[number] = min(inside, max(self._ends[number], each.start_offset))
        self._passed: list[Record] = []
        self._scanned_records = self._scanned_bytes = 0
        self._problems: dict[str, None] = {}  # in order; a backward read may find one repeatedly
        self._is_missing_older = False
        self._began = stopwatch()
        self._deadline = self._began + query.max_ms / 1000

    async def run(self) -> None:
        """Scan until the page is full or a limit is reached."""
        while open_ones := [n for n, end in self._ends.items() if self._next[n] < end]:
            for number in open_ones:
                wanted = self._wanted(len(open_ones))
                if not wanted or self._is_over_limits():
                    return
                await self._read_piece(number, wanted, len(open_ones))

    def _wanted(self, count: int) -> int:
        """Return how many records to take from the next partition."""
        left = self._query.limit - len(self._passed)
        return min(left, math.ceil(self._query.limit / count)) if left > 0 else 0

    def _is_over_limits(self) -> bool:
        return stopwatch() >= self._deadline or self._scanned_bytes >= self._query.max_bytes

    async def _read_piece(self, number: int, wanted: int, count: int) -> None:
        offset = self._next[number]
        end = self._ends[number]
        share = self._share(count)
        try:
            found = await self._fetch(number, offset, share)
        except CorruptSegmentError as damage:
            self._problems[str(damage)] = None
            self._next[number] = max(offset, damage.resume_offset or end)
            return
        except OffsetOutOfRangeError as error:
            if error.start_offset <= offset:
                raise
            self._next[number] = error.start_offset
            return
        bounds = self._bounds(end, wanted, share)
        piece = await asyncio.to_thread(scan, found, offset, self._test, bounds)
        self._take(number, piece)
        # If the scan made no progress, nothing more can be read now.
        self._next[number] = piece.next_offset if piece.next_offset > offset else end

    def _share(self, count: int) -> int:
        """Return how many bytes may be scanned in one of `count` partitions."""
        return (self._query.max_bytes - self._scanned_bytes) // count

    async def _fetch(self, number: int, offset: int, share: int) -> FetchPartitionData:
        return await fetch(
            self._broker,
            self._context,
            self._topic,
            number,
            offset,
            max_bytes=max(LEAST_PIECE_BYTES, min(PIECE_BYTES, share)),
            committed=self._query.committed,
        )

    def _bounds(self, end: int, wanted: int, share: int) -> ScanLimits:
        batch_bytes = self._broker.settings.decompressed_max_bytes
        return ScanLimits(end, wanted, max(share, 1), self._deadline, batch_bytes)

    def _take(self, number: int, piece: ScanResult) -> None:
        self._passed += piece.passed
        self._problems.update(dict.fromkeys(map(str, piece.problems)))
        if piece.not_searched:
            tp = TopicPartition(self._topic.name, number)
            self._problems[_not_searched(tp, piece.not_searched)] = None
        self._scanned_records += piece.scanned_records
        self._scanned_bytes += piece.scanned_bytes

    async def page(self, schemas: ValueSchemas) -> RecordsPage:
        """Return the page that `run` has read."""
        query = self._query
        passed = _selected(self._passed, query)
        decoder = schemas.page(self._context, passed) if query.decode else None
        records = await asyncio.to_thread(
            json_records, passed, query.format, query.max_value_bytes, HTTP_PAGE_MAX_BYTES, decoder
        )
        return RecordsPage(
            records,
            self._cursor(),
            all(self._next[number] >= end for number, end in self._ends.items()),
            self._is_missing_older,
            self._uncommitted_offsets,
            self._scanned_records,
            self._scanned_bytes,
            round((stopwatch() - self._began) * 1000, 1),
            list(self._problems)[:HTTP_PAGE_MAX_PROBLEMS],
        )

    def _cursor(self) -> str:
        offsets = ",".join(f"{number}:{offset}" for number, offset in self._next.items())
        return f"{self._topic.topic_id}/{offsets}"


class _NewestReader(_PageReader):
    """Reads the newest records, alternating between the partitions.

    Each piece of a partition is a range of offsets that ends where the previous piece began. A
    fetch reads forward from an offset, and the size of the batches is not known in advance. If a
    fetch does not reach the end of its range, the reader moves the start of the range closer to the
    end and fetches again; it leaves the batches fetched before to a later piece.
    """

    def __init__(
        self,
        broker: Broker,
        request: ApiRequest[RecordsQuery, None],
        topic: Topic,
        test: Test | None,
        partitions: Mapping[int, PartitionState],
        begins: Mapping[int, int],
    ) -> None:
        super().__init__(broker, request, topic, test, partitions, begins)
        assert request.query.last is not None
        self._last = request.query.last
        self._starts = {number: each.start_offset for number, each in partitions.items()}
        self._reached = dict(self._next)  # all offsets from here on have been read
        self._steps = dict.fromkeys(partitions, self._last)  # offsets of the next piece
        self._left = dict.fromkeys(partitions, self._last)  # matching records to find

    async def run(self) -> None:
        """Scan backwards until enough records match or a limit is reached."""
        while open_ones := [
            n for n, left in self._left.items() if left and self._reached[n] > self._starts[n]
        ]:
            for place, number in enumerate(open_ones):
                if self._is_over_limits():
                    self._is_missing_older = True
                    return
                await self._read_piece(number, self._left[number], len(open_ones) - place)

    async def _read_piece(self, number: int, wanted: int, count: int) -> None:
        share = self._share(count)
        end = self._reached[number]
        state = self._broker.partition_state(self._context, self._topic.name, number)
        self._starts[number] = state.start_offset  # retention may have deleted segments
        begin = max(state.start_offset, end - self._steps[number])
        size = 0
        while True:
            begin, found = await self._fetch_up_to(number, begin, end, share)
            self._reached[number] = begin
            if found is None:
                break
            bounds = self._bounds(end, wanted, share)
            piece = await asyncio.to_thread(scan_back, found, begin, self._test, bounds)
            self._take(number, piece)
            if piece.is_complete:
                self._left[number] -= len(piece.passed)
                self._reached[number] = piece.next_offset
                size = _size_below(found.data, end)
                break
            begin = piece.next_offset
            if self._is_over_limits():
                self._reached[number] = end  # nothing in this range was scanned
                break
        growth = PIECE_GROWTH if not size else min(PIECE_GROWTH, max(1, PIECE_BYTES // size))
        self._steps[number] = (end - self._reached[number]) * growth

    async def _fetch_up_to(
        self, number: int, begin: int, end: int, share: int
    ) -> tuple[int, FetchPartitionData | None]:
        """Return the start of a range that ends at `end` and starts at `begin` or later, and
        fetched batches that cover the range, or None if it contains no intact batch."""
        while begin < end:
            try:
                found = await self._fetch(number, begin, share)
            except CorruptSegmentError as damage:
                self._problems[str(damage)] = None
                if damage.resume_offset is None or not begin < damage.resume_offset < end:
                    return begin, None
                begin = damage.resume_offset
                continue
            except OffsetOutOfRangeError as error:
                if error.start_offset <= begin:
                    raise
                self._starts[number] = begin = error.start_offset
                continue
            if not len(found.data):
                return begin, None
            fetched_end = end_offset_of(found.data)
            if fetched_end >= end or fetched_end <= begin:
                return begin, found
            # Assume that the rest of the range has batches of the same size.
            fitting = max(1, (fetched_end - begin) * 3 // 4)
            begin = max(fetched_end, end - fitting, (begin + end) // 2)
        return begin, None


def _size_below(data: Buffer, end: int) -> int:
    """Return the size of the batches that start below an offset."""
    batches = takewhile(lambda batch: batch.header.base_offset < end, iter_batches(data))
    return sum(batch.size_bytes for batch in batches)


def _not_searched(tp: TopicPartition, offsets: list[int]) -> str:
    return (
        f"{tp}: `path` did not search {counted(len(offsets), 'value')} from offset {min(offsets)} "
        f"on: it applies to values of up to {HTTP_PARSED_VALUE_BYTES} bytes and "
        f"{HTTP_PARSED_VALUE_ITEMS} items"
    )


def _selected(records: list[Record], query: RecordsQuery) -> list[Record]:
    records.sort(key=lambda record: (record.timestamp, record.partition, record.offset))
    return records if query.last is None else records[-query.last :]
