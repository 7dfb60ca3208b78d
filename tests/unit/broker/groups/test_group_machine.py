"""Invariants of a group under random members, time and restarts.

Six clients join, sync, send heartbeats, commit, leave and crash in any order; two of them are
static. The disk may fail and the broker may restart between any two steps. Checked after each step:

- a generation has one leader, and generations never go down while the broker runs;
- in Stable, after honest assignments, every partition of a subscribed topic has exactly one owner,
  and no member owns a partition of a topic that it did not subscribe to;
- every open `Deferred` has a deadline with a timer, and time alone completes all of them;
- committed offsets are those of the last accepted commit, also after a restart, and only commits of
  owners are accepted.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.support.examples import examples

from strandlog.broker.deferred import Deferred
from strandlog.broker.groups.group import Group
from strandlog.broker.groups.requests import JoinResult, SyncResult
from strandlog.errors import (
    FencedInstanceError,
    GroupError,
    MemberIdRequiredError,
    StorageError,
    UnknownMemberError,
)
from strandlog.model import TopicPartition
from strandlog.protocol.consumer_protocol import decode_assignment, decode_subscription

if TYPE_CHECKING:
    from tests.unit.broker.conftest import GroupHarness

COUNTS = {"t": 3, "u": 2}
SUBSCRIPTIONS = [("t",), ("u",), ("t", "u")]
EVERY = [
    TopicPartition(topic, number) for topic, count in COUNTS.items() for number in range(count)
]


@dataclass
class Client:
    """A member as it sees itself."""

    name: str
    instance: str | None = None
    member_id: str = ""
    topics: tuple[str, ...] = ("t",)
    join: Deferred[JoinResult] | None = None
    joined: JoinResult | None = None
    sync: Deferred[SyncResult] | None = None
    owned: frozenset[TopicPartition] = field(default_factory=frozenset)

    def forget(self) -> None:
        """What a process does after a crash, or after UnknownMemberError."""
        self.member_id = ""
        self.join = self.sync = self.joined = None
        self.owned = frozenset()


CLIENT = st.integers(0, 5)


class GroupMachine(RuleBasedStateMachine):
    """The group under random load."""

    harness_type: ClassVar[type[GroupHarness]]

    @initialize(delay_ms=st.sampled_from([0, 3_000]), size=st.sampled_from([4, 2**31 - 1]))
    def begin(self, delay_ms: int, size: int) -> None:
        self.harness = self.harness_type(
            {"group.initial.rebalance.delay.ms": delay_ms, "group.max.size": size}
        )
        self.harness.partitions = COUNTS
        self.clients = [
            Client(f"c{number}", f"i{number}" if number < 2 else None) for number in range(6)
        ]
        self.open: list[Deferred[JoinResult] | Deferred[SyncResult]] = []
        self.group: Group | None = None
        self.generation = 0
        self.leaders: dict[int, set[str]] = {}
        self.committed: dict[TopicPartition, int] = {}
        self.counter = 0

    # What clients do.

    @rule(
        number=CLIENT,
        topics=st.sampled_from(SUBSCRIPTIONS),
        require=st.booleans(),
        rebalance_ms=st.sampled_from([1_000, 60_000]),
    )
    def joins(self, number: int, topics: tuple[str, ...], require: bool, rebalance_ms: int) -> None:
        client = self.clients[number]
        client.topics = topics
        request = self.harness.request(
            client.member_id,
            topics=topics,
            instance=client.instance,
            require_member_id=require,
            rebalance_ms=rebalance_ms,
            skip=number == 0,
        )
        try:
            client.join = self.harness.join(request, client.name)
        except MemberIdRequiredError as error:
            client.member_id = error.member_id
        except (UnknownMemberError, FencedInstanceError):
            client.forget()
        except GroupError:
            return
        else:
            client.sync = None
            self.open.append(client.join)
            self.listens(number)

    @rule(number=CLIENT)
    def listens(self, number: int) -> None:
        client = self.clients[number]
        if client.join is not None and client.join.is_done:
            pending, client.join = client.join, None
            if pending.error is not None:
                client.forget()
                return
            client.joined = pending.result()
            client.member_id = client.joined.member_id
            client.owned = frozenset()
            assert client.joined.generation <= self.harness.coordinator.describe("g").generation
            if client.joined.is_leader:
                self.leaders.setdefault(client.joined.generation, set()).add(client.name)
        if client.sync is not None and client.sync.is_done:
            answer, client.sync = client.sync, None
            if answer.error is None:
                client.owned = frozenset(decode_assignment(answer.result().assignment).partitions)

    @rule(number=CLIENT)
    def syncs(self, number: int) -> None:
        client = self.clients[number]
        if client.joined is None or client.join is not None:
            return
        try:
            client.sync = self.harness.sync(client.joined)
        except UnknownMemberError:
            client.forget()
        except GroupError:
            return
        else:
            self.open.append(client.sync)
            self.listens(number)

    @rule(number=CLIENT)
    def beats(self, number: int) -> None:
        client = self.clients[number]
        if client.joined is None:
            return
        try:
            self.harness.coordinator.heartbeat(
                "g", client.joined.generation, client.member_id, client.instance
            )
        except (UnknownMemberError, FencedInstanceError):
            client.forget()
        except GroupError:
            return

    @rule(number=CLIENT)
    def leaves(self, number: int) -> None:
        client = self.clients[number]
        with suppress(GroupError):
            self.harness.coordinator.leave("g", client.member_id, client.instance)
        client.forget()

    @rule(number=CLIENT)
    def crashes(self, number: int) -> None:
        self.clients[number].forget()

    @rule(number=CLIENT, partition=st.sampled_from(EVERY))
    def commits(self, number: int, partition: TopicPartition) -> None:
        client = self.clients[number]
        if client.joined is None:
            return
        self.counter += 1
        try:
            self.harness.commit({partition: self.counter}, client.joined)
        except (GroupError, StorageError):
            return
        self.committed[partition] = self.counter
        (member,) = [
            each
            for each in self.harness.coordinator._groups["g"].members
            if each.member_id == client.member_id
        ]
        assert member.assigned is not None and partition in member.assigned

    @rule(partition=st.sampled_from(EVERY))
    def simple_consumer_commits(self, partition: TopicPartition) -> None:
        self.counter += 1
        try:
            self.harness.commit({partition: self.counter})
        except (GroupError, StorageError):
            return
        self.committed[partition] = self.counter
        assert self.harness.state() == "Empty"

    @rule(numbers=st.sets(CLIENT, min_size=1), topics=st.sampled_from(SUBSCRIPTIONS))
    def a_rebalance_goes_well(self, numbers: set[int], topics: tuple[str, ...]) -> None:
        """Chance alone seldom brings several members through a whole round together."""
        for _ in range(2):
            for number in sorted(numbers):
                self.joins(number, topics, require=False, rebalance_ms=60_000)
            self.harness.advance(7_000)
            for number in sorted(numbers):
                self.listens(number)
                self.syncs(number)
            for number in sorted(numbers):
                self.listens(number)

    # What the world does.

    @rule(ms=st.sampled_from([1, 999, 3_000, 9_000, 61_000]))
    def time_passes(self, ms: int) -> None:
        self.harness.advance(ms)

    @rule()
    def the_disk_fails_or_heals(self) -> None:
        self.harness.log.is_broken = not self.harness.log.is_broken

    @precondition(lambda self: self.counter % 3 == 0)
    @rule()
    def the_broker_restarts(self) -> None:
        self.harness.restart()
        self.open.clear()
        for client in self.clients:
            client.join = client.sync = None

    # What holds.

    @invariant()
    def offsets_are_what_was_committed(self) -> None:
        assert self.harness.committed() == self.committed

    @invariant()
    def a_generation_has_one_leader_and_does_not_go_down(self) -> None:
        group = self.harness.coordinator._groups.get("g")
        if group is not self.group:
            # An empty group without offsets was forgotten; its generations are another group's.
            self.group, self.generation = group, 0
            self.leaders.clear()
        if group is not None:
            assert group.generation >= self.generation
            self.generation = group.generation
        assert all(len(leaders) == 1 for leaders in self.leaders.values())

    @invariant()
    def every_open_answer_has_a_timer(self) -> None:
        self.open = [pending for pending in self.open if not pending.is_done]
        for pending in self.open:
            assert pending.deadline_ms is not None
            next_ms = self.harness.coordinator.next_deadline_ms()
            assert next_ms is not None and next_ms <= pending.deadline_ms

    @invariant()
    def in_stable_every_partition_has_one_owner(self) -> None:
        for listing in self.harness.coordinator.list_groups():
            if listing.state != "Stable":
                continue
            owned: list[TopicPartition] = []
            wanted: set[str] = set()
            for member in self.harness.coordinator.describe(listing.group_id).members:
                topics = set(decode_subscription(member.metadata).topics)
                held = decode_assignment(member.assignment).partitions
                assert {partition.topic for partition in held} <= topics
                wanted |= topics
                owned += held
            assert sorted(owned) == [part for part in sorted(EVERY) if part.topic in wanted]

    def teardown(self) -> None:
        if not hasattr(self, "harness"):
            return
        self.harness.log.is_broken = False
        self.harness.advance(3_600_000)
        assert all(pending.is_done for pending in self.open)
        assert all(group.state == "Empty" for group in self.harness.coordinator.list_groups())
        self.harness.restart()
        assert self.harness.committed() == self.committed


def test_a_group_under_random_load(harness_type: type[GroupHarness]) -> None:
    GroupMachine.harness_type = harness_type
    run_state_machine_as_test(
        GroupMachine,
        settings=examples(stateful_step_count=50, suppress_health_check=list(HealthCheck)),
    )
