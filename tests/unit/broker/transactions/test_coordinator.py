"""The transaction coordinator on a simulated disk that loses power, fills up and fails."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.support.broker_harness import (
    T0,
    T1,
    TIMEOUT_MS,
    U0,
    TransactionHarness,
)
from tests.support.log_builders import batch

from strandlog.broker.context import embedded_context
from strandlog.broker.transactions.coordinator import (
    EXPIRY_CHECK_MS,
    IDS_EXPIRED_AT_ONCE,
    RETRY_MS,
)
from strandlog.broker.transactions.transaction import LAST_EPOCH, Transaction
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
from strandlog.storage.partition.read import read_batches
from strandlog.storage.work import run_inline
from strandlog.testing import SimulatedFiles
from strandlog.testing.disk.faults import Operation

CONTEXT = embedded_context()

TABLE = "__transaction_state"
OFFSETS = "__consumer_offsets"


@pytest.fixture
def harness() -> TransactionHarness:
    return TransactionHarness()


# -- every reply follows its record on disk -----------------------------------------------------


def test_the_reply_to_init_follows_the_record_on_disk(harness: TransactionHarness) -> None:
    asked = harness.init()
    assert not asked.is_done
    with pytest.raises(ConcurrentTransactionsError):
        harness.init()
    assert harness.sync(TABLE)
    assert asked.result() == (0, 0)
    assert harness.after_crash().producer() == (0, 1)


def test_the_reply_to_add_partitions_follows_the_record_on_disk(
    harness: TransactionHarness,
) -> None:
    producer = harness.producer()
    asked = harness.add(producer, T0)
    assert (asked.is_done, harness.state()) == (False, S.ONGOING)
    with pytest.raises(ConcurrentTransactionsError):
        harness.init()
    with pytest.raises(ConcurrentTransactionsError):
        harness.add(producer, T0)
    with pytest.raises(ConcurrentTransactionsError):
        harness.end(producer)
    harness.sync(TABLE)
    assert asked.is_done
    assert harness.add(producer, T0).is_done  # said before: nothing is written
    assert harness.sync() == []
    assert harness.after_crash().state() is S.ONGOING


def test_an_append_before_the_reply_to_add_partitions_is_rejected(
    harness: TransactionHarness,
) -> None:
    """The last transaction is committed once more after a crash that takes the new one from the
    table: what was written for the new one would be committed with it."""
    producer = harness.begun(T0)
    harness.done(lambda: harness.end(producer))
    harness.add(producer, T0)
    with pytest.raises(InvalidTransactionStateError):
        harness.send(producer, T0, b"early")
    harness.settle()
    harness.send(producer, T0, b"in time")
    harness.add(producer, U0)
    harness.send(producer, T0, b"in time, too")  # only what is new has to wait
    with pytest.raises(InvalidTransactionStateError):
        harness.send(producer, U0, b"early")


@pytest.mark.parametrize("commit", [True, False])
def test_the_decision_the_markers_and_the_reply_reach_the_disk_in_this_order(
    harness: TransactionHarness, commit: bool
) -> None:
    producer = harness.begun(T0, U0)
    harness.send(producer, T0, b"a")
    harness.send(producer, U0, b"b")
    harness.settle()
    asked = harness.end(producer, commit=commit)
    harness.sync("t")
    harness.sync("u")
    assert harness.marker_count(T0) == harness.marker_count(U0) == 0, "the decision is not on disk"
    harness.sync(TABLE)
    assert harness.marker_count(T0) == harness.marker_count(U0) == 1
    decided = S.PREPARE_COMMIT if commit else S.PREPARE_ABORT
    for topic in ("t", "u"):
        assert (asked.is_done, harness.state()) == (False, decided)
        with pytest.raises(ConcurrentTransactionsError):
            harness.add(producer, T0)
        with pytest.raises(ConcurrentTransactionsError):
            harness.end(producer, commit=commit)
        with pytest.raises(ConcurrentTransactionsError):
            harness.init()
        harness.sync(topic)
    assert asked.is_done
    assert harness.state() is (S.COMPLETE_COMMIT if commit else S.COMPLETE_ABORT)
    assert harness.seen(T0) == ([b"a"] if commit else [])
    assert harness.seen(U0) == ([b"b"] if commit else [])
    assert harness.end(producer, commit=commit).is_done  # its answer was lost: it asks again
    with pytest.raises(InvalidTransactionStateError):
        harness.end(producer, commit=not commit)


def test_all_markers_of_a_transaction_share_one_group_commit(harness: TransactionHarness) -> None:
    producer = harness.begun(T0, T1, U0)
    ended = harness.end(producer)
    assert harness.sync(TABLE)
    assert [job.log.tp for job in harness.take()] == [T0, T1, U0]
    assert not ended.is_done


def test_read_committed_readers_wait_for_the_end_of_a_transaction(
    harness: TransactionHarness,
) -> None:
    producer = harness.begun(T0, T1)
    harness.send(producer, T0, b"a")
    harness.settle()
    assert harness.seen(T0) == []
    assert harness.held_back() == [T0]
    harness.done(lambda: harness.end(producer))
    assert harness.seen(T0) == [b"a"]
    assert harness.held_back() == []


def test_a_transaction_may_begin_right_after_the_reply_of_the_last_one(
    harness: TransactionHarness,
) -> None:
    producer = harness.producer()
    for number in range(6):
        harness.done(lambda: harness.add(producer, T0, U0))
        harness.send(producer, T0, b"%d" % number)
        harness.settle()
        asked = harness.end(producer, commit=number % 2 == 0)
        while not asked.is_done:
            assert harness.sync()
        harness.add(producer, T0)  # the record that says "complete" need not be on disk
        harness.settle()
        harness.done(lambda: harness.end(producer))
    assert harness.seen(T0) == [b"0", b"2", b"4"]


# -- who may ask ---------------------------------------------------------------------------------


def test_transaction_timeouts_have_limits(harness: TransactionHarness) -> None:
    for timeout_ms in (0, -1, 900_001):
        with pytest.raises(InvalidTransactionTimeoutError):
            harness.init(timeout_ms=timeout_ms)
    assert harness.init(timeout_ms=900_000)
    with pytest.raises(DataError):
        harness.init("")


def test_a_new_producer_aborts_the_open_transaction_of_the_old_one(
    harness: TransactionHarness,
) -> None:
    old = harness.begun(T0)
    harness.send(old, T0, b"zombie")
    harness.settle()
    asked = harness.init()
    harness.sync(TABLE)
    assert not asked.is_done  # the markers come first
    harness.settle()
    new = asked.result()
    assert new == (old.producer_id, old.epoch + 2)  # one for the abort, one for the producer
    assert (harness.seen(T0), harness.held_back()) == ([], [])
    with pytest.raises(ProducerFencedError):
        harness.add(old, T0)
    with pytest.raises(ProducerFencedError):
        harness.end(old)
    with pytest.raises(ProducerFencedError):
        harness.init(given=old)
    harness.done(lambda: harness.add(new, T0))
    with pytest.raises(InvalidProducerEpochError):
        harness.send(old, T0, b"zombie")
    harness.send(new, T0, b"new")
    harness.done(lambda: harness.end(new))
    assert harness.seen(T0) == [b"new"]


def test_partitions_reject_the_epoch_of_a_fenced_producer(harness: TransactionHarness) -> None:
    old = harness.begun(T0)
    harness.send(old, T0, b"1")
    harness.producer()
    log = harness.log(T0)
    with pytest.raises(InvalidProducerEpochError):
        log.append(batch(b"2", producer=(*old, 1), transactional=True))


def test_an_append_outside_of_a_transaction_is_rejected(harness: TransactionHarness) -> None:
    producer = harness.begun(T0)
    for stranger, tp in (
        (producer, T1),  # not added
        (ProducerIdentity(99, 0), T0),
    ):
        with pytest.raises(InvalidTransactionStateError):
            harness.transactions.check_append(stranger, tp)
    harness.transactions.check_append(producer, T0)
    harness.done(lambda: harness.end(producer))
    with pytest.raises(InvalidTransactionStateError):
        harness.transactions.check_append(producer, T0)


@pytest.mark.parametrize("shift", [-1, 1])
def test_an_append_with_another_epoch_is_rejected(harness: TransactionHarness, shift: int) -> None:
    producer = harness.begun(T0)
    with pytest.raises(InvalidProducerEpochError):
        harness.transactions.check_append(producer._replace(epoch=producer.epoch + shift), T0)


def test_a_repeated_init_gets_the_same_reply(harness: TransactionHarness) -> None:
    first = harness.producer()
    second = harness.producer(given=first)
    assert second == (first.producer_id, first.epoch + 1)
    assert harness.producer(given=first) == second
    assert harness.producer(given=second) == (first.producer_id, first.epoch + 2)
    with pytest.raises(ProducerFencedError):
        harness.init(given=first)


def test_a_zombie_that_asks_for_an_epoch_stays_fenced(harness: TransactionHarness) -> None:
    zombie = harness.producer()
    owner = harness.producer()  # another process, which knows of no epoch
    with pytest.raises(ProducerFencedError):
        harness.init(given=zombie)
    harness.done(lambda: harness.add(owner, T0))


def test_two_transactional_ids_never_share_a_producer_id(harness: TransactionHarness) -> None:
    ids = [harness.producer(f"tx{number}").producer_id for number in range(4)]
    again = harness.after_crash()
    ids += [again.producer(f"new{number}").producer_id for number in range(4)]
    assert len(set(ids)) == 8
    with pytest.raises(InvalidProducerIdMappingError):
        again.add(ProducerIdentity(ids[0], 0), T0, name="tx1")


def after_many_inits(harness: TransactionHarness, epoch: int, **changes: Any) -> TransactionHarness:
    """The broker, started again with a table in which the producer has this epoch."""
    value = harness.transactions.describe("tx").value._replace(epoch=epoch, **changes)
    entry = (encode_key("tx"), encode_value(value))
    harness.broker._transactions_table.append([entry], harness.clock.now_ms())
    harness.settle()
    return harness.after_crash()


def test_a_producer_out_of_epochs_gets_a_new_id(harness: TransactionHarness) -> None:
    producer = harness.producer()
    harness = after_many_inits(harness, LAST_EPOCH - 1)
    spent = producer._replace(epoch=LAST_EPOCH - 1)
    harness.done(lambda: harness.add(spent, T0))
    harness.send(spent, T0, b"a")
    harness.advance(TIMEOUT_MS)
    harness.settle()
    assert harness.transactions.describe("tx").identity == (producer.producer_id, LAST_EPOCH)
    again = harness.producer()
    assert again.producer_id != producer.producer_id
    assert again.epoch == 0
    for old in (spent, producer._replace(epoch=LAST_EPOCH)):
        with pytest.raises(InvalidProducerIdMappingError):
            harness.add(old, T0)
    assert harness.after_crash().producer() == (again.producer_id, 1)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_producer_that_times_out_with_its_last_epoch_gets_a_new_id(restarts: bool) -> None:
    """It got the last epoch, above which no timeout could fence it."""
    harness = TransactionHarness()
    spent = harness.producer()._replace(epoch=LAST_EPOCH - 1)
    harness = after_many_inits(harness, spent.epoch)
    harness.done(lambda: harness.add(spent, T0))
    harness.send(spent, T0, b"a")
    harness.advance(TIMEOUT_MS)
    harness.settle()
    assert harness.transactions.describe("tx").identity == (spent.producer_id, LAST_EPOCH)
    if restarts:
        harness = harness.after_crash()
    back = harness.producer(given=ProducerIdentity() if restarts else spent)
    assert (back.producer_id != spent.producer_id, back.epoch) == (True, 0)
    harness.done(lambda: harness.add(back, T0))
    harness.send(back, T0, b"b")
    harness.advance(TIMEOUT_MS)
    harness.settle()
    assert (harness.state(), harness.held_back()) == (S.COMPLETE_ABORT, [])
    with pytest.raises(ProducerFencedError):
        harness.add(back, T0)
    assert harness.producer(given=back) == (back.producer_id, 1)
    assert harness.seen(T0) == []


@pytest.mark.parametrize("times_out", [False, True])
def test_a_repeated_init_of_a_producer_out_of_epochs_gets_the_same_reply(times_out: bool) -> None:
    """It was fenced, because its id had changed with its epoch."""
    harness = TransactionHarness()
    spent = harness.producer()._replace(epoch=LAST_EPOCH - 1)
    harness = after_many_inits(harness, spent.epoch)
    if times_out:
        harness.done(lambda: harness.add(spent, T0))
        harness.advance(TIMEOUT_MS)
        harness.settle()
    new = harness.producer(given=spent)
    assert new == harness.producer(given=spent)
    assert (new.producer_id != spent.producer_id, new.epoch) == (True, 0)
    harness.done(lambda: harness.add(new, T0))
    with pytest.raises(ProducerFencedError):
        harness.init(given=spent)


@pytest.mark.parametrize("state", [S.EMPTY, S.ONGOING, S.COMPLETE_COMMIT])
def test_a_client_with_the_last_epoch_is_fenced(harness: TransactionHarness, state: S) -> None:
    """An earlier version gave it away, or the client guesses. No timeout could fence it."""
    guessed = harness.producer()._replace(epoch=LAST_EPOCH)
    partitions = frozenset([T0] if state is S.ONGOING else [])
    harness = after_many_inits(harness, LAST_EPOCH, state=state, partitions=partitions)
    with pytest.raises(ProducerFencedError):
        harness.add(guessed, T0, T1)
    with pytest.raises(ProducerFencedError):
        harness.end(guessed)
    harness.advance(TIMEOUT_MS)
    harness.settle()
    assert harness.held_back() == []
    new = harness.producer(given=guessed)
    assert (new.producer_id != guessed.producer_id, new.epoch) == (True, 0)
    harness.done(lambda: harness.add(new, T0))


# -- time ----------------------------------------------------------------------------------------


def test_an_open_transaction_is_aborted_at_its_timeout(harness: TransactionHarness) -> None:
    producer = harness.begun(T0)
    harness.send(producer, T0, b"a")
    harness.advance(TIMEOUT_MS - 1)
    assert harness.state() is S.ONGOING
    harness.advance(1)
    harness.settle()
    assert harness.state() is S.COMPLETE_ABORT
    assert (harness.seen(T0), harness.held_back()) == ([], [])
    with pytest.raises(ProducerFencedError):
        harness.add(producer, T0)
    with pytest.raises(ProducerFencedError):
        harness.end(producer)
    back = harness.producer(given=producer)  # it may continue with a new epoch
    assert back == (producer.producer_id, producer.epoch + 1)
    harness.done(lambda: harness.add(back, T0))
    harness.send(back, T0, b"b")
    harness.done(lambda: harness.end(back))
    assert harness.seen(T0) == [b"b"]


def test_adding_partitions_does_not_extend_the_timeout(harness: TransactionHarness) -> None:
    producer = harness.begun(T0)
    harness.advance(TIMEOUT_MS - 10)
    harness.done(lambda: harness.add(producer, T1))
    harness.advance(10)
    harness.settle()
    assert harness.state() is S.COMPLETE_ABORT


def test_each_transaction_has_its_own_timeout(harness: TransactionHarness) -> None:
    producer = harness.begun(T0)
    harness.advance(TIMEOUT_MS - 10)
    harness.done(lambda: harness.end(producer))
    harness.done(lambda: harness.add(producer, T0))
    harness.advance(TIMEOUT_MS - 10)
    assert harness.state() is S.ONGOING
    harness.advance(10)
    harness.settle()
    assert harness.state() is S.COMPLETE_ABORT


def test_the_timeout_includes_the_time_the_broker_was_down(harness: TransactionHarness) -> None:
    harness.begun(T0)
    harness.clock.advance(TIMEOUT_MS - 100)
    again = harness.after_crash()
    again.advance(99)
    assert again.state() is S.ONGOING
    again.advance(1)
    again.settle()
    assert again.state() is S.COMPLETE_ABORT


@pytest.mark.parametrize("days", [-1, 1])
def test_a_clock_set_back_extends_the_timeout_to_at_most_its_full_length(
    harness: TransactionHarness, days: int
) -> None:
    harness.begun(T0)
    harness.clock.set_wall(harness.clock.now_ms() + days * 86_400_000)
    again = harness.after_crash()
    again.advance(TIMEOUT_MS)
    again.settle()
    assert again.state() is S.COMPLETE_ABORT


def test_a_timeout_waits_for_a_change_in_flight(harness: TransactionHarness) -> None:
    producer = harness.begun(T0)
    harness.advance(TIMEOUT_MS - 10)
    asked = harness.add(producer, T1)
    harness.advance(20, syncing=False)
    assert harness.state() is S.ONGOING
    harness.settle()
    assert asked.is_done
    harness.advance(RETRY_MS)
    harness.settle()
    assert harness.state() is S.COMPLETE_ABORT
    assert harness.marker_count(T1) == 1


def test_a_decision_cancels_the_timeout(harness: TransactionHarness) -> None:
    producer = harness.begun(T0)
    harness.send(producer, T0, b"a")
    harness.settle()
    harness.advance(TIMEOUT_MS - 10)
    asked = harness.end(producer)
    harness.advance(20, syncing=False)
    harness.settle()
    assert asked.is_done
    assert (harness.state(), harness.seen(T0)) == (S.COMPLETE_COMMIT, [b"a"])


def test_idle_transactional_ids_expire_and_active_ones_do_not() -> None:
    day_ms = 86_400_000
    harness = TransactionHarness(settings={"transactional.id.expiration.ms": day_ms})
    idle = harness.producer("idle")
    harness.advance(day_ms - EXPIRY_CHECK_MS)
    busy = harness.producer("busy")
    harness.advance(2 * EXPIRY_CHECK_MS)
    assert [transaction.transactional_id for transaction in harness.transactions.all()] == ["busy"]
    with pytest.raises(TransactionalIdNotFoundError):
        harness.transactions.describe("idle")
    with pytest.raises(InvalidProducerIdMappingError):
        harness.add(idle, T0, name="idle")
    again = harness.after_crash()
    assert [transaction.transactional_id for transaction in again.transactions.all()] == ["busy"]
    assert again.producer("busy") == (busy.producer_id, 1)


def test_each_expired_transactional_id_is_deleted_with_a_batch_of_its_own() -> None:
    day_ms, count = 86_400_000, IDS_EXPIRED_AT_ONCE + 10
    harness = TransactionHarness(settings={"transactional.id.expiration.ms": day_ms})
    records = [
        (
            encode_key(str(number)),
            encode_value(Transaction(str(number), number, 0, 1, S.EMPTY, 0).value),
        )
        for number in range(count)
    ]
    harness.broker._transactions_table.append(records, harness.clock.now_ms())
    harness = harness.after_kill()
    logs = harness.broker._transactions_table._logs()
    ends = [log.log_end_offset for log in logs]
    harness.advance(EXPIRY_CHECK_MS)
    assert harness.transactions.all() == []
    batches = [
        each for log, end in zip(logs, ends, strict=True) for each in read_batches(log, end, 1_000)
    ]
    assert len(batches) <= 2 * len(logs)  # at most one for each partition and step
    assert harness.after_crash().transactions.all() == []


def test_an_expired_producer_can_start_again(harness: TransactionHarness) -> None:
    """It shows an id that was forgotten meanwhile; all it wants is one that counts."""
    producer = harness.producer()
    harness.advance(8 * 86_400_000)
    assert harness.transactions.all() == []
    again = harness.producer(given=producer)
    assert again.producer_id != producer.producer_id
    harness.done(lambda: harness.add(again, T0))


def test_expiry_on_a_full_disk_is_all_or_nothing() -> None:
    day_ms = 86_400_000
    harness = TransactionHarness(settings={"transactional.id.expiration.ms": day_ms})
    harness.producer()
    harness.disk.fail_on("append", TABLE, error=errno.ENOSPC)
    harness.advance(day_ms + EXPIRY_CHECK_MS)
    assert harness.transactions.all() == []  # at the next look
    assert harness.after_crash().transactions.all() == []


# -- a disk that fails ---------------------------------------------------------------------------


def live_once(harness: TransactionHarness) -> None:
    """A producer that copies from one topic to others, twice; and asks again as clients do."""
    producer = harness.producer()
    for number in range(2):
        harness.done(lambda: harness.add(producer, T0, U0))
        harness.done(lambda: harness.add(producer, harness.offsets_partition()))
        for tp in (T0, U0):
            retried(harness, partial(harness.send, producer, tp, b"%d" % number))
        retried(harness, partial(harness.send_offsets, producer, {T1: 10 + number}))
        harness.done(lambda: harness.end(producer))


def retried(harness: TransactionHarness, act: Callable[[], None]) -> None:
    """Do something until the disk takes it."""
    for _ in range(20):
        try:
            act()
        except StrandlogError as error:
            assert error.retriable, error
            harness.advance(RETRY_MS)
        else:
            harness.settle()
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
    clean = TransactionHarness()
    run_inline(clean.broker._offsets_table.ensure())
    run_inline(clean.broker._transactions_table.ensure())
    before = len(clean.disk.trace)
    live_once(clean)
    times = sum(
        step.operation == operation and path in step.path for step in clean.disk.trace[before:]
    )
    assert times > 2
    for skip, count in itertools.product(range(times), (1, 3)):
        harness = TransactionHarness()
        run_inline(harness.broker._offsets_table.ensure())
        run_inline(harness.broker._transactions_table.ensure())
        harness.disk.fail_on(operation, path, skip=skip, count=count, error=error)
        live_once(harness)
        harness.disk.clear_faults()
        harness.advance(10 * RETRY_MS)
        for each in (harness, harness.after_crash()):
            assert each.state() is S.COMPLETE_COMMIT, (skip, count)
            assert each.held_back() == [], (skip, count)
            assert each.seen(T0) == each.seen(U0) == [b"0", b"1"], (skip, count)
            assert each.committed() == {T1: 11}, (skip, count)


def test_a_failed_fsync_fails_the_reply_and_the_change_is_retried(
    harness: TransactionHarness,
) -> None:
    producer = harness.begun(T0)
    harness.send(producer, T0, b"a")
    harness.settle()
    asked = harness.end(producer)
    harness.disk.fail_on("sync", TABLE)
    harness.sync(TABLE)
    assert isinstance(asked.error, StorageError)
    assert harness.marker_count(T0) == 0
    with pytest.raises(ConcurrentTransactionsError):
        harness.end(producer)
    harness.advance(2 * RETRY_MS)
    assert harness.state() is S.COMPLETE_COMMIT
    assert harness.seen(T0) == [b"a"]
    assert harness.end(producer).is_done


def test_a_change_that_the_table_rejects_has_not_happened(harness: TransactionHarness) -> None:
    producer = harness.producer()
    harness.disk.fail_on("append", TABLE, error=errno.ENOSPC)
    with pytest.raises(StorageError):
        harness.add(producer, T0)
    assert harness.state() is S.EMPTY
    harness.done(lambda: harness.add(producer, T0))
    harness.disk.fail_on("append", TABLE, error=errno.ENOSPC)
    with pytest.raises(StorageError):
        harness.end(producer)
    assert harness.state() is S.ONGOING
    harness.disk.fail_on("append", TABLE, error=errno.ENOSPC)
    harness.advance(TIMEOUT_MS + RETRY_MS)  # the abort is tried again, too
    harness.settle()
    assert harness.state() is S.COMPLETE_ABORT


# -- topics that go ------------------------------------------------------------------------------


def delete(harness: TransactionHarness, topic: str) -> None:
    """As DeleteTopics does."""
    logs = harness.broker._catalog.logs(topic)
    harness.broker.delete_topic(CONTEXT, topic).result()
    for log in logs:
        harness.broker._durability.deleted([log])


def test_a_topic_is_deleted_in_the_middle_of_a_transaction(harness: TransactionHarness) -> None:
    producer = harness.begun(T0, U0)
    harness.send(producer, T0, b"a")
    harness.send(producer, U0, b"b")
    harness.settle()
    delete(harness, "u")
    harness.done(lambda: harness.end(producer))
    assert harness.seen(T0) == [b"a"]


def test_a_topic_is_deleted_while_the_decision_is_in_flight(harness: TransactionHarness) -> None:
    producer = harness.begun(T0, U0)
    asked = harness.end(producer)
    delete(harness, "u")
    harness.settle()
    assert asked.is_done


def test_a_topic_is_deleted_while_its_marker_is_in_flight(harness: TransactionHarness) -> None:
    """The flush of a deleted partition never completes: the producer waited forever."""
    producer = harness.begun(T0, U0)
    asked = harness.end(producer)
    harness.sync(TABLE)
    assert harness.marker_count(U0) == 1
    delete(harness, "u")
    harness.settle()
    harness.advance(2 * RETRY_MS)
    assert asked.is_done
    assert harness.state() is S.COMPLETE_COMMIT
    harness.done(lambda: harness.add(producer, T0))


def test_a_topic_is_recreated_while_its_marker_is_in_flight(harness: TransactionHarness) -> None:
    producer = harness.begun(T0, U0)
    asked = harness.end(producer)
    harness.sync(TABLE)
    delete(harness, "u")
    harness.broker.create_topic(CONTEXT, "u", 1).result()
    harness.advance(2 * RETRY_MS)
    assert asked.is_done
    assert (harness.seen(U0), harness.held_back()) == ([], [])


def test_a_partition_is_reopened_while_its_marker_is_in_flight(
    harness: TransactionHarness,
) -> None:
    producer = harness.begun(T0)
    harness.send(producer, T0, b"a")
    harness.settle()
    asked = harness.end(producer)
    harness.sync(TABLE)
    before = harness.log(T0)
    harness.broker._catalog.reopen_before_use(before)
    assert harness.log(T0) is not before
    harness.advance(2 * RETRY_MS)
    assert asked.is_done
    assert (harness.seen(T0), harness.held_back()) == ([b"a"], [])


@pytest.mark.parametrize("partition", [0, 1])
def test_the_table_is_reopened_while_a_change_is_in_flight(
    harness: TransactionHarness, partition: int
) -> None:
    run_inline(harness.broker._transactions_table.ensure())
    name = ("tx", "ty")[partition]
    table = harness.broker._transactions_table.log_for(name)
    asked = harness.init(name)
    harness.broker._catalog.reopen_before_use(table)
    assert harness.broker._transactions_table.log_for(name) is not table
    harness.advance(3 * RETRY_MS)
    assert asked.is_done
    again = harness.producer(name)
    assert again.epoch > 0
    assert harness.after_crash().producer(name).epoch == again.epoch + 1


# -- starts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("rounds", range(4))
def test_a_start_completes_decided_transactions(commit: bool, rounds: int) -> None:
    harness = TransactionHarness()
    producer = harness.begun(T0, U0)
    harness.send(producer, T0, b"a")
    harness.send(producer, U0, b"b")
    harness.settle()
    harness.end(producer, commit=commit)
    for _ in range(rounds):
        harness.sync()
    for again in (harness.after_kill(), harness.after_crash()):
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
    harness = TransactionHarness()
    producer = harness.begun(T0, U0)
    harness.send(producer, T0, b"a")
    harness.settle()
    harness.end(producer)
    harness.sync()
    disk = harness.disk.after_crash(next(harness.disk.crash_states(1)))
    disk.fail_on("append", "data/t-0", count=2, error=errno.ENOSPC)
    again = TransactionHarness(disk, harness.clock)
    again.settle()
    assert again.state() is S.PREPARE_COMMIT
    with pytest.raises(ConcurrentTransactionsError):
        again.init()
    again.advance(3 * RETRY_MS)
    assert again.state() is S.COMPLETE_COMMIT
    assert again.seen(T0) == [b"a"]


def orphaned(disk: SimulatedFiles) -> TransactionHarness:
    """A partition holds an open transaction of which the table knows nothing."""
    harness = TransactionHarness(disk)
    harness.log(T0).append(batch(b"orphan", producer=(77, 0, 0), transactional=True))
    harness.log(T0).append(batch(b"plain"))
    harness.log(T0).flush()
    assert harness.seen(T0) == []
    return harness


def test_an_open_transaction_that_the_table_does_not_know_is_aborted() -> None:
    again = orphaned(SimulatedFiles()).after_kill()
    again.settle()
    assert (again.seen(T0), again.held_back()) == ([b"plain"], [])


def test_a_broker_with_an_orphaned_transaction_starts_on_a_full_disk() -> None:
    disk = orphaned(SimulatedFiles()).disk.after_kill()
    disk.fail_on("append", "data/t-0", count=2, error=errno.ENOSPC)
    again = TransactionHarness(disk)
    again.settle()
    assert again.seen(T0) == []
    again.advance(3 * RETRY_MS)
    assert (again.seen(T0), again.held_back()) == ([b"plain"], [])


def test_the_abort_of_an_orphan_does_not_abort_the_next_transaction() -> None:
    harness = TransactionHarness()
    producer = harness.producer()
    log = harness.log(T0)
    log.append(batch(b"orphan", producer=(*producer, 0), transactional=True))
    log.flush()
    disk = harness.disk.after_kill()
    disk.fail_on("append", "data/t-0", count=2, error=errno.ENOSPC)
    again = TransactionHarness(disk, harness.clock)
    with pytest.raises(ConcurrentTransactionsError):
        again.add(producer, T0)
    new = again.producer()
    again.done(lambda: again.add(new, T0))
    again.send(new, T0, b"kept")
    again.done(lambda: again.end(new))
    again.advance(5 * RETRY_MS)
    assert again.seen(T0) == [b"kept"]


def test_records_of_a_newer_release_are_skipped() -> None:
    harness = TransactionHarness()
    harness.producer("old")
    from strandlog.protocol.transaction_records import encode_key

    newer = (encode_key("new"), b"\x00\x09 whatever that means")
    harness.broker._transactions_table.append([newer], harness.clock.now_ms())
    harness.settle()
    again = harness.after_crash()
    assert [each.transactional_id for each in again.transactions.all()] == ["old"]
    assert again.producer("new").epoch == 0


def test_transactional_ids_take_a_bounded_amount_of_memory() -> None:
    harness = TransactionHarness(settings={"transactional.ids.max.bytes": 100_000})
    for number in range(3):
        harness.done(lambda number=number: harness.init(f"{number}" + "x" * 30_000))  # type: ignore[misc]
    with pytest.raises(TooManyTransactionalIdsError, match=r"transactional\.ids\.max\.bytes"):
        harness.init("y" * 30_000)
    harness.done(lambda: harness.init("0" + "x" * 30_000))  # a known id still works
    again = harness.after_crash()
    with pytest.raises(TooManyTransactionalIdsError):
        again.init("y" * 30_000)


def test_an_embedded_broker_lists_transactions_that_were_aborted_at_start() -> None:
    harness = TransactionHarness()
    producer = harness.begun(T0)
    harness.send(producer, T0, b"open")
    harness.settle()
    disk = harness.disk.after_kill()
    for path in [path for path in disk.contents() if path.startswith("data/__transaction_state-")]:
        disk.remove(path)
    again = TransactionHarness(disk, harness.clock)
    problem = "aborted 1 open transaction missing from the coordinator's table"
    assert problem in again.broker.problems
