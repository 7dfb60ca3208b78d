"""Reads lake tables with DuckDB, which shares no code with strandlog."""

from __future__ import annotations

from typing import Any

import duckdb

from strandlog.tables.table import Table


def query(table: Table, sql: str) -> list[tuple[Any, ...]]:
    """Run a query; `rows` in it is the table."""
    paths = table.load().data_files()
    with duckdb.connect() as connection:
        connection.execute(
            "CREATE VIEW rows AS SELECT * FROM read_parquet("
            + repr(paths)
            + ", union_by_name = true, hive_partitioning = true)"
        )
        found: list[tuple[Any, ...]] = connection.execute(sql).fetchall()
        return found


def counts(table: Table) -> tuple[int, int]:
    """Return the number of rows and of distinct (partition, offset) pairs."""
    if not table.load().data_files():
        return 0, 0
    [found] = query(table, 'SELECT count(*), count(DISTINCT (partition, "offset")) FROM rows')
    return found[0], found[1]
