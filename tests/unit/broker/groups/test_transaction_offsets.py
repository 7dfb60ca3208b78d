"""Offsets committed inside transactions: when they count, and which of several counts.

Of all records for a partition that count, the last one in the log wins. The result must be the same
before and after a restart, so every test checks both.
"""

from __future__ import annotations

import pytest
from tests.support.broker_harness import T0, T1, TIMEOUT_MS, TransactionBench

from strandlog.broker.context import embedded_context
from strandlog.broker.groups.requests import CommitRequest
from strandlog.errors import InvalidTransactionStateError, StrandlogError
from strandlog.model import OffsetAndMetadata, ProducerIdentity, TopicPartition
from strandlog.protocol.transaction_records import TransactionState as S

CONTEXT = embedded_context()


@pytest.fixture
def bench() -> TransactionBench:
    return TransactionBench()


def sent(bench: TransactionBench, name: str, offset: int, group: str = "g") -> ProducerIdentity:
    """A producer that has committed an offset inside its open transaction, on disk."""
    producer = bench.begun(bench.offsets_partition(group), name=name)
    bench.send_offsets(producer, {T1: offset}, group)
    bench.settle()
    return producer


def end(
    bench: TransactionBench, producer: ProducerIdentity, name: str, *, commit: bool = True
) -> None:
    bench.done(lambda: bench.end(producer, commit=commit, name=name))


def check(bench: TransactionBench, expected: dict[TopicPartition, int], group: str = "g") -> None:
    """What is committed, now and after a restart."""
    assert bench.committed(group) == expected
    bench.settle()
    again = bench.after_crash()
    again.settle()
    assert again.committed(group) == expected, "after a restart"


def test_offsets_count_when_the_transaction_commits(bench: TransactionBench) -> None:
    producer = sent(bench, "a", 5)
    check(bench, {})
    assert bench.broker.group_coordinator.has_pending_commit("g", T1)
    assert not bench.broker.group_coordinator.has_pending_commit("g", T0)
    assert not bench.broker.group_coordinator.has_pending_commit("h", T1)
    end(bench, producer, "a")
    assert not bench.broker.group_coordinator.has_pending_commit("g", T1)
    check(bench, {T1: 5})


def test_offsets_never_count_when_the_transaction_aborts(bench: TransactionBench) -> None:
    bench.commit_offsets({T1: 1})
    producer = sent(bench, "a", 5)
    end(bench, producer, "a", commit=False)
    assert not bench.broker.group_coordinator.has_pending_commit("g", T1)
    check(bench, {T1: 1})


def test_offsets_never_count_when_the_transaction_times_out(bench: TransactionBench) -> None:
    sent(bench, "a", 5)
    bench.advance(TIMEOUT_MS)
    bench.settle()
    assert bench.state("a") is S.COMPLETE_ABORT
    assert not bench.broker.group_coordinator.has_pending_commit("g", T1)
    check(bench, {})


def test_offsets_of_an_open_transaction_survive_a_restart(bench: TransactionBench) -> None:
    bench.commit_offsets({T1: 1})
    producer = sent(bench, "a", 5)
    for again in (bench.after_kill(), bench.after_crash()):
        assert again.committed() == {T1: 1}
        assert again.broker.group_coordinator.has_pending_commit("g", T1)
        end(again, producer, "a")
        check(again, {T1: 5})


def test_offsets_of_a_decided_transaction_count_after_a_restart(bench: TransactionBench) -> None:
    producer = sent(bench, "a", 5)
    bench.end(producer, name="a")
    bench.sync("__transaction_state")
    check(bench.after_crash(), {T1: 5})


def test_a_later_plain_commit_wins(bench: TransactionBench) -> None:
    producer = sent(bench, "a", 5)
    bench.commit_offsets({T1: 9})
    end(bench, producer, "a")
    check(bench, {T1: 9})


def test_a_later_plain_commit_wins_after_a_restart_in_between(bench: TransactionBench) -> None:
    """The one inside the transaction came back as if it were newer."""
    producer = sent(bench, "a", 5)
    bench.commit_offsets({T1: 9})
    bench.settle()
    again = bench.after_crash()
    end(again, producer, "a")
    check(again, {T1: 9})


def test_a_later_commit_of_the_same_transaction_wins(bench: TransactionBench) -> None:
    producer = sent(bench, "a", 5)
    bench.send_offsets(producer, {T1: 6})
    bench.settle()
    again = bench.after_crash()
    for each in (bench, again):
        end(each, producer, "a")
        check(each, {T1: 6})


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(
    ("first_commits", "second_commits", "expected"),
    [(True, True, 6), (True, False, 5), (False, True, 6), (False, False, None)],
)
@pytest.mark.parametrize("in_order", [True, False])
def test_two_transactions_commit_the_same_partition(
    bench: TransactionBench,
    restarts: bool,
    first_commits: bool,
    second_commits: bool,
    expected: int | None,
    in_order: bool,
) -> None:
    """When the second was aborted, the committed offset of the first had been thrown away."""
    ends = [
        ("a", sent(bench, "a", 5), first_commits),
        ("b", sent(bench, "b", 6), second_commits),
    ]
    if restarts:
        bench = bench.after_crash()
    for name, producer, commit in ends if in_order else reversed(ends):
        end(bench, producer, name, commit=commit)
    check(bench, {} if expected is None else {T1: expected})


def test_groups_in_several_partitions_of_the_table(bench: TransactionBench) -> None:
    groups = ["g", "h", "i", "j"]
    tables = {bench.offsets_partition(group) for group in groups}
    assert len(tables) == 2
    producer = bench.begun(*tables, name="a")
    for number, group in enumerate(groups):
        bench.send_offsets(producer, {T1: number}, group)
    bench.settle()
    again = bench.after_crash()
    for each in (bench, again):
        end(each, producer, "a")
        for number, group in enumerate(groups):
            check(each, {T1: number}, group)


def test_deleted_offsets_do_not_return_when_the_transaction_commits(
    bench: TransactionBench,
) -> None:
    bench.commit_offsets({T1: 1})
    producer = sent(bench, "a", 5)
    bench.broker.group_coordinator.delete_offsets("g", [T1])
    assert not bench.broker.group_coordinator.has_pending_commit("g", T1)
    end(bench, producer, "a")
    check(bench, {})


def test_a_deleted_group_does_not_return_when_the_transaction_commits(
    bench: TransactionBench,
) -> None:
    bench.commit_offsets({T1: 1})
    producer = sent(bench, "a", 5)
    bench.broker.group_coordinator.delete("g")
    end(bench, producer, "a")
    check(bench, {})
    assert bench.broker.group_coordinator.list_groups() == []


def test_a_recreated_topic_has_no_old_offsets(bench: TransactionBench) -> None:
    producer = sent(bench, "a", 5)
    bench.broker.delete_topic(CONTEXT, "t").result()
    bench.broker.create_topic(CONTEXT, "t", 2).result()
    end(bench, producer, "a")
    check(bench, {})


def test_offsets_of_open_transactions_do_not_expire(bench: TransactionBench) -> None:
    bench.commit_offsets({T0: 1, T1: 1})
    bench.settle()
    week_ms = bench.broker.settings.offsets_retention_ms
    bench.clock.advance(week_ms)
    producer = sent(bench, "a", 5)
    bench.clock.advance(TIMEOUT_MS // 2)
    bench.broker.timers.run_due(bench.clock.monotonic_ms())
    assert bench.committed() == {T1: 1}
    end(bench, producer, "a")
    check(bench, {T1: 5})


def test_a_rejected_offset_does_not_affect_the_others(bench: TransactionBench) -> None:
    producer = bench.begun(bench.offsets_partition(), name="a")
    request = CommitRequest(
        group_id="g", offsets={T0: OffsetAndMetadata(-5), T1: OffsetAndMetadata(5)}
    )
    errors = bench.broker.group_coordinator.try_commit_in_transaction(request, producer)
    assert list(errors) == [T0]
    end(bench, producer, "a")
    check(bench, {T1: 5})


def test_a_member_of_another_generation_commits_nothing(bench: TransactionBench) -> None:
    producer = bench.begun(bench.offsets_partition(), name="a")
    request = CommitRequest(
        group_id="g", offsets={T1: OffsetAndMetadata(5)}, member_id="gone", generation=3
    )
    with pytest.raises(StrandlogError):
        bench.broker.group_coordinator.try_commit_in_transaction(request, producer)
    end(bench, producer, "a")
    check(bench, {})


def test_offsets_need_a_transaction_with_their_partition(bench: TransactionBench) -> None:
    producer = bench.begun(T0, name="a")
    with pytest.raises(InvalidTransactionStateError):
        bench.send_offsets(producer, {T1: 5})
