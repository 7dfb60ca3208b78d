"""Keeps the rates and the lag of the last five minutes in memory, so that charts start full.

    totals           every INTERVAL_SECONDS: counters of the broker, at no cost
    topics and lag   every INTERVAL_SECONDS, or less often: all partitions and groups are read

Reading all partitions takes time in proportion to their number. After a sample that took t seconds,
the next one waits for at least t / LOAD_SHARE, so that samples take at most that share of the event
loop's time.

A sample holds only topics that received records, at most HISTORY_MAX_TOPICS of them, and the
HISTORY_MAX_GROUPS groups with the highest lag, without internal groups. A topic that is missing
from a sample received no records, or fewer than the topics in it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from heapq import nlargest
from operator import itemgetter
from typing import NamedTuple

import msgspec

from strandlog.broker.broker import Broker
from strandlog.broker.context import OWNER, RequestContext
from strandlog.clock import stopwatch
from strandlog.config.limits.http import HISTORY_MAX_GROUPS, HISTORY_MAX_TOPICS
from strandlog.model import is_internal_group
from strandlog.server.http.metrics.rates import BrokerRates, Totals, count_totals
from strandlog.server.http.metrics.snapshot import group_snapshots, partition_snapshots

logger = logging.getLogger(__name__)

INTERVAL_SECONDS = 5.0
WINDOW_MS = 5 * 60_000
LOAD_SHARE = 0.005  # maximum share of the event loop's time for samples


class RatesPoint(msgspec.Struct):
    """The rates of the broker at one time."""

    timestamp_ms: int
    rates: BrokerRates


class LagPoint(msgspec.Struct):
    """The lag of a group at one time."""

    timestamp_ms: int
    lag: int


class TopicPoint(msgspec.Struct):
    """The records per second of a topic at one time."""

    timestamp_ms: int
    produced_records_per_second: float


class _Sample(NamedTuple):
    timestamp_ms: int
    records_per_second: dict[str, float]  # by topic
    lag: dict[str, int]  # by group


class History:
    """The rates and the lag of one broker in the last five minutes."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._context = RequestContext(OWNER, listener="http")
        self._rates: deque[RatesPoint] = deque()
        self._samples: deque[_Sample] = deque()
        self._totals = Totals(0, 0, 0, 0, 0)
        self._ends: dict[str, int] = {}  # the sum of the end offsets, by topic
        self._ends_at: float | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start taking samples; call this in the event loop."""
        for work, name in ((self._watch_totals(), "rates"), (self._watch_topics(), "topics")):
            task = asyncio.create_task(work, name=f"history of {name}")
            task.add_done_callback(_log_failure)
            self._tasks.append(task)

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    def rates(self) -> list[RatesPoint]:
        """Return the rates of the broker, oldest first."""
        return list(self._rates)

    def lag(self) -> dict[str, list[LagPoint]]:
        """Return the lag of each group in the samples, oldest first."""
        found: dict[str, list[LagPoint]] = defaultdict(list)
        for sample in self._samples:
            for group, lag in sample.lag.items():
                found[group].append(LagPoint(sample.timestamp_ms, lag))
        return found

    def topic(self, name: str) -> list[TopicPoint]:
        """Return the records per second of a topic, oldest first."""
        return [
            TopicPoint(sample.timestamp_ms, sample.records_per_second.get(name, 0.0))
            for sample in self._samples
        ]

    async def _watch_totals(self) -> None:
        self._totals, taken_at = count_totals(self._broker), stopwatch()
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            totals, now = count_totals(self._broker), stopwatch()
            rates = totals.rates_since(self._totals, now - taken_at)
            self._totals, taken_at = totals, now
            now_ms = self._broker.clock.now_ms()
            self._rates.append(RatesPoint(now_ms, rates))
            while self._rates[0].timestamp_ms < now_ms - WINDOW_MS:
                self._rates.popleft()

    async def _watch_topics(self) -> None:
        while True:
            began = stopwatch()
            await self.sample()
            await asyncio.sleep(max(INTERVAL_SECONDS, (stopwatch() - began) / LOAD_SHARE))

    async def sample(self) -> None:
        """Take a sample of all topics and groups. The first call adds no sample: it only stores the
        end offsets, so that the next call can compute rates."""
        now = stopwatch()
        ends: dict[str, int] = defaultdict(int)
        for state in await partition_snapshots(self._broker, self._context):
            ends[state.topic] += state.end_offset
        groups = await group_snapshots(self._broker, self._context)
        lag = nlargest(
            HISTORY_MAX_GROUPS,
            ((each.group, each.lag) for each in groups if not is_internal_group(each.group)),
            itemgetter(1),
        )
        now_ms = self._broker.clock.now_ms()
        if self._ends_at is not None:
            seconds = max(now - self._ends_at, 1e-3)
            grown = ((name, end - self._ends.get(name, 0)) for name, end in ends.items())
            busiest = nlargest(
                HISTORY_MAX_TOPICS, (each for each in grown if each[1] > 0), itemgetter(1)
            )
            rates = {name: records / seconds for name, records in busiest}
            self._samples.append(_Sample(now_ms, rates, dict(lag)))
        self._ends, self._ends_at = dict(ends), now
        while self._samples and self._samples[0].timestamp_ms < now_ms - WINDOW_MS:
            self._samples.popleft()


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("%s ended: %s", task.get_name(), error, exc_info=error)
