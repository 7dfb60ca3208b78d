"""The state machine of one consumer group: joins, rebalances, sessions and timeouts.

    Empty                no members; there may be committed offsets
    PreparingRebalance   members join, until all have joined or the rebalance times out
    CompletingRebalance  a new generation has started; members wait for the leader's assignments
    Stable               every member has an assignment
    Dead                 deleted, expired or unused; final

    Empty ──▶ Preparing ──▶ Completing ──▶ Stable         Empty ──▶ Dead
    Preparing ──▶ Empty              all members are gone
    Completing, Stable ──▶ Preparing a member joins, leaves, changes or times out; also if the
                                     leader rejoins (Stable) or the save fails (Completing)

Responses to requests, by state:

    state       join of a known member       sync            heartbeat       commit by a member
    Empty       UnknownMember                UnknownMember   UnknownMember   UnknownMember
    Preparing   waits                        Rebalance…      Rebalance…      its old partitions
    Completing  unchanged: its generation    waits           ok              Rebalance…
                changed: a new rebalance
    Stable      unchanged follower: its      its assignment  ok              its partitions
                generation; else rebalance

Rebalance… stands for RebalanceInProgressError. The leader's sync in CompletingRebalance contains
the assignments and completes all waiting syncs. A member's request with a different generation
fails with IllegalGenerationError in every state.

The following rules are the same as in Kafka, except where noted:

- The generation increases by one each time a rebalance ends, but a restart before the leader has
  sent the assignments undoes this.
- The first rebalance of an empty group waits group.initial.rebalance.delay.ms for members. The wait
  is extended while more members join, up to the rebalance timeout.
- A rebalance that ends removes the dynamic members that did not rejoin. Static members stay until
  their session expires; if only they are left and none has rejoined, the rebalance continues.
- A new member may first get an id and an error (MEMBER_ID_REQUIRED). It is then pending for one
  session timeout, and a rebalance waits for it.
- A member that has not requested its assignment by the rebalance timeout is removed.
- A request with a static member's instance id but a different member id is fenced.
- A static member that joins without its member id gets a new one and keeps its position; requests
  still pending under the old id are fenced. In Stable, this needs no rebalance if the protocol and
  the member's topics are unchanged and the group can be stored. (Kafka does not compare topics.)
- While the group has members, only they may commit, except in transactions.

Every pending `Deferred` is bounded by a timer: a join by the end of the rebalance, a sync by the
end of the sync phase. Results complete after the state change (`CompletionQueue`), in batches if
the group is large, so that a rebalance of thousands of members does not delay other clients. The
group is stored with `GroupServices.save` before the first member gets an assignment; if that fails,
all waiting members get the error and a new rebalance starts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from strandlog.broker.context import RequestContext
from strandlog.broker.deferred import CompletionQueue, Deferred
from strandlog.broker.groups.members import (
    MEMBER_BYTES,
    PENDING_MEMBER_BYTES,
    Member,
    MemberList,
    MemoryMeter,
    fenced,
    protocols_bytes,
)
from strandlog.broker.groups.requests import (
    NO_MEMBER_ID,
    JoinRequest,
    JoinResult,
    SyncRequest,
    SyncResult,
)
from strandlog.broker.timers import Timer, Timers
from strandlog.clock import Clock
from strandlog.config.tables.broker import BrokerSettings
from strandlog.errors import (
    GroupFullError,
    GroupMetadataTooLargeError,
    IllegalGenerationError,
    InconsistentProtocolError,
    MemberIdRequiredError,
    RebalanceInProgressError,
    StrandlogError,
    UnknownMemberError,
)

MIN_RETRY_MS = 1000
NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000  # as in Kafka: a client that gives up joining cannot leave


class GroupState(StrEnum):
    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


EMPTY, PREPARING, COMPLETING, STABLE, DEAD = GroupState

TRANSITIONS: dict[GroupState, frozenset[GroupState]] = {
    EMPTY: frozenset({PREPARING, DEAD}),
    PREPARING: frozenset({EMPTY, COMPLETING}),
    COMPLETING: frozenset({PREPARING, STABLE}),
    STABLE: frozenset({PREPARING}),
    DEAD: frozenset(),
}


@dataclass(frozen=True, slots=True)
class GroupServices:
    """The dependencies that the coordinator passes to its groups."""

    settings: BrokerSettings
    clock: Clock
    timers: Timers
    new_id: Callable[[], str]
    save: Callable[[Group], None]
    meter: MemoryMeter


class Group:
    """One classic consumer group."""

    def __init__(self, group_id: str, services: GroupServices) -> None:
        self.group_id = group_id
        self.state = EMPTY
        self.state_since_ms = services.clock.now_ms()
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.members = MemberList(services.meter)
        self.has_assignment = False
        self.is_saved = True
        self._services = services
        self._completions = CompletionQueue(self._complete_later)
        self._pending_members: dict[str, Timer] = {}
        self._unsynced: dict[Member, None] = {}  # members that have not sent a sync request
        self._syncing: dict[Member, None] = {}  # members waiting for their assignment
        self._phase_timer: Timer | None = None
        self._initial_delay_left_ms: int | None = None
        self._has_new_member = False

    def restore(self, generation: int, state_since_ms: int, protocol_name: str | None) -> None:
        """Resume after a restart with the members already added to `members`."""
        assert self.state is EMPTY and self.generation == 0, "only a new group can be restored"
        self.generation = generation
        self.state_since_ms = state_since_ms
        self.protocol_name = protocol_name
        if len(self.members):
            self.state = STABLE
            self.has_assignment = True
        for member in self.members:
            member.is_new = False
            self._restart_session(member)

    def mark_dead(self) -> None:
        """Move an empty group to the Dead state."""
        self._enter(DEAD)
        for timer in self._pending_members.values():
            timer.cancel()
        self.members.count_bytes(-PENDING_MEMBER_BYTES * len(self._pending_members))
        self._pending_members.clear()

    # Member requests.

    def join(self, context: RequestContext, request: JoinRequest) -> Deferred[JoinResult]:
        """Return a result with the next generation, or with the current one if nothing changed."""
        with self._completions:
            self._check_joiner(request)
            if request.member_id == NO_MEMBER_ID:
                pending = self._join_new(context, request)
            else:
                pending = self._join_again(context, request)
            self._end_join_if_all_joined()
            return pending

    def sync(self, request: SyncRequest) -> Deferred[SyncResult]:
        """Return a result that completes when the leader has sent the member's assignment."""
        with self._completions:
            member = self._member_of_generation(
                request.member_id, request.group_instance_id, request.generation
            )
            self._check_protocol(request)
            if self.state is PREPARING:
                raise self._rebalance_error()
            if self.state is COMPLETING and member.member_id == self.members.leader_id:
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
            if member.member_id == self.members.leader_id:
                self._accept_assignments(request)
            return pending

    def heartbeat(self, member_id: str, generation: int, instance_id: str | None = None) -> None:
        """Extend the member's session; raise RebalanceInProgressError if it must rejoin."""
        member = self._member_of_generation(member_id, instance_id, generation)
        self._restart_session(member)
        if self.state is PREPARING:
            raise self._rebalance_error()

    def leave(self, member_id: str, instance_id: str | None = None) -> None:
        """Remove the member. A static member can be identified by its instance id alone."""
        with self._completions:
            if member_id in self._pending_members and instance_id is None:
                self._remove_pending_member(member_id)
                self._end_join_if_all_joined()
                return
            member = self.members.static_member(instance_id) if not member_id else None
            member = member or self._member(member_id, instance_id)
            self._remove(member, f"member {member_id!r} left group {self.group_id!r}")

    def check_commit(
        self, member_id: str, generation: int, instance_id: str | None
    ) -> Member | None:
        """Return the committing member, or None for a simple consumer of an empty group.

        Raise if the client may not commit.
        """
        if generation < 0 and self.state is EMPTY:
            return None
        if generation < 0 and member_id == NO_MEMBER_ID and instance_id is None:
            raise UnknownMemberError(
                f"group {self.group_id!r} has members, and only they may commit; "
                f"join the group or use another group id"
            )
        member = self._member_of_generation(member_id, instance_id, generation)
        if self.state is COMPLETING:
            raise self._rebalance_error()
        self._restart_session(member)
        return member

    # Queries by the coordinator.

    @property
    def is_idle(self) -> bool:
        """Whether the group has neither members nor pending members."""
        return self.state is EMPTY and not self._pending_members

    def subscribed_topics(self) -> frozenset[str] | None:
        """Return the topics that the members subscribe to; None if they cannot be determined."""
        return self.members.subscribed_topics(self.protocol_name)

    # Joining.

    def _check_joiner(self, request: JoinRequest) -> None:
        known = self.members.get(request.member_id)
        known = known or self.members.static_member(request.group_instance_id)
        if self.state is PREPARING:
            # If group.max.size was lowered, the first members to rejoin stay in the group.
            has_place = known is not None and known.join is not None
            member_count = self.members.joined_count
        else:
            has_place, member_count = known is not None, len(self.members)
        member_count += len(self._pending_members) - (request.member_id in self._pending_members)
        limit = self._services.settings.group_max_size
        if not has_place and member_count >= limit:
            raise GroupFullError(
                f"group {self.group_id!r} is full; use another or raise group.max.size ({limit})"
            )
        self.members.check_joiner(request, known, self.protocol_type)
        old_bytes = -MEMBER_BYTES if known is None else protocols_bytes(known.protocols)
        self._check_room(protocols_bytes(request.protocols) - old_bytes)

    def _check_room(self, more_bytes: int) -> None:
        """Raise if this group, or all groups together, would exceed the memory limit."""
        members, settings = self.members, self._services.settings
        for name, size, limit in (
            ("group.metadata", members.size_bytes, settings.group_metadata_max_bytes),
            ("groups.metadata", members.total_bytes, settings.groups_metadata_max_bytes),
        ):
            if more_bytes > 0 and size + more_bytes > limit:
                raise GroupMetadataTooLargeError(
                    f"the members of group {self.group_id!r} need {more_bytes} more bytes, which "
                    f"exceeds {name}.max.bytes={limit}; use fewer members or topics, or raise it"
                )

    def _join_new(self, context: RequestContext, request: JoinRequest) -> Deferred[JoinResult]:
        new_id = f"{request.group_instance_id or context.client_id}-{self._services.new_id()}"
        returning = self.members.static_member(request.group_instance_id)
        if returning is not None:
            return self._take_over(returning, new_id, context, request)
        if request.require_member_id and request.group_instance_id is None:
            deadline_ms = self._now() + request.session_timeout_ms
            self._pending_members[new_id] = self._services.timers.schedule(
                deadline_ms, partial(self._on_pending_member_expired, new_id)
            )
            self.members.count_bytes(PENDING_MEMBER_BYTES)
            raise MemberIdRequiredError(new_id)
        return self._add(new_id, context, request)

    def _join_again(self, context: RequestContext, request: JoinRequest) -> Deferred[JoinResult]:
        if request.member_id in self._pending_members and request.group_instance_id is None:
            self._remove_pending_member(request.member_id)
            return self._add(request.member_id, context, request)
        member = self._member(request.member_id, request.group_instance_id)
        is_leader = member.member_id == self.members.leader_id
        is_changed = member.protocols != request.protocols
        # A leader rejoins a stable group to request a rebalance, because partitions have changed.
        if is_changed or self.state is PREPARING or (is_leader and self.state is STABLE):
            self.members.update(member, context, request)
            return self._wait_for_join(member)
        self._restart_session(member)
        return Deferred.done(self._join_result(member))

    def _add(
        self, member_id: str, context: RequestContext, request: JoinRequest
    ) -> Deferred[JoinResult]:
        member = Member.joining(member_id, context, request)
        if not len(self.members):
            self.protocol_type = request.protocol_type
        self.members.add(member)
        self._has_new_member = True
        self._restart_session(member, NEW_MEMBER_JOIN_TIMEOUT_MS)
        return self._wait_for_join(member)

    def _take_over(
        self, member: Member, new_id: str, context: RequestContext, request: JoinRequest
    ) -> Deferred[JoinResult]:
        """Assign a new id to a static member that joins without one, and fence the old id."""
        old_leader = self.members.leader_id
        old_topics = member.topics_for(self.protocol_name)
        self._reject(member, fenced(member.group_instance_id))
        self.members.rename(member, new_id)
        self.members.update(member, context, request)
        member.is_new = False  # a client that gives up can rejoin by its instance id
        self._restart_session(member)
        is_same = (
            self.state is STABLE
            and self.members.select_protocol() == self.protocol_name
            and member.topics_for(self.protocol_name) == old_topics
        )
        if not is_same or not self._try_save():
            return self._wait_for_join(member)
        result = self._join_result(member)
        if request.supports_skip_assignment:
            return Deferred.done(result._replace(skip_assignment=result.is_leader))
        # An older client that sees itself as leader would assign again: return the old leader id.
        return Deferred.done(result._replace(leader=old_leader or "", members=()))

    def _on_pending_member_expired(self, member_id: str) -> None:
        with self._completions:
            self._remove_pending_member(member_id)
            self._end_join_if_all_joined()

    def _remove_pending_member(self, member_id: str) -> None:
        self._pending_members.pop(member_id).cancel()
        self.members.count_bytes(-PENDING_MEMBER_BYTES)

    def _member(self, member_id: str, instance_id: str | None) -> Member:
        return self.members.find(member_id, instance_id, self.group_id)

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

    def _check_protocol(self, request: SyncRequest) -> None:
        agreed = {self.protocol_type, self.protocol_name, None}
        if request.protocol_type not in agreed or request.protocol_name not in agreed:
            raise InconsistentProtocolError(
                f"group {self.group_id!r} uses protocol {self.protocol_type!r} with "
                f"assignor {self.protocol_name!r}; join it again"
            )

    def _wait_for_join(self, member: Member) -> Deferred[JoinResult]:
        pending = self.members.wait_for_join(member)
        if self.state is not PREPARING:
            self._prepare_rebalance()
        elif self._phase_timer is not None:
            pending.deadline_ms = self._phase_timer.deadline_ms
        return pending

    # Rebalance.

    def _prepare_rebalance(self) -> None:
        was_empty = self.state is EMPTY
        self._enter(PREPARING)
        for member, pending in self._stop_syncing():
            self._completions.fail(pending, self._rebalance_error())
            self._restart_session(member)
        delay_ms = self._services.settings.group_initial_rebalance_delay_ms
        timeout_ms = self.members.rebalance_timeout_ms
        if was_empty and delay_ms > 0:
            self._has_new_member = False
            self._initial_delay_left_ms = max(timeout_ms - delay_ms, 0)
            self._start_join_timer(delay_ms, self._on_initial_delay)
        else:
            self._start_join_timer(timeout_ms, self._end_join)
            self._end_join_if_all_joined()

    def _on_initial_delay(self) -> None:
        """If a member joined during the initial delay and the rebalance timeout allows it, wait
        again; otherwise end the join phase."""
        assert self._initial_delay_left_ms is not None
        delay_ms = self._services.settings.group_initial_rebalance_delay_ms
        if self._has_new_member and self._initial_delay_left_ms > 0:
            self._has_new_member = False
            delay_ms = min(delay_ms, self._initial_delay_left_ms)
            self._initial_delay_left_ms -= delay_ms
            self._start_join_timer(delay_ms, self._on_initial_delay)
        else:
            self._end_join()

    def _end_join_if_all_joined(self) -> None:
        is_initial_delay = self._initial_delay_left_ms is not None and len(self.members) > 0
        if self.state is not PREPARING or is_initial_delay:
            return
        if not self._pending_members and self.members.joined_count == len(self.members):
            self._end_join()

    def _end_join(self) -> None:
        """Remove absent dynamic members. If any member has joined, start a generation; if only
        absent static members are left, wait again; if the group has no members, enter Empty."""
        with self._completions:
            self._initial_delay_left_ms = None
            for member in self.members.absent_dynamic:
                self._drop(member, f"member {member.member_id!r} missed the rebalance")
            if len(self.members) and not self.members.elect_joined_leader():
                # Only static members are left, and none of them has rejoined.
                retry_ms = max(self.members.rebalance_timeout_ms, MIN_RETRY_MS)
                self._start_join_timer(retry_ms, self._end_join)
                return
            self._stop_phase_timer()
            self.generation += 1
            self.has_assignment = False
            for member in self.members:
                self.members.assign(member, b"")
            if len(self.members):
                self._begin_generation()
            else:
                self.protocol_name = None
                self._enter(EMPTY)
                self._try_save()

    def _begin_generation(self) -> None:
        self.protocol_name = self.members.select_protocol()
        self._enter(COMPLETING)
        self._unsynced = dict.fromkeys(self.members)
        deadline_ms = self._now() + self.members.rebalance_timeout_ms
        self._phase_timer = self._services.timers.schedule(deadline_ms, self._on_sync_timeout)
        for member in self.members:
            member.is_new = False
            self._restart_session(member)
            pending = self.members.stop_waiting(member)
            if pending is not None:
                self._completions.complete(pending, self._join_result(member))

    def _accept_assignments(self, request: SyncRequest) -> None:
        """Store the leader's assignments, then complete the pending syncs. If the write fails, fail
        the pending syncs and start a new rebalance."""
        for member in self.members:
            self.members.assign(member, request.assignments.get(member.member_id, b""))
        try:
            self._services.save(self)
        except StrandlogError as error:
            for member in self.members:
                self.members.assign(member, b"")
            for _, pending in self._stop_syncing():
                self._completions.fail(pending, error)
            self._prepare_rebalance()
            return
        self.has_assignment = True
        self._enter(STABLE)
        self._stop_phase_timer_if_all_synced()
        for member in self.members:
            self._restart_session(member)
        for member, pending in self._stop_syncing():
            self._completions.complete(pending, self._sync_result(member))

    # Timeouts.

    def _on_sync_timeout(self) -> None:
        with self._completions:
            for member in list(self._unsynced):
                self._drop(member, f"member {member.member_id!r} did not request its assignment")
            self._prepare_rebalance()

    def _on_session_end(self, member: Member) -> None:
        with self._completions:
            if member.is_waiting and not member.is_new:
                self._restart_session(member)
            else:
                self._remove(member, f"the session of member {member.member_id!r} expired")

    # Helpers.

    def _enter(self, state: GroupState) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} cannot become {state}"
        self.state = state
        self.state_since_ms = self._services.clock.now_ms()

    def _now(self) -> int:
        return self._services.clock.monotonic_ms()

    def _complete_later(self) -> None:
        """Schedule the delivery of the remaining results after other pending work."""
        self._services.timers.schedule(self._now(), self._completions.deliver)

    def _rebalance_error(self) -> RebalanceInProgressError:
        return RebalanceInProgressError(f"group {self.group_id!r} is rebalancing; join it again")

    def _restart_session(self, member: Member, timeout_ms: int | None = None) -> None:
        deadline_ms = self._now() + (timeout_ms or member.session_timeout_ms)
        if member.session_timer is not None:
            member.session_timer.reschedule(deadline_ms)
        else:
            ended = partial(self._on_session_end, member)
            member.session_timer = self._services.timers.schedule(deadline_ms, ended)

    def _start_join_timer(self, delay_ms: int, callback: Callable[[], None]) -> None:
        self._stop_phase_timer()
        self._phase_timer = self._services.timers.schedule(self._now() + delay_ms, callback)
        for member in self.members.joined:
            if member.join is not None:
                member.join.deadline_ms = self._phase_timer.deadline_ms

    def _stop_phase_timer(self) -> None:
        if self._phase_timer is not None:
            self._phase_timer.cancel()
            self._phase_timer = None

    def _stop_phase_timer_if_all_synced(self) -> None:
        if not self._unsynced:
            self._stop_phase_timer()

    def _reject(self, member: Member, error: StrandlogError) -> None:
        """Fail the pending requests of a member."""
        joining, syncing = self.members.stop_waiting(member), member.sync
        if joining is not None:
            self._completions.fail(joining, error)
        if syncing is not None:
            self._completions.fail(syncing, error)
            member.sync = None
            del self._syncing[member]

    def _stop_syncing(self) -> list[tuple[Member, Deferred[SyncResult]]]:
        """Clear and return the members that wait for their assignment, with the pending results."""
        waiting = [(member, member.sync) for member in self._syncing if member.sync is not None]
        for member, _ in waiting:
            member.sync = None
        self._syncing.clear()
        return waiting

    def _drop(self, member: Member, reason: str) -> None:
        self.members.remove(member)
        self._unsynced.pop(member, None)
        if member.session_timer is not None:
            member.session_timer.cancel()
        self._reject(member, UnknownMemberError(f"{reason}; join the group again"))

    def _remove(self, member: Member, reason: str) -> None:
        self._drop(member, reason)
        if self.state is PREPARING:
            self._end_join_if_all_joined()
        else:
            self._prepare_rebalance()

    def _try_save(self) -> bool:
        """Save the group; return False if the write failed. The next expiry check, or the next
        assignment, then saves the group."""
        try:
            self._services.save(self)
        except StrandlogError:
            self.is_saved = False
            return False
        return True

    def _join_result(self, member: Member) -> JoinResult:
        leader = self.members.leader_id or ""
        protocol_name = self.protocol_name or ""
        return JoinResult(
            self.generation,
            self.protocol_type or "",
            protocol_name,
            leader,
            member.member_id,
            self.members.as_joining(protocol_name) if member.member_id == leader else (),
        )

    def _sync_result(self, member: Member) -> SyncResult:
        return SyncResult(self.protocol_type or "", self.protocol_name or "", member.assignment)
