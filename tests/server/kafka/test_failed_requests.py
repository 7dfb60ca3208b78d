"""A request that cannot be answered closes the connection; later requests are not executed."""

from __future__ import annotations

import struct

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_requests import Wire, build, encode, request_header

from strandlog.protocol.kafka.api import CREATE_TOPICS, METADATA, PRODUCE
from strandlog.record.builder import build_batch


def _framed(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


def _produce_without_acks(value: bytes) -> bytes:
    rows = [{"index": 0, "records": bytes(build_batch(1_700_000_000_000, [value]))}]
    topics = [{"name": "missing", "partition_data": rows}]
    body = build(PRODUCE.key, 9, transactional_id=None, acks=0, timeout=1000, topic_data=topics)
    return request_header(PRODUCE.key, 9, 1) + encode(body)


def _many_topics_cut_short() -> bytes:
    """A Metadata request that is decoded in slices and ends too early."""
    topics = [{"name": f"topic-{number}"} for number in range(5000)]
    body = encode(build(METADATA.key, 8, topics=topics))
    return request_header(METADATA.key, 8, 1) + body[:-10]


FAILING = {
    "unreadable": request_header(METADATA.key, 1, 1) + b"\xff\xff",
    "unsupported": struct.pack(">hhih", METADATA.key, 99, 1, -1),
    "without-acks": _produce_without_acks(b"value"),
    "without-acks-large": _produce_without_acks(b"v" * 600_000),
    "in-slices": _many_topics_cut_short(),
}


@pytest.mark.parametrize("kind", FAILING)
def test_requests_pipelined_behind_a_failed_one_are_not_executed(
    wire: Wire, shared_broker: BrokerProcess, kind: str
) -> None:
    topic = f"behind-{kind}"
    body = build(
        CREATE_TOPICS.key,
        5,
        topics=[{"name": topic, "num_partitions": 1, "replication_factor": 1}],
        timeout=1000,
        validate_only=False,
    )
    creation = request_header(CREATE_TOPICS.key, 5, 2) + encode(body)
    wire.socket.sendall(_framed(FAILING[kind]) + _framed(creation))
    with pytest.raises(ConnectionError):
        wire.receive()
    with Wire(shared_broker.port) as other:
        found = other.ask(METADATA.key, 1, topics=None)
    assert topic not in {each.name for each in found.topics}


def test_the_log_says_why_a_produce_without_acks_failed(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    wire.send(_produce_without_acks(b"value"))
    with pytest.raises(ConnectionError):
        wire.receive()
    assert "Produce with acks=0 failed: topic 'missing' does not exist" in caplog.text
