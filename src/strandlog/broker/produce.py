"""Appends records after checking free space, transactions and, for some topics, every record; then
waits as `acks` requires.

    acks=0, 1     records are in the page cache when `produce` returns
    acks=all      one `DelayedProduce`, complete when every partition of the request is on disk or
                  has an error; with log.durability=page_cache, the same as acks=1

`produce` handles each partition independently, as Kafka does: if one is rejected, the result
contains its error, and the others are still appended. `produce_all` validates everything first, and
unless an append fails partway, it appends either to all partitions or to none.

For compacted topics, and topics that limit the age of records, have `record.validation=records` or
validate schema ids, every record of a batch must be decoded before the append. The append itself
decodes a few small batches; for more, `record_checks` returns work whose steps decode one batch
each and may run in another thread. Its outcome is passed to the subsequent append.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple
from uuid import UUID

from strandlog.broker.deferred import Deferred, as_result
from strandlog.broker.flushing.durability import BULK_PARTITIONS, Durability
from strandlog.broker.metrics import Metrics
from strandlog.broker.runtime import Runtime
from strandlog.broker.schemas.record_ids import SchemaIds
from strandlog.broker.topics.catalog import TopicCatalog
from strandlog.broker.topics.topic import forbid_internal, protected_topics
from strandlog.broker.transactions.coordinator import TransactionCoordinator
from strandlog.clock import Clock
from strandlog.config.tables.broker import BrokerSettings
from strandlog.errors import (
    DataError,
    DiskFullError,
    InvalidAcksError,
    InvalidRecordError,
    InvalidTransactionStateError,
    PartialAppendError,
    StorageError,
    StrandlogError,
)
from strandlog.model import Acks, Buffer, PartitionRecords, ProducerIdentity, TopicRef
from strandlog.record.batch_header import (
    ATTRIBUTES_POSITION,
    BATCH_LENGTH_POSITION,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    PRODUCER_ID_POSITION,
    TRANSACTIONAL_BIT,
    read_header,
)
from strandlog.storage.folder.log_dir import LogDir
from strandlog.storage.partition.append_checks import check_batch, check_crc, split_batches
from strandlog.storage.partition.log import AppendResult, PartitionLog
from strandlog.storage.partition.record_checks import QUICK_RECORDS, check_records, is_quick
from strandlog.storage.work import Work, yield_control

__all__ = ["AppendResult", "Checked", "ProduceResult", "RecordAppender"]

FREE_SPACE_CHECK_BYTES = 8 * 1024 * 1024
REPORT_INTERVAL_MS = 60_000  # minimum time between two reports of failed writes
# The append itself checks up to this many batches and bytes per request; their checksums take a
# millisecond or two.
QUICK_BATCHES = 8
QUICK_CHECKED_BYTES = 16 * 1024 * 1024
ATTRIBUTES_LOW_BYTE = ATTRIBUTES_POSITION + 1
ALL_ACKS = frozenset(Acks)

ProduceResult = AppendResult | StrandlogError
# The results of the record checks, by the partition's index in the request.
Checked = Mapping[int, StrandlogError | None]
NOTHING_CHECKED: Checked = {}


def is_transactional(records: Buffer | None) -> bool:
    """Return whether the batch of a partition belongs to a transaction."""
    return (
        records is not None
        and len(records) >= HEADER_SIZE
        and bool(records[ATTRIBUTES_LOW_BYTE] & TRANSACTIONAL_BIT)
    )


@contextmanager
def _damage_first(records: Buffer) -> Iterator[ProducerIdentity]:
    """Provide a batch's producer to the checks in the `with` block. The producer id of a damaged
    batch is meaningless, so if a check fails and the batch is damaged, raise the error for the
    damage instead; the producer then retries."""
    header = read_header(records)
    try:
        yield ProducerIdentity(header.producer_id, header.producer_epoch)
    except StrandlogError:
        for each, batch in split_batches(records):
            check_crc(each, batch)
        raise


class _ToCheck(NamedTuple):
    """The batches of one requested partition whose records must be decoded."""

    number: int
    log: PartitionLog
    batches: list[memoryview]


class DelayedProduce(Deferred[list[ProduceResult]]):
    """The result of a request with acks=all: complete when each of its partitions is on disk or has
    an error."""

    __slots__ = ("_results", "_waiting")

    def __init__(self) -> None:
        super().__init__()
        self._results: list[ProduceResult] = []
        self._waiting = 1  # prevents completion before `appended` is called

    def flushed(self, number: int, error: StorageError | None) -> None:
        """Record that one partition is on disk, or that its flush failed."""
        self._waiting -= 1
        if error is not None:
            self._results[number] = error
        if not self._waiting:
            self.complete(self._results)

    def wait(self, result: ProduceResult) -> int:
        """Add a partition to wait for; return its index."""
        self._results.append(result)
        self._waiting += 1
        return len(self._results) - 1

    def skip(self, error: StrandlogError) -> None:
        """Add a partition that was rejected."""
        self._results.append(error)

    def appended(self) -> None:
        """Allow completion, now that all partitions have been added."""
        self._waiting -= 1
        if not self._waiting:
            self.complete(self._results)


class RecordAppender:
    """Appends records to the partitions of one broker."""

    def __init__(
        self,
        log_dir: LogDir,
        catalog: TopicCatalog,
        transactions: TransactionCoordinator,
        durability: Durability,
        settings: BrokerSettings,
        clock: Clock,
        metrics: Metrics,
        runtime: Runtime,
        schemas: SchemaIds,
    ) -> None:
        self._log_dir = log_dir
        self._catalog = catalog
        self._transactions = transactions
        self._durability = durability
        self._settings = settings
        self._protected = protected_topics(has_registry=settings.schema_registry_enable)
        self._clock = clock
        self._metrics = metrics
        self._runtime = runtime
        self._schemas = schemas
        self._bytes_until_check = 0
        self._quiet_until_ms = 0
        # The latest disk error of an append; cleared once a write succeeds.
        self.write_failure: StorageError | None = None

    # -- independent partitions ------------------------------------------------------------------

    def produce(
        self, partitions: Sequence[PartitionRecords], acks: int, checked: Checked
    ) -> list[ProduceResult] | Deferred[list[ProduceResult]]:
        """Append to each partition independently."""
        if acks == Acks.ALL and self._durability.waits_for_fsync:
            delayed = DelayedProduce()
            for number in range(len(partitions)):
                self._produce_durably(delayed, partitions, number, checked)
            delayed.appended()
            return delayed
        return [
            self._append_or_reject(part, acks, number, checked)
            for number, part in enumerate(partitions)
        ]

    def produce_work(
        self, partitions: Sequence[PartitionRecords], acks: int, checked: Checked
    ) -> Work[list[ProduceResult] | Deferred[list[ProduceResult]]]:
        """Do the same as `produce`, yielding after each partition."""
        if acks == Acks.ALL and self._durability.waits_for_fsync:
            delayed = DelayedProduce()
            for number in range(len(partitions)):
                self._produce_durably(delayed, partitions, number, checked)
                yield yield_control
            delayed.appended()
            return delayed
        results = []
        for number, part in enumerate(partitions):
            results.append(self._append_or_reject(part, acks, number, checked))
            yield yield_control
        return results

    def _produce_durably(
        self,
        delayed: DelayedProduce,
        partitions: Sequence[PartitionRecords],
        number: int,
        checked: Checked,
    ) -> None:
        part = partitions[number]
        try:
            if checked and (error := checked.get(number)) is not None:
                raise error  # before the lookup: a denied client must not learn what exists
            log = self._catalog.resolve(part.topic, part.partition)
            result = self._append_part(log, part, number, checked)
        except StrandlogError as failure:
            delayed.skip(as_result(failure))
            return
        on_flushed = partial(delayed.flushed, delayed.wait(result))
        is_bulk = len(partitions) > BULK_PARTITIONS
        self._durability.when_durable(log, log.log_end_offset, on_flushed, is_bulk=is_bulk)

    def _append_or_reject(
        self, part: PartitionRecords, acks: int, number: int, checked: Checked
    ) -> ProduceResult:
        try:
            if acks not in ALL_ACKS:
                raise InvalidAcksError(f"acks must be 0, 1 or -1, got {acks}")
            if checked and (error := checked.get(number)) is not None:
                raise error
            log = self._catalog.resolve(part.topic, part.partition)
            return self._append_part(log, part, number, checked)
        except StrandlogError as failure:
            return as_result(failure)

    def _append_part(
        self, log: PartitionLog, part: PartitionRecords, number: int, checked: Checked
    ) -> AppendResult:
        records = part.records
        if records is None or not len(records):
            raise InvalidRecordError("the request has no records")
        if _has_several_batches(records):
            raise InvalidRecordError("a request must have exactly one batch per partition")
        if is_transactional(records):
            self._check_transaction(log, records)
        elif self._transactions.id_count:
            self._check_no_transaction(records)
        return self.append(log, records, records_checked=number in checked)

    def _check_transaction(self, log: PartitionLog, records: Buffer) -> None:
        """Raise unless the producer has an open transaction that includes the partition."""
        with _damage_first(records) as producer:
            self._transactions.check_append(producer, log.tp)

    def _check_no_transaction(self, records: Buffer) -> None:
        """Raise if a non-transactional batch has the producer id of a transactional producer. The
        batch would use up one of that producer's sequence numbers, and the producer's own batch
        with that number would be dropped as a duplicate."""
        if len(records) < HEADER_SIZE or records[MAGIC_POSITION] != MAGIC:
            return  # not a batch; the append reports that
        producer_id = int.from_bytes(
            records[PRODUCER_ID_POSITION : PRODUCER_ID_POSITION + 8], signed=True
        )
        if self._transactions.has_id(producer_id):
            with _damage_first(records) as producer:
                raise InvalidTransactionStateError(
                    f"producer {producer.producer_id} has a transactional id and can only write in "
                    f"transactions"
                )

    def foreign_producer(self, name: str, records: Buffer) -> StrandlogError | None:
        """Return an error if the producer of a transactional batch belongs to a different
        transactional id, else None."""
        try:
            with _damage_first(records) as producer:
                self._transactions.check_id(name, producer.producer_id)
        except StrandlogError as error:
            return error
        return None

    # -- all or nothing --------------------------------------------------------------------------

    def produce_all(
        self, partitions: Sequence[PartitionRecords], acks: int, checked: Checked
    ) -> list[ProduceResult] | Deferred[list[ProduceResult]]:
        """Append to all partitions, or raise and append nothing (but see `append_all`)."""
        parts: list[tuple[PartitionLog, Buffer]] = []
        for number, part in enumerate(partitions):
            error = checked.get(number)
            if error is not None:
                raise error
            log = self._catalog.resolve(part.topic, part.partition)
            parts.append((log, b"" if part.records is None else part.records))
        results = self.append_all(parts, records_checked=bool(checked))
        if acks != Acks.ALL or not self._durability.waits_for_fsync:
            return list(results)
        delayed = DelayedProduce()
        is_bulk = len(parts) > BULK_PARTITIONS
        for (log, _), result in zip(parts, results, strict=True):
            on_flushed = partial(delayed.flushed, delayed.wait(result))
            self._durability.when_durable(log, log.log_end_offset, on_flushed, is_bulk=is_bulk)
        delayed.appended()
        return delayed

    def append_all(
        self, parts: Sequence[tuple[PartitionLog, Buffer]], *, records_checked: bool = False
    ) -> list[AppendResult]:
        """Append to several partitions; if one is rejected, write to none of them.

        If an append fails after some of them have been written, for example because of the disk,
        raise `PartialAppendError`.
        """
        for log, data in parts:
            if log.tp.topic in self._protected:
                forbid_internal(log.tp.topic, self._protected)
            self._bytes_until_check -= len(data)
            if self._bytes_until_check < 0:
                self._check_free_space()
            if log.settings.checks_records and not records_checked:
                self.check_records(log, data)
            if len(parts) > 1:  # a single partition is validated by its append
                if log.failure is not None:
                    raise StorageError(str(log.failure))
                self._check_batches(log, data)
        return self._append_each(parts)

    def _check_batches(self, log: PartitionLog, data: Buffer) -> None:
        """Raise if the partition would reject the batches."""
        now_ms, most = self._clock.now_ms(), self._settings.batch_max_records
        batches = split_batches(data)
        for header, view in batches:
            check_batch(header, view, log.settings, now_ms, most, is_control=False)
            log.check_producer(header, len(batches))

    def _append_each(self, parts: Sequence[tuple[PartitionLog, Buffer]]) -> list[AppendResult]:
        results: list[AppendResult] = []
        try:
            for log, data in parts:
                results.append(self._append(log, data))
        except Exception as error:  # whatever it is, the caller must learn what was appended
            if not results:
                raise
            written = ", ".join(str(log.tp) for log, _ in parts[: len(results)])
            partial_append = PartialAppendError(f"{error}; already appended: {written}")
            partial_append.records_kept = sum(
                result.last_offset - result.base_offset + 1 for result in results
            )
            raise partial_append from error
        return results

    # -- appending -------------------------------------------------------------------------------

    def append(
        self, log: PartitionLog, data: Buffer, *, records_checked: bool = False
    ) -> AppendResult:
        """Append complete batches from a client; they are in the page cache when this returns."""
        if log.tp.topic in self._protected:  # checked here to save a call per append
            forbid_internal(log.tp.topic, self._protected)
        self._bytes_until_check -= len(data)
        if self._bytes_until_check < 0:
            self._check_free_space()
        if log.settings.checks_records and not records_checked:
            self.check_records(log, data)
        return self._append(log, data)

    def _append(self, log: PartitionLog, data: Buffer) -> AppendResult:
        try:  # like `TopicCatalog.guard`, but without creating a generator per append
            result = log.append(data)
        except StorageError as error:
            self._write_failed(error)
            raise
        except StrandlogError:
            raise
        except BaseException:
            self._catalog.reopen_before_use(log)
            raise
        if self.write_failure is not None:
            self.write_failure = None
        if not result.is_duplicate:
            metrics = self._metrics
            metrics.produced_bytes += len(data)
            metrics.produced_records += result.last_offset - result.base_offset + 1
        self._durability.appended(log)
        return result

    def _write_failed(self, error: StorageError) -> None:
        """Remember a write failure, and report at most one per minute, because Kafka clients only
        show a timeout."""
        self.write_failure = error
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._quiet_until_ms:
            self._quiet_until_ms = now_ms + REPORT_INTERVAL_MS
            self._runtime.report(f"records are rejected: {error}")

    def _check_free_space(self) -> None:
        """Raise if free space is low, to leave room for deletes and a clean shutdown."""
        limit = self._settings.log_min_free_bytes
        try:
            free = self._log_dir.files.free_bytes(self._log_dir.path)
            if free < limit:
                raise DiskFullError(
                    f"{self._log_dir.path} has {free} bytes left; appends are rejected below "
                    f"{limit} (log.min.free.bytes); free some space. Reads and deletes still work"
                )
        except StorageError as error:
            self._write_failed(error)
            raise
        self._bytes_until_check = min(FREE_SPACE_CHECK_BYTES, free - limit)

    # -- record checks ---------------------------------------------------------------------------

    def check_records(self, log: PartitionLog, data: Buffer) -> None:
        """Raise if a record in one of the batches violates its topic's rules.

        This has no side effects, so any thread may call it. The header of each batch is checked
        first, which bounds the work.
        """
        now_ms, settings = self._clock.now_ms(), log.settings
        most, limit_bytes = self._settings.batch_max_records, self._settings.decompressed_max_bytes
        schemas = self._schemas.checks(log.tp, settings) if settings.checks_schemas else None
        for header, view in split_batches(data):
            check_batch(header, view, settings, now_ms, most, is_control=False)
            check_records(log.tp, header, view, settings, now_ms, limit_bytes, schemas)

    def record_checks(
        self, partitions: Sequence[PartitionRecords], is_abandoned: Callable[[], bool]
    ) -> Work[Checked] | None:
        """Return work that checks the records of a request, one batch per step; None if there is
        nothing to check or the append can do so quickly.

        The work stops early if `is_abandoned` returns True.
        """
        if len(partitions) == 1:  # fast path for nearly all requests; most topics need no checks
            part = partitions[0]
            try:
                log = self._catalog.resolve(part.topic, part.partition)
            except StrandlogError:
                return None  # the append reports the error
            if not log.settings.checks_records:
                return None
        to_check = self._to_check(partitions)
        return self._check_all(to_check, is_abandoned) if to_check else None

    def _to_check(self, partitions: Sequence[PartitionRecords]) -> list[_ToCheck]:
        found: list[_ToCheck] = []
        logs_of: dict[TopicRef, Sequence[PartitionLog]] = {}
        count = records = size_bytes = 0
        quick = True
        for number, (topic, partition, data) in enumerate(partitions):
            logs = logs_of.get(topic)
            if logs is None:
                logs = logs_of[topic] = self._logs_to_check(topic)
            # The append rejects an unknown partition, and one that has no or several batches.
            if not 0 <= partition < len(logs):
                continue
            if data is None or not len(data) or _has_several_batches(data):
                continue
            log = logs[partition]
            try:
                batches = split_batches(data)
            except (StrandlogError, DataError):
                continue
            found.append(_ToCheck(number, log, [view for _, view in batches]))
            count += len(batches)
            size_bytes += len(data)
            records += sum(header.record_count for header, _ in batches)
            # `is_quick` decompresses, so it is not called for a large number of batches.
            quick = quick and count <= QUICK_BATCHES and all(is_quick(*each) for each in batches)
        quick = quick and records <= QUICK_RECORDS and size_bytes <= QUICK_CHECKED_BYTES
        return [] if quick else found

    def _logs_to_check(self, topic: TopicRef) -> Sequence[PartitionLog]:
        """Return the partitions of a topic whose records must be checked; none of any other
        topic."""
        try:
            name = self._catalog.topic_with_id(topic).name if isinstance(topic, UUID) else topic
            logs = self._catalog.logs(name)
        except StrandlogError:
            return ()
        return logs if logs[0].settings.checks_records else ()

    def _check_all(
        self, to_check: list[_ToCheck], is_abandoned: Callable[[], bool]
    ) -> Work[Checked]:
        checked: dict[int, StrandlogError | None] = {}
        for part in to_check:
            error: StrandlogError | None = None
            for batch in part.batches:
                if is_abandoned():
                    return {}
                try:
                    yield partial(self.check_records, part.log, batch)
                except StrandlogError as raised:
                    error = raised
                    break
            checked[part.number] = error
        return checked


def _has_several_batches(records: Buffer) -> bool:
    """Return whether there is more data after the first batch. Kafka also rejects such requests:
    one could hold millions of nearly empty batches."""
    if len(records) <= HEADER_SIZE or records[MAGIC_POSITION] != MAGIC:
        return False
    length = int.from_bytes(records[BATCH_LENGTH_POSITION:LOG_OVERHEAD])
    return HEADER_SIZE <= LOG_OVERHEAD + length < len(records)
