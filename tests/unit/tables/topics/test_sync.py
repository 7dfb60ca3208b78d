"""Topics as tables, from the files of a folder: exactly once, whatever happens between rounds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from tests.support.lake import counts, query
from tests.support.samples import one_in
from tests.support.transactions import TransactionalWriter, damage_marker

import strandlog
from strandlog.client.readonly.log import ReadOnlySource
from strandlog.config.limits.records import MAX_TOPIC_NAME_CHARACTERS
from strandlog.errors import (
    CorruptSegmentError,
    TableChangedError,
    TableConflictError,
    TableDamagedError,
    TableGapError,
    UnreachableError,
)
from strandlog.model import TopicPartition
from strandlog.storage.readonly.committed import CommittedView
from strandlog.storage.segment.transaction_index import AbortedTransaction
from strandlog.tables.table import FORMATS, Table, open_table
from strandlog.tables.topics import decisions
from strandlog.tables.topics.columns import RawColumns
from strandlog.tables.topics.source import FolderSource
from strandlog.tables.topics.status import read_status
from strandlog.tables.topics.sync import Sync, SyncOptions, SyncReport
from strandlog.testing.clock import FakeClock

DAY_MS = 86_400_000
TIMES = {"day": "date", "month": "month", "hour": "hour"}
START_MS = int(datetime(2024, 11, 17, tzinfo=UTC).timestamp() * 1000)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def log(data: Path) -> Iterator[strandlog.Log]:
    with strandlog.open(data) as opened:
        opened.create_topic("orders", partitions=2, config={"retention.ms": -1})
        yield opened


@pytest.fixture(params=one_in(3, FORMATS))
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    return open_table(tmp_path / "lake" / "orders", request.param)


@pytest.fixture
def delta(tmp_path: Path) -> Table:
    return open_table(tmp_path / "lake" / "orders", "delta")


def produce(log: strandlog.Log, first: int, end: int, topic: str = "orders") -> None:
    with log.producer() as producer:
        producer.send_batch(
            topic,
            [
                {
                    "key": b"k%d" % (number % 7),
                    "value": b"v%d" % number,
                    "partition": number % 2,
                    "timestamp": START_MS + number * 3_600_000,
                }
                for number in range(first, end)
            ],
        )


def syncing(table: Table, data: Path, **options: Any) -> Sync:
    source = FolderSource(str(data), "orders")
    return Sync(table, source, RawColumns(), SyncOptions(**options))


def sync(table: Table, data: Path, **options: Any) -> SyncReport:
    made = syncing(table, data, **options)
    made.create()
    return made.run()


def test_every_record_becomes_one_row(log: strandlog.Log, data: Path, table: Table) -> None:
    produce(log, 0, 50)
    report = sync(table, data)
    assert (report.rows, report.commits) == (50, 1)
    assert counts(table) == (50, 50)
    [row] = query(
        table,
        'SELECT partition, "offset", epoch_ms(timestamp), key, value, CAST(date AS VARCHAR) '
        "FROM rows WHERE value = 'v25'::BLOB",
    )
    assert row == (1, 12, START_MS + 25 * 3_600_000, b"k4", b"v25", "2024-11-18")
    produce(log, 50, 60)
    assert sync(table, data).rows == 10
    assert counts(table) == (60, 60)
    assert sync(table, data).commits == 0, "nothing new, no commit"


def test_a_large_topic_is_synced_in_several_commits(
    log: strandlog.Log, data: Path, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandlog.tables.topics.sync.MIN_PARTITION_BYTES", 1)
    for first in range(0, 100, 10):
        produce(log, first, first + 10)
    report = sync(table, data, round_bytes=500)
    assert report.commits > 3
    assert counts(table) == (100, 100)


def test_a_writer_that_dies_before_its_commit_leaves_nothing(
    log: strandlog.Log, data: Path, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(log, 0, 20)
    made = syncing(table, data)
    made.create()
    with monkeypatch.context() as patched:

        def die(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        patched.setattr(type(table.load()), "add_files", die)
        with pytest.raises(KeyboardInterrupt):
            made.run()
    assert table.load().row_count() == 0
    assert sync(table, data).rows == 20
    assert counts(table) == (20, 20)


def test_two_syncs_at_once_write_each_record_once(
    log: strandlog.Log, data: Path, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(log, 0, 20)
    first = syncing(table, data)
    first.create()
    second = syncing(table, data)
    read = first._read

    def overtaken(*arguments: Any) -> Any:
        found = read(*arguments)
        second.run()
        return found

    monkeypatch.setattr(first, "_read", overtaken)
    report = first.run()
    assert (report.conflicts, report.rows) == (1, 0)
    assert counts(table) == (20, 20)


def test_a_sync_waits_while_another_one_creates_the_table(
    log: strandlog.Log, data: Path, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(log, 0, 10)
    kind = type(table)
    create = kind.create

    def busy(*arguments: Any, **options: Any) -> None:
        monkeypatch.setattr(kind, "create", create)
        raise TableConflictError("another process is writing to the table")

    monkeypatch.setattr(kind, "create", busy)
    assert sync(table, data).rows == 10
    assert counts(table) == (10, 10)


def test_a_forced_replay_is_refused(log: strandlog.Log, data: Path, table: Table) -> None:
    produce(log, 0, 20)
    sync(table, data)
    made = syncing(table, data)
    snapshot = table.load()
    topic = made._source.describe()
    again = made._read(snapshot, [decisions.OffsetRange(0, 0, 10)])
    with pytest.raises(TableConflictError, match="already has"):
        made._commit(snapshot, topic, again, decisions.synced_offsets(snapshot, topic))
    assert counts(table) == (20, 20)


def test_deleted_records_are_a_gap(log: strandlog.Log, data: Path, table: Table) -> None:
    produce(log, 0, 20)
    sync(table, data)
    produce(log, 20, 40)
    log.delete_records("orders", 0, 15)
    with pytest.raises(TableGapError, match=r"orders-0 \[10, 15\)"):
        sync(table, data)
    report = sync(table, data, accepts_gap=True)
    assert report.gaps == [(0, 10, 15)]
    assert counts(table) == (35, 35)
    assert read_status(table, FolderSource(str(data), "orders")).gaps == [(0, 10, 15)]
    assert sync(table, data).commits == 0, "the gap is only accepted once"


def test_an_old_topic_is_backfilled_from_its_log_start(
    log: strandlog.Log, data: Path, table: Table
) -> None:
    produce(log, 0, 40)
    log.delete_records("orders", 1, 5)
    assert sync(table, data).rows == 35
    assert counts(table) == (35, 35)


def test_a_topic_that_was_created_again_stops_the_sync(
    log: strandlog.Log, data: Path, table: Table
) -> None:
    produce(log, 0, 20)
    sync(table, data)
    log.delete_topic("orders")
    log.create_topic("orders", partitions=2)
    produce(log, 0, 4)
    with pytest.raises(TableChangedError, match="deleted and created again"):
        sync(table, data)
    assert counts(table) == (20, 20)


def test_records_of_a_topic_that_was_created_again_during_a_round_are_not_committed(
    log: strandlog.Log, data: Path, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(log, 0, 20)
    made = syncing(table, data)
    made.create()
    read = made._read

    def recreated(*arguments: Any) -> Any:
        log.delete_topic("orders")
        log.create_topic("orders", partitions=2)
        produce(log, 1000, 1020)
        return read(*arguments)

    monkeypatch.setattr(made, "_read", recreated)
    with pytest.raises(TableChangedError, match="deleted and created again"):
        made.run()
    assert table.load().row_count() == 0


def test_aborted_transactions_are_not_forgotten_while_the_owner_replaces_files(
    log: strandlog.Log, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(log, 0, 4)
    views = [CommittedView(0, []), CommittedView(2, [AbortedTransaction(7, 1, 1, 1)])]
    monkeypatch.setattr(ReadOnlySource, "committed_view", lambda *_: views.pop(0))
    chunks = list(FolderSource(str(data), "orders").read(0, 0, 2))
    assert [chunk.aborted for chunk in chunks] == [[(7, 1)]]


class HurriedClock(FakeClock):
    """A minute passes with every look at the clock."""

    def monotonic_ms(self) -> int:
        self.advance(60_000)
        return super().monotonic_ms()


def test_a_partition_whose_files_are_being_replaced_is_not_empty(
    log: strandlog.Log, data: Path
) -> None:
    """Else a table that has its records would say that the topic was truncated."""
    produce(log, 0, 4)
    [folder] = data.glob("**/orders-0")
    (folder / "00000000000000000000.log.swap").touch()
    source = FolderSource(str(data), "orders", HurriedClock())
    with pytest.raises(UnreachableError, match="the files of orders-0 are being replaced"):
        source.describe()


def test_a_sync_stalls_in_silence_at_damage_that_may_hide_a_marker(
    log: strandlog.Log, data: Path, delta: Table
) -> None:
    """The records before the transaction are synced; then the sync fails, as a consumer does."""
    produce(log, 0, 10)
    writer = TransactionalWriter(log)
    writer.write("a", TopicPartition("orders", 0), b"open")
    writer.end("a", commit=True)
    produce(log, 10, 20)
    log.close()
    damage_marker(data / "orders-0")
    made = syncing(delta, data)
    made.create()
    for _ in range(2):
        with pytest.raises(CorruptSegmentError, match="transaction that starts at offset 5"):
            made.run()
        assert [each.synced_offset for each in read_status(delta, made._source).partitions] == [
            5,
            10,
        ]


def test_added_partitions_are_synced(log: strandlog.Log, data: Path, table: Table) -> None:
    produce(log, 0, 20)
    sync(table, data)
    log.alter_topic("orders", partitions=3)
    with log.producer() as producer:
        producer.send("orders", b"x", partition=2)
    assert sync(table, data).rows == 1
    assert counts(table) == (21, 21)


def test_a_topic_with_the_longest_name_is_synced(
    log: strandlog.Log, data: Path, tmp_path: Path, table: Table
) -> None:
    name = "t" * MAX_TOPIC_NAME_CHARACTERS
    log.create_topic(name)
    with log.producer() as producer:
        producer.send(name, b"x")
    found = open_table(tmp_path / "lake" / name, table.format)
    made = Sync(found, FolderSource(str(data), name), RawColumns(), SyncOptions())
    made.create()
    assert made.run().rows == 1
    assert counts(found) == (1, 1)


def test_records_without_timestamps_keys_and_values_are_rows(
    log: strandlog.Log, data: Path, table: Table
) -> None:
    with log.producer() as producer:
        producer.send("orders", None, partition=0)
        producer.send("orders", b"", partition=0, headers={"h": b"x"})
    sync(table, data)
    assert query(table, 'SELECT key, value, headers FROM rows ORDER BY "offset"') == [
        (None, None, []),
        (None, b"", [{"key": "h", "value": b"x"}]),
    ]


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("none", None),
        ("month", "month=2024-11"),
        ("hour", "hour=2024-11-17-01"),
        ("day", "date=2024-11-17"),
    ],
)
def test_tables_are_partitioned_by_time(
    log: strandlog.Log, data: Path, tmp_path: Path, unit: str, expected: str | None
) -> None:
    produce(log, 0, 4)
    table = open_table(tmp_path / "lake", "parquet")
    sync(table, data, time_unit=unit)
    paths = table.load().data_files()
    assert counts(table) == (4, 4)
    if expected is None:
        assert not any("=" in path for path in paths)
    else:
        assert any(f"/{expected}/" in path for path in paths)


@pytest.mark.parametrize("unit", ["day", "month", "hour", "none"])
def test_a_record_after_the_year_9999_does_not_stop_the_sync(
    log: strandlog.Log, data: Path, table: Table, unit: Any
) -> None:
    limits = {f"message.timestamp.{side}.max.ms": 2**63 - 1 for side in ("before", "after")}
    log.alter_topic("orders", config=limits)
    times = [0, START_MS, 253_402_300_799_999, 253_402_300_800_000, 2**63 // 1000]
    with log.producer() as producer:
        for time in times:
            producer.send("orders", b"v", partition=0, timestamp=time)
    sync(table, data, time_unit=unit)
    table.compact(10**8)
    columns = "epoch_ms(timestamp)" if unit == "none" else f"epoch_ms(timestamp), {TIMES[unit]}"
    found = query(table, f'SELECT {columns} FROM rows ORDER BY "offset"')
    assert [row[0] for row in found] == times
    assert [None in row for row in found] == [False] * 3 + [unit != "none"] * 2


@pytest.mark.parametrize(("old", "new"), [(':0","version":20', ':0","version":21'), (':1"', ':9"')])
def test_a_flipped_bit_in_the_log_of_a_table_does_not_write_records_twice_or_leave_a_hole(
    log: strandlog.Log, data: Path, delta: Table, old: str, new: str
) -> None:
    for first in (0, 20):
        produce(log, first, first + 20)
        sync(delta, data)
    produce(log, 40, 44)
    newest = max(Path(delta.folder, "_delta_log").glob("*.json"))
    assert old in newest.read_text()
    newest.write_text(newest.read_text().replace(old, new))
    with pytest.raises(TableDamagedError, match=r"synced offsets .* have the sum .* --rebuild"):
        sync(delta, data)


def test_a_commit_that_a_power_failure_has_emptied_is_repeated(
    log: strandlog.Log, data: Path, delta: Table
) -> None:
    for first in (0, 20):
        produce(log, first, first + 20)
        sync(delta, data)
    newest = max(Path(delta.folder, "_delta_log").glob("*.json"))
    newest.write_bytes(b"")
    assert sync(delta, data).rows == 20
    assert counts(delta) == (40, 40)
    newest.unlink()  # there is a later commit now
    with pytest.raises(TableDamagedError) as raised:
        sync(delta, data)
    assert len(str(raised.value)) < 700, "the library describes the log at length"


def test_the_ranges_of_a_commit_are_in_its_metadata(
    log: strandlog.Log, data: Path, table: Table
) -> None:
    produce(log, 0, 20)
    sync(table, data)
    newest = table.load().history(1)[0]
    assert json.loads(newest.metadata[decisions.RANGES]) == {"0": [0, 10], "1": [0, 10]}


# -- changes by other programs -----------------------------------------------------------------


def test_a_restored_delta_table_stops_the_sync(
    log: strandlog.Log, data: Path, delta: Table
) -> None:
    produce(log, 0, 20)
    sync(delta, data)
    produce(log, 20, 40)
    sync(delta, data)
    handle = deltalake.DeltaTable(delta.folder)
    handle.restore(handle.version() - 1)
    produce(log, 40, 44)
    with pytest.raises(TableChangedError, match=r"20 rows.*written 40.*RESTORE.*--rebuild"):
        sync(delta, data)


def test_foreign_rows_and_deletions_stop_the_sync_until_they_are_accepted(
    log: strandlog.Log, data: Path, delta: Table
) -> None:
    produce(log, 0, 20)
    sync(delta, data)
    deltalake.DeltaTable(delta.folder).delete("partition = 0")
    produce(log, 20, 24)
    with pytest.raises(TableChangedError, match=r"10 rows.*written 20.*DELETE.*--accept-changes"):
        sync(delta, data)
    assert sync(delta, data, accepts_changes=True).rows == 4
    assert sync(delta, data).commits == 0
    assert counts(delta) == (14, 14)


def test_accepted_changes_are_forgotten_if_another_writer_commits_before_they_are_recorded(
    log: strandlog.Log, data: Path, delta: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(log, 0, 10)
    sync(delta, data)
    deltalake.DeltaTable(delta.folder).delete('"offset" = 0')
    made = syncing(delta, data, accepts_changes=True)
    load = delta.load
    handles: list[Any] = []

    def outdated() -> Any:
        """Return a snapshot that another writer has changed before it is used."""
        found = load()
        handles.append(found)
        if len(handles) == 2:  # of `set_properties`; the first one is of the round
            deltalake.DeltaTable(delta.folder).alter.set_table_properties(
                {"other": "1"}, raise_if_not_exists=False
            )
        return found

    monkeypatch.setattr(delta, "load", outdated)
    assert made.run().conflicts == 1
    monkeypatch.undo()
    produce(log, 10, 20)
    assert sync(delta, data).rows == 10


def test_compaction_between_rounds_changes_nothing(
    log: strandlog.Log, data: Path, table: Table
) -> None:
    for first in range(0, 60, 10):
        produce(log, first, first + 10)
        sync(table, data)
    table.compact(10_000_000)
    produce(log, 60, 70)
    sync(table, data)
    assert counts(table) == (70, 70)
    status = read_status(table, FolderSource(str(data), "orders"), verifies=True)
    assert (status.duplicates, status.beyond) == (0, 0)
    assert [each.rows for each in status.partitions] == [35, 35]


def test_the_status_counts_rows_without_a_position_that_another_program_has_added(
    log: strandlog.Log, data: Path, delta: Table
) -> None:
    produce(log, 0, 20)
    sync(delta, data, time_unit="none")
    rows = pa.Table.from_pylist([{"key": b"a"}, {"partition": 0}], delta.load().layout.schema)
    deltalake.write_deltalake(delta.folder, rows, mode="append")
    status = read_status(delta, FolderSource(str(data), "orders"), verifies=True)
    assert (status.duplicates, status.beyond) == (0, 2)
    assert [each.rows for each in status.partitions] == [11, 10]


def test_the_status_finds_rows_that_are_there_twice(
    log: strandlog.Log, data: Path, delta: Table
) -> None:
    produce(log, 0, 20)
    sync(delta, data, time_unit="none")
    [path, *_] = delta.load().data_files()
    import pyarrow.parquet as pq

    deltalake.write_deltalake(delta.folder, pq.read_table(path), mode="append")
    status = read_status(delta, FolderSource(str(data), "orders"), verifies=True)
    assert (status.rows, status.expected_rows, status.duplicates) == (30, 20, 10)
