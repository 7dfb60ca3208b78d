"""`history` on real files: a table and a log, split anywhere, are the topic, row by row."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples
from tests.support.samples import one_in
from tests.support.transactions import TransactionalWriter

import strandlog
from strandlog.model import TopicPartition
from strandlog.tables.table import FORMATS, Format, open_table
from strandlog.tables.topics.columns import RawColumns
from strandlog.tables.topics.source import FolderSource
from strandlog.tables.topics.status import read_status
from strandlog.tables.topics.sync import Sync, SyncOptions

pytest.importorskip("pyspark", reason="Spark tests need the spark extra")

from pyspark.sql.streaming.datasource import ReadMaxRows

from strandlog.spark.options import BATCH, STREAM, parse_options
from strandlog.spark.schema import record_schema
from strandlog.spark.source.decoder import Decoder
from strandlog.spark.source.reader import BatchReader, RangeReader, StreamReader

PARTITIONS = 2
COLUMNS = ("partition", "offset", "key", "value", "headers", "timestamp")
Rows = dict[tuple[int, int], tuple[Any, ...]]  # (partition, offset) → all columns
ACTIONS = ("produce", "commit", "abort", "open", "sync", "round", "trim", "merge")
STEPS = st.lists(
    st.tuples(st.sampled_from(ACTIONS), st.integers(0, PARTITIONS - 1), st.integers(1, 9)),
    min_size=4,
    max_size=12,
)
SHARE = st.floats(0, 1)


class History:
    """A topic, its table, and every row that could ever be read from the log alone."""

    def __init__(self, folder: Path, log: strandlog.Log, table_format: Format) -> None:
        self._log = log
        self._log.create_topic("t", PARTITIONS, config={"retention.ms": -1})
        self._writer = TransactionalWriter(log)
        self._table = open_table(folder / "lake", table_format)
        self._source = FolderSource(log.path, "t")
        self.rows: Rows = {}
        self._produce(0, 5)
        self._sync(1, is_whole=False)
        self.rows |= self.batch(history=False)

    def run(self, action: str, partition: int, count: int) -> None:
        match action:
            case "produce":
                self._produce(partition, count)
            case "commit" | "abort" | "open":
                self._writer.end("p", commit=False)
                values = [b"%s %d" % (action.encode(), number) for number in range(count)]
                self._writer.write("p", TopicPartition("t", partition), *values, key=b"k")
                if action != "open":
                    self._writer.end("p", commit=action == "commit")
            case "sync" | "round":
                self._sync(count, is_whole=action == "sync")
            case "trim":
                self._trim(partition, count)
            case "merge":
                self._table.compact(1_000_000)
        self.rows |= self.batch(history=False)

    def _produce(self, partition: int, count: int) -> None:
        records = [
            {
                "key": None if number % 3 == 0 else b"k%d" % number,
                "value": None if number % 4 == 3 else b"v%d" % number,
                "headers": {"h": b"%d" % number} if number % 2 else {},
                "partition": partition,
                "timestamp": 1_700_000_000_000 + 36_000_000 * number,
            }
            for number in range(count)
        ]
        with self._log.producer() as producer:
            for record in records:  # a batch each, so that a round can end after each
                producer.send_batch("t", [record])

    def _sync(self, count: int, *, is_whole: bool) -> None:
        """Sync everything, or one round of about `count` records."""
        options = SyncOptions(round_bytes=count * 50)
        sync = Sync(self._table, self._source, RawColumns(), options)
        sync.create()
        with mock.patch("strandlog.tables.topics.sync.MIN_PARTITION_BYTES", 1):
            sync.run(stops=lambda: not is_whole)

    def _trim(self, partition: int, ninths: int) -> None:
        """Delete some of the records that the table has, as retention does."""
        found = read_status(self._table, self._source).partitions[partition]
        start = found.start_offset
        before = start + ((found.synced_offset or 0) - start) * ninths // 9
        if before > start:
            self._log.delete_records("t", partition, before)

    def _ranges(self, use: str, *, history: bool, **more: str) -> RangeReader:
        given = {"path": self._log.path, "subscribe": "t", "includeHeaders": "true", **more}
        if history:
            given["history"] = self._table.folder
        options = parse_options(use, given)
        return RangeReader(options, Decoder(options, record_schema(options)), cores=2)

    def batch(self, *, history: bool, **more: str) -> Rows:
        reader = BatchReader(self._ranges(BATCH, history=history, **more))
        return rows_of(reader, reader.partitions())

    def stream(self, size: int) -> Rows:
        """Read everything with a stream, in micro-batches of up to `size` records."""
        reader = StreamReader(self._ranges(STREAM, history=True, startingOffsets="earliest"))
        found: Rows = {}
        start = reader.initialOffset()
        while (end := reader.latestOffset(start, ReadMaxRows(size))) is not start:
            rows = rows_of(reader, reader.partitions(start, end))
            assert not found.keys() & rows.keys()
            found |= rows
            start = end
        reader.stop()
        return found


def rows_of(reader: Any, tasks: Iterable[Any]) -> Rows:
    """Run tasks; each (partition, offset) may occur once."""
    rows = [
        tuple(row[name] for name in COLUMNS)
        for task in tasks
        for batch in reader.read(task)
        for row in batch.to_pylist()
    ]
    found = {(row[0], row[1]): row for row in rows}
    assert len(found) == len(rows)
    return found


def positions(per_partition: list[int]) -> str:
    return json.dumps({"t": {str(at): offset for at, offset in enumerate(per_partition)}})


@pytest.mark.parametrize("table_format", one_in(3, FORMATS))
@examples(0.3)
@given(steps=STEPS, first=SHARE, last=SHARE, size=st.integers(1, 9))
def test_table_and_log_together_are_the_topic_wherever_they_are_split(
    tmp_path_factory: pytest.TempPathFactory,
    table_format: Format,
    steps: list[tuple[str, int, int]],
    first: float,
    last: float,
    size: int,
) -> None:
    folder = tmp_path_factory.mktemp("history")
    with strandlog.open(folder / "data") as log:
        topic = History(folder, log, table_format)
        for step in steps:
            topic.run(*step)
        assert topic.batch(history=True) == topic.rows
        assert topic.stream(size) == topic.rows
        ends = [
            max((offset for at, offset in topic.rows if at == number), default=-1) + 1
            for number in range(PARTITIONS)
        ]
        starts = [int(end * min(first, last)) for end in ends]
        stops = [int(end * max(first, last)) for end in ends]
        between = topic.batch(
            history=True, startingOffsets=positions(starts), endingOffsets=positions(stops)
        )
        assert between == {
            (at, offset): row
            for (at, offset), row in topic.rows.items()
            if starts[at] <= offset < stops[at]
        }
