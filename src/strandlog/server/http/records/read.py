"""Records out over HTTP: from an offset, a time or the end on, through a filter.

    one request   looks at records until it has `limit` that pass, or has looked at `max_bytes`, or
                  `max_ms` are over; whichever comes first
    the cursor    where to go on, for each partition. It is always there: at the end it serves to
                  ask again later

Partitions are read in turn, a piece each, so that a page has something of all; a page is ordered by
time. `last` gives the newest ones of what the last offsets of each partition hold. Bytes are read
in the event loop; unpacking, filtering and writing as JSON happen in a thread, for a few requests
at the same time. Damage is told in `problems` and passed over.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct

from strandlog.clock import stopwatch
from strandlog.errors import CorruptSegmentError, OffsetOutOfRangeError
from strandlog.model import Record
from strandlog.server.awaiting import decoded, visible
from strandlog.server.core import ServerCore
from strandlog.server.http.problems import bad_request
from strandlog.server.http.records.filter import RecordFilter, Test
from strandlog.server.http.records.payload import (
    MAX_PARSED_BYTES,
    MAX_PARSED_ITEMS,
    JsonRecord,
    PayloadFormat,
    json_records,
)
from strandlog.server.http.records.scan import ScanLimits, scan
from strandlog.server.http.routing import ApiRequest
from strandlog.server.http.state import HttpState
from strandlog.server.record_io import fetch
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.partition.time_lookup import finding_timestamp

MAX_RECORDS = 1000
MAX_PROBLEMS = 100
MAX_PAGE_BYTES = 16 * 1024 * 1024  # of keys, values and headers, as JSON
PIECE_BYTES = 256 * 1024
LEAST_PIECE_BYTES = 16 * 1024
MIB = 1024 * 1024
LARGEST_OFFSET = 2**63 - 1

Offset = Annotated[int, Meta(ge=0, le=LARGEST_OFFSET)]


class RecordsQuery(RecordFilter, forbid_unknown_fields=True):
    """Where to begin (cursor, offset, time_ms or last; else at the beginning), what passes, and how
    much work to do for it."""

    partition: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    cursor: str | None = None
    offset: Offset | None = None
    time_ms: Offset | None = None
    last: Annotated[int, Meta(ge=1, le=MAX_RECORDS)] | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_RECORDS)] = 100
    committed: bool = False
    format: PayloadFormat = "auto"
    max_value_bytes: Annotated[int, Meta(ge=1, le=8 * MIB)] = 64 * 1024
    max_bytes: Annotated[int, Meta(ge=1, le=32 * MIB)] = 8 * MIB
    max_ms: Annotated[int, Meta(ge=1, le=5000)] = 1000


class RecordsPage(Struct):
    """Some records by time, and where to go on; `is_at_end` when nothing is left for now."""

    records: list[JsonRecord]
    cursor: str
    is_at_end: bool
    scanned_records: int
    scanned_bytes: int
    elapsed_ms: float
    problems: list[str]


async def read_records(state: HttpState, request: ApiRequest[RecordsQuery, None]) -> RecordsPage:
    query = request.query
    test = query.test()
    logs = _logs(state, request.path["topic"], query.partition)
    async with state.reads:
        await visible(state.core, logs.values())
        begins = await _begins(state.core, logs, query)
        look = _Look(state, query, test, {number: logs[number] for number in begins}, begins)
        await look.run()
        return await look.page()


def _logs(state: HttpState, topic: str, partition: int | None) -> dict[int, PartitionLog]:
    catalog = state.broker.catalog
    if partition is not None:
        return {partition: catalog.log(topic, partition)}
    return dict(enumerate(catalog.logs(topic)))


async def _begins(
    core: ServerCore, logs: Mapping[int, PartitionLog], query: RecordsQuery
) -> dict[int, int]:
    """Where each partition is read from."""
    ways = (query.cursor, query.offset, query.time_ms, query.last)
    if sum(way is not None for way in ways) > 1:
        raise bad_request("give one of cursor, offset, time_ms and last")
    if query.cursor is not None:
        return _parse_cursor(query.cursor, logs)
    begins = {}
    for number, log in logs.items():
        start, end = log.log_start_offset, _end(log, query.committed)
        if query.offset is not None:
            if query.partition is not None and not start <= query.offset <= end:
                raise OffsetOutOfRangeError(*log.tp, query.offset, start, end)
            start = min(max(start, query.offset), end)
        elif query.time_ms is not None:
            steps = finding_timestamp(log, query.time_ms)
            found = await decoded(core, "records by time", steps)
            start = end if found is None else found.offset
        elif query.last is not None:
            start = max(start, end - query.last)
        begins[number] = start
    return begins


def _end(log: PartitionLog, committed: bool) -> int:
    return log.last_stable_offset if committed else log.high_watermark


def _parse_cursor(text: str, logs: Mapping[int, PartitionLog]) -> dict[int, int]:
    begins = {}
    try:
        for part in text.split(","):
            number, _, offset = part.partition(":")
            begins[int(number)] = min(int(offset), LARGEST_OFFSET)
    except ValueError:
        raise bad_request(
            f"invalid cursor {text[:80]!r}: use one from a previous response"
        ) from None
    if not begins.keys() <= logs.keys() or min(begins.values()) < 0:
        raise bad_request(f"cursor {text[:80]!r} does not belong to these partitions")
    return begins


class _Look:
    """One walk over some partitions."""

    def __init__(
        self,
        state: HttpState,
        query: RecordsQuery,
        test: Test | None,
        logs: Mapping[int, PartitionLog],
        begins: Mapping[int, int],
    ) -> None:
        self._core = state.core
        self._query = query
        self._test = test
        self._logs = logs
        self._next = dict(begins)
        self._ends = {number: _end(log, query.committed) for number, log in logs.items()}
        for number, log in logs.items():  # what a cursor names may be gone, or not be there yet
            inside = max(self._next[number], log.log_start_offset)
            self._next[number] = min(inside, max(self._ends[number], log.log_start_offset))
        self._passed: list[Record] = []
        self._scanned_records = self._scanned_bytes = 0
        self._problems: list[str] = []
        self._began = stopwatch()
        self._deadline = self._began + query.max_ms / 1000

    async def run(self) -> None:
        """Walk until there is enough, or enough was done for it."""
        while open_ones := [n for n, end in self._ends.items() if self._next[n] < end]:
            for number in open_ones:
                wanted = self._wanted(len(open_ones))
                if not wanted or self._is_tired():
                    return
                await self._read_piece(number, wanted, len(open_ones))

    def _wanted(self, count: int) -> int:
        """How many records to take from the next partition."""
        if self._query.last is not None:
            return MAX_RECORDS
        left = self._query.limit - len(self._passed)
        return min(left, math.ceil(self._query.limit / count)) if left > 0 else 0

    def _is_tired(self) -> bool:
        return stopwatch() >= self._deadline or self._scanned_bytes >= self._query.max_bytes

    async def _read_piece(self, number: int, wanted: int, count: int) -> None:
        offset = self._next[number]
        share = (self._query.max_bytes - self._scanned_bytes) // count
        size = max(LEAST_PIECE_BYTES, min(PIECE_BYTES, share))
        end = self._ends[number]
        try:
            found = await fetch(
                self._core,
                self._logs[number].tp,
                offset,
                max_bytes=size,
                committed=self._query.committed,
            )
        except CorruptSegmentError as damage:
            self._problems.append(str(damage))
            self._next[number] = max(offset, damage.resume_offset or end)
            return
        batch_bytes = self._core.broker.settings.decompressed_max_bytes
        bounds = ScanLimits(end, wanted, max(share, 1), self._deadline, batch_bytes)
        piece = await asyncio.to_thread(scan, found, offset, self._test, bounds)
        self._passed += piece.passed
        self._problems += map(str, piece.problems)
        if piece.not_searched:
            self._problems.append(_not_searched(self._logs[number], piece.not_searched))
        self._scanned_records += piece.scanned_records
        self._scanned_bytes += piece.scanned_bytes
        # One that does not get on has nothing more to show for now.
        self._next[number] = piece.next_offset if piece.next_offset > offset else end

    async def page(self) -> RecordsPage:
        """What was found."""
        query = self._query
        records = await asyncio.to_thread(_rendered, self._passed, query)
        return RecordsPage(
            records,
            ",".join(f"{number}:{offset}" for number, offset in self._next.items()),
            all(self._next[number] >= end for number, end in self._ends.items()),
            self._scanned_records,
            self._scanned_bytes,
            round((stopwatch() - self._began) * 1000, 1),
            self._problems[:MAX_PROBLEMS],
        )


def _not_searched(log: PartitionLog, offsets: list[int]) -> str:
    return (
        f"{log.tp}: {len(offsets)} values from offset {offsets[0]} on were not searched: `path` "
        f"looks into values of up to {MAX_PARSED_BYTES} bytes and {MAX_PARSED_ITEMS} items"
    )


def _rendered(records: list[Record], query: RecordsQuery) -> list[JsonRecord]:
    records.sort(key=lambda record: (record.timestamp, record.partition, record.offset))
    if query.last is not None:
        records = records[-query.last :]
    return json_records(records, query.format, query.max_value_bytes, MAX_PAGE_BYTES)
