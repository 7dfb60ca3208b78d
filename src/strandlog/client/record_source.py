"""The interfaces between a consumer and its log.

The same `Consumer` class reads a folder that this process owns or has opened read-only.
`RecordSource` supplies the records; `ConsumerHost` is the log, with its lock, clock and groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from strandlog.clock import Clock
from strandlog.errors import (
    CorruptSegmentError,
    DataError,
    IllegalGenerationError,
    NotOwnerError,
    RebalanceInProgressError,
    UndecodableBatchError,
    UnknownMemberError,
)
from strandlog.model import Buffer, Record, TimestampOffset, TopicPartition
from strandlog.record.aborted import AbortedBatches
from strandlog.record.batch_header import BatchHeader
from strandlog.storage.segment.scan import batches_of_read

if TYPE_CHECKING:
    from strandlog.client.embedded.membership import Membership

FETCH_BYTES = 1024 * 1024
# Errors of a member that commits after its group has rebalanced without it. An auto-commit ignores
# them: the new owners read the records again.
REBALANCED = (UnknownMemberError, IllegalGenerationError, RebalanceInProgressError, NotOwnerError)


class Fetched(NamedTuple):
    """Decoded records, and the offset at which the next read starts (after any gap)."""

    records: Any  # list[Record], or arrow.rows.ArrowRows
    next_offset: int
    is_transaction_next: bool = False  # decoding stopped before a transactional batch


# The (producer id, first offset) of aborted transactions; None if they are not known.
Aborted = Sequence[tuple[int, int]] | None
Decode = Callable[[Buffer, TopicPartition, int, int, str, int, Aborted], Fetched]


class RecordSource(Protocol):
    """Supplies the records and offsets of partitions."""

    def partition_count(self, topic: str) -> int:
        """Return the number of partitions; raise `TopicNotFoundError` if the topic is unknown."""

    def offset_range(self, tp: TopicPartition) -> tuple[int, int]:
        """Return the log start offset and the end offset."""

    def readable_end(self, tp: TopicPartition) -> int:
        """Return the offset after the last durable record: below the end offset if records are
        unflushed. If a transaction is open, `fetch` ends before it."""

    def topic_id(self, tp: TopicPartition) -> str:
        """Return the id of the topic that the last call about this partition found. The result is
        "" if the id is unknown, or if the log notifies its consumers of deleted topics."""

    def fetch(self, tp: TopicPartition, offset: int, decode: Decode, topic_id: str = "") -> Fetched:
        """Return decoded records starting at an offset, or none if the offset is at the end.

        The end is the last stable offset. Records of aborted transactions are omitted. Raise
        `UnknownTopicIdError` if a topic id is given and another topic has the name now.
        """

    def find_timestamp(self, tp: TopicPartition, timestamp_ms: int) -> TimestampOffset | None:
        """Return the timestamp and offset of the first record at or after a time, if any."""


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
    lock: RLock
    path: str
    is_closed: bool
    is_forked: bool

    @property
    def source(self) -> RecordSource: ...

    def tick(self) -> int:
        """Run the maintenance tasks that are due, if any, and return the wall-clock time."""

    def make_visible(self, partitions: Iterable[TopicPartition]) -> None:
        """Flush written records so that readers can see them, if this log can do that."""

    def wait(self, timeout_ms: int) -> None:
        """Release the lock until there may be new records, or until `timeout_ms` has passed."""

    def join_group(self, wish: GroupSubscription) -> Membership:
        """Join a group."""

    def leave_group(self, membership: Membership) -> None:
        """Leave the group."""

    def committed_offset(self, group: str, tp: TopicPartition) -> int | None:
        """Return the committed offset of a partition, or None if there is none."""

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets for a group that has no members."""


def decode_records(
    data: Buffer,
    tp: TopicPartition,
    offset: int,
    end_offset: int,
    path: str,
    limit_bytes: int,
    aborted: Aborted,
) -> Fetched:
    """Decode the records of the batches in `data` from `offset` to `end_offset`.

    Omit control records and the records of the aborted transactions; if these transactions are not
    known, stop before the first transactional batch.

    Stop before an unreadable batch and return the records before it. If the first batch is
    unreadable, raise `CorruptSegmentError` or `UndecodableBatchError`.
    """
    records: list[Record] = []
    next_offset = offset
    hidden = AbortedBatches(aborted) if aborted else None
    try:
        for batch in batches_of_read(data, path=path, offset=offset, end_offset=end_offset):
            header = batch.header
            if aborted is None and header.is_transactional:
                return Fetched(records, next_offset, is_transaction_next=True)
            try:
                is_hidden = header.is_control if hidden is None else hidden.hides(batch)
                if not is_hidden and header.record_count:
                    records += batch.records(tp.topic, tp.partition, offset, limit_bytes)
            except DataError as error:
                raise undecodable(tp, header, error) from error
            next_offset = header.next_offset
    except (CorruptSegmentError, UndecodableBatchError):
        if next_offset == offset:
            raise
    return Fetched(records, next_offset)


def undecodable(tp: TopicPartition, header: BatchHeader, error: DataError) -> UndecodableBatchError:
    """Create the error for a batch whose records cannot be decoded."""
    return UndecodableBatchError(*tp, header.base_offset, header.last_offset, str(error))
