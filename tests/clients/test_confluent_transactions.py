"""Transactions with librdkafka: what committed readers see, who is fenced, what a crash leaves."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_requests import Wire
from tests.support.waiting import eventually

from strandlog.broker.topics.topic import OFFSETS_TOPIC

PATIENCE_S = 20


def transactional(broker: BrokerProcess, name: str, **config: object) -> Producer:
    producer = Producer(
        {"bootstrap.servers": broker.address, "transactional.id": name, "linger.ms": 1, **config}
    )
    producer.init_transactions(PATIENCE_S)
    return producer


def send(producer: Producer, topic: str, *values: str, partition: int = 0) -> None:
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(PATIENCE_S) == 0


def read(
    broker: BrokerProcess, topic: str, isolation: str = "read_committed", count: int = 10**9
) -> list[str]:
    """Everything in partition 0 up to its end, as that kind of reader sees it."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "reader",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[str] = []
    deadline = time.monotonic() + PATIENCE_S
    try:
        while len(found) < count and time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is None:
                continue
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    return found
                raise KafkaException(error)
            value = message.value()
            assert value is not None
            found.append(value.decode())
    finally:
        consumer.close()
    assert time.monotonic() < deadline, f"no end of {topic} within {PATIENCE_S} s"
    return found


@pytest.mark.smoke
def test_committed_readers_see_what_was_committed(shared_broker: BrokerProcess, topic: str) -> None:
    producer = transactional(shared_broker, topic)
    producer.begin_transaction()
    send(producer, topic, "a", "b")
    producer.commit_transaction(PATIENCE_S)
    producer.begin_transaction()
    send(producer, topic, "never")
    producer.abort_transaction(PATIENCE_S)
    producer.begin_transaction()
    send(producer, topic, "c")
    producer.commit_transaction(PATIENCE_S)
    assert read(shared_broker, topic) == ["a", "b", "c"]
    assert read(shared_broker, topic, "read_uncommitted") == ["a", "b", "never", "c"]


def test_an_open_transaction_holds_committed_readers_back(
    shared_broker: BrokerProcess, topic: str
) -> None:
    plain = Producer({"bootstrap.servers": shared_broker.address})
    send(plain, topic, "before")
    producer = transactional(shared_broker, topic)
    producer.begin_transaction()
    send(producer, topic, "inside")
    send(plain, topic, "after")
    assert read(shared_broker, topic) == ["before"]
    assert read(shared_broker, topic, "read_uncommitted") == ["before", "inside", "after"]
    producer.commit_transaction(PATIENCE_S)
    assert read(shared_broker, topic) == ["before", "inside", "after"]


def test_a_waiting_consumer_gets_the_record_when_the_transaction_commits(
    shared_broker: BrokerProcess, topic: str
) -> None:
    producer = transactional(shared_broker, topic)
    producer.begin_transaction()
    send(producer, topic, "x")
    consumer = Consumer(
        {
            "bootstrap.servers": shared_broker.address,
            "group.id": topic,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 50_000,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert consumer.poll(1) is None
    producer.commit_transaction(PATIENCE_S)
    message = consumer.poll(PATIENCE_S)
    assert message is not None
    assert message.value() == b"x"
    consumer.close()


def test_many_partitions_and_topics_commit_together(
    shared_broker: BrokerProcess, topic: str
) -> None:
    producer = transactional(shared_broker, topic)
    topics = [f"{topic}-{number}" for number in range(5)]
    for outcome in ("commit", "abort", "commit"):
        producer.begin_transaction()
        for name in topics:
            producer.produce(name, outcome)
        end = producer.commit_transaction if outcome == "commit" else producer.abort_transaction
        end(PATIENCE_S)
    for name in topics:
        assert read(shared_broker, name) == ["commit", "commit"]


def test_a_newer_producer_fences_the_zombie(shared_broker: BrokerProcess, topic: str) -> None:
    old = transactional(shared_broker, topic)
    old.begin_transaction()
    send(old, topic, "of the zombie")
    new = transactional(shared_broker, topic)
    with pytest.raises(KafkaException) as refused:
        old.commit_transaction(PATIENCE_S)
    assert refused.value.args[0].code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED)
    assert refused.value.args[0].fatal()
    new.begin_transaction()
    send(new, topic, "of the new one")
    new.commit_transaction(PATIENCE_S)
    assert read(shared_broker, topic) == ["of the new one"]


def test_a_transaction_that_takes_too_long_is_aborted(
    shared_broker: BrokerProcess, topic: str
) -> None:
    slow = transactional(shared_broker, topic, **{"transaction.timeout.ms": 1000})
    slow.begin_transaction()
    send(slow, topic, "too late")
    plain = Producer({"bootstrap.servers": shared_broker.address})
    send(plain, topic, "after")
    assert read(shared_broker, topic) == []
    eventually(lambda: read(shared_broker, topic) == ["after"], "the transaction is aborted")
    with pytest.raises(KafkaException):
        slow.commit_transaction(PATIENCE_S)


@pytest.fixture
def sums(shared_broker: BrokerProcess, topic: str) -> Iterator[Consumer]:
    """A member of a group that reads numbers, which are there."""
    send(Producer({"bootstrap.servers": shared_broker.address}), topic, *map(str, range(10)))
    consumer = Consumer(
        {
            "bootstrap.servers": shared_broker.address,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "session.timeout.ms": 6000,
        }
    )
    consumer.subscribe([topic])
    yield consumer
    consumer.close()


@pytest.mark.parametrize("outcome", ["commit", "abort"])
def test_offsets_of_a_group_move_with_the_transaction(
    shared_broker: BrokerProcess, topic: str, sums: Consumer, outcome: str
) -> None:
    batch: list[int] = []
    while len(batch) < 10:
        batch += [int(message.value() or b"") for message in sums.consume(10, 1)]
    producer = transactional(shared_broker, topic)
    producer.begin_transaction()
    send(producer, f"{topic}-sums", str(sum(batch)))
    producer.send_offsets_to_transaction(
        sums.position(sums.assignment()), sums.consumer_group_metadata(), PATIENCE_S
    )
    wanted = [TopicPartition(topic, 0)]
    with pytest.raises(KafkaException) as unstable:  # asked again until the time is over
        sums.committed(wanted, timeout=1)
    assert unstable.value.args[0].code() in (
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
    )
    if outcome == "commit":
        producer.commit_transaction(PATIENCE_S)
        assert sums.committed(wanted, timeout=PATIENCE_S)[0].offset == 10
        assert read(shared_broker, f"{topic}-sums") == ["45"]
    else:
        producer.abort_transaction(PATIENCE_S)
        assert sums.committed(wanted, timeout=PATIENCE_S)[0].offset < 0
        assert read(shared_broker, f"{topic}-sums") == []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_an_open_transaction_survives_the_broker(
    broker: BrokerProcess, topic: str, how: signal.Signals
) -> None:
    producer = transactional(broker, topic)
    producer.begin_transaction()
    send(producer, topic, "before", "the stop")
    broker.stop(how)
    broker.start()
    assert read(broker, topic) == []
    send(producer, topic, "and after")
    producer.commit_transaction(PATIENCE_S)
    assert read(broker, topic) == ["before", "the stop", "and after"]
    producer.begin_transaction()
    send(producer, topic, "never")
    broker.stop(how)
    broker.start()
    producer.abort_transaction(PATIENCE_S)
    assert read(broker, topic) == ["before", "the stop", "and after"]


def test_aborted_records_stay_hidden_after_a_restart(broker: BrokerProcess, topic: str) -> None:
    producer = transactional(broker, topic)
    for number in range(20):
        producer.begin_transaction()
        send(producer, topic, str(number))
        end = producer.abort_transaction if number % 3 else producer.commit_transaction
        end(PATIENCE_S)
    expected = [str(number) for number in range(0, 20, 3)]
    for how in (signal.SIGKILL, signal.SIGTERM):
        assert read(broker, topic) == expected
        broker.stop(how)
        broker.start()
    assert read(broker, topic) == expected


def test_admin_requests_list_and_describe_transactions(
    shared_broker: BrokerProcess, topic: str
) -> None:
    producer = transactional(shared_broker, topic)
    producer.begin_transaction()
    send(producer, topic, "x")
    with Wire(shared_broker.port) as wire:
        listed = wire.ask(66, 1, state_filters=["Ongoing", "Strange"])
        assert listed.unknown_state_filters == ("Strange",)
        mine = [state for state in listed.transaction_states if state.transactional_id == topic]
        assert [state.transaction_state for state in mine] == ["Ongoing"]
        ongoing, missing = wire.ask(65, 0, transactional_ids=[topic, "unknown"]).transaction_states
        assert [(part.topic, part.partitions) for part in ongoing.topics] == [(topic, (0,))]
        assert missing.error_code == 105
        wanted = [{"name": topic, "partition_indexes": [0, 7]}]
        first, second = wire.ask(61, 0, topics=wanted).topics[0].partitions
        (active,) = first.active_producers
        assert (active.producer_id, active.current_txn_start_offset) == (mine[0].producer_id, 0)
        assert second.error_code == 3
        producer.abort_transaction(PATIENCE_S)
        (active,) = wire.ask(61, 0, topics=wanted).topics[0].partitions[0].active_producers
        assert active.current_txn_start_offset == -1


def test_a_transaction_cannot_write_to_internal_topics(
    shared_broker: BrokerProcess, topic: str
) -> None:
    producer = transactional(shared_broker, topic)
    producer.begin_transaction()
    producer.produce(OFFSETS_TOPIC, b"x")
    with pytest.raises(KafkaException):
        producer.commit_transaction(PATIENCE_S)
