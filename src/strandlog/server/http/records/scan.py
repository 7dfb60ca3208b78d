"""Decodes fetched batches and filters their records, within limits on matches, bytes and time.

A few kilobytes on disk can decompress to many megabytes, so the limit applies to decoded bytes. A
scan stops after the record or batch that reaches a limit, so every scan makes progress. A batch
that cannot be decoded is reported and skipped, and so is a value that is too large to search.

`scan_back` scans from the newest batch to the oldest. It checks its limits after each batch and not
after each record, because the records of a batch can only be decoded from the first to the last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple

from strandlog.broker.reads.fetch import FetchPartitionData
from strandlog.broker.reads.fetched_records import (
    checked_batches,
    records_of,
    size_of,
    undecodable,
)
from strandlog.clock import stopwatch
from strandlog.errors import DataError, UndecodableBatchError
from strandlog.model import Record
from strandlog.record.batch import BatchView
from strandlog.server.http.records.filter import Test
from strandlog.server.http.records.payload import TooLargeToParseError


class ScanLimits(NamedTuple):
    """The limits of one scan."""

    end_offset: int
    max_records: int  # limit on the matching records
    max_bytes: int  # limit on the bytes scanned, after decompression
    deadline: float  # in stopwatch seconds
    batch_bytes: int  # limit on the size of one decompressed batch


class ScanResult(NamedTuple):
    """The matching records, and the progress of the scan."""

    passed: list[Record]
    next_offset: int  # the first offset after the scan; for `scan_back`, the lowest that it read
    scanned_records: int
    scanned_bytes: int
    problems: list[UndecodableBatchError]
    not_searched: list[int]  # offsets of values that are too large to search
    is_complete: bool = True  # False if `scan_back` needs a fetch that starts at `next_offset`


def scan(
    found: FetchPartitionData, offset: int, test: Test | None, limits: ScanLimits
) -> ScanResult:
    """Scan the fetched records, starting at an offset."""
    passed: list[Record] = []
    problems: list[UndecodableBatchError] = []
    not_searched: list[int] = []
    scanned_records = scanned_bytes = 0

    def piece(next_offset: int) -> ScanResult:
        end = min(next_offset, limits.end_offset)
        return ScanResult(passed, end, scanned_records, scanned_bytes, problems, not_searched)

    for records, next_offset in records_of(found, offset, limits.batch_bytes, problems):
        for record in records:
            if record.offset >= limits.end_offset:
                return piece(limits.end_offset)
            scanned_records += 1
            scanned_bytes += size_of(record)
            try:
                if test is None or test(record):
                    passed.append(record)
            except TooLargeToParseError:
                not_searched.append(record.offset)
            if (
                len(passed) == limits.max_records
                or scanned_bytes >= limits.max_bytes
                or stopwatch() >= limits.deadline
            ):
                return piece(record.offset + 1)
        offset = next_offset
        if stopwatch() >= limits.deadline:  # also checked here, because batches may be empty
            break
    return piece(offset)


def scan_back(
    found: FetchPartitionData, offset: int, test: Test | None, limits: ScanLimits
) -> ScanResult:
    """Scan the fetched records below `limits.end_offset`, newest batch first, down to the batch
    that contains `offset`, or the next one, or until a limit is reached. The matching records are
    not sorted.

    The fetched batches may end below the end offset, at a damaged batch or at the end of a segment.
    In that case, scan nothing: the caller must first fetch from there.
    """
    passed: list[Record] = []
    problems: list[UndecodableBatchError] = []
    not_searched: list[int] = []
    scanned_records = scanned_bytes = 0
    batches, end = _batches_below(limits.end_offset, checked_batches(found, problems))
    if end < limits.end_offset:
        return ScanResult([], end, 0, 0, problems, [], is_complete=False)
    reached = min([offset, *(batch.header.base_offset for batch, _ in batches[:1])])
    for batch, is_visible in reversed(batches):
        newest: deque[Record] = deque(maxlen=limits.max_records - len(passed))
        pieces = batch.pieces(
            str(found.topic), found.partition, found.log_start_offset, limits.batch_bytes
        )
        try:
            for record in chain.from_iterable(pieces) if is_visible else ():
                if record.offset >= limits.end_offset:
                    break
                scanned_records += 1
                scanned_bytes += size_of(record)
                try:
                    if test is None or test(record):
                        newest.append(record)
                except TooLargeToParseError:
                    not_searched.append(record.offset)
        except DataError as damage:
            problems.append(undecodable(found, batch, damage))
        passed += newest
        if (
            len(passed) >= limits.max_records
            or scanned_bytes >= limits.max_bytes
            or stopwatch() >= limits.deadline
        ):
            reached = batch.header.base_offset
            break
    return ScanResult(passed, reached, scanned_records, scanned_bytes, problems, not_searched)


def _batches_below(
    end_offset: int, checked: Iterable[tuple[BatchView, bool]]
) -> tuple[list[tuple[BatchView, bool]], int]:
    """Return the batches that start below `end_offset`, and the offset at which the last of them
    ends. That offset is `end_offset` if `checked` is empty or contains a batch that starts at or
    above it."""
    batches: list[tuple[BatchView, bool]] = []
    for batch, is_visible in checked:
        if batch.header.base_offset >= end_offset:
            return batches, end_offset
        batches.append((batch, is_visible))
    return batches, batches[-1][0].header.next_offset if batches else end_offset
