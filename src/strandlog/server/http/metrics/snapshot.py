"""Snapshots of all partitions and groups, taken in slices so that the event loop stays responsive.

Other requests run between two slices, so a snapshot is not of one moment: a topic that is deleted
meanwhile may be in it or not. Each row is consistent in itself.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from strandlog.broker.broker import Broker
from strandlog.errors import GroupNotFoundError, TopicNotFoundError
from strandlog.model import OffsetAndMetadata, TopicPartition
from strandlog.storage.partition.log import PartitionLog

PARTITIONS_AT_ONCE = 200
GROUPS_AT_ONCE = 20


class PartitionSnapshot(NamedTuple):
    """A partition."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int  # the high watermark: consumers read up to it
    size_bytes: int
    segments: int


class GroupOffset(NamedTuple):
    """A group's committed offset in one partition."""

    tp: TopicPartition
    committed: OffsetAndMetadata
    start_offset: int
    end_offset: int

    @property
    def lag(self) -> int:
        """Offsets between the committed one and the end; deleted records do not count."""
        return max(0, self.end_offset - max(self.committed.offset, self.start_offset))


class GroupSnapshot(NamedTuple):
    """A group and its offsets."""

    group: str
    state: str
    protocol_type: str
    members: int
    offsets: list[GroupOffset]

    @property
    def lag(self) -> int:
        return sum(each.lag for each in self.offsets)


async def partition_snapshots(broker: Broker) -> list[PartitionSnapshot]:
    """Every partition, by topic and number."""
    found: list[PartitionSnapshot] = []
    since_pause = 0
    for name in broker.catalog.names():
        try:
            logs = list(broker.catalog.logs(name))
        except TopicNotFoundError:
            continue  # deleted between two slices
        for log in logs:
            found.append(partition_snapshot(log))
            since_pause += 1
            if since_pause == PARTITIONS_AT_ONCE:
                since_pause = 0
                await asyncio.sleep(0)
    return found


def partition_snapshot(log: PartitionLog) -> PartitionSnapshot:
    return PartitionSnapshot(
        *log.tp,
        log.log_start_offset,
        log.high_watermark,
        log.segments.size_bytes,
        len(log.segments),
    )


async def group_snapshots(broker: Broker) -> list[GroupSnapshot]:
    """Every group, by name."""
    found: list[GroupSnapshot] = []
    for number, listing in enumerate(broker.group_coordinator.list_groups(), 1):
        try:
            members = broker.group_coordinator.member_count(listing.group_id)
        except GroupNotFoundError:
            continue
        offsets = await group_offsets(broker, listing.group_id)
        found.append(
            GroupSnapshot(listing.group_id, listing.state, listing.protocol_type, members, offsets)
        )
        if not number % GROUPS_AT_ONCE:
            await asyncio.sleep(0)
    return found


async def group_offsets(broker: Broker, group: str) -> list[GroupOffset]:
    """The committed offsets of a group, by topic and partition; deleted topics are left out."""
    committed = broker.group_coordinator.fetch_offsets(group)
    found = []
    for number, tp in enumerate(sorted(committed), 1):
        if not number % PARTITIONS_AT_ONCE:
            await asyncio.sleep(0)
        value = committed[tp]
        try:
            log = broker.catalog.log(*tp)
        except TopicNotFoundError:
            continue
        if value is not None:
            found.append(GroupOffset(tp, value, log.log_start_offset, log.high_watermark))
    return found
