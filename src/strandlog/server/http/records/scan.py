"""A piece of a partition, decoded and put through a filter, within bounds.

A few kilobytes on disk may unpack to many megabytes. So the cost of a look is counted in what comes
out: it ends with the record at which the bytes or the time run out. One is always looked at, so
that every look makes progress. A batch that cannot be decoded is reported and passed over, and so
is a value that is too large to search.
"""

from __future__ import annotations

from typing import NamedTuple

from strandlog.broker.fetch import FetchPartitionData
from strandlog.broker.fetched_records import records_of, size_of
from strandlog.clock import stopwatch
from strandlog.errors import UndecodableBatchError
from strandlog.model import Record
from strandlog.server.http.records.filter import Test
from strandlog.server.http.records.payload import TooLargeToParseError


class ScanLimits(NamedTuple):
    """How much may be done for a piece."""

    end_offset: int
    most_records: int  # that pass
    most_bytes: int  # that are looked at
    deadline: float  # on the stopwatch
    batch_bytes: int  # that a batch may unpack to


class ScanResult(NamedTuple):
    """What came of it."""

    passed: list[Record]
    next_offset: int
    scanned_records: int
    scanned_bytes: int
    problems: list[UndecodableBatchError]
    not_searched: list[int]  # offsets of values that are too large for it


def scan(
    found: FetchPartitionData, offset: int, test: Test | None, bounds: ScanLimits
) -> ScanResult:
    """The records from an offset on that pass; where to go on."""
    passed: list[Record] = []
    problems: list[UndecodableBatchError] = []
    not_searched: list[int] = []
    scanned_records = scanned_bytes = 0

    def piece(next_offset: int) -> ScanResult:
        end = min(next_offset, bounds.end_offset)
        return ScanResult(passed, end, scanned_records, scanned_bytes, problems, not_searched)

    for records, next_offset in records_of(found, offset, bounds.batch_bytes, problems):
        for record in records:
            if record.offset >= bounds.end_offset:
                return piece(bounds.end_offset)
            scanned_records += 1
            scanned_bytes += size_of(record)
            try:
                if test is None or test(record):
                    passed.append(record)
            except TooLargeToParseError:
                not_searched.append(record.offset)
            if (
                len(passed) == bounds.most_records
                or scanned_bytes >= bounds.most_bytes
                or stopwatch() >= bounds.deadline
            ):
                return piece(record.offset + 1)
        offset = next_offset
        if stopwatch() >= bounds.deadline:  # batches may be empty, too
            break
    return piece(offset)
