"""The read-only log, which reads the files of a folder that another process may own.

    with strandlog.read("./data") as log:
        for record in log.consumer(["orders"]).poll(): ...

It takes no lock and writes nothing. Any number of processes may read while an owner writes; they
see the records that the owner has made durable. A consumer of this log has no group and commits
nothing.

An owner that compacts or rolls segments changes the files between two reads. A reader could mistake
a segment that is being swapped for a gap, and skip acknowledged records. A gap, an offset below the
start, or damage is therefore only accepted as real if no swap is in progress and the files are the
same before and after the read.

Consumers do not receive records of open and aborted transactions. The log looks for transactions
(committed_views.py) only if a read meets a transactional batch, or if it starts in the middle of a
partition and the folder has transactions, because an earlier transaction could be open there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import Condition, RLock
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from strandlog.broker.groups.requests import GroupDescription
from strandlog.broker.topics.topic import (
    INTERNAL_TOPICS,
    TRANSACTIONS_TOPIC,
    topic_from_document,
)
from strandlog.client.api import OpenLog, PartitionInfo, TopicInfo
from strandlog.client.arguments import OffsetReset, OnUnreadable
from strandlog.client.consumer import Consumer
from strandlog.client.embedded.membership import Membership
from strandlog.client.lifecycle import Closable, state_of, wait_on
from strandlog.client.readonly.committed_views import CommittedViews, stable_files
from strandlog.client.readonly.groups import ReadOnlyGroups
from strandlog.client.record_source import (
    FETCH_BYTES,
    Aborted,
    Decode,
    Fetched,
    GroupSubscription,
    RecordSource,
    decode_records,
)
from strandlog.clock import Clock, SystemClock
from strandlog.config.setting import Value
from strandlog.config.tables.topic import TOPIC_SETTINGS
from strandlog.errors import (
    ClosedError,
    CorruptSegmentError,
    DataError,
    InvalidGroupError,
    OffsetOutOfRangeError,
    StorageError,
    StrandlogError,
    TopicNotFoundError,
    UndecodableBatchError,
    UnknownTopicIdError,
)
from strandlog.model import Buffer, OffsetAndMetadata, Record, TimestampOffset, TopicPartition
from strandlog.record.batch_header import end_offset_of, read_header
from strandlog.record.codecs import DEFAULT_DECOMPRESSED_LIMIT_BYTES
from strandlog.storage.files import DiskFiles, Files
from strandlog.storage.folder.checkpoint import read_document
from strandlog.storage.folder.log_dir import read_topic_id
from strandlog.storage.paths import (
    LOG_SUFFIX,
    SWAP_SUFFIX,
    TOPIC_CATALOG,
    join,
    parse_segment_file,
    segment_stem,
)
from strandlog.storage.readonly.committed import CommittedView, committed_view
from strandlog.storage.readonly.view import FolderView, PartitionView

MAX_STABLE_READ_ATTEMPTS = 16
# Errors that a file swap can cause although the files are intact.
UNUSUAL = (OffsetOutOfRangeError, CorruptSegmentError, UndecodableBatchError, DataError)

T = TypeVar("T")


class RawFetched(NamedTuple):
    """Raw batches, the last of which may be incomplete, and the next offset."""

    data: Buffer
    next_offset: int


class ReadOnlySource:
    """A `RecordSource` that reads the files of a folder."""

    def __init__(self, folder: FolderView, files: Files) -> None:
        self._folder = folder
        self._files = files
        self._committed = CommittedViews(files)
        self._stable_until: dict[TopicPartition, tuple[str, int]] = {}  # topic id and offset

    def partition_count(self, topic: str) -> int:
        count = self._folder.partitions().get(topic)
        if count is None:
            raise TopicNotFoundError(topic)
        return count

    def offset_range(self, tp: TopicPartition) -> tuple[int, int]:
        with self._view_of(tp) as view:
            found = self._stable(view, lambda _: (view.start_offset, view.end_offset))
            if found is not None:
                return found
            start = min([view.start_offset, *self._swapped_bases(view)])
            return max(start, view.checkpointed_log_start), view.end_offset

    def _swapped_bases(self, view: PartitionView) -> list[int]:
        """Return the base offsets of segments being swapped, which may briefly have no log file."""
        names = self._files.list_dir(view.folder)
        parsed = filter(None, map(parse_segment_file, names))
        return [base for base, _, state in parsed if state == SWAP_SUFFIX]

    def readable_end(self, tp: TopicPartition) -> int:
        with self._view_of(tp) as view:
            return view.end_offset

    def topic_id(self, tp: TopicPartition) -> str:
        with self._view_of(tp) as view:
            return view.topic_id

    def fetch(self, tp: TopicPartition, offset: int, decode: Decode, topic_id: str = "") -> Fetched:
        with self._view_of(tp) as view:
            try:
                fetched = self._fetch(view, offset, decode)
            except (StrandlogError, FileNotFoundError):
                self._check_topic_id(view, topic_id)
                raise
            self._check_topic_id(view, topic_id)
            return fetched

    def _check_topic_id(self, view: PartitionView, topic_id: str) -> None:
        """Raise `UnknownTopicIdError` if a read that has just ended may have found files of another
        topic of the same name. A read below the end offset does not refresh the view, so the id in
        the folder is checked too."""
        if not topic_id:
            return
        for found in (view.topic_id, read_topic_id(self._files, view.folder)):
            if found not in ("", topic_id):
                raise UnknownTopicIdError(
                    f"topic {view.tp.topic!r} was deleted and recreated; seek to an offset of the "
                    "new topic, or create a new consumer"
                )

    def _fetch(self, view: PartitionView, offset: int, decode: Decode) -> Fetched:
        reads_ahead = self._is_stable(view, offset)
        with contextlib.suppress(*UNUSUAL):
            if reads_ahead:
                fetched = _read(view, offset, offset, decode)
                is_at_end = fetched.next_offset == offset == view.end_offset
                if is_at_end or (fetched.records and fetched.records[0].offset == offset):
                    self._note_stable(view, fetched.next_offset)
                    return fetched
                reads_ahead = not fetched.is_transaction_next
        found = self._stable(
            view,
            lambda end_offset: self._read_stable(view, offset, end_offset, decode, reads_ahead),
        )
        if found is None:
            return Fetched([], offset)
        if found.next_offset > offset:
            self._note_stable(view, found.next_offset)
        return found

    def _is_stable(self, view: PartitionView, offset: int) -> bool:
        """Return whether it is certain that no transaction is open at an offset: everything before
        it has been read, it is the start of the log, or the folder has no transactions."""
        return (
            offset <= self._stable_end(view)
            or offset <= view.start_offset
            or TRANSACTIONS_TOPIC not in self._folder.partitions()
        )

    def _stable_end(self, view: PartitionView) -> int:
        """Return the highest offset at which reads have found no open transaction, or 0."""
        topic_id, offset = self._stable_until.get(view.tp, ("", 0))
        return offset if topic_id == view.topic_id else 0

    def _note_stable(self, view: PartitionView, offset: int) -> None:
        """Remember that no transaction is open at an offset."""
        if offset > self._stable_end(view):
            self._stable_until[view.tp] = (view.topic_id, offset)

    def _read_stable(
        self,
        view: PartitionView,
        offset: int,
        end_offset: int,
        decode: Decode,
        reads_ahead: bool,
    ) -> Fetched:
        """Read committed records; the caller checks that the files do not change during the call.

        With `reads_ahead`, a read up to the first transactional batch needs no committed view; if
        it finds no records, the next read starts at `end_offset`. A read that starts with a
        transactional batch, or without `reads_ahead`, ends at the last stable offset of the
        committed view, and so does a gap that it finds."""
        if reads_ahead:
            fetched = _read(view, offset, end_offset, decode)
            if fetched.next_offset > offset or not fetched.is_transaction_next:
                return fetched
        for _ in range(MAX_STABLE_READ_ATTEMPTS):
            segments = view.segments
            fetched = self._read_committed(view, offset, decode)
            if view.segments == segments:  # view and records come from the same files
                return fetched
        return Fetched([], offset)

    def _read_committed(self, view: PartitionView, offset: int, decode: Decode) -> Fetched:
        committed = self._committed.at(view, offset)
        stable_offset = committed.last_stable_offset
        if offset >= stable_offset:
            if offset > view.end_offset:
                raise OffsetOutOfRangeError(*view.tp, offset, view.start_offset, view.end_offset)
            if committed.damage is not None:
                raise committed.damage
            return Fetched([], offset)
        aborted = _aborted_from(committed, offset)
        return _read(view, offset, stable_offset, decode, stable_offset, aborted)

    def read_past_open_transactions(self, tp: TopicPartition, offset: int) -> list[Record]:
        """Return the records from an offset to the end, even beyond the last stable offset, without
        the records of open and aborted transactions."""
        with self._view_of(tp) as view:
            if offset >= view.end_offset:
                return []
            found = self._stable(view, lambda _: self._read_past_open(view, offset))
        if found is None:
            raise StorageError(f"the files of {tp} keep changing; retry")
        return found

    def _read_past_open(self, view: PartitionView, offset: int) -> list[Record]:
        end_offset = view.end_offset
        committed = committed_view(self._files, view)
        if committed.damage is not None:
            raise committed.damage
        records: list[Record] = []
        while offset < end_offset:
            hidden = [*_aborted_from(committed, offset), *committed.open]
            fetched = _read(view, offset, end_offset, decode_records, end_offset, hidden)
            records += fetched.records
            offset = fetched.next_offset
        return records

    def fetch_raw(self, tp: TopicPartition, offset: int, max_bytes: int) -> RawFetched:
        """Return raw batches, starting with the one that contains or follows `offset`. There are
        none if no such batch exists, or if the files keep changing."""

        def read(view: PartitionView, offset: int, end_offset: int) -> RawFetched:
            data = view.read(offset, max_bytes)
            next_offset = end_offset_of(data)
            return RawFetched(data, max(offset, next_offset if data else end_offset))

        with self._view_of(tp) as view:
            with contextlib.suppress(*UNUSUAL):
                fetched = read(view, offset, offset)
                has_it = len(fetched.data) and read_header(fetched.data).base_offset <= offset
                if has_it or fetched.next_offset == offset == view.end_offset:
                    return fetched
            found = self._stable(view, lambda end_offset: read(view, offset, end_offset))
            return found or RawFetched(b"", offset)

    def committed_view(self, tp: TopicPartition) -> CommittedView | None:
        """Return the last stable offset and the aborted transactions of a partition, or None if its
        files keep changing."""
        with self._view_of(tp) as view:
            return self._stable(view, lambda _: committed_view(self._files, view))

    def _stable(self, view: PartitionView, read: Callable[[int], T]) -> T | None:
        """Call `read` until the files stay the same during a call; give up and return None after
        MAX_STABLE_READ_ATTEMPTS.

        `read` receives the end offset before the call; the files extend at least that far.
        """
        for _ in range(MAX_STABLE_READ_ATTEMPTS):
            before = stable_files(self._files, view.folder, (LOG_SUFFIX,))
            end_offset = view.end_offset
            view.refresh()
            error: Exception | None = None
            try:
                result = read(end_offset)
            except (*UNUSUAL, FileNotFoundError) as unusual:
                error = unusual
            # The size of the last file is not compared, but this file may be swapped too. So also
            # require that `read` saw all files.
            seen = {segment_stem(each.base_offset) + LOG_SUFFIX for each in view.segments}
            after = stable_files(self._files, view.folder, (LOG_SUFFIX,))
            if before is not None and before.keys() == seen and before == after:
                if error is not None:
                    raise error
                return result
        return None

    def find_timestamp(self, tp: TopicPartition, timestamp_ms: int) -> TimestampOffset | None:
        with self._view_of(tp) as view:
            found = self._stable(view, lambda _: [view.find_timestamp(timestamp_ms)])
        if found is None:
            raise StorageError(f"the files of {tp} keep changing; retry")
        return found[0]

    def split_offsets(
        self, tp: TopicPartition, start_offset: int, end_offset: int, pieces: int
    ) -> list[int]:
        """Return offsets that split a range into parts of roughly equal size in bytes, or none if
        the files keep changing."""
        with self._view_of(tp) as view:
            return (
                self._stable(view, lambda _: view.split_offsets(start_offset, end_offset, pieces))
                or []
            )

    @contextlib.contextmanager
    def _view_of(self, tp: TopicPartition) -> Iterator[PartitionView]:
        """Yield the view of a partition; translate errors caused by files that disappear."""
        try:
            yield self._folder.view(tp)
        except FileNotFoundError as error:
            if tp.partition < self._folder.partitions().get(tp.topic, 0):
                raise StorageError(
                    f"the files of {tp} change too quickly to be read: {error}"
                ) from error
            raise TopicNotFoundError(tp.topic) from None


def _aborted_from(committed: CommittedView, offset: int) -> list[tuple[int, int]]:
    """Return the producer id and the first offset of the aborted transactions that end at or after
    an offset."""
    return [
        (entry.producer_id, entry.first_offset)
        for entry in committed.aborted
        if entry.last_offset >= offset
    ]


def _read(
    view: PartitionView,
    offset: int,
    next_offset: int,
    decode: Decode,
    stable_offset: int | None = None,
    aborted: Aborted = None,
) -> Fetched:
    """Read from an offset up to the last stable offset or, if that is not known, up to the first
    transactional batch. If there is no data, the next read starts at `next_offset`."""
    data = view.read(offset, FETCH_BYTES)
    end_offset = view.end_offset if stable_offset is None else stable_offset
    if not data or (stable_offset is not None and read_header(data).base_offset >= stable_offset):
        return Fetched([], max(offset, next_offset))
    limit_bytes = DEFAULT_DECOMPRESSED_LIMIT_BYTES
    return decode(data, view.tp, offset, end_offset, view.folder, limit_bytes, aborted)


class ReadOnlyLog(Closable):
    """A read-only log, returned by `strandlog.read`."""

    internal_names = frozenset(
        {
            "clock",
            "commit_offsets",
            "committed_offset",
            "is_forked",
            "join_group",
            "leave_group",
            "lock",
            "make_visible",
            "source",
            "tick",
            "wait",
        }
    )

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        files: Files | None = None,
    ) -> None:
        self.path = os.path.abspath(path) if files is None else os.fspath(path)
        self._files: Files = files or DiskFiles()
        self.clock: Clock = clock or SystemClock()
        self.lock = RLock()
        self._condition = Condition(self.lock)
        self.is_closed = False
        self.is_forked = False  # a forked child can continue to read
        self._folder = FolderView(self._files, self.path)
        self._source = ReadOnlySource(self._folder, self._files)
        self._groups = ReadOnlyGroups(self.consumer, self._read_past_open_transactions)

    if not TYPE_CHECKING:  # hidden from type checkers, which would accept any attribute

        def __getattr__(self, name: str) -> NoReturn:
            if hasattr(OpenLog, name):
                raise AttributeError(
                    f"a log opened with strandlog.read is read-only and has no {name}: use "
                    "strandlog.open, or strandlog.connect if a broker owns the folder"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"<strandlog.ReadOnlyLog {self.path!r}, {state_of(self)}>"

    @property
    def source(self) -> RecordSource:
        return self._source

    def topics(self) -> list[str]:
        """Return the names of all topics except internal ones."""
        self._check_open()
        return sorted(set(self._folder.partitions()) - INTERNAL_TOPICS)

    def describe_topic(self, name: str) -> TopicInfo:
        """Return the partitions, offsets, sizes and settings of a topic."""
        return self.describe_topics([name])[0]

    def describe_topics(self, names: Iterable[str]) -> list[TopicInfo]:
        """Return the partitions, offsets, sizes and settings of several topics."""
        self._check_open()
        document = read_document(self._files, join(self.path, TOPIC_CATALOG), []) or {"topics": {}}
        with self.lock:
            self._folder.read_log_starts()
            return [self._describe(name, document["topics"].get(name)) for name in names]

    def _describe(self, name: str, described: dict[str, Any] | None) -> TopicInfo:
        count = self._source.partition_count(name)
        topic = topic_from_document(name, described) if described else None
        partitions = []
        for number in range(count):
            view = self._folder.view(TopicPartition(name, number))
            view.refresh()
            partitions.append(
                PartitionInfo(
                    number,
                    view.start_offset,
                    view.end_offset,
                    view.size_bytes,
                    len(view.segments),
                )
            )
        return TopicInfo(
            name,
            topic.topic_id if topic else "",
            tuple(partitions),
            dict(topic.config) if topic else {},
        )

    def topic_settings(self, name: str) -> dict[str, Value]:
        """Return all settings of a topic. The defaults are strandlog's, not the owner's."""
        return TOPIC_SETTINGS.resolve(self.describe_topic(name).config)

    def groups(self) -> list[str]:
        """Return the names of all groups, as last stored by the owner."""
        return self._groups.names()

    def describe_group(self, group: str) -> GroupDescription:
        """Return the state and members of a group as of its last completed rebalance."""
        return self._groups.describe(group)

    def committed_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of a group."""
        return self._groups.committed_offsets(group)

    def consumer(
        self,
        topics: Iterable[str] = (),
        group: str | None = None,
        auto_offset_reset: OffsetReset = "earliest",
        on_unreadable: OnUnreadable = "raise",
        consumer_timeout_ms: int | None = 0,
    ) -> Consumer:
        """Create a consumer, which cannot be a member of a group.

        `topics`: the names of the topics to read; leave it empty to set partitions with `assign`.
        `group`: must be None, because only the owner of the folder can run groups.
        `auto_offset_reset`: "earliest" starts with the oldest records, "latest" with new ones.
        "none" starts like "earliest", but raises an error if records are deleted before the
        consumer has read them.
        `on_unreadable`: "raise" an error for a batch that cannot be read, or "skip" the batch and
        add its offsets to `skipped`.
        `consumer_timeout_ms`: how long `for record in consumer` waits for the next record before
        it ends: 0 ends at the last record, None waits indefinitely.
        """
        self._check_open()
        if group is not None:
            _refuse(group)
        with self.lock:
            self._folder.read_log_starts()
        return Consumer(
            self,
            topics,
            None,
            auto_offset_reset,
            on_unreadable=on_unreadable,
            consumer_timeout_ms=consumer_timeout_ms,
        )

    def _read_past_open_transactions(self, tp: TopicPartition, offset: int) -> list[Record]:
        with self.lock:
            return self._source.read_past_open_transactions(tp, offset)

    def _check_open(self) -> None:
        if self.is_closed:
            raise ClosedError("log")

    def close(self) -> None:
        """Close the files. This method is idempotent."""
        self.is_closed = True
        self._folder.close()

    # -- for consumers -------------------------------------------------------------------------

    def tick(self) -> int:
        return self.clock.now_ms()

    def make_visible(self, partitions: Iterable[TopicPartition]) -> None:
        """Do nothing, because only the owner can make records visible."""

    def wait(self, timeout_ms: int) -> None:
        """Sleep for `timeout_ms`, because the owner cannot notify this log of new records."""
        wait_on(self._condition, timeout_ms / 1000)

    def join_group(self, wish: GroupSubscription) -> Membership:
        _refuse(wish.group)

    def leave_group(self, membership: Membership) -> None:
        _refuse(membership.group)

    def committed_offset(self, group: str, tp: TopicPartition) -> int | None:
        del tp
        _refuse(group)

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        del offsets
        _refuse(group)


def _refuse(group: str) -> NoReturn:
    raise InvalidGroupError(
        None,
        f"a log opened with strandlog.read is read-only and cannot join group {group!r}: use "
        "strandlog.open, or strandlog.connect if a broker owns the folder",
    )
