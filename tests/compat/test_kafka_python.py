"""kafka-python: producers with every codec, groups with a member that is killed, seek by time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from typing import Any

import pytest
from tests.broker_process import BrokerProcess

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.admin import NewTopic

# The codecs that kafka-python can do with what is installed here.
CODECS = [None, "gzip"]

MEMBER = """
import sys, warnings
warnings.simplefilter("ignore")
from kafka import KafkaConsumer
consumer = KafkaConsumer("t", bootstrap_servers=sys.argv[1], group_id="g",
                         session_timeout_ms=6000, heartbeat_interval_ms=500)
while len(consumer.assignment()) != 2:
    consumer.poll(timeout_ms=100)
print("joined", flush=True)
while True:
    consumer.poll(timeout_ms=100)
"""


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


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_produced_is_consumed(broker: BrokerProcess, codec: str | None) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.address, compression_type=codec, acks="all")
    sent = [
        producer.send("t", b"value-%d" % number, key=b"k", headers=[("h", b"x")])
        for number in range(300)
    ]
    assert [future.get(timeout=20).offset for future in sent] == list(range(300))
    producer.close()
    consumer = _consumer(broker, group_id="g")
    consumer.subscribe(["t"])
    messages = _take(consumer, 300)
    consumer.close()
    assert [message.value for message in messages] == [b"value-%d" % n for n in range(300)]
    assert messages[0].headers == [("h", b"x")]


def test_seek_by_time_and_committed_positions(broker: BrokerProcess) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.address)
    base = int(time.time() * 1000) - 100_000
    for number in range(20):
        producer.send("t", b"%d" % number, timestamp_ms=base + number * 1000)
    producer.flush(timeout=20)
    producer.close()
    partition = TopicPartition("t", 0)
    consumer = _consumer(broker, group_id="g", enable_auto_commit=False)
    consumer.assign([partition])
    found = consumer.offsets_for_times({partition: base + 4500})[partition]
    assert (found.offset, found.timestamp) == (5, base + 5000)
    consumer.seek(partition, found.offset)
    assert [message.value for message in _take(consumer, 3)] == [b"5", b"6", b"7"]
    consumer.commit()
    assert consumer.committed(partition) == 8
    consumer.close()


def test_the_partitions_of_a_killed_member_are_taken_over(broker: BrokerProcess) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.address)
    admin.create_topics([NewTopic("t", 4, 1)])
    admin.close()
    consumer = _consumer(broker, group_id="g")
    consumer.subscribe(["t"])
    deadline = time.monotonic() + 60
    while len(consumer.assignment()) != 4 and time.monotonic() < deadline:
        consumer.poll(timeout_ms=100)
    arguments = [sys.executable, "-c", MEMBER, broker.address]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as member:
        while len(consumer.assignment()) != 2 and time.monotonic() < deadline:
            consumer.poll(timeout_ms=100)
        assert member.stdout is not None
        assert member.stdout.readline() == "joined\n"
        os.kill(member.pid, signal.SIGKILL)
    while len(consumer.assignment()) != 4 and time.monotonic() < deadline:
        consumer.poll(timeout_ms=100)
    assert len(consumer.assignment()) == 4
    consumer.close()
