"""The coordinator: names, commits, restarts, expiry, deletion."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from strandlog.broker.compacted_table import latest_values
from strandlog.broker.context import RequestContext
from strandlog.broker.groups.coordinator import (
    OFFSETS_EXAMINED_AT_ONCE,
    GroupCoordinator,
    LoadReport,
)
from strandlog.broker.timers import Timers
from strandlog.errors import (
    CoordinatorLoadingError,
    DataError,
    GroupNotEmptyError,
    GroupNotFoundError,
    IllegalGenerationError,
    InconsistentProtocolError,
    InvalidGroupError,
    InvalidSessionTimeoutError,
    NotOwnerError,
    UnknownMemberError,
)
from strandlog.model import TopicPartition
from strandlog.protocol.consumer_protocol import decode_assignment
from strandlog.storage.work import run_inline

if TYPE_CHECKING:
    from tests.unit.broker.conftest import GroupHarness

T0, T1, T2, T3 = (TopicPartition("t", number) for number in range(4))
U0 = TopicPartition("u", 0)
WEEK_MS = 7 * 86_400_000


def test_requests_before_loading_are_rejected(harness: GroupHarness) -> None:
    fresh = GroupCoordinator(harness.settings, harness.clock, Timers(), harness.log, lambda: "x")
    with pytest.raises(CoordinatorLoadingError):
        fresh.join(RequestContext(), harness.request())
    with pytest.raises(CoordinatorLoadingError):
        fresh.fetch_offsets("g")
    with pytest.raises(CoordinatorLoadingError):
        fresh.list_groups()


@pytest.mark.parametrize("name", ["", "x" * 256, "a\nb", "a\x00", "\x7f", "\ud800"])
def test_invalid_group_names_are_rejected_everywhere(harness: GroupHarness, name: str) -> None:
    with pytest.raises(InvalidGroupError):
        harness.join(harness.request(group=name))
    with pytest.raises(InvalidGroupError):
        harness.commit({T0: 1}, group=name)
    with pytest.raises(InvalidGroupError):
        harness.coordinator.fetch_offsets(name)


@pytest.mark.parametrize("name", ["a|b", "|", "a/b:c", "../..", "naïve 😀 group", "x" * 255, "."])
def test_group_id_containing_a_bar_makes_the_broker_unable_to_start(
    harness: GroupHarness, name: str
) -> None:
    member = harness.stable(group=name)[0]
    harness.commit({T0: 5}, member, group=name)
    harness.restart()
    assert harness.committed(name) == {T0: 5}
    assert harness.state(name) == "Stable"


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001])
def test_session_timeouts_have_limits(harness: GroupHarness, session_ms: int) -> None:
    with pytest.raises(InvalidSessionTimeoutError, match="between 6000 and 1800000"):
        harness.join(harness.request(session_ms=session_ms))
    with pytest.raises(InvalidSessionTimeoutError):
        harness.join(harness.request(rebalance_ms=-1))
    assert harness.coordinator.list_groups() == []


def test_a_join_that_cannot_be_stored_is_rejected(harness: GroupHarness) -> None:
    with pytest.raises(DataError):
        harness.join(client="x" * 40_000)
    assert harness.coordinator.list_groups() == []


def test_a_rejected_first_join_leaves_no_group(harness: GroupHarness) -> None:
    with pytest.raises(InconsistentProtocolError):
        harness.join(harness.request(protocols=()))
    assert harness.coordinator.list_groups() == []


def test_a_member_of_a_group_that_does_not_exist(harness: GroupHarness) -> None:
    with pytest.raises(UnknownMemberError):
        harness.join(harness.request("ghost"))
    with pytest.raises(UnknownMemberError):
        harness.coordinator.heartbeat("g", 1, "ghost")
    with pytest.raises(UnknownMemberError):
        harness.coordinator.leave("g", "ghost")
    assert harness.coordinator.list_groups() == []


# Restarts.


def test_members_continue_after_a_restart(harness: GroupHarness) -> None:
    leader, follower = harness.stable(2)
    before = harness.coordinator.describe("g")
    harness.advance(9_999)
    harness.restart()
    assert harness.coordinator.describe("g") == before
    harness.advance(9_999)  # sessions start again
    for member in (leader, follower):
        harness.coordinator.heartbeat("g", 2, member.member_id)
    harness.commit({T0: 4}, leader)
    with pytest.raises(NotOwnerError):
        harness.commit({T0: 0}, follower)
    assert harness.join(harness.request(follower.member_id)).result().generation == 2
    harness.advance(10_000)
    assert harness.state() == "Empty"
    harness.restart()
    description = harness.coordinator.describe("g")
    assert (description.state, description.generation) == ("Empty", 3)


def test_a_restart_during_a_rebalance_returns_to_the_last_completed_one(
    harness: GroupHarness,
) -> None:
    member = harness.stable()[0]
    harness.join()
    again = harness.join(harness.request(member.member_id)).result()
    harness.restart()
    with pytest.raises(IllegalGenerationError):
        harness.coordinator.heartbeat("g", again.generation, member.member_id)
    assert harness.join(harness.request(member.member_id)).result().generation == 2


def test_records_that_cannot_be_decoded_are_skipped_and_counted(harness: GroupHarness) -> None:
    harness.stable()
    harness.commit({T0: 1}, group="h")
    harness.log.records += [
        (b"", b"x"),
        (b"\x00\x09later kind", b"x"),
        (b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x07", b"\x00\x63new"),
        (b"\x00\x02\x00\x01k", b"torn"),
        (None, b"x"),
    ]
    coordinator = GroupCoordinator(
        harness.settings, harness.clock, Timers(), harness.log, lambda: "x"
    )
    assert coordinator.load() == LoadReport(groups=2, offsets=1, skipped=4)


def test_a_group_stored_with_the_same_member_twice_is_restored_empty(harness: GroupHarness) -> None:
    harness.stable()
    key, value = next(iter(latest_values(harness.log).items()))
    member = value[value.index(b"\x00\x06c-0001\xff\xff") :]
    twice = value[: -len(member) - 4] + b"\x00\x00\x00\x02" + member + member
    harness.log.records.append((key, twice))
    coordinator = GroupCoordinator(
        harness.settings, harness.clock, Timers(), harness.log, lambda: "x"
    )
    assert coordinator.load().skipped == 1
    assert coordinator.describe("g").state == "Empty"


# Expiry.


def test_offsets_of_a_group_expire_a_week_after_it_became_empty(harness: GroupHarness) -> None:
    member = harness.stable()[0]
    harness.commit({T0: 1}, member)
    harness.clock.set_wall(harness.clock.now_ms() + WEEK_MS)
    harness.coordinator.leave("g", member.member_id)
    harness.advance(WEEK_MS - 1)
    harness.restart()
    assert harness.committed() == {T0: 1}
    harness.advance(600_000)
    assert harness.committed() == {}
    with pytest.raises(GroupNotFoundError):
        harness.coordinator.describe("g")
    assert latest_values(harness.log) == {}


def test_offsets_of_a_simple_consumer_expire_a_week_after_the_commit(harness: GroupHarness) -> None:
    harness.commit({T0: 1})
    harness.advance(WEEK_MS - 1_000_000)
    harness.commit({T1: 1})
    assert harness.committed() == {T0: 1, T1: 1}
    harness.advance(2_000_000)
    assert harness.committed() == {T1: 1}
    harness.advance(WEEK_MS)
    assert harness.coordinator.list_groups() == []


def test_offsets_of_an_active_group_expire_for_topics_it_unsubscribed(
    harness_type: type[GroupHarness],
) -> None:
    harness = harness_type({"offsets.retention.minutes": 1})
    harness.commit({T0: 1, U0: 1})
    harness.sync(harness.join(harness.request(session_ms=1_800_000)).result())
    harness.advance(600_000)
    assert harness.state() == "Stable"
    assert harness.committed() == {T0: 1}


def test_expiry_is_retried_after_a_failed_write(harness: GroupHarness) -> None:
    harness.commit({T0: 1})
    harness.log.is_broken = True
    harness.advance(WEEK_MS + 600_000)
    assert harness.committed() == {T0: 1}
    assert harness.coordinator.failed_writes > 0
    harness.log.is_broken = False
    harness.advance(600_000)
    assert harness.committed() == {}


def test_a_group_that_emptied_on_a_failing_disk_is_stored_later(harness: GroupHarness) -> None:
    member = harness.stable()[0]
    harness.commit({T0: 1}, member)
    harness.log.is_broken = True
    harness.coordinator.leave("g", member.member_id)
    assert harness.coordinator.failed_writes == 1
    harness.log.is_broken = False
    harness.advance(600_000)
    harness.restart()
    assert harness.coordinator.describe("g").state == "Empty"


def test_an_empty_group_without_offsets_disappears(harness: GroupHarness) -> None:
    member = harness.stable()[0]
    harness.coordinator.leave("g", member.member_id)
    harness.advance(600_000)
    assert harness.coordinator.list_groups() == []
    assert latest_values(harness.log) == {}


# Looking and deleting.


def test_listing_and_describing(harness: GroupHarness) -> None:
    harness.stable()
    harness.commit({T0: 1}, group="a")
    listed = [tuple(group) for group in harness.coordinator.list_groups()]
    assert listed == [("a", "", "Empty"), ("g", "consumer", "Stable")]
    (member,) = harness.coordinator.describe("g").members
    assert (member.client_id, member.client_host) == ("c", "/127.0.0.1")
    assert decode_assignment(member.assignment).partitions == (T0, T1, T2, T3)
    with pytest.raises(GroupNotFoundError):
        harness.coordinator.describe("unknown")
    assert harness.coordinator.groups_subscribed_to("t") == ["g"]
    assert harness.coordinator.groups_subscribed_to("u") == []


def test_only_an_empty_group_is_deleted(harness: GroupHarness) -> None:
    member = harness.stable()[0]
    harness.commit({T0: 1}, member)
    with pytest.raises(GroupNotEmptyError):
        harness.coordinator.delete("g")
    harness.coordinator.leave("g", member.member_id)
    harness.coordinator.delete("g")
    assert latest_values(harness.log) == {}
    with pytest.raises(GroupNotFoundError):
        harness.coordinator.delete("g")
    harness.restart()
    assert harness.coordinator.list_groups() == []
    assert harness.stable()[0].generation == 1


def test_offsets_in_use_are_not_deleted(harness: GroupHarness) -> None:
    harness.commit({T0: 1, T1: 1, U0: 1})
    with pytest.raises(GroupNotFoundError):
        harness.coordinator.delete_offsets("unknown", [T0])
    assert harness.coordinator.delete_offsets("g", [T1, T2]) == {}
    harness.stable()
    errors = harness.coordinator.delete_offsets("g", [T0, U0])
    assert {tp: error.kafka_code for tp, error in errors.items()} == {T0: 86}
    assert harness.committed() == {T0: 1}
    harness.restart()
    assert harness.committed() == {T0: 1}


def test_offsets_of_a_deleted_topic_are_deleted_in_every_group(harness: GroupHarness) -> None:
    harness.commit({T0: 1, U0: 1})
    harness.commit({T1: 1}, group="h")
    run_inline(harness.coordinator.delete_topic_offsets("t"))
    assert [harness.committed(), harness.committed("h")] == [{U0: 1}, {}]
    harness.restart()
    assert [harness.committed(), harness.committed("h")] == [{U0: 1}, {}]


def test_creating_a_topic_examines_the_offsets_of_all_groups_in_one_step(
    harness: GroupHarness,
) -> None:
    per_group = {TopicPartition("u", number): 1 for number in range(OFFSETS_EXAMINED_AT_ONCE // 2)}
    for group in ("a", "b", "c", "d"):
        harness.commit(per_group, group=group)
    harness.commit({T0: 1}, group="e")
    steps = list(harness.coordinator.delete_topic_offsets("t"))
    assert len(steps) == 2
    assert harness.committed("e") == {}
