"""Metric families of the broker and of each topic, partition, group and lake table.

Each row is a family: name, kind, labels, help, and a function that reads its samples from a
`Snapshot` of the broker. Families that start with kafka_ use kafka_exporter's names and labels, so
that its dashboards and alerts work; with a single broker, some of their values are constant.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from strandlog.broker.broker import SegmentCacheUse
from strandlog.broker.topics.lake_tables import TableState
from strandlog.broker.topics.topic import PartitionState
from strandlog.model import is_internal_group
from strandlog.server.http.metrics.snapshot import GroupOffset, GroupSnapshot

NODE_ID = 0
NO_CACHE_USE = SegmentCacheUse(0, 0, 0, 0)
Sample = tuple[tuple[str, ...], float]  # the label values and the value of a sample


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot of a broker: plain values that any thread may read."""

    figures: Mapping[str, Any]  # the result of `Metrics.snapshot`
    version: str
    address: str
    cluster_id: str
    partitions: list[PartitionState] = field(default_factory=list)
    groups: list[GroupSnapshot] = field(default_factory=list)
    free_bytes: int = 0
    total_bytes: int = 0
    cache: SegmentCacheUse = NO_CACHE_USE
    failed_group_writes: int = 0
    live_clients: int = 0
    tables: list[TableState] = field(default_factory=list)


class Family(NamedTuple):
    """One metric family."""

    name: str
    kind: Literal["counter", "gauge"]
    labels: tuple[str, ...]
    help: str
    samples: Callable[[Snapshot], Iterable[Sample]]


def _one(read: Callable[[Snapshot], float]) -> Callable[[Snapshot], Iterable[Sample]]:
    return lambda snapshot: [((), read(snapshot))]


def _per_partition(
    read: Callable[[PartitionState], float],
) -> Callable[[Snapshot], Iterable[Sample]]:
    return lambda snapshot: [
        ((each.topic, str(each.partition)), read(each)) for each in snapshot.partitions
    ]


def _without_internal(
    samples: Callable[[Snapshot], Iterable[Sample]],
) -> Callable[[Snapshot], Iterable[Sample]]:
    """Leave out the internal groups; the group is the first label."""
    return lambda snapshot: [
        each for each in samples(snapshot) if not is_internal_group(each[0][0])
    ]


def _per_group(read: Callable[[GroupSnapshot], float]) -> Callable[[Snapshot], Iterable[Sample]]:
    return lambda snapshot: [((each.group,), read(each)) for each in snapshot.groups]


def _per_table(read: Callable[[TableState], float]) -> Callable[[Snapshot], Iterable[Sample]]:
    return lambda snapshot: [((each.wanted.topic,), read(each)) for each in snapshot.tables]


def _per_offset(read: Callable[[GroupOffset], float]) -> Callable[[Snapshot], Iterable[Sample]]:
    return lambda snapshot: [
        ((group.group, each.tp.topic, str(each.tp.partition)), read(each))
        for group in snapshot.groups
        for each in group.offsets
    ]


def _per_group_and_topic(
    read: Callable[[GroupOffset], float],
) -> Callable[[Snapshot], Iterator[Sample]]:
    def samples(snapshot: Snapshot) -> Iterator[Sample]:
        for group in snapshot.groups:
            sums: dict[str, float] = defaultdict(float)
            for each in group.offsets:
                sums[each.tp.topic] += read(each)
            for topic, value in sums.items():
                yield (group.group, topic), value

    return samples


def _partition_counts(snapshot: Snapshot) -> Iterator[Sample]:
    counts: dict[str, int] = defaultdict(int)
    for each in snapshot.partitions:
        counts[each.topic] += 1
    for topic, count in counts.items():
        yield (topic,), count


PARTITION = ("topic", "partition")
GROUP_PARTITION = ("consumergroup", "topic", "partition")
GROUP_TOPIC = ("consumergroup", "topic")

# fmt: off
FAMILIES: tuple[Family, ...] = (
    Family("strandlog_info", "gauge", ("version", "cluster_id"), "Always 1; see the labels.",
           lambda snapshot: [((snapshot.version, snapshot.cluster_id), 1)]),
    Family("strandlog_partition_size_bytes", "gauge", PARTITION,
           "Size of a partition's log files.", _per_partition(lambda each: each.size_bytes)),
    Family("strandlog_partition_segments", "gauge", PARTITION,
           "Segments of a partition.", _per_partition(lambda each: each.segments)),
    Family("strandlog_group_lag", "gauge", ("group",),
           "Offsets between a group's committed offsets and the high watermarks of its partitions; "
           "groups of Spark sinks (strandlog-spark-…) are left out: their lag has no meaning.",
           _without_internal(_per_group(lambda each: each.lag))),
    Family("strandlog_table_lag", "gauge", ("topic",),
           "Offsets of a topic, up to the high watermarks, that are not in its lake table.",
           _per_table(lambda each: each.lag)),
    Family("strandlog_table_open_transaction_lag", "gauge", ("topic",),
           "The part of strandlog_table_lag that waits for open transactions to end.",
           _per_table(lambda each: each.open_transaction_lag)),
    Family("strandlog_table_failing", "gauge", ("topic",),
           "1 if the last sync of a topic's lake table failed.",
           _per_table(lambda each: int(each.is_failing))),
    Family("strandlog_table_age_seconds", "gauge", ("topic",),
           "Time since the last sync of a topic's lake table ended; -1 until one has ended.",
           _per_table(lambda each: each.age_ms / 1000 if each.report is not None else -1)),
    Family("strandlog_disk_free_bytes", "gauge", (),
           "Free space on the disk that holds the data folder.", _one(lambda p: p.free_bytes)),
    Family("strandlog_disk_total_bytes", "gauge", (),
           "Size of the disk that holds the data folder.", _one(lambda p: p.total_bytes)),
    Family("strandlog_segment_cache_hits_total", "counter", (),
           "Reads of sealed segments that were already mapped.", _one(lambda p: p.cache.hits)),
    Family("strandlog_segment_cache_misses_total", "counter", (),
           "Reads of sealed segments that had to be mapped first.", _one(lambda p: p.cache.misses)),
    Family("strandlog_segment_cache_evictions_total", "counter", (),
           "Sealed segments unmapped to make room for others.", _one(lambda p: p.cache.evictions)),
    Family("strandlog_segments_mapped", "gauge", (),
           "Sealed segments that are currently memory-mapped.", _one(lambda p: p.cache.mapped)),
    Family("strandlog_failed_group_writes_total", "counter", (),
           "Failed writes by the group coordinator.",
           _one(lambda p: p.failed_group_writes)),
    Family("strandlog_live_clients", "gauge", (),
           "Open /api/v1/live streams.", _one(lambda p: p.live_clients)),
    Family("kafka_brokers", "gauge", (), "Brokers in the cluster.", _one(lambda _: 1)),
    Family("kafka_broker_info", "gauge", ("id", "address"), "Always 1; see the labels.",
           lambda snapshot: [((str(NODE_ID), snapshot.address), 1)]),
    Family("kafka_topic_partitions", "gauge", ("topic",),
           "Partitions of a topic.", _partition_counts),
    Family("kafka_topic_partition_current_offset", "gauge", PARTITION,
           "High watermark: the offset after the last record that consumers can read.",
           _per_partition(lambda each: each.high_watermark)),
    Family("kafka_topic_partition_oldest_offset", "gauge", PARTITION,
           "Log start offset.", _per_partition(lambda each: each.start_offset)),
    Family("kafka_topic_partition_leader", "gauge", PARTITION,
           "Node id of the leader of a partition.", _per_partition(lambda _: NODE_ID)),
    Family("kafka_topic_partition_replicas", "gauge", PARTITION,
           "Replicas of a partition.", _per_partition(lambda _: 1)),
    Family("kafka_topic_partition_in_sync_replica", "gauge", PARTITION,
           "In-sync replicas of a partition.", _per_partition(lambda _: 1)),
    Family("kafka_topic_partition_leader_is_preferred", "gauge", PARTITION,
           "1 if the preferred replica is the leader.", _per_partition(lambda _: 1)),
    Family("kafka_topic_partition_under_replicated_partition", "gauge", PARTITION,
           "1 if a partition is under-replicated.", _per_partition(lambda _: 0)),
    Family("kafka_consumergroup_current_offset", "gauge", GROUP_PARTITION,
           "Committed offset of a group in a partition.",
           _per_offset(lambda each: each.committed.offset)),
    Family("kafka_consumergroup_current_offset_sum", "gauge", GROUP_TOPIC,
           "Committed offsets of a group, summed over the partitions of a topic.",
           _per_group_and_topic(lambda each: each.committed.offset)),
    Family("kafka_consumergroup_lag", "gauge", GROUP_PARTITION,
           "Offsets between a group's committed offset and a partition's high watermark; "
           "groups of Spark sinks (strandlog-spark-…) are left out: their lag has no meaning.",
           _without_internal(_per_offset(lambda each: each.lag))),
    Family("kafka_consumergroup_lag_sum", "gauge", GROUP_TOPIC,
           "Lag of a group, summed over the partitions of a topic; "
           "groups of Spark sinks (strandlog-spark-…) are left out: their lag has no meaning.",
           _without_internal(_per_group_and_topic(lambda each: each.lag))),
    Family("kafka_consumergroup_members", "gauge", ("consumergroup",),
           "Members of a group.", _per_group(lambda each: each.members)),
)
# fmt: on
