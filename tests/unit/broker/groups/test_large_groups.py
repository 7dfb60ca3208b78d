"""Groups of thousands: the cost of a request does not grow with the group; memory is bounded."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import pytest
from tests.unit.broker.conftest import GroupHarness

from strandlog.broker.deferred import COMPLETED_AT_ONCE, Deferred
from strandlog.broker.groups.coordinator import GROUPS_AT_ONCE
from strandlog.broker.groups.members import MEMBER_BYTES
from strandlog.broker.groups.requests import (
    CommitRequest,
    JoinRequest,
    JoinResult,
    MemberProtocol,
    SyncRequest,
)
from strandlog.errors import (
    GroupFullError,
    GroupMetadataTooLargeError,
    MemberIdRequiredError,
    NotOwnerError,
    TooManyGroupsError,
    TooManyOffsetsError,
)
from strandlog.model import OffsetAndMetadata, TopicPartition
from strandlog.protocol.consumer_protocol import Assignment, encode_assignment

FEW, MANY = 500, 4000
GATHERING_MS = 3000


def _gathering() -> GroupHarness:
    return GroupHarness(
        {"group.initial.rebalance.delay.ms": GATHERING_MS, "group.max.size": 10_000}
    )


def _join_all(harness: GroupHarness, count: int) -> list[Deferred[JoinResult]]:
    return [harness.join(harness.request()) for _ in range(count)]


def _stable(count: int) -> tuple[GroupHarness, list[JoinResult]]:
    harness = _gathering()
    pendings = _join_all(harness, count)
    harness.advance(2 * GATHERING_MS)
    results = [pending.result() for pending in pendings]
    shares = {each.member_id: encode_assignment(Assignment(())) for each in results}
    for each in reversed(results):
        members = shares if each.is_leader else {}
        harness.coordinator.sync(
            SyncRequest(
                group_id="g",
                generation=each.generation,
                member_id=each.member_id,
                assignments=members,
            )
        )
    harness.advance(0)
    assert harness.coordinator.describe("g").state == "Stable"
    return harness, results


def _seconds(work: Callable[[], object]) -> float:
    gc.disable()  # a full collection looks at all objects of the test process
    try:
        began = time.process_time()
        work()
        return time.process_time() - began
    finally:
        gc.enable()


def _assert_linear(cost: Callable[[int], float]) -> None:
    """Eight times the members cost about eight times as much: not 64 times."""
    few = min(cost(FEW) for _ in range(3))
    many = min(cost(MANY) for _ in range(2))
    assert many < 24 * few, f"{FEW}: {few:.3f} s, {MANY}: {many:.3f} s"


def test_joining_costs_the_same_for_each_member() -> None:
    """4,000 members stalled the broker for 74 seconds."""

    def cost(count: int) -> float:
        harness = _gathering()
        return _seconds(lambda: _join_all(harness, count))

    _assert_linear(cost)


def test_a_rebalance_with_its_syncs_costs_the_same_for_each_member() -> None:
    _assert_linear(lambda count: _seconds(lambda: _stable(count)))


@pytest.mark.slow
def test_leaving_and_expiry_cost_the_same_for_each_member() -> None:
    def leave(count: int) -> float:
        harness, results = _stable(count)

        def all_leave() -> None:
            for each in results:
                harness.coordinator.leave("g", each.member_id)

        return _seconds(all_leave)

    def expire(count: int) -> float:
        harness, _ = _stable(count)
        return _seconds(lambda: harness.advance(60_000))

    _assert_linear(leave)
    _assert_linear(expire)


@pytest.mark.slow
def test_returning_static_members_cost_the_same_for_each_member() -> None:
    def cost(count: int) -> float:
        harness = _gathering()
        for number in range(count):
            harness.join(harness.request(instance=f"i{number}"))
        return _seconds(
            lambda: [
                harness.join(harness.request(instance=f"i{number}")) for number in range(count)
            ]
        )

    _assert_linear(cost)


def test_the_results_of_a_rebalance_complete_some_at_a_time() -> None:
    harness = _gathering()
    count = 3 * COMPLETED_AT_ONCE
    pendings = _join_all(harness, count)
    harness.advance(2 * GATHERING_MS - 1)
    harness.clock.advance(1)
    done = []
    for _ in range(count // COMPLETED_AT_ONCE + 1):
        harness.coordinator.tick(harness.clock.monotonic_ms())
        done.append(sum(pending.is_done for pending in pendings))
    steps = [after - before for before, after in zip([0, *done], done, strict=False)]
    assert max(steps) == COMPLETED_AT_ONCE
    assert done[-1] == count


def test_absent_static_members_are_not_checked_a_thousand_times_a_second() -> None:
    """The rebalance restarted after its time-out, which may be one millisecond."""
    harness = GroupHarness()

    def join(instance: str, member_id: str = "") -> Deferred[JoinResult]:
        return harness.join(
            harness.request(member_id, instance=instance, rebalance_ms=1, session_ms=600_000)
        )

    first_id = join("i0").result().member_id
    second = join("i1")
    first = join("i0", first_id)
    for joined in (second.result(), first.result()):
        harness.sync(joined)
    assert harness.coordinator.describe("g").state == "Stable"
    harness.coordinator.leave("g", "", "i0")
    looks = 0
    end_ms = harness.clock.monotonic_ms() + 60_000
    while (deadline_ms := harness.coordinator.next_deadline_ms()) is not None:
        if deadline_ms > end_ms:
            break
        harness.clock.advance(max(0, deadline_ms - harness.clock.monotonic_ms()))
        harness.coordinator.tick(harness.clock.monotonic_ms())
        looks += 1
    assert looks < 100


def test_a_full_group_accepts_no_pending_member() -> None:
    harness = GroupHarness({"group.max.size": 2})
    for _ in range(2):
        with pytest.raises(MemberIdRequiredError):
            harness.join(harness.request(require_member_id=True))
    with pytest.raises(GroupFullError):
        harness.join(harness.request(require_member_id=True))


def test_a_member_with_too_much_metadata_is_rejected() -> None:
    harness = GroupHarness({"group.member.metadata.max.bytes": 2000})
    big = JoinRequest(group_id="g", protocols=(MemberProtocol("range", bytes(2000)),))
    with pytest.raises(GroupMetadataTooLargeError, match=r"group\.member\.metadata\.max\.bytes"):
        harness.join(big)
    many = JoinRequest(group_id="g", protocols=tuple(MemberProtocol("", b"") for _ in range(100)))
    with pytest.raises(GroupMetadataTooLargeError):
        harness.join(many)
    assert harness.coordinator.list_groups() == []


def test_the_metadata_of_a_group_and_of_all_groups_is_bounded() -> None:
    limit = 3 * MEMBER_BYTES
    harness = GroupHarness(
        {"group.metadata.max.bytes": limit, "groups.metadata.max.bytes": 2 * limit}
    )
    joined = 0
    for group in ("a", "b", "c"):
        try:
            for _ in range(5):
                harness.join(harness.request(group=group))
                joined += 1
        except GroupMetadataTooLargeError:
            continue
    assert 2 <= joined <= 2 * limit // MEMBER_BYTES


def test_members_that_leave_release_memory() -> None:
    harness = GroupHarness({"groups.metadata.max.bytes": 2 * MEMBER_BYTES})
    for _ in range(20):
        joined = harness.join().result()
        harness.sync(joined)
        harness.coordinator.leave("g", joined.member_id)


def test_an_assignment_that_is_too_large_is_rejected_and_the_group_continues() -> None:
    harness = GroupHarness({"group.metadata.max.bytes": 10_000})
    joined = harness.join().result()
    sync = SyncRequest(
        group_id="g",
        generation=1,
        member_id=joined.member_id,
        assignments={joined.member_id: bytes(10_000)},
    )
    with pytest.raises(GroupMetadataTooLargeError):
        harness.coordinator.sync(sync)
    assert harness.sync(joined).is_done


def test_the_number_of_groups_is_bounded() -> None:
    harness = GroupHarness({"groups.max.count": 2})
    harness.stable(group="a")
    harness.commit({TopicPartition("t", 0): 1}, group="b")
    with pytest.raises(TooManyGroupsError):
        harness.join(harness.request(group="c"))
    with pytest.raises(TooManyGroupsError):
        harness.commit({TopicPartition("t", 0): 1}, group="c")
    harness.commit({TopicPartition("t", 0): 2}, group="b")
    harness.coordinator.delete("b")
    harness.commit({TopicPartition("t", 0): 1}, group="c")


def test_committed_offsets_are_bounded_and_existing_ones_can_still_change() -> None:
    harness = GroupHarness({"offsets.max.bytes": 2000})
    with pytest.raises(TooManyOffsetsError, match=r"offsets\.max\.bytes"):
        for number in range(100):
            harness.commit({TopicPartition("t", number): 1})
    harness.commit({TopicPartition("t", 0): 2})
    with pytest.raises(TooManyOffsetsError):
        harness.commit({TopicPartition("t", 0): 2}, metadata="m" * 2000)
    harness.coordinator.delete("g")
    harness.commit({TopicPartition("t", 9): 1})


def test_commits_of_foreign_partitions_are_checked_without_a_scan_of_all_members() -> None:
    harness, results = _stable(200)
    joined = results[0]
    offsets = {TopicPartition("t", number): OffsetAndMetadata(1) for number in range(2000)}
    request = CommitRequest(
        group_id="g", offsets=offsets, member_id=joined.member_id, generation=joined.generation
    )
    errors = harness.coordinator.try_commit_offsets(request)
    assert len(errors) == 2000
    assert all(isinstance(error, NotOwnerError) for error in errors.values())


def test_the_expiry_of_offsets_checks_some_groups_at_a_time() -> None:
    harness = GroupHarness({"offsets.retention.minutes": 1})
    count = 2 * GROUPS_AT_ONCE + 1
    for number in range(count):
        harness.commit({TopicPartition("t", 0): 1}, group=f"g{number}")
    deadline_ms = harness.coordinator.next_deadline_ms()
    assert deadline_ms is not None
    harness.clock.advance(deadline_ms - harness.clock.monotonic_ms())
    left = []
    for _ in range(3):
        harness.coordinator.tick(harness.clock.monotonic_ms())
        left.append(len(harness.coordinator.list_groups()))
    assert left == [count - GROUPS_AT_ONCE, count - 2 * GROUPS_AT_ONCE, 0]
