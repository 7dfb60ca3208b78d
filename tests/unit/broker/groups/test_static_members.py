"""Static members: they return under a new id, and only one uses an instance id at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from strandlog.broker.groups.requests import JoinResult
from strandlog.errors import FencedInstanceError, RebalanceInProgressError, UnknownMemberError
from strandlog.model import TopicPartition
from strandlog.protocol.consumer_protocol import decode_assignment

if TYPE_CHECKING:
    from tests.unit.broker.conftest import Bench


def static_pair(bench: Bench) -> tuple[JoinResult, JoinResult]:
    """Two static members, i1 leading, in Stable."""
    first = bench.join(bench.request(instance="i1")).result()
    second = bench.join(bench.request(instance="i2"))
    leader = bench.join(bench.request(first.member_id, instance="i1")).result()
    follower = second.result()
    bench.sync(follower)
    bench.sync(leader)
    return leader, follower


def share(bench: Bench, joined: JoinResult) -> tuple[TopicPartition, ...]:
    return decode_assignment(bench.sync(joined).result().assignment).partitions


def test_a_static_member_returns_without_a_rebalance(bench: Bench) -> None:
    leader, follower = static_pair(bench)
    before = share(bench, follower)
    back = bench.join(bench.request(instance="i2")).result()
    assert back.member_id != follower.member_id
    assert (back.generation, back.leader) == (follower.generation, leader.member_id)
    assert bench.state() == "Stable"
    assert share(bench, back) == before
    with pytest.raises(FencedInstanceError):
        bench.coordinator.heartbeat("g", 2, follower.member_id, "i2")
    with pytest.raises(UnknownMemberError):
        bench.coordinator.heartbeat("g", 2, follower.member_id)
    bench.restart()
    bench.coordinator.heartbeat("g", 2, back.member_id, "i2")


def test_a_returning_static_leader_does_not_assign_again(bench: Bench) -> None:
    leader, _ = static_pair(bench)
    old_style = bench.join(bench.request(instance="i1")).result()
    assert old_style.leader == leader.member_id
    assert not old_style.is_leader and old_style.members == ()
    new_style = bench.join(bench.request(instance="i1", skip=True)).result()
    assert new_style.is_leader and new_style.skip_assignment
    assert len(new_style.members) == 2
    assert bench.state() == "Stable"


def test_a_static_member_that_returns_with_other_topics_gets_them(bench: Bench) -> None:
    static_pair(bench)
    back = bench.join(bench.request(instance="i2", topics=("u",)))
    assert not back.is_done
    assert bench.state() == "PreparingRebalance"


def test_a_static_member_that_gave_up_a_topic_of_others_does_not_keep_its_partitions(
    bench: Bench,
) -> None:
    first = bench.join(bench.request(instance="i1", topics=("t", "u"))).result()
    second = bench.join(bench.request(instance="i2", topics=("t", "u")))
    leader = bench.join(bench.request(first.member_id, instance="i1", topics=("u", "t"))).result()
    bench.sync(second.result())
    bench.sync(leader)
    bench.join(bench.request(instance="i2", topics=("t",)))
    assert bench.state() == "PreparingRebalance"


def test_a_static_member_that_returns_during_a_rebalance_fences_its_old_id(
    bench: Bench,
) -> None:
    leader, _ = static_pair(bench)
    bench.join(bench.request(instance="i3"))
    old = bench.join(bench.request(instance="i2"))
    new = bench.join(bench.request(instance="i2"))
    assert isinstance(old.error, FencedInstanceError)
    bench.join(bench.request(leader.member_id, instance="i1"))
    assert new.result().generation == 3


def test_a_static_member_that_returns_while_the_leader_assigns(bench: Bench) -> None:
    first = bench.join(bench.request(instance="i1")).result()
    second = bench.join(bench.request(instance="i2"))
    bench.join(bench.request(first.member_id, instance="i1")).result()
    waiting = bench.sync(second.result())
    back = bench.join(bench.request(instance="i2"))
    assert isinstance(waiting.error, FencedInstanceError)
    assert bench.state() == "PreparingRebalance"
    assert not back.is_done


def test_a_rebalance_keeps_an_absent_static_member(bench: Bench) -> None:
    first = bench.join(bench.request(instance="i1", rebalance_ms=2_000)).result()
    second = bench.join(bench.request(instance="i2", rebalance_ms=2_000))
    request = bench.request(first.member_id, instance="i1", rebalance_ms=2_000)
    leader = bench.join(request).result()
    bench.sync(second.result())
    bench.sync(leader)
    again = bench.join(request)
    bench.advance(2_000)
    assert [member.group_instance_id for member in again.result().members] == ["i1", "i2"]
    bench.sync(again.result())
    bench.advance(1_999)
    assert bench.state() == "Stable"
    bench.advance(1)  # it has not synced in time
    assert bench.state() == "PreparingRebalance"


def test_a_static_member_leaves_by_its_instance_id(bench: Bench) -> None:
    static_pair(bench)
    bench.coordinator.leave("g", "", "i2")
    assert bench.state() == "PreparingRebalance"
    with pytest.raises(UnknownMemberError):
        bench.coordinator.leave("g", "", "i2")
    with pytest.raises(FencedInstanceError):
        bench.coordinator.leave("g", "stranger", "i1")


def test_absent_static_members_keep_a_rebalance_open_until_they_expire(
    bench: Bench,
) -> None:
    first = bench.join(bench.request(instance="i1", rebalance_ms=2_000)).result()
    bench.sync(first)
    bench.join(bench.request(rebalance_ms=2_000))
    bench.coordinator.leave("g", "c-0002")
    bench.advance(9_999)
    assert bench.state() == "PreparingRebalance"
    bench.advance(1)
    assert bench.state() == "Empty"


def test_a_static_member_that_returned_before_its_sync_syncs_in_time(
    bench: Bench,
) -> None:
    first = bench.join(bench.request(instance="i1")).result()
    bench.join(bench.request(instance="i2"))
    leader = bench.join(bench.request(first.member_id, instance="i1")).result()
    bench.sync(leader)
    back = bench.join(bench.request(instance="i2")).result()
    assert len(share(bench, back)) == 2
    for _ in range(10):
        bench.advance(9_000)
        for member in (leader, back):
            bench.coordinator.heartbeat("g", 2, member.member_id)
    assert bench.state() == "Stable"


def test_a_new_static_member_that_returned_waits_for_the_whole_rebalance(
    bench: Bench,
) -> None:
    member = bench.stable()[0]
    bench.join(bench.request(instance="i1"))
    back = bench.join(bench.request(instance="i1"))
    for _ in range(5):
        bench.advance(9_000)
        with pytest.raises(RebalanceInProgressError):
            bench.coordinator.heartbeat("g", 1, member.member_id)
    before = back.is_done
    bench.join(bench.request(member.member_id))
    assert not before
    assert back.result().generation == 2
