"""The coordinator: names, commits, restarts, expiry, deletion."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from strandlog.broker.compacted_table import latest_values
from strandlog.broker.context import RequestContext
from strandlog.broker.groups.coordinator import GroupCoordinator, LoadReport
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
    from tests.unit.broker.conftest import Bench

T0, T1, T2, T3 = (TopicPartition("t", number) for number in range(4))
U0 = TopicPartition("u", 0)
WEEK_MS = 7 * 86_400_000


def test_requests_before_loading_are_rejected(bench: Bench) -> None:
    fresh = GroupCoordinator(bench.settings, bench.clock, Timers(), bench.log, lambda: "x")
    with pytest.raises(CoordinatorLoadingError):
        fresh.join(RequestContext(), bench.request())
    with pytest.raises(CoordinatorLoadingError):
        fresh.fetch_offsets("g")
    with pytest.raises(CoordinatorLoadingError):
        fresh.list_groups()


@pytest.mark.parametrize("name", ["", "x" * 256, "a\nb", "a\x00", "\x7f", "\ud800"])
def test_invalid_group_names_are_rejected_everywhere(bench: Bench, name: str) -> None:
    with pytest.raises(InvalidGroupError):
        bench.join(bench.request(group=name))
    with pytest.raises(InvalidGroupError):
        bench.commit({T0: 1}, group=name)
    with pytest.raises(InvalidGroupError):
        bench.coordinator.fetch_offsets(name)


@pytest.mark.parametrize("name", ["a|b", "|", "a/b:c", "../..", "naïve 😀 group", "x" * 255, "."])
def test_group_id_containing_a_bar_makes_the_broker_unable_to_start(
    bench: Bench, name: str
) -> None:
    member = bench.stable(group=name)[0]
    bench.commit({T0: 5}, member, group=name)
    bench.restart()
    assert bench.committed(name) == {T0: 5}
    assert bench.state(name) == "Stable"


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001])
def test_session_timeouts_have_limits(bench: Bench, session_ms: int) -> None:
    with pytest.raises(InvalidSessionTimeoutError, match="6000 to 1800000"):
        bench.join(bench.request(session_ms=session_ms))
    with pytest.raises(InvalidSessionTimeoutError):
        bench.join(bench.request(rebalance_ms=-1))
    assert bench.coordinator.list_groups() == []


def test_a_join_that_cannot_be_stored_is_rejected(bench: Bench) -> None:
    with pytest.raises(DataError):
        bench.join(client="x" * 40_000)
    assert bench.coordinator.list_groups() == []


def test_a_rejected_first_join_leaves_no_group(bench: Bench) -> None:
    with pytest.raises(InconsistentProtocolError):
        bench.join(bench.request(protocols=()))
    assert bench.coordinator.list_groups() == []


def test_a_member_of_a_group_that_does_not_exist(bench: Bench) -> None:
    with pytest.raises(UnknownMemberError):
        bench.join(bench.request("ghost"))
    with pytest.raises(UnknownMemberError):
        bench.coordinator.heartbeat("g", 1, "ghost")
    with pytest.raises(UnknownMemberError):
        bench.coordinator.leave("g", "ghost")
    assert bench.coordinator.list_groups() == []


# Restarts.


def test_members_continue_after_a_restart(bench: Bench) -> None:
    leader, follower = bench.stable(2)
    before = bench.coordinator.describe("g")
    bench.advance(9_999)
    bench.restart()
    assert bench.coordinator.describe("g") == before
    bench.advance(9_999)  # sessions start again
    for member in (leader, follower):
        bench.coordinator.heartbeat("g", 2, member.member_id)
    bench.commit({T0: 4}, leader)
    with pytest.raises(NotOwnerError):
        bench.commit({T0: 0}, follower)
    assert bench.join(bench.request(follower.member_id)).result().generation == 2
    bench.advance(10_000)
    assert bench.state() == "Empty"
    bench.restart()
    description = bench.coordinator.describe("g")
    assert (description.state, description.generation) == ("Empty", 3)


def test_a_restart_during_a_rebalance_returns_to_the_last_completed_one(bench: Bench) -> None:
    member = bench.stable()[0]
    bench.join()
    again = bench.join(bench.request(member.member_id)).result()
    bench.restart()
    with pytest.raises(IllegalGenerationError):
        bench.coordinator.heartbeat("g", again.generation, member.member_id)
    assert bench.join(bench.request(member.member_id)).result().generation == 2


def test_records_that_cannot_be_decoded_are_skipped_and_counted(bench: Bench) -> None:
    bench.stable()
    bench.commit({T0: 1}, group="h")
    bench.log.records += [
        (b"", b"x"),
        (b"\x00\x09later kind", b"x"),
        (b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x07", b"\x00\x63new"),
        (b"\x00\x02\x00\x01k", b"torn"),
        (None, b"x"),
    ]
    coordinator = GroupCoordinator(bench.settings, bench.clock, Timers(), bench.log, lambda: "x")
    assert coordinator.load() == LoadReport(groups=2, offsets=1, skipped=4)


def test_a_group_stored_with_the_same_member_twice_is_restored_empty(bench: Bench) -> None:
    bench.stable()
    key, value = next(iter(latest_values(bench.log).items()))
    member = value[value.index(b"\x00\x06c-0001\xff\xff") :]
    twice = value[: -len(member) - 4] + b"\x00\x00\x00\x02" + member + member
    bench.log.records.append((key, twice))
    coordinator = GroupCoordinator(bench.settings, bench.clock, Timers(), bench.log, lambda: "x")
    assert coordinator.load().skipped == 1
    assert coordinator.describe("g").state == "Empty"


# Expiry.


def test_offsets_of_a_group_expire_a_week_after_it_became_empty(bench: Bench) -> None:
    member = bench.stable()[0]
    bench.commit({T0: 1}, member)
    bench.clock.set_wall(bench.clock.now_ms() + WEEK_MS)
    bench.coordinator.leave("g", member.member_id)
    bench.advance(WEEK_MS - 1)
    bench.restart()
    assert bench.committed() == {T0: 1}
    bench.advance(600_000)
    assert bench.committed() == {}
    with pytest.raises(GroupNotFoundError):
        bench.coordinator.describe("g")
    assert latest_values(bench.log) == {}


def test_offsets_of_a_simple_consumer_expire_a_week_after_the_commit(bench: Bench) -> None:
    bench.commit({T0: 1})
    bench.advance(WEEK_MS - 1_000_000)
    bench.commit({T1: 1})
    assert bench.committed() == {T0: 1, T1: 1}
    bench.advance(2_000_000)
    assert bench.committed() == {T1: 1}
    bench.advance(WEEK_MS)
    assert bench.coordinator.list_groups() == []


def test_offsets_of_an_active_group_expire_for_topics_it_unsubscribed(
    bench_type: type[Bench],
) -> None:
    bench = bench_type({"offsets.retention.minutes": 1})
    bench.commit({T0: 1, U0: 1})
    bench.sync(bench.join(bench.request(session_ms=1_800_000)).result())
    bench.advance(600_000)
    assert bench.state() == "Stable"
    assert bench.committed() == {T0: 1}


def test_expiry_is_retried_after_a_failed_write(bench: Bench) -> None:
    bench.commit({T0: 1})
    bench.log.is_broken = True
    bench.advance(WEEK_MS + 600_000)
    assert bench.committed() == {T0: 1}
    assert bench.coordinator.failed_writes > 0
    bench.log.is_broken = False
    bench.advance(600_000)
    assert bench.committed() == {}


def test_a_group_that_emptied_on_a_failing_disk_is_stored_later(bench: Bench) -> None:
    member = bench.stable()[0]
    bench.commit({T0: 1}, member)
    bench.log.is_broken = True
    bench.coordinator.leave("g", member.member_id)
    assert bench.coordinator.failed_writes == 1
    bench.log.is_broken = False
    bench.advance(600_000)
    bench.restart()
    assert bench.coordinator.describe("g").state == "Empty"


def test_an_empty_group_without_offsets_disappears(bench: Bench) -> None:
    member = bench.stable()[0]
    bench.coordinator.leave("g", member.member_id)
    bench.advance(600_000)
    assert bench.coordinator.list_groups() == []
    assert latest_values(bench.log) == {}


# Looking and deleting.


def test_listing_and_describing(bench: Bench) -> None:
    bench.stable()
    bench.commit({T0: 1}, group="a")
    listed = [tuple(group) for group in bench.coordinator.list_groups()]
    assert listed == [("a", "", "Empty"), ("g", "consumer", "Stable")]
    (member,) = bench.coordinator.describe("g").members
    assert (member.client_id, member.client_host) == ("c", "/127.0.0.1")
    assert decode_assignment(member.assignment).partitions == (T0, T1, T2, T3)
    with pytest.raises(GroupNotFoundError):
        bench.coordinator.describe("nobody")
    assert bench.coordinator.groups_subscribed_to("t") == ["g"]
    assert bench.coordinator.groups_subscribed_to("u") == []


def test_only_an_empty_group_is_deleted(bench: Bench) -> None:
    member = bench.stable()[0]
    bench.commit({T0: 1}, member)
    with pytest.raises(GroupNotEmptyError):
        bench.coordinator.delete("g")
    bench.coordinator.leave("g", member.member_id)
    bench.coordinator.delete("g")
    assert latest_values(bench.log) == {}
    with pytest.raises(GroupNotFoundError):
        bench.coordinator.delete("g")
    bench.restart()
    assert bench.coordinator.list_groups() == []
    assert bench.stable()[0].generation == 1


def test_offsets_in_use_are_not_deleted(bench: Bench) -> None:
    bench.commit({T0: 1, T1: 1, U0: 1})
    with pytest.raises(GroupNotFoundError):
        bench.coordinator.delete_offsets("nobody", [T0])
    assert bench.coordinator.delete_offsets("g", [T1, T2]) == {}
    bench.stable()
    errors = bench.coordinator.delete_offsets("g", [T0, U0])
    assert {tp: error.kafka_code for tp, error in errors.items()} == {T0: 86}
    assert bench.committed() == {T0: 1}
    bench.restart()
    assert bench.committed() == {T0: 1}


def test_offsets_of_a_deleted_topic_are_deleted_in_every_group(bench: Bench) -> None:
    bench.commit({T0: 1, U0: 1})
    bench.commit({T1: 1}, group="h")
    run_inline(bench.coordinator.delete_topic_offsets("t"))
    assert [bench.committed(), bench.committed("h")] == [{U0: 1}, {}]
    bench.restart()
    assert [bench.committed(), bench.committed("h")] == [{U0: 1}, {}]
