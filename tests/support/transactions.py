"""Transactions in the folder of an embedded log, as clients of a broker write them."""

from __future__ import annotations

from pathlib import Path

from strandlog import Log
from strandlog.broker.deferred import Deferred
from strandlog.broker.groups.requests import CommitRequest
from strandlog.broker.topics.topic import OFFSETS_TOPIC
from strandlog.errors import StrandlogError
from strandlog.model import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    OffsetAndMetadata,
    PartitionRecords,
    ProducerIdentity,
    TopicPartition,
)
from strandlog.record.batch import iter_batches
from strandlog.record.builder import build_batch

TIMEOUT_MS = 60_000
NEW = ProducerIdentity(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


class TransactionalWriter:
    """Producers with transactional ids; each begins a transaction with its first write."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._producers: dict[str, ProducerIdentity] = {}
        self._partitions: dict[str, set[TopicPartition]] = {}
        self._sequences: dict[tuple[str, TopicPartition], int] = {}

    def after_restart(self, log: Log) -> TransactionalWriter:
        """The same producers, with another owner of the folder."""
        self._log = log
        return self

    def write(self, name: str, tp: TopicPartition, *values: bytes, key: bytes | None = None) -> int:
        """Write one batch inside the producer's transaction; gives its base offset."""
        log = self._log
        producer = self._producer(name)
        added = self._partitions.setdefault(name, set())
        if tp not in added:
            request = log.broker.add_partitions_to_transaction(log.context, name, producer, [tp])
            request.result()
            added.add(tp)
        sequence = self._sequences.get((name, tp), 0)
        batch = build_batch(
            log.clock.now_ms(),
            list(values),
            None if key is None else [key] * len(values),
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        parts = [PartitionRecords(*tp, batch)]
        found = log.broker.produce(log.context, parts, -1, transactional_id=name)
        [result] = found.result() if isinstance(found, Deferred) else found
        if isinstance(result, StrandlogError):
            raise result
        self._sequences[name, tp] = sequence + len(values)
        return result.base_offset

    def send_offset(self, name: str, group: str, tp: TopicPartition, offset: int) -> None:
        """Commit an offset of a group inside the producer's transaction."""
        log, producer = self._log, self._producer(name)
        log.broker.add_offsets_to_transaction(log.context, name, producer, group).result()
        self._partitions.setdefault(name, set()).add(TopicPartition(OFFSETS_TOPIC, 0))
        request = CommitRequest(group_id=group, offsets={tp: OffsetAndMetadata(offset)})
        sent = log.broker.commit_transaction_offsets(log.context, name, request, producer)
        assert sent.result() == {}

    def _producer(self, name: str) -> ProducerIdentity:
        log = self._log
        if name not in self._producers:
            asked = log.broker.init_producer_id(log.context, name, TIMEOUT_MS, NEW)
            self._producers[name] = asked.result()
        return self._producers[name]

    def end(self, name: str, *, commit: bool) -> None:
        """End the producer's transaction, if one is open."""
        log = self._log
        if self._partitions.pop(name, None):
            producer = self._producers[name]
            log.broker.end_transaction(log.context, name, producer, commit=commit).result()


def damage_marker(folder: Path) -> None:
    """Damage the only transaction marker of a partition, and remove its producer snapshots. Only
    while no process owns the folder."""
    for path in folder.glob("*.snapshot"):
        path.unlink()
    [(path, marker)] = [
        (path, batch)
        for path in folder.glob("*.log")
        for batch in iter_batches(path.read_bytes())
        if batch.header.is_control
    ]
    data = bytearray(path.read_bytes())
    data[marker.position + marker.size_bytes - 1] ^= 0xFF
    path.write_bytes(data)
