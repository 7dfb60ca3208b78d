"""Decodes fetched batches and filters their records, within limits on matches, bytes and time.

A few kilobytes on disk may decompress to many megabytes, so the limit applies to decoded bytes. A
scan stops after the record or batch that reaches a limit, so every scan makes progress. A batch
that cannot be decoded is reported and skipped, and so is a value that is too large to search.
"""

from __future__ import annotations

from typing import NamedTuple

from strandlog.broker.reads.fetch import FetchPartitionData
from strandlog.broker.reads.fetched_records import records_of, size_of
from strandlog.clock import stopwatch
from strandlog.errors import UndecodableBatchError
from strandlog.model import Record
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
    next_offset: int
    scanned_records: int
    scanned_bytes: int
    problems: list[UndecodableBatchError]
    not_searched: list[int]  # offsets of values that are too large to search


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
