"""How many bytes of a folder a batch reads, with and without options that bound it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import strandlog

pytest.importorskip("pyspark", reason="Spark tests need the spark extra")

from strandlog.record.builder import build_batch
from strandlog.spark.options import BATCH, parse_options
from strandlog.spark.schema import record_schema
from strandlog.spark.source import folder_access
from strandlog.spark.source.access import open_access
from strandlog.spark.source.decoder import Decoder
from strandlog.spark.source.reader import BatchReader, RangePartition, RangeReader

START_MS = 1_700_000_000_000
BATCHES, RECORDS, PARTITIONS = 200, 10, 4


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Four partitions of 200 batches; the batches are a second apart."""
    monkeypatch.setattr(folder_access, "READ_BYTES", 8 * 1024)
    with strandlog.open(tmp_path) as log:
        log.create_topic("t", PARTITIONS)
        for partition in range(PARTITIONS):
            target = log.broker._catalog.log("t", partition)
            for number in range(BATCHES):
                data = build_batch(START_MS + 1000 * number, [b"x" * 100] * RECORDS)
                log.broker._appender.append(target, data)
    yield tmp_path


def bytes_read(folder: Path, **given: str) -> int:
    """The bytes that the tasks of a batch read from files."""
    options = parse_options(BATCH, {"path": str(folder), **given})
    decoder = Decoder(options, record_schema(options))
    tasks = BatchReader(RangeReader(options, decoder, cores=2)).partitions()
    with closing(open_access(options, in_task=True)) as access:
        ranges = [task.wanted for task in tasks if isinstance(task, RangePartition)]
        return sum(len(chunk.data) for wanted in ranges for chunk in access.read(wanted))


def test_options_cut_the_bytes_that_a_batch_reads(folder: Path) -> None:
    everything = bytes_read(folder, subscribe="t")
    assert everything > PARTITIONS * BATCHES * RECORDS * 100
    one_partition = bytes_read(folder, assign=json.dumps({"t": [2]}))
    assert one_partition == pytest.approx(everything / PARTITIONS, rel=0.01)
    last_tenth = START_MS + 1000 * BATCHES * 9 // 10
    by_time = bytes_read(folder, subscribe="t", startingTimestamp=str(last_tenth))
    assert by_time < everything / 5, "a tenth, and the chunk around it"
    ends = {str(number): 100 for number in range(PARTITIONS)}
    by_offset = bytes_read(folder, subscribe="t", endingOffsets=json.dumps({"t": ends}))
    assert by_offset < everything / 5, "a twentieth, and the chunk around it"
    both = bytes_read(folder, assign=json.dumps({"t": [2]}), startingTimestamp=str(last_tenth))
    assert both == pytest.approx(by_time / PARTITIONS, rel=0.01)
