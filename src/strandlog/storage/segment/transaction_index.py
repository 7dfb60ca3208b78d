"""Aborted transactions of a partition, in memory and in Kafka's `.txnindex` files.

There is one entry per aborted transaction, with its producer id and the offsets of its first record
and its marker. A reader of a range of offsets needs the transactions that overlap the range,
ordered by first offset, and omits their records.

The file `<base>.txnindex`, in Kafka's format, holds the entries whose markers lie in that segment.

    entries of i16 version = 0 | i64 producer id | i64 first offset | i64 last offset (the marker) |
               i64 last stable offset when it ended

All entries of a partition are kept in memory, 40 bytes each. New entries are written to the file
with the next producer snapshot or when the segment is sealed. After a crash, only entries below the
snapshot point are used; above it, recovery derives the entries from the log.

The format has no checksum, and a missing entry would make aborted records appear committed. So the
manifest stores a checksum for each sealed segment (manifest.py), and a producer snapshot stores one
for the segment that was active at that time (producer_state.py). A file that contradicts its
checksum or is invalid (such as a truncated entry in a sealed segment, or offsets outside the
segment or out of order) is not used.
An entry that was loaded from a file is compared with the log before a reader first gets it
(read.py). In both cases the index can be rebuilt from the log (replay.py).
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from strandlog.record.checksum import crc32c
from strandlog.storage.files import Files
from strandlog.storage.paths import ABORT_INDEX_SUFFIX
from strandlog.storage.segment.manifest import Claim
from strandlog.storage.segment.scan import NEVER

ENTRY = struct.Struct(">hqqqq")
VERSION = 0


class AbortedTransaction(NamedTuple):
    """One entry of the index."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class AbortedTransactions:
    """The aborted transactions of one partition, ordered by marker offset.

    `_lowest[i]` is the smallest first offset of entry i and all later ones; it lets a search stop
    early.
    """

    __slots__ = (
        "_first",
        "_last",
        "_lowest",
        "_producer",
        "_saved_end",
        "_stable",
        "is_derived",
        "unverified",
    )

    def __init__(self) -> None:
        self._producer = array("q")
        self._first = array("q")
        self._last = array("q")
        self._stable = array("q")
        self._lowest = array("q")
        self._saved_end = 0  # entries with markers below this are in the file
        # Marker offsets of entries that were read from a file and not yet compared with the log.
        self.unverified: set[int] = set()
        self.is_derived = False  # whether all entries were derived from the log

    def __len__(self) -> int:
        return len(self._last)

    def __iter__(self) -> Iterator[AbortedTransaction]:
        return map(self._entry, range(len(self._last)))

    def _entry(self, number: int) -> AbortedTransaction:
        return AbortedTransaction(
            self._producer[number], self._first[number], self._last[number], self._stable[number]
        )

    def add(self, entry: AbortedTransaction) -> None:
        """Add an aborted transaction. Its marker must follow all earlier markers."""
        assert not self._last or entry.last_offset > self._last[-1]
        self._producer.append(entry.producer_id)
        self._first.append(entry.first_offset)
        self._last.append(entry.last_offset)
        self._stable.append(entry.last_stable_offset)
        self._lowest.append(entry.first_offset)
        number = len(self._lowest) - 2
        while number >= 0 and self._lowest[number] > entry.first_offset:
            self._lowest[number] = entry.first_offset
            number -= 1

    def overlapping(self, offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return the transactions that overlap [offset, end_offset), ordered by first offset."""
        found = []
        for number in range(bisect_left(self._last, offset), len(self._last)):
            if self._lowest[number] >= end_offset:
                break
            if self._first[number] < end_offset:
                found.append(self._entry(number))
        found.sort(key=lambda entry: entry.first_offset)
        return found

    def ending_in(self, offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return the transactions whose markers lie in [offset, end_offset)."""
        numbers = range(bisect_left(self._last, offset), bisect_left(self._last, end_offset))
        return [self._entry(number) for number in numbers]

    def checksum(self, offset: int, end_offset: int) -> int:
        """Return the CRC-32C of a file with the entries whose markers lie in a range, or 0 if
        there are none."""
        return checksum(self.ending_in(offset, end_offset))

    def drop_below(self, offset: int) -> None:
        """Remove the entries with markers below `offset`, whose segments have been removed."""
        count = bisect_left(self._last, offset)
        for column in (self._producer, self._first, self._last, self._stable, self._lowest):
            del column[:count]

    def truncate_to(self, offset: int) -> None:
        """Remove the entries with markers at or above `offset`, where the log was truncated."""
        kept = self.ending_in(0, offset)
        unverified = {last for last in self.unverified if last < offset}
        saved_end, is_derived = min(self._saved_end, offset), self.is_derived
        self.replace(kept)
        self._saved_end, self.unverified, self.is_derived = saved_end, unverified, is_derived

    def replace(self, entries: Iterable[AbortedTransaction]) -> None:
        """Replace all entries with those derived from the log, none of which is in a file yet."""
        for column in (self._producer, self._first, self._last, self._stable, self._lowest):
            del column[:]
        for entry in entries:
            self.add(entry)
        self.unverified.clear()
        self.is_derived = True
        self._saved_end = 0

    # -- files ---------------------------------------------------------------------------------

    def note_saved(self, end_offset: int) -> None:
        """Record that the entries with markers below `end_offset` are in a file."""
        self._saved_end = end_offset

    def save(self, files: Files, stem: str, base_offset: int, end_offset: int) -> bool:
        """Write new entries to the file of the active segment. Return False if there are none."""
        if not self._last or self._last[-1] < self._saved_end:
            return False
        saved = self.ending_in(base_offset, max(base_offset, self._saved_end))
        unsaved = self.ending_in(max(base_offset, self._saved_end), end_offset)
        # Write at a fixed position instead of the end of the file, because an earlier write may
        # have been cut short by a full disk.
        files.write_at(stem + ABORT_INDEX_SUFFIX, len(saved) * ENTRY.size, packed(unsaved))
        self._saved_end = end_offset
        return True

    def load(self, data: bytes, base_offset: int, end_offset: int, trusted_offset: int) -> bool:
        """Load the entries with markers below `trusted_offset` from a segment's file. Return False
        if the file is invalid."""
        entries = unpacked(data, base_offset, end_offset, trusted_offset)
        if entries is None:
            return False
        for entry in entries:
            self.add(entry)
            self.unverified.add(entry.last_offset)
        self._saved_end = max(self._saved_end, min(end_offset, trusted_offset))
        return True


class AbortedRanges:
    """The offset ranges of aborted transactions, grouped by producer, for scans of many batches."""

    __slots__ = ("_ranges",)

    def __init__(self, entries: Iterable[AbortedTransaction]) -> None:
        self._ranges: dict[int, list[tuple[int, int]]] = {}
        for entry in entries:
            ranges = self._ranges.setdefault(entry.producer_id, [])
            ranges.append((entry.first_offset, entry.last_offset))
        for ranges in self._ranges.values():
            ranges.sort()

    def covers(self, producer_id: int, offset: int) -> bool:
        """Return whether the record of this producer at `offset` was aborted."""
        ranges = self._ranges.get(producer_id)
        if ranges is None:
            return False
        number = bisect_right(ranges, (offset, NEVER)) - 1
        return number >= 0 and offset <= ranges[number][1]


def packed(entries: Iterable[AbortedTransaction]) -> bytes:
    """Encode entries in the format of the file."""
    return b"".join(ENTRY.pack(VERSION, *entry) for entry in entries)


def checksum(entries: Iterable[AbortedTransaction]) -> int:
    """Return the CRC-32C of a file with these entries, or 0 if there are none."""
    return crc32c(packed(entries))


def is_whole(
    entries: Iterable[AbortedTransaction],
    base_offset: int,
    trusted_offset: int,
    claim: Claim | None,
    mark: IndexMark | None,
) -> bool:
    """Return whether the entries of a segment with markers below `trusted_offset` match the
    checksum in the manifest or in the producer snapshot at that offset. Without a checksum, return
    True."""
    has_checksum = claim is not None and claim.aborted_crc is not None
    if claim is not None and has_checksum and claim.end_offset <= trusted_offset:
        return checksum(entries) == claim.aborted_crc
    if mark is not None and mark.base_offset == base_offset:
        return checksum(entries) == mark.checksum
    return True


def unpacked(
    data: bytes, base_offset: int, end_offset: int, trusted_offset: int
) -> list[AbortedTransaction] | None:
    """Decode the entries with markers below `trusted_offset` from a segment's file. Return None if
    the file is invalid."""
    entries: list[AbortedTransaction] = []
    next_offset = base_offset
    for position in range(0, len(data), ENTRY.size):
        if next_offset >= trusted_offset:
            break
        if len(data) - position < ENTRY.size:
            return None if end_offset <= trusted_offset else entries
        version, *fields = ENTRY.unpack_from(data, position)
        entry = AbortedTransaction(*fields)
        if entry.last_offset >= trusted_offset:
            break
        is_right = (
            version == VERSION
            and entry.producer_id >= 0
            and 0 <= entry.first_offset < entry.last_offset
            and next_offset <= entry.last_offset < end_offset
        )
        if not is_right:
            return None
        entries.append(entry)
        next_offset = entry.last_offset + 1
    return entries


class IndexMark(NamedTuple):
    """The checksum, stored in a producer snapshot, of the active segment's transaction index."""

    base_offset: int
    checksum: int
