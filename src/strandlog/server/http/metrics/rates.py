"""How fast records come and go: the difference of two looks, taken while somebody wants to know.

The broker counts what goes through it as a whole; of a topic it only knows how far it has got. So
every `LOOK_SECONDS` the ends of all partitions are noted, in slices, as long as somebody has asked
for rates in the last `INTEREST_SECONDS`. The first to ask gets no rates yet.

What a partition took between two looks is how far its end moved, and by how much the segment grew
that was the last one at the first look, with all segments after it: retention and compaction, which
make logs smaller, do not come into it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import NamedTuple

import msgspec

from strandlog.clock import stopwatch
from strandlog.server.core import ServerCore
from strandlog.server.http.metrics.snapshot import PARTITIONS_AT_ONCE
from strandlog.storage.partition.log import PartitionLog

LOOK_SECONDS = 1.0
INTEREST_SECONDS = 30.0


class TopicRate(msgspec.Struct):
    """What a topic takes in."""

    produced_bytes_per_second: float
    produced_records_per_second: float


class BrokerRates(msgspec.Struct):
    """What goes through the broker."""

    produced_bytes_per_second: float
    produced_records_per_second: float
    fetched_bytes_per_second: float
    fetched_records_per_second: float
    requests_per_second: float


class _Totals(NamedTuple):
    produced_bytes: int
    produced_records: int
    fetched_bytes: int
    fetched_records: int
    requests: int


class _End(NamedTuple):
    """How far a partition had got."""

    log_end_offset: int
    active_base: int
    active_bytes: int


class Rates:
    """The rates of one broker."""

    def __init__(self, core: ServerCore) -> None:
        self._core = core
        self._task: asyncio.Task[None] | None = None
        self._wanted_until = 0.0
        self._at = 0.0
        self._totals = _Totals(0, 0, 0, 0, 0)
        self._ends: dict[PartitionLog, _End] = {}
        self._broker: BrokerRates | None = None
        self._topics: dict[str, TopicRate] = {}

    def broker(self) -> BrokerRates | None:
        """The rates of the broker; None until two looks were taken."""
        self._want()
        return self._broker

    def topics(self) -> dict[str, TopicRate]:
        """The rates by topic."""
        self._want()
        return self._topics

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _want(self) -> None:
        self._wanted_until = stopwatch() + INTEREST_SECONDS
        if self._task is None:
            self._task = asyncio.create_task(self._look_while_wanted(), name="rates")

    async def _look_while_wanted(self) -> None:
        try:
            await self._look()
            while stopwatch() < self._wanted_until:
                await asyncio.sleep(LOOK_SECONDS)
                await self._look()
        finally:
            self._task = self._broker = None
            self._topics, self._ends = {}, {}
            self._at = 0.0

    async def _look(self) -> None:
        now, totals = stopwatch(), self._count()
        took = max(now - self._at, 1e-3)
        ends: dict[PartitionLog, _End] = {}
        sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        for number, log in enumerate(list(self._core.broker.log_dir.logs.values()), 1):
            self._note(log, ends, sums)
            if not number % PARTITIONS_AT_ONCE:
                await asyncio.sleep(0)
        if self._ends:
            self._topics = {
                topic: TopicRate(size / took, records / took)
                for topic, (size, records) in sums.items()
            }
        if self._at:
            changes = [new - old for new, old in zip(totals, self._totals, strict=True)]
            self._broker = BrokerRates(*(change / took for change in changes))
        self._at, self._totals, self._ends = now, totals, ends

    def _note(
        self, log: PartitionLog, ends: dict[PartitionLog, _End], sums: dict[str, list[int]]
    ) -> None:
        active = log.segments.active
        new = ends[log] = _End(log.log_end_offset, active.base_offset, active.size_bytes)
        old = self._ends.get(log)
        if old is not None:
            each = sums[log.tp.topic]
            each[0] += max(0, _grown(log, old, new))
            each[1] += new.log_end_offset - old.log_end_offset

    def _count(self) -> _Totals:
        metrics = self._core.metrics
        requests = sum(times.count for times in metrics.request_seconds.values())
        read_bytes = self._core.fetches.read_bytes
        return _Totals(
            metrics.produced_bytes,
            metrics.produced_records,
            read_bytes,
            metrics.fetched_records,
            requests,
        )


def _grown(log: PartitionLog, old: _End, new: _End) -> int:
    """How many bytes a partition took between two looks."""
    if new.active_base == old.active_base:
        return new.active_bytes - old.active_bytes
    later = [each.size_bytes for each in log.segments.all() if each.base_offset >= old.active_base]
    return sum(later) - old.active_bytes
