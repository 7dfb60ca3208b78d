"""The course of a group's rebalances: its states, its timers and its answers.

    Empty                no members; offsets may be there
    PreparingRebalance   members are joining; ends when all are here, or when time is up
    CompletingRebalance  a generation has begun; members wait for the leader's assignment
    Stable               everybody has an assignment
    Dead                 deleted or expired; never comes back

    from \\ to            Empty    Preparing   Completing   Stable   Dead
    Empty                          first join                       deleted, expired
    PreparingRebalance   all left              time is up, or all joined
    CompletingRebalance            a member comes, goes,    the leader
                                   changes or is late       assigns
    Stable                         the same, or the leader
                                   joins again

`Group` in group.py says what a request means in each state; this half moves from state to state.

Rules, as Kafka has them:

- The generation grows by one each time a rebalance ends, and never shrinks.
- An empty group gathers members for group.initial.rebalance.delay.ms before its first rebalance
  ends, longer while more come, at most for the rebalance time-out.
- A rebalance ends without dynamic members that did not come back. Static ones stay until their
  session ends; if only such are left, the rebalance goes on.
- A rebalance waits for newcomers that were promised an id.
- Whoever has not asked for its assignment when the rebalance time-out is over has to go.

Every open `Deferred` has a timer behind it: a join the end of the rebalance, a sync the end of the
sync phase. Results complete when the step is over (`CompletionQueue`), those of a large group some
at a time: a rebalance of thousands does not delay other clients. The group is saved, through
`context.save`, before the first member hears of an assignment; if that fails all hear the error
and a new rebalance begins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from strandlog.broker.deferred import CompletionQueue, Deferred
from strandlog.broker.groups.members import Meter, Roster
from strandlog.broker.groups.requests import (
    PROMISE_BYTES,
    JoinResult,
    Member,
    SyncRequest,
    SyncResult,
)
from strandlog.broker.timers import Timer, Timers
from strandlog.clock import Clock
from strandlog.config.tables.broker import BrokerSettings
from strandlog.errors import RebalanceInProgressError, StrandlogError, UnknownMemberError

MIN_RETRY_MS = 1000


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
class GroupContext:
    """What a group is handed by its coordinator."""

    settings: BrokerSettings
    clock: Clock
    timers: Timers
    new_id: Callable[[], str]
    save: Callable[[RebalancingGroup], None]
    meter: Meter


class RebalancingGroup:
    """A group that moves from state to state."""

    def __init__(self, group_id: str, context: GroupContext) -> None:
        self.group_id = group_id
        self.state = EMPTY
        self.state_since_ms = context.clock.now_ms()
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.roster = Roster(context.meter)
        self.has_assignment = False
        self.is_saved = True
        self._context = context
        self._completions = CompletionQueue(self._deliver_later)
        self._promised: dict[str, Timer] = {}
        self._unsynced: dict[Member, None] = {}  # those that have not asked for their share
        self._syncing: dict[Member, None] = {}  # those that wait for it
        self._phase_timer: Timer | None = None
        self._gathering_left_ms: int | None = None
        self._has_newcomer = False

    def restore(self, generation: int, state_since_ms: int, protocol_name: str | None) -> None:
        """Carries on after a restart with the members that were put into the roster."""
        assert self.state is EMPTY and self.generation == 0, "only a new group is restored"
        self.generation = generation
        self.state_since_ms = state_since_ms
        self.protocol_name = protocol_name
        if len(self.roster):
            self.state = STABLE
            self.has_assignment = True
        for member in self.roster:
            member.is_new = False
            self._restart_session(member)

    def kill(self) -> None:
        """The end of an empty group."""
        self._enter(DEAD)
        for timer in self._promised.values():
            timer.cancel()
        self.roster.weigh(-PROMISE_BYTES * len(self._promised))
        self._promised.clear()

    def _wait_for_join(self, member: Member) -> Deferred[JoinResult]:
        pending = self.roster.wait_for_join(member)
        if self.state is not PREPARING:
            self._prepare_rebalance()
        elif self._phase_timer is not None:
            pending.deadline_ms = self._phase_timer.deadline_ms
        return pending

    # The course of a rebalance.

    def _prepare_rebalance(self) -> None:
        was_empty = self.state is EMPTY
        self._enter(PREPARING)
        for member, pending in self._stop_syncing():
            self._completions.fail(pending, self._rebalancing())
            self._restart_session(member)
        delay_ms = self._context.settings.group_initial_rebalance_delay_ms
        timeout_ms = self.roster.rebalance_timeout_ms
        if was_empty and delay_ms > 0:
            self._has_newcomer = False
            self._gathering_left_ms = max(timeout_ms - delay_ms, 0)
            self._start_join_timer(delay_ms, self._on_gathered)
        else:
            self._start_join_timer(timeout_ms, self._end_join)
            self._end_join_if_all_are_here()

    def _on_gathered(self) -> None:
        """The initial delay is over; wait once more if somebody came during it."""
        assert self._gathering_left_ms is not None
        delay_ms = self._context.settings.group_initial_rebalance_delay_ms
        if self._has_newcomer and self._gathering_left_ms > 0:
            self._has_newcomer = False
            delay_ms = min(delay_ms, self._gathering_left_ms)
            self._gathering_left_ms -= delay_ms
            self._start_join_timer(delay_ms, self._on_gathered)
        else:
            self._end_join()

    def _end_join_if_all_are_here(self) -> None:
        is_gathering = self._gathering_left_ms is not None and len(self.roster) > 0
        if self.state is not PREPARING or is_gathering:
            return
        if not self._promised and self.roster.joined_count == len(self.roster):
            self._end_join()

    def _end_join(self) -> None:
        """Begins a generation with those who are here."""
        with self._completions:
            self._gathering_left_ms = None
            for member in self.roster.absent_dynamic:
                self._forget(member, f"member {member.member_id!r} missed the rebalance")
            if len(self.roster) and not self.roster.elect_joined_leader():
                # Only static members are left, and none of them is back.
                retry_ms = max(self.roster.rebalance_timeout_ms, MIN_RETRY_MS)
                self._start_join_timer(retry_ms, self._end_join)
                return
            self._stop_phase_timer()
            self.generation += 1
            self.has_assignment = False
            for member in self.roster:
                self.roster.assign(member, b"")
            if len(self.roster):
                self._begin_generation()
            else:
                self.protocol_name = None
                self._enter(EMPTY)
                self._try_save()

    def _begin_generation(self) -> None:
        self.protocol_name = self.roster.select_protocol()
        self._enter(COMPLETING)
        self._unsynced = dict.fromkeys(self.roster)
        deadline_ms = self._now() + self.roster.rebalance_timeout_ms
        self._phase_timer = self._context.timers.schedule(deadline_ms, self._on_sync_timeout)
        for member in self.roster:
            member.is_new = False
            self._restart_session(member)
            pending = self.roster.stop_waiting(member)
            if pending is not None:
                self._completions.complete(pending, self._join_result(member))

    def _adopt(self, request: SyncRequest) -> None:
        """The leader has assigned: keep it, then tell everybody."""
        for member in self.roster:
            self.roster.assign(member, request.assignments.get(member.member_id, b""))
        try:
            self._context.save(self)
        except StrandlogError as error:
            for member in self.roster:
                self.roster.assign(member, b"")
            for _, pending in self._stop_syncing():
                self._completions.fail(pending, error)
            self._prepare_rebalance()
            return
        self.has_assignment = True
        self._enter(STABLE)
        self._stop_phase_timer_if_all_synced()
        for member in self.roster:
            self._restart_session(member)
        for member, pending in self._stop_syncing():
            self._completions.complete(pending, self._sync_result(member))

    # What time does.

    def _on_sync_timeout(self) -> None:
        with self._completions:
            for member in list(self._unsynced):
                self._forget(member, f"member {member.member_id!r} did not ask for its share")
            self._prepare_rebalance()

    def _on_session_end(self, member: Member) -> None:
        with self._completions:
            if member.is_waiting and not member.is_new:
                self._restart_session(member)
            else:
                self._remove(member, f"the session of member {member.member_id!r} ended")

    # Small steps.

    def _enter(self, state: GroupState) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} cannot become {state}"
        self.state = state
        self.state_since_ms = self._context.clock.now_ms()

    def _now(self) -> int:
        return self._context.clock.monotonic_ms()

    def _deliver_later(self) -> None:
        """Answer further members when others had their turn."""
        self._context.timers.schedule(self._now(), self._completions.deliver)

    def _rebalancing(self) -> RebalanceInProgressError:
        return RebalanceInProgressError(f"group {self.group_id!r} is rebalancing; join it again")

    def _restart_session(self, member: Member, timeout_ms: int | None = None) -> None:
        deadline_ms = self._now() + (timeout_ms or member.session_timeout_ms)
        if member.session_timer is not None:
            member.session_timer.reschedule(deadline_ms)
            return
        member.session_timer = self._context.timers.schedule(
            deadline_ms, partial(self._on_session_end, member)
        )

    def _start_join_timer(self, delay_ms: int, callback: Callable[[], None]) -> None:
        self._stop_phase_timer()
        self._phase_timer = self._context.timers.schedule(self._now() + delay_ms, callback)
        for member in self.roster.joined:
            if member.join is not None:
                member.join.deadline_ms = self._phase_timer.deadline_ms

    def _stop_phase_timer(self) -> None:
        if self._phase_timer is not None:
            self._phase_timer.cancel()
            self._phase_timer = None

    def _stop_phase_timer_if_all_synced(self) -> None:
        if not self._unsynced:
            self._stop_phase_timer()

    def _turn_away(self, member: Member, error: StrandlogError) -> None:
        """Answers whatever the member waits for with an error."""
        joining, syncing = self.roster.stop_waiting(member), member.sync
        if joining is not None:
            self._completions.fail(joining, error)
        if syncing is not None:
            self._completions.fail(syncing, error)
            member.sync = None
            del self._syncing[member]

    def _stop_syncing(self) -> list[tuple[Member, Deferred[SyncResult]]]:
        """Those that wait for their share, and what they wait for; they are answered next."""
        waiting = [(member, member.sync) for member in self._syncing if member.sync is not None]
        for member, _ in waiting:
            member.sync = None
        self._syncing.clear()
        return waiting

    def _forget(self, member: Member, reason: str) -> None:
        self.roster.remove(member)
        self._unsynced.pop(member, None)
        if member.session_timer is not None:
            member.session_timer.cancel()
        self._turn_away(member, UnknownMemberError(f"{reason}; join the group again"))

    def _remove(self, member: Member, reason: str) -> None:
        self._forget(member, reason)
        if self.state is PREPARING:
            self._end_join_if_all_are_here()
        else:
            self._prepare_rebalance()

    def _try_save(self) -> bool:
        """The coordinator tries again later when this fails."""
        try:
            self._context.save(self)
        except StrandlogError:
            self.is_saved = False
            return False
        return True

    def _join_result(self, member: Member) -> JoinResult:
        leader = self.roster.leader_id or ""
        protocol_name = self.protocol_name or ""
        is_leader = member.member_id == leader
        return JoinResult(
            self.generation,
            self.protocol_type or "",
            protocol_name,
            leader,
            member.member_id,
            self.roster.as_joining(protocol_name) if is_leader else (),
        )

    def _sync_result(self, member: Member) -> SyncResult:
        return SyncResult(self.protocol_type or "", self.protocol_name or "", member.assignment)
