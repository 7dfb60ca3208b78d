"""States and transitions of one transactional producer: every request in every state."""

from __future__ import annotations

import dataclasses

import pytest

from strandlog.broker.transactions.transaction import (
    LAST_EPOCH,
    Transaction,
    check_owner,
    completed,
    fenced,
    initialised,
    is_current,
    is_ended,
    is_out_of_epochs,
    prepared,
    restored,
    with_partitions,
)
from strandlog.errors import (
    ConcurrentTransactionsError,
    InvalidProducerIdMappingError,
    InvalidTransactionStateError,
    ProducerFencedError,
    StrandlogError,
)
from strandlog.model import NO_PRODUCER_EPOCH, ProducerIdentity, TopicPartition
from strandlog.protocol.transaction_records import NOT_STARTED, TransactionState

S = TransactionState
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
ME = ProducerIdentity(7, 3)
NOW_MS = 1_000


def in_state(state: TransactionState, **changes: object) -> Transaction:
    is_open = state in (S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT)
    transaction = Transaction(
        "tx",
        *ME,
        timeout_ms=60_000,
        state=state,
        updated_ms=500,
        partitions=frozenset([P0]) if is_open else frozenset(),
        started_ms=400 if is_open else NOT_STARTED,
    )
    return dataclasses.replace(transaction, **changes)  # type: ignore[arg-type]


# -- every state and every request ---------------------------------------------------------------

CONCURRENT, NOTHING = ConcurrentTransactionsError, InvalidTransactionStateError
# What becomes of each state when its owner adds a partition, commits, aborts. An error is the
# answer; a state is where it leads; None: it is so already.
TABLE: dict[TransactionState, tuple[object, object, object]] = {
    S.EMPTY: (S.ONGOING, NOTHING, NOTHING),
    S.ONGOING: (S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT),
    S.PREPARE_COMMIT: (CONCURRENT, CONCURRENT, CONCURRENT),
    S.PREPARE_ABORT: (CONCURRENT, CONCURRENT, CONCURRENT),
    S.COMPLETE_COMMIT: (S.ONGOING, None, NOTHING),
    S.COMPLETE_ABORT: (S.ONGOING, NOTHING, None),
}


def after_add(transaction: Transaction) -> object:
    return with_partitions(check_owner(transaction, "tx", ME), [P1], NOW_MS).state


def after_end(transaction: Transaction, *, commit: bool) -> object:
    owned = check_owner(transaction, "tx", ME)
    if is_ended(owned, commit=commit):
        return None
    return prepared(owned, commit=commit, now_ms=NOW_MS).state


@pytest.mark.parametrize("state", TABLE)
@pytest.mark.parametrize("request_number", range(3))
def test_every_state_and_every_request(state: TransactionState, request_number: int) -> None:
    transaction = in_state(state)
    try:
        found: object = (
            after_add(transaction)
            if request_number == 0
            else after_end(transaction, commit=request_number == 1)
        )
    except StrandlogError as error:
        found = type(error)
    assert found == TABLE[state][request_number]


@pytest.mark.parametrize("state", TABLE)
def test_a_request_of_another_producer_is_rejected_in_every_state(state: TransactionState) -> None:
    transaction = in_state(state)
    with pytest.raises(InvalidProducerIdMappingError):
        check_owner(transaction, "tx", ProducerIdentity(8, 3))
    with pytest.raises(InvalidProducerIdMappingError):
        check_owner(None, "tx", ME)
    for epoch in (-1, 2, 4):
        with pytest.raises(ProducerFencedError):  # before "ask again": asking will not help it
            check_owner(transaction, "tx", ProducerIdentity(7, epoch))


# -- partitions ----------------------------------------------------------------------------------


def test_a_first_partition_begins_a_transaction_and_others_join_it() -> None:
    begun = with_partitions(in_state(S.EMPTY), [P0], NOW_MS)
    assert (begun.state, begun.partitions, begun.started_ms) == (S.ONGOING, frozenset([P0]), NOW_MS)
    more = with_partitions(begun, [P1], NOW_MS + 9)
    assert more.partitions == {P0, P1}
    assert (more.started_ms, more.updated_ms) == (NOW_MS, NOW_MS + 9)


@pytest.mark.parametrize("state", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_a_new_transaction_starts_without_the_partitions_of_the_last_one(
    state: TransactionState,
) -> None:
    left_over = in_state(state, partitions=frozenset([P1]), started_ms=5)
    begun = with_partitions(left_over, [P0], NOW_MS)
    assert (begun.partitions, begun.started_ms) == (frozenset([P0]), NOW_MS)


def test_markers_go_to_every_partition_of_the_decision() -> None:
    begun = with_partitions(in_state(S.EMPTY), [P0, P1], NOW_MS)
    for decided in (
        prepared(begun, commit=True, now_ms=NOW_MS),
        prepared(begun, commit=False, now_ms=NOW_MS),
        fenced(begun, NOW_MS),
    ):
        assert decided.is_prepared
        assert decided.partitions == {P0, P1}
        done = completed(decided, NOW_MS + 1)
        assert not done.is_prepared
        assert (done.partitions, done.started_ms) == (frozenset(), NOT_STARTED)
        assert done.identity == decided.identity


def test_a_transaction_completes_as_decided() -> None:
    commit = prepared(in_state(S.ONGOING), commit=True, now_ms=NOW_MS)
    abort = prepared(in_state(S.ONGOING), commit=False, now_ms=NOW_MS)
    assert (commit.is_commit, abort.is_commit) == (True, False)
    assert completed(commit, NOW_MS).state is S.COMPLETE_COMMIT
    assert completed(abort, NOW_MS).state is S.COMPLETE_ABORT
    assert completed(fenced(in_state(S.ONGOING), NOW_MS), NOW_MS).state is S.COMPLETE_ABORT


# -- epochs --------------------------------------------------------------------------------------


def test_each_init_raises_the_epoch_and_clears_the_transaction() -> None:
    again = initialised(in_state(S.COMPLETE_ABORT), ME, 5_000, None, NOW_MS)
    assert again.identity == (7, 4)
    assert (again.state, again.timeout_ms, again.partitions) == (S.EMPTY, 5_000, frozenset())
    assert (again.started_ms, again.previous) == (NOT_STARTED, ME)


@pytest.mark.parametrize(
    ("epoch", "is_out"), [(0, False), (LAST_EPOCH - 2, False), (LAST_EPOCH - 1, True)]
)
def test_the_last_epoch_is_reserved_for_an_abort_by_the_coordinator(
    epoch: int, is_out: bool
) -> None:
    transaction = in_state(S.COMPLETE_COMMIT, epoch=epoch)
    assert is_out_of_epochs(transaction) is is_out
    if is_out:
        again = initialised(transaction, transaction.identity, 1, 99, NOW_MS)
        assert again.identity == (99, 0)
        assert again.previous == transaction.identity
    else:
        assert initialised(transaction, ME, 1, None, NOW_MS).epoch == epoch + 1


def test_a_producer_with_the_largest_epoch_can_be_fenced() -> None:
    assert LAST_EPOCH == 2**15 - 1
    off = fenced(in_state(S.ONGOING, epoch=LAST_EPOCH - 1), NOW_MS)
    assert off.epoch == LAST_EPOCH
    assert restored("tx", off.value).identity == (7, LAST_EPOCH)
    assert is_out_of_epochs(completed(off, NOW_MS))
    assert is_current(completed(off, NOW_MS), ProducerIdentity(7, LAST_EPOCH - 1))  # to a new id


def test_a_stored_last_epoch_does_not_keep_a_transaction_open() -> None:
    """Its producer could else hold readers back for ever."""
    begun = in_state(S.ONGOING, epoch=LAST_EPOCH)
    assert fenced(begun, NOW_MS).epoch == LAST_EPOCH
    with pytest.raises(ProducerFencedError):
        check_owner(begun, "tx", begun.identity)


@pytest.mark.parametrize("state", [S.EMPTY, S.ONGOING, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_which_producers_may_ask_for_a_new_epoch(state: TransactionState) -> None:
    transaction = in_state(state, previous=ProducerIdentity(7, 2))
    assert is_current(transaction, ProducerIdentity())  # a new process
    assert is_current(transaction, ME)
    # It asked before and did not hear the answer.
    assert not is_current(transaction, ProducerIdentity(7, 2))
    for stranger in ((7, 1), (7, 4), (8, 3), (8, 2), (7, -1)):
        with pytest.raises(ProducerFencedError):
            is_current(transaction, ProducerIdentity(*stranger))


def test_no_epoch_is_not_the_epoch_before_the_first() -> None:
    """A client that sends an id without an epoch would get the identity of the owner."""
    transaction = in_state(S.ONGOING)
    assert transaction.previous == ProducerIdentity()
    with pytest.raises(ProducerFencedError):
        is_current(transaction, ProducerIdentity(7, NO_PRODUCER_EPOCH))


def test_a_retry_of_init_counts_until_the_new_epoch_is_used() -> None:
    again = initialised(in_state(S.EMPTY), ME, 1, None, NOW_MS)
    assert not is_current(again, ME)
    begun = with_partitions(again, [P0], NOW_MS)
    with pytest.raises(ProducerFencedError):
        is_current(begun, ME)


def test_a_zombie_does_not_get_the_identity_of_its_successor() -> None:
    """It shows the epoch before the current one, as one does who did not hear the answer."""
    replaced = initialised(in_state(S.EMPTY), ProducerIdentity(), 1, None, NOW_MS)
    assert replaced.identity == (7, 4)
    with pytest.raises(ProducerFencedError):
        is_current(replaced, ME)


def test_a_producer_that_timed_out_may_return_once() -> None:
    aborted = completed(fenced(in_state(S.ONGOING), NOW_MS), NOW_MS)
    assert aborted.identity == (7, 4)
    assert not is_current(aborted, ME)  # it gets the new epoch as it is
    taken_over = initialised(aborted, ProducerIdentity(), 1, None, NOW_MS)
    with pytest.raises(ProducerFencedError):  # unless a newer producer was quicker
        is_current(taken_over, ME)


@pytest.mark.parametrize("state", TABLE)
def test_stored_transactions_are_restored(state: TransactionState) -> None:
    transaction = in_state(state, previous=ProducerIdentity(7, 2))
    again = restored("tx", transaction.value)
    # Retries across a restart are not known any more; everything else is.
    assert again == dataclasses.replace(transaction, previous=ProducerIdentity())
