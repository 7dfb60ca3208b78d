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
    from tests.unit.broker.conftest import Bench


def test_the_first_member_leads_generation_one(bench: Bench) -> None:
    joined = bench.join().result()
    assert joined.generation == 1
    assert joined.is_leader
    assert joined.member_id == "c-0001"
    assert [member.member_id for member in joined.members] == ["c-0001"]
    assert bench.state() == "CompletingRebalance"
    answer = bench.sync(joined).result()
    assert answer.protocol_name == "range"
    assert len(decode_assignment(answer.assignment).partitions) == 4
    assert bench.state() == "Stable"


def test_only_the_leader_sees_the_members(bench: Bench) -> None:
    leader, follower = bench.stable(2)
    assert leader.is_leader and not follower.is_leader
    assert len(leader.members) == 2
    assert follower.members == ()
    assert leader.generation == follower.generation == 2
    assert leader.protocol_type == follower.protocol_type == "consumer"


def test_a_follower_waits_for_the_leader_and_both_get_their_assignment(bench: Bench) -> None:
    first = bench.join().result()
    second = bench.join()
    waiting = [second.is_done]
    leader = bench.join(bench.request(first.member_id)).result()
    follower = second.result()
    answer = bench.sync(follower)
    waiting.append(answer.is_done)
    mine = bench.sync(leader).result()
    assert waiting == [False, False]
    shares = [decode_assignment(share.assignment) for share in (mine, answer.result())]
    assert [len(share.partitions) for share in shares] == [2, 2]


def test_an_empty_group_waits_for_members_before_its_first_generation(
    bench_type: type[Bench],
) -> None:
    bench = bench_type({"group.initial.rebalance.delay.ms": 3_000})
    first = bench.join()
    assert first.deadline_ms == 3_000
    bench.advance(2_000)
    second = bench.join()
    assert second.deadline_ms == 3_000
    bench.advance(1_500)
    # Somebody came during the delay, so it is waited for more.
    assert first.deadline_ms == 6_000
    assert [first.is_done, second.is_done] == [False, False]
    bench.advance(2_500)
    assert first.result().generation == second.result().generation == 1
    assert len(first.result().members) == 2


def test_the_initial_delay_ends_at_the_rebalance_timeout(bench_type: type[Bench]) -> None:
    bench = bench_type({"group.initial.rebalance.delay.ms": 3_000})
    pendings = [bench.join(bench.request(rebalance_ms=10_000))]
    for _ in range(9):
        bench.advance(1_000)
        pendings.append(bench.join(bench.request(rebalance_ms=10_000)))
    assert not pendings[0].is_done
    bench.advance(1_000)
    assert all(pending.is_done for pending in pendings)


def test_the_initial_delay_ends_when_all_members_leave(bench_type: type[Bench]) -> None:
    bench = bench_type({"group.initial.rebalance.delay.ms": 3_000})
    pending = bench.join()
    bench.coordinator.leave("g", "c-0001")
    assert isinstance(pending.error, UnknownMemberError)
    assert bench.state() == "Empty"


def test_a_new_member_gets_its_id_first(bench: Bench) -> None:
    with pytest.raises(MemberIdRequiredError) as caught:
        bench.join(bench.request(require_member_id=True))
    member_id = caught.value.member_id
    assert bench.state() == "Empty"
    joined = bench.join(bench.request(member_id, require_member_id=True)).result()
    assert joined.member_id == member_id


def test_a_rebalance_waits_for_pending_members(bench: Bench) -> None:
    with pytest.raises(MemberIdRequiredError):
        bench.join(bench.request(require_member_id=True, session_ms=7_000))
    waiting = bench.join()
    bench.advance(6_999)
    before = waiting.is_done
    bench.advance(1)
    assert [before, waiting.is_done] == [False, True]


def test_a_pending_member_can_leave_and_expires(bench: Bench) -> None:
    with pytest.raises(MemberIdRequiredError) as caught:
        bench.join(bench.request(require_member_id=True))
    bench.coordinator.leave("g", caught.value.member_id)
    assert bench.coordinator.list_groups() == []
    with pytest.raises(UnknownMemberError):
        bench.join(bench.request(caught.value.member_id))


def test_a_member_that_does_not_rejoin_is_removed(bench: Bench) -> None:
    old = bench.stable()[0]
    new_member = bench.join()
    for _ in range(6):
        before = new_member.is_done
        with pytest.raises(RebalanceInProgressError):
            bench.coordinator.heartbeat("g", 1, old.member_id)
        bench.advance(9_999)
    assert not before
    bench.advance(6)
    joined = new_member.result()
    assert joined.is_leader and joined.generation == 2
    with pytest.raises(UnknownMemberError):
        bench.coordinator.heartbeat("g", joined.generation, old.member_id)


def test_a_member_without_heartbeats_is_removed(bench: Bench) -> None:
    member = bench.stable()[0]
    for _ in range(10):
        bench.advance(9_000)
        bench.coordinator.heartbeat("g", 1, member.member_id)
    bench.advance(9_999)
    assert bench.state() == "Stable"
    bench.advance(1)
    assert bench.state() == "Empty"
    with pytest.raises(UnknownMemberError):
        bench.coordinator.heartbeat("g", 1, member.member_id)


def test_a_heartbeat_reports_a_rebalance_and_a_wrong_generation(bench: Bench) -> None:
    member = bench.stable()[0]
    with pytest.raises(IllegalGenerationError):
        bench.coordinator.heartbeat("g", 0, member.member_id)
    bench.join()
    with pytest.raises(RebalanceInProgressError):
        bench.coordinator.heartbeat("g", 1, member.member_id)


def test_a_heartbeat_succeeds_while_the_leader_assigns(bench: Bench) -> None:
    joined = bench.join().result()
    bench.coordinator.heartbeat("g", 1, joined.member_id)
    assert bench.state() == "CompletingRebalance"


def test_a_waiting_member_keeps_its_session(bench: Bench) -> None:
    first = bench.stable()[0]
    second = bench.join()
    leader = bench.join(bench.request(first.member_id)).result()
    waiting = bench.sync(second.result())
    for _ in range(5):
        bench.advance(9_000)
        bench.coordinator.heartbeat("g", 2, leader.member_id)
    before = waiting.is_done
    bench.sync(leader)
    assert [before, waiting.is_done] == [False, True]
    bench.advance(9_999)
    bench.coordinator.heartbeat("g", 2, second.result().member_id)


def test_leaving_starts_a_rebalance_and_the_last_one_empties_the_group(bench: Bench) -> None:
    leader, follower = bench.stable(2)
    bench.coordinator.leave("g", leader.member_id)
    assert bench.state() == "PreparingRebalance"
    alone = bench.join(bench.request(follower.member_id)).result()
    assert alone.is_leader and alone.generation == 3
    bench.coordinator.leave("g", follower.member_id)
    description = bench.coordinator.describe("g")
    assert (description.state, description.generation) == ("Empty", 4)
    with pytest.raises(UnknownMemberError):
        bench.coordinator.leave("g", follower.member_id)


def test_waiting_members_get_an_error_when_the_group_changes(bench: Bench) -> None:
    leader = bench.stable()[0]
    new_member = bench.join()
    leader = bench.join(bench.request(leader.member_id)).result()
    waiting = bench.sync(new_member.result())
    bench.join()
    assert isinstance(waiting.error, RebalanceInProgressError)
    with pytest.raises(RebalanceInProgressError):
        bench.sync(leader)


def test_a_member_that_leaves_while_it_waits_gets_an_error(bench: Bench) -> None:
    bench.stable()
    new_member = bench.join()
    bench.coordinator.leave("g", "c-0002")
    assert isinstance(new_member.error, UnknownMemberError)


def test_a_member_that_never_syncs_is_removed(bench: Bench) -> None:
    first = bench.stable()[0]
    lazy = bench.join(bench.request(session_ms=1_000_000))
    leader = bench.join(bench.request(first.member_id, session_ms=1_000_000)).result()
    bench.sync(leader)
    assert bench.state() == "Stable"
    bench.advance(59_999)
    assert bench.state() == "Stable"
    bench.advance(1)
    assert bench.state() == "PreparingRebalance"
    with pytest.raises(UnknownMemberError):
        bench.coordinator.heartbeat("g", 2, lazy.result().member_id)


def test_a_leader_that_never_assigns_is_removed(bench: Bench) -> None:
    first = bench.stable()[0]
    second = bench.join(bench.request(session_ms=1_000_000))
    bench.join(bench.request(first.member_id, session_ms=1_000_000)).result()
    waiting = bench.sync(second.result())
    assert waiting.deadline_ms == bench.clock.monotonic_ms() + 60_000
    bench.advance(60_000)
    assert isinstance(waiting.error, RebalanceInProgressError)
    assert bench.join(bench.request(second.result().member_id)).result().is_leader


def test_a_new_member_that_gave_up_is_removed_after_five_minutes(bench: Bench) -> None:
    member = bench.stable()[0]
    request = bench.request(member.member_id, session_ms=1_000_000, rebalance_ms=1_000_000)
    again = bench.join(request).result()
    bench.sync(again)
    ghost = bench.join(bench.request(rebalance_ms=1_000_000))
    bench.advance(300_000)
    assert isinstance(ghost.error, UnknownMemberError)


def test_a_follower_that_rejoins_unchanged_gets_its_generation(bench: Bench) -> None:
    _, follower = bench.stable(2)
    again = bench.join(bench.request(follower.member_id)).result()
    assert again == follower
    assert bench.state() == "Stable"


def test_rejoining_with_other_topics_starts_a_rebalance(bench: Bench) -> None:
    _, follower = bench.stable(2)
    again = bench.join(bench.request(follower.member_id, topics=("t", "u")))
    assert not again.is_done
    assert bench.state() == "PreparingRebalance"


def test_the_leader_starts_a_rebalance_by_rejoining(bench: Bench) -> None:
    leader, _ = bench.stable(2)
    assert not bench.join(bench.request(leader.member_id)).is_done
    assert bench.state() == "PreparingRebalance"


def test_a_repeated_join_gets_the_same_result(bench: Bench) -> None:
    joined = bench.join().result()
    assert bench.join(bench.request(joined.member_id)).result() == joined
    assert bench.state() == "CompletingRebalance"


def test_a_repeated_request_waits_for_the_same_result(bench: Bench) -> None:
    bench.stable()
    first = bench.join(bench.request(require_member_id=False))
    second = bench.join(bench.request("c-0002"))
    assert first is second
    leader = bench.join(bench.request("c-0001")).result()
    assert bench.sync(first.result()) is bench.sync(first.result())
    assert bench.sync(leader).is_done


def test_a_sync_in_stable_returns_the_assignment_again(bench: Bench) -> None:
    leader = bench.stable()[0]
    once = bench.sync(leader).result()
    assert bench.sync(leader).result() == once


def test_a_member_left_out_by_the_leader_gets_nothing(bench: Bench) -> None:
    joined = bench.join().result()
    assert bench.sync(joined, assignments={"stranger": []}).result().assignment == b""


def sync_with(bench: Bench, joined: JoinResult, kind: str | None, name: str | None) -> None:
    bench.coordinator.sync(
        SyncRequest(
            group_id="g",
            generation=joined.generation,
            member_id=joined.member_id,
            protocol_type=kind,
            protocol_name=name,
        )
    )


def test_a_sync_with_another_protocol_is_rejected(bench: Bench) -> None:
    joined = bench.join().result()
    with pytest.raises(InconsistentProtocolError):
        sync_with(bench, joined, "connect", None)
    with pytest.raises(InconsistentProtocolError):
        sync_with(bench, joined, None, "sticky")
    sync_with(bench, joined, "consumer", "range")


def test_a_sync_of_another_generation_is_rejected(bench: Bench) -> None:
    joined = bench.join().result()
    with pytest.raises(IllegalGenerationError):
        bench.sync(joined._replace(generation=7))
    with pytest.raises(UnknownMemberError):
        bench.sync(joined._replace(member_id="nobody"))


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
    bench_type: type[Bench], offers: list[tuple[str, ...]], chosen: str
) -> None:
    bench = bench_type({"group.initial.rebalance.delay.ms": 1_000})
    pendings = [bench.join(bench.request(protocols=offer)) for offer in offers]
    bench.advance(60_000)
    assert {pending.result().protocol_name for pending in pendings} == {chosen}


def test_a_member_without_a_common_protocol_is_rejected(bench: Bench) -> None:
    bench.stable()
    with pytest.raises(InconsistentProtocolError):
        bench.join(bench.request(protocols=("sticky",)))
    with pytest.raises(InconsistentProtocolError):
        bench.join(bench.request(protocols=()))
    with pytest.raises(InconsistentProtocolError):
        bench.join(
            JoinRequest(
                group_id="g", protocols=(MemberProtocol("range", b""),), protocol_type="connect"
            )
        )
    assert bench.state() == "Stable"


def test_a_single_member_may_change_its_protocol(bench: Bench) -> None:
    member = bench.stable()[0]
    again = bench.join(bench.request(member.member_id, protocols=("sticky",))).result()
    assert again.protocol_name == "sticky"


def test_a_full_group_rejects_new_members_and_keeps_its_own(bench_type: type[Bench]) -> None:
    bench = bench_type({"group.max.size": 2})
    leader, follower = bench.stable(2)
    with pytest.raises(GroupFullError):
        bench.join()
    bench.join(bench.request(leader.member_id))
    assert bench.join(bench.request(follower.member_id)).is_done


def test_a_failed_write_fails_all_syncs_and_starts_a_rebalance(bench: Bench) -> None:
    leader = bench.stable()[0]
    new_member = bench.join()
    leader = bench.join(bench.request(leader.member_id)).result()
    waiting = bench.sync(new_member.result())
    bench.log.is_broken = True
    answer = bench.sync(leader)
    assert isinstance(answer.error, StorageError)
    assert isinstance(waiting.error, StorageError)
    assert bench.state() == "PreparingRebalance"
    bench.log.is_broken = False
    pendings = [
        bench.join(bench.request(joined.member_id)) for joined in (leader, new_member.result())
    ]
    answers = [bench.sync(pending.result()) for pending in pendings]
    assert all(answer.is_done for answer in answers)
    assert bench.state() == "Stable"
