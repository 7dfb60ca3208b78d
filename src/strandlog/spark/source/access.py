"""`LogAccess`, the source's view of a log, and the choice between a cluster and a folder.

There are two: `ClusterAccess` (cluster_access.py) over the Kafka protocol, and `FolderAccess`
(folder_access.py) over a folder's files. Options pickle, a `LogAccess` does not: the driver and
every task open their own.

    partitions        the partitions that the options select
    bounds            the readable offsets of each partition: up to the last stable offset, or the
                      end if uncommitted records are wanted; of all selected partitions, or of those
                      given; deleted partitions are left out
    ends              where partitions end, open transactions included
    topic_id          the current id of a topic; None if it is unknown
    offsets_at        the first offset at or after a timestamp, in each partition
    read              the raw batches of a range, in pieces
    commit_offsets    commits the progress of a query to its group
    record_bytes      the approximate size of a record of each partition
    cut               where to cut a range into that many pieces, one for a task
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from strandlog.broker.topics.topic import INTERNAL_TOPICS
from strandlog.errors import TopicNotFoundError
from strandlog.model import TopicPartition
from strandlog.spark.options import Options
from strandlog.spark.source.continuity import Bounds
from strandlog.spark.source.planning import OffsetRange
from strandlog.storage.files import Buffer

Aborted = Sequence[tuple[int, int]]


class RawPiece(NamedTuple):
    """Some raw batches of a range, and which of their transactions were aborted."""

    data: Buffer
    aborted: Aborted


class LogAccess(Protocol):
    """A log as the source sees it."""

    def partitions(self) -> list[TopicPartition]: ...
    def bounds(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Bounds]: ...
    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]: ...
    def topic_id(self, tp: TopicPartition) -> str | None: ...
    def offsets_at(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]: ...
    def read(self, wanted: OffsetRange) -> Iterator[RawPiece]: ...
    def record_bytes(
        self, bounds: Mapping[TopicPartition, Bounds]
    ) -> dict[TopicPartition, float]: ...
    def cut(self, wanted: OffsetRange, pieces: int) -> list[int]: ...
    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None: ...
    def close(self) -> None: ...


def chosen(options: Options, existing: Mapping[str, int]) -> list[TopicPartition]:
    """The partitions that the options select; `existing` has the partition count of each topic."""
    assigned: list[TopicPartition] | None = options["assign"]
    if assigned is not None:
        for tp in assigned:
            if tp.partition >= existing.get(tp.topic, 0):
                raise TopicNotFoundError(tp.topic, tp.partition, existing.get(tp.topic, 0))
        return sorted(assigned)
    pattern: str | None = options["subscribePattern"]
    if pattern is not None:
        visible = existing.keys() - INTERNAL_TOPICS
        # Like Spark's Kafka source: a match anywhere in the name.
        names = [name for name in visible if re.search(pattern, name)]
    else:
        names = list(options["subscribe"])
    for name in names:
        if name not in existing:
            raise TopicNotFoundError(name)
    return sorted(
        TopicPartition(name, number) for name in names for number in range(existing[name])
    )


def open_access(options: Options, *, in_task: bool = False) -> LogAccess:
    """Open the log that the options name; the caller closes it."""
    # Imported here: each query starts a process on the driver, which should load only one of them.
    if options["path"] is not None:
        from strandlog.spark.source.folder_access import FolderAccess  # noqa: PLC0415

        return FolderAccess(options)
    from strandlog.spark.source.cluster_access import ClusterAccess  # noqa: PLC0415

    return ClusterAccess(options, in_task=in_task)
