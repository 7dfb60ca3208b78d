"""Maintenance runs inside sends and polls; programs need not call anything."""

from __future__ import annotations

import pytest
from tests.support.embedded_harness import EmbeddedHarness, member, numbered


def files_of(embedded: EmbeddedHarness, topic: str) -> list[str]:
    return [path for path in embedded.disk.contents() if f"/{topic}-0/" in path]


@pytest.mark.parametrize("way", ["send", "send with a time", "batch", "poll", "run_maintenance"])
def test_sends_flush_records_that_are_due(embedded: EmbeddedHarness, way: str) -> None:
    embedded.log.create_topic("t")
    embedded.log.create_topic("other", config={"flush.ms": "1h"})
    embedded.log.producer(acks=1).send("t", b"x")
    embedded.clock.advance(900)
    do(embedded, way)
    assert embedded.log.broker._catalog.log("t", 0).unflushed_count == 1
    embedded.clock.advance(100)
    do(embedded, way)
    assert embedded.log.broker._catalog.log("t", 0).unflushed_count == 0
    embedded.lose_power()
    assert embedded.values("t") == [b"x"]


def do(embedded: EmbeddedHarness, way: str) -> None:
    producer = embedded.log.producer(acks=0)
    match way:
        case "send":
            producer.send("other", b"")
        case "send with a time":
            producer.send("other", b"", timestamp=embedded.clock.now_ms())
        case "batch":
            producer.send_batch("other", [b""])
        case "poll":
            embedded.log.consumer(["other"]).poll()
        case "run_maintenance":
            embedded.log.run_maintenance()


def test_a_program_that_only_sends_keeps_within_its_retention(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic(
        "t", config={"segment.bytes": 4096, "retention.bytes": 20_000, "retention.ms": "1h"}
    )
    producer = embedded.log.producer(acks=0)
    for _ in range(2_000):
        producer.send("t", bytes(200))
        embedded.clock.advance(1_000)
    (info,) = embedded.log.describe_topic("t").partitions
    assert info.size_bytes < 20_000 + 4096 + 300 * 269, "at most one interval over"
    size = sum(len(data) for path, data in embedded.disk.contents().items() if "/t-0/" in path)
    assert size < 4 * info.size_bytes, "and the files really go"
    assert info.end_offset == 2_000


def test_a_compacted_topic_stays_small(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", config={"cleanup.policy": "compact", "segment.bytes": 4096})
    producer = embedded.log.producer()
    for number in range(1_000):
        producer.send("t", b"%d" % number + bytes(100), b"k%d" % (number % 5))
        embedded.clock.advance(1_000)
    (info,) = embedded.log.describe_topic("t").partitions
    assert info.end_offset == 1_000
    assert info.size_bytes < 25_000
    values = [value.rstrip(b"\0") for value in embedded.values("t") if value]
    assert values[-5:] == numbered(1_000)[-5:]


def test_the_table_of_offsets_is_compacted(embedded: EmbeddedHarness) -> None:
    embedded.settings = {"offsets.topic.segment.bytes": 4096}
    embedded.log.create_topic("t")
    embedded.send("t", *numbered(500))
    consumer = member(embedded)
    while consumer.poll(max_records=1):
        consumer.commit()
        embedded.clock.advance(1_000)
    (info,) = embedded.log.describe_topic("__consumer_offsets").partitions
    assert info.end_offset > 500
    assert info.size_bytes < 12_000
    assert consumer.committed("t", 0) == 500
    embedded.kill()
    assert member(embedded).poll() == []


def test_removed_files_wait_for_readers_that_have_them_open(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic(
        "t", config={"segment.bytes": 1024, "retention.bytes": 0, "file.delete.delay.ms": "30s"}
    )
    embedded.send("t", *(bytes(400) for _ in range(10)))
    embedded.log.enforce_retention("t")
    assert [path for path in files_of(embedded, "t") if path.endswith(".log.deleted")]
    embedded.advance(29_000)
    assert [path for path in files_of(embedded, "t") if path.endswith(".deleted")]
    embedded.advance(3_000)
    assert not [path for path in files_of(embedded, "t") if path.endswith(".deleted")]


def test_close_removes_files_that_wait_for_removal(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    embedded.send("t", b"x")
    embedded.log.delete_topic("t")
    embedded.log.close()
    assert not [path for path in embedded.disk.contents() if "/t-0" in path]
