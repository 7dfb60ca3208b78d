"""Reads records for consumers of a data folder that this process owns.

A read that reaches records that are not on disk yet flushes them first. A program can therefore
read immediately what it has sent, and records that a consumer has read are never lost.
"""

from __future__ import annotations

import contextlib

from strandlog.broker.broker import Broker
from strandlog.client.embedded.group_commit import GroupCommit
from strandlog.client.record_source import FETCH_BYTES, Decode, Fetched
from strandlog.errors import CorruptSegmentError, StorageError
from strandlog.model import TimestampOffset, TopicPartition
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.partition.read import read, read_plan
from strandlog.storage.partition.time_lookup import find_timestamp
from strandlog.storage.work import run_inline


class EmbeddedSource:
    """The `RecordSource` of the embedded log. Callers must hold the log's lock."""

    def __init__(self, broker: Broker, group_commit: GroupCommit) -> None:
        self._broker = broker
        self._group_commit = group_commit

    def partition_count(self, topic: str) -> int:
        return len(self._broker.catalog.logs(topic))

    def offset_range(self, tp: TopicPartition) -> tuple[int, int]:
        log = self._broker.catalog.log(tp.topic, tp.partition)
        return log.log_start_offset, log.log_end_offset

    def readable_end(self, tp: TopicPartition) -> int:
        return self._broker.catalog.log(tp.topic, tp.partition).high_watermark

    def fetch(self, tp: TopicPartition, offset: int, decode: Decode) -> Fetched:
        log = self._broker.catalog.log(tp.topic, tp.partition)
        if log.high_watermark < log.log_end_offset and log.high_watermark <= offset:
            self._sync(log)
            if log.high_watermark < offset <= log.log_end_offset:
                return Fetched([], offset)  # past the records that are on disk
        data = read(log, offset, FETCH_BYTES)
        if not data:
            # Compaction removed the remaining records, so skip to the end.
            return Fetched([], max(offset, log.high_watermark))
        limit_bytes = self._broker.settings.decompressed_max_bytes
        try:
            return decode(data, tp, offset, log.log_end_offset, log.folder, limit_bytes)
        except CorruptSegmentError as error:
            raise _placed(error, log, offset) from error

    def _sync(self, log: PartitionLog) -> None:
        """Flush a partition so that a reader can read records that are not on disk yet.

        If the disk fails or another thread is flushing the partition, there is nothing to read
        yet; a disk error is reported to the writer. After a failed fsync, only maintenance may
        flush again, because it rewrites the tail first.
        """
        if log.failure is None and not self._group_commit.is_busy(log):
            with contextlib.suppress(StorageError), self._broker.catalog.guard(log):
                log.flush()

    def find_timestamp(self, tp: TopicPartition, timestamp_ms: int) -> TimestampOffset | None:
        log = self._broker.catalog.log(tp.topic, tp.partition)
        return run_inline(find_timestamp(log, timestamp_ms))


def _placed(error: CorruptSegmentError, log: PartitionLog, offset: int) -> CorruptSegmentError:
    """Return the error with the path and position in the file instead of in the read buffer."""
    plan = read_plan(log, offset, FETCH_BYTES)
    found = plan.locate() if plan is not None else None
    if plan is None or found is None:
        return error
    placed = CorruptSegmentError(plan.path, found[0] + error.position, error.reason, error.offset)
    placed.resume_offset = error.resume_offset
    return placed
