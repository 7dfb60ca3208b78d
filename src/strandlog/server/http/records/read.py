"""Reads one page of records from an offset, a time or the end, with an optional filter.

    one request   scans records until `limit` of them match, `max_bytes` are scanned, `max_ms` have
                  elapsed or the end is reached, whichever comes first
    the cursor    is the next offset of each partition. It is always returned; at the end of the
                  log, clients can use it later to read records written since

Partitions are read round-robin in small chunks, so that one partition does not fill the page alone;
a page is ordered by time. `last=N` scans the last N offsets of each partition, oldest first, and
returns the N newest matches; `limit` does not apply. If `max_bytes` or `max_ms` stops the scan, the
newest records are missing, and `is_at_end` is false.

With `committed`, the log ends at the last stable offset, and aborted transactions are omitted.

Bytes are read in the event loop; decoding, filtering and JSON encoding run in a thread, for a few
requests at a time. Corrupt data is reported in `problems` and skipped. Keys and values with a
schema are decoded after the search, unless `decode` is false; filters see bytes.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping
from typing import Annotated

from msgspec import Meta, Struct

from strandlog.broker.broker import Broker
from strandlog.broker.context import RequestContext
from strandlog.broker.reads.offset_lookup import NOT_FOUND
from strandlog.broker.topics.topic import PartitionState
from strandlog.clock import stopwatch
from strandlog.config.limits import (
    HTTP_PAGE_MAX_BYTES,
    HTTP_PAGE_MAX_PROBLEMS,
    HTTP_PAGE_MAX_RECORDS,
    HTTP_PARSED_VALUE_BYTES,
    HTTP_PARSED_VALUE_ITEMS,
)
from strandlog.errors import CorruptSegmentError, OffsetOutOfRangeError
from strandlog.model import IsolationLevel, Record, TopicPartition
from strandlog.server.background import as_future
from strandlog.server.http.problems import bad_request
from strandlog.server.http.records.filter import RecordFilter, Test
from strandlog.server.http.records.payload import (
    JsonRecord,
    PayloadFormat,
    json_records,
)
from strandlog.server.http.records.scan import ScanLimits, scan
from strandlog.server.http.routing import ApiRequest
from strandlog.server.http.state import HttpState
from strandlog.server.record_io import fetch
from strandlog.server.value_schemas import ValueSchemas

PIECE_BYTES = 256 * 1024
LEAST_PIECE_BYTES = 16 * 1024
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
    no more records yet. `uncommitted_offsets` is the number of offsets that a committed read does
    not reach, because a transaction before them is open."""

    records: list[JsonRecord]
    cursor: str
    is_at_end: bool
    uncommitted_offsets: int
    scanned_records: int
    scanned_bytes: int
    elapsed_ms: float
    problems: list[str]


async def read_records(state: HttpState, request: ApiRequest[RecordsQuery, None]) -> RecordsPage:
    query, context, topic = request.query, request.context, request.path["topic"]
    test = query.test()
    broker = state.broker
    broker.check_fetch(context)
    numbers: Iterable[int] = range(broker.topic(context, topic).partitions)
    if query.partition is not None:
        broker.partition_state(context, topic, query.partition)  # raises if it does not exist
        numbers = [query.partition]
    async with state.reads:
        partitions = [(topic, number) for number in numbers]
        await as_future(broker.make_visible(context, partitions))
        states = {number: broker.partition_state(context, topic, number) for number in numbers}
        begins = await _begins(state, context, states, query)
        chosen = {number: states[number] for number in begins}
        reader = _PageReader(broker, request, test, chosen, begins)
        await reader.run()
        return await reader.page(state.value_schemas)


async def _begins(
    state: HttpState,
    context: RequestContext,
    partitions: Mapping[int, PartitionState],
    query: RecordsQuery,
) -> dict[int, int]:
    """Return the start offset for each partition."""
    ways = (query.cursor, query.offset, query.time_ms, query.last)
    if sum(way is not None for way in ways) > 1:
        raise bad_request("give only one of cursor, offset, time_ms and last")
    if query.cursor is not None:
        return _parse_cursor(query.cursor, partitions)
    isolation = (
        IsolationLevel.READ_COMMITTED if query.committed else IsolationLevel.READ_UNCOMMITTED
    )
    begins = {}
    for number, each in partitions.items():
        start, end = each.start_offset, end_offset(each, query.committed)
        if query.offset is not None:
            if query.partition is not None and not start <= query.offset <= end:
                raise OffsetOutOfRangeError(each.topic, number, query.offset, start, end)
            start = min(max(start, query.offset), end)
        elif query.time_ms is not None:
            work = state.broker.list_offset(context, each.topic, number, query.time_ms, isolation)
            found = await state.decode("records by time", work)
            start = end if found == NOT_FOUND else found.offset
        elif query.last is not None:
            start = max(start, end - query.last)
        begins[number] = start
    return begins


def end_offset(partition: PartitionState, committed: bool) -> int:
    """Return the last stable offset for a committed read, otherwise the high watermark."""
    return partition.last_stable_offset if committed else partition.high_watermark


def _parse_cursor(text: str, partitions: Mapping[int, PartitionState]) -> dict[int, int]:
    begins = {}
    try:
        for part in text.split(","):
            number, _, offset = part.partition(":")
            begins[int(number)] = min(int(offset), LARGEST_OFFSET)
    except ValueError:
        raise bad_request(
            f"invalid cursor {text[:80]!r}: use one from a previous response"
        ) from None
    if not begins.keys() <= partitions.keys() or min(begins.values()) < 0:
        raise bad_request(f"cursor {text[:80]!r} does not belong to these partitions")
    return begins


class _PageReader:
    """Reads one page, alternating between the partitions."""

    def __init__(
        self,
        broker: Broker,
        request: ApiRequest[RecordsQuery, None],
        test: Test | None,
        partitions: Mapping[int, PartitionState],
        begins: Mapping[int, int],
    ) -> None:
        query = request.query
        self._broker = broker
        self._context = request.context
        self._topic = request.path["topic"]
        self._query = query
        self._test = test
        self._next = dict(begins)
        self._ends = {
            number: end_offset(each, query.committed) for number, each in partitions.items()
        }
        self._uncommitted_offsets = sum(
            each.high_watermark - self._ends[number] for number, each in partitions.items()
        )
        for number, each in partitions.items():  # a cursor may be out of range
            inside = max(self._next[number], each.start_offset)
            self._next[number] = min(inside, max(self._ends[number], each.start_offset))
        self._passed: list[Record] = []
        self._scanned_records = self._scanned_bytes = 0
        self._problems: list[str] = []
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
        if self._query.last is not None:
            return HTTP_PAGE_MAX_RECORDS
        left = self._query.limit - len(self._passed)
        return min(left, math.ceil(self._query.limit / count)) if left > 0 else 0

    def _is_over_limits(self) -> bool:
        return stopwatch() >= self._deadline or self._scanned_bytes >= self._query.max_bytes

    async def _read_piece(self, number: int, wanted: int, count: int) -> None:
        offset = self._next[number]
        share = (self._query.max_bytes - self._scanned_bytes) // count
        size = max(LEAST_PIECE_BYTES, min(PIECE_BYTES, share))
        end = self._ends[number]
        try:
            found = await fetch(
                self._broker,
                self._context,
                TopicPartition(self._topic, number),
                offset,
                max_bytes=size,
                committed=self._query.committed,
            )
        except CorruptSegmentError as damage:
            self._problems.append(str(damage))
            self._next[number] = max(offset, damage.resume_offset or end)
            return
        batch_bytes = self._broker.settings.decompressed_max_bytes
        bounds = ScanLimits(end, wanted, max(share, 1), self._deadline, batch_bytes)
        piece = await asyncio.to_thread(scan, found, offset, self._test, bounds)
        self._passed += piece.passed
        self._problems += map(str, piece.problems)
        if piece.not_searched:
            self._problems.append(
                _not_searched(TopicPartition(self._topic, number), piece.not_searched)
            )
        self._scanned_records += piece.scanned_records
        self._scanned_bytes += piece.scanned_bytes
        # If the scan made no progress, nothing more can be read now.
        self._next[number] = piece.next_offset if piece.next_offset > offset else end

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
            ",".join(f"{number}:{offset}" for number, offset in self._next.items()),
            all(self._next[number] >= end for number, end in self._ends.items()),
            self._uncommitted_offsets,
            self._scanned_records,
            self._scanned_bytes,
            round((stopwatch() - self._began) * 1000, 1),
            self._problems[:HTTP_PAGE_MAX_PROBLEMS],
        )


def _not_searched(tp: TopicPartition, offsets: list[int]) -> str:
    return (
        f"{tp}: {len(offsets)} values from offset {offsets[0]} on were not searched: `path` "
        f"applies to values of up to {HTTP_PARSED_VALUE_BYTES} bytes and "
        f"{HTTP_PARSED_VALUE_ITEMS} items"
    )


def _selected(records: list[Record], query: RecordsQuery) -> list[Record]:
    records.sort(key=lambda record: (record.timestamp, record.partition, record.offset))
    return records if query.last is None else records[-query.last :]
