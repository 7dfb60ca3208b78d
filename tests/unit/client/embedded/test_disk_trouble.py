"""A full or failing disk: the errors, what still works, and the recovery."""

from __future__ import annotations

import errno

import pytest
from tests.support.embedded_harness import EmbeddedHarness, drain, member, numbered

from strandlog import StorageError, TopicPartition
from strandlog.errors import DiskFullError, PartialAppendError
from strandlog.testing.disk.faults import Operation

MIB = 1024 * 1024


def fill_up(embedded: EmbeddedHarness, topic: str = "t") -> int:
    """Send until the disk is full; returns how many were acknowledged."""
    producer = embedded.log.producer()
    sent = 0
    with pytest.raises(DiskFullError):
        while True:
            producer.send(topic, bytes(MIB // 8))
            sent += 1
    return sent


def test_sends_are_rejected_before_the_disk_is_full(embedded: EmbeddedHarness) -> None:
    embedded.settings = {"log.min.free.bytes": MIB}
    embedded.disk.capacity_bytes = 4 * MIB
    embedded.log.create_topic("t")
    embedded.log.create_topic("other")
    sent = fill_up(embedded)
    assert embedded.disk.free_bytes("data") < MIB
    with pytest.raises(DiskFullError, match=r"rejected below 1048576 \(log.min.free.bytes\)"):
        embedded.log.producer(acks=0).send_batch("other", [b"x"])
    consumer = member(embedded)
    assert len(drain(consumer)) == sent, "reading works"
    assert consumer.commit() == {TopicPartition("t", 0): sent}, "and so do groups"
    consumer.close()
    embedded.log.create_topic("new")
    embedded.log.delete_records("t", 0, sent)
    embedded.log.delete_topic("t")
    embedded.advance(61_000)
    assert embedded.disk.free_bytes("data") > 3 * MIB
    embedded.send("other", b"works again")
    assert embedded.values("other") == [b"works again"]


def test_retention_frees_space(embedded: EmbeddedHarness) -> None:
    embedded.settings = {"log.min.free.bytes": MIB}
    embedded.disk.capacity_bytes = 4 * MIB
    embedded.log.create_topic("t", config={"segment.bytes": MIB // 2})
    sent = fill_up(embedded)
    embedded.log.alter_topic("t", {"retention.bytes": MIB, "file.delete.delay.ms": 0})
    assert embedded.log.enforce_retention("t") > 0
    embedded.advance(1_000)
    assert embedded.log.producer().send("t", b"next").offset == sent


def test_a_full_disk_keeps_its_records(embedded: EmbeddedHarness) -> None:
    embedded.settings = {"log.min.free.bytes": 0}
    embedded.disk.capacity_bytes = 2 * MIB
    embedded.log.create_topic("t")
    sent = fill_up(embedded)
    assert len(drain(embedded.log.consumer(["t"]))) == sent
    embedded.disk.capacity_bytes = 4 * MIB
    embedded.advance(6_000)
    assert embedded.log.producer().send("t", b"goes on").offset == sent
    embedded.lose_power()
    records = drain(embedded.log.consumer(["t"]))
    assert [record.offset for record in records] == list(range(sent + 1))


def test_a_disk_that_fills_up_inside_a_batch_over_partitions(embedded: EmbeddedHarness) -> None:
    embedded.settings = {"log.min.free.bytes": 0}
    embedded.disk.capacity_bytes = MIB
    embedded.log.create_topic("t", 3, {"max.message.bytes": MIB})
    producer = embedded.log.producer()
    with pytest.raises(PartialAppendError, match="already appended: t-"):
        for _ in range(100):
            producer.send_batch("t", [bytes(20_000)] * 30)
    embedded.disk.capacity_bytes = None
    for number, info in enumerate(embedded.log.describe_topic("t").partitions):
        assert info.end_offset % 10 == 0, f"a batch of partition {number} was kept in part"


def test_a_failed_fsync_stops_the_partition_until_it_is_repaired(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", 2)
    producer = embedded.log.producer(acks="all")
    producer.send("t", b"before", partition=0)
    embedded.disk.fail_on("sync", "/t-0/")
    with pytest.raises(StorageError, match="could not sync"):
        producer.send("t", b"unsure", partition=0)
    for _ in range(3):
        with pytest.raises(StorageError, match="t-0 rejects records"):
            producer.send("t", b"refused", partition=0)
    producer.send("t", b"fine", partition=1)
    assert [r.value for r in drain(embedded.log.consumer(["t"])) if r.partition == 0] == [b"before"]
    embedded.clock.advance(5_000)
    assert producer.send("t", b"after", partition=0).offset == 2, "a send mends on its way"
    embedded.lose_power()
    assert embedded.values("t") == [b"before", b"unsure", b"after", b"fine"]


def test_nothing_acknowledged_is_lost_whichever_fsync_fails() -> None:
    for skip in range(6):
        embedded = EmbeddedHarness()
        embedded.log.create_topic("t", config={"segment.bytes": 1024})
        producer = embedded.log.producer()
        embedded.disk.fail_on("sync", "/t-0/", skip=skip)
        acknowledged = []
        for value in numbered(30):
            try:
                producer.send("t", value + bytes(200))
                acknowledged.append(value)
            except StorageError:
                embedded.clock.advance(1_000)
        assert len(acknowledged) >= 20
        embedded.lose_power()
        found = [(value or b"").rstrip(b"\0") for value in embedded.values("t")]
        assert [value for value in found if value in acknowledged] == acknowledged


def test_a_failing_disk_fails_every_send(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    producer = embedded.log.producer()
    embedded.disk.fail_on("sync", "/t-0/", count=10**6)
    for _ in range(50):
        with pytest.raises(StorageError):
            producer.send("t", b"x")
        embedded.clock.advance(1_000)
    assert any("could not sync" in problem for problem in embedded.log.problems)
    embedded.disk.clear_faults()
    embedded.clock.advance(5_000)
    producer.send("t", b"at last")


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("operation", ["append", "create", "sync", "sync_dir", "overwrite"])
def test_a_failed_commit_changes_nothing(
    embedded: EmbeddedHarness, operation: Operation, error: int
) -> None:
    embedded.log.create_topic("t")
    embedded.send("t", *numbered(6))
    consumer = member(embedded)
    consumer.poll(max_records=2)
    consumer.commit()
    consumer.poll(max_records=2)
    embedded.disk.fail_on(operation, "__consumer_offsets", error=error)
    try:
        consumer.commit()
    except StorageError:
        assert consumer.committed("t", 0) == 2
    embedded.disk.clear_faults()
    embedded.advance(6_000)
    consumer.poll(max_records=1)
    assert consumer.commit() == {TopicPartition("t", 0): 5}
    embedded.lose_power()
    assert [record.offset for record in member(embedded).poll()] == [5]


def test_a_group_that_could_not_be_stored_rebalances_later(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", 2)
    embedded.send("t", *numbered(4))
    first = member(embedded)
    embedded.disk.fail_on("append", "__consumer_offsets")
    with pytest.raises(StorageError):
        member(embedded)
    second = member(embedded)
    first.poll()
    assert len(first.assignment) == len(second.assignment) == 1
    assert len(embedded.log.describe_group("g").members) == 2


def test_a_failed_read_can_be_repeated(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    embedded.send("t", *numbered(6))
    consumer = embedded.log.consumer(["t"])
    embedded.disk.fail_on("read", "/t-0/")
    with pytest.raises(StorageError, match="could not read"):
        consumer.poll()
    assert [record.value for record in consumer.poll()] == numbered(6)
