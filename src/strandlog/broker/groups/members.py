"""A group member, and the ordered member list with its leader, protocol and static members.

This module only makes decisions; `Group` owns the timers and completes the results.

- A member waits for at most one result: `join` while the others rejoin, or `sync` while the leader
  computes the assignment. A repeated request gets the same `Deferred`. The session of a waiting
  member does not expire, because the member cannot send heartbeats. `is_new` members are the
  exception: a client that gave up during its first join has no id to rejoin with.
- The first member is the leader. If the leader leaves, the first remaining member replaces it; if
  it misses a rebalance, the first member that has rejoined does.
- The candidates are the protocols that every member supports. Each member votes for its most
  preferred candidate; the most votes win, and the leader's preference breaks ties.
- A static member is identified by its instance id. When its client restarts, it gets a new member
  id and keeps its position in the list, its leadership and its assignment.
- Members may commit offsets for the partitions they own; see `MemberList.commit_rule`.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from strandlog.broker.context import RequestContext
from strandlog.broker.deferred import Deferred
from strandlog.broker.groups.partition_set import PartitionSet
from strandlog.broker.groups.requests import (
    JoiningMember,
    JoinRequest,
    JoinResult,
    MemberProtocol,
    SyncResult,
)
from strandlog.broker.timers import Timer
from strandlog.config.setting import MAX_INT
from strandlog.errors import (
    DataError,
    FencedInstanceError,
    GroupFullError,
    InconsistentProtocolError,
    UnknownMemberError,
)
from strandlog.model import TopicPartition
from strandlog.protocol.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    Subscription,
    decode_subscription,
)

MIN_REBALANCE_TIMEOUT_MS = 1
# Approximate memory of the objects, excluding the strings and bytes sent by clients.
MEMBER_BYTES = 2000
PROTOCOL_BYTES = 200
PENDING_MEMBER_BYTES = 500


def protocols_bytes(protocols: Iterable[MemberProtocol]) -> int:
    """Return the approximate memory used by a member's protocols."""
    return sum(PROTOCOL_BYTES + len(item.name) + len(item.metadata) for item in protocols)


@dataclass(slots=True, eq=False)
class Member:
    """One member of a group."""

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
    _assigned: PartitionSet | None = None
    _is_assignment_read: bool = False

    @classmethod
    def joining(cls, member_id: str, context: RequestContext, request: JoinRequest) -> Member:
        return cls(
            member_id,
            request.group_instance_id,
            context.client_id,
            context.member_host,
            request.protocol_type,
            request.protocols,
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
        )

    def update(self, context: RequestContext, request: JoinRequest) -> None:
        """Apply the join request of a member that rejoins."""
        self.protocols = request.protocols
        self.client_id = context.client_id
        self.client_host = context.member_host
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
        """Return the member's subscription; None if it is not in the format of the consumer
        protocol."""
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None
        try:
            return decode_subscription(self.metadata_for(protocol_name))
        except DataError:
            return None

    def owned_before(self, protocol_name: str | None) -> frozenset[TopicPartition]:
        """Return the partitions that the member owned when it joined, according to its
        subscription."""
        subscription = self.subscription_for(protocol_name)
        return frozenset() if subscription is None else frozenset(subscription.owned_partitions)

    @property
    def size_bytes(self) -> int:
        """Approximate memory used by the member, including its metadata and assignment."""
        texts = len(self.member_id) + len(self.client_id) + len(self.client_host)
        texts += MEMBER_BYTES + len(self.group_instance_id or "")
        return texts + protocols_bytes(self.protocols) + len(self.assignment)

    def topics_for(self, protocol_name: str | None) -> frozenset[str] | None:
        subscription = self.subscription_for(protocol_name)
        return None if subscription is None else frozenset(subscription.topics)

    def assign(self, assignment: bytes) -> None:
        self.assignment = assignment
        self._is_assignment_read = False

    @property
    def assigned(self) -> PartitionSet | None:
        """The partitions in `assignment`, decoded on first use; None if it is not in the format of
        the consumer protocol."""
        if not self._is_assignment_read:
            self._is_assignment_read = True
            self._assigned = None
            if self.protocol_type == CONSUMER_PROTOCOL_TYPE:
                with contextlib.suppress(DataError):
                    self._assigned = PartitionSet.of_assignment(self.assignment)
        return self._assigned


class MemoryMeter:
    """The number of members in all groups, and the approximate memory that they use."""

    __slots__ = ("_max_members", "member_count", "total_bytes")

    def __init__(self, max_members: int = MAX_INT) -> None:
        self._max_members = max_members
        self.member_count = 0
        self.total_bytes = 0

    def check_room(self) -> None:
        """Raise `GroupFullError` if there is no room for another member."""
        if self.member_count >= self._max_members:
            raise GroupFullError(
                f"all groups together have {self.member_count} members: raise "
                f"groups.max.members ({self._max_members}), or use fewer"
            )


class MemberList:
    """The members of one group.

    Values that every join needs (the number of waiting members, the common protocols and the
    longest timeout) are updated as members join and leave, so a join does not examine all members.
    """

    __slots__ = (
        "_absent",
        "_all_assigned",
        "_by_id",
        "_changes",
        "_joined",
        "_members",
        "_meter",
        "_next_position",
        "_offers",
        "_positions",
        "_static",
        "_timeouts",
        "_topics",
        "leader_id",
        "size_bytes",
    )

    def __init__(self, meter: MemoryMeter | None = None) -> None:
        self._meter = meter or MemoryMeter()
        self._members: dict[int, Member] = {}  # by position, in order of first join
        self._positions: dict[Member, int] = {}
        self._next_position = 0
        self._by_id: dict[str, Member] = {}
        self._static: dict[str, Member] = {}  # by group.instance.id
        self._joined: dict[Member, None] = {}  # members waiting for the rebalance to end
        self._absent: dict[Member, None] = {}  # dynamic members that have not rejoined yet
        self._offers: Counter[str] = Counter()  # number of members that support each protocol
        self._timeouts: Counter[int] = Counter()  # number of members with each rebalance timeout
        self._changes = 0
        self._topics: tuple[int, str | None, frozenset[str] | None] = (-1, None, None)
        self._all_assigned: tuple[int, PartitionSet] = (-1, PartitionSet())
        self.leader_id: str | None = None
        self.size_bytes = 0  # approximate memory used by the members

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._members.values()))

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._by_id

    def get(self, member_id: str) -> Member | None:
        return self._by_id.get(member_id)

    def static_member(self, group_instance_id: str | None) -> Member | None:
        return None if group_instance_id is None else self._static.get(group_instance_id)

    def find(self, member_id: str, group_instance_id: str | None, group_id: str) -> Member:
        """Return the member with both ids; raise if there is none or if another member has the
        instance id."""
        if group_instance_id is not None:
            holder = self._static.get(group_instance_id)
            if holder is not None and holder.member_id != member_id:
                raise fenced(group_instance_id)
        member = self._by_id.get(member_id)
        if member is None or (group_instance_id not in (None, member.group_instance_id)):
            raise UnknownMemberError(
                f"group {group_id!r} has no member {member_id!r}; join without a member id"
            )
        return member

    # -- waiting members -------------------------------------------------------------------------

    @property
    def joined(self) -> list[Member]:
        """The members that are waiting for the rebalance to end, in the order they joined."""
        return list(self._joined)

    @property
    def joined_count(self) -> int:
        return len(self._joined)

    @property
    def absent_dynamic(self) -> list[Member]:
        """The dynamic members that have not rejoined, to be removed when the rebalance ends."""
        return list(self._absent)

    def wait_for_join(self, member: Member) -> Deferred[JoinResult]:
        """Mark the member as waiting for the rebalance to end, and return its pending result."""
        if member.join is None:
            member.join = Deferred()
            self._joined[member] = None
            self._absent.pop(member, None)
        return member.join

    def stop_waiting(self, member: Member) -> Deferred[JoinResult] | None:
        """Mark the member as no longer waiting, and return its pending result if there is one."""
        pending, member.join = member.join, None
        if pending is not None:
            self._joined.pop(member, None)
            if not member.is_static and member in self._positions:
                self._absent[member] = None
        return pending

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of all members."""
        return max(MIN_REBALANCE_TIMEOUT_MS, max(self._timeouts, default=0))

    # -- changes ---------------------------------------------------------------------------------

    def add(self, member: Member) -> None:
        assert member.member_id not in self._by_id, "member ids are unique"
        self._members[self._next_position] = member
        self._positions[member] = self._next_position
        self._next_position += 1
        self._by_id[member.member_id] = member
        if member.group_instance_id is not None:
            assert member.group_instance_id not in self._static, "instance ids are unique"
            self._static[member.group_instance_id] = member
        else:
            self._absent[member] = None
        if self.leader_id is None:
            self.leader_id = member.member_id
        self._count(member, 1)

    def remove(self, member: Member) -> None:
        del self._members[self._positions.pop(member)]
        del self._by_id[member.member_id]
        self._absent.pop(member, None)
        self._joined.pop(member, None)
        if member.group_instance_id is not None:
            del self._static[member.group_instance_id]
        if self.leader_id == member.member_id:
            first = next(iter(self._members.values()), None)
            self.leader_id = None if first is None else first.member_id
        self._count(member, -1)

    def update(self, member: Member, context: RequestContext, request: JoinRequest) -> None:
        """Apply the join request of a member that rejoins."""
        self._count(member, -1)
        member.update(context, request)
        self._count(member, 1)

    def assign(self, member: Member, assignment: bytes) -> None:
        """Set the assignment of a member."""
        self.count_bytes(len(assignment) - len(member.assignment))
        member.assign(assignment)
        self._changes += 1

    def rename(self, member: Member, member_id: str) -> None:
        """Give a static member a new id without changing its position."""
        assert member.group_instance_id is not None, "only a static member changes its id"
        if self.leader_id == member.member_id:
            self.leader_id = member_id
        self._count(member, -1)
        del self._by_id[member.member_id]
        member.member_id = member_id
        self._by_id[member_id] = member
        self._count(member, 1)

    def count_bytes(self, change_bytes: int) -> None:
        """Update the memory counters; `change_bytes` is negative if memory was released."""
        self.size_bytes += change_bytes
        self._meter.total_bytes += change_bytes

    @property
    def total_bytes(self) -> int:
        """Approximate memory used by the members of all groups."""
        return self._meter.total_bytes

    def _count(self, member: Member, sign: int) -> None:
        self._changes += 1
        self._meter.member_count += sign
        self.count_bytes(sign * member.size_bytes)
        for name in {item.name for item in member.protocols}:
            self._offers[name] += sign
            if not self._offers[name]:
                del self._offers[name]
        self._timeouts[member.rebalance_timeout_ms] += sign
        if not self._timeouts[member.rebalance_timeout_ms]:
            del self._timeouts[member.rebalance_timeout_ms]

    def elect_joined_leader(self) -> bool:
        """Elect a new leader if the current one has not joined; return False if no member has."""
        if not self._joined:
            return False
        leader = self._by_id.get(self.leader_id or "")
        if leader is None or leader.join is None:
            first = min(self._joined, key=self._positions.__getitem__)
            self.leader_id = first.member_id
        return True

    def check_joiner(
        self, request: JoinRequest, known: Member | None, protocol_type: str | None
    ) -> None:
        """Raise unless the member uses the group's protocol type and shares an assignor with all
        other members, and, if it is new, all groups together have room for it."""
        if known is None:
            self._meter.check_room()
        group = request.group_id
        is_other_type = len(self) > 0 and request.protocol_type != protocol_type
        if not request.protocol_type or is_other_type:
            raise InconsistentProtocolError(
                f"group {group!r} uses protocol type {protocol_type!r}, not "
                f"{request.protocol_type!r}; use another group id"
            )
        others = len(self) - (known is not None)
        own = {item.name for item in known.protocols} if known is not None else set()
        if not any(
            self._offers[item.name] - (item.name in own) == others for item in request.protocols
        ):
            offered = ", ".join(item.name for item in request.protocols) or "none"
            raise InconsistentProtocolError(
                f"none of the assignors ({offered}) is shared by all members of group {group!r}; "
                f"add one that they support"
            )

    def select_protocol(self) -> str:
        members = self._members.values()
        common = {name for name, count in self._offers.items() if count == len(members)}
        assert common, "all members have a protocol in common"
        leader = self._by_id.get(self.leader_id or "") or next(iter(members))
        preferences = [item.name for item in leader.protocols if item.name in common]
        if len(common) == 1:
            return preferences[0]
        votes = Counter(
            next(item.name for item in member.protocols if item.name in common)
            for member in members
        )
        return max(preferences, key=lambda name: votes[name])

    def as_joining(self, protocol_name: str) -> tuple[JoiningMember, ...]:
        """Return all members in the form used in the leader's join result."""
        return tuple(
            JoiningMember(
                member.member_id, member.group_instance_id, member.metadata_for(protocol_name)
            )
            for member in self._members.values()
        )

    def subscribed_topics(self, protocol_name: str | None) -> frozenset[str] | None:
        """Return the topics that any member subscribes to; None if a subscription is invalid."""
        if self._topics[:2] != (self._changes, protocol_name):
            self._topics = (self._changes, protocol_name, self._all_topics(protocol_name))
        return self._topics[2]

    def _all_topics(self, protocol_name: str | None) -> frozenset[str] | None:
        topics: set[str] = set()
        for member in self._members.values():
            wanted = member.topics_for(protocol_name)
            if wanted is None:
                return None
            topics |= wanted
        return frozenset(topics)

    def commit_rule(
        self, member: Member, protocol_name: str | None
    ) -> Callable[[TopicPartition], bool]:
        """Return a function that checks whether `member` may commit an offset for a partition.

        The owner may commit. If no member owns the partition, the member that owned it when it
        joined may commit too, because a cooperative member commits while revoking a partition. A
        member whose assignment is not in the format of the consumer protocol may commit any offset.
        """
        assigned = member.assigned
        owned: frozenset[TopicPartition] | None = None

        def may_commit(partition: TopicPartition) -> bool:
            nonlocal owned
            if assigned is None or partition in assigned:
                return True
            if partition in self._assigned_to_any():
                return False
            if owned is None:
                owned = member.owned_before(protocol_name)
            return partition in owned

        return may_commit

    def _assigned_to_any(self) -> PartitionSet:
        if self._all_assigned[0] != self._changes:
            held = (member.assigned for member in self._members.values())
            union = PartitionSet.union([each for each in held if each is not None])
            self._all_assigned = (self._changes, union)
        return self._all_assigned[1]


def fenced(group_instance_id: str | None) -> FencedInstanceError:
    return FencedInstanceError(
        f"another member uses group.instance.id {group_instance_id!r}; "
        f"stop it or use another instance id"
    )
