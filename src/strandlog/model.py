"""Value types that all layers share.

They are named tuples and enums: immutable, cheap to create in large numbers, and easy to compare in
tests. An *offset* is always logical, an *end* is always exclusive, a *timestamp* is always in Unix
milliseconds.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple
from uuid import UUID

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1

Buffer = bytes | bytearray | memoryview
TopicRef = str | UUID  # a topic's name or id

SINK_GROUP_PREFIX = "strandlog-spark-"  # of the groups in which Spark sinks record their commits


def is_internal_group(name: str) -> bool:
    """Return whether a group only records the commits of a Spark sink (spark/sink/commit_log.py).
    Its lag is meaningless: it grows with the commits of other queries."""
    return name.startswith(SINK_GROUP_PREFIX)


class ProducerIdentity(NamedTuple):
    """A producer id and its epoch."""

    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_PRODUCER_EPOCH


Headers = tuple[tuple[str, bytes | None], ...]


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Record(NamedTuple):
    """A record as a consumer receives it. A null key or value is None, an empty one is b""."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class SkippedOffsets(NamedTuple):
    """A range of offsets that a consumer skipped because they could not be read, and the reason."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    reason: str


class RecordMetadata(NamedTuple):
    """The partition, offset and timestamp of a produced record, returned to the producer."""

    topic: str
    partition: int
    offset: int
    timestamp: int


class Acks(IntEnum):
    """The acknowledgement that a producer waits for, with Kafka's values."""

    NONE = 0
    LEADER = 1
    ALL = -1


class PartitionRecords(NamedTuple):
    """Record batches for one partition, as a producer sends them."""

    topic: TopicRef
    partition: int
    records: Buffer | None


class TimestampType(IntEnum):
    """Whether the producer or the broker set the timestamps of a batch."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class IsolationLevel(IntEnum):
    """Whether a reader sees records of open and aborted transactions."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1

    @classmethod
    def of(cls, *, committed: bool) -> IsolationLevel:
        """Return the level that shows only committed records, or the one that shows all."""
        return cls.READ_COMMITTED if committed else cls.READ_UNCOMMITTED


class OffsetAndMetadata(NamedTuple):
    """The offset that a group has committed for one partition, with the client's metadata."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp: int = NO_TIMESTAMP


class TimestampOffset(NamedTuple):
    """The timestamp and offset of the record that a lookup by time found."""

    timestamp: int
    offset: int
