"""The transaction coordinator on a simulated disk that loses power, fills up and fails."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable
from functools import partial

import pytest
from tests.support.broker_harness import (
    T0,
    T1,
    TIMEOUT_MS,
    U0,
    TransactionBench,
)
from tests.support.log_builders import batch

from strandlog.broker.context import embedded_context
from strandlog.broker.transactions.coordinator import EXPIRY_CHECK_MS, RETRY_MS
from strandlog.broker.transactions.transaction import LAST_EPOCH
from strandlog.errors import (
    ConcurrentTransactionsError,
    DataError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTransactionStateError,
    InvalidTransactionTimeoutError,
    ProducerFencedError,
    StorageError,
    StrandlogError,
    TooManyTransactionalIdsError,
    TransactionalIdNotFoundError,
)
from strandlog.model import ProducerIdentity
from strandlog.protocol.transaction_records import TransactionState as S
from strandlog.protocol.transaction_records import encode_key, encode_value
from strandlog.storage.work import run_inline
from strandlog.testing import SimulatedFiles
from strandlog.testing.disk.faults import Operation

CONTEXT = embedded_context()

TABLE = "__transaction_state"
OFFSETS = "__consumer_offsets"


@pytest.fixture
def bench() -> TransactionBench:
    return TransactionBench()


# -- every reply follows its record on disk -----------------------------------------------------


def test_the_reply_to_init_follows_the_record_on_disk(bench: TransactionBench) -> None:
    asked = bench.init()
    assert not asked.is_done
    with pytest.raises(ConcurrentTransactionsError):
        bench.init()
    assert bench.sync(TABLE)
    assert asked.result() == (0, 0)
    assert bench.after_crash().producer() == (0, 1)


def test_the_reply_to_add_partitions_follows_the_record_on_disk(bench: TransactionBench) -> None:
    producer = bench.producer()
    asked = bench.add(producer, T0)
    assert (asked.is_done, bench.state()) == (False, S.ONGOING)
    with pytest.raises(ConcurrentTransactionsError):
        bench.init()
    with pytest.raises(ConcurrentTransactionsError):
        bench.add(producer, T0)
    with pytest.raises(ConcurrentTransactionsError):
        bench.end(producer)
    bench.sync(TABLE)
    assert asked.is_done
    assert bench.add(producer, T0).is_done  # said before: nothing is written
    assert bench.sync() == []
    assert bench.after_crash().state() is S.ONGOING


def test_an_append_before_the_reply_to_add_partitions_is_rejected(bench: TransactionBench) -> None:
    """The last transaction is committed once more after a crash that takes the new one from the
    table: what was written for the new one would be committed with it."""
    producer = bench.begun(T0)
    bench.done(lambda: bench.end(producer))
    bench.add(producer, T0)
    with pytest.raises(InvalidTransactionStateError):
        bench.send(producer, T0, b"early")
    bench.settle()
    bench.send(producer, T0, b"in time")
    bench.add(producer, U0)
    bench.send(producer, T0, b"in time, too")  # only what is new has to wait
    with pytest.raises(InvalidTransactionStateError):
        bench.send(producer, U0, b"early")


@pytest.mark.parametrize("commit", [True, False])
def test_the_decision_the_markers_and_the_reply_reach_the_disk_in_this_order(
    bench: TransactionBench, commit: bool
) -> None:
    producer = bench.begun(T0, U0)
    bench.send(producer, T0, b"a")
    bench.send(producer, U0, b"b")
    bench.settle()
    asked = bench.end(producer, commit=commit)
    bench.sync("t")
    bench.sync("u")
    assert bench.marker_count(T0) == bench.marker_count(U0) == 0, "the decision is not on disk"
    bench.sync(TABLE)
    assert bench.marker_count(T0) == bench.marker_count(U0) == 1
    decided = S.PREPARE_COMMIT if commit else S.PREPARE_ABORT
    for topic in ("t", "u"):
        assert (asked.is_done, bench.state()) == (False, decided)
        with pytest.raises(ConcurrentTransactionsError):
            bench.add(producer, T0)
        with pytest.raises(ConcurrentTransactionsError):
            bench.end(producer, commit=commit)
        with pytest.raises(ConcurrentTransactionsError):
            bench.init()
        bench.sync(topic)
    assert asked.is_done
    assert bench.state() is (S.COMPLETE_COMMIT if commit else S.COMPLETE_ABORT)
    assert bench.seen(T0) == ([b"a"] if commit else [])
    assert bench.seen(U0) == ([b"b"] if commit else [])
    assert bench.end(producer, commit=commit).is_done  # its answer was lost: it asks again
    with pytest.raises(InvalidTransactionStateError):
        bench.end(producer, commit=not commit)


def test_all_markers_of_a_transaction_share_one_group_commit(bench: TransactionBench) -> None:
    producer = bench.begun(T0, T1, U0)
    ended = bench.end(producer)
    assert bench.sync(TABLE)
    assert [job.log.tp for job in bench.take()] == [T0, T1, U0]
    assert not ended.is_done


def test_read_committed_readers_wait_for_the_end_of_a_transaction(bench: TransactionBench) -> None:
    producer = bench.begun(T0, T1)
    bench.send(producer, T0, b"a")
    bench.settle()
    assert bench.seen(T0) == []
    assert bench.held_back() == [T0]
    bench.done(lambda: bench.end(producer))
    assert bench.seen(T0) == [b"a"]
    assert bench.held_back() == []


def test_a_transaction_may_begin_right_after_the_reply_of_the_last_one(
    bench: TransactionBench,
) -> None:
    producer = bench.producer()
    for number in range(6):
        bench.done(lambda: bench.add(producer, T0, U0))
        bench.send(producer, T0, b"%d" % number)
        bench.settle()
        asked = bench.end(producer, commit=number % 2 == 0)
        while not asked.is_done:
            assert bench.sync()
        bench.add(producer, T0)  # the record that says "complete" need not be on disk
        bench.settle()
        bench.done(lambda: bench.end(producer))
    assert bench.seen(T0) == [b"0", b"2", b"4"]


# -- who may ask ---------------------------------------------------------------------------------


def test_transaction_timeouts_have_limits(bench: TransactionBench) -> None:
    for timeout_ms in (0, -1, 900_001):
        with pytest.raises(InvalidTransactionTimeoutError):
            bench.init(timeout_ms=timeout_ms)
    assert bench.init(timeout_ms=900_000)
    with pytest.raises(DataError):
        bench.init("")


def test_a_new_producer_aborts_the_open_transaction_of_the_old_one(bench: TransactionBench) -> None:
    old = bench.begun(T0)
    bench.send(old, T0, b"zombie")
    bench.settle()
    asked = bench.init()
    bench.sync(TABLE)
    assert not asked.is_done  # the markers come first
    bench.settle()
    new = asked.result()
    assert new == (old.producer_id, old.epoch + 2)  # one for the abort, one for the producer
    assert (bench.seen(T0), bench.held_back()) == ([], [])
    with pytest.raises(ProducerFencedError):
        bench.add(old, T0)
    with pytest.raises(ProducerFencedError):
        bench.end(old)
    with pytest.raises(ProducerFencedError):
        bench.init(given=old)
    bench.done(lambda: bench.add(new, T0))
    with pytest.raises(InvalidProducerEpochError):
        bench.send(old, T0, b"zombie")
    bench.send(new, T0, b"new")
    bench.done(lambda: bench.end(new))
    assert bench.seen(T0) == [b"new"]


def test_partitions_reject_the_epoch_of_a_fenced_producer(bench: TransactionBench) -> None:
    old = bench.begun(T0)
    bench.send(old, T0, b"1")
    bench.producer()
    log = bench.log(T0)
    with pytest.raises(InvalidProducerEpochError):
        log.append(batch(b"2", producer=(*old, 1), transactional=True))


def test_an_append_outside_of_a_transaction_is_rejected(bench: TransactionBench) -> None:
    producer = bench.begun(T0)
    for stranger, tp in (
        (producer, T1),  # not added
        (ProducerIdentity(99, 0), T0),
    ):
        with pytest.raises(InvalidTransactionStateError):
            bench.transactions.check_append(stranger, tp)
    bench.transactions.check_append(producer, T0)
    bench.done(lambda: bench.end(producer))
    with pytest.raises(InvalidTransactionStateError):
        bench.transactions.check_append(producer, T0)


@pytest.mark.parametrize("shift", [-1, 1])
def test_an_append_with_another_epoch_is_rejected(bench: TransactionBench, shift: int) -> None:
    producer = bench.begun(T0)
    with pytest.raises(InvalidProducerEpochError):
        bench.transactions.check_append(producer._replace(epoch=producer.epoch + shift), T0)


def test_a_repeated_init_gets_the_same_reply(bench: TransactionBench) -> None:
    first = bench.producer()
    second = bench.producer(given=first)
    assert second == (first.producer_id, first.epoch + 1)
    assert bench.producer(given=first) == second
    assert bench.producer(given=second) == (first.producer_id, first.epoch + 2)
    with pytest.raises(ProducerFencedError):
        bench.init(given=first)


def test_a_zombie_that_asks_for_an_epoch_stays_fenced(bench: TransactionBench) -> None:
    zombie = bench.producer()
    owner = bench.producer()  # another process, which knows of no epoch
    with pytest.raises(ProducerFencedError):
        bench.init(given=zombie)
    bench.done(lambda: bench.add(owner, T0))


def test_two_transactional_ids_never_share_a_producer_id(bench: TransactionBench) -> None:
    ids = [bench.producer(f"tx{number}").producer_id for number in range(4)]
    again = bench.after_crash()
    ids += [again.producer(f"new{number}").producer_id for number in range(4)]
    assert len(set(ids)) == 8
    with pytest.raises(InvalidProducerIdMappingError):
        again.add(ProducerIdentity(ids[0], 0), T0, name="tx1")


def after_many_inits(bench: TransactionBench, epoch: int) -> TransactionBench:
    """The broker, started again with a table in which the producer has this epoch."""
    value = bench.transactions.describe("tx").value._replace(epoch=epoch)
    entry = (encode_key("tx"), encode_value(value))
    bench.broker.transactions_table.append([entry], bench.clock.now_ms())
    bench.settle()
    return bench.after_crash()


def test_a_producer_out_of_epochs_gets_a_new_id(bench: TransactionBench) -> None:
    producer = bench.producer()
    bench = after_many_inits(bench, LAST_EPOCH - 1)
    spent = producer._replace(epoch=LAST_EPOCH - 1)
    bench.done(lambda: bench.add(spent, T0))
    bench.send(spent, T0, b"a")
    bench.advance(TIMEOUT_MS)
    bench.settle()
    assert bench.transactions.describe("tx").identity == (producer.producer_id, LAST_EPOCH)
    again = bench.producer()
    assert again.producer_id != producer.producer_id
    assert again.epoch == 0
    for old in (spent, producer._replace(epoch=LAST_EPOCH)):
        with pytest.raises(InvalidProducerIdMappingError):
            bench.add(old, T0)
    assert bench.after_crash().producer() == (again.producer_id, 1)


def test_a_producer_with_the_last_epoch_does_not_block_readers_for_ever(
    bench: TransactionBench,
) -> None:
    guessed = bench.producer()._replace(epoch=LAST_EPOCH)
    bench = after_many_inits(bench, LAST_EPOCH)
    bench.done(lambda: bench.add(guessed, T0))
    bench.send(guessed, T0, b"a")
    bench.advance(TIMEOUT_MS)
    bench.settle()
    assert (bench.state(), bench.held_back()) == (S.COMPLETE_ABORT, [])


# -- time ----------------------------------------------------------------------------------------


def test_an_open_transaction_is_aborted_at_its_timeout(bench: TransactionBench) -> None:
    producer = bench.begun(T0)
    bench.send(producer, T0, b"a")
    bench.advance(TIMEOUT_MS - 1)
    assert bench.state() is S.ONGOING
    bench.advance(1)
    bench.settle()
    assert bench.state() is S.COMPLETE_ABORT
    assert (bench.seen(T0), bench.held_back()) == ([], [])
    with pytest.raises(ProducerFencedError):
        bench.add(producer, T0)
    with pytest.raises(ProducerFencedError):
        bench.end(producer)
    back = bench.producer(given=producer)  # it may continue with a new epoch
    assert back == (producer.producer_id, producer.epoch + 1)
    bench.done(lambda: bench.add(back, T0))
    bench.send(back, T0, b"b")
    bench.done(lambda: bench.end(back))
    assert bench.seen(T0) == [b"b"]


def test_adding_partitions_does_not_extend_the_timeout(bench: TransactionBench) -> None:
    producer = bench.begun(T0)
    bench.advance(TIMEOUT_MS - 10)
    bench.done(lambda: bench.add(producer, T1))
    bench.advance(10)
    bench.settle()
    assert bench.state() is S.COMPLETE_ABORT


def test_each_transaction_has_its_own_timeout(bench: TransactionBench) -> None:
    producer = bench.begun(T0)
    bench.advance(TIMEOUT_MS - 10)
    bench.done(lambda: bench.end(producer))
    bench.done(lambda: bench.add(producer, T0))
    bench.advance(TIMEOUT_MS - 10)
    assert bench.state() is S.ONGOING
    bench.advance(10)
    bench.settle()
    assert bench.state() is S.COMPLETE_ABORT


def test_the_timeout_includes_the_time_the_broker_was_down(bench: TransactionBench) -> None:
    bench.begun(T0)
    bench.clock.advance(TIMEOUT_MS - 100)
    again = bench.after_crash()
    again.advance(99)
    assert again.state() is S.ONGOING
    again.advance(1)
    again.settle()
    assert again.state() is S.COMPLETE_ABORT


@pytest.mark.parametrize("days", [-1, 1])
def test_a_clock_set_back_extends_the_timeout_to_at_most_its_full_length(
    bench: TransactionBench, days: int
) -> None:
    bench.begun(T0)
    bench.clock.set_wall(bench.clock.now_ms() + days * 86_400_000)
    again = bench.after_crash()
    again.advance(TIMEOUT_MS)
    again.settle()
    assert again.state() is S.COMPLETE_ABORT


def test_a_timeout_waits_for_a_change_in_flight(bench: TransactionBench) -> None:
    producer = bench.begun(T0)
    bench.advance(TIMEOUT_MS - 10)
    asked = bench.add(producer, T1)
    bench.advance(20, syncing=False)
    assert bench.state() is S.ONGOING
    bench.settle()
    assert asked.is_done
    bench.advance(RETRY_MS)
    bench.settle()
    assert bench.state() is S.COMPLETE_ABORT
    assert bench.marker_count(T1) == 1


def test_a_decision_cancels_the_timeout(bench: TransactionBench) -> None:
    producer = bench.begun(T0)
    bench.send(producer, T0, b"a")
    bench.settle()
    bench.advance(TIMEOUT_MS - 10)
    asked = bench.end(producer)
    bench.advance(20, syncing=False)
    bench.settle()
    assert asked.is_done
    assert (bench.state(), bench.seen(T0)) == (S.COMPLETE_COMMIT, [b"a"])


def test_idle_transactional_ids_expire_and_active_ones_do_not() -> None:
    day_ms = 86_400_000
    bench = TransactionBench(settings={"transactional.id.expiration.ms": day_ms})
    idle = bench.producer("idle")
    bench.advance(day_ms - EXPIRY_CHECK_MS)
    busy = bench.producer("busy")
    bench.advance(2 * EXPIRY_CHECK_MS)
    assert [transaction.transactional_id for transaction in bench.transactions.all()] == ["busy"]
    with pytest.raises(TransactionalIdNotFoundError):
        bench.transactions.describe("idle")
    with pytest.raises(InvalidProducerIdMappingError):
        bench.add(idle, T0, name="idle")
    again = bench.after_crash()
    assert [transaction.transactional_id for transaction in again.transactions.all()] == ["busy"]
    assert again.producer("busy") == (busy.producer_id, 1)


def test_an_expired_producer_can_start_again(bench: TransactionBench) -> None:
    """It shows an id that was forgotten meanwhile; all it wants is one that counts."""
    producer = bench.producer()
    bench.advance(8 * 86_400_000)
    assert bench.transactions.all() == []
    again = bench.producer(given=producer)
    assert again.producer_id != producer.producer_id
    bench.done(lambda: bench.add(again, T0))


def test_expiry_on_a_full_disk_is_all_or_nothing() -> None:
    day_ms = 86_400_000
    bench = TransactionBench(settings={"transactional.id.expiration.ms": day_ms})
    bench.producer()
    bench.disk.fail_on("append", TABLE, error=errno.ENOSPC)
    bench.advance(day_ms + EXPIRY_CHECK_MS)
    assert bench.transactions.all() == []  # at the next look
    assert bench.after_crash().transactions.all() == []


# -- a disk that fails ---------------------------------------------------------------------------


def live_once(bench: TransactionBench) -> None:
    """A producer that copies from one topic to others, twice; and asks again as clients do."""
    producer = bench.producer()
    for number in range(2):
        bench.done(lambda: bench.add(producer, T0, U0))
        bench.done(lambda: bench.add(producer, bench.offsets_partition()))
        for tp in (T0, U0):
            retried(bench, partial(bench.send, producer, tp, b"%d" % number))
        retried(bench, partial(bench.send_offsets, producer, {T1: 10 + number}))
        bench.done(lambda: bench.end(producer))


def retried(bench: TransactionBench, act: Callable[[], None]) -> None:
    """Do something until the disk takes it."""
    for _ in range(20):
        try:
            act()
        except StrandlogError as error:
            assert error.retriable, error
            bench.advance(RETRY_MS)
        else:
            bench.settle()
            return
    raise AssertionError("the disk never took it")


FAULTS: list[tuple[Operation, str, int]] = [
    ("sync", TABLE, errno.EIO),
    ("append", TABLE, errno.ENOSPC),
    ("sync", "data/t-0", errno.EIO),
    ("append", "data/t-0", errno.ENOSPC),
    ("sync", OFFSETS, errno.EIO),
    ("append", OFFSETS, errno.ENOSPC),
]


@pytest.mark.parametrize(("operation", "path", "error"), FAULTS)
def test_a_change_is_retried_whichever_disk_operation_fails(
    operation: Operation, path: str, error: int
) -> None:
    clean = TransactionBench()
    run_inline(clean.broker.offsets_table.ensure())
    run_inline(clean.broker.transactions_table.ensure())
    before = len(clean.disk.trace)
    live_once(clean)
    times = sum(
        step.operation == operation and path in step.path for step in clean.disk.trace[before:]
    )
    assert times > 2
    for skip, count in itertools.product(range(times), (1, 3)):
        bench = TransactionBench()
        run_inline(bench.broker.offsets_table.ensure())
        run_inline(bench.broker.transactions_table.ensure())
        bench.disk.fail_on(operation, path, skip=skip, count=count, error=error)
        live_once(bench)
        bench.disk.clear_faults()
        bench.advance(10 * RETRY_MS)
        for each in (bench, bench.after_crash()):
            assert each.state() is S.COMPLETE_COMMIT, (skip, count)
            assert each.held_back() == [], (skip, count)
            assert each.seen(T0) == each.seen(U0) == [b"0", b"1"], (skip, count)
            assert each.committed() == {T1: 11}, (skip, count)


def test_a_failed_fsync_fails_the_reply_and_the_change_is_retried(bench: TransactionBench) -> None:
    producer = bench.begun(T0)
    bench.send(producer, T0, b"a")
    bench.settle()
    asked = bench.end(producer)
    bench.disk.fail_on("sync", TABLE)
    bench.sync(TABLE)
    assert isinstance(asked.error, StorageError)
    assert bench.marker_count(T0) == 0
    with pytest.raises(ConcurrentTransactionsError):
        bench.end(producer)
    bench.advance(2 * RETRY_MS)
    assert bench.state() is S.COMPLETE_COMMIT
    assert bench.seen(T0) == [b"a"]
    assert bench.end(producer).is_done


def test_a_change_that_the_table_rejects_has_not_happened(bench: TransactionBench) -> None:
    producer = bench.producer()
    bench.disk.fail_on("append", TABLE, error=errno.ENOSPC)
    with pytest.raises(StorageError):
        bench.add(producer, T0)
    assert bench.state() is S.EMPTY
    bench.done(lambda: bench.add(producer, T0))
    bench.disk.fail_on("append", TABLE, error=errno.ENOSPC)
    with pytest.raises(StorageError):
        bench.end(producer)
    assert bench.state() is S.ONGOING
    bench.disk.fail_on("append", TABLE, error=errno.ENOSPC)
    bench.advance(TIMEOUT_MS + RETRY_MS)  # the abort is tried again, too
    bench.settle()
    assert bench.state() is S.COMPLETE_ABORT


# -- topics that go ------------------------------------------------------------------------------


def delete(bench: TransactionBench, topic: str) -> None:
    """As DeleteTopics does."""
    logs = bench.broker.catalog.logs(topic)
    bench.broker.delete_topic(CONTEXT, topic).result()
    for log in logs:
        bench.broker.durability.deleted([log])


def test_a_topic_is_deleted_in_the_middle_of_a_transaction(bench: TransactionBench) -> None:
    producer = bench.begun(T0, U0)
    bench.send(producer, T0, b"a")
    bench.send(producer, U0, b"b")
    bench.settle()
    delete(bench, "u")
    bench.done(lambda: bench.end(producer))
    assert bench.seen(T0) == [b"a"]


def test_a_topic_is_deleted_while_the_decision_is_in_flight(bench: TransactionBench) -> None:
    producer = bench.begun(T0, U0)
    asked = bench.end(producer)
    delete(bench, "u")
    bench.settle()
    assert asked.is_done


def test_a_topic_is_deleted_while_its_marker_is_in_flight(bench: TransactionBench) -> None:
    """Nobody would ever say that the marker is on disk: the producer waited for ever."""
    producer = bench.begun(T0, U0)
    asked = bench.end(producer)
    bench.sync(TABLE)
    assert bench.marker_count(U0) == 1
    delete(bench, "u")
    bench.settle()
    bench.advance(2 * RETRY_MS)
    assert asked.is_done
    assert bench.state() is S.COMPLETE_COMMIT
    bench.done(lambda: bench.add(producer, T0))


def test_a_topic_is_recreated_while_its_marker_is_in_flight(bench: TransactionBench) -> None:
    producer = bench.begun(T0, U0)
    asked = bench.end(producer)
    bench.sync(TABLE)
    delete(bench, "u")
    bench.broker.create_topic(CONTEXT, "u", 1).result()
    bench.advance(2 * RETRY_MS)
    assert asked.is_done
    assert (bench.seen(U0), bench.held_back()) == ([], [])


def test_a_partition_is_reopened_while_its_marker_is_in_flight(
    bench: TransactionBench,
) -> None:
    producer = bench.begun(T0)
    bench.send(producer, T0, b"a")
    bench.settle()
    asked = bench.end(producer)
    bench.sync(TABLE)
    before = bench.log(T0)
    bench.broker.catalog.reopen_before_use(before)
    assert bench.log(T0) is not before
    bench.advance(2 * RETRY_MS)
    assert asked.is_done
    assert (bench.seen(T0), bench.held_back()) == ([b"a"], [])


@pytest.mark.parametrize("partition", [0, 1])
def test_the_table_is_reopened_while_a_change_is_in_flight(
    bench: TransactionBench, partition: int
) -> None:
    run_inline(bench.broker.transactions_table.ensure())
    name = ("tx", "ty")[partition]
    table = bench.broker.transactions_table.log_for(name)
    asked = bench.init(name)
    bench.broker.catalog.reopen_before_use(table)
    assert bench.broker.transactions_table.log_for(name) is not table
    bench.advance(3 * RETRY_MS)
    assert asked.is_done
    again = bench.producer(name)
    assert again.epoch > 0
    assert bench.after_crash().producer(name).epoch == again.epoch + 1


# -- starts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("rounds", range(4))
def test_a_start_completes_decided_transactions(commit: bool, rounds: int) -> None:
    bench = TransactionBench()
    producer = bench.begun(T0, U0)
    bench.send(producer, T0, b"a")
    bench.send(producer, U0, b"b")
    bench.settle()
    bench.end(producer, commit=commit)
    for _ in range(rounds):
        bench.sync()
    for again in (bench.after_kill(), bench.after_crash()):
        was_decided = again.state() is not S.ONGOING
        assert was_decided or rounds == 0
        again.settle()
        again.advance(TIMEOUT_MS)
        again.settle()
        assert again.seen(T0) == ([b"a"] if commit and was_decided else [])
        assert again.seen(U0) == ([b"b"] if commit and was_decided else [])
        assert again.held_back() == []
        assert again.producer().epoch > producer.epoch


def test_a_start_on_a_full_disk_completes_decided_transactions_later() -> None:
    bench = TransactionBench()
    producer = bench.begun(T0, U0)
    bench.send(producer, T0, b"a")
    bench.settle()
    bench.end(producer)
    bench.sync()
    disk = bench.disk.after_crash(next(bench.disk.crash_states(1)))
    disk.fail_on("append", "data/t-0", count=2, error=errno.ENOSPC)
    again = TransactionBench(disk, bench.clock)
    again.settle()
    assert again.state() is S.PREPARE_COMMIT
    with pytest.raises(ConcurrentTransactionsError):
        again.init()
    again.advance(3 * RETRY_MS)
    assert again.state() is S.COMPLETE_COMMIT
    assert again.seen(T0) == [b"a"]


def orphaned(disk: SimulatedFiles) -> TransactionBench:
    """A partition holds an open transaction of which the table knows nothing."""
    bench = TransactionBench(disk)
    bench.log(T0).append(batch(b"orphan", producer=(77, 0, 0), transactional=True))
    bench.log(T0).append(batch(b"plain"))
    bench.log(T0).flush()
    assert bench.seen(T0) == []
    return bench


def test_an_open_transaction_that_the_table_does_not_know_is_aborted() -> None:
    again = orphaned(SimulatedFiles()).after_kill()
    again.settle()
    assert (again.seen(T0), again.held_back()) == ([b"plain"], [])


def test_a_broker_with_an_orphaned_transaction_starts_on_a_full_disk() -> None:
    disk = orphaned(SimulatedFiles()).disk.after_kill()
    disk.fail_on("append", "data/t-0", count=2, error=errno.ENOSPC)
    again = TransactionBench(disk)
    again.settle()
    assert again.seen(T0) == []
    again.advance(3 * RETRY_MS)
    assert (again.seen(T0), again.held_back()) == ([b"plain"], [])


def test_the_abort_of_an_orphan_does_not_abort_the_next_transaction() -> None:
    bench = TransactionBench()
    producer = bench.producer()
    log = bench.log(T0)
    log.append(batch(b"orphan", producer=(*producer, 0), transactional=True))
    log.flush()
    disk = bench.disk.after_kill()
    disk.fail_on("append", "data/t-0", count=2, error=errno.ENOSPC)
    again = TransactionBench(disk, bench.clock)
    with pytest.raises(ConcurrentTransactionsError):
        again.add(producer, T0)
    new = again.producer()
    again.done(lambda: again.add(new, T0))
    again.send(new, T0, b"kept")
    again.done(lambda: again.end(new))
    again.advance(5 * RETRY_MS)
    assert again.seen(T0) == [b"kept"]


def test_records_of_a_newer_release_are_skipped() -> None:
    bench = TransactionBench()
    bench.producer("old")
    from strandlog.protocol.transaction_records import encode_key

    newer = (encode_key("new"), b"\x00\x09 whatever that means")
    bench.broker.transactions_table.append([newer], bench.clock.now_ms())
    bench.settle()
    again = bench.after_crash()
    assert [each.transactional_id for each in again.transactions.all()] == ["old"]
    assert again.producer("new").epoch == 0


def test_transactional_ids_take_a_bounded_amount_of_memory() -> None:
    bench = TransactionBench(settings={"transactional.ids.max.bytes": 100_000})
    for number in range(3):
        bench.done(lambda number=number: bench.init(f"{number}" + "x" * 30_000))  # type: ignore[misc]
    with pytest.raises(TooManyTransactionalIdsError, match=r"transactional\.ids\.max\.bytes"):
        bench.init("y" * 30_000)
    bench.done(lambda: bench.init("0" + "x" * 30_000))  # a known id still works
    again = bench.after_crash()
    with pytest.raises(TooManyTransactionalIdsError):
        again.init("y" * 30_000)
