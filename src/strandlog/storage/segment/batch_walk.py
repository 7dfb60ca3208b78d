"""Walks the batches of a log file one after the other.

`walk` yields (position, header) for each whole batch between two positions and ends exactly at the
second. Anything else is a problem with a name and a place: it raises `CorruptSegmentError` with the
position of the first byte that does not fit. What that means is for the caller to say: recovery
calls it a torn tail when nothing was promised from there on, and damage otherwise. `next_intact`
finds where readable data goes on.

The checksum covers neither the base offset nor, without reading the whole batch, anything else of
the header. The neighbours tell: a batch begins at or after the end of the one before it, and ends
at or before the beginning of the one after it. So each batch is held against both before it is
yielded; when two contradict each other, the checksum, or the neighbour on the other side, says
which of them is wrong. A gap is one more reason to look at the checksum of the batch before it: a
damaged length or count looks like one. What remains: next to a gap that compaction left, a base
offset that moves within the gap cannot be told from a right one, and of two that contradict each
other with a gap on both sides the first is blamed.

The bytes come from a `Source`: a function from (position, length) to bytes, so that the same walk
serves mapped files and the file that is being written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from strandlog.errors import CorruptRecordError, CorruptSegmentError
from strandlog.record.batch_header import (
    CRC_START,
    HEADER_SIZE,
    MAGIC,
    MAGIC_POSITION,
    BatchHeader,
    read_header,
)
from strandlog.record.checksum import crc32c
from strandlog.storage.files import Buffer, Files

Source = Callable[[int, int], Buffer]

SMALLEST_BATCH_SIZE = HEADER_SIZE
WINDOW_BYTES = 64 * 1024
NEVER = 2**63  # as an offset: no batch reaches it


def view_source(view: memoryview) -> Source:
    """The bytes of a mapped file."""
    return lambda position, length: view[position : position + length]


def padded_source(files: Files, path: str) -> Source:
    """The bytes of a file that was cut, or may be gone by now: what is missing reads as zeros,
    which are no batch."""

    def read(position: int, length: int) -> bytes:
        try:
            data = files.read_at(path, position, length)
        except FileNotFoundError:
            data = b""
        return data.ljust(length, b"\0")

    return read


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
    end_offset: int = NEVER,
    has_gaps: bool = True,
) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each batch in [position, end_position), offsets from `next_offset` on.

    Batches from `crc_from_offset` on are checked whole, the others by their headers only. All lie
    below `end_offset`. Without gaps each begins exactly where the one before it ended.
    """
    follower: BatchHeader | None = None
    while position < end_position:
        room = end_position - position
        if room < HEADER_SIZE:
            reason = f"{room} bytes are left, a header has {HEADER_SIZE}"
            raise CorruptSegmentError(path, position, reason, next_offset - 1)
        header = follower or _header_at(source, position, path, next_offset)
        reason = problem_with(header, next_offset, room)
        if not reason and not has_gaps and header.base_offset != next_offset:
            reason = f"base offset {header.base_offset} does not follow {next_offset - 1}"
        if not reason:
            follower = _follower(source, position + header.size_bytes, end_position)
            reason = _misfit(
                source, position, end_position, header, next_offset, follower, end_offset
            )
        if (
            not reason
            and header.base_offset >= crc_from_offset
            and not is_intact(source, position, header)
        ):
            reason = "checksum does not match"
        if reason:
            raise CorruptSegmentError(path, position, reason, next_offset - 1)
        yield position, header
        position += header.size_bytes
        next_offset = header.next_offset


def _header_at(source: Source, position: int, path: str, next_offset: int) -> BatchHeader:
    try:
        return read_header(source(position, HEADER_SIZE))
    except CorruptRecordError as error:  # the file is shorter than it was
        raise CorruptSegmentError(path, position, str(error), next_offset - 1) from error


def _follower(source: Source, position: int, end_position: int) -> BatchHeader | None:
    """The header of the next batch, if there is one that looks like it."""
    room = end_position - position
    if room < HEADER_SIZE:
        return None
    raw = source(position, HEADER_SIZE)
    if len(raw) < HEADER_SIZE:
        return None
    header = read_header(raw)
    is_likely = header.magic == MAGIC and HEADER_SIZE <= header.size_bytes <= room
    return header if is_likely else None


def _misfit(
    source: Source,
    position: int,
    end_position: int,
    header: BatchHeader,
    next_offset: int,
    follower: BatchHeader | None,
    end_offset: int,
) -> str:
    """Why a batch cannot be what stands before its follower, or "" when it can."""
    limit = follower.base_offset if follower is not None else end_offset
    is_last = position + header.size_bytes == end_position
    if header.next_offset == limit or (is_last and end_offset == NEVER):
        return ""
    if not is_intact(source, position, header):
        return "checksum does not match"
    is_in_place = header.base_offset == next_offset and follower is not None
    if header.next_offset <= limit or is_in_place:
        return ""  # a gap, or the follower is the one that is wrong
    return f"base offset {header.base_offset} does not fit before {limit}"


def is_intact(source: Source, position: int, header: BatchHeader) -> bool:
    """Whether the checksum of a batch matches."""
    return crc32c(source(position + CRC_START, header.size_bytes - CRC_START)) == header.crc


def next_intact(
    source: Source, position: int, end_position: int, next_offset: int
) -> tuple[int, BatchHeader] | None:
    """The first whole, intact batch after damage at `position`, or None.

    Mostly the damaged batch tells where it ends, and the next one agrees. When it does not, every
    byte that could begin a batch is looked at. A value may hold batches itself (a log of logs),
    which are no records of ours: a batch that is one of ours is followed by batches up to the end
    of the file, or up to where the damaged one says that it ends.
    """
    damaged = _header_before(source, position, end_position)
    claimed_end = position + damaged.size_bytes if damaged else -1
    if damaged and claimed_end < end_position:
        follower = _follower(source, claimed_end, end_position)
        if (
            follower
            and follower.base_offset == damaged.next_offset
            and not problem_with(follower, next_offset, end_position - claimed_end)
            and is_intact(source, claimed_end, follower)
        ):
            return claimed_end, follower
    lonely: tuple[int, BatchHeader] | None = None
    seen: set[int] = set()
    for candidate, header in _candidates(source, position + 1, end_position, next_offset):
        if candidate in seen or not is_intact(source, candidate, header):
            continue
        if candidate == claimed_end or _leads_to(
            source, candidate, end_position, claimed_end, header, seen
        ):
            return candidate, header
        lonely = lonely or (candidate, header)
    return None if claimed_end == end_position else lonely


def _header_before(source: Source, position: int, end_position: int) -> BatchHeader | None:
    """The header of a damaged batch, when it is good enough to say where the batch ends."""
    if position < 0 or position + HEADER_SIZE > end_position:
        return None
    header = read_header(source(position, HEADER_SIZE))
    fits = HEADER_SIZE <= header.size_bytes <= end_position - position
    return header if fits else None


def _candidates(
    source: Source, start: int, end_position: int, next_offset: int
) -> Iterator[tuple[int, BatchHeader]]:
    """Every place that could be a batch, by its header alone."""
    while start + SMALLEST_BATCH_SIZE <= end_position:
        window = bytes(source(start + MAGIC_POSITION, WINDOW_BYTES))
        found = window.find(MAGIC)
        while found >= 0 and start + found + SMALLEST_BATCH_SIZE <= end_position:
            candidate = start + found
            header = read_header(source(candidate, HEADER_SIZE))
            if not problem_with(header, next_offset, end_position - candidate):
                yield candidate, header
            found = window.find(MAGIC, found + 1)
        start += len(window)


def _leads_to(
    source: Source,
    position: int,
    end_position: int,
    claimed_end: int,
    header: BatchHeader,
    seen: set[int],
) -> bool:
    """Whether batch follows batch from here to one of the two ends; `seen` collects the way."""
    while True:
        seen.add(position)
        position += header.size_bytes
        if position in (end_position, claimed_end):
            return True
        follower = _follower(source, position, end_position)
        if follower is None or problem_with(follower, header.next_offset, end_position - position):
            return False
        header = follower
