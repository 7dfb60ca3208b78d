"""The three Python clients behind two verbs, so that what one wrote another can read.

A `Message` is what a client gets back: key, value, headers and timestamp as Kafka has them, null
being None. `produce` waits until everything is acknowledged; `consume` reads partition 0 from its
beginning.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import confluent_kafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
PATIENCE_SECONDS = 30
MIB = 1024 * 1024

Headers = tuple[tuple[str, bytes | None], ...]


class Message(NamedTuple):
    """One record as a client gives it or gets it."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int = 1_700_000_000_000


class Client(NamedTuple):
    """Two verbs of one client: (address, topic, messages, codec) and (address, topic, count)."""

    name: str
    produce: Callable[[str, str, Sequence[Message], str], None]
    consume: Callable[[str, str, int], list[Message]]


# -- confluent-kafka ------------------------------------------------------------------------------


def _confluent_produce(address: str, topic: str, messages: Sequence[Message], codec: str) -> None:
    failures: list[Any] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": address,
            "compression.type": codec,
            "linger.ms": 20,
            "message.max.bytes": 4 * MIB,
        }
    )
    for message in messages:
        producer.produce(
            topic,
            message.value,
            key=message.key,
            headers=list(message.headers),
            timestamp=message.timestamp_ms,
            partition=0,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(PATIENCE_SECONDS) == 0
    if failures:
        raise confluent_kafka.KafkaException(failures[0])


def _confluent_consume(address: str, topic: str, count: int) -> list[Message]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": "no-group"})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)])
    found: list[Message] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(found) < count and time.monotonic() < deadline:
        for got in consumer.consume(count - len(found), 0.2):
            assert got.error() is None, got.error()
            headers = tuple(got.headers() or ())
            found.append(Message(got.key(), got.value(), headers, got.timestamp()[1]))
    consumer.close()
    return found


# -- kafka-python ---------------------------------------------------------------------------------


def _kafka_python_produce(
    address: str, topic: str, messages: Sequence[Message], codec: str
) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=address,
        compression_type=None if codec == "none" else codec,
        linger_ms=20,
        max_request_size=4 * MIB,
    )
    with contextlib.closing(producer):
        futures = [
            producer.send(
                topic,
                message.value,
                key=message.key,
                headers=list(message.headers),
                partition=0,
                timestamp_ms=message.timestamp_ms,
            )
            for message in messages
        ]
        for future in futures:
            future.get(timeout=PATIENCE_SECONDS)


def _kafka_python_consume(address: str, topic: str, count: int) -> list[Message]:
    consumer = kafka.KafkaConsumer(bootstrap_servers=address)
    partition = kafka.TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    found: list[Message] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(found) < count and time.monotonic() < deadline:
        for records in consumer.poll(timeout_ms=200).values():
            found += [Message(r.key, r.value, tuple(r.headers), r.timestamp) for r in records]
    consumer.close()
    return found


# -- aiokafka -------------------------------------------------------------------------------------


def _aiokafka_produce(address: str, topic: str, messages: Sequence[Message], codec: str) -> None:
    async def run() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=address,
            compression_type=None if codec == "none" else codec,
            linger_ms=20,
            max_request_size=4 * MIB,
        )
        await producer.start()
        try:
            sent = [
                await producer.send(
                    topic,
                    message.value,
                    key=message.key,
                    headers=list(message.headers),
                    partition=0,
                    timestamp_ms=message.timestamp_ms,
                )
                for message in messages
            ]
            await asyncio.wait_for(asyncio.gather(*sent), PATIENCE_SECONDS)
        finally:
            await producer.stop()

    asyncio.run(run())


def _aiokafka_consume(address: str, topic: str, count: int) -> list[Message]:
    async def run() -> list[Message]:
        consumer = AIOKafkaConsumer(bootstrap_servers=address)
        await consumer.start()
        found: list[Message] = []
        try:
            partition = AioTopicPartition(topic, 0)
            consumer.assign([partition])
            await consumer.seek_to_beginning(partition)
            deadline = time.monotonic() + PATIENCE_SECONDS
            while len(found) < count and time.monotonic() < deadline:
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    found += [
                        Message(r.key, r.value, tuple(r.headers), r.timestamp) for r in records
                    ]
        finally:
            await consumer.stop()
        return found

    return asyncio.run(run())


CLIENTS = [
    Client("confluent", _confluent_produce, _confluent_consume),
    Client("kafka-python", _kafka_python_produce, _kafka_python_consume),
    Client("aiokafka", _aiokafka_produce, _aiokafka_consume),
]
