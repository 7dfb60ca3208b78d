"""Offsets committed inside transactions: when they count, and which of several counts.

Of all records for a partition that count, the last one in the log wins. The result must be the same
before and after a restart, so every test checks both.
"""

from __future__ import annotations

import pytest
from tests.support.broker_harness import T0, T1, TIMEOUT_MS, TransactionHarness

from strandlog.broker.context import embedded_context
from strandlog.broker.groups.requests import CommitRequest
from strandlog.errors import (
    InvalidTransactionStateError,
    StrandlogError,
    TooManyGroupsError,
    TooManyOffsetsError,
)
from strandlog.model import OffsetAndMetadata, ProducerIdentity, TopicPartition
from strandlog.protocol.transaction_records import TransactionState as S

CONTEXT = embedded_context()


@pytest.fixture
def harness() -> TransactionHarness:
    return TransactionHarness()


def sent(harness: TransactionHarness, name: str, offset: int, group: str = "g") -> ProducerIdentity:
    """A producer that has committed an offset inside its open transaction, on disk."""
    producer = harness.begun(harness.offsets_partition(group), name=name)
    harness.send_offsets(producer, {T1: offset}, group)
    harness.settle()
    return producer


def end(
    harness: TransactionHarness, producer: ProducerIdentity, name: str, *, commit: bool = True
) -> None:
    harness.done(lambda: harness.end(producer, commit=commit, name=name))


def check(
    harness: TransactionHarness, expected: dict[TopicPartition, int], group: str = "g"
) -> None:
    """What is committed, now and after a restart."""
    assert harness.committed(group) == expected
    harness.settle()
    again = harness.after_crash()
    again.settle()
    assert again.committed(group) == expected, "after a restart"


def test_offsets_count_when_the_transaction_commits(harness: TransactionHarness) -> None:
    producer = sent(harness, "a", 5)
    check(harness, {})
    assert T1 in harness.broker._group_coordinator.pending_commits("g")
    assert T0 not in harness.broker._group_coordinator.pending_commits("g")
    assert T1 not in harness.broker._group_coordinator.pending_commits("h")
    end(harness, producer, "a")
    assert T1 not in harness.broker._group_coordinator.pending_commits("g")
    check(harness, {T1: 5})


def test_offsets_never_count_when_the_transaction_aborts(harness: TransactionHarness) -> None:
    harness.commit_offsets({T1: 1})
    producer = sent(harness, "a", 5)
    end(harness, producer, "a", commit=False)
    assert T1 not in harness.broker._group_coordinator.pending_commits("g")
    check(harness, {T1: 1})


def test_offsets_never_count_when_the_transaction_times_out(harness: TransactionHarness) -> None:
    sent(harness, "a", 5)
    harness.advance(TIMEOUT_MS)
    harness.settle()
    assert harness.state("a") is S.COMPLETE_ABORT
    assert T1 not in harness.broker._group_coordinator.pending_commits("g")
    check(harness, {})


def test_offsets_of_an_open_transaction_survive_a_restart(harness: TransactionHarness) -> None:
    harness.commit_offsets({T1: 1})
    producer = sent(harness, "a", 5)
    for again in (harness.after_kill(), harness.after_crash()):
        assert again.committed() == {T1: 1}
        assert T1 in again.broker._group_coordinator.pending_commits("g")
        end(again, producer, "a")
        check(again, {T1: 5})


def test_offsets_of_a_decided_transaction_count_after_a_restart(
    harness: TransactionHarness,
) -> None:
    producer = sent(harness, "a", 5)
    harness.end(producer, name="a")
    harness.sync("__transaction_state")
    check(harness.after_crash(), {T1: 5})


def test_a_later_plain_commit_wins(harness: TransactionHarness) -> None:
    producer = sent(harness, "a", 5)
    harness.commit_offsets({T1: 9})
    end(harness, producer, "a")
    check(harness, {T1: 9})


def test_a_later_plain_commit_wins_after_a_restart_in_between(harness: TransactionHarness) -> None:
    """The one inside the transaction came back as if it were newer."""
    producer = sent(harness, "a", 5)
    harness.commit_offsets({T1: 9})
    harness.settle()
    again = harness.after_crash()
    end(again, producer, "a")
    check(again, {T1: 9})


def test_a_later_commit_of_the_same_transaction_wins(harness: TransactionHarness) -> None:
    producer = sent(harness, "a", 5)
    harness.send_offsets(producer, {T1: 6})
    harness.settle()
    again = harness.after_crash()
    for each in (harness, again):
        end(each, producer, "a")
        check(each, {T1: 6})


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(
    ("first_commits", "second_commits", "expected"),
    [(True, True, 6), (True, False, 5), (False, True, 6), (False, False, None)],
)
@pytest.mark.parametrize("in_order", [True, False])
def test_two_transactions_commit_the_same_partition(
    harness: TransactionHarness,
    restarts: bool,
    first_commits: bool,
    second_commits: bool,
    expected: int | None,
    in_order: bool,
) -> None:
    """When the second was aborted, the committed offset of the first had been thrown away."""
    ends = [
        ("a", sent(harness, "a", 5), first_commits),
        ("b", sent(harness, "b", 6), second_commits),
    ]
    if restarts:
        harness = harness.after_crash()
    for name, producer, commit in ends if in_order else reversed(ends):
        end(harness, producer, name, commit=commit)
    check(harness, {} if expected is None else {T1: expected})


def test_groups_in_several_partitions_of_the_table(harness: TransactionHarness) -> None:
    groups = ["g", "h", "i", "j"]
    tables = {harness.offsets_partition(group) for group in groups}
    assert len(tables) == 2
    producer = harness.begun(*tables, name="a")
    for number, group in enumerate(groups):
        harness.send_offsets(producer, {T1: number}, group)
    harness.settle()
    again = harness.after_crash()
    for each in (harness, again):
        end(each, producer, "a")
        for number, group in enumerate(groups):
            check(each, {T1: number}, group)


def test_deleted_offsets_do_not_return_when_the_transaction_commits(
    harness: TransactionHarness,
) -> None:
    harness.commit_offsets({T1: 1})
    producer = sent(harness, "a", 5)
    harness.broker._group_coordinator.delete_offsets("g", [T1])
    assert T1 not in harness.broker._group_coordinator.pending_commits("g")
    end(harness, producer, "a")
    check(harness, {})


def test_a_deleted_group_does_not_return_when_the_transaction_commits(
    harness: TransactionHarness,
) -> None:
    harness.commit_offsets({T1: 1})
    producer = sent(harness, "a", 5)
    harness.broker._group_coordinator.delete("g")
    end(harness, producer, "a")
    check(harness, {})
    assert harness.broker._group_coordinator.list_groups() == []


def test_a_recreated_topic_has_no_old_offsets(harness: TransactionHarness) -> None:
    producer = sent(harness, "a", 5)
    harness.broker.delete_topic(CONTEXT, "t").result()
    harness.broker.create_topic(CONTEXT, "t", 2).result()
    end(harness, producer, "a")
    check(harness, {})


def test_offsets_of_open_transactions_do_not_expire(harness: TransactionHarness) -> None:
    harness.commit_offsets({T0: 1, T1: 1})
    harness.settle()
    week_ms = harness.broker.settings.offsets_retention_ms
    harness.clock.advance(week_ms)
    producer = sent(harness, "a", 5)
    harness.clock.advance(TIMEOUT_MS // 2)
    harness.broker._timers.run_due(harness.clock.monotonic_ms())
    assert harness.committed() == {T1: 1}
    end(harness, producer, "a")
    check(harness, {T1: 5})


def test_a_rejected_offset_does_not_affect_the_others(harness: TransactionHarness) -> None:
    producer = harness.begun(harness.offsets_partition(), name="a")
    request = CommitRequest(
        group_id="g", offsets={T0: OffsetAndMetadata(-5), T1: OffsetAndMetadata(5)}
    )
    errors = harness.broker._group_coordinator.try_commit_in_transaction(request, producer)
    assert list(errors) == [T0]
    end(harness, producer, "a")
    check(harness, {T1: 5})


def test_a_member_of_another_generation_commits_nothing(harness: TransactionHarness) -> None:
    producer = harness.begun(harness.offsets_partition(), name="a")
    request = CommitRequest(
        group_id="g", offsets={T1: OffsetAndMetadata(5)}, member_id="gone", generation=3
    )
    with pytest.raises(StrandlogError):
        harness.broker._group_coordinator.try_commit_in_transaction(request, producer)
    end(harness, producer, "a")
    check(harness, {})


def test_offsets_need_a_transaction_with_their_partition(harness: TransactionHarness) -> None:
    producer = harness.begun(T0, name="a")
    with pytest.raises(InvalidTransactionStateError):
        harness.send_offsets(producer, {T1: 5})


def test_offsets_in_open_transactions_take_unbounded_memory() -> None:
    harness = TransactionHarness(
        settings={"offsets.max.bytes": 2000, "offsets.topic.num.partitions": 1}
    )
    producer = harness.begun(harness.offsets_partition(), name="a")
    many = {TopicPartition("t", number): 1 for number in range(4)}
    harness.send_offsets(producer, many)
    with pytest.raises(TooManyOffsetsError, match=r"offsets\.max\.bytes"):
        harness.send_offsets(producer, many, group="h")
    with pytest.raises(TooManyOffsetsError):
        harness.commit_offsets(many, group="h")
    end(harness, producer, "a")
    harness.commit_offsets(many)  # existing offsets can still change
    end(harness, sent(harness, "b", 2), "b")
    assert harness.committed()[T1] == 2
    harness.broker._group_coordinator.delete("g")
    harness.commit_offsets(many, group="h")


def test_transactions_create_an_unbounded_number_of_groups() -> None:
    harness = TransactionHarness(
        settings={"groups.max.count": 2, "offsets.topic.num.partitions": 1}
    )
    producer = harness.begun(harness.offsets_partition(), name="a")
    for group in ("g", "h", "h"):
        harness.send_offsets(producer, {T1: 1}, group)
    with pytest.raises(TooManyGroupsError, match=r"groups\.max\.count"):
        harness.send_offsets(producer, {T1: 1}, "i")
    end(harness, producer, "a")
    assert harness.broker._group_coordinator.counts()[0] == 2
