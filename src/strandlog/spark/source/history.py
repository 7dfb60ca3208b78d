"""Decides which part of a read comes from a lake table and which from the log.

A table that `strandlog table sync` or a broker writes contains the records of each partition below
its *progress* `v`, an offset that each version of the table stores. A read of [start, end) is
divided at `v`:

    start ──── table: offsets below v ──── v ──── log: the rest ──── end

Each offset is in exactly one part, so no row is missing and none occurs twice. Both parts are fixed
when the read is planned: the table's version, with its list of files, and the offsets. A concurrent
sync or table compaction does not affect the read, because a table's files stay until they are
vacuumed, days later. Nor does retention below `v`, because those records are not read from the log.
Only the compaction of a Parquet table removes files immediately; a read that still needs them
fails.

    log start ≤ v           no gap: retention has removed only records below v
    log start > v           records in [v, log start) are neither in the table nor in the log: lost
    partition not in table  everything comes from the log

Records that were deleted before they were synced are missing from the table, which lists these gaps
(`--accept-gap`). A read reports the gaps in its range as lost records.

The first readable offset of a partition in the table is 0, no matter what retention has removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from strandlog.model import TopicPartition
from strandlog.spark.source.continuity import Bounds, Loss, trimmed
from strandlog.spark.source.planning import OffsetRange


class Division(NamedTuple):
    """The parts of a read: ranges from the table, ranges from the log, and records in neither."""

    table: list[OffsetRange]
    log: list[OffsetRange]
    losses: list[Loss]


def with_history(
    bounds: Mapping[TopicPartition, Bounds], progress: Mapping[TopicPartition, int]
) -> dict[TopicPartition, Bounds]:
    """Return the readable offsets of the table and the log together."""
    return {
        tp: bound._replace(earliest=0, latest=max(bound.latest, progress[tp]))
        if tp in progress
        else bound
        for tp, bound in bounds.items()
    }


def divided(
    ranges: Iterable[OffsetRange],
    progress: Mapping[TopicPartition, int],
    log_starts: Mapping[TopicPartition, int],
    gaps: Iterable[OffsetRange] = (),
) -> Division:
    """Divide ranges between the table and the log. `progress` and `gaps` must come from the same
    version of the table."""
    found = Division([], [], [])
    for wanted in ranges:
        synced = progress.get(wanted.tp, 0)
        middle = min(max(wanted.start, synced), wanted.end)
        if wanted.start < middle:
            found.table.append(wanted._replace(end=middle))
            for gap in gaps:
                start, end = max(wanted.start, gap.start), min(middle, gap.end)
                if gap.tp == wanted.tp and start < end:
                    found.losses.append(trimmed(gap.tp, start, end))
        first = min(max(middle, log_starts[wanted.tp]), wanted.end)
        if middle < first:
            found.losses.append(trimmed(wanted.tp, middle, first))
        if first < wanted.end:
            found.log.append(wanted._replace(start=first))
    return found
