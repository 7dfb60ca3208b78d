"""What admin clients do beside topics and groups: folders, pages, moves, both kinds of alter."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic
from tests.support.broker_process import BrokerProcess

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.admin
    import kafka.errors


@contextlib.contextmanager
def _kafka_python(broker: BrokerProcess) -> Iterator[Any]:
    admin = kafka.KafkaAdminClient(bootstrap_servers=broker.address)
    try:
        yield admin
    finally:
        admin.close()


def _confluent(broker: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.address})


def _make(broker: BrokerProcess, topic: str, partitions: int = 1, **config: str) -> None:
    settings = {name.replace("_", "."): value for name, value in config.items()}
    wanted = NewTopic(topic, partitions, 1, config=settings)
    admin = _confluent(broker)
    admin.create_topics([wanted])[topic].result(timeout=10)


def _produce(broker: BrokerProcess, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker.address})
    for _ in range(count):
        producer.produce(topic, b"x" * 1000)
    assert producer.flush(20) == 0


def test_log_dirs_show_how_large_a_topic_is(shared_broker: BrokerProcess, topic: str) -> None:
    _make(shared_broker, topic)
    _produce(shared_broker, topic, 100)
    with _kafka_python(shared_broker) as admin:
        [node] = admin.describe_log_dirs([topic])
    found = str(node)
    assert topic in found
    assert str(shared_broker.data) in found
    [log_dir] = node["log_dirs"] if "log_dirs" in node else node["results"]
    [row] = log_dir["topics"][0]["partitions"]
    assert row["partition_size"] > 100_000


def test_partitions_are_described_page_by_page(shared_broker: BrokerProcess, topic: str) -> None:
    _make(shared_broker, topic, 5)
    with _kafka_python(shared_broker) as admin:
        page = admin.describe_topic_partitions([topic], response_partition_limit=3)
        assert [row["partition_index"] for row in page["topics"][0]["partitions"]] == [0, 1, 2]
        cursor = page["next_cursor"]
        rest = admin.describe_topic_partitions([topic], cursor=cursor)
        assert [row["partition_index"] for row in rest["topics"][0]["partitions"]] == [3, 4]
        assert rest["next_cursor"] is None


def test_reassignments_and_elections_change_nothing_on_a_single_broker(
    shared_broker: BrokerProcess, topic: str
) -> None:
    _make(shared_broker, topic, 2)
    with _kafka_python(shared_broker) as admin:
        assert not admin.list_partition_reassignments()
        answer = admin.elect_leaders(0, {topic: [0, 1]}, raise_errors=False)
        assert "already leads" in str(answer)
        moves = {kafka.TopicPartition(topic, 0): [0], kafka.TopicPartition(topic, 1): [7]}
        outcomes = admin.alter_partition_reassignments(moves)
        assert list(outcomes.values()) == [None, kafka.errors.InvalidReplicationAssignmentError]


@pytest.mark.filterwarnings("ignore:alter_configs has been deprecated")
def test_settings_are_listed_changed_and_reset(shared_broker: BrokerProcess, topic: str) -> None:
    _make(shared_broker, topic, retention_ms="9000000", flush_ms="7")
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    admin = _confluent(shared_broker)

    def own() -> dict[str, str]:
        found = admin.describe_configs([resource])[resource].result(timeout=10)
        return {name: row.value for name, row in found.items() if row.source == 1}

    assert own() == {"retention.ms": "9000000", "flush.ms": "7"}
    replaced = ConfigResource(ConfigResource.Type.TOPIC, topic, {"segment.bytes": "4096"})
    admin.alter_configs([replaced])[replaced].result(timeout=10)
    assert own() == {"segment.bytes": "4096"}
    wrong = ConfigResource(ConfigResource.Type.TOPIC, topic, {"segment.bites": "4096"})
    with pytest.raises(KafkaException) as refused:
        admin.alter_configs([wrong])[wrong].result(timeout=10)
    assert refused.value.args[0].code() == KafkaError.INVALID_CONFIG
    assert "segment.bytes" in refused.value.args[0].str()
    with _kafka_python(shared_broker) as other:
        kind = kafka.admin.ConfigResourceType.TOPIC
        other.reset_configs([kafka.admin.ConfigResource(kind, topic, {"segment.bytes": None})])
        assert topic in str(other.list_config_resources())
    assert own() == {}


def test_the_broker_shows_its_settings(shared_broker: BrokerProcess) -> None:
    resource = ConfigResource(ConfigResource.Type.BROKER, "0")
    admin = _confluent(shared_broker)
    found = admin.describe_configs([resource])[resource].result(timeout=10)
    delay = found["group.initial.rebalance.delay.ms"]
    assert (delay.value, delay.is_read_only, delay.is_default) == ("0", True, False)
    assert "log.retention.ms" in found


def test_offsets_of_a_topic_that_a_member_reads_are_not_deleted(
    shared_broker: BrokerProcess, topic: str
) -> None:
    _make(shared_broker, topic)
    _produce(shared_broker, topic, 1)
    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=shared_broker.address,
        group_id=topic,
        auto_offset_reset="earliest",
        consumer_timeout_ms=20_000,
    )
    assert next(consumer).offset == 0
    consumer.commit()
    partition = kafka.TopicPartition(topic, 0)
    with _kafka_python(shared_broker) as admin:
        busy = admin.delete_group_offsets(topic, [partition])
        assert "GroupSubscribedToTopic" in str(busy)
        assert consumer.committed(partition) == 1
        consumer.close()
        admin.delete_group_offsets(topic, [partition])
        left = admin.list_group_offsets({topic: [partition]})
        assert all(row.offset == -1 for rows in left.values() for row in rows.values()), left
