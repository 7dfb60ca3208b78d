"""What retention may delete of a topic with a lake table, by what is known about the table."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from uuid import UUID

from strandlog.broker.broker import Broker
from strandlog.broker.context import embedded_context
from strandlog.broker.runtime import InlineRuntime
from strandlog.broker.topics.lake_tables import FRESH_MS, MIN_STALL_MS, TableReport
from strandlog.config.tables.broker import BROKER_SETTINGS, broker_settings
from strandlog.model import TopicPartition
from strandlog.record.builder import build_batch, build_single
from strandlog.testing import FakeClock, SimulatedFiles

CONTEXT = embedded_context()
CHECK_MS = 5_000
RETAINED = {"retention.ms": 1000, "segment.bytes": 1024, "retention.after.table": True}
TABLE = {"table.format": "delta", "table.sync.interval.ms": 1000}


class Reported(InlineRuntime):
    """Keeps what a server would log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def report(self, problem: str) -> None:
        self.lines.append(problem)


class Harness:
    """A broker with a topic of many small segments that have all expired."""

    def __init__(
        self, config: Mapping[str, object], disk: SimulatedFiles | None = None, now_ms: int = 10**12
    ) -> None:
        self.disk = disk or SimulatedFiles()
        self.clock = FakeClock(now_ms)
        self.runtime = Reported()
        ids = itertools.count(1)
        settings = BROKER_SETTINGS.parse({"log.retention.check.interval.ms": CHECK_MS})
        self.broker = Broker(
            "data",
            self.disk,
            self.clock,
            lambda: UUID(int=next(ids)),
            broker_settings(settings),
            self.runtime,
        )
        if disk is None:
            self.broker.create_topic(CONTEXT, "orders", 1, config).result()
            for _ in range(40):
                log = self.broker._catalog.log("orders", 0)
                self.broker._appender.append(log, build_single(self.clock.now_ms(), bytes(200)))
            self.broker.flush_all()
            self.wait(2000)

    def wait(self, ms: int = CHECK_MS) -> None:
        self.clock.advance(ms)
        self.broker.tick()

    @property
    def log_start(self) -> int:
        return self.broker.partition_state(CONTEXT, "orders", 0).start_offset

    def report(self, offset: int, table_id: str = "A", error: str = "") -> None:
        topic = self.broker.topic(CONTEXT, "orders")
        offsets = {} if error else {0: offset}
        self.broker.table_synced(
            TableReport("orders", topic.topic_id, table_id, error, offsets=offsets)
        )

    def restarted(self) -> Harness:
        self.broker.close()
        return Harness({}, self.disk.after_kill(), self.clock.now_ms())


def test_only_segments_that_are_entirely_in_the_table_are_deleted() -> None:
    harness = Harness({**RETAINED, **TABLE})
    harness.wait()
    assert harness.log_start == 0
    harness.report(21)
    harness.wait()
    assert 0 < harness.log_start <= 21
    assert harness.broker.refresh_metrics().retention_held_bytes > 0
    harness.report(40)
    harness.wait()
    assert harness.log_start == 40
    assert harness.broker.refresh_metrics().retention_held_bytes == 0


def test_without_the_setting_retention_does_not_wait() -> None:
    harness = Harness({**RETAINED, **TABLE, "retention.after.table": False})
    harness.wait()
    assert harness.log_start == 40


def test_deleted_records_do_not_wait_for_the_table() -> None:
    harness = Harness({**RETAINED, **TABLE})
    harness.broker.delete_records(CONTEXT, {TopicPartition("orders", 0): 30}).result()
    segments = harness.broker.partition_state(CONTEXT, "orders", 0).segments
    harness.wait()
    assert harness.broker.partition_state(CONTEXT, "orders", 0).segments < segments
    assert harness.log_start == 30


def test_an_old_report_is_not_trusted_and_a_check_is_requested() -> None:
    harness = Harness({**RETAINED, **TABLE})
    harness.report(40)
    harness.clock.advance(FRESH_MS + 1)
    harness.wait(CHECK_MS)
    assert harness.log_start == 0
    assert harness.broker.take_table_checks() == ["orders"]
    assert harness.broker.take_table_checks() == []
    harness.report(40)  # retention runs again because it waits for this
    harness.wait(1000)
    assert harness.log_start == 40


def test_the_first_table_is_bound_and_another_one_is_not_trusted() -> None:
    harness = Harness({**RETAINED, **TABLE})
    harness.report(0, "A")
    assert harness.broker.topic(CONTEXT, "orders").settings.table_id == "A"
    harness.report(40, "B")
    harness.wait()
    assert harness.log_start == 0
    assert harness.broker.topic(CONTEXT, "orders").settings.table_id == "A"
    harness.broker.alter_topic(CONTEXT, "orders", {"table.id": None}).result()
    harness.report(40, "B")
    harness.wait()
    assert harness.log_start == 40


def test_after_a_restart_nothing_is_deleted_until_the_bound_table_is_reported() -> None:
    harness = Harness({**RETAINED, **TABLE})
    harness.report(10)
    harness = harness.restarted()
    assert harness.broker.wanted_tables()["orders"].table_id == "A"
    harness.wait()
    harness.report(40, "B")
    harness.wait()
    assert harness.log_start == 0
    harness.report(40, "A")
    harness.wait()
    assert harness.log_start == 40


def test_a_failed_sync_stops_retention_and_is_reported() -> None:
    harness = Harness({**RETAINED, **TABLE})
    harness.report(40)
    harness.report(40, error="the table is gone")
    harness.wait()
    assert harness.log_start == 0
    assert harness.broker.refresh_metrics().tables_failing == 1
    assert any("the table is gone" in problem for problem in harness.broker.problems)


def test_a_stalled_table_is_logged_once_because_the_disk_fills() -> None:
    harness = Harness({**RETAINED, **TABLE})
    for _ in range(0, 3 * MIN_STALL_MS, CHECK_MS):
        harness.report(3)
        harness.wait()
    [line] = harness.runtime.lines
    assert "its table still lacks 37 records" in line
    assert "the disk may fill up" in line
    assert line in harness.broker.problems
    harness.report(40)
    harness.wait()
    harness.wait()
    assert harness.broker.problems == []


def test_retention_after_a_table_that_no_broker_keeps_is_reported() -> None:
    harness = Harness({**RETAINED, "table.sync.interval.ms": 1000})
    for _ in range(0, 2 * MIN_STALL_MS, CHECK_MS):
        harness.wait()
    assert harness.log_start == 0
    [line] = harness.runtime.lines
    assert "it has no table; set table.format" in line


def test_a_report_about_a_deleted_topic_is_ignored() -> None:
    harness = Harness({**RETAINED, **TABLE})
    stale = TableReport("orders", "another id", "A", offsets={0: 40})
    harness.broker.table_synced(stale)
    harness.wait()
    assert harness.log_start == 0
    assert harness.broker.topic(CONTEXT, "orders").settings.table_id == ""


def test_the_state_of_a_table_has_its_lag() -> None:
    harness = Harness({**RETAINED, **TABLE})
    harness.report(15)
    state = harness.broker.table_state(CONTEXT, "orders")
    assert state is not None
    assert (state.lag, state.is_failing) == (25, False)
    harness.broker.alter_topic(CONTEXT, "orders", {"table.format": None}).result()
    assert harness.broker.table_state(CONTEXT, "orders") is None
    assert harness.broker.wanted_tables() == {}


def test_the_lag_of_a_table_counts_records_behind_an_open_transaction() -> None:
    harness = Harness({**RETAINED, **TABLE})
    log = harness.broker._catalog.log("orders", 0)
    now_ms = harness.clock.now_ms()
    open_batch = build_batch(
        now_ms,
        [b"a", b"b"],
        producer_id=1,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )
    for batch in (open_batch, build_single(now_ms, b"behind it")):
        harness.broker._appender.append(log, batch)
    harness.broker.flush_all()
    harness.report(40)
    state = harness.broker.table_state(CONTEXT, "orders")
    assert state is not None
    assert (state.lag, state.open_transaction_lag) == (3, 3)
    harness.report(15)
    state = harness.broker.table_state(CONTEXT, "orders")
    assert state is not None
    assert (state.lag, state.open_transaction_lag) == (28, 3)


def test_the_lag_of_a_table_does_not_jump_to_the_whole_log_when_a_sync_fails() -> None:
    harness = Harness({**RETAINED, **TABLE})
    harness.report(15)
    harness.report(0, error="the disk is full")
    state = harness.broker.table_state(CONTEXT, "orders")
    assert state is not None
    assert (state.lag, state.is_failing) == (25, True)


def test_a_recreated_topic_does_not_show_the_report_of_the_deleted_one() -> None:
    harness = Harness({**RETAINED, **TABLE})
    harness.report(15)
    harness.report(15, error="the disk is full")
    harness.broker.delete_topic(CONTEXT, "orders").result()
    harness.broker.create_topic(CONTEXT, "orders", 1, TABLE).result()
    assert harness.broker.refresh_metrics().tables_failing == 0
    assert harness.broker.problems == []
    log = harness.broker._catalog.log("orders", 0)
    harness.broker._appender.append(log, build_single(harness.clock.now_ms(), b"value"))
    harness.broker.flush_all()
    state = harness.broker.table_state(CONTEXT, "orders")
    assert state is not None
    assert (state.report, state.lag, state.age_ms) == (None, 1, -1)
