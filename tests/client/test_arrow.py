"""Records as Arrow tables, there and back."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pytest

import strandlog
from strandlog.errors import InvalidRecordError, MissingExtraError


def test_a_table_comes_back_as_it_was_sent(tmp_path: Path) -> None:
    table = pa.table(
        {
            "key": pa.array([b"a", None, b""], pa.binary()),
            "value": pa.array([b"1", b"", None], pa.binary()),
            "partition": pa.array([0, 1, 1], pa.int32()),
            "timestamp": pa.array([1_000, 2_000, 3_000], pa.timestamp("ms", tz="UTC")),
            "headers": [[{"key": "h", "value": b"x"}], [], []],
        }
    )
    with strandlog.open(tmp_path / "data") as log:
        log.create_topic("t", 2)
        sent = log.producer().send_arrow("t", table)
        assert [(meta.partition, meta.offset) for meta in sent] == [(0, 0), (1, 0), (1, 1)]
        found = log.consumer(["t"]).poll_arrow().sort_by([("partition", "ascending")])
    for name in ("key", "value", "partition", "timestamp"):
        assert found.column(name).to_pylist() == table.column(name).to_pylist()
    assert found.column("headers").to_pylist() == [[{"key": "h", "value": b"x"}], [], []]
    assert found.column("topic").to_pylist() == ["t"] * 3
    assert found.column("offset").to_pylist() == [0, 0, 1]


def test_strings_are_taken_as_utf_8_and_missing_columns_are_filled_in(tmp_path: Path) -> None:
    with strandlog.open(tmp_path / "data") as log:
        log.create_topic("t")
        log.producer().send_arrow("t", pa.table({"key": ["ä", None], "value": ["x", "y"]}))
        records = log.consumer(["t"]).poll()
    assert [(record.key, record.value) for record in records] == [
        ("ä".encode(), b"x"),
        (None, b"y"),
    ]
    assert all(record.timestamp > 1_600_000_000_000 for record in records)


def test_a_table_without_values_is_refused(tmp_path: Path) -> None:
    with strandlog.open(tmp_path / "data") as log:
        log.create_topic("t")
        with pytest.raises(InvalidRecordError, match="column 'value'"):
            log.producer().send_arrow("t", pa.table({"key": ["a"]}))


def test_no_records_make_an_empty_table_with_all_columns(tmp_path: Path) -> None:
    with strandlog.open(tmp_path / "data") as log:
        log.create_topic("t")
        table = log.consumer(["t"]).poll_arrow()
    assert table.num_rows == 0
    assert table.column_names[:2] == ["key", "value"]


def test_without_pyarrow_nothing_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with strandlog.open(tmp_path / "data") as log:
        log.create_topic("t")
        log.producer().send("t", b"x")
        consumer = log.consumer(["t"])
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(MissingExtraError, match=r"pip install 'strandlog\[spark\]'"):
            consumer.poll_arrow()
        assert [record.value for record in consumer.poll()] == [b"x"]
