"""Broker settings as defaults of topics, through a real admin client."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic
from tests.support.server import RunningBroker

from strandlog.testing.server import ServerThread

TOPIC, STATIC_BROKER, DEFAULT = 1, 4, 5


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ServerThread]:
    settings = {"log.retention.ms": "1h", "message.max.bytes": "2000", "num.partitions": "3"}
    settings |= {"delete.topic.enable": "false", "socket.request.max.bytes": "2048"}
    settings |= {"fetch.max.bytes": "1024"}
    running = ServerThread(tmp_path / "data", settings)
    running.start()
    yield running
    running.stop()


def _described(admin: AdminClient, kind: Any, name: str) -> dict[str, Any]:
    resource = ConfigResource(kind, name)
    found: dict[str, Any] = admin.describe_configs([resource])[resource].result(timeout=10)
    return found


def test_a_topic_shows_where_each_value_comes_from(broker: RunningBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    config = {"segment.bytes": "65536", "max.message.bytes": "3000"}
    admin.create_topics([NewTopic("t", config=config)])["t"].result(timeout=10)
    rows = _described(admin, ConfigResource.Type.TOPIC, "t")
    shown = {name: (row.value, row.source) for name, row in rows.items()}
    assert shown["segment.bytes"] == ("65536", TOPIC)
    assert shown["max.message.bytes"] == ("3000", TOPIC)
    assert shown["retention.ms"] == ("3600000", STATIC_BROKER)
    assert shown["cleanup.policy"] == ("delete", DEFAULT)
    assert set(rows["max.message.bytes"].synonyms) == {"max.message.bytes", "message.max.bytes"}
    assert len(admin.list_topics("t", timeout=10).topics["t"].partitions) == 3


def test_describe_configs_shows_the_settings_given_at_startup(broker: RunningBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    rows = _described(admin, ConfigResource.Type.BROKER, "0")
    shown = {name: (row.value, row.source) for name, row in rows.items()}
    assert shown["log.retention.ms"] == ("3600000", STATIC_BROKER)
    assert shown["num.partitions"] == ("3", STATIC_BROKER)
    assert shown["log.segment.bytes"] == ("1073741824", DEFAULT)


def test_topics_are_not_deleted_if_delete_topic_enable_is_false(broker: RunningBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic("t")])["t"].result(timeout=10)
    with pytest.raises(KafkaException, match="TOPIC_DELETION_DISABLED"):
        admin.delete_topics(["t"])["t"].result(timeout=10)
    assert "t" in admin.list_topics(timeout=10).topics


def test_a_request_over_the_limit_closes_its_connection(broker: RunningBroker) -> None:
    with socket.create_connection(("127.0.0.1", broker.port), timeout=10) as connection:
        connection.sendall(struct.pack(">i", 2049))
        assert connection.recv(1) == b""


def test_a_fetch_returns_at_most_fetch_max_bytes(broker: RunningBroker) -> None:
    producer = Producer({"bootstrap.servers": broker.address, "batch.num.messages": 1})
    for _ in range(8):
        producer.produce("t", b"v" * 500, partition=0)
    assert producer.flush(10) == 0
    with socket.create_connection(("127.0.0.1", broker.port), timeout=10) as connection:
        body = struct.pack(">iiiibi", -1, 100, 1, 2**20, 0, 1) + struct.pack(">h", 1) + b"t"
        body += struct.pack(">iiqi", 1, 0, 0, 2**20)
        request = struct.pack(">hhih", 1, 4, 7, -1) + body
        connection.sendall(struct.pack(">i", len(request)) + request)
        length = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))[0]
    assert 500 < length < 1024 + 200
