"""Syncs a topic to a table, in rounds; each round is one commit.

    1  load the table, describe the topic
    2  check that the table still belongs to the topic (decisions.py)
    3  read and decode committed records from the synced offsets, about `round_bytes` at most
    4  write them to data files; in upsert mode, find the latest record of each key instead
    5  check that the topic is still the same one
    6  commit the rows together with the new offsets, through the snapshot loaded in step 1

A process that dies before step 6 has changed no row that a reader sees; if it dies after step 6,
the next process finds the new offsets in the table. Progress is stored only in the table, not in a
consumer group. If another sync commits between steps 1 and 6, the commit raises
`TableConflictError`; the sync discards the rows and returns to step 1. Two concurrent syncs of one
topic are therefore safe, but slower. If records are deleted while they are being read, the sync
also returns to step 1 and then finds the gap.

`check_last_records` detects offsets that were reused after they were synced (last_records.py);
callers call it before the first round.

Control records and records of aborted transactions produce no rows, but the offsets move past them.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from strandlog.clock import pause
from strandlog.errors import (
    CorruptSegmentError,
    DataError,
    OffsetOutOfRangeError,
    TableChangedError,
    TableConflictError,
)
from strandlog.record.arrow.columns import DEFAULT_TARGET_BYTES, decode_columns
from strandlog.tables.layout import DataFile
from strandlog.tables.schema import conformed, merged, plain
from strandlog.tables.table import Snapshot, Table
from strandlog.tables.topics import decisions
from strandlog.tables.topics.columns import (
    RECORD_COLUMNS,
    Columns,
    TimeUnit,
    partition_columns,
    table_schema,
    with_time_column,
)
from strandlog.tables.topics.decisions import OffsetRange, app_id
from strandlog.tables.topics.last_records import (
    LastRecord,
    as_metadata,
    check_last_records,
    last_record,
)
from strandlog.tables.topics.source import TopicSource, TopicState
from strandlog.tables.topics.upsert import Upserts

logger = logging.getLogger(__name__)

DEFAULT_ROUND_BYTES: Final = 128 * 1024 * 1024  # decoded rows per round; bounds the memory of syncs
MIN_PARTITION_BYTES: Final = 4 * 1024 * 1024
MAX_CONFLICTS: Final = 50  # consecutive conflicts after which a sync fails
WARN_AFTER_CONFLICTS: Final = 3
CONFLICT_PAUSE_SECONDS: Final = 0.05
MAX_NAME_CHARACTERS: Final = 100  # of the topic's name in the names of its data files
APPEND: Final = "append"
UPSERT: Final = "upsert"


@dataclass(frozen=True)
class SyncOptions:
    """Options of a sync."""

    mode: str = APPEND
    time_unit: TimeUnit = "day"
    values: str = "raw"
    accepts_gap: bool = False
    accepts_changes: bool = False
    round_bytes: int = DEFAULT_ROUND_BYTES


@dataclass
class SyncReport:
    """The running totals of a sync."""

    rows: int = 0
    bad_rows: int = 0  # rows whose values could not be decoded
    commits: int = 0
    conflicts: int = 0
    gaps: list[OffsetRange] = field(default_factory=list)


@dataclass
class _Round:
    """The results of reading in one round: data files or upserts, and the offsets reached."""

    reached: dict[int, tuple[int, int]] = field(default_factory=dict)  # partition: [start, end)
    last: dict[int, LastRecord] = field(default_factory=dict)
    files: list[DataFile] = field(default_factory=list)
    upserts: Upserts | None = None
    rows: int = 0
    bad_rows: int = 0


class _ExtendedError(Exception):
    """The sync has changed the table's schema or properties and must start the round again."""


class Sync:
    """Syncs one topic to one table."""

    def __init__(
        self,
        table: Table,
        source: TopicSource,
        columns: Columns,
        options: SyncOptions,
        *,
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._table = table
        self._source = source
        self._columns = columns
        self._options = options
        self._warn = warn
        self._advance: Callable[[int], None] = lambda _: None
        # Becomes False when the changes are recorded (append mode) or this sync has committed.
        self._accepts_changes = options.accepts_changes
        # (partition, start) of each range of the last committed round
        self._starts: list[tuple[int, int]] = []
        self.report = SyncReport()

    def create(self) -> None:
        """Create the table, unless it exists."""
        topic = self._source.describe()
        properties = {
            decisions.TOPIC: topic.name,
            decisions.TOPIC_ID: topic.topic_id,
            decisions.CLUSTER_ID: topic.cluster_id,
            decisions.TABLE_ID: uuid.uuid4().hex,
            **self._fixed_options(),
        }
        if self._options.mode == UPSERT:
            properties[decisions.PARTITIONS] = str(len(topic.partitions))
        for conflicts in itertools.count(1):
            try:
                self._table.create(
                    table_schema(self._columns, self._options.time_unit),
                    partition_by=partition_columns(self._options.time_unit),
                    properties=properties,
                )
            except TableConflictError as error:  # another process is creating it
                self._conflict(conflicts, error)
            else:
                return

    def _fixed_options(self) -> dict[str, str]:
        """Return the options that must stay the same for the life of the table."""
        options = self._options
        return {
            decisions.MODE: options.mode,
            decisions.VALUES: options.values,
            decisions.TIME_UNIT: options.time_unit,
        }

    def check_last_records(self) -> None:
        """Raise `TableChangedError` if the table belongs to another topic, or if the topic has
        another record at the last synced offset of a partition."""
        snapshot, topic = self._table.load(), self._source.describe()
        decisions.check_source(snapshot.properties, topic, {})
        check_last_records(snapshot.history(decisions.HISTORY_LIMIT), topic, self._source)

    def run(
        self,
        advance: Callable[[int], None] = lambda _: None,
        stops: Callable[[], bool] = lambda: False,
    ) -> SyncReport:
        """Sync everything that can be read now, in as many rounds as needed.

        Call `advance` with the number of offsets in each range that was read, and return after the
        current round if `stops` returns True.
        """
        self._advance = advance
        ends = {number: bounds.end for number, bounds in self._source.describe().partitions.items()}
        conflicts = 0
        while True:
            try:
                if not self._round(ends) or stops():
                    return self.report
                conflicts = 0
            except _ExtendedError:
                continue
            except OffsetOutOfRangeError as error:
                # Records were deleted while they were read: the next round finds the gap.
                conflicts += 1
                if conflicts >= MAX_CONFLICTS:
                    raise
                logger.info("starting the round again: %s", error)
            except TableConflictError as error:
                conflicts += 1
                self._conflict(conflicts, error)

    def _conflict(self, conflicts: int, error: TableConflictError) -> None:
        self.report.conflicts += 1
        if conflicts >= MAX_CONFLICTS:
            raise error
        if conflicts == WARN_AFTER_CONFLICTS:
            self._warn(f"another process also writes to the table, which slows both down: {error}")
        pause(CONFLICT_PAUSE_SECONDS * conflicts)

    def _round(self, ends: Mapping[int, int]) -> bool:
        """Run one round. If all partitions are synced up to `ends`, return False or, if damage
        prevents one of them from being read further, raise its error."""
        snapshot = self._table.load()
        topic = self._source.describe()
        self._check(snapshot, topic)
        synced = decisions.synced_offsets(snapshot, topic)
        planned = decisions.plan(topic, synced)
        decisions.check_gaps(topic, planned.gaps, is_accepted=self._options.accepts_gap)
        if planned.gaps and self._record_gaps(snapshot, planned.gaps):
            snapshot = self._table.load()
            synced = decisions.synced_offsets(snapshot, topic)
            planned = decisions.plan(topic, synced)
        ranges = [each for each in planned.ranges if each.start < ends.get(each.partition, 0)]
        if not ranges:
            if topic.damage:
                raise topic.damage[0]
            return False
        starts = [each[:2] for each in ranges]
        assert starts != self._starts, "the last commit did not store its progress"
        read = self._read(snapshot, ranges)
        # The topic may have been deleted and created again while it was read.
        decisions.check_source(snapshot.properties, self._source.describe(), {})
        self._commit(snapshot, topic, read, synced)
        self._starts = starts
        return True

    def _check(self, snapshot: Snapshot, topic: TopicState) -> None:
        properties = snapshot.properties
        decisions.check_source(properties, topic, self._fixed_options())
        if self._options.mode == UPSERT:
            decisions.check_partitions(properties, topic)
            if not self._accepts_changes:
                decisions.check_history(snapshot.history(decisions.HISTORY_LIMIT))
            return
        expected = snapshot.progress(app_id(topic, decisions.ROWS))
        found = snapshot.row_count()
        if expected is not None and self._accepts_changes:
            if expected + decisions.accepted_rows(properties) != found:
                difference = {decisions.ACCEPTED_ROWS: str(found - expected)}
                self._table.set_properties(difference)
                self._accepts_changes = False
                raise _ExtendedError
            self._accepts_changes = False
        has_changed = expected is not None and (
            expected + decisions.accepted_rows(properties) != found
        )
        history = snapshot.history(decisions.HISTORY_LIMIT) if has_changed else []
        decisions.check_rows(expected, properties, found, history)

    def _record_gaps(self, snapshot: Snapshot, gaps: list[OffsetRange]) -> bool:
        """Store gaps in the table before the offsets move past them; return whether any is new."""
        known = decisions.recorded_gaps(snapshot.properties)
        new = [each for each in gaps if each not in known]
        self.report.gaps += [each for each in gaps if each not in self.report.gaps]
        if not new:
            return False
        self._warn(
            "records are missing: "
            + ", ".join(f"partition {each.partition} [{each.start}, {each.end})" for each in new)
        )
        self._table.set_properties({decisions.GAPS: json.dumps(known + new)})
        return True

    # -- reading -----------------------------------------------------------------------------------

    def _read(self, snapshot: Snapshot, ranges: list[OffsetRange]) -> _Round:
        read = _Round(upserts=Upserts() if self._options.mode == UPSERT else None)
        share = max(self._options.round_bytes // len(ranges), MIN_PARTITION_BYTES)
        left = self._options.round_bytes
        for wanted in ranges:
            if left <= 0:
                break
            rows, end, last = self._read_range(snapshot, wanted, min(share, left))
            if last is not None:
                read.last[wanted.partition] = last
            left -= rows.nbytes
            read.reached[wanted.partition] = (wanted.start, end)
            read.rows += rows.num_rows
            if "error" in rows.schema.names:
                read.bad_rows += rows.num_rows - rows.column("error").null_count
            if read.upserts is not None:
                read.upserts.add(rows)
            else:
                topic = self._name(snapshot)[:MAX_NAME_CHARACTERS]
                name = f"{topic}-{wanted.partition}-{wanted.start}-{end}"
                read.files += snapshot.layout.write(rows, name, uuid.uuid4().hex[:12])
            self._advance(end - wanted.start)
        return read

    def _name(self, snapshot: Snapshot) -> str:
        return snapshot.properties[decisions.TOPIC]

    def _read_range(
        self, snapshot: Snapshot, wanted: OffsetRange, max_bytes: int
    ) -> tuple[Any, int, LastRecord | None]:
        """Return at most about `max_bytes` of the rows of a range, the offset after them, and
        their last record. If the rows do not fit the table, extend it and raise
        `_ExtendedError`."""
        pieces: list[Any] = []
        last: LastRecord | None = None
        size = 0
        offset = wanted.start
        is_complete = True
        try:
            for batch, next_offset in self._batches(snapshot, wanted, max_bytes):
                pieces.append(self._columns.decode(batch))
                last = last_record(batch) if batch.num_rows else last
                offset = next_offset
                size += pieces[-1].nbytes
                if size >= max_bytes:
                    is_complete = False
                    break
        except (DataError, CorruptSegmentError):
            if not pieces:  # otherwise commit these rows first; the next round raises the error
                raise
            is_complete = False
        if is_complete:
            offset = wanted.end
        # Pieces decoded before a newer schema was found may have fields that the newer one lacks.
        schema = functools.reduce(merged, (piece.schema for piece in pieces), self._columns.schema)
        rows = [conformed(piece, plain(schema)) for piece in pieces]
        table = with_time_column(pa.concat_tables(rows), self._options.time_unit) if rows else None
        if table is None:
            table = table_schema(self._columns, self._options.time_unit).empty_table()
        if merged(snapshot.layout.schema, table.schema) != snapshot.layout.schema:
            self._table.extend(table.schema)
            raise _ExtendedError
        return table, offset, last

    def _batches(
        self, snapshot: Snapshot, wanted: OffsetRange, max_bytes: int
    ) -> Iterator[tuple[Any, int]]:
        """Yield decoded batches of a range, each with the offset after it."""
        offset = wanted.start
        for chunk in self._source.read(*wanted):
            decoded = decode_columns(
                chunk.data,
                offset,
                wanted.end,
                topic=self._name(snapshot),
                partition=wanted.partition,
                aborted=chunk.aborted,
                columns=RECORD_COLUMNS,
                target_bytes=min(max_bytes, DEFAULT_TARGET_BYTES),
            )
            for batch in decoded:
                yield batch, decoded.next_offset
            offset = decoded.next_offset

    # -- committing --------------------------------------------------------------------------------

    def _commit(
        self,
        snapshot: Snapshot,
        topic: TopicState,
        read: _Round,
        synced: Mapping[int, int | None],
    ) -> None:
        ends = {number: end for number, (_, end) in read.reached.items()}
        progress = {app_id(topic, number): end for number, end in ends.items()}
        progress[app_id(topic, decisions.SUM)] = decisions.offset_sum({**synced, **ends})
        ranges = {str(number): list(reached) for number, reached in read.reached.items()}
        metadata = {decisions.RANGES: json.dumps(ranges), **as_metadata(read.last)}
        if read.upserts is not None:
            upsert = getattr(snapshot, "upsert", None)
            if upsert is None:
                raise TableChangedError(
                    "Parquet tables cannot be synced in upsert mode; use Delta or Iceberg"
                )
            rows, deleted = read.upserts.latest(snapshot.layout.schema)
            if rows.num_rows or deleted.num_rows:
                upsert(rows, deleted, progress=progress, metadata=metadata)
            else:
                snapshot.add_files([], progress=progress, metadata=metadata)
        else:
            rows_id = app_id(topic, decisions.ROWS)
            written = sum(each.row_count for each in read.files)
            before = snapshot.progress(rows_id)
            if written or before is None:
                progress[rows_id] = (before or 0) + written
            snapshot.add_files(read.files, progress=progress, metadata=metadata)
        self.report.rows += read.rows
        self.report.bad_rows += read.bad_rows
        self.report.commits += 1
        self._accepts_changes = False
