"""Tracks which lake tables must exist, what they contain, and what retention may delete.

A separate process (`tables/topics/worker.py`) syncs the topics that have a `table.format` to tables
and reports the result of each sync. The broker itself neither reads nor writes tables:

    wanted()     ──▶ sync process ──▶ note(report)                      what each table contains
    removable()  ──▶ take_checks(), if no recent report exists ──▶ sync process
                 ──▶ note(report) ──▶ retention runs again

With `retention.after.table`, retention deletes a segment only if all of its records are in the
table or were deleted by clients. It relies on a report only if all of these conditions hold;
otherwise it deletes only records that clients have deleted:

1. The offsets in the report belong to a version of the table that was durable before the report.
2. The report is about this topic (by id) and about the table that is bound to the topic. The first
   successful report binds its table: the broker stores the table's id in the topic setting
   `table.id`, which is durable in `topics.json`. If that table is removed or replaced by another
   one, the process reports an error.
3. The sync succeeded, and the report is at most `FRESH_MS` old. If it is older, retention requests
   a check and runs again when the new report arrives.

Reports are kept in memory only. After a restart, a topic with `retention.after.table` keeps its
records until the first report.

Segments that have expired but are not in the table are *held*; the metric `retention_held_bytes` is
their size. If the same segment of a partition is held for `STALL_INTERVALS` sync intervals, and at
least `MIN_STALL_MS`, the disk may fill up, so the problem is logged and listed in `problems`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from strandlog.broker.topics.catalog import TopicCatalog
from strandlog.broker.topics.topic import Topic
from strandlog.clock import Clock
from strandlog.config.tables.broker import BrokerSettings
from strandlog.config.units import counted
from strandlog.model import TopicPartition
from strandlog.storage.cleaning.retention import count_below
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.paths import join

TABLES_FOLDER: Final = "tables"  # in the data folder, unless table.dir is set
FRESH_MS: Final = 10_000
MIN_STALL_MS: Final = 60_000
STALL_INTERVALS: Final = 3
WARN_INTERVAL_MS: Final = 3_600_000
NO_OFFSETS: Mapping[int, int] = {}


class WantedTable(NamedTuple):
    """A table that must exist for a topic. `table_id` is empty until a table is bound to the
    topic."""

    topic: str
    topic_id: str
    folder: str
    format: str
    mode: str
    values: str
    partition_by: str
    interval_ms: int
    table_id: str


class TableReport(NamedTuple):
    """The result of one sync of a topic. `offsets` maps each partition to the next offset to sync.
    If the sync failed, `error` is the reason, and `offsets` is empty."""

    topic: str
    topic_id: str
    table_id: str = ""
    error: str = ""
    offsets: Mapping[int, int] = NO_OFFSETS
    version: int = -1
    rows: int = 0


class TableState(NamedTuple):
    """The state of a topic's table. `report` is None until the first sync has been reported."""

    wanted: WantedTable
    report: TableReport | None
    # Number of offsets below the high watermark that the last successful sync has not reached.
    lag: int
    # The part of `lag` that cannot be synced until an open transaction ends.
    open_transaction_lag: int
    age_ms: int  # age of the report; -1 if there is none

    @property
    def is_failing(self) -> bool:
        return self.report is not None and bool(self.report.error)


class _Held(NamedTuple):
    """Expired segments of a partition that are not in the table."""

    base_offset: int
    size_bytes: int
    since_ms: int


class LakeTables:
    """The tables of one broker."""

    def __init__(
        self,
        catalog: TopicCatalog,
        settings: BrokerSettings,
        clock: Clock,
        path: str,
        warn: Callable[[str], None],
    ) -> None:
        self._catalog = catalog
        self._settings = settings
        self._clock = clock
        self._path = path
        self._warn = warn
        self._wanted: dict[str, WantedTable] = {}
        self._wanted_version = -1
        # The last report of each topic, and when it arrived.
        self._reports: dict[str, tuple[TableReport, int]] = {}
        self._synced: dict[str, TableReport] = {}  # the last report without an error
        self._checks: set[str] = set()  # topics to check; cleared by `take_checks`
        self._awaited: set[str] = set()  # topics whose report retention waits for
        self._held: dict[TopicPartition, _Held] = {}
        self._warned_ms: dict[str, int] = {}

    def folder(self, topic: str) -> str:
        """Return the absolute path of a topic's table folder."""
        tables = self._settings.table_dir or join(self._path, TABLES_FOLDER)
        return join(os.path.abspath(tables), topic)

    def wanted(self) -> Mapping[str, WantedTable]:
        """Return the tables that must exist, by topic; the same object until they change."""
        if self._wanted_version != self._catalog.version:
            self._wanted_version = self._catalog.version
            found = {
                topic.name: self._wanted_of(topic)
                for topic in self._catalog.topics()
                if topic.settings.table_format and not topic.is_internal
            }
            if found != self._wanted:
                self._wanted = found
                self._forget_reports()
        return self._wanted

    def _forget_reports(self) -> None:
        """Forget the reports about topics that were deleted or recreated or have no table."""
        ids = {wanted.topic_id for wanted in self._wanted.values()}
        self._reports = {
            name: each for name, each in self._reports.items() if each[0].topic_id in ids
        }
        self._synced = {name: each for name, each in self._synced.items() if each.topic_id in ids}

    def _wanted_of(self, topic: Topic) -> WantedTable:
        settings = topic.settings
        return WantedTable(
            topic.name,
            topic.topic_id,
            self.folder(topic.name),
            settings.table_format,
            settings.table_mode,
            settings.table_values,
            "none" if settings.table_mode == "upsert" else settings.table_partition_by,
            settings.table_sync_interval_ms,
            settings.table_id,
        )

    def note(self, report: TableReport) -> bool:
        """Store a report, unless its topic was recreated or no longer has a table; return whether
        retention waits for the report."""
        wanted = self.wanted().get(report.topic)
        if wanted is None or wanted.topic_id != report.topic_id:
            return False  # the topic or its table was deleted or recreated during the sync
        self._reports[report.topic] = (report, self._clock.monotonic_ms())
        if not report.error:
            self._synced[report.topic] = report
        is_awaited = report.topic in self._awaited
        self._awaited.discard(report.topic)
        return is_awaited

    def take_checks(self) -> list[str]:
        """Return and clear the topics whose tables must be synced and reported on before retention
        can continue."""
        found, self._checks = sorted(self._checks), set()
        return found

    def state(self, topic: str) -> TableState | None:
        """Return the state of a topic's table; None if the topic has no table."""
        wanted = self.wanted().get(topic)
        if wanted is None:
            return None
        report, at_ms = self._reports.get(topic, (None, 0))
        # A report about a failed sync contains no offsets; the table keeps its earlier contents.
        offsets = self._synced[topic].offsets if topic in self._synced else NO_OFFSETS
        lag = held = 0
        for log in self._catalog.logs(topic):
            reached = max(offsets.get(log.tp.partition, 0), log.log_start_offset)
            lag += max(0, log.high_watermark - reached)
            held += max(0, log.high_watermark - max(log.last_stable_offset, reached))
        age_ms = -1 if report is None else self._clock.monotonic_ms() - at_ms
        return TableState(wanted, report, lag, held, age_ms)

    @property
    def failing_count(self) -> int:
        """The number of tables whose last sync failed."""
        self.wanted()  # forgets the reports about deleted topics
        return sum(bool(report.error) for report, _ in self._reports.values())

    # -- retention -------------------------------------------------------------------------------

    def removable(self, log: PartitionLog, count: int) -> int:
        """Return how many of the `count` oldest segments of a log, all expired, retention may
        remove: all of them or, with `retention.after.table`, only segments whose records were all
        deleted or are in the table."""
        if not log.settings.retention_after_table:
            self._held.pop(log.tp, None)
            return count
        found = count_below(log, count, self._synced_offset(log)) if count else 0
        self._note_held(log, found, count)
        return found

    def _synced_offset(self, log: PartitionLog) -> int:
        """Return the offset below which all records are known to be in the table, or 0 if none are.
        Request a check if there is no report, or if the last one is too old."""
        topic = self._catalog.topic(log.tp.topic)
        report, at_ms = self._reports.get(topic.name, (None, 0))
        if report is None or self._clock.monotonic_ms() - at_ms > FRESH_MS:
            if topic.name in self.wanted():
                self._checks.add(topic.name)
                self._awaited.add(topic.name)
            return 0
        is_bound = report.table_id == topic.settings.table_id != ""
        if report.topic_id != topic.topic_id or report.error or not is_bound:
            return 0
        return report.offsets.get(log.tp.partition, 0)

    def _note_held(self, log: PartitionLog, first: int, end: int) -> None:
        segments = log.segments.all()[first:end]
        if not segments:
            self._held.pop(log.tp, None)
            return
        now_ms = self._clock.monotonic_ms()
        before = self._held.get(log.tp)
        base_offset = segments[0].base_offset
        is_same = before is not None and before.base_offset == base_offset
        since_ms = before.since_ms if before is not None and is_same else now_ms
        size_bytes = sum(segment.size_bytes for segment in segments)
        self._held[log.tp] = _Held(base_offset, size_bytes, since_ms)
        stall_ms = max(MIN_STALL_MS, STALL_INTERVALS * log.settings.table_sync_interval_ms)
        if now_ms - since_ms >= stall_ms:
            self._warn_about(log.tp, now_ms)

    def _warn_about(self, tp: TopicPartition, now_ms: int) -> None:
        topic = tp.topic
        if topic in self._warned_ms and now_ms - self._warned_ms[topic] < WARN_INTERVAL_MS:
            return
        self._warned_ms[topic] = now_ms
        self._warn(self._problem(topic))

    def _problem(self, topic: str) -> str:
        held = sum(each.size_bytes for tp, each in self._held.items() if tp.topic == topic)
        state = self.state(topic)
        if state is None:
            reason = "it has no table; set table.format, or retention.after.table=false"
        elif state.report is None:
            reason = "its table has not been synced since the broker started"
        else:
            lag = counted(state.lag, "record")
            reason = state.report.error or f"its table still lacks {lag}"
            if state.open_transaction_lag:
                reason += f"; an open transaction keeps out {state.open_transaction_lag} of them"
        return (
            f"retention keeps {held} expired bytes of topic {topic!r} (retention.after.table), so "
            f"the disk may fill up: {reason}"
        )

    def forget_deleted(self) -> None:
        """Forget the held segments of topics that no longer exist, and the warnings about topics
        that have no held segments."""
        self._held = {tp: each for tp, each in self._held.items() if tp.topic in self._catalog}
        held = {tp.topic for tp in self._held}
        self._warned_ms = {name: at for name, at in self._warned_ms.items() if name in held}

    @property
    def held_bytes(self) -> int:
        """The total size of the segments that have expired but are not in their topic's table."""
        return sum(each.size_bytes for each in self._held.values())

    @property
    def problems(self) -> list[str]:
        """One problem for each topic whose retention has stalled, and for each failing table."""
        self.wanted()  # forgets the reports about deleted topics
        failing = [
            f"the table of topic {report.topic!r} is not in sync: {report.error}"
            for report, _ in self._reports.values()
            if report.error
        ]
        return failing + [self._problem(topic) for topic in sorted(self._warned_ms)]
