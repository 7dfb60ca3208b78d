"""Real clients survive the faults of the broker for tests, and log in to its secured forms."""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, Producer

from strandlog.testing import KafkaBroker

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaProducer

TIMEOUT_SECONDS = 30


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    with KafkaBroker() as running:
        yield running


@pytest.fixture
def topic(broker: KafkaBroker) -> Iterator[str]:
    name = broker.create_topic()
    yield name
    broker.faults.clear()
    broker.delete_topic(name)


def _send(config: dict[str, Any], topic: str, *values: str) -> list[KafkaError | None]:
    """Produce with confluent-kafka; returns the outcome of each record."""
    outcomes: list[KafkaError | None] = []
    producer = Producer({"retry.backoff.ms": 1, "reconnect.backoff.ms": 1, **config})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: outcomes.append(error))
    assert producer.flush(TIMEOUT_SECONDS) == 0
    return outcomes


@pytest.mark.smoke
def test_librdkafka_retries_what_fails_for_a_while(broker: KafkaBroker, topic: str) -> None:
    fault = broker.faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=2)
    assert _send(broker.client_config(), topic, "a") == [None]
    assert fault.hits == 2
    assert [each.value for each in broker.records(topic)] == [b"a"]


def test_librdkafka_reports_what_fails_for_good(broker: KafkaBroker, topic: str) -> None:
    broker.faults.fail("Produce", "MESSAGE_TOO_LARGE")
    [error] = _send(broker.client_config(), topic, "a")
    assert error is not None
    assert error.code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert broker.records(topic) == []


def test_an_idempotent_producer_writes_once_although_the_answer_is_lost(
    broker: KafkaBroker, topic: str
) -> None:
    fault = broker.faults.drop("Produce", handled=True)
    config = broker.client_config(enable_idempotence=True)
    assert _send(config, topic, "a", "b") == [None, None]
    assert fault.hits == 1
    assert [each.value for each in broker.records(topic)] == [b"a", b"b"]


def test_a_producer_survives_a_restart(broker: KafkaBroker, topic: str) -> None:
    producer = Producer(broker.client_config(reconnect_backoff_ms=1, reconnect_backoff_max_ms=50))
    producer.produce(topic, "before")
    assert producer.flush(TIMEOUT_SECONDS) == 0
    broker.restart()
    producer.produce(topic, "after")
    assert producer.flush(TIMEOUT_SECONDS) == 0
    assert [each.value for each in broker.records(topic)] == [b"before", b"after"]


def test_a_group_starts_without_delay_and_survives_a_failed_commit(
    broker: KafkaBroker, topic: str
) -> None:
    broker.produce(topic, "a")
    config = broker.client_config(
        group_id=topic, auto_offset_reset="earliest", enable_auto_commit=False
    )
    consumer = Consumer(config)
    try:
        consumer.subscribe([topic])
        message = consumer.poll(TIMEOUT_SECONDS)
        assert message.value() == b"a"
        fault = broker.faults.fail("OffsetCommit", "COORDINATOR_LOAD_IN_PROGRESS")
        consumer.commit(message, asynchronous=False)
        assert fault.hits == 1
    finally:
        consumer.close()


@pytest.mark.parametrize("security", ["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def test_clients_log_in(security: str) -> None:
    with KafkaBroker(security=security) as broker:
        topic = broker.create_topic()
        assert _send(broker.client_config(), topic, "confluent-kafka") == [None]
        with contextlib.closing(KafkaProducer(**broker.kafka_python_config())) as producer:
            producer.send(topic, b"kafka-python").get(TIMEOUT_SECONDS)
        asyncio.run(_copy_with_aiokafka(broker, topic))
        values = [each.value for each in broker.records(topic)]
    assert values == [b"confluent-kafka", b"kafka-python", b"aiokafka"]


async def _copy_with_aiokafka(broker: KafkaBroker, topic: str) -> None:
    async with AIOKafkaProducer(**broker.aiokafka_config()) as producer:
        await producer.send_and_wait(topic, b"aiokafka")
    config = broker.aiokafka_config(auto_offset_reset="earliest")
    async with AIOKafkaConsumer(topic, **config) as consumer:
        assert (await consumer.getone()).value == b"confluent-kafka"
    assert len(await broker.wait_for_records_async(topic, 3)) == 3
