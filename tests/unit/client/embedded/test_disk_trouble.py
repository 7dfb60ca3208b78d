"""A full or failing disk: the errors, what still works, and the recovery."""

from __future__ import annotations

import errno

import pytest
from tests.support.embedded_harness import Desk, drain, member, numbered

from strandlog import StorageError, TopicPartition
from strandlog.errors import DiskFullError
from strandlog.testing.disk.faults import Operation

MIB = 1024 * 1024


def fill_up(desk: Desk, topic: str = "t") -> int:
    """Send until the disk is full; returns how many were acknowledged."""
    producer = desk.log.producer()
    sent = 0
    with pytest.raises(DiskFullError):
        while True:
            producer.send(topic, bytes(MIB // 8))
            sent += 1
    return sent


def test_sends_are_rejected_before_the_disk_is_full(desk: Desk) -> None:
    desk.settings = {"log.min.free.bytes": MIB}
    desk.disk.capacity_bytes = 4 * MIB
    desk.log.create_topic("t")
    desk.log.create_topic("other")
    sent = fill_up(desk)
    assert desk.disk.free_bytes("data") < MIB
    with pytest.raises(DiskFullError, match=r"rejected below 1048576 \(log.min.free.bytes\)"):
        desk.log.producer(acks=0).send_batch("other", [b"x"])
    consumer = member(desk)
    assert len(drain(consumer)) == sent, "reading works"
    assert consumer.commit() == {TopicPartition("t", 0): sent}, "and so do groups"
    consumer.close()
    desk.log.create_topic("new")
    desk.log.delete_records("t", 0, sent)
    desk.log.delete_topic("t")
    desk.advance(61_000)
    assert desk.disk.free_bytes("data") > 3 * MIB
    desk.send("other", b"works again")
    assert desk.values("other") == [b"works again"]


def test_retention_frees_space(desk: Desk) -> None:
    desk.settings = {"log.min.free.bytes": MIB}
    desk.disk.capacity_bytes = 4 * MIB
    desk.log.create_topic("t", config={"segment.bytes": MIB // 2})
    sent = fill_up(desk)
    desk.log.alter_topic("t", {"retention.bytes": MIB, "file.delete.delay.ms": 0})
    assert desk.log.enforce_retention("t") > 0
    desk.advance(1_000)
    assert desk.log.producer().send("t", b"next").offset == sent


def test_a_full_disk_keeps_its_records(desk: Desk) -> None:
    desk.settings = {"log.min.free.bytes": 0}
    desk.disk.capacity_bytes = 2 * MIB
    desk.log.create_topic("t")
    sent = fill_up(desk)
    assert len(drain(desk.log.consumer(["t"]))) == sent
    desk.disk.capacity_bytes = 4 * MIB
    desk.advance(6_000)
    assert desk.log.producer().send("t", b"goes on").offset == sent
    desk.lose_power()
    records = drain(desk.log.consumer(["t"]))
    assert [record.offset for record in records] == list(range(sent + 1))


def test_a_disk_that_fills_up_inside_a_batch_over_partitions(desk: Desk) -> None:
    desk.settings = {"log.min.free.bytes": 0}
    desk.disk.capacity_bytes = MIB
    desk.log.create_topic("t", 3, {"max.message.bytes": MIB})
    producer = desk.log.producer()
    with pytest.raises(DiskFullError):
        for _ in range(100):
            producer.send_batch("t", [bytes(20_000)] * 30)
    desk.disk.capacity_bytes = None
    for number, info in enumerate(desk.log.describe_topic("t").partitions):
        assert info.end_offset % 10 == 0, f"a batch of partition {number} was kept in part"


def test_a_failed_fsync_stops_the_partition_until_it_is_repaired(desk: Desk) -> None:
    desk.log.create_topic("t", 2)
    producer = desk.log.producer(acks="all")
    producer.send("t", b"before", partition=0)
    desk.disk.fail_on("sync", "/t-0/")
    with pytest.raises(StorageError, match="could not sync"):
        producer.send("t", b"unsure", partition=0)
    for _ in range(3):
        with pytest.raises(StorageError, match="t-0 stopped taking records"):
            producer.send("t", b"refused", partition=0)
    producer.send("t", b"fine", partition=1)
    assert [r.value for r in drain(desk.log.consumer(["t"])) if r.partition == 0] == [b"before"]
    desk.clock.advance(5_000)
    assert producer.send("t", b"after", partition=0).offset == 2, "a send mends on its way"
    desk.lose_power()
    assert desk.values("t") == [b"before", b"unsure", b"after", b"fine"]


def test_nothing_acknowledged_is_lost_whichever_fsync_fails() -> None:
    for skip in range(6):
        desk = Desk()
        desk.log.create_topic("t", config={"segment.bytes": 1024})
        producer = desk.log.producer()
        desk.disk.fail_on("sync", "/t-0/", skip=skip)
        acknowledged = []
        for value in numbered(30):
            try:
                producer.send("t", value + bytes(200))
                acknowledged.append(value)
            except StorageError:
                desk.clock.advance(1_000)
        assert len(acknowledged) >= 20
        desk.lose_power()
        found = [(value or b"").rstrip(b"\0") for value in desk.values("t")]
        assert [value for value in found if value in acknowledged] == acknowledged


def test_a_failing_disk_fails_every_send(desk: Desk) -> None:
    desk.log.create_topic("t")
    producer = desk.log.producer()
    desk.disk.fail_on("sync", "/t-0/", count=10**6)
    for _ in range(50):
        with pytest.raises(StorageError):
            producer.send("t", b"x")
        desk.clock.advance(1_000)
    assert any("could not sync" in problem for problem in desk.log.problems)
    desk.disk.clear_faults()
    desk.clock.advance(5_000)
    producer.send("t", b"at last")


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("operation", ["append", "create", "sync", "sync_dir", "overwrite"])
def test_a_failed_commit_changes_nothing(desk: Desk, operation: Operation, error: int) -> None:
    desk.log.create_topic("t")
    desk.send("t", *numbered(6))
    consumer = member(desk)
    consumer.poll(max_records=2)
    consumer.commit()
    consumer.poll(max_records=2)
    desk.disk.fail_on(operation, "__consumer_offsets", error=error)
    try:
        consumer.commit()
    except StorageError:
        assert consumer.committed("t", 0) == 2
    desk.disk.clear_faults()
    desk.advance(6_000)
    consumer.poll(max_records=1)
    assert consumer.commit() == {TopicPartition("t", 0): 5}
    desk.lose_power()
    assert [record.offset for record in member(desk).poll()] == [5]


def test_a_group_that_could_not_be_stored_rebalances_later(desk: Desk) -> None:
    desk.log.create_topic("t", 2)
    desk.send("t", *numbered(4))
    first = member(desk)
    desk.disk.fail_on("append", "__consumer_offsets")
    with pytest.raises(StorageError):
        member(desk)
    second = member(desk)
    first.poll()
    assert len(first.assignment) == len(second.assignment) == 1
    assert len(desk.log.describe_group("g").members) == 2


def test_a_failed_read_can_be_repeated(desk: Desk) -> None:
    desk.log.create_topic("t")
    desk.send("t", *numbered(6))
    consumer = desk.log.consumer(["t"])
    desk.disk.fail_on("read", "/t-0/")
    with pytest.raises(StorageError, match="could not read"):
        consumer.poll()
    assert [record.value for record in consumer.poll()] == numbered(6)
