"""The clients with a login: settings, a round trip, and how each reports a failed login.

`Login` has what a user would write down: address, protocol, mechanism, name, password, CA; or a
certificate instead of mechanism, name and password. Each client gets it in its own settings.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import ssl
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.errors import KafkaConnectionError

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

PATIENCE_SECONDS = 30
BRIEFLY_MS = 1000
FAILED = "Authentication failed"
JAVA_MODULES = {
    "PLAIN": "plain.PlainLoginModule",
    "SCRAM-SHA-256": "scram.ScramLoginModule",
    "SCRAM-SHA-512": "scram.ScramLoginModule",
}


class Login(NamedTuple):
    """How to reach a broker as a user."""

    address: str
    protocol: str  # SASL_PLAINTEXT, SASL_SSL or SSL
    mechanism: str = ""
    user: str = ""
    password: str = ""
    ca: Path | None = None
    certificate: Path | None = None  # key and chain

    def librdkafka(self, **more: Any) -> dict[str, Any]:
        found = {"bootstrap.servers": self.address, "security.protocol": self.protocol}
        if self.mechanism:
            found |= {
                "sasl.mechanism": self.mechanism,
                "sasl.username": self.user,
                "sasl.password": self.password,
            }
        if self.ca is not None:
            found["ssl.ca.location"] = str(self.ca)
        if self.certificate is not None:
            path = str(self.certificate)
            found |= {"ssl.certificate.location": path, "ssl.key.location": path}
        return {**found, **more}

    def kafka_python(self, **more: Any) -> dict[str, Any]:
        tls = {} if self.ca is None else {"ssl_cafile": str(self.ca)}
        if self.certificate is not None:
            tls |= {"ssl_certfile": str(self.certificate), "ssl_keyfile": str(self.certificate)}
        return {**self._python(), **tls, **more}

    def aiokafka(self, **more: Any) -> dict[str, Any]:
        context = {}
        if self.ca is not None:
            tls = context["ssl_context"] = ssl.create_default_context(cafile=str(self.ca))
            if self.certificate is not None:
                tls.load_cert_chain(self.certificate)
        return {**self._python(), **context, **more}

    def _python(self) -> dict[str, Any]:
        found = {"bootstrap_servers": self.address, "security_protocol": self.protocol}
        if not self.mechanism:
            return found
        return found | {
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.user,
            "sasl_plain_password": self.password,
        }

    def java(self) -> dict[str, str]:
        module = f"org.apache.kafka.common.security.{JAVA_MODULES[self.mechanism]}"
        found = {
            "bootstrap.servers": self.address,
            "security.protocol": self.protocol,
            "sasl.mechanism": self.mechanism,
            "sasl.jaas.config": (
                f'{module} required username="{self.user}" password="{self.password}";'
            ),
        }
        if self.ca is not None:
            found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.ca)}
        return found

    def kafkajs(self) -> dict[str, Any]:
        return {
            "brokers": [self.address],
            "ssl": False if self.ca is None else {"ca": [self.ca.read_text()]},
            "sasl": {
                "mechanism": self.mechanism.lower(),
                "username": self.user,
                "password": self.password,
            },
        }


class SecureClient(NamedTuple):
    """What the tests do with one client."""

    name: str
    produce: Callable[[Login, str, Sequence[bytes]], None]
    consume: Callable[[Login, str, int], list[bytes]]
    failure: Callable[[Login], str]  # what it reports about a failed login


@contextlib.contextmanager
def _logged(name: str) -> Iterator[list[str]]:
    """The lines that a library logs meanwhile."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger(name).addHandler(handler)
    try:
        yield lines
    finally:
        logging.getLogger(name).removeHandler(handler)


# -- confluent-kafka -------------------------------------------------------------------------------


def _confluent_produce(login: Login, topic: str, values: Sequence[bytes]) -> None:
    failures: list[Any] = []
    producer = confluent_kafka.Producer(login.librdkafka())
    for value in values:
        producer.produce(
            topic,
            value,
            partition=0,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert not failures, failures


def _confluent_consume(login: Login, topic: str, count: int) -> list[bytes]:
    consumer = confluent_kafka.Consumer(login.librdkafka(**{"group.id": "g"}))
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)])
    found: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(found) < count and time.monotonic() < deadline:
        for got in consumer.consume(count - len(found), 0.2):
            assert got.error() is None, got.error()
            found.append(got.value())
    consumer.close()
    return found


def _confluent_failure(login: Login) -> str:
    """The first error that librdkafka reports."""
    errors: list[confluent_kafka.KafkaError] = []
    producer = confluent_kafka.Producer(login.librdkafka(error_cb=errors.append))
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not errors and time.monotonic() < deadline:
        producer.poll(0.1)
    return f"{errors[0].name()} {errors[0].str()}" if errors else "none"


# -- kafka-python ----------------------------------------------------------------------------------


def _kafka_python_produce(login: Login, topic: str, values: Sequence[bytes]) -> None:
    producer = kafka.KafkaProducer(**login.kafka_python())
    with contextlib.closing(producer):
        for future in [producer.send(topic, value, partition=0) for value in values]:
            future.get(timeout=PATIENCE_SECONDS)


def _kafka_python_consume(login: Login, topic: str, count: int) -> list[bytes]:
    consumer = kafka.KafkaConsumer(**login.kafka_python())
    partition = kafka.TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    found: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(found) < count and time.monotonic() < deadline:
        for records in consumer.poll(timeout_ms=200).values():
            found += [record.value for record in records]
    consumer.close()
    return found


def _kafka_python_failure(login: Login) -> str:
    """What kafka-python logs about its first attempt; it repeats them until a time-out."""
    with _logged("kafka") as lines, contextlib.suppress(kafka.errors.KafkaError):
        kafka.KafkaProducer(**login.kafka_python(), bootstrap_timeout_ms=BRIEFLY_MS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # it does not close its sockets
        gc.collect()
    return next((line for line in lines if FAILED in line), "none")


# -- aiokafka --------------------------------------------------------------------------------------


def _aiokafka_produce(login: Login, topic: str, values: Sequence[bytes]) -> None:
    async def run() -> None:
        producer = AIOKafkaProducer(**login.aiokafka())
        await producer.start()
        try:
            sent = [await producer.send(topic, value, partition=0) for value in values]
            await asyncio.wait_for(asyncio.gather(*sent), PATIENCE_SECONDS)
        finally:
            await producer.stop()

    asyncio.run(run())


def _aiokafka_consume(login: Login, topic: str, count: int) -> list[bytes]:
    async def run() -> list[bytes]:
        consumer = AIOKafkaConsumer(**login.aiokafka())
        await consumer.start()
        found: list[bytes] = []
        try:
            partition = AioTopicPartition(topic, 0)
            consumer.assign([partition])
            await consumer.seek_to_beginning(partition)
            deadline = time.monotonic() + PATIENCE_SECONDS
            while len(found) < count and time.monotonic() < deadline:
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    found += [record.value for record in records]
        finally:
            await consumer.stop()
        return found

    return asyncio.run(run())


def _aiokafka_failure(login: Login) -> str:
    """aiokafka tries each address once and logs why; the exception only says that none worked."""

    async def run() -> None:
        producer = AIOKafkaProducer(**login.aiokafka())
        try:
            await asyncio.wait_for(producer.start(), PATIENCE_SECONDS)
        finally:
            await producer.stop()

    with _logged("aiokafka") as lines, contextlib.suppress(KafkaConnectionError):
        asyncio.run(run())
    return next((line for line in lines if FAILED in line), "none")


SECURE_CLIENTS = [
    SecureClient("confluent", _confluent_produce, _confluent_consume, _confluent_failure),
    SecureClient(
        "kafka-python", _kafka_python_produce, _kafka_python_consume, _kafka_python_failure
    ),
    SecureClient("aiokafka", _aiokafka_produce, _aiokafka_consume, _aiokafka_failure),
]
