"""Test data for the console: topics, records, groups, pipeline reports."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Any

import httpx
from confluent_kafka import Consumer, Producer
from tests.support.http_client import ok
from tests.support.server import RunningBroker

PATIENCE_S = 30


def make(api: httpx.Client, name: str, partitions: int = 1, **config: str) -> None:
    body = {"name": name, "partitions": partitions, "config": config}
    ok(api.post("/api/v1/topics", json=body), 201)


def send(api: httpx.Client, topic: str, *records: dict[str, Any], partition: int = 0) -> None:
    body = {"records": list(records), "partition": partition}
    ok(api.post(f"/api/v1/topics/{topic}/records", json=body))


def produce(broker: RunningBroker, topic: str, *values: bytes, **record: Any) -> None:
    """Through the Kafka listener, as other producers do."""
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": broker.address, "batch.size": 100_000})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: failed.append(error), **record)
    assert producer.flush(PATIENCE_S) == 0
    assert not any(failed)


@contextmanager
def steady(broker: RunningBroker, topic: str, value: bytes) -> Iterator[None]:
    """A producer that sends a little all the time."""
    is_over = Event()

    def send_on() -> None:
        while not is_over.wait(0.05):
            produce(broker, topic, *[value] * 20)

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send_on)
        try:
            yield
        finally:
            is_over.set()
            sending.result()


@contextmanager
def member(broker: RunningBroker, group: str, topic: str) -> Iterator[Consumer]:
    """A consumer that has joined its group and read something."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": group,
            "client.id": f"{group}-client",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.subscribe([topic])
        assert consumer.consume(1, PATIENCE_S)
        yield consumer
    finally:
        consumer.close()


def commit(api: httpx.Client, group: str, topic: str, offset: int) -> None:
    """A group without members that has committed an offset."""
    body = {"to": "offset", "offset": offset, "topic": topic, "is_dry_run": False}
    ok(api.post(f"/api/v1/groups/{group}/reset", json=body))


def report(api: httpx.Client, pipeline: str, *queries: dict[str, Any], **more: Any) -> None:
    body = {"queries": list(queries), **more}
    ok(api.post(f"/api/v1/pipelines/{pipeline}/progress", json=body), 204)
