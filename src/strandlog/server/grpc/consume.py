"""Splits the result of a fetch into Consume messages of bounded size.

Messages contain decompressed records, and gRPC clients accept messages of up to 4 MB by default.
The limit therefore applies to the decoded records, and one fetch may result in several messages. A
record that is larger than the limit is sent in a message of its own.

Large results are processed in a thread, in steps of about `max_bytes`. Messages are serialized
there, so a client that stops reading ties up bytes, but no Python objects.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

from strandlog.broker.reads.fetch import FetchPartitionData
from strandlog.broker.reads.fetched_records import DecodedRecords, is_quick, records_of, size_of
from strandlog.errors import UndecodableBatchError
from strandlog.model import Record
from strandlog.protocol.rpc import log_pb2
from strandlog.server.grpc.calls import encoded
from strandlog.server.record_io import DEFAULT_READ_BYTES, MAX_READ_BYTES

ENTRY_BYTES = 32  # approximate overhead per entry


class Messages(NamedTuple):
    """Serialized messages, and the offset at which to continue after them."""

    messages: list[bytes]
    next_offset: int


async def messages_of(
    found: FetchPartitionData,
    offset: int,
    max_bytes: int,
    batch_bytes: int,
    threads: asyncio.Semaphore,
) -> AsyncIterator[Messages]:
    """Yield the fetched records from `offset` on, as serialized messages. `batch_bytes` limits the
    size of a decompressed batch."""
    limit = min(max_bytes or DEFAULT_READ_BYTES, MAX_READ_BYTES)
    batches = records_of(found, offset, batch_bytes)
    in_loop = is_quick(found)
    while True:
        if in_loop:
            some = _some(batches, found.high_watermark, limit)
        else:
            async with threads:
                some = await asyncio.to_thread(_some, batches, found.high_watermark, limit)
        if some is None:
            return
        yield some


def _some(batches: Iterator[DecodedRecords], high_watermark: int, limit: int) -> Messages | None:
    """Return the messages of the next records, up to about `limit` bytes, or None at the end.

    Records before a batch that cannot be decoded are still sent; the next fetch starts at that
    batch and ends the stream with the error.
    """
    records: list[Record] = []
    next_offset = None
    size = 0
    try:
        for some in batches:
            records += some.records
            next_offset = some.next_offset
            size += sum(map(_entry_size, some.records))
            if size >= limit:
                break
    except UndecodableBatchError:
        if next_offset is None:
            raise
    if next_offset is None:
        return None
    messages = list(_messages(records, next_offset, high_watermark, limit))
    return Messages(messages, next_offset)


def _messages(
    records: list[Record], next_offset: int, high_watermark: int, limit: int
) -> Iterator[bytes]:
    first, size = 0, 0
    for number, record in enumerate(records):
        size += _entry_size(record)
        if size > limit and number > first:
            yield _message(records[first:number], record.offset, high_watermark)
            first, size = number, _entry_size(record)
    if records:
        yield _message(records[first:], next_offset, high_watermark)


def _message(records: list[Record], next_offset: int, high_watermark: int) -> bytes:
    message = log_pb2.ConsumeResponse(
        entries=[_entry(record) for record in records],
        next_offset=next_offset,
        high_watermark=high_watermark,
    )
    return encoded(message)


def _entry_size(record: Record) -> int:
    return size_of(record) + ENTRY_BYTES


def _entry(record: Record) -> log_pb2.LogEntry:
    return log_pb2.LogEntry(
        offset=record.offset,
        key=record.key,
        value=record.value,
        timestamp=record.timestamp,
        headers=[log_pb2.Header(key=key, value=value) for key, value in record.headers],
    )
