"""Turns bytes that were read from a log into batches that can be trusted.

The checksum of a batch does not cover its base offset, so a flipped bit there would hand out a
record under a wrong offset. The neighbours tell: a batch begins where the one before it ended, or,
after a gap, ends before the one after it begins. Both are checked here, next to the checksum,
before a single record is decoded. For the first batch the read itself has done that (read_plan.py);
a batch after a gap whose other neighbour is not among the bytes is left to the next read.

Damage behind the first batch is raised without `resume_offset`: a read that begins with it knows.
"""

from __future__ import annotations

from collections.abc import Iterator

from strandlog.errors import CorruptRecordError, CorruptSegmentError
from strandlog.record.batch import BatchView
from strandlog.record.batch_header import HEADER_SIZE, MAGIC, BatchHeader, read_header
from strandlog.storage.files import Buffer


def checked_batches(
    data: Buffer, *, path: str, offset: int, end_offset: int
) -> Iterator[BatchView]:
    """The whole batches of an answer to a read at `offset`; what is cut off at the end is left out.

    `end_offset` is where the log ended for that read. What follows it in `data` is not looked at:
    somebody may be writing there.
    """
    position, size, next_offset = 0, len(data), offset
    while position + HEADER_SIZE <= size and next_offset < end_offset:
        batch = BatchView(data, position)
        header = batch.header
        if header.base_offset >= end_offset and position:
            return  # after a gap; if it is damage instead, the next read begins with it and says so
        if position + header.size_bytes > size and header.size_bytes >= HEADER_SIZE and position:
            return  # the read ended inside this batch; the next read begins with it
        try:
            batch.check()
        except CorruptRecordError as error:
            raise CorruptSegmentError(path, position, str(error), next_offset - 1) from error
        if position and header.base_offset > next_offset:
            follower = _follower(data, position + header.size_bytes)
            if follower is None:
                return  # a gap, or damage: the next read begins with this batch and knows
            is_in_place = header.next_offset <= follower.base_offset
        else:
            is_in_place = header.base_offset == next_offset or not position
        if not is_in_place or not next_offset < header.next_offset <= end_offset:
            reason = f"base offset {header.base_offset} does not fit between its neighbours"
            raise CorruptSegmentError(path, position, reason, next_offset - 1)
        yield batch
        position += header.size_bytes
        next_offset = header.next_offset


def _follower(data: Buffer, position: int) -> BatchHeader | None:
    if position + HEADER_SIZE > len(data):
        return None
    header = read_header(data, position)
    return header if header.magic == MAGIC else None
