"""Decides whether what a query reads next follows what it has read, and what it has lost if not.

A query is at an offset in each partition, and partitions change between two micro-batches. These
cases are errors (`failOnDataLoss=true`) or warnings, as in Spark's Kafka source:

    the partition was deleted                    its records are lost, and it leaves the query
    it starts after the query's offset           the records up to there are lost: retention or
                                                 DeleteRecords
    it ends before the query's offset            the log was replaced or truncated: continue at its
                                                 end
    it is new to the query and starts above 0    the records up to there are lost; a new partition
                                                 is read from its start
    its topic has another id                     deleted and created again: read from its start

Only the last case is ours. Offsets alone do not show that a topic was deleted, created again and
filled beyond the query's offset; the topic id does, which brokers have since Kafka 2.8. An unknown
id, as in a checkpoint of version 0.1.0, is no difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from strandlog.model import TopicPartition
from strandlog.spark.source.offsets import Offsets, StreamOffset
from strandlog.spark.source.planning import OffsetRange


class Bounds(NamedTuple):
    """The readable offsets of a partition, the end exclusive, and the id of its topic."""

    earliest: int
    latest: int
    topic_id: str | None = None  # None if the broker or the folder has none


class Loss(NamedTuple):
    """Records of a partition that a query should have read but cannot."""

    tp: TopicPartition
    reason: str

    def __str__(self) -> str:
        return self.reason


class Continuation(NamedTuple):
    """Where a query continues in each existing partition, and what was lost before."""

    start: Offsets
    losses: list[Loss]


def deleted(tp: TopicPartition, start: int) -> Loss:
    return Loss(tp, f"{tp} was deleted, with all records from offset {start} on")


def trimmed(tp: TopicPartition, start: int, end: int) -> Loss:
    return Loss(tp, f"offsets {start} to {end - 1} of {tp} were deleted")


def beyond_end(tp: TopicPartition, offset: int, end: int) -> Loss:
    return Loss(
        tp,
        f"{tp} ends at offset {end} and cannot be read from {offset} on: it was truncated, or "
        f"deleted and created again",
    )


def recreated(tp: TopicPartition, offset: int) -> Loss:
    return Loss(
        tp,
        f"topic {tp.topic} was deleted and created again: records of {tp} from offset {offset} on "
        f"may be lost",
    )


def is_other_topic(known: str | None, found: str | None) -> bool:
    return known is not None and found is not None and known != found


def past_latest(
    offsets: Mapping[TopicPartition, int], bounds: Mapping[TopicPartition, Bounds]
) -> list[TopicPartition]:
    """Partitions with an offset above the readable ones. Either a transaction is open or the log
    was replaced, so the caller asks where they really end."""
    return [tp for tp, at in offsets.items() if tp in bounds and at > bounds[tp].latest]


def continued(
    done: StreamOffset,
    bounds: Mapping[TopicPartition, Bounds],
    ends: Mapping[TopicPartition, int],
) -> Continuation:
    """Where a query at `done` continues. `ends` has the ends of `past_latest`."""
    found = Continuation({}, [])
    for tp in sorted(done.offsets.keys() | bounds.keys()):
        at, bound = done.offsets.get(tp), bounds.get(tp)
        if bound is None:
            found.losses.append(deleted(tp, done.offsets[tp]))
            continue
        start, loss = _next_offset(tp, at, done.topic_ids.get(tp.topic), bound, ends.get(tp))
        found.start[tp] = start
        if loss is not None:
            found.losses.append(loss)
    return found


def _next_offset(
    tp: TopicPartition, at: int | None, topic_id: str | None, bound: Bounds, end: int | None
) -> tuple[int, Loss | None]:
    """Where to continue in one partition after `at`, and what is lost before that."""
    if at is None:
        loss = trimmed(tp, 0, bound.earliest) if bound.earliest > 0 else None
        return bound.earliest, loss
    if is_other_topic(topic_id, bound.topic_id):
        return bound.earliest, recreated(tp, at)
    if at < bound.earliest:
        return bound.earliest, trimmed(tp, at, bound.earliest)
    if end is not None and at > end:
        return end, beyond_end(tp, at, end)
    return at, None


class Plan(NamedTuple):
    """What a batch reads, and what it should have read but cannot."""

    ranges: list[OffsetRange]
    losses: list[Loss]


def planned(
    done: StreamOffset,
    until: StreamOffset,
    bounds: Mapping[TopicPartition, Bounds],
    ends: Mapping[TopicPartition, int],
) -> Plan:
    """What can be read between two sets of offsets. `ends` has the ends of the partitions with an
    offset in `past_latest`."""
    found = Plan([], [])
    for tp, end in sorted(until.offsets.items()):
        at, bound, last = done.offsets.get(tp), bounds.get(tp), ends.get(tp)
        before, then = done.topic_ids.get(tp.topic), until.topic_ids.get(tp.topic)
        if at == end and not is_other_topic(before, then):
            continue
        if bound is None:
            found.losses.append(deleted(tp, at or 0))
            continue
        if is_other_topic(then, bound.topic_id):  # after this batch was first planned
            found.losses.append(recreated(tp, at or 0))
            continue
        start, loss = _next_offset(tp, at, before, bound, last)
        if loss is not None:
            found.losses.append(loss)
        if last is not None and loss is None and start < end and last < end:
            found.losses.append(beyond_end(tp, max(start, last), last))
        stop = end if last is None else min(end, last)
        if start < stop:
            found.ranges.append(OffsetRange(tp, start, stop))
    return found
