"""Offsets that were committed inside transactions which are still open.

    producer id ─▶ group ─▶ topic-partition ─▶ offset

They count when the transaction commits, unless somebody committed for the same partition since: of
two records the later one counts, as it does after compaction.
"""

from __future__ import annotations

from collections.abc import Iterable

from strandlog.broker.offset_store import Offsets
from strandlog.model import OffsetAndMetadata, TopicPartition


class PendingOffsets:
    """Those of every open transaction."""

    __slots__ = ("_producers",)

    def __init__(self) -> None:
        self._producers: dict[int, dict[str, dict[TopicPartition, OffsetAndMetadata]]] = {}

    def add(self, producer_id: int, group: str, offsets: Offsets) -> None:
        """Committed inside the open transaction of a producer."""
        self.supersede(group, offsets)
        self._producers.setdefault(producer_id, {}).setdefault(group, {}).update(offsets)

    def supersede(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Something newer was kept for these partitions."""
        if not self._producers:
            return
        gone = set(partitions)
        for groups in self._producers.values():
            held = groups.get(group)
            if held is not None:
                for partition in gone & held.keys():
                    del held[partition]

    def take(self, producer_id: int) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        """What the transaction that ends now had committed, by group."""
        groups = self._producers.pop(producer_id, {})
        return {group: held for group, held in groups.items() if held}

    def is_pending(self, group: str, partition: TopicPartition) -> bool:
        """Whether an open transaction is about to move this offset."""
        return any(partition in groups.get(group, ()) for groups in self._producers.values())

    def has_group(self, group: str) -> bool:
        return any(groups.get(group) for groups in self._producers.values())
