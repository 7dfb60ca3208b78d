"""Encodes an Arrow table as one batch per partition, for `send_arrow`.

Rows are never converted to Python objects: they are routed, grouped and encoded column by column
(record/arrow/columns.py). The metadata of each row is computed on access, as in `send_batch`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strandlog.broker.produce import AppendResult
from strandlog.client.sent_batch import SentBatch
from strandlog.errors import InvalidRecordError, MessageTooLargeError, TopicNotFoundError
from strandlog.model import RecordMetadata
from strandlog.record.arrow.columns import (
    column_of,
    encode_columns,
    group_rows,
    ready_rows,
    route_rows,
)
from strandlog.record.codecs import Codec


class RoutedTable:
    """A table whose rows have been assigned to partitions and grouped by partition."""

    def __init__(
        self, topic: str, table: Any, partition_count: int, turn: int, now_ms: int
    ) -> None:
        self.row_count: int = table.num_rows
        self._rows = ready_rows(table, now_ms)
        given = column_of(table, "partition")
        try:
            routed = route_rows(
                column_of(table, "key"),
                partition_count,
                turn,
                given=given,
                row_count=self.row_count,
            )
        except InvalidRecordError as error:
            if given is None or not error.records:
                raise
            number = given[error.records[0]].as_py()
            raise TopicNotFoundError(topic, number, partition_count) from None
        self.turns = routed.turns
        self.partitions = routed.partitions
        self.timestamps = self._rows.timestamps
        grouped = group_rows(routed.partitions, partition_count)
        self._rows_of = {
            number: rows
            for number in range(partition_count)
            if len(rows := grouped.rows_of(number))
        }

    @property
    def numbers(self) -> list[int]:
        """The partitions that receive at least one row."""
        return list(self._rows_of)

    def batch(self, number: int, codec: Codec, max_bytes: int, limit_bytes: int) -> bytearray:
        """Encode the batch of a partition. Raise MessageTooLargeError if it exceeds `max_bytes`, or
        `limit_bytes` before compression."""
        (batch,) = encode_columns(
            self._rows,
            self._rows_of[number],
            timestamp_ms=0,
            codec=codec,
            limit_bytes=limit_bytes,
        )
        if len(batch) > max_bytes:
            raise MessageTooLargeError(len(batch), max_bytes, "max.message.bytes")
        return batch


class SentTable(SentBatch):
    """The metadata of each row, in row order."""

    __slots__ = ("_table",)

    def __init__(self, topic: str, table: RoutedTable, results: Mapping[int, AppendResult]) -> None:
        super().__init__(topic, table.row_count, 0, results, {}, 0)
        self._table = table

    def _make(self) -> list[RecordMetadata]:
        next_offsets = {number: result.base_offset for number, result in self._results.items()}
        made = []
        partitions, timestamps = self._table.partitions.tolist(), self._table.timestamps.tolist()
        for number, timestamp in zip(partitions, timestamps, strict=True):
            stamped = self._results[number].append_time_ms
            when = timestamp if stamped < 0 else stamped
            made.append(RecordMetadata(self._topic, number, next_offsets[number], when))
            next_offsets[number] += 1
        return made
