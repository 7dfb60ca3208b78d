"""Iterates over the records of a fetch result, batch by batch, and limits the decompressed size.

A few kilobytes on disk can decompress to many megabytes (`decompressed.max.bytes`) and a million
records (`batch.max.records`), and a fetch can return many batches. So records are decoded lazily,
some at a time. Unless `is_quick` returns True, decode them in a separate thread.

A fetch verifies only batches that this process has neither written nor verified before. This module
verifies the checksum of every batch, and compares the offsets of neighbouring batches, which the
checksum does not cover. The iteration ends before a damaged batch, unless that is the first one;
the fetch that continues there reports the damage, and says where the log continues.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from strandlog.broker.reads.fetch import FetchPartitionData
from strandlog.errors import DataError, UndecodableBatchError
from strandlog.model import Buffer, Record
from strandlog.record.aborted import AbortedBatches
from strandlog.record.batch import BatchView, iter_batches
from strandlog.record.batch_header import HEADER_SIZE, read_header
from strandlog.record.codecs import Codec

HEADER_BYTES = 16  # approximate size of an empty header in a response
QUICK_BYTES = 16 * 1024  # decoding this much is faster than handing it to a thread


class DecodedRecords(NamedTuple):
    """Some records of a batch, possibly none, and the offset at which to continue."""

    records: list[Record]
    next_offset: int


def size_of(record: Record) -> int:
    """Return the approximate size of a record's key, value and headers in a response."""
    headers = sum(HEADER_BYTES + len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


def is_quick(found: FetchPartitionData) -> bool:
    """Return whether decoding all records is cheap enough for the event loop."""
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
    """Yield the records from `offset` on, some at a time, except records of aborted transactions.

    For a batch that cannot be decoded or decompresses to more than `limit_bytes`, raise
    `UndecodableBatchError`, or add the error to `problems` and skip the batch. If the batch is
    large, records before the first bad one may already have been yielded.
    """
    topic = str(found.topic)
    for batch, is_visible in checked_batches(found, problems):
        header = batch.header
        if is_visible:
            try:
                for records in batch.pieces(topic, found.partition, offset, limit_bytes):
                    if records:
                        yield DecodedRecords(records, records[-1].offset + 1)
            except DataError as damage:
                _report(undecodable(found, batch, damage), problems)
        yield DecodedRecords([], header.last_offset + 1)


def checked_batches(
    found: FetchPartitionData, problems: list[UndecodableBatchError] | None = None
) -> Iterator[tuple[BatchView, bool]]:
    """Yield each batch before the first damaged one, and whether its records are visible. The
    records of control batches and aborted transactions are not. If the very first batch is damaged,
    raise `UndecodableBatchError`, or add the error to `problems` and hide the batch's records."""
    aborted = AbortedBatches(found.aborted or ())
    for number, batch in enumerate(_batches_in_order(found.data)):
        is_visible = False
        try:
            batch.check()
            is_visible = not aborted.hides(batch)
        except DataError as damage:
            if number:
                return
            _report(undecodable(found, batch, damage), problems)
        yield batch, is_visible


def _batches_in_order(data: Buffer) -> Iterator[BatchView]:
    """Yield the complete batches of a read, up to the first one whose offsets may be wrong.

    A batch is wrong if it starts before the end of the previous one, or if it leaves a gap and
    overlaps the next one. Compaction leaves gaps, so a batch after a gap is not wrong by itself.
    But if it is the last one, nothing shows that it is right, and it is left to the next fetch.
    """
    next_offset, end = -1, 0
    batches = iter_batches(data)
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            return
        except DataError:
            if not end:
                raise
            return
        header = batch.header
        end += header.size_bytes
        if end > header.size_bytes and header.base_offset != next_offset:
            has_next = end + HEADER_SIZE <= len(data)
            limit = read_header(data, end).base_offset if has_next else -1
            if not next_offset < header.base_offset <= header.last_offset < limit:
                return
        yield batch
        next_offset = header.next_offset


def undecodable(
    found: FetchPartitionData, batch: BatchView, damage: DataError
) -> UndecodableBatchError:
    """Return the error for a batch that cannot be decoded."""
    offsets = batch.header.base_offset, batch.header.last_offset
    error = UndecodableBatchError(str(found.topic), found.partition, *offsets, str(damage))
    error.__cause__ = damage
    return error


def _report(error: UndecodableBatchError, problems: list[UndecodableBatchError] | None) -> None:
    if problems is None:
        raise error
    problems.append(error)
