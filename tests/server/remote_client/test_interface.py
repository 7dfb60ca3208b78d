"""A program written against `client/api.py` behaves the same on a folder and over the wire."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.support.broker_process import emptied
from tests.support.server import RunningBroker

import strandlog
from strandlog import InvalidGroupError, TopicPartition
from strandlog.client.api import OpenLog, ReadableLog
from strandlog.clock import SystemClock

BASE_MS = SystemClock().now_ms() - 60_000  # nothing that retention would take away


@pytest.fixture(params=["folder", "wire"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> OpenLog:
    if request.param == "folder":
        return strandlog.open(tmp_path / "data")
    broker: RunningBroker = request.getfixturevalue("broker")
    return emptied(strandlog.connect(broker.address))


def seen(log: ReadableLog, topic: str) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """Everything in a topic, by place."""
    found = []
    with log.consumer([topic]) as consumer:
        while records := consumer.poll():
            found += [(r.partition, r.offset, r.key, r.value) for r in records]
    return sorted(found)


def test_the_same_program(log: OpenLog) -> None:
    with log:
        assert log.topics() == []
        log.create_topic("t", 2, {"segment.bytes": "1MiB"})
        with log.producer() as producer:
            meta = producer.send("t", b"v", b"k", headers=[("h", b"1")], timestamp=BASE_MS)
            assert (meta.topic, meta.offset, meta.timestamp) == ("t", 0, BASE_MS)
            metas = producer.send_batch(
                "t",
                [
                    {
                        "value": b"%d" % number,
                        "partition": number % 2,
                        "timestamp": BASE_MS + number,
                    }
                    for number in range(1, 9)
                ],
            )
            assert len(metas) == 8
            producer.flush()
        assert len(seen(log, "t")) == 9

        with log.consumer(["t"], group="g") as consumer:
            assert sum(len(consumer.poll()) for _ in range(3)) == 9
            assert consumer.poll() == []
            assert consumer.assignment == [TopicPartition("t", 0), TopicPartition("t", 1)]
            ends = {tp: consumer.position(*tp) for tp in consumer.assignment}
            assert consumer.commit() == ends
            assert log.describe_group("g").state == "Stable"
            with pytest.raises(TypeError, match="a timestamp must be an int"):
                consumer.seek_to_time(datetime(2026, 11, 1, tzinfo=UTC))  # type: ignore[arg-type]
            consumer.seek_to_time(BASE_MS + 7)
            assert sorted(record.value or b"" for record in consumer.poll() + consumer.poll()) == [
                b"7",
                b"8",
            ]
        assert log.groups() == ["g"]
        assert {tp: held.offset for tp, held in log.committed_offsets("g").items()} == ends

        log.commit_offsets("g", {TopicPartition("t", 1): 1})
        with log.consumer(group="g") as consumer:
            consumer.assign([("t", 1)])
            assert consumer.position("t", 1) == consumer.committed("t", 1) == 1
        log.delete_group("g")
        assert log.groups() == []

        info = log.alter_topic("t", {"segment.bytes": None, "retention.ms": "1d"}, 3)
        assert (info.config, len(info.partitions)) == ({"retention.ms": 86_400_000}, 3)
        log.delete_records("t", 0, 1)
        assert log.describe_topic("t").partitions[0].start_offset == 1
        assert log.topic_settings("t")["cleanup.policy"] == ("delete",)
        log.delete_topic("t")
        with pytest.raises(strandlog.TopicNotFoundError):
            log.describe_topic("t")


@pytest.mark.parametrize("offset", [-1, -2, -1001])
def test_a_negative_offset_does_not_delete_all_records(log: OpenLog, offset: int) -> None:
    """A remote log passed it to the broker, which takes -1 for all visible records."""
    with log:
        log.create_topic("t")
        log.producer().send_batch("t", [b"1", b"2", b"3"])
        log.delete_records("t", 0, 1)
        words = rf"offset {offset} is outside t-0 \[1, 3\); to delete all records, pass .* 3$"
        with pytest.raises(strandlog.OffsetOutOfRangeError, match=words):
            log.delete_records("t", 0, offset)
        assert log.describe_topic("t").partitions[0].start_offset == 1
        log.delete_records("t", 0, 3)
        assert log.describe_topic("t").partitions[0].start_offset == 3


def test_a_commit_without_a_group_does_not_talk_of_a_group_named_none(log: OpenLog) -> None:
    with log:
        log.create_topic("t")
        with log.consumer(["t"]) as consumer, pytest.raises(InvalidGroupError) as refused:
            consumer.commit()
        assert str(refused.value) == "commit requires a group; pass group=… to consumer()"


def test_keys_go_to_the_same_partitions(tmp_path: Path, broker: RunningBroker) -> None:
    pairs = [(b"key-%d" % number, b"v") for number in range(200)]
    with strandlog.open(tmp_path / "data") as folder, strandlog.connect(broker.address) as remote:
        logs: list[OpenLog] = [folder, emptied(remote)]
        for each in logs:
            each.create_topic("t", 5)
            with each.producer() as producer:
                producer.send_batch("t", pairs)
        assert seen(logs[0], "t") == seen(logs[1], "t")
