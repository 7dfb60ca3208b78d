"""A fetch, decoded batch by batch, for listeners that show records.

A few kilobytes on disk may unpack to many megabytes (decompressed.max.bytes) and a million records
(batch.max.records), and a fetch may hold many batches. So records are decoded when they are wanted,
some at a time, and the caller says when it is enough. Unless it is quick (`is_quick`) that is work
for a thread.
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

HEADER_COST = 16  # an empty header takes this in a message or a page, about
IN_LOOP_BYTES = 16 * 1024  # so little is taken apart quicker than a thread is told to


class Unpacked(NamedTuple):
    """Some records of a batch, none when readers do not see it, and the offset after them."""

    records: list[Record]
    next_offset: int


def size_of(record: Record) -> int:
    """The bytes of what a record holds."""
    headers = sum(HEADER_COST + len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


def is_quick(found: FetchPartitionData) -> bool:
    """Whether all of it may be taken apart in the event loop."""
    if len(found.data) > IN_LOOP_BYTES:
        return False
    try:
        return all(batch.header.codec is Codec.NONE for batch in iter_batches(found.data))
    except DataError:
        return False


def unpacked(
    found: FetchPartitionData,
    offset: int,
    limit_bytes: int,
    problems: list[UndecodableBatchError] | None = None,
) -> Iterator[Unpacked]:
    """The records at `offset` and after, some at a time.

    A batch that cannot be decoded, or unpacks to more than `limit_bytes`, is raised as
    `UndecodableBatchError`, or added to `problems` and passed over. Of a batch of thousands, the
    records before the first bad one may have been handed out by then.
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
                        yield Unpacked(records, records[-1].offset + 1)
        except DataError as damage:
            offsets = header.base_offset, header.last_offset
            error = UndecodableBatchError(topic, found.partition, *offsets, str(damage))
            if problems is None:
                raise error from damage
            problems.append(error)
        yield Unpacked([], header.last_offset + 1)


def _next(
    batches: Iterator[BatchView], problems: list[UndecodableBatchError] | None
) -> BatchView | None:
    """The next batch; where none can be made out, the read that begins there tells why."""
    try:
        return next(batches, None)
    except DataError:
        if problems is None:
            raise
        return None
