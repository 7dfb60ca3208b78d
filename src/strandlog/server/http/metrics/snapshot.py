"""Snapshots of partitions, groups and lake tables, taken in slices.

The slices keep the event loop responsive. Other requests run between them, so a snapshot is not a
point-in-time view: a topic that is deleted between two slices may be included or not. Each row is
internally consistent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from strandlog.broker.access.permission import DESCRIBE, GROUP
from strandlog.broker.broker import Broker
from strandlog.broker.context import RequestContext
from strandlog.broker.topics.lake_tables import TableState
from strandlog.broker.topics.topic import PartitionState
from strandlog.errors import GroupNotFoundError, TopicNotFoundError
from strandlog.model import OffsetAndMetadata, TopicPartition

PARTITIONS_AT_ONCE = 200
GROUPS_AT_ONCE = 20


class GroupOffset(NamedTuple):
    """A group's committed offset in one partition."""

    tp: TopicPartition
    committed: OffsetAndMetadata
    start_offset: int
    end_offset: int  # the high watermark

    @property
    def lag(self) -> int:
        """The number of offsets from the committed offset to the end, excluding deleted ones."""
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


async def partition_snapshots(broker: Broker, context: RequestContext) -> list[PartitionState]:
    """Return all partitions that the client may describe, ordered by topic and number."""
    found: list[PartitionState] = []
    since_pause = 0
    for name in broker.topic_names(context):
        try:
            states = await topic_partitions(broker, context, name)
        except TopicNotFoundError:
            continue  # deleted between two slices
        found += states
        since_pause += len(states)
        if since_pause >= PARTITIONS_AT_ONCE:
            since_pause = 0
            await asyncio.sleep(0)
    return found


async def topic_partitions(
    broker: Broker, context: RequestContext, topic: str
) -> list[PartitionState]:
    """Return the partitions of a topic, ordered by number."""
    found = broker.partition_states(context, topic, 0, PARTITIONS_AT_ONCE)
    while len(found) % PARTITIONS_AT_ONCE == 0:
        await asyncio.sleep(0)
        first = len(found)
        more = broker.partition_states(context, topic, first, first + PARTITIONS_AT_ONCE)
        if not more:
            break
        found += more
    return found


async def table_snapshots(broker: Broker, context: RequestContext) -> list[TableState]:
    """Return the lake tables of all topics, ordered by topic."""
    found = []
    for number, name in enumerate(sorted(broker.wanted_tables()), 1):
        state = broker.table_state(context, name)
        if state is not None:
            found.append(state)
        if not number % GROUPS_AT_ONCE:
            await asyncio.sleep(0)
    return found


async def group_snapshots(broker: Broker, context: RequestContext) -> list[GroupSnapshot]:
    """Return all groups that the client may describe, ordered by name."""
    found: list[GroupSnapshot] = []
    for number, listing in enumerate(broker.groups(context), 1):
        if not broker.has_access(context, DESCRIBE.on(GROUP), listing.group_id):
            continue  # the group is listed because the client may describe the cluster
        try:
            members = broker.member_count(context, listing.group_id)
        except GroupNotFoundError:
            continue
        offsets = await group_offsets(broker, context, listing.group_id)
        found.append(
            GroupSnapshot(listing.group_id, listing.state, listing.protocol_type, members, offsets)
        )
        if not number % GROUPS_AT_ONCE:
            await asyncio.sleep(0)
    return found


async def topic_lag(
    broker: Broker, context: RequestContext, group: str, partitions: Sequence[PartitionState]
) -> int:
    """Return the lag of a group in partitions of one topic."""
    lag = 0
    for first in range(0, len(partitions), PARTITIONS_AT_ONCE):
        some = {
            TopicPartition(each.topic, each.partition): each
            for each in partitions[first : first + PARTITIONS_AT_ONCE]
        }
        for tp, value in broker.fetch_offsets(context, group, some).items():
            if isinstance(value, OffsetAndMetadata):
                state = some[tp]
                lag += GroupOffset(tp, value, state.start_offset, state.high_watermark).lag
        await asyncio.sleep(0)
    return lag


async def group_offsets(broker: Broker, context: RequestContext, group: str) -> list[GroupOffset]:
    """Return the committed offsets of a group in existing partitions that the client may describe,
    sorted by topic and partition."""
    committed = broker.fetch_offsets(context, group)
    found = []
    for number, tp in enumerate(sorted(committed), 1):
        if not number % PARTITIONS_AT_ONCE:
            await asyncio.sleep(0)
        value = committed[tp]
        try:
            state = broker.partition_state(context, *tp)
        except TopicNotFoundError:
            continue
        if isinstance(value, OffsetAndMetadata):
            found.append(GroupOffset(tp, value, state.start_offset, state.high_watermark))
    return found
