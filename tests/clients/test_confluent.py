"""librdkafka through confluent-kafka: producers, groups, admin."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)
from tests.support.broker_process import BrokerProcess

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def _admin(broker: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.address})


def _create(broker: BrokerProcess, name: str, partitions: int = 1, **config: str) -> None:
    admin = _admin(broker)  # kept: a client that goes takes its requests with it
    futures = admin.create_topics(
        [NewTopic(name, partitions, 1, config={k.replace("_", "."): v for k, v in config.items()})]
    )
    futures[name].result(timeout=20)


def _produce(broker: BrokerProcess, topic: str, values: list[bytes], **config: Any) -> None:
    failures: list[Any] = []
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 5, **config})
    for value in values:
        producer.produce(
            topic,
            value,
            key=value[-1:],
            headers=[("h", b"x")],
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(30) == 0
    assert not failures


def _consumer(broker: BrokerProcess, group: str, **config: Any) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6000,
            **config,
        }
    )


def _read(consumer: Consumer, count: int, seconds: float = 30) -> Iterator[Any]:
    deadline = time.monotonic() + seconds
    while count and time.monotonic() < deadline:
        for message in consumer.consume(min(count, 500), 0.5):
            assert message.error() is None, message.error()
            count -= 1
            yield message
    assert not count, f"{count} messages did not come"


@pytest.mark.smoke
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("acks", ["1", "all"])
def test_what_is_produced_is_consumed(
    shared_broker: BrokerProcess, topic: str, codec: str, acks: str
) -> None:
    values = [b"value-%d" % number for number in range(1000)]
    _create(shared_broker, topic, 3)
    _produce(shared_broker, topic, values, **{"compression.type": codec, "acks": acks})
    consumer = _consumer(shared_broker, f"g-{topic}")
    consumer.subscribe([topic])
    messages = list(_read(consumer, len(values)))
    consumer.close()
    assert sorted(message.value() for message in messages) == sorted(values)
    assert all(message.headers() == [("h", b"x")] for message in messages)
    for partition in range(3):
        offsets = [m.offset() for m in messages if m.partition() == partition]
        assert offsets == list(range(len(offsets)))


def test_an_idempotent_producer_keeps_order_and_writes_once(
    shared_broker: BrokerProcess, topic: str
) -> None:
    _create(shared_broker, topic)
    values = [b"%06d" % number for number in range(5000)]
    _produce(shared_broker, topic, values, **{"enable.idempotence": True, "batch.num.messages": 50})
    consumer = _consumer(shared_broker, f"g-{topic}")
    consumer.subscribe([topic])
    assert [message.value() for message in _read(consumer, len(values))] == values
    consumer.close()


@pytest.mark.slow
@pytest.mark.smoke
@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_members_share_a_topic_and_take_over_from_each_other(
    shared_broker: BrokerProcess, topic: str, strategy: str
) -> None:
    _create(shared_broker, topic, 4)
    config = {"partition.assignment.strategy": strategy, "heartbeat.interval.ms": 300}
    first = _consumer(shared_broker, f"g-{topic}", **config)
    first.subscribe([topic])
    deadline = time.monotonic() + 30
    while len(first.assignment()) != 4 and time.monotonic() < deadline:
        first.poll(0.1)
    second = _consumer(shared_broker, f"g-{topic}", **config)
    second.subscribe([topic])
    while time.monotonic() < deadline:
        first.poll(0.1)
        second.poll(0.1)
        if len(first.assignment()) == len(second.assignment()) == 2:
            break
    assert len(first.assignment()) == len(second.assignment()) == 2
    second.close()
    while len(first.assignment()) != 4 and time.monotonic() < deadline:
        first.poll(0.1)
    assert len(first.assignment()) == 4
    first.close()


def test_a_group_continues_at_its_committed_offset_after_the_broker_was_killed(
    broker: BrokerProcess,
) -> None:
    _create(broker, "t")
    _produce(broker, "t", [b"%d" % number for number in range(100)])
    consumer = _consumer(broker, "g", **{"enable.auto.commit": False})
    consumer.subscribe(["t"])
    read = [message.value() for message in _read(consumer, 40)]
    consumer.commit(offsets=[TopicPartition("t", 0, 40, metadata="forty")], asynchronous=False)
    consumer.close()
    broker.stop(signal.SIGKILL)
    broker.start()
    consumer = _consumer(broker, "g")
    [committed] = consumer.committed([TopicPartition("t", 0)], timeout=10)
    assert (committed.offset, committed.metadata) == (40, "forty")
    consumer.subscribe(["t"])
    read += [message.value() for message in _read(consumer, 60)]
    consumer.close()
    assert read == [b"%d" % number for number in range(100)]


def test_offsets_by_time_are_exact(shared_broker: BrokerProcess, topic: str) -> None:
    _create(shared_broker, topic)
    producer = Producer({"bootstrap.servers": shared_broker.address})
    base = int(time.time() * 1000) - 1_000_000
    for number in range(50):
        producer.produce(topic, b"%d" % number, timestamp=base + number * 1000)
    assert producer.flush(10) == 0
    consumer = _consumer(shared_broker, f"g-{topic}")
    for wanted, offset in ((base, 0), (base + 10_500, 11), (base + 49_000, 49)):
        [found] = consumer.offsets_for_times([TopicPartition(topic, 0, wanted)], timeout=10)
        assert found.offset == offset
    [late] = consumer.offsets_for_times([TopicPartition(topic, 0, base + 10**9)], timeout=10)
    assert late.offset == -1
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10) == (0, 50)
    consumer.close()


def test_admin_creates_describes_changes_and_deletes(broker: BrokerProcess) -> None:
    admin = _admin(broker)
    _create(broker, "t", 2, retention_ms="1000")
    with pytest.raises(KafkaException) as twice:
        _create(broker, "t")
    assert twice.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    with pytest.raises(KafkaException) as bad:
        _create(broker, "bad", no_such_setting="1")
    assert bad.value.args[0].code() == KafkaError.INVALID_CONFIG
    resource = ConfigResource(ConfigResource.Type.TOPIC, "t")
    config = admin.describe_configs([resource])[resource].result(timeout=10)
    assert config["retention.ms"].value == "1000"
    assert not config["retention.ms"].is_default
    assert config["cleanup.policy"].value == "delete"
    assert config["cleanup.policy"].is_default
    assert len(config) > 20
    admin.create_partitions([NewPartitions("t", 5)])["t"].result(timeout=10)
    assert len(admin.list_topics("t", timeout=10).topics["t"].partitions) == 5
    admin.delete_topics(["t"])["t"].result(timeout=10)
    assert "t" not in admin.list_topics(timeout=10).topics


def test_groups_are_listed_described_and_deleted(broker: BrokerProcess) -> None:
    _create(broker, "t")
    _produce(broker, "t", [b"x"])
    consumer = _consumer(broker, "g")
    consumer.subscribe(["t"])
    list(_read(consumer, 1))
    admin = _admin(broker)
    listed = admin.list_consumer_groups().result(timeout=10)
    assert [group.group_id for group in listed.valid] == ["g"]
    described = admin.describe_consumer_groups(["g"])["g"].result(timeout=10)
    assert [
        (tp.topic, tp.partition) for tp in described.members[0].assignment.topic_partitions
    ] == [("t", 0)]
    consumer.close()
    admin.delete_consumer_groups(["g"])["g"].result(timeout=10)
    assert not admin.list_consumer_groups().result(timeout=10).valid


def test_a_topic_is_created_on_demand_and_an_invalid_name_is_rejected(
    broker: BrokerProcess,
) -> None:
    _produce(broker, "made-on-demand", [b"x"])
    assert "made-on-demand" in _admin(broker).list_topics(timeout=10).topics
    producer = Producer({"bootstrap.servers": broker.address, "message.timeout.ms": 3000})
    errors: list[Any] = []
    producer.produce("bad name!", b"x", on_delivery=lambda error, _: errors.append(error))
    producer.flush(10)
    assert errors
    assert errors[0] is not None


def test_a_paused_partition_is_silent_and_loses_nothing(
    shared_broker: BrokerProcess, topic: str
) -> None:
    values = [b"%d" % number for number in range(10)]
    _produce(shared_broker, topic, values)
    partition = TopicPartition(topic, 0, 0)
    consumer = _consumer(shared_broker, f"g-{topic}", **{"enable.auto.commit": False})
    consumer.assign([partition])
    found = [message.value() for message in _read(consumer, 3)]
    consumer.pause([partition])
    assert consumer.consume(10, 0.5) == []
    consumer.resume([partition])
    found += [message.value() for message in _read(consumer, 7)]
    consumer.seek(TopicPartition(topic, 0, 8))
    found += [message.value() for message in _read(consumer, 2)]
    consumer.close()
    assert found == [*values, b"8", b"9"]


def test_admin_describes_the_cluster_and_changes_settings(
    shared_broker: BrokerProcess, topic: str
) -> None:
    admin = _admin(shared_broker)
    _create(shared_broker, topic, 2)
    cluster = admin.describe_cluster(request_timeout=10).result()
    assert [node.port for node in cluster.nodes] == [shared_broker.port]
    wanted = TopicCollection([topic])
    described = admin.describe_topics(wanted, request_timeout=10)[topic].result()
    assert [part.leader.id for part in described.partitions] == [0, 0]
    change = ConfigResource(
        ConfigResource.Type.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry(
                "cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND
            ),
            ConfigEntry("retention.ms", "9000000", incremental_operation=AlterConfigOpType.SET),
        ],
    )
    admin.incremental_alter_configs([change])[change].result(timeout=10)
    config = admin.describe_configs([change])[change].result(timeout=10)
    assert config["cleanup.policy"].value == "delete,compact"
    assert config["retention.ms"].value == "9000000"


def test_admin_finds_and_moves_offsets(shared_broker: BrokerProcess, topic: str) -> None:
    admin = _admin(shared_broker)
    group = f"g-{topic}"
    _produce(shared_broker, topic, [b"%d" % number for number in range(10)])
    partition = TopicPartition(topic, 0)
    for spec, offset in ((OffsetSpec.earliest(), 0), (OffsetSpec.latest(), 10)):
        found = admin.list_offsets({partition: spec}, request_timeout=10)
        assert found[partition].result().offset == offset
    deleted = admin.delete_records([TopicPartition(topic, 0, 4)])
    [low] = [future.result(timeout=10).low_watermark for future in deleted.values()]
    assert low == 4
    moved = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 7)])
    admin.alter_consumer_group_offsets([moved])[group].result(timeout=10)
    asked = ConsumerGroupTopicPartitions(group, [partition])
    [listed] = admin.list_consumer_group_offsets([asked])[group].result(timeout=10).topic_partitions
    assert listed.offset == 7
    consumer = _consumer(shared_broker, group)
    consumer.subscribe([topic])
    assert [message.value() for message in _read(consumer, 3)] == [b"7", b"8", b"9"]
    consumer.close()
