"""Encodes one task's rows, which are Arrow batches, and sends them to the partition leaders.

The column `partition` selects the partition of a row; if it is null or missing, the hash of the key
does, as in Kafka's producer; rows without a key are assigned round-robin. Order is preserved within
a partition. The broker creates a missing topic if auto.create.topics.enable is set.

With a `RowEncoder`, the value of a record is encoded from columns (typed.py), and the column
`timestamp` becomes the record's timestamp.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from strandlog.client.wire.client import WireClient
from strandlog.clock import SystemClock
from strandlog.errors import DataError, MessageTooLargeError
from strandlog.model import TopicPartition
from strandlog.record.arrow.columns import encode_columns, group_rows, ready_rows, route_rows
from strandlog.record.codecs import Codec
from strandlog.spark.sink.commit_log import StagedTransaction
from strandlog.spark.sink.typed import RowEncoder

if TYPE_CHECKING:
    import pyarrow as pa

    from strandlog.record.arrow.encode import ReadyRows

# Kafka's default max.request.size, just below the default max.message.bytes.
BATCH_BYTES = 1024 * 1024
_SEQUENCE_COUNT = 1 << 31


class Written(NamedTuple):
    """The number of rows and bytes that a task wrote."""

    rows: int
    batch_bytes: int


class TaskWriter:
    """Writes the rows of one task."""

    def __init__(
        self,
        client: WireClient,
        topic: str | None,
        codec: Codec,
        staged: StagedTransaction | None,
        identity: tuple[int, int],
        max_batch_bytes: int = BATCH_BYTES,
        encoder: RowEncoder | None = None,
    ) -> None:
        """`staged` is the transaction to write in, or None; `identity`, the producer id and epoch.

        No batch, and therefore no row, may be larger than `max_batch_bytes`.
        """
        self._client = client
        self._topic = topic
        self._codec = codec
        self._max_batch_bytes = max_batch_bytes
        self._encoder = encoder
        self._staged = staged
        self._producer_id, self._epoch = identity
        self._sender = client.sender(
            acks=-1, transactional_id=staged.transactional_id if staged else None
        )
        self._sequences: dict[TopicPartition, int] = {}
        self._turns: dict[str, int] = {}
        self._counts: dict[str, int] = {}
        self._rows = self._bytes = 0

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        """Write all rows; the brokers have acknowledged them (acks=all) when this returns."""
        for batch in batches:
            if self._encoder is not None:
                batch = self._encoder.encode(batch)  # noqa: PLW2901 - the same rows
            for topic, rows in _by_topic(batch, self._topic):
                self._write_rows(topic, rows)
        for tp, result in self._sender.flush().items():
            if result.error is not None:
                result.error.add_note(f"while writing to {tp}")
                raise result.error
        return Written(self._rows, self._bytes)

    def _write_rows(self, topic: str, rows: pa.RecordBatch) -> None:
        count = self._partition_count(topic)
        names = rows.schema.names
        routed = route_rows(
            rows.column("key") if "key" in names else None,
            count,
            self._turns.get(topic, 0),
            given=rows.column("partition") if "partition" in names else None,
            row_count=len(rows),
        )
        self._turns[topic] = self._turns.get(topic, 0) + routed.turns
        grouped = group_rows(routed.partitions, count)
        parts = {
            TopicPartition(topic, number): grouped.rows_of(number)
            for number in range(count)
            if len(grouped.rows_of(number))
        }
        self._join_transaction([tp for tp in parts if tp not in self._sequences])
        wanted = [name for name in ("key", "value", "headers") if name in names]
        if self._encoder is not None and "timestamp" in names:
            wanted.append("timestamp")
        now_ms = SystemClock().now_ms()
        ready = ready_rows(rows.select(wanted), now_ms)  # prepared once for all partitions
        for tp, numbers in parts.items():
            self._send(tp, ready, numbers, now_ms)
        self._rows += len(rows)

    def _send(self, tp: TopicPartition, ready: ReadyRows, numbers: Any, now_ms: int) -> None:
        sequence = self._sequences.get(tp, 0)
        for batch in self._encoded(ready, numbers, now_ms, sequence):
            self._bytes += len(batch)
            self._sender.send(tp, batch)
        self._sequences[tp] = (sequence + len(numbers)) % _SEQUENCE_COUNT

    def _encoded(
        self, ready: ReadyRows, numbers: Any, now_ms: int, sequence: int
    ) -> list[bytearray]:
        try:
            return encode_columns(
                ready,
                numbers,
                timestamp_ms=now_ms,
                codec=self._codec,
                max_batch_bytes=self._max_batch_bytes,
                producer_id=self._producer_id,
                producer_epoch=self._epoch,
                base_sequence=sequence,
                is_transactional=self._staged is not None,
            )
        except MessageTooLargeError as error:
            if error.limit_bytes != self._max_batch_bytes:
                raise
            # This is the client's own limit, so increasing only the topic's limit would not help.
            settings = "kafka.max.request.size, and max.message.bytes of the topic"
            raise MessageTooLargeError(error.size_bytes, error.limit_bytes, settings) from None

    def _join_transaction(self, new: list[TopicPartition]) -> None:
        for tp in new:
            self._sequences[tp] = 0
        if new and self._staged is not None:
            self._client.add_partitions_to_txn(*self._staged, new)

    def _partition_count(self, topic: str) -> int:
        if topic not in self._counts:
            self._counts[topic] = self._client.topic_to_write(topic).partition_count
        return self._counts[topic]


def _by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows of each topic: of `topic`, or of each topic in the column `topic`."""
    if topic is not None:
        yield topic, batch
        return
    import pyarrow.compute as pc  # noqa: PLC0415 - only tasks need it

    column = batch.column("topic")
    if column.null_count:
        raise DataError("a row has no topic: fill the column `topic`, or set the option `topic`")
    names = pc.unique(column)
    for name in names:
        yield name.as_py(), batch if len(names) == 1 else batch.filter(pc.equal(column, name))
