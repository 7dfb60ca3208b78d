"""The interface of tables, on all three formats: rows and progress are committed together."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import uuid
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.samples import one_in

from strandlog.errors import (
    InvalidSettingError,
    StorageError,
    TableConflictError,
    TableDamagedError,
    TableError,
    TableNotFoundError,
    TableSchemaError,
)
from strandlog.storage.files import DiskFiles
from strandlog.tables.table import FORMATS, Table, detected_format, open_table

SCHEMA = pa.schema([("number", pa.int64()), ("text", pa.string()), ("day", pa.date32())])


def rows(first: int, end: int, day: int = 1) -> pa.Table:
    numbers = list(range(first, end))
    days = [date(2026, 11, day)] * len(numbers)
    return pa.table([numbers, [f"n{number}" for number in numbers], days], schema=SCHEMA)


@pytest.fixture(params=one_in(3, FORMATS))
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    return open_table(tmp_path / "lake" / "numbers", request.param)


@pytest.fixture
def made(table: Table) -> Table:
    table.create(SCHEMA)
    return table


def append(table: Table, data: pa.Table, name: str, **progress: int) -> None:
    snapshot = table.load()
    files = snapshot.layout.write(data, name, uuid.uuid4().hex)
    snapshot.add_files(files, progress=progress, metadata={"strandlog.ranges": name})


def numbers(table: Table) -> list[int]:
    read = table.load().read(["number"]).read_all()
    return sorted(read.column("number").to_pylist())


def test_a_table_that_does_not_exist_is_an_error(table: Table) -> None:
    assert not table.exists()
    assert detected_format(table.folder) is None
    with pytest.raises(TableNotFoundError, match="contains no"):
        table.load()
    assert not os.path.exists(table.folder), "looking creates nothing"


def test_rows_and_progress_are_committed_together(made: Table) -> None:
    assert made.load().progress("app") is None
    append(made, rows(0, 10), "numbers-0-0-10", app=10)
    append(made, rows(10, 15), "numbers-0-10-15", app=15, other=3)
    snapshot = made.load()
    assert (snapshot.progress("app"), snapshot.progress("other")) == (15, 3)
    assert snapshot.row_count() == 15
    assert numbers(made) == list(range(15))
    assert len(snapshot.data_files()) == 2
    assert detected_format(made.folder) == made.format
    newest = snapshot.history(1)[0]
    assert newest.metadata["strandlog.ranges"] == "numbers-0-10-15"


def test_creating_a_table_twice_keeps_the_first(made: Table) -> None:
    append(made, rows(0, 3), "numbers-0-0-3", app=3)
    made.create(pa.schema([("other", pa.int32())]))
    assert numbers(made) == [0, 1, 2]


def test_a_stale_writer_is_refused_and_leaves_no_row(made: Table) -> None:
    slow = made.load()
    append(made, rows(0, 10), "numbers-0-0-10", app=10)
    files = slow.layout.write(rows(0, 10), "numbers-0-0-10", "slow")
    with pytest.raises(TableConflictError):
        slow.add_files(files, progress={"app": 10})
    assert numbers(made) == list(range(10))


def test_a_repetition_from_a_fresh_snapshot_is_refused(made: Table) -> None:
    append(made, rows(0, 10), "numbers-0-0-10", app=10)
    for repeated in (10, 5):
        with pytest.raises(TableConflictError, match="already has 'app' up to 10"):
            append(made, rows(0, 10), "again", app=repeated)
    assert numbers(made) == list(range(10))


def test_progress_can_be_committed_without_rows(made: Table) -> None:
    append(made, rows(0, 2), "numbers-0-0-2", app=2)
    append(made, rows(0, 0), "numbers-0-2-7", app=7)
    assert made.load().progress("app") == 7
    slow = made.load()
    append(made, rows(2, 4), "numbers-0-7-9", app=9)
    with pytest.raises(TableConflictError):
        slow.add_files([], progress={"app": 8})
    assert made.load().progress("app") == 9


@pytest.mark.parametrize("table_format", ["delta", "parquet"])
def test_a_table_does_not_take_a_folder_whose_files_vacuum_would_delete(
    tmp_path: Path, table_format: str
) -> None:
    (tmp_path / "notes.txt").write_text("precious")
    (tmp_path / "mine").mkdir()
    table = open_table(tmp_path, table_format)
    with pytest.raises(TableError, match="no table, but 'mine' and 1 more; use an empty folder"):
        table.create(SCHEMA)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "notes.txt"]


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_file_in_place_of_the_folder_of_a_new_table_is_a_raw_error(
    tmp_path: Path, table_format: str
) -> None:
    file = tmp_path / "numbers"
    file.write_text("precious")
    with pytest.raises(StorageError, match=re.escape(str(file))):
        open_table(file, table_format).create(SCHEMA)


@pytest.mark.parametrize("table_format", ["delta", "parquet"])
def test_the_folder_of_an_existing_table_is_not_listed(
    tmp_path: Path, table_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = open_table(tmp_path / "numbers", table_format)
    table.create(SCHEMA)
    monkeypatch.setattr("strandlog.tables.layout.os.listdir", None)
    table.create(SCHEMA)


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_stale_writer_without_rows_does_not_take_progress_back(
    tmp_path: Path, table_format: str
) -> None:
    table = open_table(tmp_path / "numbers", table_format)
    table.create(SCHEMA)
    slow = table.load()
    table.load().add_files([], progress={"app": 9})
    with pytest.raises(TableConflictError):
        slow.add_files([], progress={"app": 4})
    assert table.load().progress("app") == 9


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_writer_that_does_not_know_the_newest_schema_is_refused(
    tmp_path: Path, table_format: str
) -> None:
    table = open_table(tmp_path / "numbers", table_format)
    table.create(SCHEMA)
    slow = table.load()
    table.extend(pa.schema([("more", pa.string())]))
    with pytest.raises(TableConflictError):
        slow.add_files([], progress={"app": 1})
    table.load().add_files([], progress={"app": 1})


def test_a_file_that_an_iceberg_table_cannot_have_is_retried_as_a_conflict(tmp_path: Path) -> None:
    """Only a file that is already in the table is a conflict."""
    table = open_table(tmp_path / "numbers", "iceberg")
    table.create(SCHEMA)
    snapshot = table.load()
    other = pa.table({"number": ["x"]})
    wrong = replace(snapshot.layout, schema=other.schema).write(other, "wrong", "0")
    with pytest.raises(TableSchemaError, match="number"):
        snapshot.add_files(wrong, progress={"app": 1})
    [cut] = snapshot.layout.write(rows(0, 2), "cut", "0")
    os.truncate(cut.path, 20)
    with pytest.raises(TableDamagedError):
        table.load().add_files([cut], progress={"app": 1})
    [good] = snapshot.layout.write(rows(0, 2), "good", "0")
    table.load().add_files([good], progress={"app": 1})
    with pytest.raises(TableConflictError, match="already referenced"):
        table.load().add_files([good], progress={"app": 2})


def test_other_processes_write_data_files(made: Table) -> None:
    snapshot = made.load()
    layout = pickle.loads(pickle.dumps(snapshot.layout))
    files = [
        each
        for task in range(3)
        for each in pickle.loads(pickle.dumps(layout.write(rows(task, task + 1), f"t{task}", "x")))
    ]
    assert numbers(made) == [], "files without a commit are invisible"
    snapshot.add_files(files, progress={"query": 0})
    assert numbers(made) == [0, 1, 2]


def test_rows_are_split_by_the_partition_columns(table: Table) -> None:
    table.create(SCHEMA, partition_by=("day",))
    data = pa.concat_tables([rows(0, 3, 1), rows(3, 5, 2), rows(5, 6, 1)])
    without = data.slice(0, 1).set_column(2, SCHEMA.field(2), pa.nulls(1, pa.date32()))
    data = pa.concat_tables([data, without])
    append(table, data, "numbers-0-0-7", app=7)
    paths = table.load().data_files()
    assert len(paths) == 3
    assert sum("day=2026-11-01" in path for path in paths) == 1
    assert sum("day=__HIVE_DEFAULT_PARTITION__" in path for path in paths) == 1
    first = next(path for path in paths if "day=2026-11-01" in path)
    assert pq.ParquetFile(first).read(columns=["number"]).column(0).to_pylist() == [0, 1, 2, 5]
    assert table.load().row_count() == 7


def test_partition_columns_are_read_like_others(table: Table) -> None:
    table.create(SCHEMA, partition_by=("day", "text"))
    data = pa.concat_tables([rows(0, 2, 1), rows(2, 3, 2)])
    data = data.set_column(1, SCHEMA.field(1), pa.array([None, "a b/%", "ü"], pa.string()))
    append(table, data, "numbers-0-0-3", app=3)
    found = table.load().read(["text", "number", "day"]).read_all().sort_by("number")
    assert found.to_pylist() == [
        {"text": None, "number": 0, "day": date(2026, 11, 1)},
        {"text": "a b/%", "number": 1, "day": date(2026, 11, 1)},
        {"text": "ü", "number": 2, "day": date(2026, 11, 2)},
    ]
    assert table.load().read(["day"]).read_all().num_rows == 3
    assert all(os.path.isfile(path) for path in table.load().data_files())
    if table.format == "delta":  # its library finds the files too
        read = deltalake.DeltaTable(table.folder).to_pyarrow_dataset().to_table()
        assert sorted(read.column("text").to_pylist(), key=str) == [None, "a b/%", "ü"]
        assert table.vacuum(0) == []


@pytest.mark.parametrize("table_format", ["delta", "parquet"])
def test_an_empty_string_in_a_partition_column_is_read_back_as_null(
    tmp_path: Path, table_format: str
) -> None:
    """The format cannot distinguish the two in a partition column, so this is an error."""
    table = open_table(tmp_path / "table", table_format)
    table.create(SCHEMA, partition_by=("text",))
    for text in ("", "__HIVE_DEFAULT_PARTITION__"):
        data = rows(0, 2).set_column(1, SCHEMA.field(1), pa.array(["a", text], pa.string()))
        with pytest.raises(TableSchemaError, match=f"column text has the value '{text}', .* null"):
            append(table, data, "numbers-0-0-2", app=2)
    assert not list((tmp_path / "table").rglob("*=*")), "nothing was written"


def test_an_iceberg_table_distinguishes_an_empty_string_from_null_in_a_partition_column(
    tmp_path: Path,
) -> None:
    table = open_table(tmp_path / "table", "iceberg")
    table.create(SCHEMA, partition_by=("text",))
    for number in range(2):
        texts = pa.array([None, "", "a"], pa.string())
        data = rows(number * 3, number * 3 + 3).set_column(1, SCHEMA.field(1), texts)
        append(table, data, f"numbers-0-{number}", app=number)
    table.compact(1 << 20)
    found = table.load().read(["number", "text"]).read_all().sort_by("number")
    assert found.column("text").to_pylist() == [None, "", "a"] * 2


def test_new_columns_extend_the_table(made: Table) -> None:
    append(made, rows(0, 1), "numbers-0-0-1", app=1)
    inner = pa.struct([("x", pa.int32())])
    wider = pa.schema([*SCHEMA, pa.field("extra", pa.string()), pa.field("inner", inner)])
    with pytest.raises(TableSchemaError, match="extra"):
        made.load().layout.write(rows(0, 1).append_column("extra", [["x"]]), "n", "a")
    made.extend(wider)
    made.extend(wider)
    deeper = pa.schema([pa.field("inner", pa.struct([("x", pa.int32()), ("y", pa.string())]))])
    made.extend(deeper)
    given = pa.array([{"x": 1, "y": "z"}], deeper.field("inner").type)
    more = rows(1, 2).append_column("inner", given)
    append(made, more, "numbers-0-1-2", app=2)
    read = made.load().read(["number", "extra", "inner"]).read_all().sort_by("number")
    assert read.to_pylist() == [
        {"number": 0, "extra": None, "inner": None},
        {"number": 1, "extra": None, "inner": {"x": 1, "y": "z"}},
    ]


def test_a_type_that_does_not_fit_is_an_error(made: Table) -> None:
    with pytest.raises(TableSchemaError, match="number has type int64 in the table, but string"):
        made.extend(pa.schema([("number", pa.string())]))


def test_properties_are_kept(table: Table) -> None:
    table.create(SCHEMA, properties={"strandlog.topic": "numbers"})
    table.set_properties({"strandlog.gaps": "[]"})
    found = table.load().properties
    assert (found["strandlog.topic"], found["strandlog.gaps"]) == ("numbers", "[]")


def test_compaction_merges_files_and_keeps_rows_and_progress(table: Table) -> None:
    table.create(SCHEMA, partition_by=("day",))
    for number in range(6):
        day = 1 + number % 2
        append(table, rows(number, number + 1, day), f"numbers-0-{number}", app=number + 1)
    assert table.compact(1_000_000) == (6, 2)
    snapshot = table.load()
    assert (len(snapshot.data_files()), snapshot.row_count()) == (2, 6)
    assert snapshot.progress("app") == 6
    assert numbers(table) == list(range(6))
    assert table.compact(1_000_000) == (0, 0)
    append(table, rows(6, 7), "numbers-0-6", app=7)
    assert numbers(table) == list(range(7))


def test_two_compactions_at_once_do_not_double_rows(
    made: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        append(made, rows(number, number + 1), f"numbers-0-{number}-{number + 1}", app=number + 1)
    first = open_table(made.folder, made.format)
    load = first.load
    second: list[int] = []

    def overtaken() -> Any:
        found = load()
        if not second:
            second.append(0)
            second[0] = made.compact(10**8).removed
        return found

    monkeypatch.setattr(first, "load", overtaken)
    with contextlib.suppress(TableConflictError):
        first.compact(10**8)
    assert numbers(made) == [0, 1, 2, 3]
    assert made.load().row_count() == 4
    made.compact(10**8)
    assert len(made.load().data_files()) == 1


def test_vacuum_removes_what_no_version_needs(made: Table) -> None:
    append(made, rows(0, 2), "numbers-0-0-2", app=2)
    snapshot = made.load()
    [orphan] = snapshot.layout.write(rows(9, 10), "numbers-0-2-10", "dead")
    assert made.vacuum(1) == [], "it may be of a writer that still runs"
    os.utime(orphan.path, (0, 0))
    assert made.vacuum(1, dry_run=True) == [orphan.path]
    assert os.path.exists(orphan.path)
    assert made.vacuum(1) == [orphan.path]
    assert not os.path.exists(orphan.path)
    assert numbers(made) == [0, 1]


@pytest.mark.parametrize("table_format", ["iceberg", "parquet"])
def test_a_vacuum_removes_the_other_files_if_one_vanishes_meanwhile(
    tmp_path: Path, table_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = open_table(tmp_path / "numbers", table_format)
    table.create(SCHEMA)
    append(table, rows(0, 2), "numbers-0-0-2", app=2)
    orphans = [
        table.load().layout.write(rows(9, 10), f"numbers-0-2-{number}", "dead")[0].path
        for number in range(2)
    ]
    for path in orphans:
        os.utime(path, (0, 0))
    walk = os.walk

    def overtaken(folder: str) -> Any:
        for found in walk(folder):
            if os.path.lexists(orphans[0]) and os.path.basename(orphans[0]) in found[2]:
                os.unlink(orphans[0])
            yield found

    monkeypatch.setattr(os, "walk", overtaken)
    assert table.vacuum(1) == orphans[1:]
    assert not os.path.lexists(orphans[1])


def test_a_dry_run_of_vacuum_lists_the_files_of_expired_iceberg_snapshots(tmp_path: Path) -> None:
    table = open_table(tmp_path / "numbers", "iceberg")
    table.create(SCHEMA)
    for number in range(2):
        append(table, rows(number, number + 1), f"numbers-0-{number}", app=number + 1)
    merged = set(table.load().data_files())
    assert table.compact(10**8).removed == 2
    assert merged <= set(table.vacuum(0, dry_run=True))
    assert all(map(os.path.exists, merged))
    assert merged <= set(table.vacuum(0))
    assert not any(map(os.path.exists, merged))
    assert numbers(table) == [0, 1]


def test_files_that_delta_has_merged_are_fsynced_when_a_compaction_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log lists them in place of the files that it removes, which were fsynced."""
    table = open_table(tmp_path / "numbers", "delta")
    table.create(SCHEMA)
    for number in range(2):
        append(table, rows(number, number + 1), f"numbers-0-{number}", app=number + 1)
    synced: set[str] = set()
    sync_file = DiskFiles.sync_file

    def recorded(files: DiskFiles, path: str) -> None:
        sync_file(files, path)
        synced.add(path)

    monkeypatch.setattr(DiskFiles, "sync_file", recorded)
    assert table.compact(10**8) == (2, 1)
    assert set(table.load().data_files()) <= synced


def test_the_outer_folders_of_two_partition_columns_are_not_fsynced_in_delta(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delta's library, or another writer, has created them."""
    table = open_table(tmp_path / "numbers", "delta")
    table.create(SCHEMA, partition_by=("day", "text"))
    deltalake.write_deltalake(table.folder, rows(0, 1), mode="append")
    synced: set[str] = set()
    sync_dir = DiskFiles.sync_dir

    def recorded(files: DiskFiles, path: str) -> None:
        sync_dir(files, path)
        synced.add(os.path.relpath(path, table.folder))

    monkeypatch.setattr(DiskFiles, "sync_dir", recorded)
    table.make_durable()
    assert synced >= {".", "day=2026-11-01", "day=2026-11-01/text=n0"}
    assert ".." not in synced


def test_a_missing_data_file_is_reported_with_advice(made: Table) -> None:
    append(made, rows(0, 2), "numbers-0-0-2", app=2)
    [path] = made.load().data_files()
    os.unlink(path)
    with pytest.raises(TableDamagedError, match=r"1 of 1 data files.*--rebuild"):
        made.load().read(["number"]).read_all()


def test_a_damaged_data_file_is_reported_with_advice(made: Table) -> None:
    append(made, rows(0, 2), "numbers-0-0-2", app=2)
    [path] = made.load().data_files()
    Path(path).write_bytes(b"PAR1" + bytes(100))
    with pytest.raises(TableDamagedError, match=r"is damaged.*--rebuild"):
        made.load().read(["number"]).read_all()


def _state_file(table: Table) -> Path:
    folder = Path(table.folder)
    if table.format == "delta":
        return max((folder / "_delta_log").glob("*.json"))
    if table.format == "iceberg":
        return folder / "catalog.db"
    return folder / "_strandlog" / "manifest.json"


def test_a_damaged_state_file_is_reported_with_advice(made: Table) -> None:
    append(made, rows(0, 2), "numbers-0-0-2", app=2)
    _state_file(made).write_bytes(b"{broken" * 1000)
    reopened = open_table(made.folder, made.format)
    with pytest.raises(TableDamagedError, match=r"is damaged.*--rebuild"):
        reopened.load()


def test_a_flipped_bit_in_a_data_file_is_an_error_and_not_another_value(made: Table) -> None:
    append(made, rows(0, 200), "numbers-0-0-200", app=200)
    [path] = made.load().data_files()
    data = Path(path).read_bytes()
    info = pq.read_metadata(path)
    text = info.row_group(0).column(1)
    start = text.dictionary_page_offset or text.data_page_offset
    errors = 0
    for position in range(start + 40, start + text.total_compressed_size, 37):
        Path(path).write_bytes(data[:position] + bytes([data[position] ^ 4]) + data[position + 1 :])
        try:
            found = made.load().read(["text"]).read_all().column("text").to_pylist()
        except TableDamagedError:
            errors += 1
        else:
            assert found == [f"n{number}" for number in range(200)]
    assert errors > 10


def test_a_flipped_digit_in_the_manifest_is_reported(parquet: Table) -> None:
    append(parquet, rows(0, 2), "numbers-0-0-2", app=2)
    manifest = _state_file(parquet)
    manifest.write_text(manifest.read_text().replace('"app":2', '"app":3'))
    with pytest.raises(TableDamagedError, match="checksum is wrong"):
        parquet.load()


@pytest.mark.parametrize("name", ["with space", "ünï☃", "ha#sh", "que?ry", "per%20cent", "q\"'{}"])
@pytest.mark.parametrize("table_format", one_in(3, FORMATS))
def test_a_table_in_a_folder_with_an_odd_name_has_its_rows_or_is_refused(
    table_format: str, name: str, tmp_path: Path
) -> None:
    try:
        table = open_table(tmp_path / name, table_format)
    except InvalidSettingError as error:
        assert "cannot contain" in str(error)
        assert set(name) & set("#?%")
        return
    table.create(SCHEMA, partition_by=["text"])
    append(table, rows(0, 3), "numbers-0-0-3", app=3)
    paths = table.load().data_files()
    assert len(paths) == 3
    assert all(os.path.exists(path) for path in paths)
    assert numbers(table) == [0, 1, 2]
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_fields_that_differ_only_in_case_are_an_error_for_a_new_table(table: Table) -> None:
    schema = pa.schema([("s", pa.struct([("name", pa.string()), ("Name", pa.string())]))])
    with pytest.raises(TableSchemaError, match=r"columns s\.name and s\.Name differ only in case"):
        table.create(schema)


def test_a_wider_number_inside_a_struct_is_an_error_of_one_line_in_delta(tmp_path: Path) -> None:
    table = open_table(tmp_path / "numbers", "delta")
    table.create(pa.schema([("s", pa.struct([("x", pa.int32())]))]))
    with pytest.raises(
        TableSchemaError, match=r"^column s\.x has type int32 .* needs int64, and Delta"
    ):
        table.extend(pa.schema([("s", pa.struct([("x", pa.int64())]))]))


def test_targets_on_object_stores_are_an_error() -> None:
    with pytest.raises(InvalidSettingError, match="mount the object store"):
        open_table("s3://bucket/orders", "delta")


def test_an_unknown_format_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettingError, match="one of delta, iceberg, parquet"):
        open_table(tmp_path, "orc")


def test_two_processes_that_create_an_iceberg_catalog_at_once_are_not_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.catalog.sql import SqlCatalog
    from sqlalchemy.exc import OperationalError

    table = open_table(tmp_path / "numbers", "iceberg")
    calls: list[str] = []

    def overtaken(name: str, **properties: str) -> Any:
        calls.append(name)
        if len(calls) == 1:
            text = "table iceberg_namespace_properties already exists"
            raise OperationalError("CREATE TABLE", {}, Exception(text))
        return SqlCatalog(name, **properties)

    monkeypatch.setattr("strandlog.tables.formats.iceberg.SqlCatalog", overtaken)
    table.create(SCHEMA)
    assert table.load().row_count() == 0


def test_two_processes_that_create_an_iceberg_namespace_at_once_are_not_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    table, other = (open_table(tmp_path / "numbers", "iceberg") for _ in range(2))
    found = SqlCatalog.namespace_exists

    def outdated(catalog: Any, namespace: Any) -> bool:
        monkeypatch.setattr(SqlCatalog, "namespace_exists", found)
        other.create(SCHEMA)
        return False

    monkeypatch.setattr(SqlCatalog, "namespace_exists", outdated)
    table.create(SCHEMA)
    assert table.load().row_count() == 0


# -- plain Parquet ---------------------------------------------------------------------------------


@pytest.fixture
def parquet(tmp_path: Path) -> Table:
    table = open_table(tmp_path / "numbers", "parquet")
    table.create(SCHEMA)
    return table


def listed(table: Table) -> list[str]:
    """What a reader sees that lists the folder."""
    return sorted(path.name for path in Path(table.folder).rglob("*.parquet"))


def test_readers_that_list_a_parquet_folder_see_only_committed_files(parquet: Table) -> None:
    snapshot = parquet.load()
    files = snapshot.layout.write(rows(0, 2), "numbers-0-0-2", "a")
    assert listed(parquet) == []
    snapshot.add_files(files, progress={"app": 2})
    assert listed(parquet) == ["numbers-0-0-2.parquet"]


def test_a_commit_to_parquet_that_was_killed_before_its_renames_is_completed(
    parquet: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot: Any = parquet.load()
    files = snapshot.layout.write(rows(0, 2), "numbers-0-0-2", "a")
    monkeypatch.setattr(parquet, "_complete", lambda _: None)
    snapshot.add_files(files, progress={"app": 2})
    assert listed(parquet) == []
    again = open_table(parquet.folder, "parquet")
    assert again.load().progress("app") == 2
    assert listed(again) == ["numbers-0-0-2.parquet"]


def test_the_same_range_is_in_a_parquet_table_once(parquet: Table) -> None:
    append(parquet, rows(0, 2), "numbers-0-0-2", app=2)
    with pytest.raises(TableConflictError, match="already has numbers-0-0-2"):
        append(parquet, rows(0, 2), "numbers-0-0-2", another=2)
    assert numbers(parquet) == [0, 1]


def test_the_manifest_is_readable_json(parquet: Table) -> None:
    append(parquet, rows(0, 2), "numbers-0-0-2", app=2)
    document = json.loads((Path(parquet.folder) / "_strandlog" / "manifest.json").read_text())
    assert document["progress"] == {"app": 2}
    assert [each["name"] for each in document["files"]] == ["numbers-0-0-2.parquet"]


@pytest.mark.parametrize("pattern", ["*-m0.avro", "snap-*.avro", "*.metadata.json"])
def test_damaged_metadata_of_an_iceberg_table_is_an_error_with_advice(
    tmp_path: Path, pattern: str
) -> None:
    """The library raises whatever its decoders raise: KeyError, zlib.error, EOFError, and more."""
    table = open_table(tmp_path / "lake", "iceberg")
    table.create(SCHEMA)
    snapshot = table.load()
    files = snapshot.layout.write(rows(0, 3), "name", "a")
    snapshot.add_files(files, progress={"app": 3})
    path = max((tmp_path / "lake" / "metadata").glob(pattern))
    contents = path.read_bytes()
    for damaged in (
        b"",
        contents[: len(contents) // 2],
        contents[:200] + bytes(64) + contents[264:],
    ):
        path.write_bytes(damaged)
        with pytest.raises(TableDamagedError, match=r"is damaged.*--rebuild"):
            open_table(tmp_path / "lake", "iceberg").load().data_files()
