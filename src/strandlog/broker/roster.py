"""Who is in a group: the members in the order of their coming, their leader, what they agree on.

Decisions only, no timers and no answers; `Group` drives it.

- Leader: the first member, until it goes or misses a rebalance; then the first that rejoined.
- Protocol: candidates are those that every member offers; each member votes for its own first
  candidate; most votes win, a tie goes to what the leader likes better.
- A static member is found by its instance id; a restarted one takes over its place in the order,
  its leadership and its assignment under a new member id.
- Offsets are committed by owners; see `Roster.may_commit`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from strandlog.broker.group_member import JoiningMember, JoinRequest, Member
from strandlog.errors import (
    FencedInstanceError,
    InconsistentProtocolError,
    UnknownMemberError,
)
from strandlog.model import TopicPartition

MIN_REBALANCE_TIMEOUT_MS = 1


class Roster:
    """The members of one group."""

    __slots__ = ("_members", "_static_ids", "leader_id")

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._static_ids: dict[str, str] = {}
        self.leader_id: str | None = None

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._members.values()))

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._members

    def get(self, member_id: str) -> Member | None:
        return self._members.get(member_id)

    def static_member(self, group_instance_id: str | None) -> Member | None:
        if group_instance_id is None:
            return None
        return self._members.get(self._static_ids.get(group_instance_id, ""))

    def find(self, member_id: str, group_instance_id: str | None, group_id: str) -> Member:
        """The member, provided that its static name is not in other hands."""
        if group_instance_id is not None:
            holder = self._static_ids.get(group_instance_id)
            if holder is not None and holder != member_id:
                raise fenced(group_instance_id)
        member = self._members.get(member_id)
        if member is None or (group_instance_id not in (None, member.group_instance_id)):
            raise UnknownMemberError(
                f"group {group_id!r} does not know member {member_id!r}; join without an id"
            )
        return member

    @property
    def joined(self) -> list[Member]:
        """Those that wait for the rebalance to end."""
        return [member for member in self._members.values() if member.join is not None]

    @property
    def absent_dynamic(self) -> list[Member]:
        """Those that have to go when the rebalance ends without them; static ones may be back."""
        members = self._members.values()
        return [member for member in members if member.join is None and not member.is_static]

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long the slowest member may take."""
        timeouts = (member.rebalance_timeout_ms for member in self._members.values())
        return max(MIN_REBALANCE_TIMEOUT_MS, max(timeouts, default=0))

    def add(self, member: Member) -> None:
        assert member.member_id not in self._members, "member ids are made once"
        self._members[member.member_id] = member
        if member.group_instance_id is not None:
            assert member.group_instance_id not in self._static_ids, "replace it instead"
            self._static_ids[member.group_instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id

    def remove(self, member: Member) -> None:
        del self._members[member.member_id]
        if member.group_instance_id is not None:
            del self._static_ids[member.group_instance_id]
        if self.leader_id == member.member_id:
            self.leader_id = next(iter(self._members), None)

    def rename(self, member: Member, member_id: str) -> None:
        """A static member came back: same place, new id."""
        assert member.group_instance_id is not None, "only a static member changes its id"
        if self.leader_id == member.member_id:
            self.leader_id = member_id
        member.member_id = member_id
        self._members = {each.member_id: each for each in self._members.values()}
        self._static_ids[member.group_instance_id] = member_id

    def elect_joined_leader(self) -> bool:
        """Makes sure that the leader is one that joined; False when nobody did."""
        leader = self._members.get(self.leader_id or "")
        if leader is not None and leader.join is not None:
            return True
        joined = self.joined
        if joined:
            self.leader_id = joined[0].member_id
        return bool(joined)

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
        others = [member for member in self._members.values() if member is not known]
        if not any(
            all(any(offer.name == item.name for offer in other.protocols) for other in others)
            for item in request.protocols
        ):
            offered = ", ".join(item.name for item in request.protocols) or "none"
            raise InconsistentProtocolError(
                f"no assignor offered ({offered}) is shared by all members of group {group!r}; "
                f"add one that they have"
            )

    def select_protocol(self) -> str:
        members = list(self._members.values())
        common = set.intersection(*({item.name for item in each.protocols} for each in members))
        assert common, "a member that shares no protocol is not let in"
        votes = Counter(
            next(item.name for item in member.protocols if item.name in common)
            for member in members
        )
        leader = self._members[self.leader_id] if self.leader_id else members[0]
        preferences = [item.name for item in leader.protocols if item.name in common]
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
        topics: set[str] = set()
        for member in self._members.values():
            wanted = member.topics_for(protocol_name)
            if wanted is None:
                return None
            topics |= wanted
        return frozenset(topics)

    def may_commit(
        self, member: Member, partition: TopicPartition, protocol_name: str | None
    ) -> bool:
        """Whether `member` may move the group's offset in `partition`.

        The owner may. So may the member that held the partition when it joined, as long as nobody
        holds it now: a cooperative member commits for a partition that it is just giving up.
        """
        if member.assigned is None or partition in member.assigned:
            return True
        if any(partition in (each.assigned or ()) for each in self._members.values()):
            return False
        subscription = member.subscription_for(protocol_name)
        return subscription is not None and partition in subscription.owned_partitions


def fenced(group_instance_id: str | None) -> FencedInstanceError:
    return FencedInstanceError(
        f"another member runs under group.instance.id {group_instance_id!r}; "
        f"stop it or use another instance id"
    )
