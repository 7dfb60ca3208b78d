"""Converts a group to and from its stored record, and to the description returned to clients.

A stored member contains only the metadata of the selected protocol. As in Kafka, after a restart
the member supports only that protocol until it rejoins. A rebalance in progress and pending members
are not stored: the group returns to the state after its last completed rebalance, and members of a
later generation get IllegalGenerationError or UnknownMemberError and rejoin.
"""

from __future__ import annotations

from strandlog.broker.groups.group import STABLE, Group
from strandlog.broker.groups.members import Member
from strandlog.broker.groups.requests import (
    GroupDescription,
    GroupListing,
    MemberDescription,
    MemberProtocol,
)
from strandlog.errors import DataError
from strandlog.protocol.group_records import GroupValue, MemberValue


def group_value(group: Group) -> GroupValue:
    """Return the record that stores the group."""
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
        for member in group.members
    )
    return GroupValue(
        group.protocol_type or "",
        group.generation,
        group.protocol_name,
        group.members.leader_id,
        group.state_since_ms,
        members,
    )


def restore_group(group: Group, value: GroupValue) -> None:
    """Restore a group from its record.

    Raise `DataError` if the record is invalid; the group is then unchanged.
    """
    ids = [member.member_id for member in value.members]
    instances = [m.group_instance_id for m in value.members if m.group_instance_id is not None]
    if len(set(ids)) < len(ids) or len(set(instances)) < len(instances):
        raise DataError(f"the record of group {group.group_id!r} lists a member twice")
    group.protocol_type = value.protocol_type or None
    for stored in value.members:
        member = Member(
            stored.member_id,
            stored.group_instance_id,
            stored.client_id,
            stored.client_host,
            value.protocol_type,
            (MemberProtocol(value.protocol_name or "", stored.subscription),),
            stored.session_timeout_ms,
            stored.rebalance_timeout_ms,
        )
        member.assign(stored.assignment)
        group.members.add(member)
    if value.leader in group.members:
        group.members.leader_id = value.leader
    group.restore(value.generation, value.state_timestamp_ms, value.protocol_name)


def listing(group: Group) -> GroupListing:
    return GroupListing(group.group_id, group.protocol_type or "", str(group.state))


def description(group: Group) -> GroupDescription:
    """Return the description of a group.

    As in Kafka, it contains the assignor, metadata and assignments only in the Stable state.
    """
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
        for member in group.members
    )
    return GroupDescription(
        group.group_id,
        str(group.state),
        group.protocol_type or "",
        (group.protocol_name or "") if is_stable else "",
        group.generation,
        members,
    )
