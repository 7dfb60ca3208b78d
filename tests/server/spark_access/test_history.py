"""Reads of a lake table and the log together: the rows are those of the topic, whatever happens.

Readers are plain classes; Spark's part is played here. The broker, the sync and the table are real.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition as Deleted
from confluent_kafka.admin import AdminClient
from tests.support.numbered_values import NOW_MS
from tests.support.server import RunningBroker

import strandlog
from strandlog.client.wire.client import WireClient
from strandlog.errors import DataLossError, InvalidSettingError, TableDamagedError
from strandlog.model import TopicPartition
from strandlog.record.builder import build_batch

pytest.importorskip("pyspark", reason="Spark tests need the spark extra")
pytest.importorskip("deltalake", reason="Delta tables need the delta extra")

from pyspark.sql.streaming.datasource import ReadMaxRows

from strandlog.spark.options import BATCH, STREAM, parse_options
from strandlog.spark.schema import record_schema
from strandlog.spark.source.decoder import Decoder
from strandlog.spark.source.reader import BatchReader, RangeReader, StreamReader
from strandlog.tables.table import Table, open_table
from strandlog.tables.topics.columns import RawColumns
from strandlog.tables.topics.source import ClusterSource
from strandlog.tables.topics.sync import Sync, SyncOptions

Row = tuple[int, int, bytes | None]  # partition, offset, value
Headers = tuple[tuple[str, bytes | None], ...]
SPLIT_COLUMNS = ("partition", "offset", "value", "key", "timestamp", "headers")


class Lake:
    """A topic of two partitions, its table, and what a read must return."""

    def __init__(self, client: WireClient, topic: str, table: Table, address: str) -> None:
        self.client = client
        self.topic = topic
        self.table = table
        self.address = address
        self.rows: list[Row] = []
        self.details: dict[tuple[int, int], tuple[Any, ...]] = {}  # key, timestamp, headers
        self._number = 0
        self._admin = AdminClient({"bootstrap.servers": address})

    def write(self, partition: int, count: int, *, aborted: bool = False) -> None:
        """Append records, in a transaction if they are to be aborted."""
        tp = TopicPartition(self.topic, partition)
        values: list[bytes | None] = [b"%d" % (self._number + at) for at in range(count)]
        self._number += count
        name = f"txn-{self.topic}-{self._number}"
        producer: dict[str, Any] = {}
        if aborted:
            producer_id, epoch = self.client.init_producer_id(name, 60_000)
            self.client.add_partitions_to_txn(name, producer_id, epoch, [tp])
            producer = {
                "producer_id": producer_id,
                "producer_epoch": epoch,
                "base_sequence": 0,
                "is_transactional": True,
            }
        keys: list[bytes | None] = [None if n % 5 == 0 else b"k%d" % n for n in range(count)]
        values[::7] = [None] * len(values[::7])
        time_ms = NOW_MS + self._number
        headers: list[Headers] = [
            (("n", b"%d" % n), ("e", None)) if n % 3 else () for n in range(count)
        ]
        batch = build_batch(time_ms, values, keys, headers, **producer)
        named = name if aborted else None
        result = self.client.produce({tp: [batch]}, transactional_id=named)[tp]
        assert result.error is None
        if aborted:
            self.client.end_txn(name, producer_id, epoch, commit=False)
        else:
            first = result.base_offset
            self.rows += [(partition, first + at, value) for at, value in enumerate(values)]
            for at in range(count):
                expected = [{"key": name, "value": value} for name, value in headers[at]]
                self.details[partition, first + at] = (keys[at], time_ms, expected or None)

    def sync(self, options: SyncOptions = SyncOptions()) -> None:  # noqa: B008 - frozen
        source = ClusterSource(self.address, self.topic)
        try:
            sync = Sync(self.table, source, RawColumns(), options)
            sync.create()
            sync.run()
        finally:
            source.close()

    def trim(self, partition: int, before: int) -> None:
        """Delete the records of the log before an offset, as retention does."""
        for future in self._admin.delete_records([Deleted(self.topic, partition, before)]).values():
            future.result(20)

    def recreate(self) -> None:
        """Delete the topic and create it again."""
        self._admin.delete_topics([self.topic])[self.topic].result(20)
        self.client.create_topic(self.topic, 2)

    def options(self, **more: str) -> dict[str, str]:
        return {
            "bootstrap.servers": self.address,
            "subscribe": self.topic,
            "history": self.table.folder,
            "startingOffsets": "earliest",
            **more,
        }


@pytest.fixture
def lake(client: WireClient, topic: str, broker: RunningBroker, tmp_path: Path) -> Lake:
    return Lake(client, topic, open_table(tmp_path / "lake", "delta"), broker.address)


def reader(use: str, given: dict[str, str]) -> RangeReader:
    options = parse_options(use, given)
    return RangeReader(options, Decoder(options, record_schema(options)), 2)


def read(found: Any, tasks: list[Any]) -> list[Row]:
    rows = [row for task in tasks for batch in found.read(task) for row in batch.to_pylist()]
    assert {row["topic"] for row in rows} <= {rows[0]["topic"]} if rows else True
    return sorted((row["partition"], row["offset"], row["value"]) for row in rows)


def batch_rows(lake: Lake, **more: str) -> list[Row]:
    found = BatchReader(reader(BATCH, lake.options(**more)))
    return read(found, found.partitions())


def whole_rows(found: Any, tasks: list[Any]) -> list[tuple[Any, ...]]:
    """Return all columns of the rows that tasks read."""
    rows = [row for task in tasks for batch in found.read(task) for row in batch.to_pylist()]
    for row in rows:
        row["timestamp"] = round(row["timestamp"].timestamp() * 1000)
    return sorted(tuple(row[name] for name in SPLIT_COLUMNS) for row in rows)


@pytest.mark.parametrize("table_format", ["delta", "iceberg", "parquet"])
@pytest.mark.parametrize("seed", range(2))
def test_any_split_between_table_and_log(
    lake: Lake, tmp_path: Path, seed: int, table_format: str
) -> None:
    """Random appends, aborted transactions, syncs, compactions and deletions; then a batch, one
    with random bounds and a stream of random micro-batches have exactly the rows of the topic."""
    chance = random.Random(f"{seed}{table_format}")
    lake.table = open_table(tmp_path / "split", table_format)
    synced = {0: 0, 1: 0}
    steps: list[Callable[[], None]] = [
        lambda: lake.write(chance.randrange(2), chance.randint(1, 50)),
        lambda: lake.write(chance.randrange(2), chance.randint(1, 20), aborted=True),
    ]
    for _ in range(10):
        chance.choice(steps)()
        if chance.random() < 0.4:
            ends = lake.client.latest_offsets([TopicPartition(lake.topic, at) for at in synced])
            lake.sync()
            synced = {tp.partition: end for tp, end in ends.items()}
        if lake.table.exists() and chance.random() < 0.2:
            lake.table.compact(1 << 30)
        if chance.random() < 0.3:
            partition = chance.randrange(2)
            lake.trim(partition, chance.randint(0, synced[partition]))
    if not lake.table.exists():
        lake.sync()
    expected = sorted((*row, *lake.details[row[:2]]) for row in lake.rows)
    options = lake.options(includeHeaders="true")
    whole = BatchReader(reader(BATCH, options))
    assert whole_rows(whole, whole.partitions()) == expected
    bounds = {at: sorted(chance.choices(range(synced[at] + 1), k=2)) for at in (0, 1)}
    starting, ending = (
        json.dumps({lake.topic: {str(at): bound[side] for at, bound in bounds.items()}})
        for side in (0, 1)
    )
    part = BatchReader(
        reader(BATCH, {**options, "startingOffsets": starting, "endingOffsets": ending})
    )
    assert whole_rows(part, part.partitions()) == [
        row for row in expected if bounds[row[0]][0] <= row[1] < bounds[row[0]][1]
    ]
    assert streamed(lake, options, chance) == expected


def streamed(lake: Lake, options: dict[str, str], chance: random.Random) -> list[tuple[Any, ...]]:
    """Read everything as a stream, which is started again in between."""
    found: list[tuple[Any, ...]] = []
    stream = StreamReader(reader(STREAM, options))
    try:
        offset = stream.initialOffset()
        while True:
            end = stream.latestOffset(offset, ReadMaxRows(chance.randint(1, 200)))
            if end == offset:
                return sorted(found)
            if chance.random() < 0.2:  # Spark starts the query again and plans the batch again
                stream.stop()
                stream = StreamReader(reader(STREAM, options))
            found += whole_rows(stream, stream.partitions(offset, end))
            offset = end
    finally:
        stream.stop()


def test_the_table_has_what_retention_removed(lake: Lake) -> None:
    lake.write(0, 100)
    lake.sync()
    lake.trim(0, 100)
    lake.write(0, 10)
    lake.write(1, 5)
    assert batch_rows(lake) == sorted(lake.rows)
    start, end = '{"%s": {"0": 40, "1": 0}}', '{"%s": {"0": 104, "1": 2}}'
    found = batch_rows(lake, startingOffsets=start % lake.topic, endingOffsets=end % lake.topic)
    assert found == sorted(
        row for row in lake.rows if (40 <= row[1] < 104 if row[0] == 0 else row[1] < 2)
    )


def test_a_compaction_and_a_sync_between_planning_and_reading(lake: Lake) -> None:
    for _ in range(4):
        lake.write(0, 20)
        lake.sync()
    lake.write(0, 7)
    found = BatchReader(reader(BATCH, lake.options()))
    tasks, expected = found.partitions(), sorted(lake.rows)
    lake.write(0, 9)
    lake.sync()
    lake.table.compact(1 << 30)
    lake.trim(0, 80)
    assert read(found, tasks) == expected


def test_a_stream_continues_from_the_table_to_the_log(lake: Lake) -> None:
    lake.write(0, 60)
    lake.write(1, 30)
    lake.sync()
    lake.trim(0, 60)
    lake.write(0, 25)
    stream = StreamReader(reader(STREAM, lake.options()))
    found: list[Row] = []
    try:
        offset = stream.initialOffset()
        for _ in range(20):
            end = stream.latestOffset(offset, ReadMaxRows(20))
            found += read(stream, stream.partitions(offset, end))
            offset = end
            if len(found) == 60:
                lake.write(0, 5)
    finally:
        stream.stop()
    assert sorted(found) == sorted(lake.rows)


def test_a_gap_between_table_and_log_is_reported(lake: Lake) -> None:
    lake.write(0, 50)
    lake.sync()
    lake.write(0, 50)
    lake.trim(0, 80)
    with pytest.raises(DataLossError, match=r"offsets 50 to 79 of .* were deleted"):
        batch_rows(lake)
    found = batch_rows(lake, failOnDataLoss="false")
    assert [row[1] for row in found] == [*range(50), *range(80, 100)]


def test_records_that_the_table_lacks_are_reported(lake: Lake) -> None:
    """The sync has accepted a gap; without a report, a read would silently lack its records."""
    lake.write(0, 50)
    lake.sync()
    lake.write(0, 50)
    lake.trim(0, 80)
    lake.sync(SyncOptions(accepts_gap=True))
    with pytest.raises(DataLossError, match=r"offsets 50 to 79 of .* were deleted"):
        batch_rows(lake)
    found = batch_rows(lake, failOnDataLoss="false")
    assert [row[1] for row in found] == [*range(50), *range(80, 100)]
    assert len(batch_rows(lake, startingOffsets=f'{{"{lake.topic}": {{"0": 80, "1": 0}}}}')) == 20


def test_a_table_that_another_program_has_changed_is_an_error(lake: Lake) -> None:
    lake.write(0, 50)
    lake.sync()
    import deltalake

    deltalake.DeltaTable(lake.table.folder).delete('"offset" < 10')
    with pytest.raises(InvalidSettingError, match="it has 40 rows, not 50"):
        batch_rows(lake)


def test_a_table_of_latest_values_has_no_history(lake: Lake) -> None:
    lake.write(0, 4)
    source = ClusterSource(lake.address, lake.topic)
    options = SyncOptions(mode="upsert", time_unit="none")
    try:
        Sync(lake.table, source, RawColumns(), options).create()
    finally:
        source.close()
    with pytest.raises(InvalidSettingError, match=r"latest value of each key .* --mode append"):
        batch_rows(lake)


def test_errors(lake: Lake, tmp_path: Path) -> None:
    lake.write(0, 5)
    with pytest.raises(InvalidSettingError, match="this folder contains no table"):
        batch_rows(lake, history=str(tmp_path / "none"))
    lake.sync()
    found = BatchReader(reader(BATCH, lake.options()))
    tasks = found.partitions()
    for path in lake.table.load().data_files():
        Path(path).unlink()
    with pytest.raises(TableDamagedError, match="option history: cannot read the table"):
        read(found, tasks)
    lake.recreate()
    with pytest.raises(InvalidSettingError, match="the records of another topic"):
        batch_rows(lake)


def test_the_broker_says_which_table_the_topic_has(lake: Lake, broker: RunningBroker) -> None:
    with pytest.raises(InvalidSettingError, match=f"no table for topic '{lake.topic}'"):
        batch_rows(lake, history="true")
    with strandlog.connect(lake.address) as log:
        log.alter_topic(lake.topic, {"table.format": "delta"})
    folder = broker.data / "tables" / lake.topic
    lake.table = open_table(folder, "delta")
    lake.write(0, 30)
    lake.sync()
    lake.trim(0, 20)
    lake.write(1, 5)
    assert batch_rows(lake, history="true") == sorted(lake.rows)
    options = lake.options(history="true", path=str(broker.data))
    del options["bootstrap.servers"]
    found = BatchReader(reader(BATCH, options))
    assert read(found, found.partitions()) == sorted(lake.rows)
    assert batch_rows(lake, history="false") == [
        row for row in sorted(lake.rows) if row[:2] >= (0, 20)
    ]
