"""Statistics of data files are right, and bounds exclude no value."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from strandlog.errors import TableSchemaError
from strandlog.tables.layout import Layout

MOMENT = datetime(2026, 11, 17, 9, 30, 0, 123_456, UTC)


def test_statistics_have_the_bounds_of_simple_columns(tmp_path: Path) -> None:
    rows = pa.table(
        {
            "offset": pa.array([3, 9, None], pa.int64()),
            "at": pa.array([MOMENT, MOMENT, MOMENT], pa.timestamp("us", "UTC")),
            "text": ["b", "a", "c"],
            "long": ["x" * 100] * 3,
            "number": [0.5, float("nan"), 1.5],
            "bytes": [b"1", b"2", None],
            "nested": [{"x": 1}, {"x": 2}, None],
        }
    )
    [file] = Layout(str(tmp_path), rows.schema).write(rows, "name", "a")
    found = json.loads(file.statistics)
    assert found["numRecords"] == file.row_count == 3
    assert found["minValues"]["offset"] == 3
    assert found["maxValues"]["offset"] == 9
    assert found["nullCount"]["offset"] == 1
    assert found["minValues"]["at"] == "2026-11-17T09:30:00.123Z"
    assert found["maxValues"]["at"] == "2026-11-17T09:30:00.124Z"
    assert (found["minValues"]["text"], found["maxValues"]["text"]) == ("a", "c")
    assert not {"long", "bytes", "nested.x"} & found["minValues"].keys()
    assert Path(file.path).stat().st_size == file.size_bytes
    assert [path.name for path in tmp_path.iterdir()] == ["name-a.parquet"]


def test_partition_values_are_escaped_in_paths(tmp_path: Path) -> None:
    rows = pa.table({"place": ["a/b", "c=d"], "n": [1, 2]})
    files = Layout(str(tmp_path), rows.schema, ("place",)).write(rows, "name", "a")
    assert sorted(file.name for file in files) == [
        "place=a%2Fb/name-a.parquet",
        "place=c%3Dd/name-a.parquet",
    ]
    assert {file.partition for file in files} == {(("place", "a/b"),), (("place", "c=d"),)}


def test_a_column_that_cannot_be_in_a_path_is_an_error(tmp_path: Path) -> None:
    rows = pa.table({"n": [0.5]})
    with pytest.raises(TableSchemaError, match="cannot be partitioned by a column of type double"):
        Layout(str(tmp_path), rows.schema, ("n",)).write(rows, "name", "a")
