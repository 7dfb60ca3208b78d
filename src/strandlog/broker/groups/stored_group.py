"""A group as others see it: as a record to keep, as a description, as a rule for its offsets.

A persisted member has the metadata of the chosen protocol only; after a restart it offers just
that one until it joins again, as in Kafka. Whatever was going on (a rebalance, promised ids) is
not persisted: the group comes back as it was after its last completed rebalance, and members that
were further on hear IllegalGenerationError or UnknownMemberError and join again.
"""

from __future__ import annotations

from strandlog.broker.groups.group import Group
from strandlog.broker.groups.offsets import ExpiryRule
from strandlog.broker.groups.rebalance import EMPTY, STABLE, RebalancingGroup
from strandlog.broker.groups.requests import (
    GroupDescription,
    GroupListing,
    Member,
    MemberDescription,
    MemberProtocol,
)
from strandlog.errors import DataError
from strandlog.protocol.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from strandlog.protocol.group_records import GroupValue, MemberValue


def group_value(group: RebalancingGroup) -> GroupValue:
    """What is kept of the group."""
    members = tuple(
        MemberValue(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            member.rebalance_timeout_ms,
            member.session_timeout_ms,
            member.metadata_for(group.protocol_name),
            member.assignment,
        )
        for member in group.roster
    )
    return GroupValue(
        group.protocol_type or "",
        group.generation,
        group.protocol_name,
        group.roster.leader_id,
        group.state_since_ms,
        members,
    )


def restore_group(group: Group, value: GroupValue) -> None:
    """Puts back what was kept; `DataError`, with the group untouched, when it makes no sense."""
    ids = [member.member_id for member in value.members]
    instances = [m.group_instance_id for m in value.members if m.group_instance_id is not None]
    if len(set(ids)) < len(ids) or len(set(instances)) < len(instances):
        raise DataError(f"group {group.group_id!r} was kept with the same member twice")
    group.protocol_type = value.protocol_type or None
    for kept in value.members:
        member = Member(
            kept.member_id,
            kept.group_instance_id,
            kept.client_id,
            kept.client_host,
            value.protocol_type,
            (MemberProtocol(value.protocol_name or "", kept.subscription),),
            kept.session_timeout_ms,
            kept.rebalance_timeout_ms,
        )
        member.assign(kept.assignment)
        group.roster.add(member)
    if value.leader in group.roster:
        group.roster.leader_id = value.leader
    group.restore(value.generation, value.state_timestamp_ms, value.protocol_name)


def listing(group: Group) -> GroupListing:
    return GroupListing(group.group_id, group.protocol_type or "", str(group.state))


def description(group: Group) -> GroupDescription:
    """As Kafka describes it: assignor, metadata and assignments are there in Stable only."""
    is_stable = group.state is STABLE
    members = tuple(
        MemberDescription(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            member.metadata_for(group.protocol_name) if is_stable else b"",
            member.assignment if is_stable else b"",
        )
        for member in group.roster
    )
    return GroupDescription(
        group.group_id,
        str(group.state),
        group.protocol_type or "",
        (group.protocol_name or "") if is_stable else "",
        group.generation,
        members,
    )


def expiry_rule(group: Group) -> ExpiryRule | None:
    """How the group's offsets grow old; None when they do not. The table is in offset_store.py."""
    if group.protocol_type is None:
        return ExpiryRule()
    if group.state is EMPTY:
        return ExpiryRule(not_before_ms=group.state_since_ms)
    topics = group.subscribed_topics()
    if group.state is STABLE and group.protocol_type == CONSUMER_PROTOCOL_TYPE and topics:
        return ExpiryRule(kept_topics=topics)
    return None
