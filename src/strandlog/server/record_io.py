"""What gRPC and HTTP can do with the log, in coroutines: append, and read raw batches.

A record has no partition of its own there unless it is given one: it goes where any Kafka producer
would send it, by the hash of its key, and in turn when it has none.

Batches of many records are made in a thread, for the event loop has clients that bring raw bytes;
calls that are under way together have no order. What is read is taken apart in `unpacking.py`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from strandlog.broker.context import RequestContext
from strandlog.broker.deferred import Deferred
from strandlog.broker.fetch import FetchPartition, FetchPartitionData, FetchRequest
from strandlog.broker.produce import NOTHING_CHECKED, Checked
from strandlog.broker.runtime import run_inline
from strandlog.errors import InvalidRecordError, StrandlogError, TopicNotFoundError
from strandlog.model import IsolationLevel, PartitionRecords, TopicPartition
from strandlog.record.builder import build_batch
from strandlog.record.partitioner import key_hash
from strandlog.server.background import as_future
from strandlog.server.core import ServerCore

CONTEXT = RequestContext()
DEFAULT_READ_BYTES = 1024 * 1024
MOST_READ_BYTES = 8 * 1024 * 1024
IN_LOOP_RECORDS = 100  # so few, and
IN_LOOP_BYTES = 16 * 1024  # so little, is put together quicker than a thread is told to

Headers = Sequence[tuple[str, bytes | None]]


class NewRecord(NamedTuple):
    """A record on its way in."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int | None = None


class Place(NamedTuple):
    """Where a record was put."""

    partition: int
    offset: int


class Writing:
    """Appends records for doors that have no batches."""

    def __init__(self, core: ServerCore) -> None:
        self._core = core
        self._hash = key_hash("murmur2")
        self._turns = itertools.count()

    async def append(
        self, topic: str, partition: int | None, records: Sequence[NewRecord], acks: int
    ) -> list[Place]:
        """Append to a topic that there is; where each record is now.

        Everything is checked before anything is written.
        """
        if not records:
            raise InvalidRecordError("there are no records to append")
        broker = self._core.broker
        count = broker.topic(CONTEXT, topic).partitions
        if partition is not None and not 0 <= partition < count:
            raise TopicNotFoundError(topic, partition, count)
        by_partition, batches = await self._batches(count, partition, records)
        parts = [
            PartitionRecords(topic, number, batch)
            for number, batch in zip(by_partition, batches, strict=True)
        ]
        checks = broker.record_checks(CONTEXT, parts)
        checked: Checked = NOTHING_CHECKED
        if checks is not None:
            checked = await asyncio.to_thread(run_inline, checks)
        results = broker.produce_all(CONTEXT, parts, acks, checked)
        if isinstance(results, Deferred):
            results = await as_future(results)
        places: list[Place] = [Place(-1, -1)] * len(records)
        for (number, rows), result in zip(by_partition.items(), results, strict=True):
            if isinstance(result, StrandlogError):
                raise result
            for place, row in enumerate(rows):
                places[row] = Place(number, result.base_offset + place)
        return places

    async def _batches(
        self, count: int, partition: int | None, records: Sequence[NewRecord]
    ) -> tuple[dict[int, list[int]], list[bytearray]]:
        """The rows of each partition, and a batch of them."""
        turn = next(self._turns)
        now_ms = self._core.clock.now_ms()

        def build() -> tuple[dict[int, list[int]], list[bytearray]]:
            by_partition = self._routed(count, partition, turn, records)
            each = by_partition.values()
            return by_partition, [
                build_records(now_ms, [records[row] for row in rows]) for rows in each
            ]

        is_small = len(records) <= IN_LOOP_RECORDS and _size(records) <= IN_LOOP_BYTES
        return build() if is_small else await asyncio.to_thread(build)

    def _routed(
        self, count: int, partition: int | None, turn: int, records: Sequence[NewRecord]
    ) -> dict[int, list[int]]:
        """The rows of each partition; those without a key stay together, so one batch is enough."""
        if partition is not None:
            return {partition: list(range(len(records)))}
        found: dict[int, list[int]] = {}
        for row, record in enumerate(records):
            chosen = turn
            if record.key is not None:
                chosen = self._hash.up_to(len(record.key))(record.key)
            found.setdefault(chosen % count, []).append(row)
        return found


def _size(records: Sequence[NewRecord]) -> int:
    return sum(len(record.key or b"") + len(record.value or b"") for record in records)


def build_records(now_ms: int, records: Sequence[NewRecord]) -> bytearray:
    """One batch of some records."""
    has_times = any(record.timestamp_ms is not None for record in records)
    return build_batch(
        now_ms,
        [record.value for record in records],
        [record.key for record in records],
        [tuple(record.headers) for record in records],
        timestamps=[
            now_ms if record.timestamp_ms is None else record.timestamp_ms for record in records
        ]
        if has_times
        else None,
    )


async def fetch(
    core: ServerCore,
    tp: TopicPartition,
    offset: int,
    *,
    max_bytes: int,
    wait_ms: int = 0,
    committed: bool = False,
) -> FetchPartitionData:
    """Raw batches from an offset on; with `wait_ms` there is a wait for the first of them."""
    broker = core.broker
    limit = min(max(1, max_bytes), MOST_READ_BYTES)
    deadline_ms = broker.clock.monotonic_ms() + wait_ms
    isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    part = FetchPartition(tp.topic, tp.partition, offset, limit)
    found = broker.fetch(CONTEXT, FetchRequest([part], 1, limit, deadline_ms, isolation))
    if isinstance(found, Deferred):
        delayed = found
        try:
            found = await as_future(delayed)
        except asyncio.CancelledError:
            broker.cancel_fetch(delayed)
            raise
    [data] = found
    if data.error is not None:
        raise data.error
    return data
