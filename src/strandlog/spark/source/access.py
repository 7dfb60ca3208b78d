"""`LogAccess`, the interface through which the source reads a cluster or a folder.

It has two implementations: `ClusterAccess` (cluster_access.py) uses the Kafka protocol, and
`FolderAccess` (folder_access.py) reads a folder's files. Options can be pickled but a `LogAccess`
cannot, so the driver and every task open their own.

    partitions        returns the partitions that the options select
    bounds            returns the readable offsets of the given partitions, or of all selected ones:
                      up to the last stable offset, or to the end if uncommitted records are read;
                      deleted partitions are omitted
    ends              returns the end offsets of partitions, including open transactions
    topic_id          returns the current id of a topic, or None if it is unknown
    offsets_at        returns the offset of the first record at or after a timestamp in each
                      partition, or None if there is none
    read              yields the raw batches of a range, in chunks
    commit_offsets    commits the progress of a query to its group; an error for a folder
    record_bytes      returns the approximate record size in each partition
    cut               returns the offsets at which to split a range into a number of tasks
    table_folder      returns the folder of a topic's lake table, or None if the topic has no table
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from strandlog.broker.topics.topic import INTERNAL_TOPICS
from strandlog.client.readonly.raw_range import RawChunk
from strandlog.errors import TopicNotFoundError
from strandlog.model import TopicPartition
from strandlog.spark.options import Options
from strandlog.spark.source.continuity import Bounds
from strandlog.spark.source.planning import OffsetRange


class LogAccess(Protocol):
    """The operations that the source needs to read a log."""

    def partitions(self) -> list[TopicPartition]: ...
    def bounds(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Bounds]: ...
    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]: ...
    def topic_id(self, tp: TopicPartition) -> str | None: ...
    def offsets_at(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]: ...
    def read(self, wanted: OffsetRange) -> Iterator[RawChunk]: ...
    def record_bytes(
        self, bounds: Mapping[TopicPartition, Bounds]
    ) -> dict[TopicPartition, float]: ...
    def cut(self, wanted: OffsetRange, pieces: int) -> list[int]: ...
    def table_folder(self, topic: str) -> str | None: ...
    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None: ...
    def close(self) -> None: ...


def chosen(options: Options, existing: Mapping[str, int]) -> list[TopicPartition]:
    """Return the partitions that the options select; `existing` maps topics to partition counts."""
    assigned: list[TopicPartition] | None = options["assign"]
    if assigned is not None:
        for tp in assigned:
            if tp.partition >= existing.get(tp.topic, 0):
                raise TopicNotFoundError(tp.topic, tp.partition, existing.get(tp.topic, 0))
        return sorted(assigned)
    pattern: str | None = options["subscribePattern"]
    if pattern is not None:
        visible = existing.keys() - INTERNAL_TOPICS
        # As in Spark's Kafka source, the pattern can match anywhere in the name.
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
    """Open the log that the options specify; the caller must close it."""
    # Each query starts a driver-side process, which should import only the implementation it uses.
    if options["path"] is not None:
        from strandlog.spark.source.folder_access import FolderAccess  # noqa: PLC0415

        return FolderAccess(options)
    from strandlog.spark.source.cluster_access import ClusterAccess  # noqa: PLC0415

    return ClusterAccess(options, in_task=in_task)
