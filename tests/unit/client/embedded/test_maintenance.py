"""Maintenance runs inside sends and polls; programs need not call anything."""

from __future__ import annotations

import pytest
from tests.support.embedded_harness import Desk, member, numbered


def files_of(desk: Desk, topic: str) -> list[str]:
    return [path for path in desk.disk.contents() if f"/{topic}-0/" in path]


@pytest.mark.parametrize("way", ["send", "send with a time", "batch", "poll", "upkeep"])
def test_sends_flush_records_that_are_due(desk: Desk, way: str) -> None:
    desk.log.create_topic("t")
    desk.log.create_topic("other", config={"flush.ms": "1h"})
    desk.log.producer(acks=1).send("t", b"x")
    desk.clock.advance(900)
    do(desk, way)
    assert desk.log.broker.catalog.log("t", 0).unflushed_count == 1
    desk.clock.advance(100)
    do(desk, way)
    assert desk.log.broker.catalog.log("t", 0).unflushed_count == 0
    desk.lose_power()
    assert desk.values("t") == [b"x"]


def do(desk: Desk, way: str) -> None:
    producer = desk.log.producer(acks=0)
    match way:
        case "send":
            producer.send("other", b"")
        case "send with a time":
            producer.send("other", b"", timestamp=desk.clock.now_ms())
        case "batch":
            producer.send_batch("other", [b""])
        case "poll":
            desk.log.consumer(["other"]).poll()
        case "upkeep":
            desk.log.run_maintenance()


def test_a_program_that_only_sends_keeps_within_its_retention(desk: Desk) -> None:
    desk.log.create_topic(
        "t", config={"segment.bytes": 4096, "retention.bytes": 20_000, "retention.ms": "1h"}
    )
    producer = desk.log.producer(acks=0)
    for _ in range(2_000):
        producer.send("t", bytes(200))
        desk.clock.advance(1_000)
    (info,) = desk.log.describe_topic("t").partitions
    assert info.size_bytes < 20_000 + 4096 + 300 * 269, "at most one interval over"
    size = sum(len(data) for path, data in desk.disk.contents().items() if "/t-0/" in path)
    assert size < 4 * info.size_bytes, "and the files really go"
    assert info.end_offset == 2_000


def test_a_compacted_topic_stays_small(desk: Desk) -> None:
    desk.log.create_topic("t", config={"cleanup.policy": "compact", "segment.bytes": 4096})
    producer = desk.log.producer()
    for number in range(1_000):
        producer.send("t", b"%d" % number + bytes(100), b"k%d" % (number % 5))
        desk.clock.advance(1_000)
    (info,) = desk.log.describe_topic("t").partitions
    assert info.end_offset == 1_000
    assert info.size_bytes < 25_000
    values = [value.rstrip(b"\0") for value in desk.values("t") if value]
    assert values[-5:] == numbered(1_000)[-5:]


def test_the_table_of_offsets_is_compacted(desk: Desk) -> None:
    desk.settings = {"offsets.topic.segment.bytes": 4096}
    desk.log.create_topic("t")
    desk.send("t", *numbered(500))
    consumer = member(desk)
    while consumer.poll(max_records=1):
        consumer.commit()
        desk.clock.advance(1_000)
    (info,) = desk.log.describe_topic("__consumer_offsets").partitions
    assert info.end_offset > 500
    assert info.size_bytes < 12_000
    assert consumer.committed("t", 0) == 500
    desk.kill()
    assert member(desk).poll() == []


def test_removed_files_wait_for_readers_that_have_them_open(desk: Desk) -> None:
    desk.log.create_topic(
        "t", config={"segment.bytes": 1024, "retention.bytes": 0, "file.delete.delay.ms": "30s"}
    )
    desk.send("t", *(bytes(400) for _ in range(10)))
    desk.log.enforce_retention("t")
    assert [path for path in files_of(desk, "t") if path.endswith(".log.deleted")]
    desk.advance(29_000)
    assert [path for path in files_of(desk, "t") if path.endswith(".deleted")]
    desk.advance(3_000)
    assert not [path for path in files_of(desk, "t") if path.endswith(".deleted")]


def test_close_removes_files_that_wait_for_removal(desk: Desk) -> None:
    desk.log.create_topic("t")
    desk.send("t", b"x")
    desk.log.delete_topic("t")
    desk.log.close()
    assert not [path for path in desk.disk.contents() if "/t-0" in path]
