"""The protocols of logs, producers and consumers, and the descriptions of topics and users.

    strandlog.open      Log            `OpenLog`       this process owns the data folder
    strandlog.connect   RemoteLog      `OpenLog`       a broker, over the Kafka protocol
    strandlog.read      ReadOnlyLog    `ReadableLog`   a folder that another process may own

Code that only uses the methods of `ReadableLog` works with all three. The classes do not inherit
from the protocols; the type checker verifies that they conform.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

from strandlog.broker.access.acl import Acl, AclFilter
from strandlog.broker.access.scram import DEFAULT_ITERATIONS, MECHANISMS_BY_NAME
from strandlog.broker.groups.requests import GroupDescription
from strandlog.client.arguments import Acks, BatchItem, GivenHeaders, OffsetReset
from strandlog.config.setting import Value
from strandlog.model import OffsetAndMetadata, Record, RecordMetadata, TopicPartition

EVERY_ACL = AclFilter()  # selects all ACLs
EVERY_MECHANISM = tuple(MECHANISMS_BY_NAME)  # SCRAM-SHA-256 and SCRAM-SHA-512
UNKNOWN = -1  # value of size_bytes and segments for a remote log


class PartitionInfo(NamedTuple):
    """Describes a partition. `size_bytes` and `segments` are `UNKNOWN` for a remote log."""

    partition: int
    start_offset: int
    end_offset: int
    size_bytes: int
    segments: int


class TopicInfo(NamedTuple):
    """Describes a topic. `config` contains the settings that are set on the topic itself."""

    name: str
    topic_id: str
    partitions: tuple[PartitionInfo, ...]
    config: dict[str, Value]


class UserInfo(NamedTuple):
    """Describes a user; `mechanisms` maps each of its SCRAM mechanisms to an iteration count."""

    name: str
    mechanisms: dict[str, int]


class AnyClosable(Protocol):
    """An object that closes at the end of a `with` block."""

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class AnyProducer(AnyClosable, Protocol):
    """Produces records; a send returns once its records are acknowledged as `acks` requires."""

    @property
    def is_atomic(self) -> bool:
        """Whether `send_batch` checks the size of all its batches before it writes the first."""

    @property
    def batch_bytes(self) -> int:
        """The recommended number of bytes per `send_batch` call."""

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        headers: GivenHeaders = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> RecordMetadata: ...

    def send_batch(self, topic: str, records: Iterable[BatchItem]) -> Sequence[RecordMetadata]: ...

    def send_arrow(self, topic: str, table: Any) -> Sequence[RecordMetadata]: ...

    def flush(self) -> None: ...


class AnyConsumer(AnyClosable, Protocol):
    """Reads records, either standalone or as a member of a group."""

    @property
    def group(self) -> str | None: ...

    @property
    def assignment(self) -> list[TopicPartition]: ...

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None: ...

    def poll(self, max_records: int = 500, timeout_ms: int = 0) -> list[Record]: ...

    def poll_arrow(self, max_records: int = 100_000, timeout_ms: int = 0) -> Any: ...

    def position(self, topic: str, partition: int) -> int: ...

    def seek(self, topic: str, partition: int, offset: int) -> None: ...

    def seek_all(self, offset: int) -> None: ...

    def seek_to_time(self, timestamp_ms: int) -> None: ...

    def commit(self) -> dict[TopicPartition, int]: ...

    def committed(self, topic: str, partition: int) -> int | None: ...

    def __iter__(self) -> Iterator[Record]:
        """Iterate over records; end after `consumer_timeout_ms` without one."""


class ReadableLog(AnyClosable, Protocol):
    """A log that can be read."""

    def topics(self) -> list[str]: ...

    def describe_topic(self, name: str) -> TopicInfo: ...

    def describe_topics(self, names: Iterable[str]) -> list[TopicInfo]: ...

    def topic_settings(self, name: str) -> dict[str, Value]: ...

    def groups(self) -> list[str]: ...

    def describe_group(self, group: str) -> GroupDescription: ...

    def committed_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]: ...

    def consumer(
        self,
        topics: Iterable[str] = (),
        group: str | None = None,
        auto_offset_reset: OffsetReset = "earliest",
    ) -> AnyConsumer: ...


class OpenLog(ReadableLog, Protocol):
    """A log that can be read and changed."""

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        config: Mapping[str, object] | None = None,
    ) -> TopicInfo: ...

    def alter_topic(
        self,
        name: str,
        config: Mapping[str, object | None] | None = None,
        partitions: int | None = None,
    ) -> TopicInfo: ...

    def delete_topic(self, name: str) -> None: ...

    def delete_records(self, name: str, partition: int, before_offset: int) -> None: ...

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None: ...

    def delete_group(self, group: str) -> None: ...

    def acls(self, wanted: AclFilter = EVERY_ACL) -> list[Acl]: ...

    def create_acls(self, acls: Iterable[Acl]) -> None: ...

    def delete_acls(self, filters: Iterable[AclFilter | Acl]) -> list[Acl]: ...

    def users(self) -> list[UserInfo]: ...

    def set_password(
        self,
        user: str,
        password: str,
        *,
        mechanisms: Iterable[str] = EVERY_MECHANISM,
        iterations: int = DEFAULT_ITERATIONS,
    ) -> None: ...

    def delete_user(self, user: str) -> None: ...

    def producer(
        self,
        acks: Acks = "all",
        partitioner: str = "murmur2",
        compression: str | None = None,
    ) -> AnyProducer: ...
