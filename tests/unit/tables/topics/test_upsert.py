"""Tables in upsert mode have the latest value of each key: compared with a dict."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples
from tests.support.lake import query

import strandlog
from strandlog.errors import TableChangedError, TableConflictError, TableSchemaError
from strandlog.tables.table import UPSERT_FORMATS, Table, open_table
from strandlog.tables.topics.columns import RawColumns
from strandlog.tables.topics.decisions import app_id
from strandlog.tables.topics.source import FolderSource
from strandlog.tables.topics.sync import Sync, SyncOptions, SyncReport

KEYS = [b"a", b"b", b"c", b"d"]
ROUND = st.lists(
    st.tuples(st.sampled_from(KEYS), st.none() | st.binary(max_size=2)), min_size=1, max_size=8
)
_numbers = itertools.count()


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[strandlog.Log]:
    with strandlog.open(tmp_path_factory.mktemp("upsert") / "data") as opened:
        yield opened


def new_topic(log: strandlog.Log, partitions: int = 2) -> str:
    name = f"t{next(_numbers)}"
    log.create_topic(name, partitions)
    return name


def sync(table: Table, log: strandlog.Log, topic: str, **options: Any) -> SyncReport:
    source = FolderSource(log.path, topic)
    made = Sync(
        table, source, RawColumns(), SyncOptions(mode="upsert", time_unit="none", **options)
    )
    made.create()
    return made.run()


def contents(table: Table) -> dict[bytes, bytes | None]:
    if not table.load().data_files():
        return {}
    found = query(table, "SELECT key, value FROM rows")
    assert len(found) == len({key for key, _ in found}), "one row per key"
    return dict(found)


@pytest.mark.parametrize("table_format", UPSERT_FORMATS)
@examples(0.1)
@given(rounds=st.lists(ROUND, min_size=1, max_size=3))
def test_the_table_is_the_dict_of_the_topic(
    log: strandlog.Log,
    tmp_path_factory: pytest.TempPathFactory,
    table_format: str,
    rounds: list[list[tuple[bytes, bytes | None]]],
) -> None:
    topic = new_topic(log)
    table = open_table(tmp_path_factory.mktemp("lake") / "table", table_format)
    model: dict[bytes, bytes] = {}
    with log.producer() as producer:
        for records in rounds:
            producer.send_batch(topic, records)
            for key, value in records:
                if value is None:
                    model.pop(key, None)
                else:
                    model[key] = value
            sync(table, log, topic)
            assert contents(table) == model


@pytest.mark.parametrize("table_format", UPSERT_FORMATS)
def test_compaction_of_the_topic_does_not_disturb_the_table(
    log: strandlog.Log, tmp_path: Path, table_format: str
) -> None:
    topic = new_topic(log, 1)
    table = open_table(tmp_path / "table", table_format)
    with log.producer() as producer:
        producer.send_batch(topic, [(b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"b", None)])
        log.compact(topic)
        sync(table, log, topic)
        assert contents(table) == {b"a": b"3"}
        producer.send_batch(topic, [(b"a", None), (b"c", b"4")])
    assert sync(table, log, topic).commits == 1
    assert contents(table) == {b"c": b"4"}
    assert sync(table, log, topic).commits == 0


def test_records_without_keys_are_an_error(log: strandlog.Log, tmp_path: Path) -> None:
    topic = new_topic(log, 1)
    with log.producer() as producer:
        producer.send_batch(topic, [(b"a", b"1"), (None, b"2")])
    with pytest.raises(TableSchemaError, match="partition 0 at offset 1 has no key"):
        sync(open_table(tmp_path / "table", "delta"), log, topic)


def test_added_partitions_stop_the_sync(log: strandlog.Log, tmp_path: Path) -> None:
    topic = new_topic(log, 1)
    table = open_table(tmp_path / "table", "delta")
    with log.producer() as producer:
        producer.send(topic, b"1", b"a")
        sync(table, log, topic)
        log.alter_topic(topic, partitions=2)
        producer.send(topic, b"2", b"a")
    with pytest.raises(TableChangedError, match="has 2 partitions and had 1"):
        sync(table, log, topic)


def test_changes_of_other_programs_stop_the_sync(log: strandlog.Log, tmp_path: Path) -> None:
    topic = new_topic(log, 1)
    table = open_table(tmp_path / "table", "delta")
    with log.producer() as producer:
        producer.send(topic, b"1", b"a")
        sync(table, log, topic)
        deltalake.DeltaTable(table.folder).delete()
        producer.send(topic, b"2", b"b")
    with pytest.raises(TableChangedError, match="DELETE"):
        sync(table, log, topic)
    sync(table, log, topic, accepts_changes=True)
    assert contents(table) == {b"b": b"2"}


def test_accepted_changes_are_forgotten_after_a_conflict(
    log: strandlog.Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(log, 1)
    table = open_table(tmp_path / "table", "delta")
    with log.producer() as producer:
        producer.send_batch(topic, [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")])
        sync(table, log, topic)
        producer.send(topic, b"4", b"c")
    deltalake.DeltaTable(table.folder).delete('"offset" = 0')
    options = SyncOptions(mode="upsert", time_unit="none", accepts_changes=True)
    made = Sync(table, FolderSource(log.path, topic), RawColumns(), options)
    read = made._read

    def overtaken(*arguments: Any) -> Any:
        deltalake.DeltaTable(table.folder).delete('"offset" = 1')
        return read(*arguments)

    monkeypatch.setattr(made, "_read", overtaken)
    assert made.run().conflicts == 1
    assert contents(table) == {b"c": b"4"}
    with log.producer() as producer:
        producer.send(topic, b"5", b"d")
    deltalake.DeltaTable(table.folder).delete('"offset" = 3')
    with pytest.raises(TableChangedError, match="DELETE"):
        made.run()


def test_a_rollback_of_an_iceberg_table_stops_the_sync(log: strandlog.Log, tmp_path: Path) -> None:
    """It takes rows away, but not the progress; a sync would continue after the hole."""
    topic = new_topic(log, 1)
    table = open_table(tmp_path / "table", "iceberg")
    with log.producer() as producer:
        for value in (b"1", b"2"):
            producer.send(topic, value, b"a")
            producer.flush()
            sync(table, log, topic)
        handle: Any = table.load()
        handle = handle.handle
        handle.manage_snapshots().rollback_to_snapshot(handle.history()[0].snapshot_id).commit()
        assert contents(table) == {b"a": b"1"}
        producer.send(topic, b"3", b"b")
    with pytest.raises(TableChangedError, match="rollback"):
        sync(table, log, topic)
    sync(table, log, topic, accepts_changes=True)
    assert contents(table) == {b"a": b"1", b"b": b"3"}
    sync(table, log, topic)


@pytest.mark.parametrize("table_format", UPSERT_FORMATS)
def test_a_stale_upsert_is_a_conflict_and_changes_nothing(
    log: strandlog.Log, tmp_path: Path, table_format: str
) -> None:
    topic = new_topic(log, 1)
    table = open_table(tmp_path / "table", table_format)
    with log.producer() as producer:
        producer.send(topic, b"1", b"a")
        producer.flush()
        sync(table, log, topic)
        stale: Any = table.load()
        producer.send(topic, b"2", b"a")
        producer.flush()
        sync(table, log, topic)
    row = {"partition": 0, "offset": 9, "key": b"a", "value": b"stale"}
    rows = pa.Table.from_pylist([row], stale.layout.schema)
    app = app_id(FolderSource(log.path, topic).describe(), 0)
    with pytest.raises(TableConflictError):
        stale.upsert(rows, rows.slice(0, 0), progress={app: 10})
    assert contents(table) == {b"a": b"2"}


@pytest.mark.parametrize("table_format", UPSERT_FORMATS)
def test_a_key_in_two_partitions_is_an_error_and_not_two_rows(
    log: strandlog.Log, tmp_path: Path, table_format: str
) -> None:
    topic = new_topic(log, 2)
    with log.producer() as producer:
        records = [{"key": b"a", "value": b"%d" % n, "partition": n} for n in range(2)]
        producer.send_batch(topic, records)
    with pytest.raises(TableSchemaError, match="key b'a' is in two partitions"):
        sync(open_table(tmp_path / "table", table_format), log, topic)


@pytest.mark.parametrize("value", [b"1", None])
@pytest.mark.parametrize("table_format", UPSERT_FORMATS)
def test_a_key_that_moves_to_another_partition_between_rounds_keeps_its_old_row(
    log: strandlog.Log, tmp_path: Path, table_format: str, value: bytes | None
) -> None:
    """The offsets of the two records cannot be compared, so this is an error."""
    topic = new_topic(log, 2)
    table = open_table(tmp_path / "table", table_format)
    with log.producer() as producer:
        producer.send_batch(topic, [{"key": b"a", "value": b"0", "partition": 0}])
        sync(table, log, topic)
        producer.send_batch(topic, [{"key": b"a", "value": value, "partition": 1}])
    for _ in range(2):
        with pytest.raises(TableSchemaError, match="key b'a' is in two partitions"):
            sync(table, log, topic)
    assert contents(table) == {b"a": b"0"}
