"""Encodes and decodes the subscriptions and assignments that `consumer` group members exchange.

The broker passes these bytes through unchanged and decodes them only to find the subscribed topics
and the partitions that a member owns.

    Subscription                              Assignment
      int16   version                           int16   version
      []      topic: string                     []      topic: string, []partition: int32
      bytes?  user data                         bytes?  user data
      []      topic, []partition  (v1+) owned
      int32   generation          (v2+)
      string? rack                (v3+)

A version above 3 is read as version 3 and the remaining bytes are ignored: Kafka guarantees that
later versions only add fields at the end. Version 3 is written unless the caller requests an older
one. Negative versions, truncated data and invalid lengths raise `DataError`.

The user data of Java's eager "sticky" assignor is `[]topic, []partition; int32 generation`; its
first version lacks the last field.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from strandlog.errors import DataError
from strandlog.model import TopicPartition
from strandlog.protocol.primitives import Reader, Writer

CONSUMER_PROTOCOL_TYPE = "consumer"
LATEST_VERSION = 3
NO_GENERATION = -1

_STRING_MIN_BYTES = 2
_TOPIC_MIN_BYTES = _STRING_MIN_BYTES + 4


class Subscription(NamedTuple):
    """A member's subscription, and the partitions that it owns."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned_partitions: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    rack: str | None = None


class Assignment(NamedTuple):
    """The partitions assigned to a member."""

    partitions: tuple[TopicPartition, ...]
    user_data: bytes | None = None


def encode_subscription(subscription: Subscription, version: int = LATEST_VERSION) -> bytes:
    assert 0 <= version <= LATEST_VERSION, version
    writer = Writer()
    writer.int16(version)
    writer.array(subscription.topics, writer.string)
    writer.nullable_byte_string(subscription.user_data)
    if version >= 1:
        _write_partitions(writer, subscription.owned_partitions)
    if version >= 2:
        writer.int32(subscription.generation)
    if version >= 3:
        writer.nullable_string(subscription.rack)
    return writer.to_bytes()


def decode_subscription(data: bytes) -> Subscription:
    reader = Reader(data)
    version = _read_version(reader)
    topics = reader.array(reader.string, _STRING_MIN_BYTES)
    user_data = reader.nullable_byte_string()
    owned = _read_partitions(reader) if version >= 1 else ()
    generation = reader.int32() if version >= 2 else NO_GENERATION
    rack = reader.nullable_string() if version >= 3 else None
    return Subscription(tuple(topics), user_data, owned, generation, rack)


def encode_assignment(assignment: Assignment, version: int = LATEST_VERSION) -> bytes:
    assert 0 <= version <= LATEST_VERSION, version
    writer = Writer()
    writer.int16(version)
    _write_partitions(writer, assignment.partitions)
    writer.nullable_byte_string(assignment.user_data)
    return writer.to_bytes()


def decode_assignment(data: bytes) -> Assignment:
    """Decode an assignment. Empty input, as in an empty SyncGroup response, means no partitions."""
    if not data:
        return Assignment(())
    reader = Reader(data)
    _read_version(reader)
    partitions = _read_partitions(reader)
    return Assignment(partitions, reader.nullable_byte_string())


def decode_sticky_user_data(data: bytes) -> tuple[tuple[TopicPartition, ...], int]:
    """Return the partitions that an eager sticky member owned, and the generation."""
    reader = Reader(data)
    partitions = _read_partitions(reader)
    return partitions, reader.int32() if reader.remaining else NO_GENERATION


def _read_version(reader: Reader) -> int:
    version = reader.int16()
    if version < 0:
        raise DataError(f"version {version} of the consumer protocol does not exist")
    return min(version, LATEST_VERSION)


def _read_partitions(reader: Reader) -> tuple[TopicPartition, ...]:
    def read_topic() -> list[TopicPartition]:
        topic = reader.string()
        return [TopicPartition(topic, partition) for partition in reader.array(reader.int32, 4)]

    topics = reader.array(read_topic, _TOPIC_MIN_BYTES)
    return tuple(partition for partitions in topics for partition in partitions)


def _write_partitions(writer: Writer, partitions: Iterable[TopicPartition]) -> None:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)

    def write_topic(topic: str) -> None:
        writer.string(topic)
        writer.array(by_topic[topic], writer.int32)

    writer.array(by_topic, write_topic)
