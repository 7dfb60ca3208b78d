"""Every assignor: members get subscribed topics only, and each partition has one owner."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from hypothesis import given
from hypothesis import strategies as st
from tests.support.consumer_protocol import encode_sticky_user_data

from strandlog.broker.groups.assignors import (
    ASSIGNORS,
    Assignments,
    MemberSubscription,
    assign,
    member_subscription,
)
from strandlog.errors import InconsistentProtocolError
from strandlog.model import TopicPartition
from strandlog.protocol.consumer_protocol import Subscription

Members = dict[str, MemberSubscription]
TOPICS = ["a", "b", "c"]


def want(*topics: str, owned: str = "", generation: int = -1) -> MemberSubscription:
    return MemberSubscription(topics, tuple(partitions(owned)), generation)


def partitions(text: str) -> list[TopicPartition]:
    """`"a0 b1"` → two partitions."""
    return [TopicPartition(word[0], int(word[1:])) for word in text.split()]


def shown(result: Assignments) -> dict[str, str]:
    return {
        member: " ".join(f"{topic}{number}" for topic, number in held)
        for member, held in result.items()
    }


def test_range_assigns_neighbours_and_the_first_members_get_one_more() -> None:
    members = {"m2": want("a", "b"), "m1": want("a", "b")}
    result = assign("range", members, {"a": 3, "b": 3})
    assert shown(result) == {"m1": "a0 a1 b0 b1", "m2": "a2 b2"}


def test_range_keeps_equal_topics_co_partitioned() -> None:
    members = {name: want("a", "b") for name in ("x", "y", "z")}
    result = assign("range", members, {"a": 7, "b": 7})
    for held in result.values():
        numbers = [{part.partition for part in held if part.topic == topic} for topic in "ab"]
        assert numbers[0] == numbers[1]


def test_round_robin_skips_members_that_are_not_subscribed() -> None:
    # The example in the documentation of Kafka's RoundRobinAssignor.
    members = {"C0": want("a"), "C1": want("a", "b"), "C2": want("a", "b", "c")}
    result = assign("roundrobin", members, {"a": 1, "b": 2, "c": 3})
    assert shown(result) == {"C0": "a0", "C1": "b0", "C2": "b1 c0 c1 c2"}


def test_static_members_come_first_in_the_order_of_their_names() -> None:
    members = {
        "a": MemberSubscription(("a",)),
        "z": MemberSubscription(("a",), group_instance_id="i2"),
        "y": MemberSubscription(("a",), group_instance_id="i1"),
    }
    assert shown(assign("range", members, {"a": 4})) == {"y": "a0 a1", "z": "a2", "a": "a3"}


@pytest.mark.parametrize("name", ASSIGNORS)
def test_rebalance_gives_a_member_partitions_of_topics_it_never_subscribed_to(name: str) -> None:
    members = {"m1": want("a", owned="b0 b1"), "m2": want("b"), "m3": want("a", "b")}
    result = assign(name, members, {"a": 4, "b": 4, "c": 4})
    for member_id, held in result.items():
        assert {partition.topic for partition in held} <= set(members[member_id].topics)


@pytest.mark.parametrize("name", ASSIGNORS)
def test_topics_that_do_not_exist_and_members_without_topics(name: str) -> None:
    members = {"m1": want("nowhere"), "m2": want(), "m3": want("a", "a")}
    assert shown(assign(name, members, {"a": 1})) == {"m1": "", "m2": "", "m3": "a0"}
    assert assign(name, {}, {"a": 1}) == {}


def test_an_unknown_assignor_is_named() -> None:
    with pytest.raises(InconsistentProtocolError, match="cooperative-sticky"):
        assign("uniform", {}, {})


def test_sticky_keeps_what_members_have_when_one_comes() -> None:
    members = {
        "m1": want("a", owned="a0 a2 a4", generation=3),
        "m2": want("a", owned="a1 a3 a5", generation=3),
        "m3": want("a"),
    }
    result = assign("sticky", members, {"a": 6})
    assert shown(result) == {"m1": "a0 a2", "m2": "a1 a3", "m3": "a4 a5"}


def test_cooperative_sticky_withholds_what_moves_until_it_is_given_up() -> None:
    members = {"m1": want("a", owned="a0 a1 a2 a3", generation=3), "m2": want("a")}
    first = assign("cooperative-sticky", members, {"a": 4})
    assert shown(first) == {"m1": "a0 a1", "m2": ""}
    members = {"m1": want("a", owned="a0 a1", generation=4), "m2": want("a", generation=4)}
    second = assign("cooperative-sticky", members, {"a": 4})
    assert shown(second) == {"m1": "a0 a1", "m2": "a2 a3"}


def test_an_old_claim_is_ignored_but_delays_a_cooperative_move() -> None:
    members = {
        "m1": want("a", owned="a0", generation=5),
        "m2": want("a", owned="a0 a1", generation=2),
        "m3": want("b"),
    }
    assert shown(assign("sticky", members, {"a": 2, "b": 1}))["m1"] == "a0"
    result = shown(assign("cooperative-sticky", members, {"a": 2, "b": 1}))
    assert result == {"m1": "a0", "m2": "a1", "m3": "b0"}


def test_a_contested_claim_is_ignored() -> None:
    members = {
        "m1": want("a", owned="a0", generation=5),
        "m2": want("a", owned="a0", generation=5),
    }
    assert shown(assign("cooperative-sticky", members, {"a": 1})) == {"m1": "", "m2": ""}
    assert shown(assign("sticky", members, {"a": 1})) == {"m1": "a0", "m2": ""}


def test_the_owned_partitions_of_an_eager_java_member_are_read_from_its_user_data() -> None:
    data = encode_sticky_user_data(partitions("a1"), 6)
    subscription = member_subscription(Subscription(("a",), data), "i")
    assert subscription == MemberSubscription(("a",), tuple(partitions("a1")), 6, "i")
    other = member_subscription(Subscription(("a",), b"\x00\x00\x00\x09"))
    assert other.owned_partitions == ()


MEMBERS = st.dictionaries(
    st.text("abcxyz", min_size=1, max_size=3),
    st.builds(
        MemberSubscription,
        st.lists(st.sampled_from(TOPICS), unique=True).map(tuple),
        st.lists(
            st.builds(TopicPartition, st.sampled_from([*TOPICS, "d"]), st.integers(0, 9)),
            unique=True,
            max_size=12,
        ).map(tuple),
        st.integers(-1, 3),
        st.none(),
    ),
    max_size=6,
)
COUNTS = st.fixed_dictionaries({topic: st.integers(0, 8) for topic in TOPICS})


@pytest.mark.parametrize("name", ASSIGNORS)
@given(members=MEMBERS, counts=COUNTS)
def test_assignments_are_complete_and_disjoint_for_any_subscription(
    name: str, members: Members, counts: dict[str, int]
) -> None:
    result = assign(name, members, counts)
    assert result == assign(name, dict(reversed(members.items())), counts)
    assert result.keys() == members.keys()
    given_out = [partition for held in result.values() for partition in held]
    assert len(given_out) == len(set(given_out))
    for member_id, held in result.items():
        assert {partition.topic for partition in held} <= set(members[member_id].topics)
    wanted = {topic for member in members.values() for topic in member.topics}
    every = {TopicPartition(topic, number) for topic in wanted for number in range(counts[topic])}
    if name == "cooperative-sticky":
        assert set(given_out) <= every
    else:
        assert set(given_out) == every


@given(members=MEMBERS, counts=COUNTS)
def test_no_single_move_improves_the_balance_of_sticky(
    members: Members, counts: dict[str, int]
) -> None:
    result = assign("sticky", members, counts)
    for giver, held in result.items():
        for taker, member in members.items():
            if {partition.topic for partition in held} & set(member.topics):
                assert len(result[giver]) <= len(result[taker]) + 1, (giver, taker)


@given(members=MEMBERS, counts=COUNTS)
def test_sticky_changes_nothing_when_nothing_changed(
    members: Members, counts: dict[str, int]
) -> None:
    first = assign("sticky", members, counts)
    again = {
        member_id: member._replace(owned_partitions=tuple(first[member_id]), generation=9)
        for member_id, member in members.items()
    }
    assert assign("sticky", again, counts) == first


@given(members=MEMBERS, counts=COUNTS)
def test_cooperative_rounds_converge_without_sharing_a_partition(
    members: Members, counts: dict[str, int]
) -> None:
    """Each member first gives up what it was not assigned; then the next round follows."""
    for generation in range(5, 8):
        held = {member_id: set(member.owned_partitions) for member_id, member in members.items()}
        result = assign("cooperative-sticky", members, counts)
        for member_id, got in result.items():
            for other, had in held.items():
                rightful = set(got) - held[member_id]
                assert other == member_id or not rightful & had
        members = {
            member_id: member._replace(
                owned_partitions=tuple(result[member_id]), generation=generation
            )
            for member_id, member in members.items()
        }
    assert result == assign("sticky", members, counts)


def aiokafka_answer(assignor: Any, members: Members, counts: dict[str, int]) -> Assignments:
    cluster = SimpleNamespace(partitions_for_topic=lambda topic: set(range(counts[topic])))
    subscriptions = {
        member_id: SimpleNamespace(subscription=list(member.topics))
        for member_id, member in members.items()
    }
    theirs = assignor.assign(cluster, subscriptions)
    return {
        member_id: sorted(TopicPartition(*held) for held in theirs[member_id].partitions())
        for member_id in members
    }


@given(members=MEMBERS, counts=COUNTS)
def test_range_assigns_as_aiokafka_does(members: Members, counts: dict[str, int]) -> None:
    theirs = aiokafka_answer(RangePartitionAssignor, members, counts)
    assert assign("range", members, counts) == theirs


@given(members=MEMBERS, counts=COUNTS)
def test_round_robin_assigns_as_aiokafka_does(members: Members, counts: dict[str, int]) -> None:
    theirs = aiokafka_answer(RoundRobinPartitionAssignor, members, counts)
    assert assign("roundrobin", members, counts) == theirs


def test_a_large_group_is_assigned_quickly() -> None:
    members = {f"m{number:03}": want("a", "b") for number in range(100)}
    for name in ASSIGNORS:
        result = assign(name, members, {"a": 1000, "b": 1000})
        assert {len(held) for held in result.values()} == {20}
