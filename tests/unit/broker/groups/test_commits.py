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
    from tests.unit.broker.conftest import Bench

T0, T1, T2, T3 = (TopicPartition("t", number) for number in range(4))


def test_a_simple_consumer_commits_to_an_empty_group(bench: Bench) -> None:
    bench.commit({T0: 3}, metadata="note")
    assert bench.coordinator.fetch_offsets("g", [T0, T1]) == {
        T0: OffsetAndMetadata(3, -1, "note", bench.clock.now_ms()),
        T1: None,
    }
    assert bench.coordinator.fetch_offsets("nobody", [T0]) == {T0: None}
    bench.restart()
    assert bench.committed() == {T0: 3}


def test_a_simple_consumer_may_not_commit_over_members(bench: Bench) -> None:
    bench.commit({T0: 3})
    bench.stable()
    with pytest.raises(UnknownMemberError):
        bench.commit({T0: 0})
    assert bench.committed() == {T0: 3}


def test_a_commit_names_its_member_and_generation(bench: Bench) -> None:
    with pytest.raises(IllegalGenerationError):
        bench.commit({T0: 1}, JoinResult(1, "consumer", "range", "x", "x"))
    member = bench.stable()[0]
    with pytest.raises(IllegalGenerationError):
        bench.commit({T0: 1}, member._replace(generation=0))
    with pytest.raises(UnknownMemberError):
        bench.commit({T0: 1}, member._replace(member_id="ghost"))
    assert bench.committed() == {}


def test_commit_by_a_non_owner_rewinds_the_group(bench: Bench) -> None:
    leader, follower = bench.stable(2)
    assert decode_assignment(bench.sync(leader).result().assignment).partitions == (T0, T1)
    bench.commit({T2: 5}, follower)
    with pytest.raises(NotOwnerError, match="t-2"):
        bench.commit({T0: 7, T2: 0}, leader)
    assert bench.committed() == {T2: 5}


def test_commit_of_an_old_generation_rewinds_the_group(bench: Bench) -> None:
    first = bench.stable()[0]
    bench.commit({T3: 1}, first)
    second = bench.join()
    bench.commit({T3: 2}, first)  # it still owns everything while the others join
    again = bench.join(bench.request(first.member_id)).result()
    with pytest.raises(IllegalGenerationError):
        bench.commit({T3: 0}, first)
    with pytest.raises(RebalanceInProgressError):
        bench.commit({T3: 0}, again)
    bench.sync(again)
    bench.sync(second.result())
    with pytest.raises(NotOwnerError):
        bench.commit({T3: 0}, again)
    bench.commit({T3: 3}, second.result())
    assert bench.committed() == {T3: 3}


def test_a_generation_without_an_assignment_owns_nothing(bench: Bench) -> None:
    joined = bench.join().result()
    bench.join()  # comes before the leader has assigned
    with pytest.raises(RebalanceInProgressError):
        bench.commit({T0: 1}, joined)


def test_a_cooperative_member_commits_what_it_is_giving_up(bench: Bench) -> None:
    names = ("cooperative-sticky",)
    first = bench.join(bench.request(protocols=names)).result()
    bench.sync(first)
    second = bench.join(bench.request(protocols=names))
    request = bench.request(first.member_id, protocols=names, owned=(T0, T1, T2, T3))
    again = bench.join(request).result()
    bench.sync(again)
    bench.sync(second.result())
    # T2 and T3 are withheld: no member owns them, and their old owner commits its position.
    bench.commit({T2: 8}, again)
    with pytest.raises(NotOwnerError):
        bench.commit({T2: 0}, second.result())
    assert bench.committed() == {T2: 8}


def test_metadata_that_is_too_long_fails_the_commit_or_just_its_partition(
    bench: Bench,
) -> None:
    request = CommitRequest(
        group_id="g",
        offsets={T0: OffsetAndMetadata(1, metadata="x" * 4097), T1: OffsetAndMetadata(2)},
    )
    with pytest.raises(OffsetMetadataTooLargeError):
        bench.coordinator.commit_offsets(request)
    assert bench.committed() == {}
    errors = bench.coordinator.try_commit_offsets(request)
    assert list(errors) == [T0]
    assert bench.committed() == {T1: 2}


def test_an_empty_commit_creates_no_group(bench: Bench) -> None:
    bench.commit({})
    assert bench.coordinator.list_groups() == []
    assert bench.log.records == []


def test_a_commit_that_cannot_be_written_changes_nothing(bench: Bench) -> None:
    bench.commit({T0: 1})
    bench.log.is_broken = True
    with pytest.raises(StorageError):
        bench.commit({T0: 2})
    with pytest.raises(StorageError):
        bench.commit({T0: 2}, group="h")
    assert bench.committed() == {T0: 1}
    assert [group.group_id for group in bench.coordinator.list_groups()] == ["g"]


def test_a_commit_extends_the_session(bench: Bench) -> None:
    member = bench.stable()[0]
    for offset in range(5):
        bench.advance(9_000)
        bench.commit({T0: offset}, member)
    assert bench.state() == "Stable"


def test_an_assignment_ends_with_its_generation(bench: Bench) -> None:
    first = bench.stable()[0]
    bench.join()
    again = bench.join(bench.request(first.member_id)).result()
    bench.join()  # before the leader of this generation has assigned
    with pytest.raises(RebalanceInProgressError):
        bench.commit({T0: 1}, again)
    assert bench.committed() == {}


def test_commits_are_rejected_while_the_leader_assigns(bench: Bench) -> None:
    request = bench.request(protocols=("cooperative-sticky",), owned=(T0,))
    joined = bench.join(request).result()
    with pytest.raises(RebalanceInProgressError):
        bench.commit({T0: 1}, joined)


def test_a_member_may_not_commit_a_partition_that_another_member_owns_now(bench: Bench) -> None:
    first = bench.stable()[0]
    second = bench.join()
    again = bench.join(bench.request(first.member_id, owned=(T0, T1, T2, T3))).result()
    bench.sync(again)
    bench.sync(second.result())
    with pytest.raises(NotOwnerError):
        bench.commit({T2: 0}, again)
