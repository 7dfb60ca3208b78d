"""A folder as the source sees it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.transactions import TransactionalWriter, damage_marker

import strandlog
from strandlog.errors import (
    CorruptSegmentError,
    DataLossError,
    UnknownLayoutError,
    UnreachableError,
)
from strandlog.model import TopicPartition

pytest.importorskip("pyspark", reason="Spark tests need the spark extra")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from strandlog.spark.options import BATCH, STREAM, parse_options
from strandlog.spark.schema import record_schema
from strandlog.spark.source.decoder import Decoder
from strandlog.spark.source.folder_access import FolderAccess
from strandlog.spark.source.planning import OffsetRange
from strandlog.spark.source.reader import (
    BatchReader,
    RangePartition,
    RangeReader,
    StreamReader,
)

TP = TopicPartition("t", 0)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[strandlog.Log]:
    with strandlog.open(tmp_path) as log:
        log.create_topic("t", 1)
        yield log


@pytest.fixture
def access(tmp_path: Path, log: strandlog.Log) -> Iterator[FolderAccess]:
    options = parse_options(BATCH, {"path": str(tmp_path), "subscribe": "t"})
    with closing(FolderAccess(options)) as access:
        yield access


def test_one_partition_is_split_into_tasks_of_equal_size_in_bytes(
    log: strandlog.Log, access: FolderAccess
) -> None:
    producer = log.producer()
    sizes = [10] * 3000 + [2000] * 300
    for start in range(0, len(sizes), 10):
        producer.send_batch("t", [b"x" * size for size in sizes[start : start + 10]])
    [cut] = access.cut(OffsetRange(TP, 0, len(sizes)), 2)
    assert cut % 10 == 0, "that is where a batch begins"
    assert sum(sizes[:cut]) == pytest.approx(sum(sizes[cut:]), rel=0.25)


def test_a_batch_without_index_entries_is_cut_by_offsets(
    log: strandlog.Log, access: FolderAccess
) -> None:
    log.producer().send_batch("t", [b"x"] * 1000)
    assert access.cut(OffsetRange(TP, 0, 1000), 4) == [250, 500, 750]


def test_a_partition_whose_files_are_being_replaced_is_not_empty(
    log: strandlog.Log, tmp_path: Path
) -> None:
    """As a broker leaves it that is killed while it compacts the partition."""
    log.producer().send_batch("t", [b"x"] * 10)
    [folder] = tmp_path.glob("**/t-0")
    swap = folder / "00000000000000000000.log.swap"
    swap.touch()
    given = {"path": str(tmp_path), "subscribe": "t", "kafkaConsumer.pollTimeoutMs": "1"}
    with closing(FolderAccess(parse_options(BATCH, given))) as access:
        with pytest.raises(UnreachableError, match="the files of t-0 are being replaced"):
            access.bounds()
        swap.unlink()
        assert access.bounds()[TP].latest == 10


def test_a_missing_folder_is_an_error_with_its_absolute_path(tmp_path: Path) -> None:
    options = parse_options(BATCH, {"path": str(tmp_path / "nowhere"), "subscribe": "t"})
    with pytest.raises(UnknownLayoutError, match=r"/nowhere is not .*: there is no such folder"):
        FolderAccess(options)


@pytest.fixture
def damaged(log: strandlog.Log, tmp_path: Path) -> Path:
    """A folder with a record, a transaction whose marker is damaged, and another record."""
    writer = TransactionalWriter(log)
    log.producer().send("t", b"before")
    writer.write("a", TP, b"open")
    writer.end("a", commit=True)
    log.producer().send("t", b"after")
    log.close()
    damage_marker(tmp_path / "t-0")
    return tmp_path


def ranges(use: str, folder: Path, **given: str) -> RangeReader:
    options = parse_options(use, {"path": str(folder), "subscribe": "t", **given})
    return RangeReader(options, Decoder(options, record_schema(options)), cores=2)


BLOCKED = r"t-0 cannot be read from offset 1 on: .* may hide whether the transaction"


def test_a_batch_ends_early_without_an_error_at_damage_that_may_hide_a_marker(
    damaged: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for end in ("latest", '{"t": {"0": 4}}'):
        with pytest.raises(DataLossError, match=BLOCKED):
            BatchReader(ranges(BATCH, damaged, endingOffsets=end)).partitions()
    assert not BatchReader(ranges(BATCH, damaged, endingOffsets='{"t": {"0": 0}}')).partitions()
    [task] = BatchReader(ranges(BATCH, damaged, failOnDataLoss="false")).partitions()
    assert isinstance(task, RangePartition)
    assert task.wanted == OffsetRange(TP, 0, 1)
    assert re.search(BLOCKED, caplog.text)


def test_a_task_waits_for_a_transaction_whose_marker_is_damaged(damaged: Path) -> None:
    options = parse_options(BATCH, {"path": str(damaged), "subscribe": "t"})
    with (
        closing(FolderAccess(options)) as access,
        pytest.raises(CorruptSegmentError, match="may hide whether the transaction"),
    ):
        list(access.read(OffsetRange(TP, 0, 4)))


def test_a_stream_stalls_in_silence_at_damage_that_may_hide_a_marker(
    damaged: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It returns the records before the transaction, then fails."""
    given = {"startingOffsets": "earliest"}
    reader = StreamReader(ranges(STREAM, damaged, **given))
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert end["t"] == {"0": 1}
    with pytest.raises(DataLossError, match=BLOCKED):
        reader.latestOffset(end, ReadAllAvailable())
    reader.stop()
    reader = StreamReader(ranges(STREAM, damaged, **given, failOnDataLoss="false"))
    for _ in range(3):
        assert reader.latestOffset(end, ReadAllAvailable()) is end
    assert len(re.findall(BLOCKED, caplog.text)) == 1
    reader.stop()
