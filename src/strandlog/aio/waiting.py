"""Wakes the consumers that wait for records, none of which has a thread of its own.

    embedded    a send through this log wakes the consumers of its partition, and a batch wakes all
                consumers of its topic. A change in a group wakes its members; an altered or deleted
                topic wakes all consumers. In addition, each consumer polls again after
                RECHECK_SECONDS (in a rebalance, REBALANCE_RECHECK_SECONDS), for heartbeats, new
                partitions and maintenance
    read-only   the owner is another process, so consumers look again every 100 ms
    remote      librdkafka buffers records without waking the loop. Up to BLOCKING_STEPS consumers
                wait in librdkafka, each in a worker thread; the others look again every 20 ms, or
                less often if more than 80 consumers wait

A consumer misses no change between looking for records and waiting: every change has a number,
`seen` is the number that `mark` returned before the consumer looked, and the consumer does not wait
if a change that would have woken it came after that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from strandlog.model import TopicPartition

RECHECK_SECONDS = 1.0
REBALANCE_RECHECK_SECONDS = 0.1
READ_ONLY_RECHECK_SECONDS = 0.1
REMOTE_RECHECK_SECONDS = 0.02
REMOTE_SECONDS_PER_CONSUMER = 0.000_25  # all consumers together look at most 4,000 times a second
BLOCKING_STEPS = 4
BLOCKING_STEP_MS = 50
ANY_PARTITION = -1
TOPICS = "topics"  # changes if any topic is altered or deleted


class Interest(NamedTuple):
    """The partitions, group and consumer whose changes end a wait."""

    partitions: frozenset[TopicPartition]
    group: str | None
    consumer_id: int


class Waiting:
    """The waiting consumers of one log."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._now = 0
        # By TOPICS and the names of topics, groups and consumers: `_now` at the last change, and
        # the consumers that wait for the next one.
        self._changed: dict[str, int] = {}
        self._waiters: dict[str, set[asyncio.Future[None]]] = {}
        self._interests: dict[asyncio.Future[None], Interest] = {}

    def __len__(self) -> int:
        return len(self._interests)

    def mark(self) -> int:
        """Return a number to pass to `wait` after looking for records."""
        return self._now

    async def wait(self, interest: Interest, seen: int, seconds: float) -> None:
        """Return when something has changed since `seen`, or after `seconds`."""
        names = _names(interest)
        if any(self._changed.get(name, -1) >= seen for name in names):
            return
        future: asyncio.Future[None] = self._loop.create_future()
        timer = self._loop.call_later(seconds, _wake, future)
        self._interests[future] = interest
        for name in names:
            self._waiters.setdefault(name, set()).add(future)
        try:
            await future
        finally:
            timer.cancel()
            del self._interests[future]
            for name in names:
                self._waiters[name].discard(future)
                if not self._waiters[name]:
                    del self._waiters[name]

    def written(self, partitions: Iterable[TopicPartition]) -> None:
        """Wake the consumers of these partitions; ANY_PARTITION stands for a whole topic."""
        changed = set(partitions)
        for topic in {tp.topic for tp in changed}:
            self._note(_of_topic(topic))
            is_all = (topic, ANY_PARTITION) in changed
            for future in self._waiters.get(_of_topic(topic), ()):
                if is_all or not changed.isdisjoint(self._interests[future].partitions):
                    _wake(future)

    def group_changed(self, group: str | None) -> None:
        """Wake the members of a group."""
        if group is not None:
            self._wake_all(_of_group(group))

    def consumer_changed(self, consumer_id: int) -> None:
        """Wake the tasks that poll a consumer, because its positions changed or it is closing."""
        self._wake_all(_of_consumer(consumer_id))

    def consumer_closed(self, consumer_id: int) -> None:
        """Forget a consumer, which no task polls any more."""
        self._changed.pop(_of_consumer(consumer_id), None)

    def topics_changed(self) -> None:
        """Wake all consumers."""
        self._wake_all(TOPICS)

    def _wake_all(self, name: str) -> None:
        self._note(name)
        for future in self._waiters.get(name, ()):
            _wake(future)

    def _note(self, name: str) -> None:
        self._changed[name] = self._now
        self._now += 1


def _of_topic(topic: str) -> str:
    return f"topic {topic}"


def _of_group(group: str) -> str:
    return f"group {group}"


def _of_consumer(consumer_id: int) -> str:
    return f"consumer {consumer_id}"


def _names(interest: Interest) -> set[str]:
    names = {_of_topic(tp.topic) for tp in interest.partitions}
    names |= {TOPICS, _of_consumer(interest.consumer_id)}
    if interest.group is not None:
        names.add(_of_group(interest.group))
    return names


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def recheck_seconds(*, is_member: bool) -> float:
    """Return how soon a consumer of an embedded log looks again without being woken."""
    return RECHECK_SECONDS if is_member else REBALANCE_RECHECK_SECONDS


def remote_recheck_seconds(waiting_count: int) -> float:
    """Return how soon a consumer of a remote log looks again."""
    return max(REMOTE_RECHECK_SECONDS, REMOTE_SECONDS_PER_CONSUMER * waiting_count)
