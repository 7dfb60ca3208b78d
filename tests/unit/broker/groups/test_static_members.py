"""Static members: they return under a new id, and only one uses an instance id at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from strandlog.broker.groups.requests import JoinResult
from strandlog.errors import FencedInstanceError, RebalanceInProgressError, UnknownMemberError
from strandlog.model import TopicPartition
from strandlog.protocol.consumer_protocol import decode_assignment

if TYPE_CHECKING:
    from tests.unit.broker.conftest import GroupHarness


def static_pair(harness: GroupHarness) -> tuple[JoinResult, JoinResult]:
    """Two static members, i1 leading, in Stable."""
    first = harness.join(harness.request(instance="i1")).result()
    second = harness.join(harness.request(instance="i2"))
    leader = harness.join(harness.request(first.member_id, instance="i1")).result()
    follower = second.result()
    harness.sync(follower)
    harness.sync(leader)
    return leader, follower


def share(harness: GroupHarness, joined: JoinResult) -> tuple[TopicPartition, ...]:
    return decode_assignment(harness.sync(joined).result().assignment).partitions


def test_a_static_member_returns_without_a_rebalance(harness: GroupHarness) -> None:
    leader, follower = static_pair(harness)
    before = share(harness, follower)
    back = harness.join(harness.request(instance="i2")).result()
    assert back.member_id != follower.member_id
    assert (back.generation, back.leader) == (follower.generation, leader.member_id)
    assert harness.state() == "Stable"
    assert share(harness, back) == before
    with pytest.raises(FencedInstanceError):
        harness.coordinator.heartbeat("g", 2, follower.member_id, "i2")
    with pytest.raises(UnknownMemberError):
        harness.coordinator.heartbeat("g", 2, follower.member_id)
    harness.restart()
    harness.coordinator.heartbeat("g", 2, back.member_id, "i2")


def test_a_returning_static_leader_does_not_assign_again(harness: GroupHarness) -> None:
    leader, _ = static_pair(harness)
    old_style = harness.join(harness.request(instance="i1")).result()
    assert old_style.leader == leader.member_id
    assert not old_style.is_leader and old_style.members == ()
    new_style = harness.join(harness.request(instance="i1", skip=True)).result()
    assert new_style.is_leader and new_style.skip_assignment
    assert len(new_style.members) == 2
    assert harness.state() == "Stable"


def test_a_static_member_that_returns_with_other_topics_gets_them(harness: GroupHarness) -> None:
    static_pair(harness)
    back = harness.join(harness.request(instance="i2", topics=("u",)))
    assert not back.is_done
    assert harness.state() == "PreparingRebalance"


def test_a_static_member_that_gave_up_a_topic_of_others_does_not_keep_its_partitions(
    harness: GroupHarness,
) -> None:
    first = harness.join(harness.request(instance="i1", topics=("t", "u"))).result()
    second = harness.join(harness.request(instance="i2", topics=("t", "u")))
    leader = harness.join(
        harness.request(first.member_id, instance="i1", topics=("u", "t"))
    ).result()
    harness.sync(second.result())
    harness.sync(leader)
    harness.join(harness.request(instance="i2", topics=("t",)))
    assert harness.state() == "PreparingRebalance"


def test_a_static_member_that_returns_during_a_rebalance_fences_its_old_id(
    harness: GroupHarness,
) -> None:
    leader, _ = static_pair(harness)
    harness.join(harness.request(instance="i3"))
    old = harness.join(harness.request(instance="i2"))
    new = harness.join(harness.request(instance="i2"))
    assert isinstance(old.error, FencedInstanceError)
    harness.join(harness.request(leader.member_id, instance="i1"))
    assert new.result().generation == 3


def test_a_static_member_that_returns_while_the_leader_assigns(harness: GroupHarness) -> None:
    first = harness.join(harness.request(instance="i1")).result()
    second = harness.join(harness.request(instance="i2"))
    harness.join(harness.request(first.member_id, instance="i1")).result()
    waiting = harness.sync(second.result())
    back = harness.join(harness.request(instance="i2"))
    assert isinstance(waiting.error, FencedInstanceError)
    assert harness.state() == "PreparingRebalance"
    assert not back.is_done


def test_a_rebalance_keeps_an_absent_static_member(harness: GroupHarness) -> None:
    first = harness.join(harness.request(instance="i1", rebalance_ms=2_000)).result()
    second = harness.join(harness.request(instance="i2", rebalance_ms=2_000))
    request = harness.request(first.member_id, instance="i1", rebalance_ms=2_000)
    leader = harness.join(request).result()
    harness.sync(second.result())
    harness.sync(leader)
    again = harness.join(request)
    harness.advance(2_000)
    assert [member.group_instance_id for member in again.result().members] == ["i1", "i2"]
    harness.sync(again.result())
    harness.advance(1_999)
    assert harness.state() == "Stable"
    harness.advance(1)  # it has not synced in time
    assert harness.state() == "PreparingRebalance"


def test_a_static_member_leaves_by_its_instance_id(harness: GroupHarness) -> None:
    static_pair(harness)
    harness.coordinator.leave("g", "", "i2")
    assert harness.state() == "PreparingRebalance"
    with pytest.raises(UnknownMemberError):
        harness.coordinator.leave("g", "", "i2")
    with pytest.raises(FencedInstanceError):
        harness.coordinator.leave("g", "stranger", "i1")


def test_absent_static_members_keep_a_rebalance_open_until_they_expire(
    harness: GroupHarness,
) -> None:
    first = harness.join(harness.request(instance="i1", rebalance_ms=2_000)).result()
    harness.sync(first)
    harness.join(harness.request(rebalance_ms=2_000))
    harness.coordinator.leave("g", "c-0002")
    harness.advance(9_999)
    assert harness.state() == "PreparingRebalance"
    harness.advance(1)
    assert harness.state() == "Empty"


def test_a_static_member_that_returned_before_its_sync_syncs_in_time(
    harness: GroupHarness,
) -> None:
    first = harness.join(harness.request(instance="i1")).result()
    harness.join(harness.request(instance="i2"))
    leader = harness.join(harness.request(first.member_id, instance="i1")).result()
    harness.sync(leader)
    back = harness.join(harness.request(instance="i2")).result()
    assert len(share(harness, back)) == 2
    for _ in range(10):
        harness.advance(9_000)
        for member in (leader, back):
            harness.coordinator.heartbeat("g", 2, member.member_id)
    assert harness.state() == "Stable"


def test_a_new_static_member_that_returned_waits_for_the_whole_rebalance(
    harness: GroupHarness,
) -> None:
    member = harness.stable()[0]
    harness.join(harness.request(instance="i1"))
    back = harness.join(harness.request(instance="i1"))
    for _ in range(5):
        harness.advance(9_000)
        with pytest.raises(RebalanceInProgressError):
            harness.coordinator.heartbeat("g", 1, member.member_id)
    before = back.is_done
    harness.join(harness.request(member.member_id))
    assert not before
    assert back.result().generation == 2
