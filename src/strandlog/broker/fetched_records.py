"""Iterates over the records of a fetch result, batch by batch, within a limit on decompression.

A few kilobytes on disk may decompress to many megabytes (`decompressed.max.bytes`) and a million
records (`batch.max.records`), and a fetch may have many batches. So records are decoded when the
caller asks for them, some at a time. Unless `is_quick` says otherwise that is work for a thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from strandlog.broker.fetch import FetchPartitionData
from strandlog.errors import DataError, UndecodableBatchError
from strandlog.model import Record
from strandlog.record.aborted import AbortedBatches
from strandlog.record.batch import BatchView, iter_batches
from strandlog.record.codecs import Codec

HEADER_BYTES = 16  # of an empty header in a response, about
QUICK_BYTES = 16 * 1024  # decoding them takes less time than to hand them to a thread


class DecodedRecords(NamedTuple):
    """Some records of a batch, none if readers do not see it, and the offset after them."""

    records: list[Record]
    next_offset: int


def size_of(record: Record) -> int:
    """The size of a record's key, value and headers."""
    headers = sum(HEADER_BYTES + len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


def is_quick(found: FetchPartitionData) -> bool:
    """Whether all records can be decoded in the event loop."""
    if len(found.data) > QUICK_BYTES:
        return False
    try:
        return all(batch.header.codec is Codec.NONE for batch in iter_batches(found.data))
    except DataError:
        return False


def records_of(
    found: FetchPartitionData,
    offset: int,
    limit_bytes: int,
    problems: list[UndecodableBatchError] | None = None,
) -> Iterator[DecodedRecords]:
    """The records at `offset` and after, some at a time.

    A batch that cannot be decoded, or decompresses to more than `limit_bytes`, is raised as
    `UndecodableBatchError`, or added to `problems` and skipped. The records of a large batch before
    the first bad one may have been returned by then.
    """
    topic = str(found.topic)
    aborted = AbortedBatches(found.aborted or ())
    batches = iter_batches(found.data)
    while (batch := _next(batches, problems)) is not None:
        header = batch.header
        try:
            batch.check()
            if not aborted.hides(batch):
                for records in batch.pieces(topic, found.partition, offset, limit_bytes):
                    if records:
                        yield DecodedRecords(records, records[-1].offset + 1)
        except DataError as damage:
            offsets = header.base_offset, header.last_offset
            error = UndecodableBatchError(topic, found.partition, *offsets, str(damage))
            if problems is None:
                raise error from damage
            problems.append(error)
        yield DecodedRecords([], header.last_offset + 1)


def _next(
    batches: Iterator[BatchView], problems: list[UndecodableBatchError] | None
) -> BatchView | None:
    """The next batch; after damage, the read that begins there reports why."""
    try:
        return next(batches, None)
    except DataError:
        if problems is None:
            raise
        return None
