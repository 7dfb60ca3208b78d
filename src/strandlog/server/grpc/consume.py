"""The messages of a `Consume` stream: records of a fetch, about so many bytes at a time.

What was compressed on disk is larger in a message, and clients take 4 MB unless they are told
otherwise: so it is what a message holds that is counted, and a fetch becomes as many of them as it
takes. A record that is larger than asked for comes alone.

Messages are made in a thread, some at a time: a batch at least, as much as asked for at most. They
leave it as bytes, so that a client that does not read holds up no objects of Python.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

from strandlog.broker.fetch import FetchPartitionData
from strandlog.errors import UndecodableBatchError
from strandlog.model import Record
from strandlog.protocol.rpc import log_pb2
from strandlog.server.core import ServerCore
from strandlog.server.grpc.calls import encoded
from strandlog.server.record_io import DEFAULT_READ_BYTES, MOST_READ_BYTES
from strandlog.server.unpacking import Unpacked, is_quick, size_of, unpacked

ENTRY_BYTES = 32  # what an entry takes beside what its record holds, about


class Messages(NamedTuple):
    """Some messages as bytes, and where to go on after them."""

    messages: list[bytes]
    next_offset: int
    record_count: int


async def messages_of(
    core: ServerCore,
    found: FetchPartitionData,
    offset: int,
    max_bytes: int,
    threads: asyncio.Semaphore,
) -> AsyncIterator[Messages]:
    """All that a fetch at `offset` has to say."""
    limit = min(max_bytes or DEFAULT_READ_BYTES, MOST_READ_BYTES)
    batches = unpacked(found, offset, core.broker.settings.decompressed_max_bytes)
    in_loop = is_quick(found)
    while True:
        if in_loop:
            some = _some(batches, found.high_watermark, limit)
        else:
            async with threads:
                some = await asyncio.to_thread(_some, batches, found.high_watermark, limit)
        if some is None:
            return
        core.metrics.fetched_records += some.record_count
        yield some


def _some(batches: Iterator[Unpacked], high_watermark: int, limit: int) -> Messages | None:
    """The messages of the next records, up to about `limit`; None when there are no more.

    What comes before a batch that cannot be decoded is sent; the next fetch begins with that batch
    and ends the stream with the error.
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
    return Messages(messages, next_offset, len(records))


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
