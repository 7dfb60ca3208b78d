"""Offsets that were committed inside transactions which are still open.

    producer id ─▶ group ─▶ topic-partition ─▶ offset, and its number in the order of commits

They count when the transaction commits, unless something newer counts already: of all records for
a partition that count, the last one in the log wins, whenever they came to count. So a plain commit
takes all that is pending for its partitions out; a transaction that commits takes out what is
older than its own, and one that aborts takes out nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import NamedTuple

from strandlog.broker.groups.offsets import Offsets
from strandlog.model import OffsetAndMetadata, TopicPartition


class _Held(NamedTuple):
    number: int
    value: OffsetAndMetadata


class PendingOffsets:
    """Those of every open transaction."""

    __slots__ = ("_numbers", "_producers")

    def __init__(self) -> None:
        self._producers: dict[int, dict[str, dict[TopicPartition, _Held]]] = {}
        self._numbers = count()

    def add(self, producer_id: int, group: str, offsets: Offsets) -> None:
        """Committed inside the open transaction of a producer."""
        number = next(self._numbers)
        held = self._producers.setdefault(producer_id, {}).setdefault(group, {})
        held.update((partition, _Held(number, value)) for partition, value in offsets.items())

    def supersede(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Something newer was kept for these partitions, or they were forgotten."""
        newest = next(self._numbers)
        for partition in partitions if self._producers else ():
            self._drop_older(group, partition, newest)

    def commit(self, producer_id: int) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        """The transaction ends: what it had committed counts from now on, by group."""
        groups = self._producers.pop(producer_id, {})
        for group, held in groups.items():
            for partition, (number, _) in held.items():
                self._drop_older(group, partition, number)
        return {
            group: {partition: value for partition, (_, value) in held.items()}
            for group, held in groups.items()
            if held
        }

    def abort(self, producer_id: int) -> None:
        """The transaction ends: what it had committed never counts."""
        self._producers.pop(producer_id, None)

    def _drop_older(self, group: str, partition: TopicPartition, number: int) -> None:
        for groups in self._producers.values():
            held = groups.get(group)
            if held is not None and partition in held and held[partition].number < number:
                del held[partition]

    def is_pending(self, group: str, partition: TopicPartition) -> bool:
        """Whether an open transaction is about to move this offset."""
        return any(partition in groups.get(group, ()) for groups in self._producers.values())

    def of_group(self, group: str) -> set[TopicPartition]:
        """The partitions whose offsets open transactions are about to move."""
        return {tp for groups in self._producers.values() for tp in groups.get(group, ())}

    def groups(self) -> set[str]:
        return {group for groups in self._producers.values() for group in groups}
