"""Sinks with `table`: Delta, Iceberg and Parquet tables, each micro-batch exactly once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.spark.test_pipeline_run import HEAD, pipeline, run_to_end, send
from tests.support.broker_process import BrokerProcess

from strandlog.client.wire.client import WireClient
from strandlog.errors import TableConflictError
from strandlog.spark.pipeline.model import Pipeline
from strandlog.spark.pipeline.targets.table_target import TableTarget
from strandlog.tables.table import open_table

TABLE = (
    HEAD
    + """
[[view]]
name = "late"
sql = "SELECT {columns} FROM flights"

[[sink]]
from = "late"
table = "{folder}/table"
format = "{format}"
partition_by = ["carrier"]
"""
)


def wanted_pipeline(
    broker: BrokerProcess, topic: str, folder: Path, table_format: str, columns: str
) -> Pipeline:
    log_key = f'bootstrap = "{broker.address}"'
    fields = {"log_key": log_key, "topic": topic, "folder": folder}
    return pipeline(TABLE, **fields, format=table_format, columns=columns)


def rows(folder: Path, table_format: str, *columns: str) -> list[tuple[Any, ...]]:
    """The rows of the table, as DuckDB reads its files."""
    import duckdb

    files = open_table(folder / "table", table_format).load().data_files()
    names = ", ".join(columns)
    sql = f"SELECT {names} FROM read_parquet(?, hive_partitioning = true, union_by_name = true)"
    return sorted(duckdb.execute(sql, [files]).fetchall())


@pytest.mark.parametrize(
    "table_format",
    [
        "delta",
        pytest.param("iceberg", marks=pytest.mark.long),
        pytest.param("parquet", marks=pytest.mark.long),
    ],
)
def test_micro_batches_become_versions_of_a_table(
    table_format: str,
    spark: Any,
    broker: BrokerProcess,
    client: WireClient,
    topic: str,
    tmp_path: Path,
) -> None:
    wanted = wanted_pipeline(broker, topic, tmp_path, table_format, "carrier, delay")
    send(client, topic, b'{"carrier": "AA", "delay": 1}', b'{"carrier": "UA", "delay": 2}')
    run_to_end(spark, wanted)
    assert rows(tmp_path, table_format, "delay") == [(1.0,), (2.0,)]
    send(client, topic, b'{"carrier": "AA", "delay": 3}')
    more = "carrier, delay, delay * 2 AS twice"
    run_to_end(spark, wanted_pipeline(broker, topic, tmp_path, table_format, more))
    assert rows(tmp_path, table_format, "delay", "twice") == [(1.0, None), (2.0, None), (3.0, 6.0)]
    if table_format == "delta":
        assert rows(tmp_path, table_format, "carrier", "delay")[0] == ("AA", 1.0)


def test_a_repeated_micro_batch_adds_nothing(spark: Any, tmp_path: Path) -> None:
    target = TableTarget(str(tmp_path / "table"), "delta", ())
    batch = spark.range(5)
    target.write(batch, "app", 0)
    target.write(batch, "app", 0)
    target.write(spark.range(0), "app", 1)
    target.write(batch, "app", 1)
    target.write(batch, "app", 0)
    target.write(batch, "other", 0)
    snapshot = open_table(tmp_path / "table", "delta").load()
    assert snapshot.row_count() == 15
    assert (snapshot.progress("app"), snapshot.progress("other")) == (1, 0)


def test_a_commit_of_another_writer_is_no_failure(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = TableTarget(str(tmp_path / "table"), "delta", ())
    target.write(spark.range(1), "app", 0)
    snapshots = type(open_table(tmp_path / "table", "delta").load())
    add_files = snapshots.add_files
    calls: list[Any] = []

    def conflict_once(self: Any, files: Any, **named: Any) -> None:
        calls.append(named["progress"])
        if len(calls) == 1:
            raise TableConflictError("another writer was faster")
        add_files(self, files, **named)

    monkeypatch.setattr(snapshots, "add_files", conflict_once)
    target.write(spark.range(3), "app", 1)
    assert calls == [{"app": 1}] * 2
    assert open_table(tmp_path / "table", "delta").load().row_count() == 4
