"""The two ways to a log: a cluster over the wire, and a folder's files. The source sees one kind.

A `LogAccess` is made where it is needed, on the driver and in every task, out of the options, which
pickle; it does not.

    partitions        what there is to read, by the options
    bounds            where each partition begins, and how far it may be read now: to the last
                      stable offset, unless uncommitted records are wanted; of those that there are
                      to read, or of some of which some may be gone
    offsets_at        the first offset at or after a time, in each partition
    read              the raw batches of a range, piece by piece
    commit_offsets    what a query has done, for whoever looks at its group
    record_bytes      about how large a record of each partition is
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from strandlog.broker.topic_rules import INTERNAL_TOPICS
from strandlog.client.files import FolderSource
from strandlog.errors import InvalidSettingError, TopicNotFoundError
from strandlog.model import TopicPartition
from strandlog.spark.options import Options
from strandlog.spark.planning import OffsetRange
from strandlog.storage.files import Buffer, DiskFiles
from strandlog.storage.folder_view import FolderView
from strandlog.storage.txn_index import AbortedTransaction

READ_BYTES = 8 * 1024 * 1024

Aborted = Sequence[tuple[int, int]]


class Bounds(NamedTuple):
    """What may be read of a partition now, the end exclusive."""

    earliest: int
    latest: int


class RawPiece(NamedTuple):
    """Some batches of a range, as they are kept, and which of their transactions were aborted."""

    data: Buffer
    aborted: Aborted


class LogAccess(Protocol):
    """One way to a log."""

    def partitions(self) -> list[TopicPartition]: ...
    def bounds(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Bounds]: ...
    def offsets_at(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]: ...
    def read(self, wanted: OffsetRange) -> Iterator[RawPiece]: ...
    def record_bytes(
        self, bounds: Mapping[TopicPartition, Bounds]
    ) -> dict[TopicPartition, float]: ...
    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None: ...
    def close(self) -> None: ...


def chosen(options: Options, existing: Mapping[str, int]) -> list[TopicPartition]:
    """What the options ask for, of topics with so many partitions."""
    assigned: list[TopicPartition] | None = options["assign"]
    if assigned is not None:
        for tp in assigned:
            if tp.partition >= existing.get(tp.topic, 0):
                raise TopicNotFoundError(tp.topic, tp.partition, existing.get(tp.topic, 0))
        return sorted(assigned)
    pattern: str | None = options["subscribePattern"]
    if pattern is not None:
        visible = existing.keys() - INTERNAL_TOPICS
        names = [name for name in visible if re.fullmatch(pattern, name)]
    else:
        names = list(options["subscribe"])
    for name in names:
        if name not in existing:
            raise TopicNotFoundError(name)
    return sorted(
        TopicPartition(name, number) for name in names for number in range(existing[name])
    )


class FolderAccess:
    """A folder's files, beside whoever owns it."""

    def __init__(self, options: Options) -> None:
        self._options = options
        files = DiskFiles()
        self._folder = FolderView(files, options["path"])
        self._source = FolderSource(self._folder, files)

    def partitions(self) -> list[TopicPartition]:
        return chosen(self._options, self._folder.partitions())

    def bounds(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Bounds]:
        found: dict[TopicPartition, Bounds] = {}
        for tp in self.partitions() if partitions is None else partitions:
            try:
                earliest, latest = self._source.offset_range(tp)
                if self._options.is_committed_only:
                    latest = self._source.stable_view(tp).last_stable_offset
            except TopicNotFoundError:
                continue
            found[tp] = Bounds(earliest, max(earliest, latest))
        return found

    def offsets_at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        found: dict[TopicPartition, int | None] = {}
        for tp, timestamp_ms in times.items():
            at = self._source.find_timestamp(tp, timestamp_ms)
            found[tp] = None if at is None else at.offset
        return found

    def read(self, wanted: OffsetRange) -> Iterator[RawPiece]:
        aborted: list[AbortedTransaction] = []
        if self._options.is_committed_only:
            aborted = self._source.stable_view(wanted.tp).aborted
        offset = wanted.start
        while offset < wanted.end:
            fetched = self._source.fetch_raw(wanted.tp, offset, READ_BYTES)
            if len(fetched.data):
                # One that ended before this piece must not be taken for one that goes on in it.
                overlapping = [
                    (entry.producer_id, entry.first_offset)
                    for entry in aborted
                    if entry.last_offset >= offset and entry.first_offset < fetched.next_offset
                ]
                yield RawPiece(fetched.data, overlapping)
            if fetched.next_offset <= offset:
                return
            offset = fetched.next_offset

    def record_bytes(self, bounds: Mapping[TopicPartition, Bounds]) -> dict[TopicPartition, float]:
        return {
            tp: self._folder.view(tp).size_bytes / max(1, bound.latest - bound.earliest)
            for tp, bound in bounds.items()
        }

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        del offsets
        raise InvalidSettingError(
            "groupId", group, "progress is committed to a broker, not a folder"
        )

    def close(self) -> None:
        self._folder.close()
