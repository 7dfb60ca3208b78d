"""aiokafka: old, non-flexible versions of the protocol, every codec, groups, seek, admin."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import TopicAlreadyExistsError
from tests.support.broker_process import BrokerProcess

CODECS = [None, "gzip", "snappy", "lz4", "zstd"]


async def _produce(
    broker: BrokerProcess, topic: str, values: list[bytes], codec: str | None
) -> list[Any]:
    producer = AIOKafkaProducer(
        bootstrap_servers=broker.address, compression_type=codec, acks="all"
    )
    await producer.start()
    try:
        sent = [
            await producer.send(topic, value, key=b"k", headers=[("h", b"x")]) for value in values
        ]
        return list(await asyncio.gather(*sent))
    finally:
        await producer.stop()


async def _consume(broker: BrokerProcess, topic: str, count: int, **config: Any) -> list[Any]:
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=broker.address, auto_offset_reset="earliest", **config
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


@pytest.mark.smoke
@pytest.mark.parametrize("codec", CODECS)
def test_what_is_produced_is_consumed(
    shared_broker: BrokerProcess, topic: str, codec: str | None
) -> None:
    async def run() -> None:
        values = [b"value-%d" % number for number in range(300)]
        sent = await _produce(shared_broker, topic, values, codec)
        assert [record.offset for record in sent] == list(range(300))
        found = await _consume(shared_broker, topic, 300, group_id=f"g-{topic}")
        assert [message.value for message in found] == values
        assert found[0].headers == (("h", b"x"),)

    asyncio.run(run())


def test_a_group_continues_at_its_committed_offsets(
    shared_broker: BrokerProcess, topic: str
) -> None:
    async def run() -> None:
        await _produce(shared_broker, topic, [b"%d" % number for number in range(10)], None)
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=shared_broker.address,
            group_id=f"g-{topic}",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
        for _ in range(4):
            await asyncio.wait_for(consumer.getone(), 20)
        await consumer.commit()
        assert await consumer.committed(TopicPartition(topic, 0)) == 4
        await consumer.stop()
        found = await _consume(shared_broker, topic, 6, group_id=f"g-{topic}")
        assert [message.value for message in found] == [b"%d" % number for number in range(4, 10)]

    asyncio.run(run())


async def _send(broker: BrokerProcess, topic: str, count: int, first_ms: int) -> None:
    """Numbers as values, a second between each and the next."""
    # With acks=1, the default here, what was sent may be on its way to the disk still.
    async with AIOKafkaProducer(bootstrap_servers=broker.address, acks="all") as producer:
        for number in range(count):
            await producer.send(
                topic, b"%d" % number, partition=0, timestamp_ms=first_ms + number * 1000
            )


def test_seek_by_time_and_to_the_ends(shared_broker: BrokerProcess, topic: str) -> None:
    async def run() -> None:
        base_ms = int(time.time() * 1000) - 100_000
        await _send(shared_broker, topic, 20, base_ms)
        partition = TopicPartition(topic, 0)
        async with AIOKafkaConsumer(bootstrap_servers=shared_broker.address) as consumer:
            consumer.assign([partition])
            found = (await consumer.offsets_for_times({partition: base_ms + 4500}))[partition]
            assert (found.offset, found.timestamp) == (5, base_ms + 5000)
            late = await consumer.offsets_for_times({partition: base_ms + 10**8})
            assert late == {partition: None}
            consumer.seek(partition, found.offset)
            assert (await asyncio.wait_for(consumer.getone(), 20)).value == b"5"
            await consumer.seek_to_end(partition)
            assert await consumer.position(partition) == 20
            await consumer.seek_to_beginning(partition)
            assert (await asyncio.wait_for(consumer.getone(), 20)).value == b"0"
            assert await consumer.beginning_offsets([partition]) == {partition: 0}
            assert await consumer.end_offsets([partition]) == {partition: 20}

    asyncio.run(run())


def test_a_paused_partition_is_silent_and_loses_nothing(
    shared_broker: BrokerProcess, topic: str
) -> None:
    async def run() -> None:
        await _send(shared_broker, topic, 10, int(time.time() * 1000) - 100_000)
        partition = TopicPartition(topic, 0)
        async with AIOKafkaConsumer(bootstrap_servers=shared_broker.address) as consumer:
            consumer.assign([partition])
            await consumer.seek_to_beginning(partition)
            values = [(await asyncio.wait_for(consumer.getone(), 20)).value for _ in range(3)]
            consumer.pause(partition)
            assert await consumer.getmany(timeout_ms=500) == {}
            consumer.resume(partition)
            values += [(await asyncio.wait_for(consumer.getone(), 20)).value for _ in range(7)]
        assert values == [b"%d" % number for number in range(10)]

    asyncio.run(run())


def test_batches_made_by_hand_are_taken(shared_broker: BrokerProcess, topic: str) -> None:
    async def run() -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=shared_broker.address, enable_idempotence=True, compression_type="lz4"
        ) as producer:
            for first in (0, 100):
                batch = producer.create_batch()
                for number in range(first, first + 100):
                    assert batch.append(key=b"k", value=b"%d" % number, timestamp=None) is not None
                batch.close()
                sent = await producer.send_batch(batch, topic, partition=0)
                assert (await sent).offset == first

    asyncio.run(run())


async def _check_topics(admin: AIOKafkaAdminClient, topic: str) -> None:
    wanted = NewTopic(topic, 2, 1, topic_configs={"retention.ms": "9000000"})
    created = await admin.create_topics([wanted])
    assert [error for _, error, *_ in created.topic_errors] == [0]
    again = await admin.create_topics([wanted])
    assert [error for _, error, *_ in again.topic_errors] == [TopicAlreadyExistsError.errno]
    await admin.create_partitions({topic: NewPartitions(3)})
    [described] = await admin.describe_topics([topic])
    assert len(described["partitions"]) == 3
    [config] = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    rows = {row[0]: row[1] for row in config.resources[0][4]}
    assert rows["retention.ms"] == "9000000"
    assert rows["cleanup.policy"] == "delete"
    assert len((await admin.describe_cluster())["brokers"]) == 1


def test_admin_makes_changes_and_describes(shared_broker: BrokerProcess, topic: str) -> None:
    async def run() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=shared_broker.address)
        await admin.start()
        try:
            await _check_topics(admin, topic)
            await _send(shared_broker, topic, 5, int(time.time() * 1000) - 100_000)
            partition = TopicPartition(topic, 0)
            await admin.delete_records({partition: RecordsToDelete(before_offset=3)})
            async with AIOKafkaConsumer(
                topic,
                bootstrap_servers=shared_broker.address,
                group_id=f"g-{topic}",
                auto_offset_reset="earliest",
            ) as consumer:
                assert (await asyncio.wait_for(consumer.getone(), 20)).offset == 3
                assert (f"g-{topic}", "consumer") in await admin.list_consumer_groups()
                await consumer.commit({partition: 4})
            offsets = await admin.list_consumer_group_offsets(f"g-{topic}")
            assert offsets[partition].offset == 4
            await admin.delete_topics([topic])
            assert topic not in await admin.list_topics()
        finally:
            await admin.close()

    asyncio.run(run())
