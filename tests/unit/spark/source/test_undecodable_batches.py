"""A batch that cannot be decoded ends a query with its name, or is left out with a warning."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.log_builders import START_MS, batch
from tests.support.undecodable_batches import BAD_RECORDS, raw_batch

import strandlog
from strandlog.errors import CorruptRecordError, DataLossError
from strandlog.model import TopicPartition
from strandlog.record.codecs import Codec

pytest.importorskip("pyspark", reason="Spark tests need the spark extra")

from strandlog.client.readonly.raw_range import RawChunk
from strandlog.spark.options import BATCH, parse_options
from strandlog.spark.schema import record_schema
from strandlog.spark.source.decoder import Decoder
from strandlog.spark.source.planning import OffsetRange
from strandlog.spark.source.reader import RangeReader

TP = TopicPartition("t", 0)
POISON = raw_batch(b"no gzip at all", 3, Codec.GZIP)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Offsets 0, 1: good; 2 to 4 and 5 to 7: undecodable; 8: good."""
    with strandlog.open(tmp_path) as log:
        log.create_topic("t")
        target = log.broker._catalog.log("t", 0)
        for data in (batch(b"a", b"b"), POISON, POISON, batch(b"c")):
            log.broker._appender.append(target, data)
    yield tmp_path


def reader(folder: Path, **given: str) -> RangeReader:
    options = parse_options(BATCH, {"path": str(folder), "subscribe": "t", **given})
    return RangeReader(options, Decoder(options, record_schema(options)), 2)


def values(found: Iterator[object]) -> list[bytes]:
    return [value for table in found for value in table.column("value").to_pylist()]  # type: ignore[attr-defined]


def test_an_undecodable_batch_fails_the_query_and_the_error_says_what_to_do(folder: Path) -> None:
    found = reader(folder).read(OffsetRange(TP, 0, 9))
    with pytest.raises(DataLossError, match=r"t-0.*2 to 4.*gzip.*failOnDataLoss=false"):
        values(found)


def test_without_fail_on_data_loss_an_undecodable_batch_is_skipped_with_a_warning(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        found = values(reader(folder, failOnDataLoss="false").read(OffsetRange(TP, 0, 9)))
    assert found == [b"a", b"b", b"c"]
    assert "offsets 2 to 4 cannot be decoded" in caplog.text
    assert "offsets 5 to 7 cannot be decoded" in caplog.text


@pytest.mark.parametrize("why", BAD_RECORDS)
def test_every_kind_of_undecodable_batch_is_skipped(tmp_path: Path, why: str) -> None:
    with strandlog.open(tmp_path) as log:
        log.create_topic("t")
        target = log.broker._catalog.log("t", 0)
        for data in (batch(b"before"), BAD_RECORDS[why], batch(b"after")):
            log.broker._appender.append(target, data)
        end = target.log_end_offset
    found = reader(tmp_path, failOnDataLoss="false").read(OffsetRange(TP, 0, end))
    assert values(found) == [b"before", b"after"]


def test_a_damaged_batch_is_not_skipped() -> None:
    damaged = bytearray(batch(b"a", timestamp=START_MS))
    damaged[-1] ^= 1
    options = parse_options(BATCH, {"path": "unused", "subscribe": "t"})
    decoder = Decoder(options, record_schema(options))
    left_out: list[object] = []
    with pytest.raises(CorruptRecordError, match="checksum"):
        list(decoder.decode(RawChunk(damaged, ()), OffsetRange(TP, 0, 1), left_out.append))
    assert left_out == []
