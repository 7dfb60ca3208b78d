"""Who may commit offsets of a group, and what a commit stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from strandlog.broker.groups.requests import CommitRequest, JoinResult
from strandlog.errors import (
    IllegalGenerationError,
    NotOwnerError,
    OffsetMetadataTooLargeError,
    RebalanceInProgressError,
    StorageError,
    UnknownMemberError,
)
from strandlog.model import OffsetAndMetadata, TopicPartition
from strandlog.protocol.consumer_protocol import decode_assignment

if TYPE_CHECKING:
    from tests.unit.broker.conftest import GroupHarness

T0, T1, T2, T3 = (TopicPartition("t", number) for number in range(4))


def test_a_simple_consumer_commits_to_an_empty_group(harness: GroupHarness) -> None:
    harness.commit({T0: 3}, metadata="note")
    assert harness.coordinator.fetch_offsets("g", [T0, T1]) == {
        T0: OffsetAndMetadata(3, -1, "note", harness.clock.now_ms()),
        T1: None,
    }
    assert harness.coordinator.fetch_offsets("unknown", [T0]) == {T0: None}
    harness.restart()
    assert harness.committed() == {T0: 3}


def test_a_simple_consumer_may_not_commit_over_members(harness: GroupHarness) -> None:
    harness.commit({T0: 3})
    harness.stable()
    with pytest.raises(UnknownMemberError):
        harness.commit({T0: 0})
    assert harness.committed() == {T0: 3}


def test_a_commit_names_its_member_and_generation(harness: GroupHarness) -> None:
    with pytest.raises(IllegalGenerationError):
        harness.commit({T0: 1}, JoinResult(1, "consumer", "range", "x", "x"))
    member = harness.stable()[0]
    with pytest.raises(IllegalGenerationError):
        harness.commit({T0: 1}, member._replace(generation=0))
    with pytest.raises(UnknownMemberError):
        harness.commit({T0: 1}, member._replace(member_id="ghost"))
    assert harness.committed() == {}


def test_commit_by_a_non_owner_rewinds_the_group(harness: GroupHarness) -> None:
    leader, follower = harness.stable(2)
    assert decode_assignment(harness.sync(leader).result().assignment).partitions == (T0, T1)
    harness.commit({T2: 5}, follower)
    with pytest.raises(NotOwnerError, match="t-2"):
        harness.commit({T0: 7, T2: 0}, leader)
    assert harness.committed() == {T2: 5}


def test_commit_of_an_old_generation_rewinds_the_group(harness: GroupHarness) -> None:
    first = harness.stable()[0]
    harness.commit({T3: 1}, first)
    second = harness.join()
    harness.commit({T3: 2}, first)  # it still owns everything while the others join
    again = harness.join(harness.request(first.member_id)).result()
    with pytest.raises(IllegalGenerationError):
        harness.commit({T3: 0}, first)
    with pytest.raises(RebalanceInProgressError):
        harness.commit({T3: 0}, again)
    harness.sync(again)
    harness.sync(second.result())
    with pytest.raises(NotOwnerError):
        harness.commit({T3: 0}, again)
    harness.commit({T3: 3}, second.result())
    assert harness.committed() == {T3: 3}


def test_a_generation_without_an_assignment_owns_nothing(harness: GroupHarness) -> None:
    joined = harness.join().result()
    harness.join()  # comes before the leader has assigned
    with pytest.raises(RebalanceInProgressError):
        harness.commit({T0: 1}, joined)


def test_a_cooperative_member_commits_what_it_is_giving_up(harness: GroupHarness) -> None:
    names = ("cooperative-sticky",)
    first = harness.join(harness.request(protocols=names)).result()
    harness.sync(first)
    second = harness.join(harness.request(protocols=names))
    request = harness.request(first.member_id, protocols=names, owned=(T0, T1, T2, T3))
    again = harness.join(request).result()
    harness.sync(again)
    harness.sync(second.result())
    # T2 and T3 are withheld: no member owns them, and their old owner commits its position.
    harness.commit({T2: 8}, again)
    with pytest.raises(NotOwnerError):
        harness.commit({T2: 0}, second.result())
    assert harness.committed() == {T2: 8}


def test_metadata_that_is_too_long_fails_the_commit_or_just_its_partition(
    harness: GroupHarness,
) -> None:
    request = CommitRequest(
        group_id="g",
        offsets={T0: OffsetAndMetadata(1, metadata="x" * 4097), T1: OffsetAndMetadata(2)},
    )
    with pytest.raises(OffsetMetadataTooLargeError):
        harness.coordinator.commit_offsets(request)
    assert harness.committed() == {}
    errors = harness.coordinator.try_commit_offsets(request)
    assert list(errors) == [T0]
    assert harness.committed() == {T1: 2}


def test_an_empty_commit_creates_no_group(harness: GroupHarness) -> None:
    harness.commit({})
    assert harness.coordinator.list_groups() == []
    assert harness.log.records == []


def test_a_commit_that_cannot_be_written_changes_nothing(harness: GroupHarness) -> None:
    harness.commit({T0: 1})
    harness.log.is_broken = True
    with pytest.raises(StorageError):
        harness.commit({T0: 2})
    with pytest.raises(StorageError):
        harness.commit({T0: 2}, group="h")
    assert harness.committed() == {T0: 1}
    assert [group.group_id for group in harness.coordinator.list_groups()] == ["g"]


def test_a_commit_extends_the_session(harness: GroupHarness) -> None:
    member = harness.stable()[0]
    for offset in range(5):
        harness.advance(9_000)
        harness.commit({T0: offset}, member)
    assert harness.state() == "Stable"


def test_an_assignment_ends_with_its_generation(harness: GroupHarness) -> None:
    first = harness.stable()[0]
    harness.join()
    again = harness.join(harness.request(first.member_id)).result()
    harness.join()  # before the leader of this generation has assigned
    with pytest.raises(RebalanceInProgressError):
        harness.commit({T0: 1}, again)
    assert harness.committed() == {}


def test_commits_are_rejected_while_the_leader_assigns(harness: GroupHarness) -> None:
    request = harness.request(protocols=("cooperative-sticky",), owned=(T0,))
    joined = harness.join(request).result()
    with pytest.raises(RebalanceInProgressError):
        harness.commit({T0: 1}, joined)


def test_a_member_may_not_commit_a_partition_that_another_member_owns_now(
    harness: GroupHarness,
) -> None:
    first = harness.stable()[0]
    second = harness.join()
    again = harness.join(harness.request(first.member_id, owned=(T0, T1, T2, T3))).result()
    harness.sync(again)
    harness.sync(second.result())
    with pytest.raises(NotOwnerError):
        harness.commit({T2: 0}, again)
