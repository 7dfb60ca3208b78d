"""One user, several protocols: bytes over Kafka, HTTP and gRPC count for the same quotas."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from tests.support.http_client import client_of
from tests.support.kafka_requests import Wire, create_topic, produce
from tests.support.quotas import metric, set_quota

from strandlog.protocol.rpc import log_pb2 as pb
from strandlog.protocol.rpc import log_pb2_grpc
from strandlog.record.builder import build_batch
from strandlog.testing.server import ServerThread

PRODUCE_RATE, FETCH_RATE = "producer_byte_rate", "consumer_byte_rate"
BATCH = bytes(build_batch(1_700_000_000_000, [b"x" * 1000]))
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerThread]:
    with ServerThread(tmp_path / "data", http=True, grpc=True) as running:
        with Wire(running.port) as wire:
            create_topic(wire, "t")
        yield running


@pytest.fixture
def http(server: ServerThread) -> Iterator[httpx.Client]:
    with client_of(server) as client:
        yield client


@pytest.fixture
def stub(server: ServerThread) -> Iterator[Any]:
    with grpc.insecure_channel(server.listener("grpc")) as channel:
        make: Any = log_pb2_grpc.LogServiceStub
        yield make(channel)


def post(http: httpx.Client) -> httpx.Response:
    records = {"records": [{"value": "x" * 1000}]}
    return http.post("/api/v1/topics/t/records", json=records)


def test_a_producer_over_http_gets_429_with_the_seconds_to_wait(
    server: ServerThread, http: httpx.Client
) -> None:
    set_quota(server, PRODUCE_RATE, 1)
    assert post(http).status_code == 200  # it exceeds the quota, but it had not before
    refused = post(http)
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) > 900
    problem = refused.json()
    assert problem["type"] == "urn:strandlog:problem:throttling-quota-exceeded"
    assert "producer_byte_rate" in problem["detail"]
    assert metric(server, "produced_records") == 1
    assert http.get("/api/v1/topics/t").status_code == 200  # other requests are not refused


def test_bytes_over_kafka_count_for_http_and_grpc_too(
    server: ServerThread, http: httpx.Client, stub: Any
) -> None:
    set_quota(server, PRODUCE_RATE, 1)
    with Wire(server.port) as wire:
        assert produce(wire, "t", BATCH).error_code == 0
    assert post(http).status_code == 429
    with pytest.raises(grpc.RpcError) as caught:
        stub.Produce(pb.ProduceRequest(topic="t", records=[pb.Record(value=b"v")]))
    error: Any = caught.value
    assert error.code() is EXHAUSTED
    pause = dict(error.trailing_metadata())["grpc-retry-pushback-ms"]
    assert int(pause) > 900_000
    assert metric(server, "produced_records") == 1


def test_bytes_over_http_and_grpc_count_for_kafka_too(
    server: ServerThread, http: httpx.Client, stub: Any
) -> None:
    with Wire(server.port) as wire:
        produce(wire, "t", BATCH)
    set_quota(server, FETCH_RATE, 200)  # 2000 bytes in ten seconds
    assert len(http.get("/api/v1/topics/t/records").json()["records"]) == 1
    assert len(list(stub.Consume(pb.ConsumeRequest(topic="t", offset=0)))) == 1
    assert http.get("/api/v1/topics/t/records").status_code == 429
    with Wire(server.port) as wire:
        part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 10_000}
        topics = [{"topic": "t", "partitions": [part]}]
        answer = wire.ask(1, 11, replica_id=-1, max_bytes=10_000, topics=topics)
        assert answer.responses == ()
        assert answer.throttle_time.total_seconds() > 0


def test_a_stream_pauses_until_its_user_is_below_the_quota(server: ServerThread, stub: Any) -> None:
    with Wire(server.port) as wire:
        for _ in range(3):
            produce(wire, "t", BATCH)
    set_quota(server, FETCH_RATE, 100)  # one batch in ten seconds
    stream = stub.Consume(pb.ConsumeRequest(topic="t", offset=0, max_bytes=1))
    assert next(stream).next_offset == 1
    server.wait_until(lambda running: running.broker.metrics.throttled_requests > 0, "it pauses")
    set_quota(server, FETCH_RATE, None)
    assert [message.next_offset for message in stream] == [2, 3]


def test_the_time_of_a_stream_is_not_charged(
    server: ServerThread, http: httpx.Client, stub: Any
) -> None:
    with Wire(server.port) as wire:
        for _ in range(3):
            produce(wire, "t", BATCH)
    set_quota(server, "request_percentage", 0.0001)
    stream = stub.Consume(pb.ConsumeRequest(topic="t", offset=0, max_bytes=1))
    assert next(stream).next_offset == 1
    server.wait_until(lambda running: running.broker.metrics.throttled_requests > 0, "it pauses")
    assert http.get("/api/v1/topics/t").status_code == 429
    set_quota(server, "request_percentage", None)
    assert [message.next_offset for message in stream] == [2, 3]


def test_topics_over_the_quota_are_refused_over_http_and_grpc(
    server: ServerThread, http: httpx.Client, stub: Any
) -> None:
    set_quota(server, "controller_mutation_rate", 0.001)
    assert http.post("/api/v1/topics", json={"name": "first"}).status_code == 201
    refused = http.post("/api/v1/topics", json={"name": "second"})
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) > 900
    with pytest.raises(grpc.RpcError) as caught:
        stub.CreateTopic(pb.CreateTopicRequest(name="third", num_partitions=1))
    assert caught.value.code() is EXHAUSTED
    assert http.delete("/api/v1/topics/first").status_code == 429


def test_connections_over_the_quota_of_their_address_are_closed_unread(
    server: ServerThread,
) -> None:
    set_quota(server, "connection_creation_rate", 1, [("ip", "127.0.0.9")])
    for _ in range(10):  # those of ten seconds
        with Wire(server.port, "127.0.0.9") as wire:
            assert wire.ask(18, 0).error_code == 0
    with Wire(server.port, "127.0.0.9") as wire, pytest.raises(ConnectionError):
        wire.ask(18, 0)
    with Wire(server.port, "127.0.0.8") as wire:
        assert wire.ask(18, 0).error_code == 0
    assert metric(server, "connections_throttled") == 1


def test_the_time_of_requests_over_http_and_grpc_is_limited(
    server: ServerThread, http: httpx.Client, stub: Any
) -> None:
    set_quota(server, "request_percentage", 0.0001)
    assert http.get("/api/v1/topics/t").status_code == 200
    refused = http.get("/api/v1/topics/t")
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    with pytest.raises(grpc.RpcError) as caught:
        stub.ListTopics(pb.ListTopicsRequest())
    assert caught.value.code() is EXHAUSTED
    for path in ("/healthz", "/api/v1/session"):  # supervisors, and clients that sign in
        assert http.get(path).status_code == 200
    set_quota(server, "request_percentage", None)
    assert http.get("/api/v1/topics/t").status_code == 200
    stub.ListTopics(pb.ListTopicsRequest())
