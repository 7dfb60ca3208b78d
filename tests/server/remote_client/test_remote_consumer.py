"""The remote consumer: positions, ends, groups and commits as in the embedded consumer."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import eventually

import strandlog
from strandlog import Record, RemoteLog, TopicPartition, errors
from strandlog.client.remote.consumer import RemoteConsumer
from strandlog.client.wire.client import WireClient
from strandlog.record.builder import build_single
from strandlog.testing.server import ServerThread

pytestmark = pytest.mark.slow

PATIENCE_MS = 20_000


def drain(consumer: RemoteConsumer, max_records: int = 500) -> Iterator[Record]:
    while records := consumer.poll(max_records):
        yield from records


def values(records: Iterator[Record] | list[Record]) -> list[bytes]:
    return [record.value or b"" for record in records]


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


@pytest.fixture
def filled(remote: RemoteLog) -> RemoteLog:
    """Thirty records in three partitions, ten in each."""
    remote.create_topic("t", 3)
    with remote.producer() as producer:
        producer.send_batch(
            "t", [{"value": b"%d" % number, "partition": number % 3} for number in range(30)]
        )
    return remote


# -- polling -----------------------------------------------------------------------------------


@pytest.mark.parametrize("max_records", [1, 7, 500])
def test_everything_comes_once_and_in_order(filled: RemoteLog, max_records: int) -> None:
    with filled.consumer(["t"]) as consumer:
        found = list(drain(consumer, max_records))
    assert sorted(map(int, values(found))) == list(range(30))
    for partition in range(3):
        offsets = [record.offset for record in found if record.partition == partition]
        assert offsets == list(range(10))


def test_a_poll_without_a_time_returns_nothing_only_at_the_end(filled: RemoteLog) -> None:
    """The first polls returned nothing: no answer of the broker had come yet."""
    with filled.consumer(["t"]) as consumer:
        assert consumer.poll()
        for _ in drain(consumer):
            pass
        assert consumer.poll() == []
        assert [consumer.position("t", number) for number in range(3)] == [10, 10, 10]
    with filled.consumer([]) as consumer:
        assert consumer.poll() == []


def test_a_poll_waits_for_the_first_record_and_no_longer(
    filled: RemoteLog, broker: ServerThread
) -> None:
    with filled.consumer(["t"], auto_offset_reset="latest") as consumer:
        assert consumer.poll() == []
        assert consumer.poll(timeout_ms=300) == []
        polled: list[Any] = []
        polling = threading.Thread(
            target=lambda: polled.extend(consumer.poll(timeout_ms=600_000)), daemon=True
        )
        polling.start()
        broker.wait_until(
            lambda server: server.metrics()["waiting_fetches"] > 0, "the poll waits for records"
        )
        filled.producer().send("t", b"new")
        polling.join(PATIENCE_MS / 1000)
        assert values(polled) == [b"new"]


def test_the_iteration_ends_where_the_records_do(filled: RemoteLog) -> None:
    with filled.consumer(["t"]) as consumer:
        assert len(list(consumer)) == 30


def test_records_come_as_a_table(filled: RemoteLog) -> None:
    with filled.consumer(["t"]) as consumer:
        table = consumer.poll_arrow()
    assert table.column_names[:3] == ["key", "value", "topic"]
    assert len(table)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "5"])
def test_a_poll_of_no_records_makes_no_sense(remote: RemoteLog, wrong: int) -> None:
    with pytest.raises(errors.InvalidSettingError):
        remote.consumer().poll(max_records=wrong)


def test_a_consumer_outlives_its_broker(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data")
    broker.start()
    with strandlog.connect(broker.address) as log:
        log.create_topic("t")
        producer = log.producer()
        producer.send("t", b"before")
        with log.consumer(["t"]) as consumer:
            assert values(consumer.poll()) == [b"before"]
            broker.stop(signal.SIGKILL)
            assert consumer.poll(timeout_ms=300) == []
            broker.start()
            producer.send("t", b"after")
            assert values(consumer.poll(timeout_ms=PATIENCE_MS)) == [b"after"]
    assert broker.stop() == 0


# -- places ------------------------------------------------------------------------------------


def test_seeks_before_and_between_polls(filled: RemoteLog) -> None:
    with filled.consumer(["t"]) as consumer:
        consumer.seek("t", 0, 8)
        assert consumer.position("t", 0) == 8
        consumer.seek("t", 1, 10)
        consumer.seek("t", 2, 10)
        assert values(drain(consumer)) == [b"24", b"27"]
        consumer.seek("t", 1, 9)
        assert values(drain(consumer)) == [b"28"]
        consumer.seek_all(9)
        assert sorted(values(drain(consumer))) == [b"27", b"28", b"29"]
        consumer.seek_all(99)
        assert consumer.poll() == []
        with pytest.raises(strandlog.OffsetOutOfRangeError, match=r"t-0 \[0, 10\)"):
            consumer.seek("t", 0, 11)
        with pytest.raises(strandlog.TopicNotFoundError):
            consumer.seek("t", 3, 0)
        with pytest.raises(strandlog.TopicNotFoundError):
            consumer.position("u", 0)


def test_a_seek_drops_what_was_fetched_ahead(filled: RemoteLog) -> None:
    with filled.consumer(["t"]) as consumer:
        consumer.assign([("t", 0)])
        assert values(consumer.poll(max_records=2)) == [b"0", b"3"]
        consumer.seek("t", 0, 9)
        assert values(consumer.poll(max_records=2)) == [b"27"]


def test_times_are_looked_up_in_every_partition(remote: RemoteLog) -> None:
    remote.create_topic("t", 2)
    base = 1_700_000_000_000
    with remote.producer() as producer:
        producer.send_batch(
            "t",
            [
                {"value": b"%d" % number, "partition": number % 2, "timestamp": base + number}
                for number in range(10)
            ],
        )
    with remote.consumer(["t"]) as consumer:
        consumer.seek_to_time(base + 7)
        assert sorted(values(drain(consumer))) == [b"7", b"8", b"9"]
        consumer.seek_to_time(base + 9)
        assert values(drain(consumer)) == [b"9"]
        consumer.seek_to_time(base + 1000)
        assert consumer.poll() == []
        consumer.seek_to_time(0)
        assert len(list(drain(consumer))) == 10


def test_assign_keeps_the_place_in_what_stays(filled: RemoteLog) -> None:
    with filled.consumer() as consumer:
        consumer.assign([("t", 0)])
        consumer.poll(max_records=4)
        consumer.assign([("t", 0), ("t", 1)])
        assert [consumer.position("t", number) for number in (0, 1)] == [4, 0]
        assert consumer.assignment == [TopicPartition("t", 0), TopicPartition("t", 1)]
        assert len(list(drain(consumer))) == 16
        with pytest.raises(strandlog.NotOwnerError):
            consumer.position("t", 2)
        with pytest.raises(strandlog.TopicNotFoundError, match="has no partition 3"):
            consumer.assign([("t", 3)])


def test_the_end_behind_a_gap_is_reached(remote: RemoteLog) -> None:
    """Offsets that compaction or a deletion took away are no reason to wait for more."""
    remote.create_topic("t")
    remote.producer().send_batch("t", numbered(5))
    with remote.consumer(["t"]) as consumer:
        remote.delete_records("t", 0, 5)
        assert consumer.poll() == []
        assert consumer.position("t", 0) == 5


# -- groups ------------------------------------------------------------------------------------


def test_a_group_continues_at_its_committed_offsets(filled: RemoteLog) -> None:
    with filled.consumer(["t"], group="g") as consumer:
        first = consumer.poll(max_records=5)
        changed = consumer.commit()
        assert sum(changed.values()) == len(first)
        assert consumer.commit() == {}
        record = first[-1]
        assert consumer.committed("t", record.partition) == record.offset + 1
        consumer.poll(max_records=5)
    with filled.consumer(["t"], group="g") as consumer:
        rest = list(drain(consumer))
    assert sorted(map(int, values(first + rest))) == list(range(30))
    assert filled.describe_group("g").state == "Empty"


def test_a_member_seeks_as_soon_as_it_is_made(filled: RemoteLog) -> None:
    with filled.consumer(["t"], group="g") as consumer:
        consumer.seek("t", 0, 9)
        consumer.seek("t", 1, 10)
        consumer.seek("t", 2, 10)
        assert values(drain(consumer)) == [b"27"]
        consumer.commit()
    assert {tp.partition: held.offset for tp, held in filled.committed_offsets("g").items()} == {
        0: 10,
        1: 10,
        2: 10,
    }


@pytest.mark.slow
@pytest.mark.parametrize("assignors", ["range", "roundrobin", "cooperative-sticky"])
def test_two_members_share_and_one_takes_over(filled: RemoteLog, assignors: str) -> None:
    first = filled.consumer(["t"], group="g", assignors=[assignors])
    second = filled.consumer(["t"], group="g", assignors=[assignors])

    def is_shared() -> bool:
        first.poll(timeout_ms=50)
        second.poll(timeout_ms=50)
        return {len(first.assignment), len(second.assignment)} == {1, 2}

    eventually(is_shared, "each member has a share")
    assert sorted(first.assignment + second.assignment) == [
        TopicPartition("t", number) for number in range(3)
    ]
    described = filled.describe_group("g")
    assert (described.state, len(described.members)) == ("Stable", 2)
    with pytest.raises(strandlog.GroupError):
        filled.commit_offsets("g", {TopicPartition("t", 0): 1})
    with pytest.raises(errors.GroupNotEmptyError):
        filled.delete_group("g")
    mine = first.assignment[0]
    first.seek(*mine, 9)
    first.commit()
    first.close()

    def has_everything() -> bool:
        second.poll(timeout_ms=50)
        return len(second.assignment) == 3

    eventually(has_everything, "the other member takes over")
    assert second.position(*mine) in (9, 10)
    second.close()


def test_auto_commit_keeps_what_the_program_came_back_from(filled: RemoteLog) -> None:
    with filled.consumer(["t"], group="g", auto_commit=True) as consumer:
        consumer.poll(max_records=5)
        consumer.poll(max_records=5)
    assert sum(held.offset for held in filled.committed_offsets("g").values()) == 10
    with (
        pytest.raises(ZeroDivisionError),
        filled.consumer(["t"], group="h", auto_commit=True) as consumer,
    ):
        consumer.poll(max_records=5)
        raise ZeroDivisionError
    assert sum(held.offset for held in filled.committed_offsets("h").values()) == 0


def test_a_record_with_an_unreadable_header_does_not_skip_others(remote: RemoteLog) -> None:
    remote.create_topic("t")
    tp = TopicPartition("t", 0)
    names = ["a", "b", "\udcff", "c"]  # the third one stands for the byte 0xff
    batches = [build_single(0, b"%d" % at, None, ((name, b""),)) for at, name in enumerate(names)]
    with WireClient(remote.bootstrap) as client:
        assert client.produce({tp: batches})[tp].error is None
    with remote.consumer(["t"], group="g") as consumer:
        assert values(drain_until_error(consumer)) == [b"0", b"1"]
        for _ in range(2):
            with pytest.raises(errors.UndecodableBatchError, match="not UTF-8") as caught:
                consumer.poll(timeout_ms=PATIENCE_MS)
        assert consumer.position("t", 0) == 2
        assert caught.value.resume_offset == 3
        consumer.seek("t", 0, 3)
        assert values(drain(consumer)) == [b"3"]


def drain_until_error(consumer: RemoteConsumer) -> list[Record]:
    found: list[Record] = []
    with pytest.raises(errors.UndecodableBatchError):
        while len(found) < 4:
            found += consumer.poll(timeout_ms=PATIENCE_MS)
    return found


def test_an_auto_commit_that_the_broker_rejects_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"group.initial.rebalance.delay.ms": "0", "offsets.max.bytes": "1024"}
    with (
        ServerThread(tmp_path / "data", settings) as broker,
        strandlog.connect(broker.address) as log,
    ):
        log.create_topic("t", 2)
        log.commit_offsets("full", {TopicPartition("t", 0): 0, TopicPartition("t", 1): 0})
        with log.producer() as producer:
            producer.send_batch("t", numbered(2))
        with log.consumer(["t"], group="g", auto_commit=True) as consumer:
            assert sorted(values(drain(consumer))) == numbered(2)
        assert log.committed_offsets("g") == {}
    found = [each.message for each in caplog.records if "remote" in each.name]
    assert len(found) == 1, "the same error is reported once"
    assert found[0].startswith("auto-commit failed: group 'g': ")


def test_a_group_without_members_may_commit_and_seek(filled: RemoteLog) -> None:
    with filled.consumer(group="g") as consumer:
        consumer.assign([("t", 1)])
        consumer.poll(max_records=3)
        assert consumer.commit() == {TopicPartition("t", 1): 3}
    with filled.consumer(group="g") as consumer:
        consumer.assign([("t", 1)])
        assert consumer.position("t", 1) == 3


def test_without_a_group_there_is_nothing_to_commit(filled: RemoteLog) -> None:
    with filled.consumer(["t"]) as consumer:
        consumer.poll()
        with pytest.raises(strandlog.InvalidGroupError):
            consumer.commit()
        assert consumer.committed("t", 0) is None
    assert filled.groups() == []


def test_reset_none_raises_until_a_seek(filled: RemoteLog) -> None:
    with filled.consumer(group="g", auto_offset_reset="none") as consumer:
        consumer.assign([("t", 0)])
        for _ in range(2):
            with pytest.raises(strandlog.OffsetOutOfRangeError, match="has no committed offset"):
                consumer.poll()
        consumer.seek("t", 0, 9)
        assert values(consumer.poll()) == [b"27"]
