"""Requests and results of group operations, with Kafka's fields.

The requests carry every field of Kafka's JoinGroup, SyncGroup and OffsetCommit that affects the
result, so that the same code serves members in this process and members on a connection.
`member_id` is "" on the first join; the group then generates an id from the client id in the
`RequestContext` (or the instance id of a static member) and a random suffix.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from strandlog.model import OffsetAndMetadata, TopicPartition
from strandlog.protocol.consumer_protocol import CONSUMER_PROTOCOL_TYPE

NO_MEMBER_ID = ""
NO_GENERATION = -1


class MemberProtocol(NamedTuple):
    """An assignor that a member supports, with the metadata that the leader's assignor reads."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A request to join or rejoin a group."""

    group_id: str
    protocols: tuple[MemberProtocol, ...]
    member_id: str = NO_MEMBER_ID
    group_instance_id: str | None = None
    protocol_type: str = CONSUMER_PROTOCOL_TYPE
    session_timeout_ms: int = 45_000
    rebalance_timeout_ms: int = 300_000
    require_member_id: bool = False
    """JoinGroup v4+: a new member first gets its id, so that a retry does not add it twice."""
    supports_skip_assignment: bool = False
    """JoinGroup v9+: the response may ask a returning static leader to skip the assignment."""
    reason: str = ""


class JoiningMember(NamedTuple):
    """A member in the leader's join result."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


class JoinResult(NamedTuple):
    """Membership in a generation. Only the leader, which assigns partitions, gets `members`."""

    generation: int
    protocol_type: str
    protocol_name: str
    leader: str
    member_id: str
    members: tuple[JoiningMember, ...] = ()
    skip_assignment: bool = False

    @property
    def is_leader(self) -> bool:
        return self.leader == self.member_id


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """A member's request for its assignment; the leader's also carries all assignments."""

    group_id: str
    generation: int
    member_id: str
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)


class SyncResult(NamedTuple):
    protocol_type: str
    protocol_name: str
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRequest:
    """Offsets to commit for a member or a simple consumer (no member id, generation -1)."""

    group_id: str
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    member_id: str = NO_MEMBER_ID
    generation: int = NO_GENERATION
    group_instance_id: str | None = None


class MemberDescription(NamedTuple):
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class GroupDescription(NamedTuple):
    group_id: str
    state: str
    protocol_type: str
    protocol_name: str
    generation: int
    members: tuple[MemberDescription, ...]

    @property
    def size_bytes(self) -> int:
        """Total size of the members' metadata and assignments."""
        return sum(len(each.metadata) + len(each.assignment) for each in self.members)


class GroupListing(NamedTuple):
    group_id: str
    protocol_type: str
    state: str
