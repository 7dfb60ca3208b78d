"""One transactional producer and what may become of it. Pure: decides, and changes nothing.

                 add partitions          end             markers written
    Empty ─────────────────▶ Ongoing ──────────▶ Prepare* ──────────────▶ Complete*
      ▲                        ▲   │                                        │    │
      │                        │   └─ time-out, or a new producer: abort    │    │
      │                        └────────────── add partitions ──────────────┘    │
      └───────────────────────────────────────── init ───────────────────────────┘

Prepare* is the decision; once it is on disk the transaction ends that way, whatever happens.
Complete* is kept once all markers are on disk. Each `init` raises the epoch, and so does an abort
that the producer did not ask for: whoever still holds the old one (a zombie) is fenced off, here
and in every partition that gets a marker with the new epoch. When the epochs of a producer id run
out, the next `init` takes a new id.
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
from strandlog.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerIdentity, TopicPartition
from strandlog.protocol.transaction_records import NOT_STARTED, TransactionState, TransactionValue

LAST_EPOCH = 32_767
EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
PREPARED = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transactional producer between two changes."""

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    state: TransactionState
    updated_ms: int
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = NOT_STARTED
    last_epoch: int = NO_PRODUCER_EPOCH  # the one before, if its holder may ask again

    @property
    def identity(self) -> ProducerIdentity:
        return ProducerIdentity(self.producer_id, self.epoch)

    @property
    def is_prepared(self) -> bool:
        """Whether it is decided, and the markers are being written."""
        return self.state in PREPARED

    @property
    def is_commit(self) -> bool:
        return self.state is TransactionState.PREPARE_COMMIT

    @property
    def value(self) -> TransactionValue:
        """As it is kept."""
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
    """What was kept of one."""
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


# -- who may ask ---------------------------------------------------------------------------------


def check_owner(transaction: Transaction | None, name: str, given: ProducerIdentity) -> Transaction:
    """The transaction, if it belongs to the one who asks."""
    if transaction is None or transaction.producer_id != given.producer_id:
        raise InvalidProducerIdMappingError(
            f"transactional id {name!r} does not belong to producer {given.producer_id}; "
            f"initialise the producer again"
        )
    if transaction.epoch != given.epoch:
        raise ProducerFencedError(
            f"transactional id {name!r} has epoch {transaction.epoch} now, not {given.epoch}: "
            f"a newer producer has taken over, or the transaction ran into its time-out"
        )
    if transaction.is_prepared:
        raise ConcurrentTransactionsError(
            f"the last transaction of {name!r} is being completed; ask again in a moment"
        )
    return transaction


def may_be_initialised_by(transaction: Transaction, given: ProducerIdentity) -> bool:
    """Whether the one who asks for a new epoch is up to date. False for one who asked before and
    did not hear the answer: the same answer will do."""
    if given.producer_id == NO_PRODUCER_ID or given == transaction.identity:
        return True
    if given == (transaction.producer_id, transaction.last_epoch) and given.epoch >= 0:
        return False
    raise ProducerFencedError(
        f"producer {given.producer_id} with epoch {given.epoch} was replaced: transactional id "
        f"{transaction.transactional_id!r} has {transaction.producer_id}, {transaction.epoch} now"
    )


# -- changes -------------------------------------------------------------------------------------


def initialised(
    transaction: Transaction,
    given: ProducerIdentity,
    timeout_ms: int,
    new_producer_id: int | None,
    now_ms: int,
) -> Transaction:
    """With the next epoch, ready for a first transaction; or with a new id when it is out of
    epochs. The epoch before may ask again only if it was shown: else a new process has asked, and
    the one that holds it is a zombie."""
    last_epoch = NO_PRODUCER_EPOCH
    if new_producer_id is None:
        producer_id, epoch = transaction.producer_id, transaction.epoch + 1
        if given == transaction.identity:
            last_epoch = transaction.epoch
    else:
        producer_id, epoch = new_producer_id, 0
    return Transaction(
        transaction.transactional_id,
        producer_id,
        epoch,
        timeout_ms,
        EMPTY,
        now_ms,
        last_epoch=last_epoch,
    )


def is_out_of_epochs(transaction: Transaction) -> bool:
    """Whether the next epoch would be the last; that one is for an abort by us."""
    return transaction.epoch >= LAST_EPOCH - 1


def with_partitions(
    transaction: Transaction, partitions: Iterable[TopicPartition], now_ms: int
) -> Transaction:
    """A transaction that writes to these partitions too; begun if need be."""
    is_open = transaction.state is ONGOING
    return replace(
        transaction,
        state=ONGOING,
        partitions=(transaction.partitions if is_open else frozenset()) | frozenset(partitions),
        started_ms=transaction.started_ms if is_open else now_ms,
        updated_ms=now_ms,
        last_epoch=NO_PRODUCER_EPOCH,
    )


def is_ended(transaction: Transaction, *, commit: bool) -> bool:
    """Whether it ended that way already (the producer asks again); False when it can."""
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
    """Decided."""
    state = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
    return replace(transaction, state=state, updated_ms=now_ms)


def fenced(transaction: Transaction, now_ms: int) -> Transaction:
    """Decided to abort, over the head of its producer. The last epoch is handed out to nobody, so
    one who shows it nevertheless need not be fenced off."""
    aborted = prepared(transaction, commit=False, now_ms=now_ms)
    epoch = min(transaction.epoch + 1, LAST_EPOCH)
    return replace(aborted, epoch=epoch, last_epoch=transaction.epoch)


def completed(transaction: Transaction, now_ms: int) -> Transaction:
    """All markers are written."""
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
