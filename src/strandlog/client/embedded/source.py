"""Reads records for consumers of a data folder that this process owns.

A read that would find only unflushed records flushes them first. A program can therefore read what
it has just sent, and a crash never loses a record that a consumer has read.

Clients of a broker may have written transactions to the folder. Reads end at the last stable
offset and omit aborted transactions, as for a read_committed consumer. A transaction that a stopped
broker left open is aborted after its timeout; until then, consumers read only up to its start.
"""

from __future__ import annotations

from strandlog.broker.broker import Broker
from strandlog.broker.context import RequestContext
from strandlog.broker.runtime import run_inline
from strandlog.client.record_source import FETCH_BYTES, Decode, Fetched
from strandlog.errors import CorruptSegmentError
from strandlog.model import IsolationLevel, TimestampOffset, TopicPartition


class EmbeddedSource:
    """The `RecordSource` of the embedded log. Callers must hold the log's lock."""

    def __init__(self, broker: Broker, context: RequestContext) -> None:
        self._broker = broker
        self._context = context

    def partition_count(self, topic: str) -> int:
        return self._broker.partition_count(self._context, topic)

    def offset_range(self, tp: TopicPartition) -> tuple[int, int]:
        state = self._broker.partition_state(self._context, *tp)
        return state.start_offset, state.end_offset

    def readable_end(self, tp: TopicPartition) -> int:
        return self._broker.partition_state(self._context, *tp).high_watermark

    def topic_id(self, tp: TopicPartition) -> str:
        del tp
        return ""  # not needed: the log calls `Consumer.forget_topic` when it deletes a topic

    def fetch(self, tp: TopicPartition, offset: int, decode: Decode, topic_id: str = "") -> Fetched:
        del topic_id
        broker = self._broker
        found = broker.read(self._context, tp.topic, tp.partition, offset, FETCH_BYTES)
        data, last_stable_offset, end_offset, folder, aborted = found
        if not data:
            # The offset is at the end, or compaction has removed all records after it.
            return Fetched([], max(offset, last_stable_offset))
        limit_bytes = broker.settings.decompressed_max_bytes
        try:
            return decode(data, tp, offset, end_offset, folder, limit_bytes, aborted)
        except CorruptSegmentError as error:
            raise self._placed(error, tp, offset) from error

    def _placed(
        self, error: CorruptSegmentError, tp: TopicPartition, offset: int
    ) -> CorruptSegmentError:
        """Return the error with the file's path and a position in the file, not in the buffer."""
        found = self._broker.file_position(self._context, *tp, offset)
        if found is None:
            return error
        path, position = found
        placed = CorruptSegmentError(path, position + error.position, error.reason, error.offset)
        placed.resume_offset = error.resume_offset
        return placed

    def find_timestamp(self, tp: TopicPartition, timestamp_ms: int) -> TimestampOffset | None:
        isolation = IsolationLevel.READ_UNCOMMITTED
        work = self._broker.list_offset(self._context, *tp, timestamp_ms, isolation)
        found = run_inline(work)
        return found if found.offset >= 0 else None
