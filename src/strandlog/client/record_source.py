"""What a consumer needs from a log.

The same `Consumer` reads a folder that this process owns and one that another process owns.
`RecordSource` supplies records; `ConsumerHost` is the log around it: lock, clock and groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from threading import Condition
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from strandlog.clock import Clock
from strandlog.errors import CorruptSegmentError, DataError, UndecodableBatchError
from strandlog.model import Record, TimestampOffset, TopicPartition
from strandlog.record.batch_header import BatchHeader
from strandlog.storage.files import Buffer
from strandlog.storage.segment.scan import batches_of_read

if TYPE_CHECKING:
    from strandlog.client.embedded.membership import Membership

FETCH_BYTES = 1024 * 1024


class Fetched(NamedTuple):
    """Decoded records, and the offset after them (gaps included)."""

    records: Any  # list[Record], or arrow.rows.ArrowRows
    next_offset: int


Decode = Callable[[Buffer, TopicPartition, int, int, str, int], Fetched]


class RecordSource(Protocol):
    """Supplies records and offsets of partitions."""

    def partition_count(self, topic: str) -> int:
        """Number of partitions of a topic; raises `TopicNotFoundError`."""

    def offset_range(self, tp: TopicPartition) -> tuple[int, int]:
        """(log start offset, end offset)."""

    def readable_end(self, tp: TopicPartition) -> int:
        """End of what can be read now; lower than the end offset while the disk fails."""

    def fetch(self, tp: TopicPartition, offset: int, decode: Decode) -> Fetched:
        """Decoded records from an offset; none at the end."""

    def find_timestamp(self, tp: TopicPartition, timestamp_ms: int) -> TimestampOffset | None:
        """The first record at or after a time."""


class GroupSubscription(NamedTuple):
    """A consumer's request to join a group, and its callbacks."""

    group: str
    topics: list[str]
    assignors: list[str]
    max_poll_interval_ms: int
    on_assigned: Callable[[list[TopicPartition]], None]
    is_settled: Callable[[], bool]
    before_rejoin: Callable[[], None]


class ConsumerHost(Protocol):
    """The log that a consumer belongs to."""

    clock: Clock
    condition: Condition
    is_closed: bool

    @property
    def source(self) -> RecordSource: ...

    def tick(self) -> int:
        """Run maintenance that is due."""

    def make_visible(self, partitions: Iterable[TopicPartition]) -> None:
        """Make written records visible to readers, as far as possible."""

    def wait(self, timeout_ms: int) -> None:
        """Release the lock until records are appended or the time is over."""

    def join_group(self, wish: GroupSubscription) -> Membership:
        """Join a group."""

    def leave_group(self, membership: Membership) -> None:
        """Leave the group."""

    def committed_offset(self, group: str, tp: TopicPartition) -> int | None:
        """The committed offset of a partition."""

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets of a group without members."""


def decode_records(
    data: Buffer,
    tp: TopicPartition,
    offset: int,
    end_offset: int,
    path: str,
    limit_bytes: int,
) -> Fetched:
    """Decode the records of the batches in `data` from `offset` to `end_offset`.

    Before an unreadable batch it returns the records so far; a read that starts at that batch
    raises `CorruptSegmentError` or `UndecodableBatchError`.
    """
    records: list[Record] = []
    next_offset = offset
    try:
        for batch in batches_of_read(data, path=path, offset=offset, end_offset=end_offset):
            header = batch.header
            if not header.is_control and header.record_count:
                try:
                    records += batch.records(tp.topic, tp.partition, offset, limit_bytes)
                except DataError as error:
                    raise undecodable(tp, header, error) from error
            next_offset = header.next_offset
    except (CorruptSegmentError, UndecodableBatchError):
        if next_offset == offset:
            raise
    return Fetched(records, next_offset)


def undecodable(tp: TopicPartition, header: BatchHeader, error: DataError) -> UndecodableBatchError:
    """The error for a batch whose records cannot be decoded."""
    return UndecodableBatchError(*tp, header.base_offset, header.last_offset, str(error))
