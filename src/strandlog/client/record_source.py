"""What a consumer needs of a log, and nothing else.

So the same consumer reads a folder that this process owns, and one that another process owns.
`RecordSource` gives records; `ConsumerHost` is the log around it: its lock, its clock, its groups.
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

    records: Any  # list[Record], or the same as columns: arrow_rows.ArrowRows
    next_offset: int


Decode = Callable[[Buffer, TopicPartition, int, int, str, int], Fetched]


class RecordSource(Protocol):
    """What a consumer needs of a log."""

    def partition_count(self, topic: str) -> int:
        """How many partitions a topic has; `TopicNotFoundError` when there is none."""

    def offset_range(self, tp: TopicPartition) -> tuple[int, int]:
        """(log start offset, offset after the last record)."""

    def readable_end(self, tp: TopicPartition) -> int:
        """The offset after the last record that can be read now; less while a disk is refusing."""

    def fetch(self, tp: TopicPartition, offset: int, decode: Decode) -> Fetched:
        """Some records from an offset on, decoded; none when the end is reached."""

    def find_timestamp(self, tp: TopicPartition, timestamp_ms: int) -> TimestampOffset | None:
        """The first record at or after a time."""


class GroupSubscription(NamedTuple):
    """What a consumer wants of a group, and what it must be told and asked."""

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
        """Do the chores that are due."""

    def make_visible(self, partitions: Iterable[TopicPartition]) -> None:
        """Let a reader see all that is written, as far as possible."""

    def wait(self, timeout_ms: int) -> None:
        """Let go of the lock until something was appended, or for so long."""

    def join_group(self, wish: GroupSubscription) -> Membership:
        """Become a member of a group."""

    def leave_group(self, membership: Membership) -> None:
        """Hand the partitions back."""

    def committed_offset(self, group: str, tp: TopicPartition) -> int | None:
        """Where a group goes on in a partition."""

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set the positions of a group that has no members."""


def decode_records(
    data: Buffer,
    tp: TopicPartition,
    offset: int,
    end_offset: int,
    path: str,
    limit_bytes: int,
) -> Fetched:
    """The records of the batches in `data` from `offset` up to `end_offset`.

    A batch that cannot be read hides only itself: the records before it are returned, and a read
    that begins with it raises `CorruptSegmentError` or `UndecodableBatchError`.
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
