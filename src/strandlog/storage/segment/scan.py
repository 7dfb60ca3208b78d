"""Scans log bytes and yields every intact batch and every damaged range.

    scan             yields batches in order and one `Damage` per bad range, and continues after it
    scan_strict      the same, but raises `CorruptSegmentError` at the first damage
    batches_of_read  yields the complete batches in the result of a read, which may end inside one

The caller decides what damage means: recovery treats it as a torn tail at or above the recovery
point and as damage below it; a reader raises an error; an index rebuild skips it.

A batch is checked against its neighbours before it is yielded, because the checksum does not cover
the base offset, and because most scans check headers only. A batch must start at or after the end
offset of the previous batch, and end at or before the base offset of the next one. If two batches
contradict each other, the checksum or the neighbour on the other side decides which one is wrong.
The checksum of a batch before a gap is always verified, because a damaged length or record count
looks like a gap.

Two kinds of damage are missed or misreported. Next to a gap that compaction left, a base offset
that was shifted within the gap looks valid. If two batches contradict each other and both have a
gap on the other side, the first one is reported as damaged, even if it is intact.

The bytes come from a `ByteSource`, a function from (position, length) to bytes, so the same scanner
works on mapped files, files that are being written and files that another process may replace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from strandlog.errors import CorruptRecordError, CorruptSegmentError
from strandlog.model import Buffer
from strandlog.record.batch import BatchView
from strandlog.record.batch_header import (
    CRC_START,
    HEADER_SIZE,
    MAGIC,
    MAGIC_POSITION,
    BatchHeader,
    read_header,
)
from strandlog.record.checksum import crc32c
from strandlog.storage.files import Files

ByteSource = Callable[[int, int], Buffer]

BUFFER_BYTES = 64 * 1024
NEVER = 2**63  # an offset larger than that of any batch
_new_tuple = tuple.__new__  # a third of the cost of calling the class


class Batch(NamedTuple):
    """The position and header of an intact batch."""

    position: int
    header: BatchHeader


class Damage:
    """A range of bytes that holds no readable batch.

    `end_position` and `end_offset` are computed on first access, because the search for the next
    intact batch may read every byte, and not every caller needs them. The source must still be open
    at that time. If no batch follows, `end_position` is the end of the scan and `end_offset` is
    None.
    """

    __slots__ = (
        "_is_searched",
        "_next_batch",
        "_scan_end",
        "_source",
        "position",
        "reason",
        "start_offset",
    )

    def __init__(
        self, source: ByteSource, position: int, scan_end: int, start_offset: int, reason: str
    ) -> None:
        self._source = source
        self._scan_end = scan_end
        self._is_searched = False
        self._next_batch: Batch | None = None
        self.position = position
        self.start_offset = start_offset
        self.reason = reason

    @property
    def next_batch(self) -> Batch | None:
        """The first intact batch after the damage, or None."""
        if not self._is_searched:
            self._next_batch = find_next_intact(
                self._source, self.position, self._scan_end, self.start_offset
            )
            self._is_searched = True
            del self._source  # else this object would keep a mapped file open
        return self._next_batch

    @property
    def end_position(self) -> int:
        return self._scan_end if self.next_batch is None else self.next_batch.position

    @property
    def end_offset(self) -> int | None:
        return None if self.next_batch is None else self.next_batch.header.base_offset

    def error(self, path: str) -> CorruptSegmentError:
        return CorruptSegmentError(path, self.position, self.reason, self.start_offset - 1)


def view_source(view: memoryview) -> ByteSource:
    """Return a source for the bytes of a view, such as a mapped file."""
    return lambda position, length: view[position : position + length]


def padded_source(files: Files, path: str) -> ByteSource:
    """Return a source for a file that may be truncated or missing. Missing bytes read as zeros,
    which are not a valid batch."""

    def read(position: int, length: int) -> bytes:
        try:
            data = files.read_at(path, position, length)
        except FileNotFoundError:
            data = b""
        return data.ljust(length, b"\0")

    return read


def buffered(source: ByteSource) -> ByteSource:
    """Return a source that reads at least 64 KiB at a time, for scans over many small batches."""
    start, buffer = 0, memoryview(b"")

    def read(position: int, length: int) -> Buffer:
        nonlocal start, buffer
        if length > BUFFER_BYTES:
            return source(position, length)
        if position < start or position + length > start + len(buffer):
            start, buffer = position, memoryview(source(position, BUFFER_BYTES))
        return buffer[position - start : position - start + length]

    return read


def scan(
    source: ByteSource,
    position: int,
    end_position: int,
    *,
    next_offset: int,
    crc_from_offset: int = NEVER,
    end_offset: int = NEVER,
    has_gaps: bool = True,
) -> Iterator[Batch | Damage]:
    """Yield the batches and damage at positions in [position, end_position). Offsets of batches
    must lie in [next_offset, end_offset).

    The checksum is verified for batches that reach `crc_from_offset`; for most others only the
    header is checked. If `has_gaps` is false, each batch must start exactly at the offset after
    the previous one.
    """
    next_header: BatchHeader | None = None
    while position < end_position:
        header = next_header or _header_at(source, position, end_position)
        reason, next_header = "", None
        if header is None:
            reason = f"only {end_position - position} bytes are left; a header has {HEADER_SIZE}"
        else:
            reason = header_error(header, next_offset, end_position - position)
            if not reason and not has_gaps and header.base_offset != next_offset:
                reason = f"base offset {header.base_offset} does not follow {next_offset - 1}"
        if header is not None and not reason:
            next_header = _likely_header(source, position + header.size_bytes, end_position)
            batch: Batch = _new_tuple(Batch, (position, header))
            checks_crc = header.last_offset >= crc_from_offset
            is_last = position + header.size_bytes == end_position and end_offset == NEVER
            limit = end_offset if next_header is None else next_header.base_offset
            if header.next_offset != limit and not is_last:
                checks_crc = True
                reason = _neighbour_error(header, next_offset, next_header, limit)
            if checks_crc and not crc_matches(source, batch):
                reason = "checksum does not match"
            if not reason:
                yield batch
                position += header.size_bytes
                next_offset = header.next_offset
                continue
        damage = Damage(source, position, end_position, next_offset, reason)
        yield damage
        following = damage.next_batch
        if following is None:
            return
        position, next_header = following
        next_offset = next_header.base_offset


def scan_strict(
    source: ByteSource,
    position: int,
    end_position: int,
    *,
    path: str,
    next_offset: int,
    crc_from_offset: int = NEVER,
    end_offset: int = NEVER,
    has_gaps: bool = True,
) -> Iterator[Batch]:
    """Yield batches like `scan`, but raise `CorruptSegmentError` at the first damage."""
    for item in scan(
        source,
        position,
        end_position,
        next_offset=next_offset,
        crc_from_offset=crc_from_offset,
        end_offset=end_offset,
        has_gaps=has_gaps,
    ):
        if isinstance(item, Damage):
            raise item.error(path)
        yield item


def header_error(header: BatchHeader, next_offset: int, room: int) -> str:
    """Return why this cannot be the header of a batch at or after `next_offset` with at most
    `room` bytes, or "" if it can be."""
    if header.magic != MAGIC:
        return f"magic byte is {header.magic}, not {MAGIC}"
    if header.size_bytes < HEADER_SIZE:
        return f"batch length {header.batch_length} is too small"
    if header.base_offset < next_offset:
        return f"base offset {header.base_offset} is below {next_offset}"
    if header.last_offset_delta < 0:
        return f"last offset delta is {header.last_offset_delta}"
    if header.size_bytes > room:
        return f"batch of {header.size_bytes} bytes extends past the log; {room} bytes are left"
    return ""


def _neighbour_error(
    header: BatchHeader, next_offset: int, next_header: BatchHeader | None, limit: int
) -> str:
    """Return an error if a batch with a valid checksum overlaps the next batch or segment, or "" if
    it does not. If the batch starts at `next_offset`, also return "" for an overlap with the next
    batch, because the offset of that batch is wrong."""
    follows_directly = header.base_offset == next_offset and next_header is not None
    if header.next_offset <= limit or follows_directly:
        return ""  # a gap follows, or the next batch has the wrong offset
    return f"last offset {header.last_offset} overlaps the next batch or segment, at {limit}"


def crc_matches(source: ByteSource, batch: Batch) -> bool:
    """Return whether the checksum of a batch is correct."""
    position, header = batch
    return crc32c(source(position + CRC_START, header.size_bytes - CRC_START)) == header.crc


def find_next_intact(
    source: ByteSource, position: int, end_position: int, next_offset: int
) -> Batch | None:
    """Find the first complete, intact batch after damage at `position`.

    Usually the length of the damaged batch is still correct, and an intact batch starts at its end.
    Otherwise the search tries every byte at which a batch could start. A record value may itself
    contain batches (a log of logs), which do not belong to this log. A batch of this log is
    followed by more batches up to the end of the file, or up to the claimed end of the damaged
    batch. If no candidate is, the first intact one is returned, or None if the damaged batch claims
    the rest of the file.
    """
    damaged = _header_at(source, position, end_position)
    if damaged and not HEADER_SIZE <= damaged.size_bytes <= end_position - position:
        damaged = None
    claimed_end = position + damaged.size_bytes if damaged else -1
    if damaged and claimed_end < end_position:
        next_header = _likely_header(source, claimed_end, end_position)
        if (
            next_header
            and next_header.base_offset == damaged.next_offset
            and not header_error(next_header, next_offset, end_position - claimed_end)
            and crc_matches(source, Batch(claimed_end, next_header))
        ):
            return Batch(claimed_end, next_header)
    unconnected: Batch | None = None
    seen: set[int] = set()
    for candidate in _candidates(source, position + 1, end_position, next_offset):
        if candidate.position in seen or not crc_matches(source, candidate):
            continue
        if candidate.position == claimed_end or _connects_to(
            source, candidate, end_position, claimed_end, seen
        ):
            return candidate
        unconnected = unconnected or candidate
    return None if claimed_end == end_position else unconnected


def _header_at(source: ByteSource, position: int, end_position: int) -> BatchHeader | None:
    """Return the header at a position without checking it, or None if too few bytes are left."""
    if position < 0 or end_position - position < HEADER_SIZE:
        return None
    raw = source(position, HEADER_SIZE)
    return read_header(raw) if len(raw) >= HEADER_SIZE else None  # the file may have shrunk


def _likely_header(source: ByteSource, position: int, end_position: int) -> BatchHeader | None:
    """Return the header at a position if it is plausible, else None."""
    header = _header_at(source, position, end_position)
    if header is None or header.magic != MAGIC:
        return None
    return header if HEADER_SIZE <= header.size_bytes <= end_position - position else None


def _candidates(
    source: ByteSource, start: int, end_position: int, next_offset: int
) -> Iterator[Batch]:
    """Yield every batch whose header is plausible, without verifying its checksum."""
    while start + HEADER_SIZE <= end_position:
        window = bytes(source(start + MAGIC_POSITION, BUFFER_BYTES))
        found = window.find(MAGIC)
        while found >= 0 and start + found + HEADER_SIZE <= end_position:
            candidate = start + found
            header = _header_at(source, candidate, end_position)
            if header and not header_error(header, next_offset, end_position - candidate):
                yield Batch(candidate, header)
            found = window.find(MAGIC, found + 1)
        if not window:
            return  # the file has shrunk
        start += len(window)


def _connects_to(
    source: ByteSource, batch: Batch, end_position: int, claimed_end: int, seen: set[int]
) -> bool:
    """Return whether consecutive batches lead from this one to `end_position` or `claimed_end`. Add
    their positions to `seen`."""
    position, header = batch
    while True:
        seen.add(position)
        position += header.size_bytes
        if position in (end_position, claimed_end):
            return True
        next_header = _likely_header(source, position, end_position)
        if next_header is None or header_error(
            next_header, header.next_offset, end_position - position
        ):
            return False
        header = next_header


def batches_of_read(
    data: Buffer, *, path: str, offset: int, end_offset: int
) -> Iterator[BatchView]:
    """Yield the complete batches in the result of a read at `offset`, verifying each one first.

    `end_offset` is the end of the log as seen by that read. Bytes beyond it are ignored, because
    another process may be writing there. The read itself has checked the position of the first
    batch (read_plan.py). A batch after a gap is checked against the batch that follows it; if that
    one is not in `data`, the batch is not yielded, and the next read returns it. The error for a
    damaged batch has no `resume_offset`; a read that starts at that batch determines it.
    """
    position, size, next_offset = 0, len(data), offset
    while position + HEADER_SIZE <= size and next_offset < end_offset:
        batch = BatchView(data, position)
        header = batch.header
        if header.base_offset >= end_offset and position:
            return  # a gap precedes this batch, or it is damaged: the next read starts with it
        end = position + header.size_bytes
        if end > size and end - position >= HEADER_SIZE and position:
            return  # the read ended inside this batch
        try:
            batch.check()
        except CorruptRecordError as error:
            raise CorruptSegmentError(path, position, str(error), next_offset - 1) from error
        after = header.next_offset
        if position and header.base_offset > next_offset:
            next_header = _header_in(data, end)
            if next_header is None:
                return  # a gap or damage: the next read starts with this batch
            fits = after <= next_header.base_offset
        else:
            fits = header.base_offset == next_offset or not position
        if not fits or not next_offset < after <= end_offset:
            reason = f"base offset {header.base_offset} contradicts the neighbouring batches"
            raise CorruptSegmentError(path, position, reason, next_offset - 1)
        yield batch
        position, next_offset = end, after


def _header_in(data: Buffer, position: int) -> BatchHeader | None:
    if position + HEADER_SIZE > len(data):
        return None
    header = read_header(data, position)
    return header if header.magic == MAGIC else None
