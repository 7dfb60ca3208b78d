"""A member of a group, and what members and groups say to each other.

The requests carry every field of Kafka's JoinGroup, SyncGroup and OffsetCommit that changes an
answer, so that a member in this process and one on a socket are served by the same code.
`member_id` is "" on the first join; the group makes one out of the client id (or the instance id
of a static member) and a random part that is handed in.

A member waits in at most one place: `join` while the others rejoin, `sync` while the leader
assigns. A second call while the first is still open gets the same `Deferred`: one wait, one
answer. While it waits, its session does not end, for it cannot send heartbeats; `is_new` members
are the exception, because a client that gave up during its first join has no id to come back
with.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from strandlog.broker.deferred import Deferred
from strandlog.broker.groups.partition_index import PartitionIndex
from strandlog.broker.timers import Timer
from strandlog.errors import DataError
from strandlog.model import OffsetAndMetadata, TopicPartition
from strandlog.protocol.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    Subscription,
    decode_subscription,
)

NO_MEMBER_ID = ""
NO_GENERATION = -1
# What objects take beside the bytes that were sent, about.
MEMBER_BYTES = 2000
PROTOCOL_BYTES = 200
PROMISE_BYTES = 500


class MemberProtocol(NamedTuple):
    """One assignor that a member offers, with the metadata it wants its leader to see."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A member wants in, or wants in again."""

    group_id: str
    protocols: tuple[MemberProtocol, ...]
    member_id: str = NO_MEMBER_ID
    group_instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    protocol_type: str = CONSUMER_PROTOCOL_TYPE
    session_timeout_ms: int = 45_000
    rebalance_timeout_ms: int = 300_000
    require_member_id: bool = False
    """JoinGroup v4+: a newcomer is sent back with its id first, so a lost answer costs nothing."""
    supports_skip_assignment: bool = False
    """JoinGroup v9+: a returning static leader may be told that nothing is to be assigned."""
    reason: str = ""


def sent_bytes(protocols: Iterable[MemberProtocol]) -> int:
    """How much a member sends to its leader."""
    return sum(PROTOCOL_BYTES + len(item.name) + len(item.metadata) for item in protocols)


class JoiningMember(NamedTuple):
    """A member as its leader sees it."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


class JoinResult(NamedTuple):
    """A place in a generation; `members` is for the leader only, who assigns."""

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
    """A member asks for its assignment; the leader brings everybody's."""

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
    """Offsets to keep: by a member, or by nobody in particular (no member id, generation -1)."""

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
        """Of what members sent and were assigned."""
        return sum(len(each.metadata) + len(each.assignment) for each in self.members)


class GroupListing(NamedTuple):
    group_id: str
    protocol_type: str
    state: str


@dataclass(slots=True, eq=False)
class Member:
    """One member, as its group keeps it."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    protocol_type: str
    protocols: tuple[MemberProtocol, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    is_new: bool = True
    join: Deferred[JoinResult] | None = None
    sync: Deferred[SyncResult] | None = None
    session_timer: Timer | None = None
    assignment: bytes = b""
    _assigned: PartitionIndex | None = None
    _is_assignment_read: bool = False

    @classmethod
    def joining(cls, member_id: str, request: JoinRequest) -> Member:
        return cls(
            member_id,
            request.group_instance_id,
            request.client_id,
            request.client_host,
            request.protocol_type,
            request.protocols,
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
        )

    def update(self, request: JoinRequest) -> None:
        """Takes over what a member says when it joins again."""
        self.protocols = request.protocols
        self.client_id = request.client_id
        self.client_host = request.client_host
        self.session_timeout_ms = request.session_timeout_ms
        self.rebalance_timeout_ms = request.rebalance_timeout_ms

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    @property
    def is_waiting(self) -> bool:
        return self.join is not None or self.sync is not None

    def metadata_for(self, protocol_name: str | None) -> bytes:
        return next((item.metadata for item in self.protocols if item.name == protocol_name), b"")

    def subscription_for(self, protocol_name: str | None) -> Subscription | None:
        """What it subscribed to; None when it does not speak the consumer protocol."""
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None
        try:
            return decode_subscription(self.metadata_for(protocol_name))
        except DataError:
            return None

    def owned_before(self, protocol_name: str | None) -> frozenset[TopicPartition]:
        """The partitions that it held when it joined."""
        subscription = self.subscription_for(protocol_name)
        return frozenset() if subscription is None else frozenset(subscription.owned_partitions)

    @property
    def size_bytes(self) -> int:
        """What it keeps of what it sent and was assigned."""
        texts = len(self.member_id) + len(self.client_id) + len(self.client_host)
        texts += MEMBER_BYTES + len(self.group_instance_id or "")
        return texts + sent_bytes(self.protocols) + len(self.assignment)

    def topics_for(self, protocol_name: str | None) -> frozenset[str] | None:
        subscription = self.subscription_for(protocol_name)
        return None if subscription is None else frozenset(subscription.topics)

    def assign(self, assignment: bytes) -> None:
        self.assignment = assignment
        self._is_assignment_read = False

    @property
    def assigned(self) -> PartitionIndex | None:
        """The partitions in `assignment`, read when first asked for; None when only its leader's
        assignor can read it."""
        if not self._is_assignment_read:
            self._is_assignment_read = True
            self._assigned = None
            if self.protocol_type == CONSUMER_PROTOCOL_TYPE:
                with contextlib.suppress(DataError):
                    self._assigned = PartitionIndex.of_assignment(self.assignment)
        return self._assigned
