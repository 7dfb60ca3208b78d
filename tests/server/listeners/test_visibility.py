"""Records acknowledged with acks=1 are visible to the next request, on every listener."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.http_client import client_of, http_broker, ok
from tests.support.kafka_requests import Wire, create_topic, produce

from strandlog.protocol.rpc import log_pb2 as messages
from strandlog.protocol.rpc.log_pb2_grpc import LogServiceStub
from strandlog.record.builder import build_batch

ACKS_LEADER = 1
LATEST, MAX_TIMESTAMP = -1, -3
NOW_MS = time.time_ns() // 1_000_000
ROUNDS = 20


def _send(wire: Wire, topic: str) -> None:
    assert (
        produce(wire, topic, bytes(build_batch(NOW_MS, [b"v"])), acks=ACKS_LEADER).error_code == 0
    )


def _list_offset(wire: Wire, topic: str, timestamp: int, isolation: int = 0) -> int:
    part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
    topics = [{"name": topic, "partitions": [part]}]
    answer = wire.ask(2, 7, replica_id=-1, isolation_level=isolation, topics=topics)
    return int(answer.topics[0].partitions[0].offset)


def _fetch(wire: Wire, topic: str, offset: int, max_wait: int = 0) -> tuple[int, int, int]:
    """(error code, high watermark, bytes) of a fetch."""
    part = {
        "partition": 0,
        "current_leader_epoch": -1,
        "fetch_offset": offset,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": 1_000_000,
    }
    answer = wire.ask(
        1,
        12,
        max_wait=max_wait,
        min_bytes=1,
        max_bytes=1_000_000,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[{"topic": topic, "partitions": [part]}],
        forgotten_topics_data=[],
        rack_id="",
    )
    found = answer.responses[0].partitions[0]
    return int(found.error_code), found.high_watermark, len(found.records or b"")


@pytest.mark.parametrize("isolation", [0, 1])
def test_the_end_offset_right_after_acks_1_counts_the_record(wire: Wire, isolation: int) -> None:
    """It was seen 100 ms later: 0 times of 20."""
    topic = f"latest-{isolation}"
    create_topic(wire, topic)
    found = []
    for _ in range(ROUNDS):
        _send(wire, topic)
        found.append(_list_offset(wire, topic, LATEST, isolation))
    assert found == list(range(1, ROUNDS + 1))


def test_a_time_lookup_right_after_acks_1_finds_the_record(wire: Wire) -> None:
    create_topic(wire, "by-time")
    _send(wire, "by-time")
    assert _list_offset(wire, "by-time", NOW_MS) == 0
    create_topic(wire, "newest")
    _send(wire, "newest")
    assert _list_offset(wire, "newest", MAX_TIMESTAMP) == 0


def test_a_fetch_without_a_wait_right_after_acks_1_gets_the_record(wire: Wire) -> None:
    create_topic(wire, "fetched")
    for offset in range(ROUNDS):
        _send(wire, "fetched")
        error, high_watermark, size = _fetch(wire, "fetched", offset)
        assert (error, high_watermark) == (0, offset + 1)
        assert size > 0


def test_records_of_acks_1_can_be_deleted_right_away(wire: Wire) -> None:
    """-1 deleted nothing, and their end offset was out of range."""
    create_topic(wire, "deleted")

    def delete(offset: int) -> tuple[int, int]:
        part = {"partition_index": 0, "offset": offset}
        topics = [{"name": "deleted", "partitions": [part]}]
        [found] = wire.ask(21, 2, topics=topics, timeout=1000).topics[0].partitions
        return int(found.error_code), found.low_watermark

    _send(wire, "deleted")
    assert delete(-1) == (0, 1)
    _send(wire, "deleted")
    assert delete(2) == (0, 2)


def test_a_leader_epoch_ends_at_the_high_watermark(wire: Wire) -> None:
    create_topic(wire, "epochs")
    _send(wire, "epochs")
    part = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
    topics = [{"topic": "epochs", "partitions": [part]}]
    [found] = wire.ask(23, 4, replica_id=-1, topics=topics).topics[0].partitions
    assert (found.end_offset, _fetch(wire, "epochs", 1)[1]) == (1, 1)


def test_http_records_offsets_and_lag_include_acknowledged_records(tmp_path: Path) -> None:
    with (
        http_broker(tmp_path / "data") as broker,
        client_of(broker) as api,
        Wire(broker.port) as wire,
    ):
        create_topic(wire, "seen")
        _send(wire, "seen")
        assert len(ok(api.get("/api/v1/topics/seen/records"))["records"]) == 1
        _send(wire, "seen")
        assert ok(api.get("/api/v1/topics/seen"))["partitions"][0]["end_offset"] == 2
        _send(wire, "seen")
        [row] = ok(api.get("/api/v1/topics"))["topics"]
        assert row["offsets"] == 3
        _send(wire, "seen")
        wanted = {"to": "latest", "topic": "seen", "is_dry_run": False}
        moved = ok(api.post("/api/v1/groups/g/reset", json=wanted))
        assert moved["changes"][0]["after"] == 4
        _send(wire, "seen")
        assert ok(api.get("/api/v1/groups/g"))["lag"] == 1
        _send(wire, "seen")
        assert ok(api.get("/api/v1/groups"))["groups"][0]["lag"] == 2


@pytest.mark.slow
def test_grpc_records_and_offsets_include_acknowledged_records(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", listeners=("--grpc-port", "0", "--no-http"))
    broker.start()
    [address] = [word[5:] for word in broker.ready.split() if word.startswith("grpc=")]
    try:
        with grpc.insecure_channel(address) as channel, Wire(broker.port) as wire:
            log: Any = LogServiceStub(channel)  # type: ignore[no-untyped-call]
            create_topic(wire, "seen")
            _send(wire, "seen")
            described = log.DescribeTopic(messages.DescribeTopicRequest(name="seen"))
            assert described.partitions[0].end_offset == 1
            _send(wire, "seen")
            answers = list(log.Consume(messages.ConsumeRequest(topic="seen", offset=1)))
            assert [len(answer.entries) for answer in answers] == [1]
    finally:
        assert broker.stop() == 0
