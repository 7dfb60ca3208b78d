"""Stores the state of a coordinator, the schema registry or access control in a compacted topic.

The last value of each key is the current one; a null value deletes the key. The first call of
`ensure`, `log_for` or `append` creates the topic.

All records of an owner (a group or a transactional id) are in one partition, chosen by the owner's
name as in Kafka, so their order is preserved. Records that `replay` finds in any other partition
(because log files were swapped or renamed) are used only if the correct partition has none with
that key, because nothing shows which record is newer.

`append` returns when the records are written. `on_append` determines whether they are also on disk
by then (`Durability.written`). A large append is split into as many batches as it needs. If the
disk fails between two batches, `append` raises, but the batches already written stay in the log.
Callers tolerate this: they order their records so that every prefix is safe (for example a deny
rule before an allow rule), and a failed request can be retried.

Records written in a transaction take effect when the transaction commits. `replay` yields the
records in effect, partition by partition in log order, and then the misplaced records that are used
nevertheless. `replay_open` yields the records of open transactions, unless a later record with the
same key is in effect.

Damaged records are reported, and skipped as if they had never been written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from strandlog.broker.topics.catalog import TopicCatalog
from strandlog.config.units import counted
from strandlog.errors import CoordinatorLoadingError, CorruptSegmentError, DataError
from strandlog.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Record
from strandlog.record.batch import BatchView
from strandlog.record.builder import build_batch
from strandlog.storage.cleaning.retention import drop_oldest
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.partition.read import aborted_in, read_batches
from strandlog.storage.segment.transaction_index import AbortedRanges
from strandlog.storage.work import Work, run_inline

TableRecord = tuple[bytes, bytes | None]

BATCH_BYTES = 256 * 1024  # approximate maximum size of a batch of table records
RECORD_OVERHEAD_BYTES = 32  # upper bound for the lengths, deltas and attributes of one record
REPLAY_BYTES = 1024 * 1024

_JAVA_INT_MIN = -(2**31)


class TableLog(Protocol):
    """The part of `CompactedTable` that the group coordinator uses."""

    def append(
        self,
        records: Sequence[TableRecord],
        timestamp_ms: int,
        producer: tuple[int, int] | None = None,
    ) -> None:
        """Append records, as part of a transaction if a producer (id, epoch) is given."""

    def replay(self) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Yield the records that are in effect, partition by partition in log order."""

    def replay_open(self) -> Iterator[tuple[int, bytes | None, bytes | None]]:
        """Yield (producer id, key, value) of each record in an open transaction that may still
        take effect."""


class TableSpec(NamedTuple):
    """The name, partition count and settings of a table's topic, and the owners of its records."""

    name: str
    partitions: int
    config: Mapping[str, object]
    owner_of: Callable[[bytes], str]  # maps the key of a record to the record's owner


class CompactedTable:
    """A table of keys and values, stored in a compacted topic."""

    def __init__(
        self,
        catalog: TopicCatalog,
        spec: TableSpec,
        on_append: Callable[[PartitionLog], None],
        problems: list[str],
    ) -> None:
        self._catalog = catalog
        self._spec = spec
        self._on_append = on_append
        self._problems = problems

    @property
    def exists(self) -> bool:
        return self._spec.name in self._catalog

    @property
    def partition_count(self) -> int:
        """The number of partitions of the topic, which must exist."""
        return len(self._logs())

    def ensure(self) -> Work[None]:
        """Create the topic if it does not exist."""
        if not self.exists:
            spec = self._spec
            config = {"cleanup.policy": "compact", **spec.config}
            yield from self._catalog.create(spec.name, spec.partitions, config)

    def log_for(self, owner: str) -> PartitionLog:
        """Return the partition with the records of this owner, creating the topic if needed."""
        self._ensure_now()
        return self.existing_log_for(owner)

    def existing_log_for(self, owner: str) -> PartitionLog:
        """Return the partition with the records of this owner.

        Raise `TopicNotFoundError` if the topic does not exist.
        """
        logs = self._catalog.logs(self._spec.name)
        return logs[owner_partition(owner, len(logs))]

    def append(
        self,
        records: Sequence[TableRecord],
        timestamp_ms: int,
        producer: tuple[int, int] | None = None,
    ) -> None:
        """Append records, as part of a transaction if a producer (id, epoch) is given."""
        self._ensure_now()
        logs = self._logs()
        by_partition: dict[int, list[TableRecord]] = {}
        for record in records:
            partition = owner_partition(self._spec.owner_of(record[0]), len(logs))
            by_partition.setdefault(partition, []).append(record)
        for partition, its_records in by_partition.items():
            self._append_to(logs[partition], its_records, timestamp_ms, producer)

    def rewrite(self, records: Sequence[TableRecord], timestamp_ms: int) -> None:
        """Durably replace everything in the topic, which must exist, with these records. A crash
        leaves each partition with all of its old records and perhaps some of the new ones, or with
        all of its new records and perhaps some of the old ones."""
        logs = self._logs()
        for log in logs:
            log.roll()
        old_counts = [len(log.segments.sealed) for log in logs]
        self.append(records, timestamp_ms)
        for log, count in zip(logs, old_counts, strict=True):
            log.flush()
            run_inline(drop_oldest(log, count))

    def replay(self) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Yield the records that are in effect, partition by partition in log order."""
        logs = self._logs()
        if len(logs) == 1:
            yield from _replay(logs[0], self._problems)
            return
        partitions: dict[bytes, int | None] = {}  # the correct partition of each key
        found: set[bytes] = set()
        misplaced: list[TableRecord] = []
        for number, log in enumerate(logs):
            for key, value in _replay(log, self._problems):
                if key is not None:
                    if key not in partitions:
                        partitions[key] = self._partition_of(key, len(logs))
                    if partitions[key] not in (number, None):
                        misplaced.append((key, value))
                        continue
                    found.add(key)
                yield key, value
        if misplaced:
            self._problems.append(
                f"found {counted(len(misplaced), 'record')} of {self._spec.name} in the wrong "
                "partition: log files were swapped or renamed"
            )
        yield from (record for record in misplaced if record[0] not in found)

    def replay_open(self) -> Iterator[tuple[int, bytes | None, bytes | None]]:
        """Yield (producer id, key, value) of each record in an open transaction that may still
        take effect."""
        for log in self._logs():
            yield from _replay_open(log, self._problems)

    def _ensure_now(self) -> None:
        if self._catalog.is_in_progress(self._spec.name):
            raise CoordinatorLoadingError(f"{self._spec.name} is being created; try again")
        run_inline(self.ensure())

    def _logs(self) -> Sequence[PartitionLog]:
        return self._catalog.logs(self._spec.name) if self.exists else ()

    def _partition_of(self, key: bytes, partition_count: int) -> int | None:
        """Return the partition that a key belongs to; None for an unknown kind of key."""
        try:
            return owner_partition(self._spec.owner_of(key), partition_count)
        except (DataError, AssertionError):
            return None

    def _append_to(
        self,
        log: PartitionLog,
        records: Sequence[TableRecord],
        timestamp_ms: int,
        producer: tuple[int, int] | None,
    ) -> None:
        producer_id, epoch = producer or (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
        end_offset = log.log_end_offset
        with self._catalog.guard(log):
            try:
                limit_bytes = min(BATCH_BYTES, log.settings.max_message_bytes)
                for piece in _split(records, limit_bytes):
                    data = build_batch(
                        timestamp_ms,
                        [value for _, value in piece],
                        [key for key, _ in piece],
                        producer_id=producer_id,
                        producer_epoch=epoch,
                        is_transactional=producer is not None,
                    )
                    log.append(data, from_coordinator=True)
            finally:
                if log.log_end_offset > end_offset:
                    self._on_append(log)


def latest_values(table: TableLog) -> dict[bytes, bytes]:
    """Return the last value of each key; records without a key are ignored."""
    values: dict[bytes, bytes] = {}
    for key, value in table.replay():
        if key is None:
            continue
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value
    return values


def owner_partition(owner: str, partition_count: int) -> int:
    """Return the partition for an owner's records: the absolute value of the Java hash of its
    name, modulo the number of partitions, as in Kafka."""
    code = java_hash(owner)
    # The smallest int has no positive counterpart; Kafka maps it to 0.
    return 0 if code == _JAVA_INT_MIN else abs(code) % partition_count


def java_hash(text: str) -> int:
    """Compute Java's `String.hashCode`: a 32-bit hash of the UTF-16 code units."""
    units = memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H")
    code = 0
    for unit in units:
        code = (31 * code + unit) & 0xFFFFFFFF
    return code - 2**32 if code >= 2**31 else code


def _split(records: Sequence[TableRecord], limit_bytes: int) -> Iterator[Sequence[TableRecord]]:
    """Split records into chunks that fit into a batch; an oversized record gets its own chunk."""
    start = size = 0
    for number, (key, value) in enumerate(records):
        record_size = len(key) + len(value or b"") + RECORD_OVERHEAD_BYTES
        if number > start and size + record_size > limit_bytes:
            yield records[start:number]
            start, size = number, 0
        size += record_size
    if start < len(records):
        yield records[start:]


def _replay(log: PartitionLog, problems: list[str]) -> Iterator[tuple[bytes | None, bytes | None]]:
    aborted = AbortedRanges(aborted_in(log, log.log_start_offset, log.log_end_offset))
    open_from = log.producers.open_transactions()
    for batch in _batches(log, log.log_start_offset, problems):
        header = batch.header
        if header.is_transactional and (
            aborted.covers(header.producer_id, header.base_offset)
            or header.base_offset >= open_from.get(header.producer_id, log.log_end_offset)
        ):
            continue
        for record in batch.records(*log.tp, from_offset=log.log_start_offset):
            yield record.key, record.value


def _replay_open(
    log: PartitionLog, problems: list[str]
) -> Iterator[tuple[int, bytes | None, bytes | None]]:
    open_from = log.producers.open_transactions()
    if not open_from:
        return
    aborted = AbortedRanges(aborted_in(log, log.log_start_offset, log.log_end_offset))
    found: list[tuple[int, Record]] = []
    last_counting: dict[bytes | None, int] = {}
    start = min(open_from.values())
    for batch in _batches(log, start, problems):
        header = batch.header
        is_open = header.is_transactional and (
            header.base_offset >= open_from.get(header.producer_id, log.log_end_offset)
        )
        if not is_open and aborted.covers(header.producer_id, header.base_offset):
            continue
        for record in batch.records(*log.tp, from_offset=start):
            if is_open:
                found.append((header.producer_id, record))
            else:
                last_counting[record.key] = record.offset
    for producer_id, record in found:
        if record.offset > last_counting.get(record.key, -1):
            yield producer_id, record.key, record.value


def _batches(log: PartitionLog, offset: int, problems: list[str]) -> Iterator[BatchView]:
    """Yield every data batch with records at or after an offset; report damage and skip it."""
    for item in read_batches(log, offset, REPLAY_BYTES):
        if isinstance(item, CorruptSegmentError):
            problems.append(f"records of {log.tp.topic} were lost: {item}")
        elif not item.header.is_control:
            yield item
