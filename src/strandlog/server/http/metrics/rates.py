"""Computes bytes, records and requests per second from two snapshots.

The broker counts its total traffic, but has no counters per topic. So a task takes a snapshot of
all partitions every `INTERVAL_SECONDS`, in slices, as long as a client has requested rates within
the last `INTEREST_SECONDS`. The first request therefore gets no rates.

The bytes appended to a partition between two snapshots are the growth of the segment that was
active in the first one, plus the sizes of all later segments. So retention and compaction, which
shrink older segments or delete them, do not affect the result.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import NamedTuple

import msgspec

from strandlog.broker.broker import Broker
from strandlog.broker.context import OWNER, RequestContext
from strandlog.broker.topics.topic import PartitionState
from strandlog.clock import stopwatch
from strandlog.errors import TopicNotFoundError
from strandlog.server.http.metrics.snapshot import PARTITIONS_AT_ONCE, partition_snapshots

INTERVAL_SECONDS = 1.0
INTEREST_SECONDS = 30.0


class TopicRate(msgspec.Struct):
    """Rates of one topic."""

    produced_bytes_per_second: float
    produced_records_per_second: float


class BrokerRates(msgspec.Struct):
    """Rates of the broker."""

    produced_bytes_per_second: float
    produced_records_per_second: float
    fetched_bytes_per_second: float
    fetched_records_per_second: float
    requests_per_second: float


class Totals(NamedTuple):
    """The traffic of the broker since it started."""

    produced_bytes: int
    produced_records: int
    fetched_bytes: int
    fetched_records: int
    requests: int

    def rates_since(self, before: Totals, seconds: float) -> BrokerRates:
        changes = [new - old for new, old in zip(self, before, strict=True)]
        return BrokerRates(*(change / max(seconds, 1e-3) for change in changes))


def count_totals(broker: Broker) -> Totals:
    """Return the current totals of a broker."""
    metrics = broker.metrics
    return Totals(
        metrics.produced_bytes,
        metrics.produced_records,
        broker.fetched_bytes,
        metrics.fetched_records,
        sum(latency.count for latency in metrics.request_seconds.values()),
    )


class Rates:
    """The rates of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._source = broker
        self._context = RequestContext(OWNER, listener="http")
        self._task: asyncio.Task[None] | None = None
        self._wanted_until = 0.0
        self._taken_at = 0.0  # stopwatch time of the last snapshot
        self._totals = Totals(0, 0, 0, 0, 0)
        self._partitions: dict[tuple[str, int], PartitionState] = {}
        self._broker: BrokerRates | None = None
        self._topics: dict[str, TopicRate] = {}

    def broker(self) -> BrokerRates | None:
        """Return the rates of the broker, or None until two snapshots have been taken."""
        self._want()
        return self._broker

    def topics(self) -> dict[str, TopicRate]:
        """Return the rates by topic; empty until two snapshots have been taken."""
        self._want()
        return self._topics

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _want(self) -> None:
        self._wanted_until = stopwatch() + INTEREST_SECONDS
        if self._task is None:
            self._task = asyncio.create_task(self._update_while_wanted(), name="rates")

    async def _update_while_wanted(self) -> None:
        try:
            await self._update()
            while stopwatch() < self._wanted_until:
                await asyncio.sleep(INTERVAL_SECONDS)
                await self._update()
        finally:
            self._task = self._broker = None
            self._topics, self._partitions = {}, {}
            self._taken_at = 0.0

    async def _update(self) -> None:
        now, totals = stopwatch(), count_totals(self._source)
        seconds = max(now - self._taken_at, 1e-3)
        states = await partition_snapshots(self._source, self._context)
        partitions, topics = await self._compared(states, seconds)
        if self._partitions:
            self._topics = topics
        if self._taken_at:
            self._broker = totals.rates_since(self._totals, seconds)
        self._taken_at, self._totals, self._partitions = now, totals, partitions

    async def _compared(
        self, states: list[PartitionState], seconds: float
    ) -> tuple[dict[tuple[str, int], PartitionState], dict[str, TopicRate]]:
        """Compare a snapshot with the last one, in slices. Return its partitions, by topic and
        number, and the rates by topic."""
        partitions: dict[tuple[str, int], PartitionState] = {}
        sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        for number, new in enumerate(states, 1):
            if not number % PARTITIONS_AT_ONCE:
                await asyncio.sleep(0)
            key = new.topic, new.partition
            partitions[key], old = new, self._partitions.get(key)
            # Otherwise, the partition is new or has been recreated.
            if old is not None and new.end_offset >= old.end_offset:
                each = sums[new.topic]
                each[0] += max(0, self._growth_bytes(old, new))
                each[1] += new.end_offset - old.end_offset
        return partitions, {
            topic: TopicRate(size / seconds, records / seconds)
            for topic, (size, records) in sums.items()
        }

    def _growth_bytes(self, old: PartitionState, new: PartitionState) -> int:
        """Return the number of bytes appended to a partition between two snapshots."""
        base_offset = old.active_base_offset
        if new.active_base_offset == base_offset:
            return new.active_size_bytes - old.active_size_bytes
        try:
            size = self._source.size_from(self._context, new.topic, new.partition, base_offset)
        except TopicNotFoundError:
            return 0
        return size - old.active_size_bytes
