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

from strandlog.broker.fetch import FetchAnswer, FetchPart, FetchWish
from strandlog.errors import InvalidRecordError, TopicNotFoundError
from strandlog.model import TopicPartition
from strandlog.record.builder import build_batch
from strandlog.record.partitioner import key_hash
from strandlog.server.awaiting import durable, result_of
from strandlog.server.core import ServerCore
from strandlog.server.decoding import parts_to_decode
from strandlog.storage.files import Buffer
from strandlog.storage.partition.log import PartitionLog

ACKS_NONE, ACKS_LEADER, ACKS_ALL = 0, 1, 2
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
        core = self._core
        count = core.broker.catalog.topic(topic).partitions
        if partition is not None and not 0 <= partition < count:
            raise TopicNotFoundError(topic, partition, count)
        by_partition, batches = await self._batches(count, partition, records)
        # After the thread: a topic may be gone by now.
        logs = {number: core.broker.catalog.log(topic, number) for number in by_partition}
        places: list[Place] = [Place(-1, -1)] * len(records)
        parts: list[tuple[PartitionLog, Buffer]] = list(zip(logs.values(), batches, strict=True))
        slow = parts_to_decode(parts)
        for part in slow:
            for batch in part.batches:
                await asyncio.to_thread(core.broker.check_records, part.log, batch)
        results = core.append_all(parts, records_checked=bool(slow))
        for (number, rows), result in zip(by_partition.items(), results, strict=True):
            for place, row in enumerate(rows):
                places[row] = Place(number, result.base_offset + place)
        core.on_work()
        if acks == ACKS_ALL:
            ends = [
                (logs[number], result.last_offset + 1)
                for number, result in zip(by_partition, results, strict=True)
            ]
            await asyncio.gather(*(durable(core, log, end) for log, end in ends))
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
) -> FetchAnswer:
    """Raw batches from an offset on; with `wait_ms` there is a wait for the first of them."""
    log = core.broker.catalog.log(*tp)
    now_ms = core.clock.monotonic_ms()
    limit = min(max(1, max_bytes), MOST_READ_BYTES)
    part = FetchPart(log.tp, log, offset, limit)
    wish = FetchWish([part], 1, limit, now_ms + wait_ms, committed)
    pending = core.fetches.fetch(wish, now_ms)
    if not pending.is_done:
        core.on_work()
    try:
        [answer] = await result_of(pending)
    except asyncio.CancelledError:
        core.fetches.cancel(pending)
        raise
    if answer.error is not None:
        raise answer.error
    return answer
