"""Statistics of data files are right, bounds exclude no value, and damage is noticed."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandlog.errors import TableSchemaError
from strandlog.tables.layout import Layout, has_damaged_footer
from strandlog.tables.reading import data_set

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


def test_a_flipped_bit_in_a_footer_hides_rows_or_ends_the_process(tmp_path: Path) -> None:
    """Parquet has no checksum of the footer: its statistics decide which rows a filter reads."""
    rows = pa.table({"partition": pa.array([0] * 5, pa.int32()), "offset": range(5)})
    [file] = Layout(str(tmp_path), rows.schema).write(rows, "name", "a")
    path = Path(file.path)
    contents = path.read_bytes()
    assert data_set([file.path]).to_table().equals(rows)
    assert duckdb.sql(f"SELECT \"offset\" FROM '{path}'").fetchall() == [(n,) for n in range(5)]
    length = int.from_bytes(contents[-8:-4], "little") + 8
    for position in range(len(contents) - length, len(contents)):
        flipped = bytearray(contents)
        flipped[position] ^= 1 << position % 8
        path.write_bytes(flipped)
        if len(contents) - 8 <= position < len(contents) - 4:
            continue  # the length: what it points to is not a footer, which Arrow reports
        assert has_damaged_footer(file.path), position
    with pytest.raises(pa.ArrowInvalid, match="does not match its checksum"):
        data_set([file.path])


def test_a_file_of_another_program_has_no_checksum_of_its_footer(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1]}), tmp_path / "other.parquet")
    assert data_set([str(tmp_path / "other.parquet")]).count_rows() == 1
