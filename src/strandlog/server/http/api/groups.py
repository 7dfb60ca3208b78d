"""Lists, describes and deletes groups, and resets their offsets.

Offsets can be reset only while a group has no members: a member would continue from its own
position and overwrite them with its next commit. A reset is a dry run unless `is_dry_run` is false.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Annotated, Literal

from msgspec import Meta, Struct

from strandlog.broker.access.permission import GROUP
from strandlog.broker.context import RequestContext
from strandlog.broker.groups.requests import CommitRequest, MemberDescription
from strandlog.broker.reads.offset_lookup import NOT_FOUND
from strandlog.broker.topics.topic import PartitionState
from strandlog.errors import (
    DataError,
    GroupNotEmptyError,
    GroupNotFoundError,
    TopicNotFoundError,
)
from strandlog.model import IsolationLevel, OffsetAndMetadata, TopicPartition, is_internal_group
from strandlog.protocol.consumer_protocol import CONSUMER_PROTOCOL_TYPE, decode_assignment
from strandlog.server.background import as_future
from strandlog.server.http.api.session import operation_names
from strandlog.server.http.metrics.snapshot import GroupSnapshot, group_offsets, group_snapshots
from strandlog.server.http.problems import bad_request
from strandlog.server.http.records.payload import printable
from strandlog.server.http.routing import ApiRequest, Nothing
from strandlog.server.http.state import HttpState

Number = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Offset = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class GroupSummary(Struct):
    """A group in a list; `lag` is summed over all of its partitions."""

    group: str
    state: str
    protocol_type: str
    members: int
    topics: list[str]
    lag: int


class GroupList(Struct):
    """Groups, ordered by name."""

    groups: list[GroupSummary]


class GroupsQuery(Struct, forbid_unknown_fields=True):
    """Which groups to list. Internal groups, which record the commits of Spark sinks and whose lag
    is meaningless, are omitted unless `internal` is true."""

    internal: bool = False


class PartitionName(Struct):
    """A partition of a topic."""

    topic: str
    partition: int


class GroupMember(Struct):
    """A member and its assignment."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    partitions: list[PartitionName]


class GroupPosition(Struct):
    """A committed offset, and the member that the partition is assigned to."""

    topic: str
    partition: int
    offset: int
    start_offset: int
    end_offset: int
    lag: int
    metadata: str
    committed_ms: int
    member_id: str | None


class GroupDescription(Struct):
    """A group with its members, its committed offsets, and the operations that the client may
    perform on it."""

    group: str
    state: str
    protocol_type: str
    protocol_name: str
    generation: int
    lag: int
    members: list[GroupMember]
    positions: list[GroupPosition]
    operations: list[str]


class OffsetReset(Struct, forbid_unknown_fields=True):
    """A reset of offsets in one topic (or some of its partitions), or in all topics of the group.

    If `to` is "offset", `offset` is required; if it is "time", `time_ms` is required. An offset
    that is out of range is replaced by the nearest valid offset."""

    to: Literal["earliest", "latest", "offset", "time"]
    topic: str | None = None
    partitions: list[Number] | None = None
    offset: Offset | None = None
    time_ms: Offset | None = None
    is_dry_run: bool = True


class OffsetChange(Struct):
    """A change to one committed offset; `before` is null if there was none."""

    topic: str
    partition: int
    before: int | None
    after: int
    lag_after: int


class OffsetResetResult(Struct):
    """The offsets that a reset changes, or would change if it is a dry run. Unless it is a dry
    run, the group must have no members."""

    is_dry_run: bool
    members: int
    changes: list[OffsetChange]


async def list_groups(state: HttpState, request: ApiRequest[GroupsQuery, None]) -> GroupList:
    broker, context = state.broker, request.context
    await as_future(broker.make_visible(context))
    found = await group_snapshots(broker, context)
    is_all = request.query.internal
    return GroupList(
        [_summary(each) for each in found if is_all or not is_internal_group(each.group)]
    )


def _summary(found: GroupSnapshot) -> GroupSummary:
    topics = sorted({each.tp.topic for each in found.offsets})
    return GroupSummary(
        found.group, found.state, found.protocol_type, found.members, topics, found.lag
    )


async def describe_group(state: HttpState, request: ApiRequest[Nothing, None]) -> GroupDescription:
    broker, context = state.broker, request.context
    await as_future(broker.make_visible(context))
    found = broker.describe_group(context, request.path["group"])
    # Decoding assignments with millions of partitions must not block the event loop.
    members, readers = await asyncio.to_thread(_members, found.members, found.protocol_type)
    positions = [
        GroupPosition(
            *each.tp,
            each.committed.offset,
            each.start_offset,
            each.end_offset,
            each.lag,
            printable(each.committed.metadata),
            each.committed.commit_timestamp,
            readers.get(each.tp),
        )
        for each in await group_offsets(broker, context, found.group_id)
    ]
    return GroupDescription(
        found.group_id,
        found.state,
        found.protocol_type,
        found.protocol_name,
        found.generation,
        sum(each.lag for each in positions),
        members,
        positions,
        operation_names(broker, context, GROUP, found.group_id),
    )


def _members(
    found: Iterable[MemberDescription], protocol_type: str
) -> tuple[list[GroupMember], dict[tuple[str, int], str]]:
    """Return the members of a group, and for each assigned partition the id of its member."""
    members = [_member(each, protocol_type) for each in found]
    readers = {
        (each.topic, each.partition): member.member_id
        for member in members
        for each in member.partitions
    }
    return members, readers


def _member(member: MemberDescription, protocol_type: str) -> GroupMember:
    owned: tuple[TopicPartition, ...] = ()
    if protocol_type == CONSUMER_PROTOCOL_TYPE:
        try:
            owned = decode_assignment(member.assignment).partitions
        except DataError:
            owned = ()  # a custom format that only the group's members can decode
    return GroupMember(
        member.member_id,
        member.group_instance_id,
        printable(member.client_id),
        member.client_host,
        [PartitionName(*tp) for tp in sorted(owned)],
    )


async def reset_offsets(
    state: HttpState, request: ApiRequest[Nothing, OffsetReset]
) -> OffsetResetResult:
    group, reset, context = request.path["group"], request.body, request.context
    broker = state.broker
    before = broker.fetch_offsets(context, group)
    try:
        members = broker.member_count(context, group)
    except GroupNotFoundError:
        if reset.topic is None:
            raise
        members = 0  # offsets can be committed for a group before its first member joins
    partitions = _partitions_to_reset(state, context, reset, list(before))
    await as_future(broker.make_visible(context, partitions))
    changes = []
    for tp in partitions:
        found = broker.partition_state(context, *tp)
        offset = await _target(state, context, found, reset)
        old = before.get(tp)
        current = old.offset if isinstance(old, OffsetAndMetadata) else None
        changes.append(OffsetChange(*tp, current, offset, max(0, found.high_watermark - offset)))
    if not reset.is_dry_run:
        if members:
            raise GroupNotEmptyError(group, members)
        offsets = {
            TopicPartition(each.topic, each.partition): OffsetAndMetadata(each.after)
            for each in changes
        }
        commit = CommitRequest(group_id=group, offsets=offsets)
        await as_future(broker.commit_offsets(context, commit, all_or_nothing=True))
    return OffsetResetResult(reset.is_dry_run, members, changes)


def _partitions_to_reset(
    state: HttpState, context: RequestContext, reset: OffsetReset, committed: list[TopicPartition]
) -> list[TopicPartition]:
    broker = state.broker
    if reset.topic is None:
        if reset.partitions is not None:
            raise bad_request("`partitions` requires a `topic`")
        return [tp for tp in sorted(committed) if broker.has_topic(context, tp.topic)]
    count = broker.topic(context, reset.topic).partitions
    numbers = range(count) if reset.partitions is None else sorted(set(reset.partitions))
    for number in numbers:
        if number >= count:
            raise TopicNotFoundError(reset.topic, number, count)
    return [TopicPartition(reset.topic, number) for number in numbers]


async def _target(
    state: HttpState, context: RequestContext, partition: PartitionState, reset: OffsetReset
) -> int:
    start, end = partition.start_offset, partition.high_watermark
    match reset.to:
        case "earliest":
            return start
        case "latest":
            return end
        case "offset":
            if reset.offset is None:
                raise bad_request("resetting to an offset requires `offset`")
            return min(max(reset.offset, start), end)
        case "time":
            if reset.time_ms is None:
                raise bad_request("resetting to a time requires `time_ms`")
            tp = partition.topic, partition.partition
            work = state.broker.list_offset(
                context, *tp, reset.time_ms, IsolationLevel.READ_UNCOMMITTED
            )
            found = await state.decode("offsets by time", work)
            return end if found == NOT_FOUND else found.offset


async def delete_group(state: HttpState, request: ApiRequest[Nothing, None]) -> None:
    await as_future(state.broker.delete_group(request.context, request.path["group"]))
