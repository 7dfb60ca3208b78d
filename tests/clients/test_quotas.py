"""Real clients against byte quotas: everything arrives, and no faster than the quota allows.

The bounds are on bytes: a machine that is busy makes a client slower, which fulfils them too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from tests.clients import peers
from tests.support.kafka_requests import Wire, create_topic
from tests.support.quotas import metric, set_quota
from tools.fetch_peers import KAFKA_BROKER

from strandlog.broker.access.quota_entity import QuotaFilter
from strandlog.broker.context import OWNER, RequestContext
from strandlog.storage.work import run_inline
from strandlog.testing.server import ServerThread

WINDOW_S = 3  # quota.window.num * quota.window.size.seconds
RATE = 300_000
COUNT, SIZE = 150, 10_000  # five seconds at this rate
BATCH = 100_000
PATIENCE_S = 60


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerThread]:
    with ServerThread(tmp_path / "data", {"quota.window.num": str(WINDOW_S)}) as running:
        with Wire(running.port) as wire:
            create_topic(wire, "t")
        yield running


def allowed_bytes(began: float) -> float:
    """What a client may have used since then: a full window, and one batch over it."""
    return (time.monotonic() - began + WINDOW_S) * RATE + 2 * BATCH


def produce_all(server: ServerThread) -> None:
    config: dict[str, Any] = {
        "bootstrap.servers": server.address,
        "batch.size": BATCH,
        "linger.ms": 5,
    }
    failed: list[object] = []
    producer = Producer(config)
    for number in range(COUNT):
        producer.produce(
            "t",
            number.to_bytes(4) * (SIZE // 4),
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    assert failed == []


def test_librdkafka_produces_no_faster_than_its_quota(server: ServerThread) -> None:
    set_quota(server, "producer_byte_rate", RATE)
    began = time.monotonic()
    produce_all(server)
    assert metric(server, "produced_records") == COUNT
    assert COUNT * SIZE <= metric(server, "produced_bytes") <= allowed_bytes(began)
    assert metric(server, "throttled_requests") > 0


def test_librdkafka_consumes_no_faster_than_its_quota(server: ServerThread) -> None:
    produce_all(server)
    set_quota(server, "consumer_byte_rate", RATE)
    consumer = Consumer(
        {
            "bootstrap.servers": server.address,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "max.partition.fetch.bytes": BATCH,
        }
    )
    began = time.monotonic()
    consumer.subscribe(["t"])
    values: list[bytes | None] = []
    while len(values) < COUNT and time.monotonic() - began < PATIENCE_S:
        found = consumer.poll(1)
        if found is not None and found.error() is None:
            values.append(found.value())
            assert len(values) * SIZE <= allowed_bytes(began)
    consumer.close()
    assert [int.from_bytes(value[:4]) for value in values if value] == list(range(COUNT))
    assert metric(server, "throttled_requests") > 0


def test_aiokafka_produces_no_faster_than_its_quota(server: ServerThread) -> None:
    set_quota(server, "producer_byte_rate", RATE)

    async def produce() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=server.address, max_batch_size=BATCH, acks="all"
        )
        await producer.start()
        try:
            sent = [await producer.send("t", bytes(SIZE)) for _ in range(COUNT)]
            await asyncio.wait_for(asyncio.gather(*sent), PATIENCE_S)
        finally:
            await producer.stop()

    began = time.monotonic()
    asyncio.run(produce())
    assert metric(server, "produced_records") == COUNT
    assert metric(server, "produced_bytes") <= allowed_bytes(began)
    assert metric(server, "throttled_requests") > 0


def _kafka_configs(server: ServerThread, *arguments: str) -> str:
    return peers.run(
        *("java", "-cp", peers.folder(KAFKA_BROKER) / "*", "kafka.admin.ConfigCommand"),
        *("--bootstrap-server", server.address, *arguments),
    )


def test_kafka_configs_sets_lists_and_deletes_quotas(server: ServerThread) -> None:
    of_alice = ("--entity-type", "users", "--entity-name", "alice")
    default = ("--entity-type", "clients", "--entity-default")
    limits = "producer_byte_rate=1024,request_percentage=12.5"
    _kafka_configs(server, "--alter", *of_alice, *default, "--add-config", limits)
    [quotas] = quotas_of(server)
    assert quotas == (
        (("client-id", None), ("user", "alice")),
        {"producer_byte_rate": 1024, "request_percentage": 12.5},
    )
    described = _kafka_configs(server, "--describe", *of_alice, *default)
    assert "producer_byte_rate=1024" in described
    _kafka_configs(server, "--alter", *of_alice, *default, "--delete-config", "producer_byte_rate")
    [(_, left)] = quotas_of(server)
    assert left == {"request_percentage": 12.5}


def quotas_of(server: ServerThread) -> list[Any]:
    """The quotas of the broker."""
    broker = server.server.broker
    return server.call(
        lambda: run_inline(broker.client_quotas(RequestContext(OWNER), QuotaFilter()))
    )
