"""gRPC health checks and reflection, and limits on open streams and connections."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tests.support.broker_process import BrokerProcess

from strandlog.protocol.rpc import log_pb2
from strandlog.protocol.rpc.log_pb2_grpc import LogServiceStub

SERVING = health_pb2.HealthCheckResponse.SERVING
MAX_CALLS = 8
CONNECTIONS = 2
MESSAGE_BYTES = 4_000_000
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


def running_broker(folder: Path, settings: dict[str, str]) -> BrokerProcess:
    broker = BrokerProcess(
        folder / "data",
        settings,
        log=folder / "stderr",
        listeners=("--grpc-port", "0", "--no-http"),
    )
    broker.start()
    return broker


def address_of(broker: BrokerProcess) -> str:
    [word] = [each for each in broker.ready.split() if each.startswith("grpc=")]
    return word.removeprefix("grpc=")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("grpc")
    settings = {
        "grpc.max.calls": str(MAX_CALLS),
        "grpc.max.connections": str(CONNECTIONS),
        "grpc.idle.timeout.ms": "500",
    }
    running = running_broker(folder, settings)
    yield running
    assert running.stop() == 0
    assert "Traceback" not in (folder / "stderr").read_text()


@pytest.fixture
def channel(broker: BrokerProcess) -> Iterator[grpc.Channel]:
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(address_of(broker), options) as opened:
        grpc.channel_ready_future(opened).result(timeout=20)
        yield opened


def code_of(call: Any, *arguments: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        list(call(*arguments, timeout=20))
    code: grpc.StatusCode = caught.value.code()
    return code


def test_health_is_serving_and_unknown_services_are_named(channel: grpc.Channel) -> None:
    health: Any = health_pb2_grpc.HealthStub(channel)
    for service in ("", "strandlog.v1.LogService"):
        assert health.Check(health_pb2.HealthCheckRequest(service=service)).status == SERVING
    unknown = health_pb2.HealthCheckRequest(service="unknown")
    assert code_of(health.Check, unknown) is grpc.StatusCode.NOT_FOUND
    watched = health.Watch(unknown)
    assert next(watched).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    watched.cancel()


@pytest.mark.parametrize("data", [b"\xff" * 20, b"\x0a\xff\xff\x03" + bytes(65535)])
@pytest.mark.parametrize(
    "path",
    [
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/Watch",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    ],
)
def test_garbage_and_long_names_are_rejected(channel: grpc.Channel, path: str, data: bytes) -> None:
    call = channel.unary_stream(path)
    assert code_of(call, data) is grpc.StatusCode.INVALID_ARGUMENT


def test_reflection_handles_requests_one_after_the_other(channel: grpc.Channel) -> None:
    reflection: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
    request = reflection_pb2.ServerReflectionRequest
    asked = [
        request(list_services=""),
        request(file_containing_symbol="strandlog.v1.LogService"),
        request(file_by_filename="nowhere"),
    ]
    listed, described, unknown = reflection.ServerReflectionInfo(iter(asked), timeout=20)
    names = {each.name for each in listed.list_services_response.service}
    assert {"strandlog.v1.LogService", "grpc.health.v1.Health"} <= names
    assert described.file_descriptor_response.file_descriptor_proto
    assert unknown.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


def test_open_streams_leave_room_for_unary_calls(channel: grpc.Channel) -> None:
    log: Any = LogServiceStub(channel)  # type: ignore[no-untyped-call]
    log.CreateTopic(log_pb2.CreateTopicRequest(name="t"))
    health: Any = health_pb2_grpc.HealthStub(channel)
    watched = [health.Watch(health_pb2.HealthCheckRequest()) for _ in range(MAX_CALLS * 3 // 4)]
    for each in watched:
        assert next(each).status == SERVING
    follow = log_pb2.ConsumeRequest(topic="t", follow=True)
    assert code_of(log.Consume, follow) is grpc.StatusCode.RESOURCE_EXHAUSTED
    log.ListTopics(log_pb2.ListTopicsRequest(), timeout=20)
    for each in watched:
        each.cancel()


def test_idle_connections_do_not_block_a_new_client(broker: BrokerProcess) -> None:
    host, _, port = address_of(broker).rpartition(":")
    idle = [socket.create_connection((host, int(port))) for _ in range(CONNECTIONS)]
    for each in idle:
        each.sendall(PREFACE)
    with grpc.insecure_channel(address_of(broker), [("grpc.use_local_subchannel_pool", 1)]) as late:
        log: Any = LogServiceStub(late)  # type: ignore[no-untyped-call]
        log.ListTopics(log_pb2.ListTopicsRequest(), timeout=20, wait_for_ready=True)
    for each in idle:
        each.close()


@pytest.mark.slow
def test_health_watches_report_that_the_server_stops(tmp_path: Path) -> None:
    broker = running_broker(tmp_path, {})
    with grpc.insecure_channel(address_of(broker)) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        watched = health.Watch(health_pb2.HealthCheckRequest(), timeout=20)
        assert next(watched).status == SERVING
        assert broker.process is not None
        broker.process.terminate()
        assert next(watched).status == health_pb2.HealthCheckResponse.NOT_SERVING
    with broker.process as ended:
        assert ended.wait(20) == 0
