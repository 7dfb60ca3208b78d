"""Attacks on the gRPC listener."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import grpc
from tests.attack.kafka_attacks import fill
from tests.attack.scene import GoalMissedError, Scene, attack

from strandlog.protocol.rpc import log_pb2
from strandlog.protocol.rpc.log_pb2_grpc import LogServiceStub

LISTENERS = ("--grpc-port", "0", "--no-http")
UNREAD_SECONDS = 5.0
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS_FRAME = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
PING_FRAME = b"\x00\x00\x08\x06\x00\x00\x00\x00\x00" + bytes(8)
EMPTY_RECORD = b"\x1a\x00"


def channel_of(scene: Scene) -> grpc.Channel:
    host, port = scene.address_of("grpc")
    options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    return scene.keep(grpc.insecure_channel(f"{host}:{port}", options), lambda each: each.close())


def stub_of(scene: Scene) -> Any:
    return LogServiceStub(channel_of(scene))  # type: ignore[no-untyped-call]


def refused(call: Any, *arguments: Any, code: grpc.StatusCode) -> str:
    """What a call says that must be refused."""
    try:
        call(*arguments, timeout=60)
    except grpc.RpcError as error:
        if error.code() is not code:
            raise GoalMissedError(f"{error.code()} instead of {code}") from error
        return str(error.details())
    raise GoalMissedError("a call that must be refused went well")


def _fill(scene: Scene) -> None:
    fill(scene, "large", 1, 64)


@attack(
    "grpc-unread-streams",
    "gRPC Consume streams that never read",
    count=100,
    few=10,
    prepare=_fill,
    listeners=LISTENERS,
)
def unread_streams(scene: Scene) -> str:
    request = log_pb2.ConsumeRequest(topic="large", max_bytes=8 << 20)
    for _ in range(scene.count):
        stream = stub_of(scene).Consume(request)
        scene.keep(stream, lambda each: each.cancel())
    time.sleep(UNREAD_SECONDS)
    reader = stub_of(scene).Consume(log_pb2.ConsumeRequest(topic="large"))
    began = time.perf_counter()
    next(iter(reader))
    reader.cancel()
    return f"another stream got its first message after {time.perf_counter() - began:.1f} s"


@attack(
    "grpc-empty-records",
    "gRPC Produce of 5 M empty records",
    count=5_000_000,
    few=200_000,
    listeners=LISTENERS,
)
def empty_records(scene: Scene) -> str:
    call = channel_of(scene).unary_unary("/strandlog.v1.LogService/Produce")
    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    body = log_pb2.ProduceRequest(topic="probe", acks=log_pb2.ACKS_ALL).SerializeToString()
    if scene.count * 2 > 4 << 20:
        refused(call, body + EMPTY_RECORD * scene.count, code=code)
    most = min(scene.count, 2_000_000)  # what fits into a message
    return refused(call, body + EMPTY_RECORD * most, code=grpc.StatusCode.INVALID_ARGUMENT)


@attack(
    "grpc-stalled-uploads",
    "gRPC requests that stop half-way",
    count=300,
    few=20,
    listeners=LISTENERS,
)
def stalled_uploads(scene: Scene) -> str:
    host, port = scene.address_of("grpc")
    for _ in range(scene.count):
        connection = scene.connect(port)
        with contextlib.suppress(OSError):
            connection.sendall(PREFACE + SETTINGS_FRAME + _half_a_produce(f"{host}:{port}"))
    time.sleep(3)
    began = time.perf_counter()
    stub = stub_of(scene)
    stub.Produce(
        log_pb2.ProduceRequest(topic="probe", acks=log_pb2.ACKS_ALL, records=[log_pb2.Record()]),
        timeout=60,
    )
    return f"another Produce took {time.perf_counter() - began:.1f} s"


def _half_a_produce(authority: str) -> bytes:
    """Headers of a Produce, and 16 KB of a message of 4 MB."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/strandlog.v1.LogService/Produce",
        ":authority": authority,
        "content-type": "application/grpc",
        "te": "trailers",
    }
    block = b"".join(
        b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields.items()
    )
    headers = len(block).to_bytes(3) + b"\x01\x04" + (1).to_bytes(4) + block
    data = b"\x00" + (4_000_000).to_bytes(4) + bytes(16_000)
    return headers + len(data).to_bytes(3) + b"\x00\x00" + (1).to_bytes(4) + data


@attack(
    "grpc-idle-connections",
    "idle gRPC connections",
    count=4200,
    few=600,
    listeners=LISTENERS,
)
def idle_connections(scene: Scene) -> str:
    _, port = scene.address_of("grpc")
    opened = 0
    for _ in range(scene.count):
        with contextlib.suppress(OSError):
            scene.connect(port).send(PREFACE + SETTINGS_FRAME)
            opened += 1
    return f"{opened} connections"


@attack("grpc-ping-flood", "gRPC pings without end", count=200_000, few=2000, listeners=LISTENERS)
def ping_flood(scene: Scene) -> str:
    _, port = scene.address_of("grpc")
    connection = scene.connect(port)
    sent = 0
    try:
        connection.sendall(PREFACE + SETTINGS_FRAME)
        for _ in range(scene.count // 100):
            connection.sendall(PING_FRAME * 100)
            sent += 100
    except (TimeoutError, OSError):
        return f"closed after {sent} pings"
    return f"{sent} pings"


@attack(
    "grpc-many-headers", "gRPC record with 2 M headers", count=2_000_000, few=150_000,
    listeners=LISTENERS,
)  # fmt: skip
def many_headers(scene: Scene) -> str:
    call = channel_of(scene).unary_unary("/strandlog.v1.LogService/Produce")
    headers = EMPTY_RECORD * (scene.count - 10)  # field 3 of a record, too
    record = b"\x1a" + _varint(len(headers)) + headers
    body = log_pb2.ProduceRequest(topic="probe", acks=log_pb2.ACKS_ALL).SerializeToString() + record
    return refused(call, body, code=grpc.StatusCode.INVALID_ARGUMENT)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


@attack(
    "grpc-garbage",
    "gRPC garbage, long names, unknown acks, clients that disconnect",
    count=2000,
    few=50,
    listeners=LISTENERS,
)
def garbage(scene: Scene) -> None:
    channel = channel_of(scene)
    wrong = grpc.StatusCode.INVALID_ARGUMENT
    for method in ("Produce", "CreateTopic", "DescribeTopic", "CommitOffset"):
        call = channel.unary_unary(f"/strandlog.v1.LogService/{method}")
        refused(call, b"\xff" * 100, code=wrong)
    stub = stub_of(scene)
    record = [log_pb2.Record(value=b"x")]
    request = log_pb2.ProduceRequest(topic="probe", records=record)
    unknown = b"\x20\x07"  # acks 7
    call = channel.unary_unary("/strandlog.v1.LogService/Produce")
    refused(call, request.SerializeToString() + unknown, code=wrong)
    long_name = log_pb2.ProduceRequest(topic="t" * 1_000_000, records=record)
    refused(stub.Produce, long_name, code=wrong)

    def disconnect() -> None:
        for _ in range(scene.count // 10):
            stub.Consume(log_pb2.ConsumeRequest(topic="probe", follow=True)).cancel()

    threads = [threading.Thread(target=disconnect) for _ in range(10)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
