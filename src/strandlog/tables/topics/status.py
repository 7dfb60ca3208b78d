"""Compares a table with its topic: synced offsets, lag, gaps and, on request, duplicate rows.

As in Kafka's tools for consumer groups, the lag is the number of offsets up to the high watermark
that are not in the table, whether or not they can be synced now. `open_transaction_lag` is the part
after the last stable offset, which cannot be synced until a transaction ends. (A read_committed
consumer of Kafka counts its own lag up to the last stable offset, which hides a transaction that
hangs.)

`read_status` is cheap: it reads only metadata. With `verifies`, it also reads the columns
`partition` and `offset` of all rows, and counts duplicate rows and rows beyond the synced offsets.
Both counts are 0 unless another program has written to the table. Verifying needs one byte of
memory per synced offset.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from strandlog.tables.table import Snapshot, Table
from strandlog.tables.topics import decisions
from strandlog.tables.topics.source import TopicSource


class PartitionStatus(NamedTuple):
    """One partition of the topic. `synced_offset` is the next offset to sync, or None if nothing
    was synced yet."""

    partition: int
    start_offset: int
    end_offset: int  # the high watermark
    synced_offset: int | None
    lag: int
    rows: int | None = None  # None unless verified
    open_transaction_lag: int = 0


class TableStatus(NamedTuple):
    """A table and its topic."""

    version: int
    rows: int
    expected_rows: int | None  # rows of syncs and accepted changes; None if not counted (upsert)
    files: int
    size_bytes: int
    gaps: list[decisions.OffsetRange]
    partitions: list[PartitionStatus]
    duplicates: int | None = None  # this and `beyond` are None unless verified
    beyond: int | None = None


def read_status(table: Table, source: TopicSource, *, verifies: bool = False) -> TableStatus:
    """Return the status of a table; raise `TableChangedError` if it belongs to another topic."""
    snapshot = table.load()
    topic = source.describe()
    ends = source.high_watermarks(topic.partitions)
    properties = snapshot.properties
    decisions.check_source(properties, topic, {})
    synced = decisions.synced_offsets(snapshot, topic)
    counted = _count(snapshot, synced) if verifies else None
    partitions = []
    for number, bounds in sorted(topic.partitions.items()):
        reached = synced[number]
        end = max(bounds.end, ends[number])
        position = bounds.start if reached is None else reached
        lag, held = max(end - position, 0), max(end - max(bounds.end, position), 0)
        rows = None if counted is None else counted.rows.get(number, 0)
        partitions.append(PartitionStatus(number, bounds.start, end, reached, lag, rows, held))
    expected = snapshot.progress(decisions.app_id(topic, decisions.ROWS))
    if expected is not None:
        expected += decisions.accepted_rows(properties)
    files = snapshot.data_files()
    return TableStatus(
        snapshot.version,
        snapshot.row_count(),
        expected,
        len(files),
        sum(os.path.getsize(path) for path in files if os.path.exists(path)),
        decisions.recorded_gaps(properties),
        partitions,
        None if counted is None else counted.duplicates,
        None if counted is None else counted.beyond,
    )


class _Count(NamedTuple):
    rows: dict[int, int]
    duplicates: int
    beyond: int


def _count(snapshot: Snapshot, synced: dict[int, int | None]) -> _Count:
    seen: dict[int, Any] = {
        number: np.zeros(end or 0, np.bool_) for number, end in sorted(synced.items())
    }
    rows: dict[int, int] = {}
    duplicates = beyond = 0
    for batch in snapshot.read(["partition", "offset"]):
        # Rows of another program can contain nulls; -1 matches no partition and no synced offset.
        numbers, offsets = (
            pc.fill_null(column, -1).to_numpy(zero_copy_only=False) for column in batch.columns
        )
        for number in np.unique(numbers):
            found = offsets[numbers == number]
            rows[int(number)] = rows.get(int(number), 0) + len(found)
            marks = seen.get(int(number), np.zeros(0, np.bool_))
            inside = found[(found >= 0) & (found < len(marks))]
            beyond += len(found) - len(inside)
            fresh = int(np.count_nonzero(~marks[np.unique(inside)]))
            duplicates += len(inside) - fresh
            marks[inside] = True
    return _Count(rows, duplicates, beyond)
