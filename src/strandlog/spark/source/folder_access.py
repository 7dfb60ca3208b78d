"""`LogAccess` over the files of a folder, which another process may be writing to."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping

from strandlog.client.readonly.log import ReadOnlySource
from strandlog.client.readonly.raw_range import RawChunk, read_range
from strandlog.clock import SystemClock, pause
from strandlog.errors import (
    InvalidSettingError,
    OffsetOutOfRangeError,
    TopicNotFoundError,
    UnreachableError,
)
from strandlog.model import TopicPartition
from strandlog.spark.options import Options
from strandlog.spark.source.access import chosen
from strandlog.spark.source.continuity import Bounds
from strandlog.spark.source.planning import OffsetRange, evenly
from strandlog.storage.files import DiskFiles
from strandlog.storage.readonly.committed import CommittedView
from strandlog.storage.readonly.view import FolderView
from strandlog.storage.segment.transaction_index import AbortedTransaction

READ_BYTES = 8 * 1024 * 1024
POLL_TIMEOUT = "kafkaConsumer.pollTimeoutMs"
POLL_SECONDS = 0.02


class FolderAccess:
    """`LogAccess` over a folder."""

    def __init__(self, options: Options) -> None:
        self._options = options
        files = DiskFiles()
        path = os.path.abspath(options["path"])
        self._folder = FolderView(files, path)
        self._source = ReadOnlySource(self._folder, files)

    def partitions(self) -> list[TopicPartition]:
        return chosen(self._options, self._folder.partitions())

    def bounds(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Bounds]:
        found: dict[TopicPartition, Bounds] = {}
        self._folder.read_log_starts()
        for tp in self.partitions() if partitions is None else partitions:
            try:
                topic_id = self._folder.topic_id(tp)
                earliest, latest = self._source.offset_range(tp)
                damage: str | None = None
                if self._options.is_committed_only:
                    committed = self._committed(tp)
                    latest = committed.last_stable_offset
                    damage = None if committed.damage is None else str(committed.damage)
            except TopicNotFoundError:
                continue
            found[tp] = Bounds(earliest, max(earliest, latest), topic_id, damage)
        return found

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self._source.offset_range(tp)[1] for tp in partitions}

    def topic_id(self, tp: TopicPartition) -> str | None:
        return self._folder.topic_id(tp)

    def offsets_at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        found: dict[TopicPartition, int | None] = {}
        for tp, timestamp_ms in times.items():
            at = self._source.find_timestamp(tp, timestamp_ms)
            found[tp] = None if at is None else at.offset
        return found

    def read(self, wanted: OffsetRange) -> Iterator[RawChunk]:
        aborted: list[AbortedTransaction] = []
        if self._options.is_committed_only:
            aborted = self._aborted(wanted)
        yield from read_range(
            self._source, *wanted, aborted=aborted, chunk_bytes=READ_BYTES, patience=self
        )

    def _committed(self, tp: TopicPartition) -> CommittedView:
        """Wait while the folder's owner replaces files; return the partition's last stable offset
        and its aborted transactions."""
        deadline_ms = self.deadline_ms()
        while (found := self._source.committed_view(tp)) is None:
            reason = "are being replaced; if the broker has stopped, start it to complete this"
            self.wait(deadline_ms, f"the files of {tp} {reason}")
        return found

    def _aborted(self, wanted: OffsetRange) -> list[AbortedTransaction]:
        """Wait until every transaction in the range has ended; return the aborted transactions."""
        deadline_ms = self.deadline_ms()
        while True:
            stable = self._committed(wanted.tp)
            if stable.last_stable_offset >= wanted.end:
                return stable.aborted
            if stable.damage is not None:
                raise stable.damage
            first, end = self._source.offset_range(wanted.tp)
            if end < wanted.end:
                raise OffsetOutOfRangeError(*wanted.tp, max(wanted.start, end), first, end)
            readable = stable.last_stable_offset
            self.wait(
                deadline_ms,
                f"{wanted.tp} is readable up to offset {readable}, not up to {wanted.end}: a "
                f"transaction is still open",
            )

    def deadline_ms(self) -> int:
        return SystemClock().monotonic_ms() + int(self._options[POLL_TIMEOUT])

    def wait(self, deadline_ms: int, reason: str) -> None:
        if SystemClock().monotonic_ms() >= deadline_ms:
            waited_ms = self._options[POLL_TIMEOUT]
            raise UnreachableError(f"{reason} (waited {waited_ms} ms; see {POLL_TIMEOUT})")
        pause(POLL_SECONDS)

    def record_bytes(self, bounds: Mapping[TopicPartition, Bounds]) -> dict[TopicPartition, float]:
        return {
            tp: self._folder.view(tp).size_bytes / max(1, bound.latest - bound.earliest)
            for tp, bound in bounds.items()
        }

    def cut(self, wanted: OffsetRange, pieces: int) -> list[int]:
        """Return split points at indexed batches, or evenly spaced ones if there are too few."""
        cuts = self._source.split_offsets(*wanted, pieces)
        return cuts if len(cuts) == pieces - 1 else evenly(wanted, pieces)

    def table_folder(self, topic: str) -> str | None:
        from strandlog.tables.topics.location import table_of_folder  # noqa: PLC0415 - rarely used

        return table_of_folder(self._options["path"], topic)

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        del offsets
        raise InvalidSettingError(
            "groupId", group, "progress is committed to a broker, not to a folder"
        )

    def close(self) -> None:
        self._folder.close()
