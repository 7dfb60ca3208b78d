"""Transactions of kafka-python and aiokafka: ended both ways, offsets within, fenced, killed.

All clients must see the same records, so readers and writers differ: confluent-kafka reads,
committed and uncommitted.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
import warnings

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.errors import ProducerFenced
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from tests.clients.clients import CLIENTS, PATIENCE_SECONDS, Message
from tests.support.broker_process import BrokerProcess

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    from kafka.errors import KafkaError
    from kafka.structs import OffsetAndMetadata

# A producer that is killed in the middle of a transaction, which stays open.
KILLED = """
import sys, warnings
warnings.simplefilter("ignore")
from kafka import KafkaProducer
producer = KafkaProducer(bootstrap_servers=sys.argv[1], transactional_id=sys.argv[2],
                         transaction_timeout_ms=3000)
producer.init_transactions()
producer.begin_transaction()
producer.send(sys.argv[2], b"never ended", partition=0).get(timeout=20)
print("written", flush=True)
sys.stdin.read()
"""


def _values(broker: BrokerProcess, topic: str, isolation: str) -> list[bytes]:
    """What a reader sees up to the end as it sees it."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "no-group",
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None and message.error() is not None:
            break
        if message is not None:
            found.append(message.value())
    consumer.close()
    return found


def _kafka_producer(broker: BrokerProcess, transactional_id: str) -> kafka.KafkaProducer:
    producer = kafka.KafkaProducer(
        bootstrap_servers=broker.address, transactional_id=transactional_id, linger_ms=5
    )
    producer.init_transactions()
    return producer


def test_kafka_python_commits_and_aborts(shared_broker: BrokerProcess, topic: str) -> None:
    with contextlib.closing(_kafka_producer(shared_broker, topic)) as producer:
        for number in range(6):
            producer.begin_transaction()
            for part in range(3):
                producer.send(topic, b"%d.%d" % (number, part), partition=0)
            if number % 2:
                producer.flush()
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    wanted = [b"%d.%d" % (number, part) for number in range(6) for part in range(3)]
    committed = [value for value in wanted if int(value[:1]) % 2 == 0]
    assert _values(shared_broker, topic, "read_committed") == committed
    assert _values(shared_broker, topic, "read_uncommitted") == wanted


def test_kafka_python_moves_offsets_with_what_it_wrote(
    shared_broker: BrokerProcess, topic: str
) -> None:
    CLIENTS[0].produce(shared_broker.address, topic, [Message(None, b"in")] * 5, "none")
    partition = kafka.TopicPartition(topic, 0)
    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=shared_broker.address,
        group_id=f"g-{topic}",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
    )
    producer = _kafka_producer(shared_broker, f"id-{topic}")
    with contextlib.closing(consumer), contextlib.closing(producer):
        found: list[bytes] = []
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(found) < 5 and time.monotonic() < deadline:
            found += [r.value for each in consumer.poll(timeout_ms=200).values() for r in each]
        for offset, commits in ((3, True), (5, False)):
            producer.begin_transaction()
            producer.send(f"{topic}-out", b"up to %d" % offset, partition=0)
            producer.send_offsets_to_transaction(
                {partition: OffsetAndMetadata(offset, "", -1)}, consumer.group_metadata()
            )
            if commits:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
        assert consumer.committed(partition) == 3
    assert _values(shared_broker, f"{topic}-out", "read_committed") == [b"up to 3"]


def test_an_older_kafka_python_producer_is_fenced(shared_broker: BrokerProcess, topic: str) -> None:
    with contextlib.closing(_kafka_producer(shared_broker, topic)) as old:
        old.begin_transaction()
        old.send(topic, b"of the old one", partition=0).get(timeout=PATIENCE_SECONDS)
        with contextlib.closing(_kafka_producer(shared_broker, topic)) as new:
            with pytest.raises(KafkaError):
                old.send(topic, b"of a zombie", partition=0).get(timeout=PATIENCE_SECONDS)
            new.begin_transaction()
            new.send(topic, b"of the new one", partition=0)
            new.commit_transaction()
    assert _values(shared_broker, topic, "read_committed") == [b"of the new one"]


def test_the_transaction_of_a_killed_producer_ends_by_itself(
    shared_broker: BrokerProcess, topic: str
) -> None:
    arguments = [sys.executable, "-c", KILLED, shared_broker.address, topic]
    pipe = subprocess.PIPE
    with subprocess.Popen(arguments, stdin=pipe, stdout=pipe, text=True) as producer:
        assert producer.stdout is not None
        assert producer.stdout.readline() == "written\n"
        producer.kill()
    CLIENTS[0].produce(shared_broker.address, topic, [Message(None, b"after it")], "none")
    assert _values(shared_broker, topic, "read_committed") == [], "still open"
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not _values(shared_broker, topic, "read_committed") and time.monotonic() < deadline:
        pass
    assert _values(shared_broker, topic, "read_committed") == [b"after it"]


def _aio_producer(broker: BrokerProcess, transactional_id: str) -> AIOKafkaProducer:
    return AIOKafkaProducer(bootstrap_servers=broker.address, transactional_id=transactional_id)


def test_aiokafka_commits_and_aborts(shared_broker: BrokerProcess, topic: str) -> None:
    async def run() -> None:
        async with _aio_producer(shared_broker, topic) as producer:
            for number in range(4):
                with contextlib.suppress(ZeroDivisionError):
                    async with producer.transaction():
                        sent = await producer.send(topic, b"%d" % number, partition=0)
                        await sent
                        assert 1 // ((number + 1) % 2)

    asyncio.run(run())
    assert _values(shared_broker, topic, "read_committed") == [b"0", b"2"]
    assert _values(shared_broker, topic, "read_uncommitted") == [b"0", b"1", b"2", b"3"]


def test_aiokafka_moves_offsets_with_what_it_wrote(
    shared_broker: BrokerProcess, topic: str
) -> None:
    CLIENTS[0].produce(shared_broker.address, topic, [Message(None, b"in")] * 5, "none")
    partition = AioTopicPartition(topic, 0)
    group = f"g-{topic}"

    async def run() -> None:
        async with (
            _aio_producer(shared_broker, f"id-{topic}") as producer,
            AIOKafkaConsumer(
                topic,
                bootstrap_servers=shared_broker.address,
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                isolation_level="read_committed",
            ) as consumer,
        ):
            for _ in range(5):
                await asyncio.wait_for(consumer.getone(), PATIENCE_SECONDS)
            async with producer.transaction():
                await producer.send(f"{topic}-out", b"up to 3", partition=0)
                await producer.send_offsets_to_transaction({partition: 3}, group)
            await producer.begin_transaction()
            await producer.send_offsets_to_transaction({partition: 5}, group)
            await producer.abort_transaction()
            assert await consumer.committed(partition) == 3

    asyncio.run(run())
    assert _values(shared_broker, f"{topic}-out", "read_committed") == [b"up to 3"]


def test_an_older_aiokafka_producer_is_fenced(shared_broker: BrokerProcess, topic: str) -> None:
    async def run() -> None:
        old = _aio_producer(shared_broker, topic)
        await old.start()
        await old.begin_transaction()
        await (await old.send(topic, b"of the old one", partition=0))
        async with _aio_producer(shared_broker, topic) as new, new.transaction():
            await new.send(topic, b"of the new one", partition=0)
        with pytest.raises(ProducerFenced):
            await (await old.send(topic, b"of a zombie", partition=0))
        with contextlib.suppress(ProducerFenced):
            await old.stop()

    asyncio.run(run())
    assert _values(shared_broker, topic, "read_committed") == [b"of the new one"]
