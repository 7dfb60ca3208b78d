"""Sends ListOffsets to all leaders in parallel: earliest, latest and lookups by timestamp.

The latest offset is the last stable offset for read_committed, otherwise the high watermark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from strandlog.client.wire.cluster import Cluster, broker_error
from strandlog.errors import StrandlogError, UnreachableError
from strandlog.model import IsolationLevel, TimestampOffset, TopicPartition

LIST_OFFSETS = 2
LATEST, EARLIEST = -1, -2


def list_offsets(
    cluster: Cluster, times: Mapping[TopicPartition, int], isolation: IsolationLevel
) -> dict[TopicPartition, TimestampOffset]:
    """Look up a timestamp, LATEST or EARLIEST per partition; offset -1 means no such record."""
    found: dict[TopicPartition, TimestampOffset] = {}

    def attempt() -> None:
        missing = [tp for tp in times if tp not in found]
        try:
            _ask(cluster, {tp: times[tp] for tp in missing}, isolation, found)
        except UnreachableError:
            for tp in missing:
                cluster.forget_topic(tp.topic)
            raise

    cluster.retry(attempt)
    return {tp: found[tp] for tp in times}


def _ask(
    cluster: Cluster,
    times: Mapping[TopicPartition, int],
    isolation: IsolationLevel,
    found: dict[TopicPartition, TimestampOffset],
) -> None:
    replies = []
    for leader, partitions in cluster.by_leader(times).items():
        topics: dict[str, list[dict[str, Any]]] = {}
        for tp in partitions:
            row = {"partition_index": tp.partition, "timestamp": times[tp]}
            topics.setdefault(tp.topic, []).append({"current_leader_epoch": -1, **row})
        body = {
            "replica_id": -1,
            "isolation_level": int(isolation),
            "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
        }
        replies.append(cluster.connection_to(leader).send(LIST_OFFSETS, body))
    failure: StrandlogError | None = None
    for reply in replies:
        for topic in reply.parsed().topics:
            for row in topic.partitions:
                tp = TopicPartition(topic.name, row.partition_index)
                if row.error_code:
                    failure = broker_error(row.error_code, f"looking up offsets of {tp}")
                else:
                    found[tp] = TimestampOffset(row.timestamp, row.offset)
    if failure is not None:
        raise failure


def offsets_at(
    cluster: Cluster, partitions: Iterable[TopicPartition], time: int, isolation: IsolationLevel
) -> dict[TopicPartition, int]:
    """Return the LATEST or EARLIEST offset of each partition."""
    found = list_offsets(cluster, dict.fromkeys(partitions, time), isolation)
    return {tp: row.offset for tp, row in found.items()}


def offset_range(
    cluster: Cluster, tp: TopicPartition, isolation: IsolationLevel
) -> tuple[int, int]:
    """Return (log start offset, end of the readable records) of one partition."""
    first = offsets_at(cluster, [tp], EARLIEST, isolation)[tp]
    return first, offsets_at(cluster, [tp], LATEST, isolation)[tp]
