"""aiokafka: old, non-flexible versions of the protocol, every codec, groups."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from tests.broker_process import BrokerProcess

CODECS = [None, "gzip", "snappy", "lz4", "zstd"]


async def _produce(broker: BrokerProcess, values: list[bytes], codec: str | None) -> list[Any]:
    producer = AIOKafkaProducer(
        bootstrap_servers=broker.address, compression_type=codec, acks="all"
    )
    await producer.start()
    try:
        sent = [
            await producer.send("t", value, key=b"k", headers=[("h", b"x")]) for value in values
        ]
        return list(await asyncio.gather(*sent))
    finally:
        await producer.stop()


async def _consume(broker: BrokerProcess, count: int, **config: Any) -> list[Any]:
    consumer = AIOKafkaConsumer(
        "t", bootstrap_servers=broker.address, auto_offset_reset="earliest", **config
    )
    await consumer.start()
    found: list[Any] = []
    try:
        while len(found) < count:
            batch = await asyncio.wait_for(consumer.getmany(timeout_ms=500), 20)
            for messages in batch.values():
                found += messages
    finally:
        await consumer.stop()
    return found


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_produced_is_consumed(broker: BrokerProcess, codec: str | None) -> None:
    async def run() -> None:
        values = [b"value-%d" % number for number in range(300)]
        sent = await _produce(broker, values, codec)
        assert [record.offset for record in sent] == list(range(300))
        found = await _consume(broker, 300, group_id="g")
        assert [message.value for message in found] == values
        assert found[0].headers == (("h", b"x"),)

    asyncio.run(run())


def test_a_group_goes_on_where_it_committed(broker: BrokerProcess) -> None:
    async def run() -> None:
        await _produce(broker, [b"%d" % number for number in range(10)], None)
        consumer = AIOKafkaConsumer(
            "t",
            bootstrap_servers=broker.address,
            group_id="g",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
        for _ in range(4):
            await asyncio.wait_for(consumer.getone(), 20)
        await consumer.commit()
        assert await consumer.committed(TopicPartition("t", 0)) == 4
        await consumer.stop()
        found = await _consume(broker, 6, group_id="g")
        assert [message.value for message in found] == [b"%d" % number for number in range(4, 10)]

    asyncio.run(run())
