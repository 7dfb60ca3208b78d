"""Runs transactions: stores the decision (commit or abort), writes the markers, then stores the
completion.

    request ─▶ transaction.py decides ─▶ table ─▶ on disk ─┬─ Empty, Ongoing ─▶ reply
                                                           └─ Prepare* ─▶ markers ─▶ on disk
                                                              ─▶ Complete* ─▶ reply

No reply is sent and no marker is written before the decision is on disk; a transaction is complete
only after all its markers are on disk. A producer that has received its reply can therefore start
the next transaction immediately. After a crash at any point, `load` completes the transactions
whose decision is on disk and leaves the others open.

Each change is a procedure (see deferred.py) that waits for the disk. While one is in progress for a
producer, requests for another change fail with ConcurrentTransactionsError, which clients retry. If
a change cannot be written, the request fails and nothing changes. After the write, a procedure
retries once a second until it succeeds: a decision cannot be undone, because its record may already
be on disk. A failed fsync of the change fails the reply; a marker that cannot be written delays it.

A partition may have an open transaction that is missing from the table, because the table's record
was lost with the page cache. That transaction would block the partition's read_committed consumers
forever, so `load` aborts it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from strandlog.broker.compacted_table import CompactedTable, latest_values
from strandlog.broker.deferred import Deferred, Procedure, gather, run
from strandlog.broker.flushing.durability import Durability
from strandlog.broker.timers import Timer, Timers
from strandlog.broker.transactions.markers import Marker, MarkerWriter
from strandlog.broker.transactions.producer_ids import ProducerIds
from strandlog.broker.transactions.transaction import (
    EMPTY,
    ONGOING,
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
from strandlog.clock import Clock
from strandlog.config.tables.broker import BrokerSettings
from strandlog.errors import (
    ConcurrentTransactionsError,
    DataError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTransactionStateError,
    InvalidTransactionTimeoutError,
    StorageError,
    StrandlogError,
    TooManyOpenTransactionsError,
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
EXPIRY_CHECK_MS = 3_600_000
IDS_EXPIRED_AT_ONCE = 1_000  # maximum per step; other requests run between the steps

R = TypeVar("R")


class _WrittenMarker(NamedTuple):
    """A marker that may not be on disk yet."""

    marker: Marker
    log: PartitionLog
    end_offset: int


class TransactionCoordinator:
    """Manages all transactional producers of one broker."""

    def __init__(
        self,
        settings: BrokerSettings,
        clock: Clock,
        timers: Timers,
        table: CompactedTable,
        producer_ids: ProducerIds,
        markers: MarkerWriter,
        durability: Durability,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._timers = timers
        self._table = table
        self._producer_ids = producer_ids
        self._markers = markers
        self._durability = durability
        self._transactions: dict[str, Transaction] = {}
        self._id_by_producer: dict[int, str] = {}
        self._ids_bytes = 0
        # The number of ongoing transactions, and the number of partitions in them.
        self._open_count = self._open_partitions = 0
        # Transactional ids with a change in progress, and the partitions that it adds.
        self._in_flight: dict[str, frozenset[TopicPartition]] = {}
        self._timeouts: dict[str, Timer] = {}
        self.skipped_records = 0  # records of the table that `load` could not use

    # -- startup -------------------------------------------------------------------------------

    def load(self) -> int:
        """Load the table and complete the transactions whose decision is stored.

        Abort open transactions that are missing from the table, and return how many there were,
        counted per partition.
        """
        for key, value in latest_values(self._table).items():
            try:
                name = decode_key(key)
                if name is not None:
                    self._put(restored(name, decode_value(value)))
                    continue
            except DataError:
                pass  # its producer must initialise again
            self.skipped_records += 1
        for transaction in list(self._transactions.values()):
            if transaction.is_prepared:
                run(self._finish(transaction))
            else:
                self._set_timeout(transaction)
        self._timers.schedule(self._clock.monotonic_ms() + EXPIRY_CHECK_MS, self._expire_ids)
        return self._abort_unknown()

    def _abort_unknown(self) -> int:
        unknown: dict[int, list[Marker]] = {}
        for marker in list(self._markers.open_transactions()):
            producer_id = marker.producer.producer_id
            owner = self._of_producer(producer_id)
            if owner is None or marker.tp not in owner.partitions:
                unknown.setdefault(producer_id, []).append(marker)
        for producer_id, markers in unknown.items():
            run(self._abort_partitions(self._id_by_producer.get(producer_id), markers))
        return sum(map(len, unknown.values()))

    def _abort_partitions(self, name: str | None, markers: list[Marker]) -> Procedure[None]:
        if name is None or name in self._in_flight:
            yield from self._write_markers(markers, ControlType.ABORT)
        else:
            # Block the producer, so that the marker cannot end a transaction that it starts now.
            self._in_flight[name] = frozenset()
            yield from self._write_markers(markers, ControlType.ABORT)
            del self._in_flight[name]

    # -- requests ------------------------------------------------------------------------------

    def init_producer(
        self, name: str, timeout_ms: int, producer: ProducerIdentity
    ) -> Deferred[ProducerIdentity]:
        """Return an identity that replaces all earlier ones of this transactional id; first abort
        its open transaction, if there is one. A producer with the previous identity gets the
        current one, if it retries after a lost reply or if its transaction timed out."""
        if not 0 < timeout_ms <= self._settings.transaction_max_timeout_ms:
            raise InvalidTransactionTimeoutError(
                f"transaction.timeout.ms must be between 1 and "
                f"{self._settings.transaction_max_timeout_ms} (transaction.max.timeout.ms), "
                f"got {timeout_ms}"
            )
        if not name:
            raise DataError("a transactional id must not be empty")
        reply: Deferred[ProducerIdentity] = Deferred()
        return run(self._init(name, timeout_ms, producer, reply), reply)

    def _init(
        self, name: str, timeout_ms: int, producer: ProducerIdentity, reply: Deferred[Any]
    ) -> Procedure[ProducerIdentity]:
        self._check_idle(name)
        now_ms = self._clock.now_ms()
        transaction = self._transactions.get(name)
        if transaction is None:  # new, or expired: a producer with an old id gets a new one
            self._check_room(name)
            producer_id = self._producer_ids.next()
            changed = Transaction(name, producer_id, 0, timeout_ms, EMPTY, now_ms)
        elif not is_current(transaction, producer):
            return transaction.identity  # the last reply was lost, or the transaction timed out
        elif transaction.state is ONGOING:
            yield from self._end(fenced(transaction, now_ms), reply)
            return (yield from self._init(name, timeout_ms, ProducerIdentity(), reply))
        else:
            new_id = self._producer_ids.next() if is_out_of_epochs(transaction) else None
            changed = initialised(transaction, producer, timeout_ms, new_id, now_ms)
        yield from self._persist(changed, reply)
        return changed.identity

    @property
    def open_count(self) -> int:
        """The number of open transactions."""
        return self._open_count

    @property
    def id_count(self) -> int:
        """The number of transactional ids."""
        return len(self._transactions)

    def _check_room(self, name: str) -> None:
        most = self._settings.transactional_ids_max_count
        if len(self._transactions) >= most:
            raise TooManyTransactionalIdsError(
                f"there are {len(self._transactions)} transactional ids; use fewer or raise "
                f"transactional.ids.max.count (now {most})"
            )
        limit = self._settings.transactional_ids_max_bytes
        if self._ids_bytes + _id_bytes(name) > limit:
            raise TooManyTransactionalIdsError(
                f"{len(self._transactions)} transactional ids take {self._ids_bytes} bytes; "
                f"use fewer or raise transactional.ids.max.bytes (now {limit})"
            )

    def add_partitions(
        self, name: str, producer: ProducerIdentity, partitions: Iterable[TopicPartition]
    ) -> Deferred[None]:
        """Add partitions to the producer's transaction, starting it if it is not open."""
        transaction = self._owned(name, producer)
        wanted = frozenset(partitions)
        if transaction.state is ONGOING and wanted <= transaction.partitions:
            return Deferred.done(None)
        self._check_open(transaction, wanted)
        reply: Deferred[None] = Deferred()
        changed = with_partitions(transaction, wanted, self._clock.now_ms())
        return run(self._persist(changed, reply), reply)

    def _check_open(self, transaction: Transaction, wanted: frozenset[TopicPartition]) -> None:
        """Raise if there would be too many open transactions, or too many partitions in them."""
        is_open = transaction.state is ONGOING
        limit = self._settings.open_transactions_max_count
        if not is_open and self._open_count >= limit:
            raise TooManyOpenTransactionsError(
                f"{self._open_count} transactions are open; end some or raise "
                f"open.transactions.max.count (now {limit})"
            )
        more = len(wanted - transaction.partitions) if is_open else len(wanted)
        limit = self._settings.open_transactions_max_partitions
        if self._open_partitions + more > limit:
            raise TooManyOpenTransactionsError(
                f"open transactions have {self._open_partitions} partitions; end some or raise "
                f"open.transactions.max.partitions (now {limit})"
            )

    def end(self, name: str, producer: ProducerIdentity, *, commit: bool) -> Deferred[None]:
        """Commit or abort a transaction; the result completes when all markers are on disk."""
        transaction = self._owned(name, producer)
        if is_ended(transaction, commit=commit):
            return Deferred.done(None)
        reply: Deferred[None] = Deferred()
        decided = prepared(transaction, commit=commit, now_ms=self._clock.now_ms())
        return run(self._end(decided, reply), reply)

    def check_append(self, producer: ProducerIdentity, tp: TopicPartition) -> None:
        """Raise unless the producer has an open transaction that includes this partition.

        Transactional records outside a transaction could never be committed or aborted.
        """
        transaction = self._of_producer(producer.producer_id)
        if transaction is not None and transaction.epoch != producer.epoch:
            raise InvalidProducerEpochError(
                f"producer {producer.producer_id} has epoch {transaction.epoch} now, "
                f"not {producer.epoch}"
            )
        if (
            transaction is None
            or transaction.state is not ONGOING
            or tp not in transaction.partitions
            or tp in self._in_flight.get(transaction.transactional_id, ())  # not on disk yet
        ):
            raise InvalidTransactionStateError(
                f"{tp} is not in an open transaction of producer {producer.producer_id}; "
                f"add it to the transaction first"
            )

    def has_id(self, producer_id: int) -> bool:
        """Return whether a producer belongs to a transactional id."""
        return producer_id in self._id_by_producer

    def check_id(self, name: str, producer_id: int) -> None:
        """Raise if a producer belongs to another transactional id. A client that may use one id
        could otherwise add records to the open transaction of another."""
        if self._id_by_producer.get(producer_id, name) != name:
            raise InvalidProducerIdMappingError(
                f"producer {producer_id} does not belong to the transactional id {name!r}"
            )

    # -- queries -------------------------------------------------------------------------------

    def describe(self, name: str) -> Transaction:
        transaction = self._transactions.get(name)
        if transaction is None:
            raise TransactionalIdNotFoundError(f"there is no transactional id {name!r}")
        return transaction

    def all(self) -> list[Transaction]:
        return [self._transactions[name] for name in sorted(self._transactions)]

    def _of_producer(self, producer_id: int) -> Transaction | None:
        return self._transactions.get(self._id_by_producer.get(producer_id, ""))

    def _owned(self, name: str, producer: ProducerIdentity) -> Transaction:
        transaction = check_owner(self._transactions.get(name), name, producer)
        self._check_idle(name)
        return transaction

    def _check_idle(self, name: str) -> None:
        if name in self._in_flight:
            raise ConcurrentTransactionsError(f"a change to {name!r} is not on disk yet; try again")

    # -- changes -------------------------------------------------------------------------------

    def _put(self, transaction: Transaction) -> None:
        name = transaction.transactional_id
        before = self._transactions.get(name)
        if before is None:
            self._ids_bytes += _id_bytes(name)
        elif before.producer_id != transaction.producer_id:
            self._id_by_producer.pop(before.producer_id, None)
        for each, sign in ((before, -1), (transaction, 1)):
            if each is not None and each.state is ONGOING:
                self._open_count += sign
                self._open_partitions += sign * len(each.partitions)
        self._transactions[name] = transaction
        self._id_by_producer[transaction.producer_id] = name

    def _append(self, transaction: Transaction) -> PartitionLog:
        """Write a change to the table, then apply it; return the log that contains it."""
        name = transaction.transactional_id
        record = (encode_key(name), encode_value(transaction.value))
        self._table.append([record], self._clock.now_ms())
        self._put(transaction)
        return self._table.log_for(name)

    # -- procedures ----------------------------------------------------------------------------

    def _end(self, decided: Transaction, reply: Deferred[Any]) -> Procedure[None]:
        """Store the decision, write the markers, then store the completion.

        The decision is on disk before the first marker is written, and all markers are on disk
        before the completion is written. A restart resumes after the last step on disk.
        """
        yield from self._persist(decided, reply)  # from here on, the decision is final
        yield from self._finish(decided)

    def _finish(self, decided: Transaction) -> Procedure[None]:
        """Write the markers for a decision that is on disk, and then its completion."""
        self._in_flight[decided.transactional_id] = frozenset()
        kind = ControlType.COMMIT if decided.is_commit else ControlType.ABORT
        markers = [Marker(tp, decided.identity) for tp in sorted(decided.partitions)]
        yield from self._write_markers(markers, kind)
        # No need to wait for the disk: if this is lost, a restart writes the markers again.
        yield from self._retry(lambda: self._append(completed(decided, self._clock.now_ms())))
        del self._in_flight[decided.transactional_id]

    def _persist(self, transaction: Transaction, reply: Deferred[Any]) -> Procedure[None]:
        """Write a change and wait until it is on disk.

        If the first write fails, raise the error and change nothing. Later errors fail the reply,
        and the procedure retries until the change is on disk.
        """
        name = transaction.transactional_id
        before = self._transactions.get(name)
        known = before.partitions if before and before.state is ONGOING else frozenset()
        log = self._append(transaction)
        self._in_flight[name] = transaction.partitions - known
        self._set_timeout(transaction)
        end_offset = log.log_end_offset
        while True:
            try:
                yield self._durable(log, end_offset)
                break
            except StorageError as error:
                reply.fail(error)
            yield self._sleep()
            if log.is_closed:  # deleted or reopened: the record may be lost
                log = yield from self._retry(lambda: self._append(transaction))
                end_offset = log.log_end_offset
        del self._in_flight[name]

    def _write_markers(self, markers: list[Marker], kind: ControlType) -> Procedure[None]:
        """Write all markers, then wait until all of them are on disk.

        Markers that fail are retried; partitions that were deleted are skipped.
        """
        unwritten, written = markers, list[_WrittenMarker]()
        while True:
            failed = []
            for marker in unwritten:
                try:
                    log = self._markers.write(marker, kind)
                except StrandlogError:
                    failed.append(marker)
                    continue
                if log is not None:
                    written.append(_WrittenMarker(marker, log, log.log_end_offset))
            waits = [self._durable(each.log, each.end_offset) for each in written]
            yield gather(waits)
            written = [each for each, wait in zip(written, waits, strict=True) if wait.error]
            if not failed and not written:
                return
            yield self._sleep()
            # A partition that was reopened may have lost its marker.
            unwritten = failed + [each.marker for each in written if each.log.is_closed]
            written = [each for each in written if not each.log.is_closed]

    def _retry(self, write: Callable[[], R]) -> Procedure[R]:
        """Call `write` every `RETRY_MS` until it succeeds."""
        while True:
            try:
                return write()
            except StrandlogError:
                yield self._sleep()

    def _durable(self, log: PartitionLog, end_offset: int) -> Deferred[None]:
        """Return a result that completes when everything below `end_offset` is on disk."""
        result: Deferred[None] = Deferred()

        def on_durable(error: StorageError | None) -> None:
            if error is None:
                result.complete(None)
            else:
                result.fail(error)

        self._durability.when_durable(log, end_offset, on_durable)
        return result

    def _sleep(self) -> Deferred[None]:
        """Return a result that completes after `RETRY_MS`."""
        result: Deferred[None] = Deferred()
        deadline_ms = self._clock.monotonic_ms() + RETRY_MS
        self._timers.schedule(deadline_ms, partial(_wake, result))
        return result

    # -- timeouts and expiry -------------------------------------------------------------------

    def _set_timeout(self, transaction: Transaction) -> None:
        """Start the timeout of an open transaction; cancel it in any other state."""
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
        """Abort a transaction that timed out, and fence its producer."""
        transaction = self._transactions.get(name)
        self._timeouts.pop(name, None)
        if transaction is None or transaction.state is not ONGOING:
            return
        try:
            self._check_idle(name)
            reply: Deferred[None] = Deferred()
            run(self._end(fenced(transaction, self._clock.now_ms()), reply), reply)
        except StrandlogError:
            deadline_ms = self._clock.monotonic_ms() + RETRY_MS
            self._timeouts[name] = self._timers.schedule(deadline_ms, lambda: self._expire(name))

    def _expire_ids(self) -> None:
        """Delete transactional ids that have been idle for transactional.id.expiration.ms; if there
        are many, continue after other pending work."""
        expired = list(islice(self._expired_ids(), IDS_EXPIRED_AT_ONCE))
        delay_ms = EXPIRY_CHECK_MS if len(expired) < IDS_EXPIRED_AT_ONCE else 0
        try:
            if expired:
                tombstones = [(encode_key(name), None) for name in expired]
                self._table.append(tombstones, self._clock.now_ms())
        except StrandlogError:
            expired, delay_ms = [], EXPIRY_CHECK_MS  # retried at the next check
        for name in expired:
            transaction = self._transactions.pop(name)
            self._ids_bytes -= _id_bytes(name)
            self._id_by_producer.pop(transaction.producer_id, None)
        self._timers.schedule(self._clock.monotonic_ms() + delay_ms, self._expire_ids)

    def _expired_ids(self) -> Iterator[str]:
        oldest_ms = self._clock.now_ms() - self._settings.transactional_id_expiration_ms
        for name, transaction in self._transactions.items():
            is_idle = transaction.state is not ONGOING and not transaction.is_prepared
            if is_idle and name not in self._in_flight and transaction.updated_ms <= oldest_ms:
                yield name


def _wake(sleeping: Deferred[None]) -> None:
    sleeping.complete(None)


def _id_bytes(name: str) -> int:
    """Return the approximate memory used by a transactional id."""
    return 500 + len(name)
