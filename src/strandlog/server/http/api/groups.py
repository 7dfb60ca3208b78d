"""Groups over HTTP: who is in them, where they stand, how far behind; move them, forget them.

Offsets of a group are moved while it has no members: a member would go on from its own position and
commit over it. A reset tells what it would do unless `is_dry_run` is false.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from msgspec import Meta, Struct

from strandlog.broker.groups.requests import CommitRequest, MemberDescription
from strandlog.errors import DataError, GroupNotEmptyError, GroupNotFoundError
from strandlog.model import OffsetAndMetadata, TopicPartition
from strandlog.protocol.consumer_protocol import CONSUMER_PROTOCOL_TYPE, decode_assignment
from strandlog.server.awaiting import all_visible, decoded, group_durable, visible
from strandlog.server.http.metrics.snapshot import GroupSnapshot, group_offsets, group_snapshots
from strandlog.server.http.problems import bad_request
from strandlog.server.http.records.payload import printable
from strandlog.server.http.routing import ApiRequest, Nothing
from strandlog.server.http.state import HttpState
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.partition.time_lookup import finding_timestamp

Number = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Offset = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class GroupSummary(Struct):
    """A group in a list; `lag` is how many offsets it has before it."""

    group: str
    state: str
    protocol_type: str
    members: int
    topics: list[str]
    lag: int


class GroupList(Struct):
    """Groups by name."""

    groups: list[GroupSummary]


class PartitionName(Struct):
    """A partition of a topic."""

    topic: str
    partition: int


class GroupMember(Struct):
    """A member, and what it was given to read."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    partitions: list[PartitionName]


class GroupPosition(Struct):
    """Where a group stands in a partition, and who reads it."""

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
    """A group with its members and positions."""

    group: str
    state: str
    protocol_type: str
    protocol_name: str
    generation: int
    lag: int
    members: list[GroupMember]
    positions: list[GroupPosition]


class OffsetReset(Struct, forbid_unknown_fields=True):
    """Where to move a group: in one topic (some partitions of it), or wherever it stands.

    `to` offset needs `offset`, `to` time needs `time_ms`; what lies outside a partition becomes its
    nearest end."""

    to: Literal["earliest", "latest", "offset", "time"]
    topic: str | None = None
    partitions: list[Number] | None = None
    offset: Offset | None = None
    time_ms: Offset | None = None
    is_dry_run: bool = True


class OffsetChange(Struct):
    """One offset that is moved; `before` is null where the group had none."""

    topic: str
    partition: int
    before: int | None
    after: int
    lag_after: int


class OffsetResetResult(Struct):
    """What a reset does, or would do: it is possible while the group has no members."""

    is_dry_run: bool
    members: int
    changes: list[OffsetChange]


async def list_groups(state: HttpState, request: ApiRequest[Nothing, None]) -> GroupList:
    del request
    await all_visible(state.core)
    return GroupList([_summary(facts) for facts in await group_snapshots(state.broker)])


def _summary(facts: GroupSnapshot) -> GroupSummary:
    topics = sorted({each.tp.topic for each in facts.offsets})
    return GroupSummary(
        facts.group, facts.state, facts.protocol_type, facts.members, topics, facts.lag
    )


async def describe_group(state: HttpState, request: ApiRequest[Nothing, None]) -> GroupDescription:
    await all_visible(state.core)
    found = state.broker.group_coordinator.describe(request.path["group"])
    # A large group has millions of partitions; decoding them must not hold other clients up.
    members = await asyncio.to_thread(
        lambda: [_member(each, found.protocol_type) for each in found.members]
    )
    readers = {
        (each.topic, each.partition): member.member_id
        for member in members
        for each in member.partitions
    }
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
        for each in await group_offsets(state.broker, found.group_id)
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
    )


def _member(member: MemberDescription, protocol_type: str) -> GroupMember:
    owned: tuple[TopicPartition, ...] = ()
    if protocol_type == CONSUMER_PROTOCOL_TYPE:
        try:
            owned = decode_assignment(member.assignment).partitions
        except DataError:
            owned = ()  # only its leader's assignor can read it
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
    group, reset = request.path["group"], request.body
    broker = state.broker
    before = broker.group_coordinator.fetch_offsets(group)
    try:
        members = broker.group_coordinator.member_count(group)
    except GroupNotFoundError:
        if reset.topic is None:
            raise
        members = 0  # a group may be given a place before it reads anything
    logs = _logs_to_move(state, reset, list(before))
    await visible(state.core, logs)
    after = {log.tp: await _target(state, log, reset) for log in logs}
    changes = []
    for log in logs:
        old, new = before.get(log.tp), after[log.tp]
        lag = max(0, log.high_watermark - new)
        changes.append(OffsetChange(*log.tp, None if old is None else old.offset, new, lag))
    if not reset.is_dry_run:
        if members:
            raise GroupNotEmptyError(group, members)
        offsets = {tp: OffsetAndMetadata(offset) for tp, offset in after.items()}
        broker.group_coordinator.commit_offsets(CommitRequest(group_id=group, offsets=offsets))
        await group_durable(state.core, group)
    return OffsetResetResult(reset.is_dry_run, members, changes)


def _logs_to_move(
    state: HttpState, reset: OffsetReset, committed: list[TopicPartition]
) -> list[PartitionLog]:
    catalog = state.broker.catalog
    if reset.topic is None:
        if reset.partitions is not None:
            raise bad_request("`partitions` needs a `topic`")
        return [catalog.log(*tp) for tp in sorted(committed) if tp.topic in catalog]
    if reset.partitions is None:
        return list(catalog.logs(reset.topic))
    return [catalog.log(reset.topic, number) for number in sorted(set(reset.partitions))]


async def _target(state: HttpState, log: PartitionLog, reset: OffsetReset) -> int:
    start, end = log.log_start_offset, log.high_watermark
    match reset.to:
        case "earliest":
            return start
        case "latest":
            return end
        case "offset":
            if reset.offset is None:
                raise bad_request("`to` offset needs an `offset`")
            return min(max(reset.offset, start), end)
        case "time":
            if reset.time_ms is None:
                raise bad_request("`to` time needs a `time_ms`")
            steps = finding_timestamp(log, reset.time_ms)
            found = await decoded(state.core, "offsets by time", steps)
            return end if found is None else found.offset


async def delete_group(state: HttpState, request: ApiRequest[Nothing, None]) -> None:
    group = request.path["group"]
    state.broker.group_coordinator.delete(group)
    await group_durable(state.core, group)
