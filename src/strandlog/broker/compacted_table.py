"""A coordinator's table in an internal, compacted topic of this broker; made at the first write.

What one owner (a group, a transactional id) keeps goes to one partition, chosen by its name. A
write is on disk when `append` returns, unless somebody else sees to that (`written`).

Records written for a producer inside its transaction count when that commits: `replay` gives what
counts, in the order of the log, and `replay_open` what may count yet: not what was written before
a record with the same key that counts.

One flipped bit must not lock everybody out of the log: a damaged record is reported, and its owner
goes on from the one before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from strandlog.broker.internal_topic import (
    BATCH_BYTES,
    Entry,
    InternalTopic,
    group_partition,
    in_batches,
)
from strandlog.broker.topics.catalog import Catalog
from strandlog.errors import CoordinatorLoadingError, CorruptSegmentError
from strandlog.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Record
from strandlog.record.batch import BatchView
from strandlog.record.builder import build_batch
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.partition.read import aborted_in, read
from strandlog.storage.segment.batch_reader import checked_batches
from strandlog.storage.segment.transaction_index import AbortedRanges
from strandlog.storage.work import Steps, do_here

REPLAY_BYTES = 1024 * 1024


class TableShape(NamedTuple):
    """What a table's topic is called and how it is made."""

    name: str
    partitions: int
    config: Mapping[str, object]
    owner_of: Callable[[bytes], str]  # whose record that is, by its key


class TableTopic:
    """One table."""

    def __init__(
        self,
        catalog: Catalog,
        shape: TableShape,
        written: Callable[[PartitionLog], None],
        problems: list[str],
    ) -> None:
        self._catalog = catalog
        self._shape = shape
        self._written = written
        self._problems = problems

    @property
    def exists(self) -> bool:
        return self._shape.name in self._catalog

    def ensure(self) -> None:
        """Make the topic unless it is there."""
        if self._catalog.is_unfinished(self._shape.name):
            raise CoordinatorLoadingError(f"{self._shape.name} is being made; ask again")
        do_here(self.ensuring())

    def ensuring(self) -> Steps[None]:
        """The same in steps."""
        if not self.exists:
            shape = self._shape
            config = {"cleanup.policy": "compact", **shape.config}
            yield from self._catalog.creating(shape.name, shape.partitions, config)

    def log_of(self, owner: str) -> PartitionLog:
        """The partition that keeps what belongs to this owner; the topic is made if need be."""
        self.ensure()
        return self.existing_log_of(owner)

    def existing_log_of(self, owner: str) -> PartitionLog:
        """The same; `TopicNotFoundError` while there is no topic."""
        logs = self._catalog.logs(self._shape.name)
        return logs[group_partition(owner, len(logs))]

    def append(
        self,
        records: Sequence[Entry],
        timestamp_ms: int,
        producer: tuple[int, int] | None = None,
    ) -> None:
        """Keep the records; with a producer (id, epoch), as a part of its transaction."""
        self.ensure()
        self._table().append(records, timestamp_ms, producer)

    def replay(self) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Every record that counts."""
        if self.exists:
            table = self._table()
            yield from table.replay()
            if table.stranger_count:
                self._problems.append(
                    f"{table.stranger_count} records of {self._shape.name} are in partitions that "
                    "are not theirs: log files were swapped or renamed"
                )

    def replay_open(self) -> Iterator[tuple[int, bytes | None, bytes | None]]:
        """(producer id, key, value) of every record in an open transaction that may count."""
        if self.exists:
            yield from self._table().replay_open()

    def _table(self) -> InternalTopic:
        logs = self._catalog.logs(self._shape.name)
        partitions = [_TableLog(log, self._catalog, self._written, self._problems) for log in logs]
        owner_of = self._shape.owner_of
        return InternalTopic(partitions, lambda key: group_partition(owner_of(key), len(logs)))


class _TableLog:
    """One partition of a table."""

    def __init__(
        self,
        log: PartitionLog,
        catalog: Catalog,
        written: Callable[[PartitionLog], None],
        problems: list[str],
    ) -> None:
        self._log = log
        self._catalog = catalog
        self._written = written
        self._problems = problems

    def append(
        self,
        records: Sequence[Entry],
        timestamp_ms: int,
        producer: tuple[int, int] | None = None,
    ) -> None:
        producer_id, epoch = producer or (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
        log = self._log
        end_offset = log.log_end_offset
        with self._catalog.changing(log):
            try:
                for piece in in_batches(records, min(BATCH_BYTES, log.settings.max_message_bytes)):
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
                    self._written(log)

    def replay(self) -> Iterator[tuple[bytes | None, bytes | None]]:
        log = self._log
        aborted = AbortedRanges(aborted_in(log, log.log_start_offset, log.log_end_offset))
        open_from = log.producers.open_transactions()
        for offset, batch in self._batches(log.log_start_offset):
            header = batch.header
            if header.is_transactional and (
                aborted.covers(header.producer_id, header.base_offset)
                or header.base_offset >= open_from.get(header.producer_id, log.log_end_offset)
            ):
                continue
            for record in batch.records(*log.tp, from_offset=offset):
                yield record.key, record.value

    def replay_open(self) -> Iterator[tuple[int, bytes | None, bytes | None]]:
        log = self._log
        open_from = log.producers.open_transactions()
        if not open_from:
            return
        aborted = AbortedRanges(aborted_in(log, log.log_start_offset, log.log_end_offset))
        found: list[tuple[int, Record]] = []
        last_counting: dict[bytes | None, int] = {}
        for offset, batch in self._batches(min(open_from.values())):
            header = batch.header
            is_open = header.is_transactional and (
                header.base_offset >= open_from.get(header.producer_id, log.log_end_offset)
            )
            if not is_open and aborted.covers(header.producer_id, header.base_offset):
                continue
            for record in batch.records(*log.tp, from_offset=offset):
                if is_open:
                    found.append((header.producer_id, record))
                else:
                    last_counting[record.key] = record.offset
        for producer_id, record in found:
            if record.offset > last_counting.get(record.key, -1):
                yield producer_id, record.key, record.value

    def _batches(self, offset: int) -> Iterator[tuple[int, BatchView]]:
        """(offset to read from, batch) of every batch with records from an offset on."""
        log = self._log
        while offset < log.log_end_offset:
            began_at = offset
            try:
                data = read(log, offset, REPLAY_BYTES, unflushed=True)
                if not data:
                    return
                for batch in checked_batches(
                    data, path=str(log.tp), offset=offset, end_offset=log.log_end_offset
                ):
                    if not batch.header.is_control:
                        yield offset, batch
                    offset = batch.header.next_offset
            except CorruptSegmentError as damage:
                if offset > began_at:
                    continue  # only a read that begins with the damage knows where it ends
                self._problems.append(f"records of {log.tp.topic} were lost: {damage}")
                if damage.resume_offset is None or damage.resume_offset <= offset:
                    return
                offset = damage.resume_offset
