"""A set of topic partitions that uses four bytes per partition, for assignments in large groups.

A `frozenset[TopicPartition]` takes forty times the memory of the encoded assignment, which can
contain a million partitions. This set keeps a sorted array of partition numbers for each topic.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable

from strandlog.errors import DataError
from strandlog.model import TopicPartition
from strandlog.protocol.primitives import Reader

TOPIC_MIN_BYTES = 6


class PartitionSet:
    """An immutable set of partitions."""

    __slots__ = ("_topics",)

    def __init__(self, topics: dict[str, array[int]] | None = None) -> None:
        """Create a set from `topics`, which maps each topic to its sorted partition numbers."""
        self._topics = topics or {}

    def __contains__(self, partition: TopicPartition) -> bool:
        numbers = self._topics.get(partition.topic)
        if numbers is None:
            return False
        index = bisect_left(numbers, partition.partition)
        return index < len(numbers) and numbers[index] == partition.partition

    def __len__(self) -> int:
        return sum(map(len, self._topics.values()))

    @classmethod
    def read(cls, reader: Reader) -> PartitionSet:
        """Decode the array of topics in a subscription or an assignment."""
        topics: dict[str, list[array[int]]] = {}

        def read_topic() -> None:
            topic = reader.string()
            topics.setdefault(topic, []).append(reader.int32_array())

        reader.array(read_topic, TOPIC_MIN_BYTES)
        return cls({topic: _sorted(parts) for topic, parts in topics.items()})

    @classmethod
    def of_assignment(cls, data: bytes) -> PartitionSet:
        """Decode an assignment; raise `DataError` if it does not use the consumer protocol."""
        if not data:
            return cls()
        reader = Reader(data)
        version = reader.int16()
        if version < 0:
            raise DataError(f"there is no version {version} of the consumer protocol")
        found = cls.read(reader)
        reader.nullable_byte_string()
        return found

    @classmethod
    def union(cls, sets: Iterable[PartitionSet]) -> PartitionSet:
        topics: dict[str, list[array[int]]] = {}
        for each in sets:
            for topic, numbers in each._topics.items():
                topics.setdefault(topic, []).append(numbers)
        return cls({topic: _sorted(parts) for topic, parts in topics.items()})


def _sorted(parts: list[array[int]]) -> array[int]:
    if len(parts) == 1 and all(map(int.__le__, parts[0], parts[0][1:])):
        return parts[0]
    return array("i", sorted(number for part in parts for number in part))
