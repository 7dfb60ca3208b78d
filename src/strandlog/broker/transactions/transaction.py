"""States and transitions of one transactional producer, as pure functions.

                 add partitions      end, timeout        markers on disk
                                       or init
    Empty ─────────────────▶ Ongoing ──────────▶ Prepare* ──────────────▶ Complete*
      ▲                        ▲                                            │    │
      │                        │                                            │    │
      │                        └────────────── add partitions ──────────────┘    │
      └───────────────────────────────────────── init ───────────────────────────┘

`init` in Empty and adding partitions in Ongoing do not change the state. A transactional id that
has been idle in Empty or Complete* for too long is deleted (coordinator.py).

Prepare* records the outcome: once it is on disk, the outcome cannot change. Complete* is stored
once all markers are on disk. A timeout, or `init` in Ongoing, aborts the transaction. Each such
abort increments the epoch, and so does each `init`, unless it comes with the previous identity
(`is_current`). A producer with the old epoch (a zombie) is then fenced, both here and in every
partition that gets a marker with the new epoch.

No producer gets `LAST_EPOCH`, so that an abort can fence every producer: the epochs of a producer
id are exhausted before it, and the next `init` allocates a new id, with epoch 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from strandlog.errors import (
    ConcurrentTransactionsError,
    InvalidProducerIdMappingError,
    InvalidTransactionStateError,
    ProducerFencedError,
)
from strandlog.model import NO_PRODUCER_ID, ProducerIdentity, TopicPartition
from strandlog.protocol.transaction_records import NOT_STARTED, TransactionState, TransactionValue

LAST_EPOCH = 32_767
NO_PRODUCER = ProducerIdentity()
EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
PREPARED = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transactional producer and its last transaction."""

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    state: TransactionState
    updated_ms: int
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = NOT_STARTED
    previous: ProducerIdentity = NO_PRODUCER  # the previous one, if it may call init again

    @property
    def identity(self) -> ProducerIdentity:
        return ProducerIdentity(self.producer_id, self.epoch)

    @property
    def is_prepared(self) -> bool:
        """Whether the outcome is decided and the markers are being written."""
        return self.state in PREPARED

    @property
    def is_commit(self) -> bool:
        return self.state is TransactionState.PREPARE_COMMIT

    @property
    def value(self) -> TransactionValue:
        """The stored form of this transaction."""
        return TransactionValue(
            self.producer_id,
            self.epoch,
            self.timeout_ms,
            self.state,
            self.partitions,
            self.updated_ms,
            self.started_ms,
        )


def restored(transactional_id: str, value: TransactionValue) -> Transaction:
    """Restore a transaction from its stored record."""
    return Transaction(
        transactional_id,
        value.producer_id,
        value.epoch,
        value.timeout_ms,
        value.state,
        value.updated_ms,
        value.partitions,
        value.started_ms,
    )


# -- ownership -----------------------------------------------------------------------------------


def check_owner(
    transaction: Transaction | None, name: str, producer: ProducerIdentity
) -> Transaction:
    """Return the transaction; raise if it does not belong to the producer or is being completed."""
    if transaction is None or transaction.producer_id != producer.producer_id:
        raise InvalidProducerIdMappingError(
            f"transactional id {name!r} does not belong to producer {producer.producer_id}; "
            f"initialise the producer again"
        )
    if transaction.epoch != producer.epoch or producer.epoch == LAST_EPOCH:
        raise ProducerFencedError(
            f"epoch {producer.epoch} of transactional id {name!r} is fenced; the epoch is "
            f"{transaction.epoch} now: a newer producer replaced it, or the transaction timed out"
        )
    if transaction.is_prepared:
        raise ConcurrentTransactionsError(
            f"the last transaction of {name!r} is being completed; try again"
        )
    return transaction


def is_current(transaction: Transaction, producer: ProducerIdentity) -> bool:
    """Return True if the producer may get a new identity: it has the current one or none yet.

    Return False if it has the previous one and may get the current one, because it retries a
    request whose reply was lost or because its transaction timed out. If that timeout took the last
    epoch, which no producer gets, it may get a new identity. Raise for any other producer.
    """
    if producer.producer_id == NO_PRODUCER_ID or producer == transaction.identity:
        return True
    if producer == transaction.previous:
        return transaction.epoch == LAST_EPOCH
    raise ProducerFencedError(
        f"producer {producer.producer_id} with epoch {producer.epoch} was replaced: transactional "
        f"id {transaction.transactional_id!r} now belongs to producer {transaction.producer_id} "
        f"with epoch {transaction.epoch}"
    )


# -- changes -------------------------------------------------------------------------------------


def initialised(
    transaction: Transaction,
    producer: ProducerIdentity,
    timeout_ms: int,
    new_producer_id: int | None,
    now_ms: int,
) -> Transaction:
    """Return the transaction with the next epoch, or with `new_producer_id` and epoch 0.

    The producer may retry with the identity that it sent. A request without one came from a new
    process, so any producer that still has the previous identity is a zombie.
    """
    if new_producer_id is None:
        producer_id, epoch = transaction.producer_id, transaction.epoch + 1
    else:
        producer_id, epoch = new_producer_id, 0
    return Transaction(
        transaction.transactional_id,
        producer_id,
        epoch,
        timeout_ms,
        EMPTY,
        now_ms,
        previous=producer,
    )


def is_out_of_epochs(transaction: Transaction) -> bool:
    """Return whether no epoch is left for `init`; the last one is reserved for aborts."""
    return transaction.epoch >= LAST_EPOCH - 1


def with_partitions(
    transaction: Transaction, partitions: Iterable[TopicPartition], now_ms: int
) -> Transaction:
    """Return the transaction with partitions added, starting it if it is not open."""
    is_open = transaction.state is ONGOING
    return replace(
        transaction,
        state=ONGOING,
        partitions=(transaction.partitions if is_open else frozenset()) | frozenset(partitions),
        started_ms=transaction.started_ms if is_open else now_ms,
        updated_ms=now_ms,
        previous=NO_PRODUCER,
    )


def is_ended(transaction: Transaction, *, commit: bool) -> bool:
    """Return True if the transaction already ended with this outcome (the request is a retry).

    Return False if it is open; raise in any other state.
    """
    if transaction.state is ONGOING:
        return False
    done = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
    if transaction.state is done:
        return True
    verb = "commit" if commit else "abort"
    raise InvalidTransactionStateError(
        f"there is nothing to {verb}: transactional id {transaction.transactional_id!r} is in "
        f"state {transaction.state.name}"
    )


def prepared(transaction: Transaction, *, commit: bool, now_ms: int) -> Transaction:
    """Return the transaction with its outcome decided."""
    state = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
    return replace(transaction, state=state, updated_ms=now_ms)


def fenced(transaction: Transaction, now_ms: int) -> Transaction:
    """Return the transaction aborted by the coordinator, with an incremented epoch.

    A stored transaction may have the last epoch, because earlier versions assigned it; its producer
    is fenced by `check_owner`.
    """
    aborted = prepared(transaction, commit=False, now_ms=now_ms)
    epoch = min(transaction.epoch + 1, LAST_EPOCH)
    return replace(aborted, epoch=epoch, previous=transaction.identity)


def completed(transaction: Transaction, now_ms: int) -> Transaction:
    """Return the transaction with the state that it has after all markers have been written."""
    state = (
        TransactionState.COMPLETE_COMMIT
        if transaction.is_commit
        else TransactionState.COMPLETE_ABORT
    )
    return replace(
        transaction,
        state=state,
        partitions=frozenset(),
        started_ms=NOT_STARTED,
        updated_ms=now_ms,
    )
