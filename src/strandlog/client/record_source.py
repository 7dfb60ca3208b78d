"""Where a consumer's records come from: an open log, or the files of one.

A consumer needs five things of a log, and nothing else; so the same consumer reads a folder that
this process owns, and one that another process owns.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from strandlog.model import Record, TimestampOffset, TopicPartition
from strandlog.storage.batch_reader import checked_batches
from strandlog.storage.files import Buffer

FETCH_BYTES = 1024 * 1024


class Fetched(NamedTuple):
    """Decoded records, and the offset after them (gaps included)."""

    records: list[Record]
    next_offset: int


class RecordSource(Protocol):
    """What a consumer needs of a log."""

    def partition_count(self, topic: str) -> int:
        """How many partitions a topic has; `TopicNotFoundError` when there is none."""

    def offset_range(self, tp: TopicPartition) -> tuple[int, int]:
        """(log start offset, offset after the last record that can be read)."""

    def fetch(self, tp: TopicPartition, offset: int) -> Fetched:
        """Some records from an offset on; none when the end is reached."""

    def find_timestamp(self, tp: TopicPartition, timestamp_ms: int) -> TimestampOffset | None:
        """The first record at or after a time."""


def decode_records(
    data: Buffer, tp: TopicPartition, offset: int, end_offset: int, path: str
) -> Fetched:
    """The records of the batches in `data` from `offset` up to `end_offset`."""
    records: list[Record] = []
    next_offset = offset
    for batch in checked_batches(data, path=path, offset=offset, end_offset=end_offset):
        header = batch.header
        if not header.is_control and header.record_count:
            found = batch.records(tp.topic, tp.partition, offset)
            records += found
        next_offset = header.next_offset
    return Fetched(records, next_offset)
