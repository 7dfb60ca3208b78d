"""Keys and values of `__transaction_state`, byte for byte as Apache Kafka writes them.

    key v0                     value (null = tombstone)
      string transactional id    int64  producer id
                                 int16  producer epoch
                                 int32  transaction timeout, ms
                                 int8   state
                                 []?    topic:   string name, [] int32 partition
                                 int64  last update, ms
                                 int64  start, ms; -1 if no transaction is open

Keys and values start with an int16 version. Version 1 of the value adds compact lengths and tagged
fields, which strandlog does not need: it reads values of both versions and writes version 0.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from strandlog.errors import DataError
from strandlog.model import TopicPartition
from strandlog.protocol.primitives import Reader, Writer

KEY_VERSION = 0
VALUE_VERSION = 0
NEWEST_READABLE_VALUE = 1
NOT_STARTED = -1

_FLEXIBLE_VERSION = 1
_TOPIC_MIN_BYTES = 2
_PARTITION_BYTES = 4


class TransactionState(IntEnum):
    """The state of a transactional producer, with Kafka's numbers and names."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7


class TransactionValue(NamedTuple):
    """One transactional producer, as of its last change."""

    producer_id: int
    epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition]
    updated_ms: int
    started_ms: int


def encode_key(transactional_id: str) -> bytes:
    writer = Writer()
    writer.int16(KEY_VERSION)
    writer.string(transactional_id)
    return writer.to_bytes()


def decode_key(data: bytes) -> str | None:
    """Return the transactional id; None for an unknown type of record."""
    reader = Reader(data)
    return reader.string() if reader.int16() == KEY_VERSION else None


def encode_value(value: TransactionValue) -> bytes:
    writer = Writer()
    writer.int16(VALUE_VERSION)
    writer.int64(value.producer_id)
    writer.int16(value.epoch)
    writer.int32(value.timeout_ms)
    writer.int8(value.state)
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(value.partitions):
        by_topic.setdefault(topic, []).append(partition)

    def write_topic(item: tuple[str, list[int]]) -> None:
        writer.string(item[0])
        writer.array(item[1], writer.int32)

    writer.array(by_topic.items(), write_topic)
    writer.int64(value.updated_ms)
    writer.int64(value.started_ms)
    return writer.to_bytes()


def decode_value(data: bytes) -> TransactionValue:
    """Decode a value; raise `DataError` if the bytes are invalid."""
    reader = Reader(data)
    version = reader.int16()
    if not 0 <= version <= NEWEST_READABLE_VALUE:
        raise DataError(
            f"a value of version {version} is not supported; "
            f"this release supports versions 0 to {NEWEST_READABLE_VALUE}"
        )
    flexible = version >= _FLEXIBLE_VERSION
    producer_id, epoch = reader.int64(), reader.int16()
    timeout_ms, state = reader.int32(), reader.int8()
    partitions = _read_partitions(reader, flexible=flexible)
    updated_ms, started_ms = reader.int64(), reader.int64()
    if flexible:
        reader.skip_tagged_fields()
    try:
        known = TransactionState(state)
    except ValueError:
        raise DataError(f"{state} is not a transaction state") from None
    return TransactionValue(
        producer_id, epoch, timeout_ms, known, frozenset(partitions), updated_ms, started_ms
    )


def _read_partitions(reader: Reader, *, flexible: bool) -> list[TopicPartition]:
    read_array = reader.compact_array if flexible else reader.array
    found: list[TopicPartition] = []

    def read_topic() -> None:
        topic = reader.compact_string() if flexible else reader.string()
        numbers = read_array(reader.int32, _PARTITION_BYTES)
        if flexible:
            reader.skip_tagged_fields()
        found.extend(TopicPartition(topic, number) for number in numbers)

    read_array(read_topic, _TOPIC_MIN_BYTES)
    return found
