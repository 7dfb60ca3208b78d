"""Benchmark consumers, which read from a broker with librdkafka, or from a folder.

Each client reads its own partitions without joining a group, so no rebalance delays the start.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from strandlog.client.api import AnyConsumer, PartitionInfo, ReadableLog
from strandlog.client.remote.errors import PARTITION_EOF, confluent, error_of, translated
from strandlog.client.remote.log import RemoteLog
from strandlog.client.remote.login import Login

READ_RECORDS = 5_000
READ_SECONDS = 0.1
_NO_GROUP = "strandlog-bench"  # librdkafka requires a group id; nothing uses its offsets


class Range(NamedTuple):
    """The offsets to read from a partition; `end` is exclusive."""

    partition: int
    start: int
    end: int


def ranges_of(infos: tuple[PartitionInfo, ...], client: int, clients: int) -> list[Range]:
    """Return the ranges that one of several clients reads."""
    return [
        Range(info.partition, info.start_offset, info.end_offset) for info in infos[client::clients]
    ]


class Reader(Protocol):
    """Reads the values of records."""

    def read(self) -> list[bytes | None]:
        """Return values, or an empty list if none arrive within `READ_SECONDS`."""

    @property
    def is_at_end(self) -> bool:
        """Whether everything up to the ends of the ranges has been read."""

    def close(self) -> None: ...


def open_reader(log: ReadableLog, topic: str, ranges: list[Range]) -> Reader:
    """Create a reader that starts at the beginning of each range."""
    if isinstance(log, RemoteLog):
        return KafkaReader(log, topic, ranges)
    return FolderReader(log.consumer(), topic, ranges)


class KafkaReader:
    """Reads through librdkafka."""

    def __init__(self, log: RemoteLog, topic: str, ranges: list[Range]) -> None:
        config = {
            "group.id": _NO_GROUP,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "fetch.queue.backoff.ms": 10,  # the default is one second
            **log.client_config,
        }
        self._login = Login(confluent().Consumer, config, log.credentials)
        self._client = self._login.client
        self._topic = topic
        self._ends = {each.partition: each.end for each in ranges if each.end > each.start}
        make = confluent().TopicPartition
        self._partitions = [make(topic, each.partition, each.start) for each in ranges]
        with translated(topic=topic):
            self._client.assign(self._partitions)

    def read(self) -> list[bytes | None]:
        with translated(topic=self._topic):
            first = self._client.poll(READ_SECONDS)
            # With a timeout, `consume` would wait for READ_RECORDS records until it expires.
            others = [] if first is None else self._client.consume(READ_RECORDS, 0)
        messages = [*([] if first is None else [first]), *others]
        self._login.check()
        for message in messages:
            error = message.error()
            if error is not None and error.code() != PARTITION_EOF:
                raise error_of(error, topic=self._topic, needs="READ")
        return [message.value() for message in messages if message.error() is None]

    @property
    def is_at_end(self) -> bool:
        for each in self._client.position(self._partitions):
            if each.offset >= self._ends.get(each.partition, 0):
                self._ends.pop(each.partition, None)
        return not self._ends

    def close(self) -> None:
        self._client.close()


class FolderReader:
    """Reads with a consumer of the embedded library."""

    def __init__(self, consumer: AnyConsumer, topic: str, ranges: list[Range]) -> None:
        self._consumer = consumer
        self._topic = topic
        self._ranges = ranges
        consumer.assign([(topic, each.partition) for each in ranges])
        for each in ranges:
            consumer.seek(topic, each.partition, each.start)

    def read(self) -> list[bytes | None]:
        records = self._consumer.poll(READ_RECORDS, timeout_ms=int(READ_SECONDS * 1000))
        return [record.value for record in records]

    @property
    def is_at_end(self) -> bool:
        return all(
            self._consumer.position(self._topic, each.partition) >= each.end
            for each in self._ranges
        )

    def close(self) -> None:
        self._consumer.close()


def size_of(values: list[Any]) -> int:
    """Return the total size of the values in bytes; a null value counts as 0."""
    return sum(map(len, filter(None, values)))
