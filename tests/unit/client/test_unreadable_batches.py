"""An undecodable batch: every reader names it and can skip it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.log_builders import START_MS, batch
from tests.support.undecodable_batches import BAD_RECORDS, raw_batch

import strandlog
from strandlog.errors import InvalidRecordError, InvalidSettingError
from strandlog.record.codecs import Codec


@pytest.fixture(params=["open", "read"])
def poisoned(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A log with a good batch, one that cannot be decoded, and a good one, twice."""
    with strandlog.open(tmp_path) as log:
        log.create_topic("t")
        target = log.broker._catalog.log("t", 0)
        for data in [batch(b"a", b"b"), POISON, batch(b"c"), POISON, POISON, batch(b"d")]:
            log.broker._appender.append(target, data)
        target.flush()
        if request.param == "open":
            yield log
    if request.param == "read":
        with strandlog.read(tmp_path) as log:
            yield log


POISON = raw_batch(b"no gzip at all", 3, Codec.GZIP)
FIRST, LAST = 2, 4


@pytest.mark.parametrize("way", ["poll", "poll_arrow"])
def test_a_poll_names_the_batch_and_where_to_read_on(poisoned: Any, way: str) -> None:
    with poisoned.consumer(["t"]) as consumer:
        poll = getattr(consumer, way)
        assert len(poll()) == 2, "what lies in front of it is not hidden"
        for _ in range(2):
            with pytest.raises(
                strandlog.UndecodableBatchError, match=r"t-0.*2 to 4.*gzip"
            ) as caught:
                poll()
        error = caught.value
        assert (error.topic, error.partition) == ("t", 0)
        assert (error.offset, error.last_offset, error.resume_offset) == (FIRST, LAST, LAST + 1)
        consumer.seek("t", 0, LAST + 1)
        assert len(poll()) == 1


@pytest.mark.parametrize("way", ["poll", "poll_arrow"])
def test_a_consumer_that_skips_gets_everything_else_and_reports(
    poisoned: Any, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    with poisoned.consumer(["t"], on_unreadable="skip") as consumer:
        found = 0
        with caplog.at_level(logging.WARNING):
            for _ in range(10):
                found += len(getattr(consumer, way)(max_records=2))
        assert found == 4
        ranges = [(each.first_offset, each.last_offset) for each in consumer.skipped]
        assert ranges == [(2, 4), (6, 8), (9, 11)]
        assert all("gzip" in each.reason for each in consumer.skipped)
        assert "skipped offsets 6 to 8 of t-0" in caplog.text
        assert consumer.position("t", 0) == 13


def test_a_seek_into_an_undecodable_batch_skips_only_the_rest_of_it(poisoned: Any) -> None:
    with poisoned.consumer(["t"], on_unreadable="skip") as consumer:
        consumer.seek("t", 0, 3)
        assert [record.value for record in consumer.poll(1)] == [b"c"]
        assert [(one.first_offset, one.last_offset) for one in consumer.skipped] == [(3, 4)]


def test_a_search_by_time_passes_over_it(poisoned: Any) -> None:
    with poisoned.consumer(["t"]) as consumer:
        consumer.seek("t", 0, 5)
        consumer.seek_to_time(START_MS)
        assert consumer.position("t", 0) == 0


def test_an_unknown_value_for_on_unreadable_raises(poisoned: Any) -> None:
    with pytest.raises(InvalidSettingError, match="raise, skip"):
        poisoned.consumer(["t"], on_unreadable="ignore")


def test_a_topic_that_validates_records_rejects_undecodable_batches(tmp_path: Path) -> None:
    with strandlog.open(tmp_path) as log:
        log.create_topic("t", config={"record.validation": "records"})
        target = log.broker._catalog.log("t", 0)
        for why, data in BAD_RECORDS.items():
            with pytest.raises(InvalidRecordError):
                log.broker._appender.append(target, data)
                raise AssertionError(why)
        assert target.log_end_offset == 0
        with log.producer() as producer:
            producer.send("t", b"v")
        with log.consumer(["t"]) as consumer:
            assert [record.value for record in consumer.poll()] == [b"v"]


@pytest.mark.parametrize("why", BAD_RECORDS)
def test_every_kind_of_undecodable_batch_is_skipped(tmp_path: Path, why: str) -> None:
    with strandlog.open(tmp_path) as log:
        log.create_topic("t")
        target = log.broker._catalog.log("t", 0)
        for data in (batch(b"before"), BAD_RECORDS[why], batch(b"after")):
            log.broker._appender.append(target, data)
        for way in ("poll", "poll_arrow"):
            with log.consumer(["t"], on_unreadable="skip") as consumer:
                found = sum(len(getattr(consumer, way)()) for _ in range(3))
                assert (found, len(consumer.skipped)) == (2, 1), way


@pytest.mark.parametrize("way", ["open", "read"])
@pytest.mark.parametrize("which", [1, -1], ids=["sealed", "last"])
def test_a_segment_that_lost_its_end_does_not_stop_a_consumer_that_skips(
    tmp_path: Path, way: str, which: int
) -> None:
    count, size = 200, 4096
    with strandlog.open(tmp_path) as log:
        log.create_topic("t", config={"segment.bytes": str(size), "retention.ms": "-1"})
        with log.producer(acks="all") as producer:
            for number in range(count):
                producer.send("t", b"%050d" % number)
    path = sorted((tmp_path / "t-0").glob("*.log"))[which]
    path.write_bytes(path.read_bytes()[:1000])
    with (
        getattr(strandlog, way)(tmp_path) as log,
        log.consumer(["t"], on_unreadable="skip") as consumer,
    ):
        values = [record.value for _ in range(count) for record in consumer.poll()]
        lost = [
            offset
            for skipped in consumer.skipped
            for offset in range(skipped.first_offset, skipped.last_offset + 1)
        ]
    assert lost
    assert values == [b"%050d" % n for n in range(count) if n not in lost]


@pytest.mark.parametrize("how", ["deleted", "cut between two batches"])
def test_a_read_only_log_does_not_pass_over_a_lost_segment_in_silence(
    tmp_path: Path, how: str
) -> None:
    with strandlog.open(tmp_path) as log:
        log.create_topic("t", config={"segment.bytes": "4096", "retention.ms": "-1"})
        with log.producer(acks="all") as producer:
            for number in range(200):
                producer.send("t", b"%050d" % number)
    lost, behind = sorted((tmp_path / "t-0").glob("*.log"))[1:3]
    first, end = int(lost.stem), int(behind.stem)
    if how == "deleted":
        lost.unlink()
    else:
        raw = lost.read_bytes()
        lost.write_bytes(raw[: len(raw) - len(raw) // (end - first)])  # batches of one size
        first = end - 1
    with strandlog.read(tmp_path) as log:
        consumer = log.consumer(["t"])
        while (position := consumer.position("t", 0)) < first:
            assert consumer.poll(), f"nothing at {position}"
        with pytest.raises(strandlog.CorruptSegmentError, match="is missing") as caught:
            consumer.poll()
        assert caught.value.resume_offset == end
        skipping = log.consumer(["t"], on_unreadable="skip")
        offsets = [record.offset for _ in range(200) for record in skipping.poll()]
        assert offsets == [n for n in range(200) if not first <= n < end]
        assert [(s.first_offset, s.last_offset) for s in skipping.skipped] == [(first, end - 1)]
