"""Writes commit and abort markers, and finds the open transactions of all partitions.

A marker in a partition of `__consumer_offsets` also ends the transaction in the group coordinator,
which then applies or discards the offsets committed in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from strandlog.broker.flushing.durability import Durability
from strandlog.broker.groups.coordinator import GroupCoordinator
from strandlog.broker.topics.catalog import TopicCatalog
from strandlog.broker.topics.topic import OFFSETS_TOPIC
from strandlog.clock import Clock
from strandlog.errors import TopicNotFoundError
from strandlog.model import ProducerIdentity, TopicPartition
from strandlog.record.control import ControlType, control_batch
from strandlog.storage.folder.log_dir import LogDir
from strandlog.storage.partition.log import PartitionLog


class Marker(NamedTuple):
    """Identifies the transaction that a marker ends: one producer in one partition."""

    tp: TopicPartition
    producer: ProducerIdentity


class MarkerWriter:
    """Writes the transaction markers of one broker."""

    def __init__(
        self,
        log_dir: LogDir,
        catalog: TopicCatalog,
        groups: GroupCoordinator,
        durability: Durability,
        clock: Clock,
    ) -> None:
        self._log_dir = log_dir
        self._catalog = catalog
        self._groups = groups
        self._durability = durability
        self._clock = clock

    def write(self, marker: Marker, kind: ControlType) -> PartitionLog | None:
        """Append a marker and return the partition's log; None if the partition was deleted."""
        tp, producer = marker
        try:
            log = self._catalog.log(*tp)
        except TopicNotFoundError:
            return None
        data = control_batch(kind, producer.producer_id, producer.epoch, self._clock.now_ms())
        with self._catalog.guard(log):
            log.append(data, is_control=True)
            self._durability.written(log)
        if tp.topic == OFFSETS_TOPIC:
            is_commit = kind is ControlType.COMMIT
            self._groups.end_transaction(producer.producer_id, commit=is_commit)
        return log

    def open_transactions(self) -> Iterator[Marker]:
        """Yield a marker for every open transaction in every partition."""
        for tp, log in list(self._log_dir.logs.items()):
            for producer_id in log.producers.open_transactions():
                entry = log.producers.get(producer_id)
                if entry is not None:
                    yield Marker(tp, ProducerIdentity(producer_id, entry.epoch))
