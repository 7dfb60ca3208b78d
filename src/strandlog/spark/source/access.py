"""The way to a log, as the source sees it; there are two: a cluster over the wire (wire_access.py),
and a folder's files (folder_access.py).

A `LogAccess` is made where it is needed, on the driver and in every task, out of the options, which
pickle; it does not.

    partitions        what there is to read, by the options
    bounds            where each partition begins, and how far it may be read now: to the last
                      stable offset, unless uncommitted records are wanted; of those that there are
                      to read, or of some; those that are gone are left out
    ends              where partitions end, open transactions included
    topic_id          the id of a topic as it is now; None when it is not told
    offsets_at        the first offset at or after a time, in each partition
    read              the raw batches of a range, piece by piece
    commit_offsets    what a query has done, for whoever looks at its group
    record_bytes      about how large a record of each partition is
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
    """Some batches of a range, as they are kept, and which of their transactions were aborted."""

    data: Buffer
    aborted: Aborted


class LogAccess(Protocol):
    """One way to a log."""

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
        # As Spark's Kafka source does: a match anywhere in the name.
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
    """The way to the log, for a task or for the driver; whoever opens it closes it."""
    # Each query starts a process on the driver, which waits for what it imports: only one way.
    if options["path"] is not None:
        from strandlog.spark.source.folder_access import FolderAccess  # noqa: PLC0415

        return FolderAccess(options)
    from strandlog.spark.source.cluster_access import ClusterAccess  # noqa: PLC0415

    return ClusterAccess(options, in_task=in_task)
