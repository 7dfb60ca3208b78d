"""Decides what a round of `table sync` does, from the state of the table and the topic.

    progress of a partition      log start     readable end     decision
    none (new table, partition)  s             e                read [s, e)
    p, with s ≤ p ≤ e            s             e                read [p, e)
    p < s                        s             e                gap [p, s): stop, or accept it and
                                                                read [s, e)
    p > e                        s             e                stop: the topic has different data

The table stores all progress under these application ids:

    strandlog:<cluster id>:<topic id>:<partition>     the next offset to read
    strandlog:<cluster id>:<topic id>:rows            append mode: rows that syncs have written
    strandlog:<cluster id>:<topic id>:sum             the sum of the next offsets of all partitions

The sum is a checksum: a flipped bit in the table's log could change or hide the progress of a
partition, and a sync would then write records twice or skip some. A table whose sum is wrong is
damaged.

If the row count differs, another program has changed the table: it deleted or added rows, or
restored an older version, which removes rows but keeps the newest progress. A sync then stops,
because rows may be missing. `--accept-changes` stores the difference in the property
`strandlog.rows.accepted`. In upsert mode the row count is not known in advance; instead, every
commit of another program since the last sync must be harmless (`HARMLESS`).

A topic that was deleted and created again has a new id, and its offsets start again at 0. The table
keeps the topic id in its properties; a sync of a topic with a different id stops.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from strandlog.config.units import counted
from strandlog.errors import TableChangedError, TableDamagedError, TableGapError
from strandlog.tables.table import Commit, Snapshot
from strandlog.tables.topics.source import TopicState

TOPIC: Final = "strandlog.topic"
TOPIC_ID: Final = "strandlog.topic.id"
TABLE_ID: Final = "strandlog.table.id"  # random; identifies the table if its folder is reused
CLUSTER_ID: Final = "strandlog.cluster.id"
MODE: Final = "strandlog.mode"
VALUES: Final = "strandlog.values"  # raw, or registry for typed columns
TIME_UNIT: Final = "strandlog.partition.by"
PARTITIONS: Final = "strandlog.partitions"  # upsert mode: partition count at the table's creation
GAPS: Final = "strandlog.gaps"  # [[partition, start, end], …], accepted by the user
ACCEPTED_ROWS: Final = "strandlog.rows.accepted"
OWN: Final = "strandlog."  # prefix of the metadata names in strandlog's own commits
RANGES: Final = "strandlog.ranges"
ROWS: Final = "rows"  # ROWS and SUM end application ids in place of a partition number
SUM: Final = "sum"
HISTORY_LIMIT: Final = 200
HARMLESS: Final = frozenset(
    {
        "OPTIMIZE",
        "VACUUM START",
        "VACUUM END",
        "SET TBLPROPERTIES",
        "SET PROPERTIES",
        "ADD COLUMN",
        "CREATE TABLE",
    }
)


class OffsetRange(NamedTuple):
    """Offsets [start, end) of a partition."""

    partition: int
    start: int
    end: int


class Plan(NamedTuple):
    """The ranges to read next, and the gaps before them."""

    ranges: list[OffsetRange]
    gaps: list[OffsetRange]


def app_id(topic: TopicState, partition: int | str) -> str:
    """Return the application id for a partition, the row count or the offset sum."""
    return f"strandlog:{topic.cluster_id}:{topic.topic_id}:{partition}"


def synced_offsets(snapshot: Snapshot, topic: TopicState) -> dict[int, int | None]:
    """Return the next offset to read for each partition, or None where nothing was synced.

    Raise `TableDamagedError` if the sum of the offsets is not the one that the last sync stored.
    """
    found = {number: snapshot.progress(app_id(topic, number)) for number in topic.partitions}
    expected = snapshot.progress(app_id(topic, SUM))
    if expected is not None and expected != offset_sum(found):
        raise TableDamagedError(
            f"the table is damaged: the synced offsets of {topic.name!r} have the sum "
            f"{offset_sum(found)}, not {expected}; restore the table from a copy, or write it "
            "again with `strandlog table sync --rebuild`"
        )
    return found


def offset_sum(offsets: Mapping[int, int | None]) -> int:
    """Return the checksum of the next offsets of all partitions."""
    return sum(offset or 0 for offset in offsets.values())


def plan(topic: TopicState, synced: Mapping[int, int | None]) -> Plan:
    """Decide what to read; raise `TableChangedError` if the topic is shorter than the table."""
    ranges, gaps = [], []
    for number, bounds in sorted(topic.partitions.items()):
        start = synced.get(number)
        if start is None:
            start = bounds.start
        elif start > bounds.end:
            raise TableChangedError(
                f"the table has {topic.name}-{number} up to offset {start}, but the topic ends at "
                f"{bounds.end}: it was truncated or restored from a copy; sync to another table, "
                "or write this one again with --rebuild"
            )
        elif start < bounds.start:
            gaps.append(OffsetRange(number, start, bounds.start))
            start = bounds.start
        if start < bounds.end:
            ranges.append(OffsetRange(number, start, bounds.end))
    return Plan(ranges, gaps)


def check_gaps(topic: TopicState, gaps: Sequence[OffsetRange], *, is_accepted: bool) -> None:
    """Raise `TableGapError` if there are gaps that the user does not accept."""
    if gaps and not is_accepted:
        raise TableGapError(topic.name, gaps)


def check_source(
    properties: Mapping[str, str], topic: TopicState, wanted: Mapping[str, str]
) -> None:
    """Raise `TableChangedError` unless the table belongs to this topic and has these options."""
    owner = properties.get(TOPIC)
    if owner is None:
        raise TableChangedError(
            "the table was not created by `strandlog table sync`; choose another folder"
        )
    if owner != topic.name:
        raise TableChangedError(
            f"the table has topic {owner!r}, not {topic.name!r}; choose another folder"
        )
    found_ids = (properties.get(CLUSTER_ID, ""), properties.get(TOPIC_ID, ""))
    if found_ids[0] != topic.cluster_id:
        raise TableChangedError(
            f"the table has topic {owner!r} of another cluster: this broker or data folder is not "
            "the one that it was written from; choose another folder"
        )
    if found_ids[1] != topic.topic_id:
        raise TableChangedError(
            f"the table has another topic of the same name: {topic.name!r} was deleted and created "
            "again. Its offsets would repeat; sync to another folder, or write this table again "
            "with --rebuild"
        )
    for name, value in wanted.items():
        if properties.get(name) != value:
            raise TableChangedError(
                f"the table was created with {name.removeprefix('strandlog.')}="
                f"{properties.get(name)}, not {value}; use the same option, or another folder"
            )


def check_rows(
    expected: int | None, properties: Mapping[str, str], found: int, history: Sequence[Commit]
) -> None:
    """Raise `TableChangedError` if another program has added or removed rows."""
    if expected is None or expected + accepted_rows(properties) == found:
        return
    raise TableChangedError(
        f"the table has {counted(found, 'row')}, but syncs have written "
        f"{expected + accepted_rows(properties)}: another program has changed it"
        f"{_named(foreign_commit(history))}. Undo that; or keep the change with --accept-changes; "
        "or write the table again with --rebuild"
    )


def accepted_rows(properties: Mapping[str, str]) -> int:
    """Return the accepted difference between the table's row count and the rows that syncs have
    written."""
    return int(properties.get(ACCEPTED_ROWS, "0"))


def recorded_gaps(properties: Mapping[str, str]) -> list[OffsetRange]:
    """Return the offsets that the table lacks because they were deleted before they were synced."""
    return [OffsetRange(*each) for each in json.loads(properties.get(GAPS, "[]"))]


def check_history(history: Sequence[Commit]) -> None:
    """In upsert mode, raise `TableChangedError` if another program may have changed rows since the
    last sync."""
    last = next((index for index, commit in enumerate(history) if _is_own(commit)), len(history))
    commit = foreign_commit(history[:last])
    if commit is not None:
        raise TableChangedError(
            f"another program has changed the table since the last sync{_named(commit)}. Write the "
            "table again with --rebuild, or keep the change with --accept-changes"
        )


def foreign_commit(history: Sequence[Commit]) -> Commit | None:
    """Return another program's newest commit that may have changed rows, or None."""
    for commit in history:
        if not _is_own(commit) and commit.operation.upper() not in HARMLESS:
            return commit
    return None


def _is_own(commit: Commit) -> bool:
    return any(name.startswith(OWN) for name in commit.metadata)


def _named(commit: Commit | None) -> str:
    return "" if commit is None else f" (version {commit.version}: {commit.operation})"


def check_partitions(properties: Mapping[str, str], topic: TopicState) -> None:
    """In upsert mode, raise `TableChangedError` if the topic's partition count has changed.

    The same key may then be in two partitions, whose offsets cannot be compared.
    """
    before = int(properties.get(PARTITIONS, "0"))
    if before and before != len(topic.partitions):
        raise TableChangedError(
            f"topic {topic.name!r} has {counted(len(topic.partitions), 'partition')} and had "
            f"{before} when the table was created. A key may be in two of them, and offsets of two "
            "partitions cannot be compared: sync in append mode to another folder"
        )
