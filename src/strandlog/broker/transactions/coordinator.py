"""Keeps transactional producers, decides about their transactions and has the markers written.

    request ─▶ transaction.py decides ─▶ table ─▶ on disk ─▶ reply
                                                     └─ Prepare*: markers ─▶ on disk ─▶ Complete*

The order is the promise. Nothing is answered, and no marker is written, before the table has the
decision on disk; a transaction is not called complete before all its markers are. So a producer
that heard "committed" can begin the next one at once, and a crash at any point leaves a table from
which `load` ends what was decided and lets the rest run into its time-out.

While a change of a producer is on its way to disk, further requests for it are told to ask again
(ConcurrentTransactionsError, which clients retry). When the disk refuses in the middle, the one who
asked hears it, and the change is pursued once a second until it succeeds: it cannot be taken back,
for the record may be on disk all the same.

A partition may hold an open transaction that nobody here knows of (its coordinator lost it with a
page cache): it would hold its readers back for ever, so `load` aborts it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, TypeVar

from strandlog.broker.compacted_table import CompactedTable, latest_values
from strandlog.broker.deferred import Deferred
from strandlog.broker.durability import OnDurable
from strandlog.broker.timers import Timer, Timers
from strandlog.broker.transactions.transaction import (
    EMPTY,
    ONGOING,
    Transaction,
    check_owner,
    completed,
    fenced,
    initialised,
    is_ended,
    is_out_of_epochs,
    may_be_initialised_by,
    prepared,
    restored,
    with_partitions,
)
from strandlog.clock import Clock
from strandlog.config.tables.broker import BrokerSettings
from strandlog.errors import (
    ConcurrentTransactionsError,
    DataError,
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    InvalidTransactionTimeoutError,
    StorageError,
    StrandlogError,
    TooManyTransactionalIdsError,
    TransactionalIdNotFoundError,
)
from strandlog.model import ProducerIdentity, TopicPartition
from strandlog.protocol.transaction_records import (
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from strandlog.record.control import ControlType
from strandlog.storage.partition.log import PartitionLog

RETRY_MS = 1_000
EXPIRY_LOOK_MS = 3_600_000

R = TypeVar("R")

WriteMarker = Callable[[TopicPartition, ControlType, ProducerIdentity], PartitionLog | None]


class TransactionEffects(NamedTuple):
    """What the coordinator has done elsewhere."""

    new_producer_id: Callable[[], int]
    # Writes a marker; None when the partition is gone.
    write_marker: WriteMarker
    when_durable: Callable[[PartitionLog, int, OnDurable], None]
    # Every partition with open transactions: their producers and where each began.
    open_transactions: Callable[[], Iterable[tuple[PartitionLog, ProducerIdentity]]]


class _Marker(NamedTuple):
    """What ends a transaction in one partition."""

    tp: TopicPartition
    producer: ProducerIdentity


class TransactionCoordinator:
    """All transactional producers of one broker."""

    def __init__(
        self,
        settings: BrokerSettings,
        clock: Clock,
        timers: Timers,
        table: CompactedTable,
        effects: TransactionEffects,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._timers = timers
        self._table = table
        self._effects = effects
        self._transactions: dict[str, Transaction] = {}
        self._name_of: dict[int, str] = {}  # by producer id
        self._ids_bytes = 0
        # A record of these is on its way to disk; and the partitions that it adds.
        self._changing: dict[str, frozenset[TopicPartition]] = {}
        self._timeouts: dict[str, Timer] = {}

    # -- start ---------------------------------------------------------------------------------

    def load(self) -> int:
        """Take in the table and end what was decided. Returns how many transactions of unknown
        origin were aborted."""
        for key, value in latest_values(self._table).items():
            try:
                name = decode_key(key)
                if name is not None:
                    self._put(restored(name, decode_value(value)))
            except DataError:
                continue  # of a newer release; its producer initialises again
        for transaction in list(self._transactions.values()):
            if transaction.is_prepared:
                self._write_markers(transaction, lambda: None)
            else:
                self._set_timeout(transaction)
        self._timers.schedule(self._clock.monotonic_ms() + EXPIRY_LOOK_MS, self._look_for_expired)
        return self._abort_unknown()

    def _abort_unknown(self) -> int:
        unknown: dict[int, list[_Marker]] = {}
        for log, identity in list(self._effects.open_transactions()):
            owner = self._of_producer(identity.producer_id)
            if owner is None or log.tp not in owner.partitions:
                unknown.setdefault(identity.producer_id, []).append(_Marker(log.tp, identity))
        for producer_id, markers in unknown.items():
            name = self._name_of.get(producer_id)
            if name is None or name in self._changing:
                self._mark(markers, ControlType.ABORT, lambda: None)
            else:
                # Its owner waits: the marker must not hit a transaction that it begins meanwhile.
                self._changing[name] = frozenset()
                self._mark(markers, ControlType.ABORT, partial(self._changing.pop, name))
        return sum(map(len, unknown.values()))

    # -- requests ------------------------------------------------------------------------------

    def init_producer(
        self, name: str, timeout_ms: int, given: ProducerIdentity
    ) -> Deferred[ProducerIdentity]:
        """A producer starts, or wants a new epoch: whatever it left open is aborted first."""
        if not 0 < timeout_ms <= self._settings.transaction_max_timeout_ms:
            raise InvalidTransactionTimeoutError(
                f"transaction.timeout.ms is 1 to {self._settings.transaction_max_timeout_ms} "
                f"(transaction.max.timeout.ms), not {timeout_ms}"
            )
        if not name:
            raise DataError("a transactional id has at least one character")
        pending: Deferred[ProducerIdentity] = Deferred()
        self._init(name, timeout_ms, given, pending)
        return pending

    def _init(
        self,
        name: str,
        timeout_ms: int,
        given: ProducerIdentity,
        pending: Deferred[ProducerIdentity],
    ) -> None:
        self._check_idle(name)
        now_ms = self._clock.now_ms()
        transaction = self._transactions.get(name)
        if transaction is None:  # or no more: whoever shows an old id gets a new one
            self._check_room(name)
            producer_id = self._effects.new_producer_id()
            changed = Transaction(name, producer_id, 0, timeout_ms, EMPTY, now_ms)
        elif not may_be_initialised_by(transaction, given):
            pending.complete(transaction.identity)
            return
        elif transaction.state is ONGOING:
            self._end(
                fenced(transaction, now_ms),
                lambda: self._init_again(name, timeout_ms, pending),
                pending.fail,
            )
            return
        else:
            new_id = self._effects.new_producer_id() if is_out_of_epochs(transaction) else None
            changed = initialised(transaction, given, timeout_ms, new_id, now_ms)
        self._keep(changed, lambda: pending.complete(changed.identity), pending.fail)

    def _check_room(self, name: str) -> None:
        limit = self._settings.transactional_ids_max_bytes
        if self._ids_bytes + _id_bytes(name) > limit:
            raise TooManyTransactionalIdsError(
                f"{len(self._transactions)} transactional ids take {self._ids_bytes} bytes; "
                f"use fewer or raise transactional.ids.max.bytes (now {limit})"
            )

    def _init_again(self, name: str, timeout_ms: int, pending: Deferred[ProducerIdentity]) -> None:
        try:
            self._init(name, timeout_ms, ProducerIdentity(), pending)
        except StrandlogError as error:
            pending.fail(error)

    def add_partitions(
        self, name: str, given: ProducerIdentity, partitions: Iterable[TopicPartition]
    ) -> Deferred[None]:
        """The producer is about to write to these partitions."""
        transaction = self._owned(name, given)
        wanted = frozenset(partitions)
        if transaction.state is ONGOING and wanted <= transaction.partitions:
            return Deferred.done(None)
        pending: Deferred[None] = Deferred()
        changed = with_partitions(transaction, wanted, self._clock.now_ms())
        self._keep(changed, lambda: pending.complete(None), pending.fail)
        return pending

    def end(self, name: str, given: ProducerIdentity, *, commit: bool) -> Deferred[None]:
        """Commit or abort; done when every marker is on disk."""
        transaction = self._owned(name, given)
        if is_ended(transaction, commit=commit):
            return Deferred.done(None)
        pending: Deferred[None] = Deferred()
        decided = prepared(transaction, commit=commit, now_ms=self._clock.now_ms())
        self._end(decided, lambda: pending.complete(None), pending.fail)
        return pending

    def check_write(self, given: ProducerIdentity, tp: TopicPartition) -> None:
        """Raise unless the producer has an open transaction that this partition belongs to: what
        is written outside of one could never be ended."""
        transaction = self._of_producer(given.producer_id)
        if transaction is not None and transaction.epoch != given.epoch:
            raise InvalidProducerEpochError(
                f"producer {given.producer_id} has epoch {transaction.epoch} now, not {given.epoch}"
            )
        if (
            transaction is None
            or transaction.state is not ONGOING
            or tp not in transaction.partitions
            or tp in self._changing.get(transaction.transactional_id, ())  # nobody told it yet
        ):
            raise InvalidTransactionStateError(
                f"{tp} is in no open transaction of producer {given.producer_id}; "
                f"add it to one first"
            )

    # -- looking -------------------------------------------------------------------------------

    def describe(self, name: str) -> Transaction:
        transaction = self._transactions.get(name)
        if transaction is None:
            raise TransactionalIdNotFoundError(f"there is no transactional id {name!r}")
        return transaction

    def all(self) -> list[Transaction]:
        return [self._transactions[name] for name in sorted(self._transactions)]

    def _of_producer(self, producer_id: int) -> Transaction | None:
        return self._transactions.get(self._name_of.get(producer_id, ""))

    def _owned(self, name: str, given: ProducerIdentity) -> Transaction:
        transaction = check_owner(self._transactions.get(name), name, given)
        self._check_idle(name)
        return transaction

    def _check_idle(self, name: str) -> None:
        if name in self._changing:
            raise ConcurrentTransactionsError(
                f"a change of {name!r} is on its way to disk; ask again in a moment"
            )

    # -- changes -------------------------------------------------------------------------------

    def _put(self, transaction: Transaction) -> None:
        name = transaction.transactional_id
        before = self._transactions.get(name)
        if before is None:
            self._ids_bytes += _id_bytes(name)
        elif before.producer_id != transaction.producer_id:
            self._name_of.pop(before.producer_id, None)
        self._transactions[name] = transaction
        self._name_of[transaction.producer_id] = name

    def _append(self, transaction: Transaction) -> None:
        entry = (encode_key(transaction.transactional_id), encode_value(transaction.value))
        self._table.append([entry], self._clock.now_ms())
        self._put(transaction)

    def _keep(
        self,
        transaction: Transaction,
        then: Callable[[], object],
        refuse: Callable[[StrandlogError], object],
    ) -> None:
        """Make a change; `then` when it is on disk. An error before that has changed nothing, one
        after that is told by `refuse`, and the change goes on."""
        name = transaction.transactional_id
        before = self._transactions.get(name)
        known = before.partitions if before and before.state is ONGOING else frozenset()

        def write() -> PartitionLog:
            self._append(transaction)
            return self._table.log_for(name)

        def wait_for(log: PartitionLog) -> None:
            write_again = partial(self._pursue, write, wait_for)
            self._when_durable(log, on_disk, refuse, write_again)

        def on_disk() -> None:
            del self._changing[name]
            then()

        log = write()
        self._changing[name] = transaction.partitions - known
        self._set_timeout(transaction)
        wait_for(log)

    def _when_durable(
        self,
        log: PartitionLog,
        then: Callable[[], object],
        refuse: Callable[[StrandlogError], object],
        write_again: Callable[[], None],
    ) -> None:
        """Call `then` when what was just written is on disk, however long that takes. A partition
        that was deleted, or opened anew, meanwhile will not say so: `write_again`."""
        end_offset = log.log_end_offset

        def wait() -> None:
            self._effects.when_durable(log, end_offset, told)

        def told(error: StorageError | None) -> None:
            if error is None:
                then()
            else:
                refuse(error)
                self._later(write_again if log.is_closed else wait)

        wait()

    def _pursue(self, write: Callable[[], R], then: Callable[[R], object]) -> None:
        """Write something, now or when the disk allows it; then go on with it."""
        try:
            written = write()
        except StrandlogError:
            self._later(partial(self._pursue, write, then))
            return
        then(written)

    def _later(self, action: Callable[[], None]) -> None:
        self._timers.schedule(self._clock.monotonic_ms() + RETRY_MS, action)

    # -- ending --------------------------------------------------------------------------------

    def _end(
        self,
        decided: Transaction,
        then: Callable[[], object],
        refuse: Callable[[StrandlogError], object],
    ) -> None:
        self._keep(decided, lambda: self._write_markers(decided, then), refuse)

    def _write_markers(self, decided: Transaction, then: Callable[[], object]) -> None:
        """Write every marker of a decision that is on disk, then call it complete."""
        self._changing[decided.transactional_id] = frozenset()
        kind = ControlType.COMMIT if decided.is_commit else ControlType.ABORT
        markers = [_Marker(tp, decided.identity) for tp in sorted(decided.partitions)]
        self._mark(markers, kind, partial(self._complete, decided, then))

    def _mark(self, markers: list[_Marker], kind: ControlType, then: Callable[[], object]) -> None:
        """Write markers, however often the disk refuses; `then` when all of them are on disk."""
        left = set(markers)

        def pursue(marker: _Marker) -> None:
            write = partial(self._effects.write_marker, marker.tp, kind, marker.producer)
            self._pursue(write, partial(wait_for, marker))

        def wait_for(marker: _Marker, log: PartitionLog | None) -> None:
            if log is None:  # the partition is gone
                on_disk(marker)
            else:
                write_again = partial(pursue, marker)
                self._when_durable(log, partial(on_disk, marker), lambda _: None, write_again)

        def on_disk(marker: _Marker) -> None:
            left.discard(marker)
            if not left:
                then()

        if not markers:
            then()
        for marker in markers:
            pursue(marker)

    def _complete(self, decided: Transaction, then: Callable[[], object]) -> None:
        def go_on(_: None) -> None:
            # On disk or not: a start that finds the decision only writes the markers again.
            del self._changing[decided.transactional_id]
            then()

        self._pursue(lambda: self._append(completed(decided, self._clock.now_ms())), go_on)

    # -- time ----------------------------------------------------------------------------------

    def _set_timeout(self, transaction: Transaction) -> None:
        """An open transaction has a timer, any other has none."""
        name = transaction.transactional_id
        timer = self._timeouts.get(name)
        if transaction.state is not ONGOING:
            if timer is not None:
                timer.cancel()
                del self._timeouts[name]
        elif timer is None:
            left_ms = transaction.started_ms + transaction.timeout_ms - self._clock.now_ms()
            left_ms = min(max(0, left_ms), transaction.timeout_ms)
            deadline_ms = self._clock.monotonic_ms() + left_ms
            self._timeouts[name] = self._timers.schedule(deadline_ms, lambda: self._expire(name))

    def _expire(self, name: str) -> None:
        """Its time is over: abort it, and fence its producer off."""
        transaction = self._transactions.get(name)
        self._timeouts.pop(name, None)
        if transaction is None or transaction.state is not ONGOING:
            return
        try:
            self._check_idle(name)
            self._end(fenced(transaction, self._clock.now_ms()), lambda: None, lambda _: None)
        except StrandlogError:
            deadline_ms = self._clock.monotonic_ms() + RETRY_MS
            self._timeouts[name] = self._timers.schedule(deadline_ms, lambda: self._expire(name))

    def _look_for_expired(self) -> None:
        """Forget producers that were idle for transactional.id.expiration.ms."""
        self._timers.schedule(self._clock.monotonic_ms() + EXPIRY_LOOK_MS, self._look_for_expired)
        oldest_ms = self._clock.now_ms() - self._settings.transactional_id_expiration_ms
        for transaction in self.all():
            name = transaction.transactional_id
            is_idle = transaction.state is not ONGOING and not transaction.is_prepared
            if is_idle and name not in self._changing and transaction.updated_ms <= oldest_ms:
                try:
                    self._table.append([(encode_key(name), None)], self._clock.now_ms())
                except StorageError:
                    return  # at the next look
                del self._transactions[name]
                self._ids_bytes -= _id_bytes(name)
                self._name_of.pop(transaction.producer_id, None)


def _id_bytes(name: str) -> int:
    """About how much memory a transactional id takes."""
    return 500 + len(name)
