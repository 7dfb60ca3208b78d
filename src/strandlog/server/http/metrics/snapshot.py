"""What is known about all partitions and all groups, taken down without keeping the loop busy.

Thousands of partitions are looked at in slices; between two of them Kafka's clients have their
turn. So the picture is not of one moment: a topic that goes meanwhile may be in it or not, and each
row is true by itself.
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


class PartitionFacts(NamedTuple):
    """One partition."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int  # what readers may see: the high watermark
    size_bytes: int
    segments: int


class GroupOffset(NamedTuple):
    """Where a group stands in one partition."""

    tp: TopicPartition
    committed: OffsetAndMetadata
    start_offset: int
    end_offset: int

    @property
    def lag(self) -> int:
        """How many offsets lie before it; what was deleted meanwhile does not."""
        return max(0, self.end_offset - max(self.committed.offset, self.start_offset))


class GroupFacts(NamedTuple):
    """One group."""

    group: str
    state: str
    protocol_type: str
    members: int
    offsets: list[GroupOffset]

    @property
    def lag(self) -> int:
        return sum(each.lag for each in self.offsets)


async def partition_facts(broker: Broker) -> list[PartitionFacts]:
    """Every partition, by topic and number."""
    found: list[PartitionFacts] = []
    since_pause = 0
    for name in broker.catalog.names():
        try:
            logs = list(broker.catalog.logs(name))
        except TopicNotFoundError:
            continue  # deleted while others had their turn
        for log in logs:
            found.append(facts_of(log))
            since_pause += 1
            if since_pause == PARTITIONS_AT_ONCE:
                since_pause = 0
                await asyncio.sleep(0)
    return found


def facts_of(log: PartitionLog) -> PartitionFacts:
    return PartitionFacts(
        *log.tp,
        log.log_start_offset,
        log.high_watermark,
        log.segments.size_bytes,
        len(log.segments),
    )


async def group_facts(broker: Broker) -> list[GroupFacts]:
    """Every group, by name."""
    found: list[GroupFacts] = []
    for number, listing in enumerate(broker.group_coordinator.list_groups(), 1):
        try:
            members = broker.group_coordinator.member_count(listing.group_id)
        except GroupNotFoundError:
            continue
        offsets = await group_offsets(broker, listing.group_id)
        found.append(
            GroupFacts(listing.group_id, listing.state, listing.protocol_type, members, offsets)
        )
        if not number % GROUPS_AT_ONCE:
            await asyncio.sleep(0)
    return found


async def group_offsets(broker: Broker, group: str) -> list[GroupOffset]:
    """Where a group stands, by topic and partition; topics that are gone are left out."""
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
