"""The broker for tests of other programs: topics, records, restarts, faults, no leaks."""

from __future__ import annotations

import asyncio
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.kafka_requests import Wire, produce
from tests.support.sasl import SaslWire

from strandlog.errors import CorruptSegmentError, TopicExistsError, TopicNotFoundError
from strandlog.record.builder import build_batch
from strandlog.testing import KafkaBroker, NewRecord
from strandlog.testing import broker as run_broker
from strandlog.testing.kafka.faults import Faults

NOT_LEADER = 6
NOW_MS = 1_700_000_000_000
BATCH = bytes(build_batch(NOW_MS, [b"value"], [b"key"]))
CLOSED = (ConnectionError,)


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    with KafkaBroker() as running:
        yield running


@pytest.fixture
def faults(broker: KafkaBroker) -> Iterator[Faults]:
    yield broker.faults
    broker.faults.clear()


@pytest.fixture
def topic(broker: KafkaBroker) -> Iterator[str]:
    name = broker.create_topic()
    yield name
    broker.delete_topic(name)


@pytest.fixture
def wire(broker: KafkaBroker) -> Iterator[Wire]:
    with _connect(broker) as connection:
        yield connection


def _connect(broker: KafkaBroker) -> Wire:
    return Wire(int(broker.bootstrap_servers.rpartition(":")[2]))


# -- topics and records ----------------------------------------------------------------------------


def test_records_that_were_produced_are_returned_in_order(broker: KafkaBroker, topic: str) -> None:
    new = NewRecord(b"k", b"c", [("h", b"x")], NOW_MS)
    positions = broker.produce(topic, "a", ("key", b"b"), new)
    records = broker.records(topic)
    assert [each.offset for each in positions] == [each.offset for each in records] == [0, 1, 2]
    assert [(each.key, each.value) for each in records] == [
        (None, b"a"),
        (b"key", b"b"),
        (b"k", b"c"),
    ]
    assert (records[2].timestamp, records[2].headers) == (NOW_MS, (("h", b"x"),))


def test_records_of_a_client_are_awaited(broker: KafkaBroker, topic: str, wire: Wire) -> None:
    thread = threading.Thread(target=lambda: [produce(wire, topic, BATCH) for _ in range(3)])
    thread.start()
    records = broker.wait_for_records(topic, 3)
    thread.join()
    assert [each.value for each in records] == [b"value"] * 3


def test_a_topic_that_does_not_exist_yet_is_awaited(broker: KafkaBroker) -> None:
    thread = threading.Thread(target=lambda: _create_and_produce(broker, "later"))
    thread.start()
    [record] = broker.wait_for_records("later", 1)
    thread.join()
    assert record.value == b"now"
    broker.delete_topic("later")
    broker.delete_topic("later")  # a second time has no effect


def test_a_misspelt_topic_is_not_an_empty_one(broker: KafkaBroker) -> None:
    broker.create_topic("orders")
    with pytest.raises(TopicNotFoundError, match=r"'order' does not exist; did you mean 'orders'"):
        broker.records("order")
    with pytest.raises(TopicNotFoundError, match=r"'unlike' does not exist; create it first"):
        broker.records("unlike")
    with pytest.raises(TimeoutError, match=r"'order' does not exist; did you mean 'orders'"):
        broker.wait_for_records("order", 1, timeout=0.05)
    broker.delete_topic("orders")


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_damage_is_neither_the_end_of_a_topic_nor_awaited(broker: KafkaBroker, bad: int) -> None:
    topic = broker.create_topic("damaged")
    for value in ("a", "b", "c"):
        broker.produce(topic, value)
    [path] = (broker.data / f"{topic}-0").glob("*.log")
    size = path.stat().st_size // 3
    with path.open("r+b") as file:
        file.seek(bad * size + size - 2)
        file.write(b"?")
    with pytest.raises(CorruptSegmentError, match="is damaged at byte"):
        broker.records(topic)
    with pytest.raises(CorruptSegmentError, match="is damaged at byte"):
        broker.wait_for_records(topic, 4)
    broker.delete_topic(topic)


def _create_and_produce(broker: KafkaBroker, topic: str) -> None:
    broker.create_topic(topic)
    broker.produce(topic, "now")


def test_a_wait_that_fails_tells_what_there_is(broker: KafkaBroker, topic: str) -> None:
    broker.produce(topic, "only")
    with pytest.raises(TimeoutError, match=r"has 1 of 2 records .* the last ones: b.only"):
        broker.wait_for_records(topic, 2, timeout=0.05)


def test_an_asynchronous_test_does_not_block_its_event_loop(
    broker: KafkaBroker, topic: str
) -> None:
    async def check() -> None:
        with pytest.raises(RuntimeError, match="wait_for_records_async"):
            broker.wait_for_records(topic, 1)
        waiting = asyncio.create_task(broker.wait_for_records_async(topic, 1))
        await asyncio.to_thread(broker.produce, topic, "a")
        assert len(await waiting) == 1

    asyncio.run(check())


def test_all_partitions_are_read(broker: KafkaBroker) -> None:
    name = broker.create_topic("wide", partitions=3, config={"retention.ms": "1000000"})
    for partition in range(3):
        broker.produce(name, str(partition), partition=partition)
    assert [each.value for each in broker.wait_for_records(name, 3)] == [b"0", b"1", b"2"]
    with pytest.raises(TopicExistsError):
        broker.create_topic("wide")
    broker.delete_topic(name)


# -- the broker ------------------------------------------------------------------------------------


def test_a_restart_keeps_the_port_and_the_data(tmp_path: Path) -> None:
    with run_broker({"num.partitions": "3"}, data=tmp_path / "data") as broker:
        address = broker.bootstrap_servers
        topic = broker.create_topic()
        broker.produce(topic, "kept")
        broker.stop()
        with pytest.raises(ConnectionRefusedError):
            _connect(broker)
        broker.start()
        assert broker.bootstrap_servers == address
        assert [each.value for each in broker.records(topic)] == [b"kept"]
        with _connect(broker) as wire:
            [auto] = wire.ask(3, 12, topics=[{"topic_id": None, "name": "auto"}]).topics
        assert len(auto.partitions) == 3
    assert (tmp_path / "data").exists()


def test_nothing_is_left_behind() -> None:
    threads = set(threading.enumerate())
    descriptors = set(Path("/proc/self/fd").iterdir())
    with KafkaBroker(security="SASL_SSL") as broker:
        folder = broker.data.parent
        broker.produce(broker.create_topic(), "a")
        assert urllib.request.urlopen(f"{broker.http_url}/healthz").status == 200
        assert folder.exists()
    assert set(threading.enumerate()) <= threads
    assert len(set(Path("/proc/self/fd").iterdir())) <= len(descriptors)
    assert not folder.exists()


def test_a_fault_affects_no_request_before_the_login() -> None:
    with KafkaBroker(security="SASL_PLAINTEXT") as broker:
        fault = broker.faults.drop()
        with SaslWire(int(broker.bootstrap_servers.rpartition(":")[2])) as wire:
            assert wire.log_in("test", broker.security.password).error_code == 0
            with pytest.raises(CLOSED):
                wire.ask(3, 12, topics=[])
        assert fault.hits == 1


def test_an_unknown_protocol_leaves_no_folder() -> None:
    with pytest.raises(ValueError, match="PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"):
        KafkaBroker(security="TLS")


# -- faults ----------------------------------------------------------------------------------------


def test_a_request_fails_with_the_chosen_code(
    broker: KafkaBroker, faults: Faults, topic: str, wire: Wire
) -> None:
    fault = faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=2)
    codes = [int(produce(wire, topic, BATCH).error_code) for _ in range(3)]
    assert codes == [NOT_LEADER, NOT_LEADER, 0]
    assert (fault.hits, list(faults.active)) == (2, [])
    assert len(broker.records(topic)) == 1


def test_only_requests_for_a_topic_fail(
    broker: KafkaBroker, faults: Faults, topic: str, wire: Wire
) -> None:
    other = broker.create_topic()
    with faults.fail("Produce", 1, times=None, topic=other):
        assert int(produce(wire, topic, BATCH).error_code) == 0
        assert int(produce(wire, other, BATCH).error_code) == 1
    assert int(produce(wire, other, BATCH).error_code) == 0
    broker.delete_topic(other)


def test_acks_0_cannot_fail_otherwise_than_by_a_closed_connection(
    faults: Faults, topic: str, wire: Wire
) -> None:
    faults.fail("Produce", 1)
    with pytest.raises(CLOSED):
        produce(wire, topic, BATCH, acks=0)


def test_an_api_without_an_error_response_cannot_fail(faults: Faults) -> None:
    with pytest.raises(ValueError, match="use drop instead"):
        faults.fail("AlterReplicaLogDirs", 1)


def test_a_dropped_request_has_no_effect(
    broker: KafkaBroker, faults: Faults, topic: str, wire: Wire
) -> None:
    faults.drop("Produce")
    with pytest.raises(CLOSED):
        produce(wire, topic, BATCH)
    assert broker.records(topic) == []


def test_a_lost_answer_belongs_to_a_request_that_took_effect(
    broker: KafkaBroker, faults: Faults, topic: str, wire: Wire
) -> None:
    faults.drop("Produce", handled=True)
    with pytest.raises(CLOSED):
        produce(wire, topic, BATCH)
    assert len(broker.records(topic)) == 1


def test_an_answer_waits_for_the_end_of_its_fault(
    broker: KafkaBroker, faults: Faults, topic: str, wire: Wire
) -> None:
    answers: list[Any] = []
    fault = faults.delay("Produce", times=1)
    thread = threading.Thread(target=lambda: answers.append(produce(wire, topic, BATCH)))
    thread.start()
    fault.wait()
    broker.wait_for_records(topic, 1)  # the request has taken effect
    assert answers == []
    faults.clear()  # also ends faults that have occurred often enough
    thread.join()
    assert int(answers[0].error_code) == 0


def test_an_answer_is_late_by_a_given_time(faults: Faults, topic: str, wire: Wire) -> None:
    with faults.delay(ms=1) as fault:
        assert int(produce(wire, topic, BATCH).error_code) == 0
    assert fault.hits == 1


def test_acks_all_waits_for_a_slow_disk(
    broker: KafkaBroker, faults: Faults, topic: str, wire: Wire
) -> None:
    answers: list[Any] = []
    with faults.delay_fsync() as fault:
        thread = threading.Thread(target=lambda: answers.append(produce(wire, topic, BATCH)))
        thread.start()
        fault.wait()
        assert answers == []
    thread.join()
    assert int(answers[0].error_code) == 0
    assert len(broker.records(topic)) == 1


def test_connections_are_closed_and_refused(
    broker: KafkaBroker, faults: Faults, topic: str, wire: Wire
) -> None:
    produce(wire, topic, BATCH)
    assert faults.drop_connections() == 1
    with pytest.raises(CLOSED):
        produce(wire, topic, BATCH)
    with faults.refuse_connections() as fault, _connect(broker) as refused:
        with pytest.raises(CLOSED):
            produce(refused, topic, BATCH)
        assert fault.hits == 1
    with _connect(broker) as accepted:
        produce(accepted, topic, BATCH)


def test_a_fault_that_does_not_occur_is_reported(faults: Faults) -> None:
    with pytest.raises(TimeoutError, match="occurred 0 times within"):
        faults.drop("Fetch").wait(timeout=0.01)
    with faults.refuse_connections() as fault:
        fault.hit()
        with pytest.raises(TimeoutError, match="occurred 1 time within"):
            fault.wait(2, timeout=0.01)


def test_a_broker_stops_although_answers_are_delayed() -> None:
    with KafkaBroker() as broker:
        topic = broker.create_topic()
        fault = broker.faults.delay("Produce")
        with _connect(broker) as wire:
            thread = threading.Thread(target=lambda: produce(wire, topic, BATCH))
            thread.start()
            fault.wait()
            broker.stop()
            thread.join()


def test_unreadable_requests_are_the_servers_affair(faults: Faults, wire: Wire) -> None:
    faults.drop("Produce")
    wire.send(b"\0")
    with pytest.raises(CLOSED):
        wire.receive()


def test_a_record_of_a_wrong_type_gets_advice(broker: KafkaBroker) -> None:
    topic = broker.create_topic()
    for record in ({"a": 1}, (b"k", 7), NewRecord(b"k", "text")):  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="the value of a record must be bytes or None, not"):
            broker.produce(topic, record)  # type: ignore[arg-type]
    assert broker.records(topic) == []
