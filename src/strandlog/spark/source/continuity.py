"""Whether what a query reads next follows what it has read, and what it has lost if not. Pure.

A query stands at an offset of each partition. Between two looks the partitions can change, and what
is an error then (`failOnDataLoss=true`) or a warning is what Spark's Kafka source makes of it:

    the partition is gone                        lost, and no longer part of the query
    it begins after the query's offset           lost up to there: retention, DeleteRecords
    it ends before the query's offset            the log was replaced or truncated: go on at its end
    it is new to the query and begins above 0    lost up to there; a new one is read from its start
    its topic has another id                     deleted and created again: read from its start

The last row is ours. Offsets alone do not show that a topic was deleted, created again and filled
beyond where the query stood; the topic id does, which brokers have from Kafka 2.8 on. An id that
is not known, as in a checkpoint of version 0.1.0, is no difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from strandlog.model import TopicPartition
from strandlog.spark.source.offsets import Offsets, StreamOffset
from strandlog.spark.source.planning import OffsetRange


class Bounds(NamedTuple):
    """What may be read of a partition now, the end exclusive, and the id of its topic."""

    earliest: int
    latest: int
    topic_id: str | None = None  # None when the broker or the folder does not tell


class Loss(NamedTuple):
    """Records of a partition that a query should have read and cannot."""

    tp: TopicPartition
    reason: str

    def __str__(self) -> str:
        return self.reason


class Continuation(NamedTuple):
    """Where to go on in each partition that there is, and what was lost before."""

    start: Offsets
    losses: list[Loss]


def gone(tp: TopicPartition, start: int) -> Loss:
    return Loss(tp, f"{tp} is gone, with everything from offset {start} on")


def trimmed(tp: TopicPartition, start: int, end: int) -> Loss:
    return Loss(tp, f"offsets {start} to {end - 1} of {tp} are gone")


def beyond_end(tp: TopicPartition, offset: int, end: int) -> Loss:
    return Loss(
        tp,
        f"{tp} ends at offset {end} and cannot be read from {offset} on: it was truncated, or "
        f"deleted and created again",
    )


def recreated(tp: TopicPartition, offset: int) -> Loss:
    return Loss(
        tp,
        f"topic {tp.topic} was deleted and created again: what {tp} had from offset {offset} on "
        f"may be lost",
    )


def is_other_topic(known: str | None, found: str | None) -> bool:
    return known is not None and found is not None and known != found


def past_latest(
    offsets: Mapping[TopicPartition, int], bounds: Mapping[TopicPartition, Bounds]
) -> list[TopicPartition]:
    """Partitions with an offset above what may be read now. An open transaction explains that as
    well as a replaced log does, so the caller looks where they really end."""
    return [tp for tp, at in offsets.items() if tp in bounds and at > bounds[tp].latest]


def continued(
    done: StreamOffset,
    bounds: Mapping[TopicPartition, Bounds],
    ends: Mapping[TopicPartition, int],
) -> Continuation:
    """Where a query that stands at `done` goes on. `ends` has the ends of `past_latest`."""
    found = Continuation({}, [])
    for tp in sorted(done.offsets.keys() | bounds.keys()):
        at, bound = done.offsets.get(tp), bounds.get(tp)
        if bound is None:
            found.losses.append(gone(tp, done.offsets[tp]))
            continue
        start, loss = _next_offset(tp, at, done.topic_ids.get(tp.topic), bound, ends.get(tp))
        found.start[tp] = start
        if loss is not None:
            found.losses.append(loss)
    return found


def _next_offset(
    tp: TopicPartition, at: int | None, topic_id: str | None, bound: Bounds, end: int | None
) -> tuple[int, Loss | None]:
    """Where to go on in one partition after `at`, and what is lost before that."""
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
    """What a batch reads, and what it should have read and cannot."""

    ranges: list[OffsetRange]
    losses: list[Loss]


def planned(
    done: StreamOffset,
    until: StreamOffset,
    bounds: Mapping[TopicPartition, Bounds],
    ends: Mapping[TopicPartition, int],
) -> Plan:
    """What can be read between two sets of offsets. `ends` has the ends of those with an offset in
    `past_latest`."""
    found = Plan([], [])
    for tp, end in sorted(until.offsets.items()):
        at, bound, last = done.offsets.get(tp), bounds.get(tp), ends.get(tp)
        before, then = done.topic_ids.get(tp.topic), until.topic_ids.get(tp.topic)
        if at == end and not is_other_topic(before, then):
            continue
        if bound is None:
            found.losses.append(gone(tp, at or 0))
            continue
        if is_other_topic(then, bound.topic_id):  # since this batch was planned for the first time
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
