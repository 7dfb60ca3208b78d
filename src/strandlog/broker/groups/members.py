"""Who is in a group: the members in the order of their coming, their leader, what they agree on.

Decisions only, no timers and no answers; `Group` drives it.

- Leader: the first member, until it goes or misses a rebalance; then the first that rejoined.
- Protocol: candidates are those that every member offers; each member votes for its own first
  candidate; most votes win, a tie goes to what the leader likes better.
- A static member is found by its instance id; a restarted one takes over its place in the order,
  its leadership and its assignment under a new member id.
- Offsets are committed by owners; see `Roster.commit_rule`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from strandlog.broker.deferred import Deferred
from strandlog.broker.groups.partition_index import PartitionIndex
from strandlog.broker.groups.requests import JoiningMember, JoinRequest, JoinResult, Member
from strandlog.errors import (
    FencedInstanceError,
    InconsistentProtocolError,
    UnknownMemberError,
)
from strandlog.model import TopicPartition

MIN_REBALANCE_TIMEOUT_MS = 1


class Meter:
    """How many bytes the members of all groups have sent and were assigned."""

    __slots__ = ("total_bytes",)

    def __init__(self) -> None:
        self.total_bytes = 0


class Roster:
    """The members of one group.

    What a single request asks (who waits, what all offer, the longest time-out) is counted as
    members come and go, so that its cost does not grow with the group.
    """

    __slots__ = (
        "_absent",
        "_by_id",
        "_changes",
        "_held",
        "_joined",
        "_members",
        "_meter",
        "_next_place",
        "_offers",
        "_places",
        "_static",
        "_timeouts",
        "_topics",
        "leader_id",
        "size_bytes",
    )

    def __init__(self, meter: Meter | None = None) -> None:
        self._meter = meter or Meter()
        self._members: dict[int, Member] = {}  # by place, in the order of their coming
        self._places: dict[Member, int] = {}
        self._next_place = 0
        self._by_id: dict[str, Member] = {}
        self._static: dict[str, Member] = {}  # by group.instance.id
        self._joined: dict[Member, None] = {}  # those that wait for the rebalance to end
        self._absent: dict[Member, None] = {}  # dynamic ones that do not wait for it
        self._offers: Counter[str] = Counter()  # how many members offer each protocol
        self._timeouts: Counter[int] = Counter()  # how many have each rebalance time-out
        self._changes = 0
        self._topics: tuple[int, str | None, frozenset[str] | None] = (-1, None, None)
        self._held: tuple[int, PartitionIndex] = (-1, PartitionIndex())
        self.leader_id: str | None = None
        self.size_bytes = 0  # of what members sent and were assigned

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
        """The member, provided that its static name is not in other hands."""
        if group_instance_id is not None:
            holder = self._static.get(group_instance_id)
            if holder is not None and holder.member_id != member_id:
                raise fenced(group_instance_id)
        member = self._by_id.get(member_id)
        if member is None or (group_instance_id not in (None, member.group_instance_id)):
            raise UnknownMemberError(
                f"group {group_id!r} does not know member {member_id!r}; join without an id"
            )
        return member

    # -- who waits -------------------------------------------------------------------------------

    @property
    def joined(self) -> list[Member]:
        """Those that wait for the rebalance to end, in the order of their joining."""
        return list(self._joined)

    @property
    def joined_count(self) -> int:
        return len(self._joined)

    @property
    def absent_dynamic(self) -> list[Member]:
        """Those that have to go when the rebalance ends without them; static ones may be back."""
        return list(self._absent)

    def wait_for_join(self, member: Member) -> Deferred[JoinResult]:
        """The member waits for the rebalance to end."""
        if member.join is None:
            member.join = Deferred()
            self._joined[member] = None
            self._absent.pop(member, None)
        return member.join

    def stop_waiting(self, member: Member) -> Deferred[JoinResult] | None:
        """The member is answered; gives what it waited for."""
        pending, member.join = member.join, None
        if pending is not None:
            self._joined.pop(member, None)
            if not member.is_static and member in self._places:
                self._absent[member] = None
        return pending

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long the slowest member may take."""
        return max(MIN_REBALANCE_TIMEOUT_MS, max(self._timeouts, default=0))

    # -- who comes and goes ----------------------------------------------------------------------

    def add(self, member: Member) -> None:
        assert member.member_id not in self._by_id, "member ids are made once"
        self._members[self._next_place] = member
        self._places[member] = self._next_place
        self._next_place += 1
        self._by_id[member.member_id] = member
        if member.group_instance_id is not None:
            assert member.group_instance_id not in self._static, "replace it instead"
            self._static[member.group_instance_id] = member
        else:
            self._absent[member] = None
        if self.leader_id is None:
            self.leader_id = member.member_id
        self._count(member, 1)

    def remove(self, member: Member) -> None:
        del self._members[self._places.pop(member)]
        del self._by_id[member.member_id]
        self._absent.pop(member, None)
        self._joined.pop(member, None)
        if member.group_instance_id is not None:
            del self._static[member.group_instance_id]
        if self.leader_id == member.member_id:
            first = next(iter(self._members.values()), None)
            self.leader_id = None if first is None else first.member_id
        self._count(member, -1)

    def update(self, member: Member, request: JoinRequest) -> None:
        """A member that joins again says something else."""
        self._count(member, -1)
        member.update(request)
        self._count(member, 1)

    def assign(self, member: Member, assignment: bytes) -> None:
        """Give a member its share."""
        self.weigh(len(assignment) - len(member.assignment))
        member.assign(assignment)
        self._changes += 1

    def rename(self, member: Member, member_id: str) -> None:
        """A static member came back: same place, new id."""
        assert member.group_instance_id is not None, "only a static member changes its id"
        if self.leader_id == member.member_id:
            self.leader_id = member_id
        self._count(member, -1)
        del self._by_id[member.member_id]
        member.member_id = member_id
        self._by_id[member_id] = member
        self._count(member, 1)

    def weigh(self, change_bytes: int) -> None:
        """Note that the group keeps more, or less."""
        self.size_bytes += change_bytes
        self._meter.total_bytes += change_bytes

    @property
    def total_bytes(self) -> int:
        """The same of all groups."""
        return self._meter.total_bytes

    def _count(self, member: Member, sign: int) -> None:
        self._changes += 1
        self.weigh(sign * member.size_bytes)
        for name in {item.name for item in member.protocols}:
            self._offers[name] += sign
            if not self._offers[name]:
                del self._offers[name]
        self._timeouts[member.rebalance_timeout_ms] += sign
        if not self._timeouts[member.rebalance_timeout_ms]:
            del self._timeouts[member.rebalance_timeout_ms]

    def elect_joined_leader(self) -> bool:
        """Makes sure that the leader is one that joined; False when none did."""
        if not self._joined:
            return False
        leader = self._by_id.get(self.leader_id or "")
        if leader is None or leader.join is None:
            first = min(self._joined, key=self._places.__getitem__)
            self.leader_id = first.member_id
        return True

    def check_protocols(
        self, request: JoinRequest, known: Member | None, protocol_type: str | None
    ) -> None:
        """Lets in only who speaks the group's protocol type and shares an assignor with all
        others."""
        group = request.group_id
        is_other_type = len(self) > 0 and request.protocol_type != protocol_type
        if not request.protocol_type or is_other_type:
            raise InconsistentProtocolError(
                f"group {group!r} speaks {protocol_type!r}, not {request.protocol_type!r}; "
                f"use another group id"
            )
        others = len(self) - (known is not None)
        own = {item.name for item in known.protocols} if known is not None else set()
        if not any(
            self._offers[item.name] - (item.name in own) == others for item in request.protocols
        ):
            offered = ", ".join(item.name for item in request.protocols) or "none"
            raise InconsistentProtocolError(
                f"no assignor offered ({offered}) is shared by all members of group {group!r}; "
                f"add one that they have"
            )

    def select_protocol(self) -> str:
        members = self._members.values()
        common = {name for name, count in self._offers.items() if count == len(members)}
        assert common, "a member that shares no protocol is not let in"
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
        """What the leader gets to see."""
        return tuple(
            JoiningMember(
                member.member_id, member.group_instance_id, member.metadata_for(protocol_name)
            )
            for member in self._members.values()
        )

    def subscribed_topics(self, protocol_name: str | None) -> frozenset[str] | None:
        """Every topic that a member subscribed to; None when one of them cannot be read."""
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
        """Whether `member` may move the group's offset in a partition.

        The owner may. So may the member that held the partition when it joined, as long as none
        holds it now: a cooperative member commits for a partition that it is just giving up.
        """
        assigned = member.assigned
        owned: frozenset[TopicPartition] | None = None

        def may_commit(partition: TopicPartition) -> bool:
            nonlocal owned
            if assigned is None or partition in assigned:
                return True
            if partition in self._held_by_any():
                return False
            if owned is None:
                owned = member.owned_before(protocol_name)
            return partition in owned

        return may_commit

    def _held_by_any(self) -> PartitionIndex:
        if self._held[0] != self._changes:
            held = (member.assigned for member in self._members.values())
            union = PartitionIndex.union([each for each in held if each is not None])
            self._held = (self._changes, union)
        return self._held[1]


def fenced(group_instance_id: str | None) -> FencedInstanceError:
    return FencedInstanceError(
        f"another member runs under group.instance.id {group_instance_id!r}; "
        f"stop it or use another instance id"
    )
