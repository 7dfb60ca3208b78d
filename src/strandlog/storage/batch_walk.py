"""Walks the batches of a log file one after the other.

`walk` yields (position, header) for each whole batch between two positions and ends exactly at the
second. Anything else is a problem with a name and a place: it raises `CorruptSegmentError` with the
position of the first byte that does not fit. What that means is for the caller to say: recovery
calls it a torn tail when nothing was promised from there on, and damage otherwise. `next_intact`
finds where readable data goes on.

The bytes come from a `Source`: a function from (position, length) to bytes, so that the same walk
serves mapped files and the file that is being written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from strandlog.errors import CorruptSegmentError
from strandlog.record.batch_header import CRC_START, HEADER_SIZE, MAGIC, BatchHeader, read_header
from strandlog.record.checksum import crc32c
from strandlog.storage.files import Buffer

Source = Callable[[int, int], Buffer]

SMALLEST_BATCH_SIZE = HEADER_SIZE
WINDOW_BYTES = 64 * 1024
NEVER = 2**63  # as an offset: no batch reaches it


def view_source(view: memoryview) -> Source:
    """The bytes of a mapped file."""
    return lambda position, length: view[position : position + length]


def windowed(source: Source) -> Source:
    """Reads a file in pieces of 64 KiB, for walks over many small batches."""
    start, window = 0, memoryview(b"")

    def read(position: int, length: int) -> Buffer:
        nonlocal start, window
        if length > WINDOW_BYTES:
            return source(position, length)
        if position < start or position + length > start + len(window):
            start, window = position, memoryview(source(position, WINDOW_BYTES))
        return window[position - start : position - start + length]

    return read


def problem_with(header: BatchHeader, next_offset: int, room: int) -> str:
    """Why this cannot be a batch that follows `next_offset`, or "" when it can."""
    if header.magic != MAGIC:
        return f"magic byte is {header.magic}, not {MAGIC}"
    if header.size_bytes < SMALLEST_BATCH_SIZE:
        return f"batch length {header.batch_length} is too small"
    if header.base_offset < next_offset:
        return f"base offset {header.base_offset} is below {next_offset}"
    if header.last_offset_delta < 0:
        return f"last offset delta is {header.last_offset_delta}"
    if header.size_bytes > room:
        return f"batch of {header.size_bytes} bytes ends after the log, {room} bytes are left"
    return ""


def walk(
    source: Source,
    position: int,
    end_position: int,
    *,
    path: str,
    next_offset: int,
    crc_from_offset: int = NEVER,
) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each batch in [position, end_position), offsets from `next_offset` on.

    Batches from `crc_from_offset` on are checked whole, the others by their headers only.
    """
    while position < end_position:
        room = end_position - position
        if room < HEADER_SIZE:
            reason = f"{room} bytes are left, a header has {HEADER_SIZE}"
            raise CorruptSegmentError(path, position, reason, next_offset - 1)
        header = read_header(source(position, HEADER_SIZE))
        reason = problem_with(header, next_offset, room)
        if not reason and header.base_offset != next_offset:
            reason = _misplaced(source, position, end_position, header, next_offset)
        if (
            not reason
            and header.base_offset >= crc_from_offset
            and not _is_intact(source, position, header)
        ):
            reason = "checksum does not match"
        if reason:
            raise CorruptSegmentError(path, position, reason, next_offset - 1)
        yield position, header
        position += header.size_bytes
        next_offset = header.next_offset


def _misplaced(
    source: Source, position: int, end_position: int, header: BatchHeader, next_offset: int
) -> str:
    """After a gap: "" unless the batch that follows shows that this one's base offset is wrong.

    The checksum does not cover the base offset, so a flipped bit in it looks like a gap.
    """
    follower_position = position + header.size_bytes
    if follower_position + HEADER_SIZE > end_position:
        return ""
    follower = read_header(source(follower_position, HEADER_SIZE))
    if next_offset <= follower.base_offset < header.next_offset and follower.magic == MAGIC:
        return f"base offset {header.base_offset} does not fit before {follower.base_offset}"
    return ""


def _is_intact(source: Source, position: int, header: BatchHeader) -> bool:
    return crc32c(source(position + CRC_START, header.size_bytes - CRC_START)) == header.crc


def next_intact(
    source: Source, position: int, end_position: int, next_offset: int
) -> tuple[int, BatchHeader] | None:
    """The first whole, intact batch after damage at `position`, or None.

    Looks at every byte that could be a magic byte; headers that make no sense are thrown out before
    any checksum is computed, so that this is quick enough for a whole segment.
    """
    magic_position = 16
    start = position + 1
    while start + SMALLEST_BATCH_SIZE <= end_position:
        window = bytes(source(start + magic_position, WINDOW_BYTES))
        found = window.find(MAGIC)
        while found >= 0 and start + found + SMALLEST_BATCH_SIZE <= end_position:
            candidate = start + found
            header = read_header(source(candidate, HEADER_SIZE))
            fits = not problem_with(header, next_offset, end_position - candidate)
            if fits and _is_intact(source, candidate, header):
                return candidate, header
            found = window.find(MAGIC, found + 1)
        start += len(window)
    return None
