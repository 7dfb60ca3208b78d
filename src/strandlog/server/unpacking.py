"""A fetch, taken apart batch by batch, for doors that show records.

A few kilobytes on disk may unpack to many megabytes: decompressed.max.bytes for a batch, and there
may be many. So batches are unpacked when they are wanted, one after the other, and whoever wants
them says when it is enough. Unless it is quick (`is_quick`) that is work for a thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from strandlog.broker.fetches import FetchAnswer
from strandlog.errors import DataError
from strandlog.model import Record
from strandlog.record.aborted import AbortedBatches
from strandlog.record.batch import BatchView, iter_batches
from strandlog.record.codecs import Codec

IN_LOOP_BYTES = 16 * 1024  # so little is taken apart quicker than a thread is told to


class UnpackedBatch(NamedTuple):
    """The records of a batch, none when readers do not see it, and the offset after it."""

    records: list[Record]
    next_offset: int


def size_of(record: Record) -> int:
    """The bytes of what a record holds."""
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


def is_quick(found: FetchAnswer) -> bool:
    """Whether all of it may be taken apart in the event loop."""
    if len(found.data) > IN_LOOP_BYTES:
        return False
    try:
        return all(batch.header.codec is Codec.NONE for batch in iter_batches(found.data))
    except DataError:
        return False


def unpacked(
    found: FetchAnswer, offset: int, limit_bytes: int, problems: list[str] | None = None
) -> Iterator[UnpackedBatch]:
    """The records at `offset` and after. Damage is raised, or told in `problems` and passed over.

    A batch that unpacks to more than `limit_bytes` counts as damage.
    """
    aborted = AbortedBatches(found.aborted or ())
    batches = iter_batches(found.data)
    while (batch := _next(batches, problems)) is not None:
        records: list[Record] = []
        try:
            batch.check()
            if not aborted.hides(batch):
                records = batch.records(*found.tp, from_offset=offset, limit_bytes=limit_bytes)
        except DataError as damage:
            if problems is None:
                raise
            problems.append(f"{found.tp}: {damage}")
        yield UnpackedBatch(records, batch.header.last_offset + 1)


def _next(batches: Iterator[BatchView], problems: list[str] | None) -> BatchView | None:
    """The next batch; where none can be made out, the read that begins there tells why."""
    try:
        return next(batches, None)
    except DataError:
        if problems is None:
            raise
        return None
