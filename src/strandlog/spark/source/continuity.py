"""Detects data loss: finds the records that a query cannot read any more when it continues.

A query has an offset in each partition, and partitions can change between micro-batches. The
following cases are errors (`failOnDataLoss=true`) or warnings; Spark's Kafka source also detects
the first four:

    the partition was deleted                    its records are lost; the query drops it
    it starts after the query's offset           retention or DeleteRecords has deleted the records
                                                 in between
    it ends before the query's offset            the log was replaced or truncated; the query
                                                 continues at its end
    it is new to the query, and its first        its first records are lost; the query reads it from
    offset is above 0                            its start
    its topic has a different id                 the topic was deleted and recreated; the query
                                                 reads it from its start

    damage may hide the marker that ends a       the query reads up to the start of the
    transaction (folders only)                   transaction and cannot continue

If a topic is deleted, recreated and filled beyond the query's offset, only the topic id, which
brokers have had since Kafka 2.8, reveals it. An unknown id, as in checkpoints of version 0.1.0, is
treated as unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from strandlog.model import TopicPartition
from strandlog.spark.offsets import Offsets, StreamOffset
from strandlog.spark.source.planning import OffsetRange


class Bounds(NamedTuple):
    """The readable offsets of a partition, with an exclusive end, and its topic's id."""

    earliest: int
    latest: int
    topic_id: str | None = None  # None if the broker or the folder records no topic ids
    damage: str | None = (
        None  # why nothing can be read from `latest` on, although there are records
    )


class Loss(NamedTuple):
    """Records of a partition that a query should have read but cannot."""

    tp: TopicPartition
    reason: str

    def __str__(self) -> str:
        return self.reason


class Continuation(NamedTuple):
    """The offsets at which a query continues in existing partitions, and the losses found."""

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


def blocked(
    offsets: Mapping[TopicPartition, int], bounds: Mapping[TopicPartition, Bounds]
) -> list[Loss]:
    """Return a loss for each partition that cannot be read beyond its offset because of damage."""
    return [
        Loss(tp, f"{tp} cannot be read from offset {bounds[tp].latest} on: {damage}")
        for tp, at in sorted(offsets.items())
        if tp in bounds and (damage := bounds[tp].damage) is not None and at >= bounds[tp].latest
    ]


def is_other_topic(known: str | None, found: str | None) -> bool:
    return known is not None and found is not None and known != found


def past_latest(
    offsets: Mapping[TopicPartition, int], bounds: Mapping[TopicPartition, Bounds]
) -> list[TopicPartition]:
    """Return the partitions whose offset is above the readable range.

    Either a transaction is open or the log was replaced; only the actual end offset tells which.
    """
    return [tp for tp, at in offsets.items() if tp in bounds and at > bounds[tp].latest]


def continued(
    done: StreamOffset,
    bounds: Mapping[TopicPartition, Bounds],
    ends: Mapping[TopicPartition, int],
) -> Continuation:
    """Return the offsets at which a query resumes after `done`, and the records that it lost.

    `ends` maps the partitions that `past_latest` returns for `done` to their end offsets.
    """
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
    """Return the offset at which to continue in one partition, and the loss before it, if any."""
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
    """The ranges that a batch reads, and the records that it cannot read."""

    ranges: list[OffsetRange]
    losses: list[Loss]


def planned(
    done: StreamOffset,
    until: StreamOffset,
    bounds: Mapping[TopicPartition, Bounds],
    ends: Mapping[TopicPartition, int],
) -> Plan:
    """Return the ranges that can be read between two sets of offsets, and the losses there.

    `ends` maps each partition that `past_latest` returns for either set to its actual end offset.
    """
    found = Plan([], [])
    for tp, end in sorted(until.offsets.items()):
        at, bound, last = done.offsets.get(tp), bounds.get(tp), ends.get(tp)
        before, then = done.topic_ids.get(tp.topic), until.topic_ids.get(tp.topic)
        if at == end and not is_other_topic(before, then):
            continue
        if bound is None:
            found.losses.append(deleted(tp, at or 0))
            continue
        if is_other_topic(then, bound.topic_id):  # recreated after this batch was first planned
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
