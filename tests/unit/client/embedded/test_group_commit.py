"""Threads share fsyncs, and no thread closes or deletes a partition during one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from tests.support.embedded_harness import EmbeddedHarness

from strandlog import ClosedError, StorageError, TopicNotFoundError
from strandlog.testing import Step

PATIENCE_S = 10


class SlowSync:
    """Blocks the next fsync of a log file until it is released."""

    def __init__(self, path_part: str = "/t-0/") -> None:
        self.path_part = path_part
        self.has_begun = threading.Event()
        self._may_go_on = threading.Event()
        self._is_used = False

    def __call__(self, step: Step) -> None:
        is_meant = step.operation == "sync" and step.path.endswith(".log")
        if is_meant and self.path_part in step.path and not self._is_used:
            self._is_used = True
            self.has_begun.set()
            assert self._may_go_on.wait(PATIENCE_S), "the fsync was not released"

    def wait_until_begun(self) -> None:
        assert self.has_begun.wait(PATIENCE_S), "no fsync began"

    def release(self) -> None:
        self._may_go_on.set()


class Worker(threading.Thread):
    """A thread that keeps what its work returned or raised."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self.result: object = None
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._work()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def finish(self) -> None:
        self.join(PATIENCE_S)
        assert not self.is_alive(), "the thread hangs"


@contextmanager
def slow_sync(embedded: EmbeddedHarness, path_part: str = "/t-0/") -> Iterator[SlowSync]:
    """Blocks the next fsync until the test releases it, at the latest at the end of the block."""
    slow = SlowSync(path_part)
    embedded.disk.watch(slow)
    try:
        yield slow
    finally:
        slow.release()
        embedded.disk.watch(None)


def test_threads_that_wait_together_share_one_fsync(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    producer = embedded.log.producer()
    producer.send("t", b"first")
    before = embedded.count_steps("sync", "/t-0/")
    with slow_sync(embedded) as slow:
        leader = Worker(lambda: producer.send("t", b"leader"))
        slow.wait_until_begun()
        followers = [Worker(lambda: producer.send("t", b"follower")) for _ in range(8)]
        while embedded.log.describe_topic("t").partitions[0].end_offset < 10:
            pass  # the appends do not wait for the disk
        slow.release()
        for worker in [leader, *followers]:
            worker.finish()
            assert worker.error is None
    assert embedded.count_steps("sync", "/t-0/") - before == 2
    assert len(embedded.values("t")) == 10


def test_many_producers_need_fewer_fsyncs_than_sends(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")

    def send_many() -> None:
        producer = embedded.log.producer(acks="all")
        for number in range(50):
            producer.send("t", str(number).encode())

    with slow_sync(embedded) as slow:
        workers = [Worker(send_many) for _ in range(6)]
        slow.wait_until_begun()
        while embedded.log.describe_topic("t").partitions[0].end_offset < 6:
            pass
        slow.release()
        for worker in workers:
            worker.finish()
            assert worker.error is None
    assert len(embedded.values("t")) == 300
    assert embedded.count_steps("sync", "/t-0/00000000000000000000.log") < 300


def test_acknowledged_records_are_on_disk(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    with slow_sync(embedded) as slow:
        leader = Worker(lambda: embedded.log.producer().send("t", b"waits"))
        slow.wait_until_begun()
        assert leader.is_alive(), "acks=all returns after the fsync, not before"
        slow.release()
        leader.finish()
    embedded.lose_power()
    assert embedded.values("t") == [b"waits"]


def test_a_partition_has_one_fsync_in_flight(embedded: EmbeddedHarness) -> None:
    """If the first fsync failed, a second one would report success for lost bytes."""
    embedded.log.create_topic("t")
    consumer = embedded.log.consumer(["t"])
    with slow_sync(embedded) as slow:
        embedded.disk.fail_on("sync", "/t-0/00000000000000000000.log")
        leader = Worker(lambda: embedded.log.producer().send("t", b"lost"))
        slow.wait_until_begun()
        assert consumer.poll() == [], "the reader skips a partition with an fsync in flight"
        embedded.clock.advance(2_000)
        embedded.log.run_maintenance()
        slow.release()
        leader.finish()
    assert isinstance(leader.error, StorageError)
    assert consumer.poll() == [], "nothing was made durable"
    embedded.lose_power()
    assert embedded.values("t") == []


def test_a_reader_does_not_flush_a_partition_after_a_failed_fsync(
    embedded: EmbeddedHarness,
) -> None:
    embedded.log.create_topic("t")
    embedded.disk.fail_on("sync", "/t-0/00000000000000000000.log")
    with pytest.raises(StorageError):
        embedded.log.producer().send("t", b"not acknowledged")
    consumer = embedded.log.consumer(["t"])
    assert consumer.poll() == []
    for call in (
        lambda: embedded.log.compact("t"),
        lambda: embedded.log.delete_records("t", 0, 0),
        embedded.log.flush,
    ):
        with pytest.raises(StorageError, match="rejects records"):
            call()
    consumer.seek_to_time(0)
    assert consumer.poll() == [], "readable only after it was rewritten and flushed"
    embedded.advance(5_000)
    assert [record.value for record in consumer.poll()] == [b"not acknowledged"]


def test_close_waits_for_the_fsync_in_flight(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    log, disk = embedded.log, embedded.disk
    with slow_sync(embedded) as slow:
        sender = Worker(lambda: log.producer().send("t", b"last"))
        slow.wait_until_begun()
        closer = Worker(log.close)
        closer.join(0.05)
        assert closer.is_alive(), "the folder is not released while a thread writes to it"
        slow.release()
        closer.finish()
        sender.finish()
    assert sender.error is None and closer.error is None
    steps = len(disk.trace)
    assert embedded.values("t") == [b"last"]
    assert not [step for step in disk.trace[:steps] if step.operation == "lock"]


def test_a_sender_that_waits_for_the_lock_finds_the_log_closed(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    log = embedded.log
    producer, consumer = log.producer(), log.consumer(["t"])
    calls: list[Callable[[], object]] = [
        lambda: producer.send("t", b"late"),
        lambda: producer.send_batch("t", [b"late"]),
        consumer.poll,
        lambda: log.create_topic("late"),
        lambda: log.delete_topic("t"),
        log.topics,
    ]
    with log.condition:
        workers = [Worker(call) for call in calls]
        while sum(worker.is_alive() for worker in workers) < len(workers):
            pass
        log.close()
    for worker in workers:
        worker.finish()
        assert isinstance(worker.error, ClosedError)
    assert embedded.log.topics() == ["t"]


def test_a_recreated_topic_is_not_damaged_by_a_sender_that_waited_for_the_old_one(
    embedded: EmbeddedHarness,
) -> None:
    def delete_and_create() -> None:
        embedded.log.delete_topic("t")
        embedded.log.create_topic("t")

    embedded.log.create_topic("t")
    with slow_sync(embedded) as slow:
        leader = Worker(lambda: embedded.log.producer().send("t", b"old"))
        slow.wait_until_begun()
        follower = Worker(lambda: embedded.log.producer().send("t", b"old, too"))
        while embedded.log.describe_topic("t").partitions[0].end_offset < 2:
            pass
        deleter = Worker(delete_and_create)
        deleter.join(0.05)
        slow.release()
        for worker in (leader, follower, deleter):
            worker.finish()
    assert leader.error is None and deleter.error is None
    # Recreated before the follower checked again: it is not the topic it wrote to.
    assert follower.error is None or isinstance(follower.error, (TopicNotFoundError, StorageError))
    embedded.send("t", b"new")
    embedded.kill()
    assert embedded.values("t") == [b"new"]
    assert embedded.log.problems == []


def test_a_failed_fsync_fails_all_waiting_senders(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    with slow_sync(embedded) as slow:
        embedded.disk.fail_on("sync", "/t-0/00000000000000000000.log")
        leader = Worker(lambda: embedded.log.producer().send("t", b"a"))
        slow.wait_until_begun()
        follower = Worker(lambda: embedded.log.producer().send("t", b"b"))
        while embedded.log.describe_topic("t").partitions[0].end_offset < 2:
            pass
        slow.release()
        leader.finish()
        follower.finish()
    assert isinstance(leader.error, StorageError)
    assert isinstance(follower.error, StorageError)
    assert leader.error is not follower.error, "each thread raises its own"


def test_flush_returns_when_everything_is_on_disk(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", 2)
    producer = embedded.log.producer(acks=0)
    producer.send_batch("t", [b"a", b"b"])
    before = embedded.count_steps("sync", "/t-")
    producer.flush()
    assert embedded.count_steps("sync", "/t-") - before == 2
    embedded.lose_power()
    assert embedded.values("t") == [b"a", b"b"]
