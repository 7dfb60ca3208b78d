"""Turns bytes that were read from a log into batches that can be trusted.

The checksum of a batch does not cover its base offset, so a flipped bit there would hand out a
record under a wrong offset. The neighbours tell: a batch begins where the one before it ended, or,
after a gap, ends before the one after it begins. Both are checked here, next to the checksum,
before a single record is decoded.
"""

from __future__ import annotations

from collections.abc import Iterator

from strandlog.errors import CorruptRecordError, CorruptSegmentError
from strandlog.record.batch import BatchView
from strandlog.record.batch_header import HEADER_SIZE, BatchHeader, read_header
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
            raise _damage(path, position, str(error), next_offset, header) from error
        if not _is_in_place(header, data, position, next_offset, end_offset, is_first=not position):
            reason = f"base offset {header.base_offset} does not fit between its neighbours"
            raise _damage(path, position, reason, next_offset, header)
        yield batch
        position += header.size_bytes
        next_offset = header.next_offset


def _is_in_place(
    header: BatchHeader,
    data: Buffer,
    position: int,
    next_offset: int,
    end_offset: int,
    *,
    is_first: bool,
) -> bool:
    if header.base_offset == next_offset:
        return header.next_offset <= end_offset
    if header.base_offset < next_offset and not is_first:
        return False
    # A gap, or the middle of a batch: then the batch after it, or the end of the log, must agree.
    follower = position + header.size_bytes
    if follower + HEADER_SIZE <= len(data):
        return header.next_offset <= read_header(data, follower).base_offset
    return header.next_offset <= end_offset


def _damage(
    path: str, position: int, reason: str, next_offset: int, header: BatchHeader
) -> CorruptSegmentError:
    error = CorruptSegmentError(path, position, reason, next_offset - 1)
    if header.base_offset >= next_offset - header.last_offset_delta:
        error.resume_offset = header.next_offset
    return error
