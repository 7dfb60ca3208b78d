"""Damage on disk: Kafka clients get an error and no wrong record, and the broker reports it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from tests.support.broker_process import BrokerProcess
from tests.support.http_client import client_of, ok
from tests.support.server import RunningBroker

import strandlog
from strandlog.protocol.rpc.log_pb2 import ConsumeRequest
from strandlog.protocol.rpc.log_pb2_grpc import LogServiceStub

pytestmark = pytest.mark.slow

DAMAGED_OFFSET, COUNT = 20, 60
HTTP = ("--no-grpc", "--http-port", "0")


def value_of(offset: int) -> bytes:
    return b"value %08d " % offset * 20


@pytest.fixture(params=["sealed", "active"])
def damaged(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    """A broker on a folder in which one bit of a value was flipped while it was stopped."""
    data = tmp_path / "data"
    with strandlog.open(data) as log:
        size = "16KiB" if request.param == "sealed" else "1GiB"
        log.create_topic("orders", config={"segment.bytes": size, "retention.ms": "-1"})
        with log.producer(acks="all") as producer:
            for offset in range(COUNT):
                producer.send("orders", value_of(offset))
    path = data / "orders-0" / f"{0:020d}.log"
    raw = bytearray(path.read_bytes())
    raw[raw.index(value_of(DAMAGED_OFFSET)) + 7] ^= 4
    path.write_bytes(raw)
    broker = BrokerProcess(data, listeners=HTTP, log=tmp_path / "broker.log")
    broker.start()
    yield broker
    assert broker.stop() == 0, "it stops cleanly"


def consumed(broker: RunningBroker, start: int, end: int) -> tuple[dict[int, Any], set[int]]:
    """Values by offset, and the codes of errors, up to an offset or the first error.

    librdkafka checks no checksums by default.
    """
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "g"})
    consumer.assign([TopicPartition("orders", 0, start)])
    values: dict[int, Any] = {}
    errors: set[int] = set()
    deadline = time.monotonic() + 30
    while not errors and end - 1 not in values:
        assert time.monotonic() < deadline, f"got {len(values)} records, then nothing"
        message = consumer.poll(1)
        if message is not None and message.error():
            errors.add(message.error().code())
        elif message is not None:
            values[message.offset()] = message.value()
    consumer.close()
    return values, errors


def test_a_flipped_bit_reaches_no_client_that_does_not_check_checksums(
    damaged: BrokerProcess,
) -> None:
    before, errors = consumed(damaged, 0, COUNT)
    assert before == {offset: value_of(offset) for offset in range(DAMAGED_OFFSET)}
    assert errors == {KafkaError.INVALID_MSG}
    after, errors = consumed(damaged, DAMAGED_OFFSET + 1, COUNT)
    assert after == {offset: value_of(offset) for offset in range(DAMAGED_OFFSET + 1, COUNT)}
    assert not errors


def test_damage_that_a_client_finds_is_reported_and_logged_once(
    damaged: BrokerProcess,
) -> None:
    for _ in range(2):
        consumed(damaged, 0, COUNT)
    with client_of(damaged) as http:
        problems = ok(http.get("/api/v1/broker"))["problems"]
        assert ok(http.get("/api/v1/cluster"))["problems"] == problems
    assert len(problems) == 1
    assert f"(after offset {DAMAGED_OFFSET - 1}): checksum does not match" in problems[0]
    assert damaged.log is not None
    lines = [line for line in damaged.log.read_text().splitlines() if "checksum" in line]
    assert len(lines) == 1
    assert "orders-0" in lines[0]


def test_the_error_of_a_grpc_stream_names_the_offset_to_resume_at(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with strandlog.open(data) as log:
        log.create_topic("orders", config={"segment.bytes": "16KiB", "retention.ms": "-1"})
        with log.producer(acks="all") as producer:
            for offset in range(COUNT * 3):
                producer.send("orders", value_of(offset))
    cut, behind = sorted((data / "orders-0").glob("*.log"))[:2]
    cut.write_bytes(cut.read_bytes()[:1000])
    broker = BrokerProcess(data, listeners=("--grpc-port", "0", "--no-http"), log=tmp_path / "log")
    broker.start()
    [address] = [word[5:] for word in broker.ready.split() if word.startswith("grpc=")]
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as caught:
        stub: Any = LogServiceStub(channel)  # type: ignore[no-untyped-call]
        list(stub.Consume(ConsumeRequest(topic="orders", offset=0)))
    assert caught.value.code() == grpc.StatusCode.DATA_LOSS
    assert f"intact records continue at offset {int(behind.stem)}" in caught.value.details()
    assert broker.stop() == 0


def test_skip_unreadable_is_rejected_for_a_remote_broker() -> None:
    arguments = ["consume", "orders", "-b", "127.0.0.1:1", "--skip-unreadable"]
    done = subprocess.run(
        [sys.executable, "-m", "strandlog", *arguments], check=False, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "with -b, start after the batch: -o OFFSET" in " ".join(done.stderr.split())
