"""Reads the committed records of one topic, from a folder or from a broker.

    FolderSource    reads the files of a data folder, even while another process writes to it
    ClusterSource   speaks the Kafka protocol, with strandlog or any Kafka cluster

`high_watermarks` returns the ends of partitions, open transactions included.

`describe` returns the topic's identity and, for each partition, the offsets that can be read now:
from the log start to the last stable offset. `read` yields the raw batches of a range below the
last stable offset, with their aborted transactions; `record/arrow/columns.py` decodes them.

In a folder, damage may hide the marker that ends a transaction; then the last stable offset does
not advance. `describe` returns such damage, and a sync raises the error when it has read everything
before the damage.

Both sources return the same ids, so a sync that began from a folder can continue over the network.
Clusters before Kafka 2.8 have no topic ids; the topic name is used as the id.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from strandlog.client.readonly.log import ReadOnlySource
from strandlog.client.readonly.raw_range import RawChunk, read_range
from strandlog.client.wire.client import WireClient
from strandlog.clock import Clock, SystemClock, pause
from strandlog.errors import CorruptSegmentError, TopicNotFoundError, UnreachableError
from strandlog.model import IsolationLevel, TopicPartition
from strandlog.storage.files import DiskFiles
from strandlog.storage.folder.identity import base64_id, read_cluster_id
from strandlog.storage.readonly.committed import CommittedView
from strandlog.storage.readonly.view import FolderView

READ_BYTES = 8 * 1024 * 1024
PATIENCE_MS = 60_000  # longest wait while the folder's owner replaces files
POLL_SECONDS = 0.02
COMMITTED = IsolationLevel.READ_COMMITTED


class Bounds(NamedTuple):
    """The offsets of a partition that can be read: from the log start to the last stable offset."""

    start: int
    end: int


class TopicState(NamedTuple):
    """A topic's identity, the offsets of each partition that can be read now, and the damage that
    prevents partitions from being read further."""

    name: str
    topic_id: str
    cluster_id: str
    partitions: dict[int, Bounds]
    damage: tuple[CorruptSegmentError, ...] = ()


class TopicSource(Protocol):
    """A topic that can be read."""

    def describe(self) -> TopicState: ...
    def high_watermarks(self, partitions: Iterable[int]) -> dict[int, int]: ...
    def read(self, partition: int, start: int, end: int) -> Iterator[RawChunk]: ...
    def close(self) -> None: ...


class FolderSource:
    """Reads a topic from the files of a data folder. With `durable_only`, records that a power
    failure could undo (log.durability=page_cache) are not read until they are durable."""

    def __init__(
        self, path: str, topic: str, clock: Clock | None = None, *, durable_only: bool = False
    ) -> None:
        self._files = DiskFiles()
        self._folder = FolderView(self._files, path, durable_only=durable_only)
        self._source = ReadOnlySource(self._folder, self._files)
        self._topic = topic
        self._clock = clock or SystemClock()

    def describe(self) -> TopicState:
        self._folder.read_log_starts()
        count = self._source.partition_count(self._topic)
        topic_id = ""
        bounds: dict[int, Bounds] = {}
        damage: list[CorruptSegmentError] = []
        for number in range(count):
            tp = TopicPartition(self._topic, number)
            topic_id = self._folder.topic_id(tp) or topic_id
            start, _ = self._source.offset_range(tp)
            committed = self._committed(tp)
            bounds[number] = Bounds(start, max(start, committed.last_stable_offset))
            if committed.damage is not None:
                damage.append(committed.damage)
        cluster_id = read_cluster_id(self._files, self._folder.path)
        return TopicState(self._topic, topic_id or self._topic, cluster_id, bounds, tuple(damage))

    def high_watermarks(self, partitions: Iterable[int]) -> dict[int, int]:
        return {
            number: self._source.offset_range(TopicPartition(self._topic, number))[1]
            for number in partitions
        }

    def read(self, partition: int, start: int, end: int) -> Iterator[RawChunk]:
        tp = TopicPartition(self._topic, partition)
        return read_range(
            self._source,
            tp,
            start,
            end,
            aborted=self._committed(tp, end).aborted,
            chunk_bytes=READ_BYTES,
            patience=self,
        )

    def _committed(self, tp: TopicPartition, end: int = 0) -> CommittedView:
        """Return the partition's last stable offset and its aborted transactions.

        Wait while the folder's owner replaces files, or until the last stable offset reaches `end`.
        Raise the error if damage prevents it from reaching `end`.
        """
        deadline_ms = self.deadline_ms()
        while True:
            view = self._source.committed_view(tp)
            if view is not None and view.last_stable_offset >= end:
                return view
            if view is not None and view.damage is not None:
                raise view.damage
            self.wait(
                deadline_ms,
                f"the files of {tp} are being replaced (if the broker has stopped, start it)"
                if view is None
                else f"{tp} cannot be read up to offset {end}",
            )

    def deadline_ms(self) -> int:
        return self._clock.monotonic_ms() + PATIENCE_MS

    def wait(self, deadline_ms: int, reason: str) -> None:
        if self._clock.monotonic_ms() >= deadline_ms:
            raise UnreachableError(f"{reason}; retry")
        pause(POLL_SECONDS)

    def close(self) -> None:
        self._folder.close()


class ClusterSource:
    """Reads a topic from a broker or cluster."""

    def __init__(
        self, bootstrap: str, topic: str, config: Mapping[str, object] | None = None
    ) -> None:
        self._client = WireClient(bootstrap, config)
        self._topic = topic
        try:
            self._client.check_reachable()
        except BaseException:
            self._client.close()
            raise

    def high_watermarks(self, partitions: Iterable[int]) -> dict[int, int]:
        wanted = [TopicPartition(self._topic, each) for each in partitions]
        ends = self._client.latest_offsets(wanted, IsolationLevel.READ_UNCOMMITTED)
        return {tp.partition: end for tp, end in ends.items()}

    def describe(self) -> TopicState:
        client = self._client
        found = client.topics([self._topic]).get(self._topic)
        if found is None:
            raise TopicNotFoundError(self._topic)
        partitions = [TopicPartition(self._topic, each) for each in range(found.partition_count)]
        starts = client.earliest_offsets(partitions)
        ends = client.latest_offsets(partitions, COMMITTED)
        topic_id = base64_id(found.topic_id) if found.topic_id and found.topic_id.int else ""
        return TopicState(
            self._topic,
            topic_id or self._topic,
            client.cluster_id(),
            {tp.partition: Bounds(starts[tp], max(starts[tp], ends[tp])) for tp in partitions},
        )

    def read(self, partition: int, start: int, end: int) -> Iterator[RawChunk]:
        tp = TopicPartition(self._topic, partition)
        for chunk in self._client.read_range(tp, start, end, COMMITTED):
            yield RawChunk(chunk.data, chunk.aborted)

    def close(self) -> None:
        self._client.close()
