"""kafka-python: producers with every codec, seek by time, pause and resume, admin."""

from __future__ import annotations

import contextlib
import time
import warnings
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.admin import (
        ConfigResource,
        ConfigResourceType,
        NewPartitions,
        NewTopic,
        OffsetSpec,
    )
    from kafka.errors import TopicAlreadyExistsError
    from kafka.structs import OffsetAndMetadata

CODECS = [None, "gzip", "snappy", "lz4", "zstd"]


def _consumer(broker: BrokerProcess, **config: Any) -> KafkaConsumer:
    return KafkaConsumer(
        bootstrap_servers=broker.address,
        auto_offset_reset="earliest",
        consumer_timeout_ms=10_000,
        session_timeout_ms=6000,
        heartbeat_interval_ms=500,
        **config,
    )


def _take(consumer: KafkaConsumer, count: int) -> list[Any]:
    found = []
    for message in consumer:
        found.append(message)
        if len(found) == count:
            break
    return found


@pytest.mark.smoke
@pytest.mark.parametrize("codec", CODECS)
def test_what_is_produced_is_consumed(
    shared_broker: BrokerProcess, topic: str, codec: str | None
) -> None:
    producer = KafkaProducer(
        bootstrap_servers=shared_broker.address, compression_type=codec, acks="all"
    )
    sent = [
        producer.send(topic, b"value-%d" % number, key=b"k", headers=[("h", b"x")])
        for number in range(300)
    ]
    assert [future.get(timeout=20).offset for future in sent] == list(range(300))
    producer.close()
    consumer = _consumer(shared_broker, group_id=f"g-{topic}")
    consumer.subscribe([topic])
    messages = _take(consumer, 300)
    consumer.close()
    assert [message.value for message in messages] == [b"value-%d" % n for n in range(300)]
    assert messages[0].headers == [("h", b"x")]


def test_seek_by_time_and_committed_positions(shared_broker: BrokerProcess, topic: str) -> None:
    producer = KafkaProducer(bootstrap_servers=shared_broker.address)
    base = int(time.time() * 1000) - 100_000
    for number in range(20):
        producer.send(topic, b"%d" % number, timestamp_ms=base + number * 1000)
    producer.flush(timeout=20)
    producer.close()
    partition = TopicPartition(topic, 0)
    consumer = _consumer(shared_broker, group_id=f"g-{topic}", enable_auto_commit=False)
    consumer.assign([partition])
    found = consumer.offsets_for_times({partition: base + 4500})[partition]
    assert (found.offset, found.timestamp) == (5, base + 5000)
    consumer.seek(partition, found.offset)
    assert [message.value for message in _take(consumer, 3)] == [b"5", b"6", b"7"]
    consumer.commit()
    assert consumer.committed(partition) == 8
    consumer.close()


def test_a_paused_partition_is_silent_and_loses_nothing(
    shared_broker: BrokerProcess, topic: str
) -> None:
    producer = KafkaProducer(bootstrap_servers=shared_broker.address)
    for number in range(10):
        producer.send(topic, b"%d" % number)
    producer.flush(timeout=20)
    producer.close()
    partition = TopicPartition(topic, 0)
    consumer = _consumer(shared_broker, enable_auto_commit=False, max_poll_records=3)
    consumer.assign([partition])
    before = [message.value for message in _take(consumer, 3)]
    consumer.pause(partition)
    assert consumer.paused() == {partition}
    assert consumer.poll(timeout_ms=500) == {}
    consumer.resume(partition)
    after = [message.value for message in _take(consumer, 7)]
    consumer.close()
    assert before + after == [b"%d" % number for number in range(10)]


def test_admin_makes_changes_and_describes_topics(shared_broker: BrokerProcess, topic: str) -> None:
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=shared_broker.address)) as admin:
        admin.create_topics([NewTopic(topic, 2, 1, topic_configs={"retention.ms": "9000000"})])
        with pytest.raises(TopicAlreadyExistsError):
            admin.create_topics([NewTopic(topic, 2, 1)])
        admin.create_partitions({topic: NewPartitions(3)})
        [described] = admin.describe_topics([topic])
        assert len(described["partitions"]) == 3
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        configs = admin.describe_configs([resource])
        assert "9000000" in str(configs)
        admin.alter_configs(
            [ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "8000000"})]
        )
        assert "8000000" in str(admin.describe_configs([resource]))
        assert len(admin.describe_cluster()["brokers"]) == 1
        admin.delete_topics([topic])
        assert topic not in admin.list_topics()


def test_admin_moves_the_offsets_of_a_group(shared_broker: BrokerProcess, topic: str) -> None:
    group = f"g-{topic}"
    partition = TopicPartition(topic, 0)
    producer = KafkaProducer(bootstrap_servers=shared_broker.address)
    for number in range(10):
        producer.send(topic, b"%d" % number)
    producer.flush(timeout=20)
    producer.close()
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=shared_broker.address)) as admin:
        admin.alter_group_offsets(group, {partition: OffsetAndMetadata(7, "seven", -1)})
        assert group in str(admin.list_groups())
        listed = admin.list_group_offsets({group: [partition]})
        assert (listed[group][partition].offset, listed[group][partition].metadata) == (7, "seven")
        consumer = _consumer(shared_broker, group_id=group)
        consumer.subscribe([topic])
        assert [message.value for message in _take(consumer, 3)] == [b"7", b"8", b"9"]
        consumer.close()
        admin.delete_records({partition: 4})
        offsets = admin.list_partition_offsets({partition: OffsetSpec.EARLIEST})
        assert offsets[partition].offset == 4
        admin.delete_groups([group])
        assert group not in str(admin.list_groups())
