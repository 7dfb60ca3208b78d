"""Errors of an Iceberg table's catalog, which is a SQLite database."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from strandlog.errors import StorageError, TableDamagedError
from strandlog.tables.table import open_table


def test_a_catalog_whose_journal_cannot_be_created_is_not_reported_as_damaged(
    tmp_path: Path,
) -> None:
    table = open_table(tmp_path / "numbers", "iceberg")
    table.create(pa.schema([("number", pa.int64())]))
    journal = tmp_path / "numbers" / "catalog.db-journal"
    journal.mkdir()
    with pytest.raises(StorageError, match=r"could not use .*catalog\.db") as failed:
        table.set_properties({"a": "1"})
    assert not isinstance(failed.value, TableDamagedError)
    journal.rmdir()
    table.set_properties({"a": "2"})
    assert table.load().properties["a"] == "2"


def test_a_catalog_with_other_contents_is_reported_as_damaged(tmp_path: Path) -> None:
    table = open_table(tmp_path / "numbers", "iceberg")
    table.create(pa.schema([("number", pa.int64())]))
    (tmp_path / "numbers" / "catalog.db").write_bytes(b"no database" * 100)
    with pytest.raises(TableDamagedError, match="restore the file"):
        open_table(tmp_path / "numbers", "iceberg").load()
