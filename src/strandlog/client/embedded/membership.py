"""The group membership of an embedded consumer, driven step by step.

It sends the same requests as a remote member: join, sync, heartbeat, commit, leave. No method waits
for other members; `step` advances the membership as far as possible and is called on every poll.

    outside ──join──▶ joining ──all joined──▶ syncing ──leader assigned──▶ member
       ▲                 ▲                                                  │  │
       │                 └────────── rebalance: rejoin with the same id ────┘  │
       └───────────────────────── unknown member or old generation ────────────┘

An error while joining or syncing leads back to outside, or to a new join. A member also rejoins if
a partition count changes, or if a cooperative assignment has taken partitions from it.

In a rebalance, every member must rejoin, which normally happens when it polls. Within one process,
a consumer could thus wait for another one that the same thread polls only later. A waiting member
therefore makes the other members in this process rejoin immediately, unless they have returned
records that are not committed. A member with uncommitted records keeps its partitions until it
commits, polls or closes, like any Kafka client. A member that has rejoined returns no records until
it has its new assignment, because it may be about to lose its partitions.

Members request an id before they join, so that a member that gives up while waiting can leave.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from strandlog.broker.deferred import Deferred
from strandlog.broker.groups.assignors import assign, member_subscription
from strandlog.broker.groups.requests import (
    CommitRequest,
    JoinRequest,
    JoinResult,
    MemberProtocol,
    SyncRequest,
    SyncResult,
)
from strandlog.client.record_source import GroupSubscription
from strandlog.errors import (
    IllegalGenerationError,
    MemberIdRequiredError,
    RebalanceInProgressError,
    StorageError,
    StrandlogError,
    UnknownMemberError,
)
from strandlog.model import OffsetAndMetadata, TopicPartition
from strandlog.protocol.consumer_protocol import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

if TYPE_CHECKING:
    from strandlog.client.embedded.log import Log

COOPERATIVE = "cooperative-sticky"
MAX_ROUNDS = 10  # per step; each round advances the members of the group in this process


class Membership:
    """One consumer's membership in a group."""

    def __init__(self, log: Log, wish: GroupSubscription) -> None:
        self.group = wish.group
        self.assignment: list[TopicPartition] = []
        self._log = log
        self._wish = wish
        self._member_id = ""
        self._generation = -1
        self._wants_to_join = True
        self._join: Deferred[JoinResult] | None = None
        self._sync: Deferred[SyncResult] | None = None
        self._partition_counts: dict[str, int] = {}

    @property
    def is_member(self) -> bool:
        """Whether the assignment belongs to the current generation."""
        return not self._wants_to_join and self._join is None and self._sync is None

    def step(self) -> None:
        """Advance as far as possible, together with the other members in this process."""
        has_moved = self._advance()
        for _ in range(MAX_ROUNDS):
            if self.is_member and not has_moved:
                return
            others = [each for each in self._log.memberships(self.group) if each is not self]
            # A list rather than a generator, so that every member advances in each round.
            have_moved = [other.advance_if_settled() for other in others]
            has_moved = self._advance()
            if not has_moved and not any(have_moved):
                return

    def advance_if_settled(self) -> bool:
        """Advance to unblock a waiting member, unless this one has uncommitted records."""
        may_go_on = not self.is_member or self._wish.is_settled()
        return may_go_on and self._advance()

    def _advance(self) -> bool:
        """Take all steps that need no waiting; return whether there were any besides a
        heartbeat."""
        has_moved = False
        if self.is_member:
            self._heartbeat()
        if self._wants_to_join and self._join is None:
            self._send_join()
            has_moved = True
        if self._join is not None and self._join.is_done:
            self._take_join()
            has_moved = True
        if self._sync is not None and self._sync.is_done:
            self._take_sync()
            has_moved = True
        return has_moved

    def _heartbeat(self) -> None:
        if self._topics_grew():
            self._wants_to_join = True
            return
        try:
            self._log.broker.heartbeat(
                self._log.context, self.group, self._generation, self._member_id
            )
        except RebalanceInProgressError:
            self._wants_to_join = True
        except (UnknownMemberError, IllegalGenerationError):
            self._reset()

    def _topics_grew(self) -> bool:
        """Return whether the partition count of a topic has changed since the last join."""
        return any(
            self._log.partition_count_or_zero(topic) != count
            for topic, count in self._partition_counts.items()
        )

    def _reset(self) -> None:
        """Start over without partitions, as a new member: the group has rejected this one."""
        self._member_id, self._generation = "", -1
        self._wants_to_join, self._join, self._sync = True, None, None
        self._own([])

    def _own(self, assignment: list[TopicPartition]) -> None:
        self.assignment = assignment
        self._wish.on_assigned(assignment)

    def _send_join(self) -> None:
        if self.assignment:
            self._wish.before_rejoin()
        subscription = Subscription(
            topics=tuple(self._wish.topics), owned_partitions=tuple(self.assignment)
        )
        metadata = encode_subscription(subscription)
        request = JoinRequest(
            group_id=self.group,
            session_timeout_ms=self._wish.max_poll_interval_ms,
            rebalance_timeout_ms=self._wish.max_poll_interval_ms,
            protocols=tuple(MemberProtocol(name, metadata) for name in self._wish.assignors),
        )
        self._member_id = self._member_id or self._ask_for_id(request)
        request = replace(request, member_id=self._member_id)
        self._join = self._log.broker.join_group(self._log.context, request)
        self._wants_to_join = False

    def _ask_for_id(self, request: JoinRequest) -> str:
        request = replace(request, require_member_id=True)
        try:
            self._log.broker.join_group(self._log.context, request).result()
        except MemberIdRequiredError as required:
            return required.member_id
        raise AssertionError("a new member gets its id before it joins")

    def _take_join(self) -> None:
        assert self._join is not None
        pending, self._join = self._join, None
        try:
            result = pending.result()
        except (UnknownMemberError, RebalanceInProgressError):
            self._reset()
            return
        except StrandlogError:
            self._wants_to_join = True
            raise
        self._generation = result.generation
        self._partition_counts = self._counts(self._wish.topics)
        request = SyncRequest(
            group_id=self.group,
            generation=self._generation,
            member_id=self._member_id,
            assignments=self._assignments(result) if result.is_leader else {},
        )
        self._sync = self._log.broker.sync_group(self._log.context, request)

    def _assignments(self, result: JoinResult) -> dict[str, bytes]:
        """Assign partitions to all members, as the leader."""
        members = {
            member.member_id: member_subscription(decode_subscription(member.metadata))
            for member in result.members
        }
        # The leader watches the topics of all members: a follower that rejoins with an unchanged
        # subscription does not trigger a rebalance.
        self._partition_counts = self._counts(
            topic for member in members.values() for topic in member.topics
        )
        assigned = assign(result.protocol_name, members, self._partition_counts)
        return {
            member_id: encode_assignment(Assignment(partitions=tuple(partitions)))
            for member_id, partitions in assigned.items()
        }

    def _take_sync(self) -> None:
        assert self._sync is not None
        pending, self._sync = self._sync, None
        try:
            result = pending.result()
        except RebalanceInProgressError:
            self._wants_to_join = True
            return
        except (UnknownMemberError, IllegalGenerationError):
            self._reset()
            return
        except StorageError:
            self._wants_to_join = True  # the group was not stored: rebalance again
            raise
        assignment = list(decode_assignment(result.assignment).partitions)
        has_lost = not set(self.assignment) <= set(assignment)
        self._own(assignment)
        # A second rebalance assigns the partitions that a cooperative member has given up.
        self._wants_to_join = has_lost and result.protocol_name == COOPERATIVE

    def _counts(self, topics: Iterable[str]) -> dict[str, int]:
        return {topic: self._log.partition_count_or_zero(topic) for topic in topics}

    def commit(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit offsets for partitions that this member owns in the current generation."""
        request = CommitRequest(
            group_id=self.group,
            offsets=offsets,
            member_id=self._member_id,
            generation=self._generation,
        )
        self._log.broker.commit_offsets(self._log.context, request, all_or_nothing=True).result()

    def leave(self) -> None:
        """Leave the group, which triggers an immediate rebalance."""
        # If the group has already removed this member, there is nothing to leave.
        with contextlib.suppress(UnknownMemberError):
            if self._member_id:
                self._log.broker.leave_group(self._log.context, self.group, self._member_id)
        self._own([])
