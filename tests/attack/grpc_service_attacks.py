"""Attacks on what gRPC serves beside the log: health and reflection; and on flow control."""

from __future__ import annotations

import contextlib
import time

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.attack.grpc_attacks import LISTENERS, PREFACE, SETTINGS_FRAME, channel_of, stub_of
from tests.attack.scene import GoalMissedError, Scene, attack

from strandlog.protocol.rpc import log_pb2

MESSAGE_BYTES = 4_000_000
RESET, SETTINGS, PING, WINDOW_UPDATE = 3, 4, 6, 8
INITIAL_WINDOW = 4


def header_frame(path: str, authority: str, stream: int) -> bytes:
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": authority,
        "content-type": "application/grpc",
        "te": "trailers",
    }
    block = b"".join(
        b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields.items()
    )
    return len(block).to_bytes(3) + b"\x01\x04" + stream.to_bytes(4) + block


def data_frame(data: bytes, stream: int) -> bytes:
    return len(data).to_bytes(3) + b"\x00\x00" + stream.to_bytes(4) + data


class SlowUpload:
    """Half a message on many streams of a connection: sends as far as windows allow."""

    def __init__(self, scene: Scene, path: str, streams: int, size: int) -> None:
        _, port = scene.address_of("grpc")
        self.socket = scene.connect(port)
        self.socket.settimeout(0.2)
        self.windows = dict.fromkeys(range(1, 2 * streams, 2), 65535)
        self.left = dict.fromkeys(self.windows, size)
        self.window = 65535
        self.initial = 65535
        self.buffer = b""
        self.closed = False
        self._send(PREFACE + SETTINGS_FRAME)
        for stream in self.windows:
            self._send(header_frame(path, f"127.0.0.1:{port}", stream))
            self._data(stream, b"\x00" + MESSAGE_BYTES.to_bytes(4))

    def _send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except OSError:
            self.closed = True

    def _data(self, stream: int, data: bytes) -> None:
        self.window -= len(data)
        self.windows[stream] -= len(data)
        self._send(data_frame(data, stream))

    def pump(self) -> int:
        """Send what the windows allow; gives the number of bytes."""
        sent = 0
        for stream in self.windows:
            while self.left[stream] > 0 and not self.closed:
                size = min(self.windows[stream], self.window, 16384, self.left[stream])
                if size <= 0:
                    break
                self.left[stream] -= size
                self._data(stream, bytes(size))
                sent += size
        self._receive()
        return sent

    def _receive(self) -> None:
        self.socket.settimeout(0.02)
        try:
            while part := self.socket.recv(65536):
                self.buffer += part
            self.closed = True
        except TimeoutError:
            pass
        except OSError:
            self.closed = True
        self.socket.settimeout(0.5)
        while len(self.buffer) >= 9 and len(self.buffer) >= 9 + (
            length := int.from_bytes(self.buffer[:3])
        ):
            stream = int.from_bytes(self.buffer[5:9])
            payload, is_reply = self.buffer[9 : 9 + length], self.buffer[4] & 1
            if not is_reply or self.buffer[3] not in (SETTINGS, PING):
                self._take(self.buffer[3], stream, payload)
            self.buffer = self.buffer[9 + length :]

    def _take(self, kind: int, stream: int, payload: bytes) -> None:
        if kind == SETTINGS:
            for at in range(0, len(payload), 6):
                if int.from_bytes(payload[at : at + 2]) == INITIAL_WINDOW:
                    new = int.from_bytes(payload[at + 2 : at + 6])
                    for each in self.windows:
                        self.windows[each] += new - self.initial
                    self.initial = new
            self._send(b"\x00\x00\x00\x04\x01\x00\x00\x00\x00")
        elif kind == PING:
            self._send(b"\x00\x00\x08\x06\x01\x00\x00\x00\x00" + payload)
        elif kind == WINDOW_UPDATE and not stream:
            self.window += int.from_bytes(payload)
        elif kind == WINDOW_UPDATE:
            self.windows[stream] += int.from_bytes(payload)
        elif kind == RESET:
            self.left[stream] = 0


def _uploads(scene: Scene, path: str, connections: int, streams: int, size: int) -> str:
    made = [SlowUpload(scene, path, streams, size) for _ in range(connections)]
    total = 0
    deadline = time.perf_counter() + 20
    idle = 0
    while time.perf_counter() < deadline and idle < 10:
        sent = sum(each.pump() for each in made if not each.closed)
        total += sent
        idle = idle + 1 if not sent else 0
    open_ones = sum(not each.closed for each in made)
    return f"{total / 1e6:.0f} MB taken, {open_ones} connections open"


def check_log(scene: Scene) -> str:
    """Check that another client's call is served."""
    began = time.perf_counter()
    request = log_pb2.ProduceRequest(topic="probe", acks=log_pb2.ACKS_ALL)
    request.records.append(log_pb2.Record())
    try:
        stub_of(scene).Produce(request, timeout=60)
    except grpc.RpcError as error:
        raise GoalMissedError(f"another Produce: {error.code()} {error.details()}") from error
    return f"another Produce took {time.perf_counter() - began:.1f} s"


@attack("grpc-health-uploads", "gRPC health checks that stop half-way", count=20, few=2,
        listeners=LISTENERS)  # fmt: skip
def health_uploads(scene: Scene) -> str:
    done = _uploads(scene, "/grpc.health.v1.Health/Check", scene.count, 10, MESSAGE_BYTES - 10)
    return f"{done}; {check_log(scene)}"


@attack("grpc-watch-uploads", "gRPC health watches that stop half-way", count=20, few=2,
        listeners=LISTENERS)  # fmt: skip
def watch_uploads(scene: Scene) -> str:
    done = _uploads(scene, "/grpc.health.v1.Health/Watch", scene.count, 10, MESSAGE_BYTES - 10)
    return f"{done}; {check_log(scene)}"


@attack("grpc-reflection-uploads", "gRPC reflection requests that stop half-way", count=20, few=2,
        listeners=LISTENERS)  # fmt: skip
def reflection_uploads(scene: Scene) -> str:
    path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    done = _uploads(scene, path, scene.count, 10, MESSAGE_BYTES - 10)
    return f"{done}; {check_log(scene)}"


@attack("grpc-unknown-uploads", "gRPC requests of unknown methods that stop half-way",
        count=20, few=2, listeners=LISTENERS)  # fmt: skip
def unknown_uploads(scene: Scene) -> str:
    done = _uploads(scene, "/no.Such/Method", scene.count, 10, MESSAGE_BYTES - 10)
    return f"{done}; {check_log(scene)}"


@attack("grpc-many-uploads", "4,000 gRPC requests that stop half-way", count=4, few=1,
        listeners=LISTENERS, limit_seconds=120)  # fmt: skip
def many_uploads(scene: Scene) -> str:
    path = "/strandlog.v1.LogService/Produce"
    done = _uploads(scene, path, scene.count, 1000, MESSAGE_BYTES - 10)
    return f"{done}; {check_log(scene)}"


@attack("grpc-watches", "5,000 gRPC health watches", count=5000, few=200, listeners=LISTENERS)
def watches(scene: Scene) -> str:
    kept = []
    for number in range(scene.count):
        if number % 1000 == 0:
            stub = health_pb2_grpc.HealthStub(channel_of(scene))
        kept.append(stub.Watch(health_pb2.HealthCheckRequest()))
    time.sleep(5)
    return check_log(scene)


@attack("grpc-follows", "5,000 gRPC streams that follow a partition", count=5000, few=200,
        listeners=LISTENERS)  # fmt: skip
def follows(scene: Scene) -> str:
    kept = []
    for number in range(scene.count):
        if number % 1000 == 0:
            stub = stub_of(scene)
        kept.append(stub.Consume(log_pb2.ConsumeRequest(topic="probe", follow=True)))
    time.sleep(5)
    return check_log(scene)


@attack("grpc-idle-then-call", "idle gRPC connections and one that calls", count=600, few=600,
        settings={"grpc.idle.timeout.ms": "2000"}, listeners=LISTENERS)  # fmt: skip
def idle_then_call(scene: Scene) -> str:
    _, port = scene.address_of("grpc")
    for _ in range(scene.count):
        with contextlib.suppress(OSError):
            scene.connect(port).send(PREFACE + SETTINGS_FRAME)
    time.sleep(3)
    return check_log(scene)


@attack("grpc-cancelled", "gRPC calls cancelled in a loop", count=20_000, few=200,
        listeners=LISTENERS)  # fmt: skip
def cancelled(scene: Scene) -> str:
    stub = stub_of(scene)
    request = log_pb2.ProduceRequest(
        topic="probe", acks=log_pb2.ACKS_ALL, records=[log_pb2.Record(value=b"x")]
    )
    for _ in range(scene.count // 4):
        stub.Produce.future(request).cancel()
        stub.Produce.future(request, timeout=0.0).cancel()
        stub.Consume(log_pb2.ConsumeRequest(topic="probe")).cancel()
        stub.ListTopics.future(log_pb2.ListTopicsRequest(), timeout=0.0001)
    return check_log(scene)


@attack("grpc-metadata", "gRPC metadata of 1 MB", count=50, few=2, listeners=LISTENERS)
def metadata(scene: Scene) -> str:
    codes = []
    for _ in range(scene.count):
        try:
            stub_of(scene).ListTopics(
                log_pb2.ListTopicsRequest(), metadata=[("x", "y" * 1_000_000)], timeout=20
            )
        except grpc.RpcError as error:
            codes.append(error.code())
    return f"{set(codes)} {check_log(scene)}"
