"""A broker that is killed while idempotent producers write: what was sent is there, once, in order.

The broker dies by SIGKILL twice and comes back on its port; the clients retry by themselves.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.clients.clients import CLIENTS
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import eventually

PROGRAM = Path(__file__).parent / "writer.py"
TOPIC = "t"


def _wait_until_written(broker: BrokerProcess, size_bytes: int) -> int:
    """Wait until the log has grown beyond a size; its size then."""
    log = broker.data / f"{TOPIC}-0" / f"{0:020}.log"
    eventually(lambda: log.exists() and log.stat().st_size > size_bytes, "the log grows")
    return log.stat().st_size


@pytest.mark.parametrize("client", [client.name for client in CLIENTS])
def test_an_idempotent_producer_outlives_a_killed_broker(
    broker: BrokerProcess, client: str
) -> None:
    arguments = [sys.executable, str(PROGRAM), client, broker.address, TOPIC]
    pipe = subprocess.PIPE
    with subprocess.Popen(arguments, stdin=pipe, stdout=pipe, text=True) as writer:
        size_bytes = 0
        for _ in range(2):
            size_bytes = _wait_until_written(broker, size_bytes)
            broker.stop(signal.SIGKILL)
            broker.start()
        _wait_until_written(broker, size_bytes)
        printed, _ = writer.communicate(timeout=120)
    assert writer.returncode == 0
    count = int(printed)
    found = CLIENTS[0].consume(broker.address, TOPIC, count)
    assert [message.value for message in found] == [b"%d" % number for number in range(count)]
    reader = Consumer({"bootstrap.servers": broker.address, "group.id": "g"})
    assert reader.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=20) == (0, count)
    reader.close()
