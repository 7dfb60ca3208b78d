"""Partitions of topics in four bytes each, for the assignments of large groups.

A set of `TopicPartition` takes forty times the bytes of the assignment that it was read from, and
an assignment may have a million partitions. Here a topic has a sorted array of numbers.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable

from strandlog.errors import DataError
from strandlog.model import TopicPartition
from strandlog.protocol.primitives import Reader

TOPIC_MIN_BYTES = 6


class PartitionIndex:
    """An unchanging set of partitions."""

    __slots__ = ("_topics",)

    def __init__(self, topics: dict[str, array[int]] | None = None) -> None:
        """Numbers are sorted."""
        self._topics = topics or {}

    def __contains__(self, partition: TopicPartition) -> bool:
        numbers = self._topics.get(partition.topic)
        if numbers is None:
            return False
        place = bisect_left(numbers, partition.partition)
        return place < len(numbers) and numbers[place] == partition.partition

    def __len__(self) -> int:
        return sum(map(len, self._topics.values()))

    @classmethod
    def read(cls, reader: Reader) -> PartitionIndex:
        """Out of the array of topics that subscriptions and assignments have."""
        topics: dict[str, list[array[int]]] = {}

        def read_topic() -> None:
            topic = reader.string()
            topics.setdefault(topic, []).append(reader.int32_array())

        reader.array(read_topic, TOPIC_MIN_BYTES)
        return cls({topic: _sorted(parts) for topic, parts in topics.items()})

    @classmethod
    def of_assignment(cls, data: bytes) -> PartitionIndex:
        """The partitions of an assignment; `DataError` when it is of another protocol."""
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
    def union(cls, indexes: Iterable[PartitionIndex]) -> PartitionIndex:
        topics: dict[str, list[array[int]]] = {}
        for index in indexes:
            for topic, numbers in index._topics.items():
                topics.setdefault(topic, []).append(numbers)
        return cls({topic: _sorted(parts) for topic, parts in topics.items()})


def _sorted(parts: list[array[int]]) -> array[int]:
    if len(parts) == 1 and all(map(int.__le__, parts[0], parts[0][1:])):
        return parts[0]
    return array("i", sorted(number for part in parts for number in part))
