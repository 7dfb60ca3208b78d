"""Produces and reads single records for gRPC and HTTP, which do not carry record batches.

If a request names no partition, records are partitioned by the hash of their key, as in Kafka's
producers; those without a key go to one partition per request, round-robin.

The batches count towards the client's quotas, as those of Kafka clients do. A producer that exceeds
its quota gets an error before anything is written. The bytes that a consumer reads are only counted
here; its listener decides how to pause the consumer.

A fetch names its topic by id, so that a client that reads in steps does not continue in a new topic
of the same name, where its offsets mean nothing.

Large batches are built in a thread, because the event loop also serves Kafka clients; the order of
concurrent calls is not defined. `broker/reads/fetched_records.py` decodes the result of
`fetch`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from strandlog.broker.broker import Broker
from strandlog.broker.context import RequestContext
from strandlog.broker.deferred import Deferred
from strandlog.broker.produce import NOTHING_CHECKED, Checked
from strandlog.broker.reads.fetch import FetchPartition, FetchPartitionData, FetchRequest
from strandlog.broker.runtime import run_inline
from strandlog.broker.topics.topic import Topic
from strandlog.errors import (
    InvalidRecordError,
    StrandlogError,
    TopicNotFoundError,
    UnknownTopicIdError,
)
from strandlog.model import IsolationLevel, PartitionRecords
from strandlog.record.builder import build_batch
from strandlog.record.partitioner import key_hash
from strandlog.server.background import as_future

DEFAULT_READ_BYTES = 1024 * 1024
MAX_READ_BYTES = 8 * 1024 * 1024
# Up to these limits, building a batch is faster than handing it to a thread.
IN_LOOP_RECORDS = 100  # a header counts like a record
IN_LOOP_BYTES = 16 * 1024

Headers = Sequence[tuple[str, bytes | None]]


class NewRecord(NamedTuple):
    """A record to produce."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int | None = None


class RecordPosition(NamedTuple):
    """The partition and offset of a produced record."""

    partition: int
    offset: int


class RecordProducer:
    """Produces single records, for listeners that do not carry record batches."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._hash = key_hash("murmur2")
        self._turns = itertools.count()

    async def produce(
        self,
        context: RequestContext,
        topic: str,
        partition: int | None,
        records: Sequence[NewRecord],
        acks: int,
    ) -> list[RecordPosition]:
        """Produce records to an existing topic and return their positions.

        All records are checked before any is written.
        """
        if not records:
            raise InvalidRecordError("the request has no records")
        broker = self._broker
        broker.check_produce(context)
        count = broker.topic(context, topic).partitions
        if partition is not None and not 0 <= partition < count:
            raise TopicNotFoundError(topic, partition, count)
        by_partition, batches = await self._batches(count, partition, records)
        parts = [
            PartitionRecords(topic, number, batch)
            for number, batch in zip(by_partition, batches, strict=True)
        ]
        checks = broker.record_checks(context, parts)
        checked: Checked = NOTHING_CHECKED
        if checks is not None:
            checked = await asyncio.to_thread(run_inline, checks)
        broker.charge_produce(context, sum(map(len, batches)))
        results = broker.produce_all(context, parts, acks, checked)
        if isinstance(results, Deferred):
            results = await as_future(results)
        positions = [RecordPosition(-1, -1)] * len(records)
        for (number, rows), result in zip(by_partition.items(), results, strict=True):
            if isinstance(result, StrandlogError):
                raise result
            for index, row in enumerate(rows):
                positions[row] = RecordPosition(number, result.base_offset + index)
        return positions

    async def _batches(
        self, count: int, partition: int | None, records: Sequence[NewRecord]
    ) -> tuple[dict[int, list[int]], list[bytearray]]:
        """Return the indexes of each partition's records, and the batches built from them."""
        turn = next(self._turns)
        now_ms = self._broker.clock.now_ms()

        def build() -> tuple[dict[int, list[int]], list[bytearray]]:
            by_partition = self._routed(count, partition, turn, records)
            each = by_partition.values()
            return by_partition, [
                build_records(now_ms, [records[row] for row in rows]) for rows in each
            ]

        items = len(records) + sum(len(record.headers) for record in records)
        is_small = items <= IN_LOOP_RECORDS and _size(records) <= IN_LOOP_BYTES
        return build() if is_small else await asyncio.to_thread(build)

    def _routed(
        self, count: int, partition: int | None, turn: int, records: Sequence[NewRecord]
    ) -> dict[int, list[int]]:
        """Return the indexes of each partition's records; those without a key share a partition."""
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
    fields = sum(len(record.key or b"") + len(record.value or b"") for record in records)
    headers = (header for record in records for header in record.headers)
    return fields + sum(len(name) + len(value or b"") for name, value in headers)


def build_records(now_ms: int, records: Sequence[NewRecord]) -> bytearray:
    """Build one batch from the given records."""
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
    broker: Broker,
    context: RequestContext,
    topic: Topic,
    partition: int,
    offset: int,
    *,
    max_bytes: int,
    committed: bool,
    wait_ms: int = 0,
    is_charged: bool = True,
) -> FetchPartitionData:
    """Fetch raw batches from an offset, waiting up to `wait_ms` for the first one. If `is_charged`
    is set, the batches count towards the user's quota. Raise an error if the topic was deleted, or
    deleted and recreated."""
    limit = min(max(1, max_bytes), MAX_READ_BYTES)
    deadline_ms = broker.clock.monotonic_ms() + wait_ms
    isolation = IsolationLevel.of(committed=committed)
    part = FetchPartition(topic.uuid, partition, offset, limit)
    found = broker.fetch(context, FetchRequest([part], 1, limit, deadline_ms, isolation))
    if isinstance(found, Deferred):
        delayed = found
        try:
            found = await as_future(delayed)
        except asyncio.CancelledError:
            broker.cancel_fetch(delayed)
            raise
    [data] = found
    if isinstance(data.error, UnknownTopicIdError):
        check_same_topic(broker, context, topic)
    if data.error is not None:
        raise data.error
    if is_charged:
        broker.charge_fetch(context, len(data.data))
    return data._replace(topic=topic.name)  # for messages


def check_same_topic(broker: Broker, context: RequestContext, topic: Topic) -> None:
    """Raise an error if the topic was deleted, or deleted and recreated."""
    if broker.topic(context, topic.name).topic_id != topic.topic_id:
        raise UnknownTopicIdError(
            f"topic {topic.name!r} was deleted and recreated; its offsets start at 0 again, so "
            "start a new read"
        )
