"""Time travel by offset: the first version that has some records."""

from __future__ import annotations

from pathlib import Path

import deltalake
import pytest
from tests.support.lake import counts

import strandlog
from strandlog.errors import TableError
from strandlog.tables.table import open_table
from strandlog.tables.topics.columns import RawColumns
from strandlog.tables.topics.source import FolderSource
from strandlog.tables.topics.sync import Sync, SyncOptions
from strandlog.tables.topics.versions import version_at


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_the_first_version_with_all_wanted_records(tmp_path: Path, table_format: str) -> None:
    table = open_table(tmp_path / "lake", table_format)
    rounds = [(5, 2), (0, 3), (4, 0)]  # records of the partitions 0 and 1
    versions = []
    with strandlog.open(tmp_path / "data") as log:
        log.create_topic("orders", 2)
        source = FolderSource(str(tmp_path / "data"), "orders")
        sync = Sync(table, source, RawColumns(), SyncOptions())
        sync.create()
        for counts_of_round in rounds:
            with log.producer() as producer:
                for partition, count in enumerate(counts_of_round):
                    for _ in range(count):
                        producer.send("orders", b"v", partition=partition)
            sync.run()
            versions.append(table.load().version)
            table.compact(1 << 20)  # a version between two syncs
        source.close()
    wanted = [({0: 4}, 0), ({0: 5}, 2), ({1: 1}, 0), ({1: 4}, 1), ({0: 0, 1: 4}, 1), ({0: 8}, 2)]
    for offsets, at in wanted:
        assert version_at(table, offsets).version == versions[at], offsets
    assert version_at(table, {1: 2}).offsets == {0: 5, 1: 5}
    with pytest.raises(TableError, match="no offset 9 of partition 0 yet: it ends at 9"):
        version_at(table, {0: 9})
    if table_format == "delta":
        found = version_at(table, {0: 3, 1: 1})
        old = deltalake.DeltaTable(table.folder, version=found.version)
        assert old.count() == 7
        assert counts(table) == (14, 14)


def test_a_parquet_table_has_no_old_versions(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="use Delta or Iceberg"):
        version_at(open_table(tmp_path / "lake", "parquet"), {0: 1})
