"""The group's state machine: each transition and each error, with a manual clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from strandlog.broker.groups.requests import JoinRequest, JoinResult, MemberProtocol, SyncRequest
from strandlog.errors import (
    GroupFullError,
    IllegalGenerationError,
    InconsistentProtocolError,
    MemberIdRequiredError,
    RebalanceInProgressError,
    StorageError,
    UnknownMemberError,
)
from strandlog.protocol.consumer_protocol import decode_assignment

if TYPE_CHECKING:
    from tests.unit.broker.conftest import GroupHarness


def test_the_first_member_leads_generation_one(harness: GroupHarness) -> None:
    joined = harness.join().result()
    assert joined.generation == 1
    assert joined.is_leader
    assert joined.member_id == "c-0001"
    assert [member.member_id for member in joined.members] == ["c-0001"]
    assert harness.state() == "CompletingRebalance"
    answer = harness.sync(joined).result()
    assert answer.protocol_name == "range"
    assert len(decode_assignment(answer.assignment).partitions) == 4
    assert harness.state() == "Stable"


def test_only_the_leader_sees_the_members(harness: GroupHarness) -> None:
    leader, follower = harness.stable(2)
    assert leader.is_leader and not follower.is_leader
    assert len(leader.members) == 2
    assert follower.members == ()
    assert leader.generation == follower.generation == 2
    assert leader.protocol_type == follower.protocol_type == "consumer"


def test_a_follower_waits_for_the_leader_and_both_get_their_assignment(
    harness: GroupHarness,
) -> None:
    first = harness.join().result()
    second = harness.join()
    waiting = [second.is_done]
    leader = harness.join(harness.request(first.member_id)).result()
    follower = second.result()
    answer = harness.sync(follower)
    waiting.append(answer.is_done)
    mine = harness.sync(leader).result()
    assert waiting == [False, False]
    shares = [decode_assignment(share.assignment) for share in (mine, answer.result())]
    assert [len(share.partitions) for share in shares] == [2, 2]


def test_an_empty_group_waits_for_members_before_its_first_generation(
    harness_type: type[GroupHarness],
) -> None:
    harness = harness_type({"group.initial.rebalance.delay.ms": 3_000})
    first = harness.join()
    assert first.deadline_ms == 3_000
    harness.advance(2_000)
    second = harness.join()
    assert second.deadline_ms == 3_000
    harness.advance(1_500)
    # A member joined during the delay, which extends it.
    assert first.deadline_ms == 6_000
    assert [first.is_done, second.is_done] == [False, False]
    harness.advance(2_500)
    assert first.result().generation == second.result().generation == 1
    assert len(first.result().members) == 2


def test_the_initial_delay_ends_at_the_rebalance_timeout(harness_type: type[GroupHarness]) -> None:
    harness = harness_type({"group.initial.rebalance.delay.ms": 3_000})
    pendings = [harness.join(harness.request(rebalance_ms=10_000))]
    for _ in range(9):
        harness.advance(1_000)
        pendings.append(harness.join(harness.request(rebalance_ms=10_000)))
    assert not pendings[0].is_done
    harness.advance(1_000)
    assert all(pending.is_done for pending in pendings)


def test_the_initial_delay_ends_when_all_members_leave(harness_type: type[GroupHarness]) -> None:
    harness = harness_type({"group.initial.rebalance.delay.ms": 3_000})
    pending = harness.join()
    harness.coordinator.leave("g", "c-0001")
    assert isinstance(pending.error, UnknownMemberError)
    assert harness.state() == "Empty"


def test_a_new_member_gets_its_id_first(harness: GroupHarness) -> None:
    with pytest.raises(MemberIdRequiredError) as caught:
        harness.join(harness.request(require_member_id=True))
    member_id = caught.value.member_id
    assert harness.state() == "Empty"
    joined = harness.join(harness.request(member_id, require_member_id=True)).result()
    assert joined.member_id == member_id


def test_a_rebalance_waits_for_pending_members(harness: GroupHarness) -> None:
    with pytest.raises(MemberIdRequiredError):
        harness.join(harness.request(require_member_id=True, session_ms=7_000))
    waiting = harness.join()
    harness.advance(6_999)
    before = waiting.is_done
    harness.advance(1)
    assert [before, waiting.is_done] == [False, True]


def test_a_pending_member_can_leave_and_expires(harness: GroupHarness) -> None:
    with pytest.raises(MemberIdRequiredError) as caught:
        harness.join(harness.request(require_member_id=True))
    harness.coordinator.leave("g", caught.value.member_id)
    assert harness.coordinator.list_groups() == []
    with pytest.raises(UnknownMemberError):
        harness.join(harness.request(caught.value.member_id))


def test_a_member_that_does_not_rejoin_is_removed(harness: GroupHarness) -> None:
    old = harness.stable()[0]
    new_member = harness.join()
    for _ in range(6):
        before = new_member.is_done
        with pytest.raises(RebalanceInProgressError):
            harness.coordinator.heartbeat("g", 1, old.member_id)
        harness.advance(9_999)
    assert not before
    harness.advance(6)
    joined = new_member.result()
    assert joined.is_leader and joined.generation == 2
    with pytest.raises(UnknownMemberError):
        harness.coordinator.heartbeat("g", joined.generation, old.member_id)


def test_a_member_without_heartbeats_is_removed(harness: GroupHarness) -> None:
    member = harness.stable()[0]
    for _ in range(10):
        harness.advance(9_000)
        harness.coordinator.heartbeat("g", 1, member.member_id)
    harness.advance(9_999)
    assert harness.state() == "Stable"
    harness.advance(1)
    assert harness.state() == "Empty"
    with pytest.raises(UnknownMemberError):
        harness.coordinator.heartbeat("g", 1, member.member_id)


def test_a_heartbeat_reports_a_rebalance_and_a_wrong_generation(harness: GroupHarness) -> None:
    member = harness.stable()[0]
    with pytest.raises(IllegalGenerationError):
        harness.coordinator.heartbeat("g", 0, member.member_id)
    harness.join()
    with pytest.raises(RebalanceInProgressError):
        harness.coordinator.heartbeat("g", 1, member.member_id)


def test_a_heartbeat_succeeds_while_the_leader_assigns(harness: GroupHarness) -> None:
    joined = harness.join().result()
    harness.coordinator.heartbeat("g", 1, joined.member_id)
    assert harness.state() == "CompletingRebalance"


def test_a_waiting_member_keeps_its_session(harness: GroupHarness) -> None:
    first = harness.stable()[0]
    second = harness.join()
    leader = harness.join(harness.request(first.member_id)).result()
    waiting = harness.sync(second.result())
    for _ in range(5):
        harness.advance(9_000)
        harness.coordinator.heartbeat("g", 2, leader.member_id)
    before = waiting.is_done
    harness.sync(leader)
    assert [before, waiting.is_done] == [False, True]
    harness.advance(9_999)
    harness.coordinator.heartbeat("g", 2, second.result().member_id)


def test_leaving_starts_a_rebalance_and_the_last_one_empties_the_group(
    harness: GroupHarness,
) -> None:
    leader, follower = harness.stable(2)
    harness.coordinator.leave("g", leader.member_id)
    assert harness.state() == "PreparingRebalance"
    alone = harness.join(harness.request(follower.member_id)).result()
    assert alone.is_leader and alone.generation == 3
    harness.coordinator.leave("g", follower.member_id)
    description = harness.coordinator.describe("g")
    assert (description.state, description.generation) == ("Empty", 4)
    with pytest.raises(UnknownMemberError):
        harness.coordinator.leave("g", follower.member_id)


def test_waiting_members_get_an_error_when_the_group_changes(harness: GroupHarness) -> None:
    leader = harness.stable()[0]
    new_member = harness.join()
    leader = harness.join(harness.request(leader.member_id)).result()
    waiting = harness.sync(new_member.result())
    harness.join()
    assert isinstance(waiting.error, RebalanceInProgressError)
    with pytest.raises(RebalanceInProgressError):
        harness.sync(leader)


def test_a_member_that_leaves_while_it_waits_gets_an_error(harness: GroupHarness) -> None:
    harness.stable()
    new_member = harness.join()
    harness.coordinator.leave("g", "c-0002")
    assert isinstance(new_member.error, UnknownMemberError)


def test_a_member_that_never_syncs_is_removed(harness: GroupHarness) -> None:
    first = harness.stable()[0]
    lazy = harness.join(harness.request(session_ms=1_000_000))
    leader = harness.join(harness.request(first.member_id, session_ms=1_000_000)).result()
    harness.sync(leader)
    assert harness.state() == "Stable"
    harness.advance(59_999)
    assert harness.state() == "Stable"
    harness.advance(1)
    assert harness.state() == "PreparingRebalance"
    with pytest.raises(UnknownMemberError):
        harness.coordinator.heartbeat("g", 2, lazy.result().member_id)


def test_a_leader_that_never_assigns_is_removed(harness: GroupHarness) -> None:
    first = harness.stable()[0]
    second = harness.join(harness.request(session_ms=1_000_000))
    harness.join(harness.request(first.member_id, session_ms=1_000_000)).result()
    waiting = harness.sync(second.result())
    assert waiting.deadline_ms == harness.clock.monotonic_ms() + 60_000
    harness.advance(60_000)
    assert isinstance(waiting.error, RebalanceInProgressError)
    assert harness.join(harness.request(second.result().member_id)).result().is_leader


def test_a_new_member_that_gave_up_is_removed_after_five_minutes(harness: GroupHarness) -> None:
    member = harness.stable()[0]
    request = harness.request(member.member_id, session_ms=1_000_000, rebalance_ms=1_000_000)
    again = harness.join(request).result()
    harness.sync(again)
    ghost = harness.join(harness.request(rebalance_ms=1_000_000))
    harness.advance(300_000)
    assert isinstance(ghost.error, UnknownMemberError)


def test_a_follower_that_rejoins_unchanged_gets_its_generation(harness: GroupHarness) -> None:
    _, follower = harness.stable(2)
    again = harness.join(harness.request(follower.member_id)).result()
    assert again == follower
    assert harness.state() == "Stable"


def test_rejoining_with_other_topics_starts_a_rebalance(harness: GroupHarness) -> None:
    _, follower = harness.stable(2)
    again = harness.join(harness.request(follower.member_id, topics=("t", "u")))
    assert not again.is_done
    assert harness.state() == "PreparingRebalance"


def test_the_leader_starts_a_rebalance_by_rejoining(harness: GroupHarness) -> None:
    leader, _ = harness.stable(2)
    assert not harness.join(harness.request(leader.member_id)).is_done
    assert harness.state() == "PreparingRebalance"


def test_a_repeated_join_gets_the_same_result(harness: GroupHarness) -> None:
    joined = harness.join().result()
    assert harness.join(harness.request(joined.member_id)).result() == joined
    assert harness.state() == "CompletingRebalance"


def test_a_repeated_request_waits_for_the_same_result(harness: GroupHarness) -> None:
    harness.stable()
    first = harness.join(harness.request(require_member_id=False))
    second = harness.join(harness.request("c-0002"))
    assert first is second
    leader = harness.join(harness.request("c-0001")).result()
    assert harness.sync(first.result()) is harness.sync(first.result())
    assert harness.sync(leader).is_done


def test_a_sync_in_stable_returns_the_assignment_again(harness: GroupHarness) -> None:
    leader = harness.stable()[0]
    once = harness.sync(leader).result()
    assert harness.sync(leader).result() == once


def test_a_member_left_out_by_the_leader_gets_nothing(harness: GroupHarness) -> None:
    joined = harness.join().result()
    assert harness.sync(joined, assignments={"stranger": []}).result().assignment == b""


def sync_with(
    harness: GroupHarness, joined: JoinResult, kind: str | None, name: str | None
) -> None:
    harness.coordinator.sync(
        SyncRequest(
            group_id="g",
            generation=joined.generation,
            member_id=joined.member_id,
            protocol_type=kind,
            protocol_name=name,
        )
    )


def test_a_sync_with_another_protocol_is_rejected(harness: GroupHarness) -> None:
    joined = harness.join().result()
    with pytest.raises(InconsistentProtocolError):
        sync_with(harness, joined, "connect", None)
    with pytest.raises(InconsistentProtocolError):
        sync_with(harness, joined, None, "sticky")
    sync_with(harness, joined, "consumer", "range")


def test_a_sync_of_another_generation_is_rejected(harness: GroupHarness) -> None:
    joined = harness.join().result()
    with pytest.raises(IllegalGenerationError):
        harness.sync(joined._replace(generation=7))
    with pytest.raises(UnknownMemberError):
        harness.sync(joined._replace(member_id="unknown"))


@pytest.mark.parametrize(
    ("offers", "chosen"),
    [
        ([("range",), ("range", "sticky")], "range"),
        ([("range", "sticky"), ("sticky", "range"), ("sticky", "range")], "sticky"),
        ([("sticky", "range"), ("range", "sticky")], "sticky"),  # a tie: as the leader likes it
        ([("a", "b", "c"), ("c", "b"), ("b", "c")], "b"),  # "a" is not shared by all
    ],
)
def test_the_protocol_is_chosen_by_vote_among_the_common_ones(
    harness_type: type[GroupHarness], offers: list[tuple[str, ...]], chosen: str
) -> None:
    harness = harness_type({"group.initial.rebalance.delay.ms": 1_000})
    pendings = [harness.join(harness.request(protocols=offer)) for offer in offers]
    harness.advance(60_000)
    assert {pending.result().protocol_name for pending in pendings} == {chosen}


def test_a_member_without_a_common_protocol_is_rejected(harness: GroupHarness) -> None:
    harness.stable()
    with pytest.raises(InconsistentProtocolError):
        harness.join(harness.request(protocols=("sticky",)))
    with pytest.raises(InconsistentProtocolError):
        harness.join(harness.request(protocols=()))
    with pytest.raises(InconsistentProtocolError):
        harness.join(
            JoinRequest(
                group_id="g", protocols=(MemberProtocol("range", b""),), protocol_type="connect"
            )
        )
    assert harness.state() == "Stable"


def test_a_single_member_may_change_its_protocol(harness: GroupHarness) -> None:
    member = harness.stable()[0]
    again = harness.join(harness.request(member.member_id, protocols=("sticky",))).result()
    assert again.protocol_name == "sticky"


def test_a_full_group_rejects_new_members_and_keeps_its_own(
    harness_type: type[GroupHarness],
) -> None:
    harness = harness_type({"group.max.size": 2})
    leader, follower = harness.stable(2)
    with pytest.raises(GroupFullError):
        harness.join()
    harness.join(harness.request(leader.member_id))
    assert harness.join(harness.request(follower.member_id)).is_done


def test_a_failed_write_fails_all_syncs_and_starts_a_rebalance(harness: GroupHarness) -> None:
    leader = harness.stable()[0]
    new_member = harness.join()
    leader = harness.join(harness.request(leader.member_id)).result()
    waiting = harness.sync(new_member.result())
    harness.log.is_broken = True
    answer = harness.sync(leader)
    assert isinstance(answer.error, StorageError)
    assert isinstance(waiting.error, StorageError)
    assert harness.state() == "PreparingRebalance"
    harness.log.is_broken = False
    pendings = [
        harness.join(harness.request(joined.member_id)) for joined in (leader, new_member.result())
    ]
    answers = [harness.sync(pending.result()) for pending in pendings]
    assert all(answer.is_done for answer in answers)
    assert harness.state() == "Stable"
