"""One classic consumer group: what its members may ask for, and what they hear in each state.

    state       join of a known member       sync            heartbeat       commit by a member
    Empty       UnknownMember                UnknownMember   UnknownMember   UnknownMember
    Preparing   waits                        Rebalance…      Rebalance…      of its old share
    Completing  unchanged: its generation    waits           ok              Rebalance…
                changed: a new rebalance
    Stable      unchanged follower: its      its assignment  ok              of its share
                generation; else rebalance

Rebalance… is RebalanceInProgressError. A request of another generation is an IllegalGenerationError
in every state. The states and how one follows another are drawn in rebalance.py.

Rules, as Kafka has them:

- A newcomer may be sent away with an id first (MEMBER_ID_REQUIRED). The promise holds for one
  session time-out.
- A member whose request names a static member's instance id but not its member id is fenced.
- A static member that comes back without its id gets its place under a new one; whoever still waits
  under the old id is fenced. In Stable this needs no rebalance if the protocol stays the same and
  (here we are stricter than Kafka, which would hand it partitions that it gave up) its topics do.
- While the group has members, only they may commit.
"""

from __future__ import annotations

from functools import partial

from strandlog.broker.deferred import Deferred
from strandlog.broker.groups.members import fenced
from strandlog.broker.groups.rebalance import (
    COMPLETING,
    EMPTY,
    PREPARING,
    STABLE,
    RebalancingGroup,
)
from strandlog.broker.groups.requests import (
    MEMBER_BYTES,
    NO_MEMBER_ID,
    PROMISE_BYTES,
    JoinRequest,
    JoinResult,
    Member,
    SyncRequest,
    SyncResult,
    sent_bytes,
)
from strandlog.errors import (
    GroupFullError,
    GroupMetadataTooLargeError,
    IllegalGenerationError,
    InconsistentProtocolError,
    MemberIdRequiredError,
    UnknownMemberError,
)

# A client that gives up during its first join cannot say so; Kafka forgets it after five minutes.
NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000


class Group(RebalancingGroup):
    """One group as its members and its coordinator see it."""

    # What members ask for.

    def join(self, request: JoinRequest) -> Deferred[JoinResult]:
        """A place in the next generation, or in this one when nothing changed."""
        with self._completions:
            self._check_joiner(request)
            if request.member_id == NO_MEMBER_ID:
                pending = self._join_first(request)
            else:
                pending = self._join_again(request)
            self._end_join_if_all_are_here()
            return pending

    def sync(self, request: SyncRequest) -> Deferred[SyncResult]:
        """The member's assignment, as soon as the leader has brought it."""
        with self._completions:
            member = self._member_of_generation(
                request.member_id, request.group_instance_id, request.generation
            )
            self._check_agreed(request)
            if self.state is PREPARING:
                raise self._rebalancing()
            if self.state is COMPLETING and member.member_id == self.roster.leader_id:
                self._check_room(sum(map(len, request.assignments.values())))
            self._unsynced.pop(member, None)
            if self.state is STABLE:
                self._restart_session(member)
                self._stop_phase_timer_if_all_synced()
                return Deferred.done(self._sync_result(member))
            if member.sync is None:
                assert self._phase_timer is not None
                member.sync = Deferred(self._phase_timer.deadline_ms)
                self._syncing[member] = None
            pending = member.sync
            if member.member_id == self.roster.leader_id:
                self._adopt(request)
            return pending

    def heartbeat(self, member_id: str, generation: int, instance_id: str | None = None) -> None:
        """The member is alive; the error tells it to join again."""
        member = self._member_of_generation(member_id, instance_id, generation)
        self._restart_session(member)
        if self.state is PREPARING:
            raise self._rebalancing()

    def leave(self, member_id: str, instance_id: str | None = None) -> None:
        """The member goes now. A static one may be named by its instance id alone."""
        with self._completions:
            if member_id in self._promised and instance_id is None:
                self._end_promise(member_id)
                self._end_join_if_all_are_here()
                return
            member = self.roster.static_member(instance_id) if not member_id else None
            member = member or self._member(member_id, instance_id)
            self._remove(member, f"member {member_id!r} left group {self.group_id!r}")

    def committer(self, member_id: str, generation: int, instance_id: str | None) -> Member | None:
        """The member that may commit now; None for a simple consumer of an empty group."""
        if generation < 0 and self.state is EMPTY:
            return None
        if generation < 0 and member_id == NO_MEMBER_ID and instance_id is None:
            raise UnknownMemberError(
                f"group {self.group_id!r} has members, and only they may commit; "
                f"join the group or use another group id"
            )
        member = self._member_of_generation(member_id, instance_id, generation)
        if self.state is COMPLETING:
            raise self._rebalancing()
        self._restart_session(member)
        return member

    # What the coordinator asks for.

    @property
    def is_idle(self) -> bool:
        """No members, and nobody was promised a place."""
        return self.state is EMPTY and not self._promised

    def subscribed_topics(self) -> frozenset[str] | None:
        """Topics of the members' subscriptions; None when they are not known."""
        return self.roster.subscribed_topics(self.protocol_name)

    # Joining.

    def _check_joiner(self, request: JoinRequest) -> None:
        known = self.roster.get(request.member_id)
        known = known or self.roster.static_member(request.group_instance_id)
        if self.state is PREPARING:
            # Whoever rejoins first keeps its place, in case group.max.size was lowered.
            is_welcome = known is not None and known.join is not None
            places_taken = self.roster.joined_count
        else:
            is_welcome, places_taken = known is not None, len(self.roster)
        places_taken += len(self._promised) - (request.member_id in self._promised)
        limit = self._context.settings.group_max_size
        if not is_welcome and places_taken >= limit:
            raise GroupFullError(
                f"group {self.group_id!r} is full: raise group.max.size ({limit}) or join another"
            )
        self.roster.check_protocols(request, known, self.protocol_type)
        old_bytes = -MEMBER_BYTES if known is None else sent_bytes(known.protocols)
        self._check_room(sent_bytes(request.protocols) - old_bytes)

    def _check_room(self, more_bytes: int) -> None:
        """Raise when the group, or all groups, would keep more than they may."""
        settings = self._context.settings
        for name, size, limit in (
            ("group.metadata", self.roster.size_bytes, settings.group_metadata_max_bytes),
            ("groups.metadata", self.roster.total_bytes, settings.groups_metadata_max_bytes),
        ):
            if more_bytes > 0 and size + more_bytes > limit:
                raise GroupMetadataTooLargeError(
                    f"{more_bytes} more bytes for group {self.group_id!r} are over the limit of "
                    f"{limit}; use fewer members or topics, or raise {name}.max.bytes"
                )

    def _join_first(self, request: JoinRequest) -> Deferred[JoinResult]:
        new_id = f"{request.group_instance_id or request.client_id}-{self._context.new_id()}"
        returning = self.roster.static_member(request.group_instance_id)
        if returning is not None:
            return self._take_over(returning, new_id, request)
        if request.require_member_id and request.group_instance_id is None:
            deadline_ms = self._now() + request.session_timeout_ms
            self._promised[new_id] = self._context.timers.schedule(
                deadline_ms, partial(self._on_promise_expired, new_id)
            )
            self.roster.weigh(PROMISE_BYTES)
            raise MemberIdRequiredError(new_id)
        return self._add(new_id, request)

    def _join_again(self, request: JoinRequest) -> Deferred[JoinResult]:
        if request.member_id in self._promised and request.group_instance_id is None:
            self._end_promise(request.member_id)
            return self._add(request.member_id, request)
        member = self._member(request.member_id, request.group_instance_id)
        is_leader = member.member_id == self.roster.leader_id
        is_changed = member.protocols != request.protocols
        # A leader that joins again in Stable wants a rebalance: it saw partitions come or go.
        if is_changed or self.state is PREPARING or (is_leader and self.state is STABLE):
            self.roster.update(member, request)
            return self._wait_for_join(member)
        self._restart_session(member)
        return Deferred.done(self._join_result(member))

    def _add(self, member_id: str, request: JoinRequest) -> Deferred[JoinResult]:
        member = Member.joining(member_id, request)
        if not len(self.roster):
            self.protocol_type = request.protocol_type
        self.roster.add(member)
        self._has_newcomer = True
        self._restart_session(member, NEW_MEMBER_JOIN_TIMEOUT_MS)
        return self._wait_for_join(member)

    def _take_over(self, member: Member, new_id: str, request: JoinRequest) -> Deferred[JoinResult]:
        """A static member came back without its id: fence the old id, keep the place."""
        old_leader = self.roster.leader_id
        old_topics = member.topics_for(self.protocol_name)
        self._turn_away(member, fenced(member.group_instance_id))
        self.roster.rename(member, new_id)
        self.roster.update(member, request)
        member.is_new = False  # it has an id to come back with: its instance id
        self._restart_session(member)
        is_same = (
            self.state is STABLE
            and self.roster.select_protocol() == self.protocol_name
            and member.topics_for(self.protocol_name) == old_topics
        )
        if not is_same or not self._try_save():
            return self._wait_for_join(member)
        result = self._join_result(member)
        if request.supports_skip_assignment:
            return Deferred.done(result._replace(skip_assignment=result.is_leader))
        # Older clients would assign when told that they lead, so they are told of the old id.
        return Deferred.done(result._replace(leader=old_leader or "", members=()))

    def _on_promise_expired(self, member_id: str) -> None:
        with self._completions:
            self._end_promise(member_id)
            self._end_join_if_all_are_here()

    def _end_promise(self, member_id: str) -> None:
        self._promised.pop(member_id).cancel()
        self.roster.weigh(-PROMISE_BYTES)

    def _member(self, member_id: str, instance_id: str | None) -> Member:
        return self.roster.find(member_id, instance_id, self.group_id)

    def _member_of_generation(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> Member:
        member = self._member(member_id, instance_id)
        if generation != self.generation:
            raise IllegalGenerationError(
                f"group {self.group_id!r} is at generation {self.generation}, "
                f"not {generation}; join it again"
            )
        return member

    def _check_agreed(self, request: SyncRequest) -> None:
        agreed = {self.protocol_type, self.protocol_name, None}
        if request.protocol_type not in agreed or request.protocol_name not in agreed:
            raise InconsistentProtocolError(
                f"group {self.group_id!r} agreed on {self.protocol_type!r} with "
                f"{self.protocol_name!r}; join it again"
            )
