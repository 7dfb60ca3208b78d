"""The log of another process, read from its files: no lock, no writes, no groups.

    with strandlog.read("./data") as log:
        for record in log.consumer(["orders"]).poll(): ...

Any number of processes may do this while an owner writes. They see what the owner made durable.
Positions are the reader's own affair: a consumer of this log has no group and commits nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from threading import Condition, RLock
from typing import NoReturn

from strandlog.broker.catalog import CATALOG_FILE, topic_from_document
from strandlog.broker.topic_rules import INTERNAL_TOPICS
from strandlog.client.closing import Closing
from strandlog.client.consumer import Consumer, OffsetReset
from strandlog.client.embedded import PartitionInfo, TopicInfo
from strandlog.client.membership import Membership
from strandlog.client.record_source import (
    FETCH_BYTES,
    Fetched,
    GroupWish,
    RecordSource,
    decode_records,
)
from strandlog.clock import Clock, SystemClock
from strandlog.errors import ClosedError, InvalidGroupError, TopicNotFoundError, UnknownLayoutError
from strandlog.model import TimestampOffset, TopicPartition
from strandlog.storage.checkpoint import read_document
from strandlog.storage.files import DiskFiles, Files
from strandlog.storage.folder_view import FolderView
from strandlog.storage.paths import join


class FolderSource:
    """`RecordSource` over the files of a folder."""

    def __init__(self, folder: FolderView) -> None:
        self._folder = folder

    def partition_count(self, topic: str) -> int:
        count = self._folder.partitions().get(topic)
        if count is None:
            raise TopicNotFoundError(topic)
        return count

    def offset_range(self, tp: TopicPartition) -> tuple[int, int]:
        view = self._folder.view(tp)
        view.look_again()
        return view.start_offset, view.end_offset

    def readable_end(self, tp: TopicPartition) -> int:
        return self._folder.view(tp).end_offset

    def fetch(self, tp: TopicPartition, offset: int) -> Fetched:
        view = self._folder.view(tp)
        data = view.read(offset, FETCH_BYTES)
        if not data:
            return Fetched([], max(offset, view.end_offset))
        return decode_records(data, tp, offset, view.end_offset, view.folder)

    def find_timestamp(self, tp: TopicPartition, timestamp_ms: int) -> TimestampOffset | None:
        return self._folder.view(tp).find_timestamp(timestamp_ms)


class FolderLog(Closing):
    """A log opened beside its owner. Made by `strandlog.read`."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        files: Files | None = None,
    ) -> None:
        self.path = os.path.abspath(path) if files is None else os.fspath(path)
        self._files: Files = files or DiskFiles()
        if not self._files.exists(self.path):
            raise UnknownLayoutError(self.path, "there is no such folder")
        self.clock: Clock = clock or SystemClock()
        self.condition = Condition(RLock())
        self.is_closed = False
        self._folder = FolderView(self._files, self.path)
        self._source = FolderSource(self._folder)

    @property
    def source(self) -> RecordSource:
        return self._source

    def topics(self) -> list[str]:
        """The names of all topics, without the log's own."""
        self._check_open()
        return sorted(set(self._folder.partitions()) - INTERNAL_TOPICS)

    def describe_topic(self, name: str) -> TopicInfo:
        """Partitions, offsets, sizes and settings of a topic."""
        self._check_open()
        count = self._source.partition_count(name)
        document = read_document(self._files, join(self.path, CATALOG_FILE), []) or {"topics": {}}
        described = document["topics"].get(name)
        topic = topic_from_document(name, described) if described else None
        partitions = []
        for number in range(count):
            view = self._folder.view(TopicPartition(name, number))
            view.look_again()
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

    def consumer(
        self, topics: Iterable[str] = (), auto_offset_reset: OffsetReset = "earliest"
    ) -> Consumer:
        """Something to read records with."""
        self._check_open()
        return Consumer(self, topics, None, auto_offset_reset)

    def _check_open(self) -> None:
        if self.is_closed:
            raise ClosedError("log")

    def close(self) -> None:
        """Let go of the files; idempotent."""
        self.is_closed = True
        self._folder.close()

    # -- for consumers -------------------------------------------------------------------------

    def tick(self) -> int:
        return self.clock.now_ms()

    def make_visible(self, partitions: Iterable[TopicPartition]) -> None:
        """Only the owner can do that."""

    def wait(self, timeout_ms: int) -> None:
        """Nobody tells a guest about new records: it looks again after a while."""
        self.condition.wait(timeout_ms / 1000)

    def join_group(self, wish: GroupWish) -> Membership:
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
        group, "a log opened with strandlog.read has no groups; open it instead"
    )
