"""Time travel by offset: finds the first version of a table with the records up to given offsets.

Every version that a sync commits records the offsets that it added, [start, end) for each
partition. Going backwards from the newest version, these ranges give the next offset of each
version:

    version   commit          next offset
    12        0: [90, 120)    120
    11        compaction      90
    10        0: [50, 90)     90
    9         0: [0, 50)      50

The result is the first version that contains all wanted records: for offset 60, version 10, which
also contains the records up to offset 89. In append mode, a condition on `offset` excludes the
later records; in upsert mode, the version contains the latest value of each key as of offset 89.

The history is limited: Delta keeps commits for 30 days, `vacuum` deletes old Iceberg versions, and
a Parquet table keeps only its newest version.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, NamedTuple

from strandlog.errors import TableError
from strandlog.tables.table import Snapshot, Table
from strandlog.tables.topics import decisions
from strandlog.tables.topics.source import TopicState

HISTORY_LIMIT: Final = 1_000_000


class VersionOffsets(NamedTuple):
    """A version of a table, and the next offset of each partition after it."""

    version: int
    offsets: dict[int, int]


def version_at(table: Table, wanted: Mapping[int, int]) -> VersionOffsets:
    """Return the first version that has the records up to and including the wanted offsets, which
    are given by partition; raise `TableError` if there is none."""
    if table.format == "parquet":
        raise TableError("a Parquet table keeps only its newest version; use Delta or Iceberg")
    snapshot = table.load()
    offsets = _offsets(snapshot, wanted)
    for partition, offset in wanted.items():
        if offset >= offsets.get(partition, 0):
            raise TableError(
                f"the table has no offset {offset} of partition {partition} yet: it ends at "
                f"{offsets.get(partition, 0)}"
            )
    for commit in snapshot.history(HISTORY_LIMIT):
        ranges = json.loads(commit.metadata.get(decisions.RANGES, "{}"))
        before = {**offsets, **{int(number): start for number, (start, _) in ranges.items()}}
        if any(before.get(partition, 0) <= offset for partition, offset in wanted.items()):
            return VersionOffsets(commit.version, offsets)
        offsets = before
    raise TableError("the history of the table no longer has the commit of these offsets")


def _offsets(snapshot: Snapshot, wanted: Mapping[int, int]) -> dict[int, int]:
    """Return the next offset of each partition that is wanted or occurs in the history."""
    named = snapshot.properties
    topic = TopicState(
        named.get(decisions.TOPIC, ""),
        named.get(decisions.TOPIC_ID, ""),
        named.get(decisions.CLUSTER_ID, ""),
        {},
    )
    numbers = set(wanted)
    for commit in snapshot.history(HISTORY_LIMIT):
        numbers.update(map(int, json.loads(commit.metadata.get(decisions.RANGES, "{}"))))
    found = {number: snapshot.progress(decisions.app_id(topic, number)) for number in numbers}
    return {number: offset for number, offset in found.items() if offset is not None}
