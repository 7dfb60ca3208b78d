"""Clients that stop reading occupy a bounded amount of the broker's memory, and lose no record.

Live streams of the HTTP listener are closed instead.

Each test measures the process of a broker, and its own counters, which show that the broker does no
further work for such a client while it serves others.
"""

from __future__ import annotations

import contextlib
import mmap
import platform
import socket
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.broker_process import BrokerProcess
from tests.support.http_client import client_of, http_address, ok
from tests.support.waiting import eventually

from strandlog.protocol.rpc import log_pb2
from strandlog.protocol.rpc.log_pb2_grpc import LogServiceStub
from strandlog.record.builder import build_batch

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="reads the memory of the broker from /proc"
)

PATIENCE_S = 60
SMALL_BUFFER = 4096  # so that the kernel does not read on behalf of the client


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    running = BrokerProcess(tmp_path / "data", listeners=("--grpc-port", "0", "--http-port", "0"))
    running.start()
    yield running
    assert running.stop() == 0, "a broker stops cleanly"


@pytest.fixture
def http(broker: BrokerProcess) -> Iterator[httpx.Client]:
    with client_of(broker) as client:
        yield client


def anonymous_mb(broker: BrokerProcess) -> float:
    assert broker.process is not None
    status = Path(f"/proc/{broker.process.pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) / 1024


def metric(http: httpx.Client, name: str) -> int:
    lines = http.get("/metrics").text.splitlines()
    [line] = [each for each in lines if each.startswith(f"strandlog_{name} ")]
    return int(float(line.split()[1]))


def slow_client(host: str, port: int) -> socket.socket:
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
    connection.settimeout(PATIENCE_S)
    connection.connect((host, port))
    return connection


def page_faults(broker: BrokerProcess) -> int:
    """The pages that the kernel has given to the broker without reading them from a disk."""
    assert broker.process is not None
    stat = Path(f"/proc/{broker.process.pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[7])


# -- Kafka -----------------------------------------------------------------------------------------


def frame(api_key: int, version: int, body: bytes) -> bytes:
    request = struct.pack(">hhih", api_key, version, 7, -1) + body
    return struct.pack(">i", len(request)) + request


def receive(connection: socket.socket) -> bytes:
    def exactly(length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            part = connection.recv(length - len(data))
            assert part, "the broker closed the connection"
            data += part
        return bytes(data)

    return exactly(struct.unpack(">i", exactly(4))[0])


def produce(connection: socket.socket, batch: bytes, count: int, partition: int = 0) -> None:
    body = struct.pack(">hhi", -1, -1, 10_000) + struct.pack(">ih", 1, 1) + b"t"
    request = frame(0, 3, body + struct.pack(">iii", 1, partition, len(batch)) + batch)
    for _ in range(count):
        connection.sendall(request)
        assert struct.unpack_from(">h", receive(connection), 4 + 4 + 2 + 1 + 4 + 4)[0] == 0


def fetch_request(max_bytes: int) -> bytes:
    body = struct.pack(">iiiib", -1, 0, 1, max_bytes, 0) + struct.pack(">ih", 1, 1) + b"t"
    return frame(1, 4, body + struct.pack(">iiqi", 1, 0, 0, max_bytes))


@pytest.mark.parametrize(("max_bytes", "max_mb"), [(2_000_000, 40), (20_000_000, 120)])
def test_a_kafka_consumer_that_stops_reading_holds_bounded_memory_and_gets_all_responses(
    broker: BrokerProcess, http: httpx.Client, max_bytes: int, max_mb: int
) -> None:
    batch = bytes(build_batch(int(time.time() * 1000), [b"x" * 1000] * 100))
    fetch = fetch_request(max_bytes)
    with (
        socket.create_connection(("127.0.0.1", broker.port), PATIENCE_S) as writer,
        slow_client("127.0.0.1", broker.port) as stuck,
        socket.create_connection(("127.0.0.1", broker.port), PATIENCE_S) as reader,
    ):
        writer.sendall(frame(3, 4, struct.pack(">ih", 1, 1) + b"t\1"))
        receive(writer)
        produce(writer, batch, 1 + max_bytes // len(batch))
        before_mb, before_bytes = anonymous_mb(broker), metric(http, "fetched_bytes_total")
        unsent = memoryview(fetch * 20_000)
        stuck.setblocking(False)

        def is_paused() -> bool:
            nonlocal unsent
            with contextlib.suppress(BlockingIOError):
                unsent = unsent[stuck.send(unsent) :]
            return metric(http, "connections_paused") == 1

        eventually(is_paused, "the broker stops reading as well")
        produce(writer, batch, 100)
        half_mb = anonymous_mb(broker)
        produce(writer, batch, 100)
        full_mb = anonymous_mb(broker)
        fetched_bytes = metric(http, "fetched_bytes_total") - before_bytes
        reader.sendall(fetch)
        answer = receive(reader)
        stuck.settimeout(PATIENCE_S)
        late_answers = [receive(stuck) for _ in range(20)]
    assert half_mb - before_mb < max_mb
    assert full_mb - half_mb < 8, "and no more the longer it takes"
    assert fetched_bytes < 3 * max_bytes + 8_000_000, "20,000 fetches wait unread"
    counts = {each.count(batch[61:]) for each in (answer, *late_answers)}
    assert counts == {max_bytes // len(batch)}, "every fetch is answered in full"


# -- gRPC ------------------------------------------------------------------------------------------


@pytest.mark.long
def test_grpc_streams_that_are_not_read_hold_bounded_memory_and_lose_no_record(
    broker: BrokerProcess, http: httpx.Client
) -> None:
    [address] = [word for word in broker.ready.split() if word.startswith("grpc=")]
    with grpc.insecure_channel(address.removeprefix("grpc=")) as channel:
        log: Any = LogServiceStub(channel)  # type: ignore[no-untyped-call]
        log.CreateTopic(log_pb2.CreateTopicRequest(name="slow"))
        rows = [log_pb2.Record(value=b"x" * 1000) for _ in range(100)]
        request = log_pb2.ProduceRequest(topic="slow", records=rows, acks=log_pb2.ACKS_LEADER)
        for _ in range(100):
            log.Produce(request)
        streams = [
            log.Consume(log_pb2.ConsumeRequest(topic="slow", follow=True)) for _ in range(10)
        ]
        firsts = [next(iter(stream)) for stream in streams]
        before_mb = anonymous_mb(broker)
        for _ in range(400):  # 40 MB for each of the ten
            log.Produce(request)
        fetched_bytes = 0

        def is_idle() -> bool:
            """The broker reads nothing for the streams while it appends ten batches."""
            nonlocal fetched_bytes
            before, fetched_bytes = fetched_bytes, metric(http, "fetched_bytes_total")
            for _ in range(10):
                log.Produce(request)
            return fetched_bytes == before

        eventually(is_idle, "all streams wait for their readers")
        assert anonymous_mb(broker) - before_mb < 60
        for stream, first in zip(streams, firsts, strict=True):
            seen = len(first.entries)
            while seen < 50_000:
                batch = next(iter(stream))
                assert batch.entries[0].offset == seen
                seen += len(batch.entries)
            stream.cancel()


# -- HTTP ------------------------------------------------------------------------------------------


@pytest.mark.long
def test_live_streams_that_are_not_read_hold_bounded_memory_and_are_closed(
    broker: BrokerProcess, http: httpx.Client
) -> None:
    ok(http.post("/api/v1/topics", json={"name": "unread", "partitions": 1}), 201)
    host, _, port = http_address(broker).removeprefix("http://").rpartition(":")
    query = "topic=unread&interval_ms=100&limit=200&max_value_bytes=16384"
    request = f"GET /api/v1/live?{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    clients = [slow_client(host, int(port)) for _ in range(10)]
    for client in clients:
        client.sendall(request)
    eventually(lambda: metric(http, "live_clients") == 10, "ten live clients")
    before_mb = most_mb = anonymous_mb(broker)
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 5})

    def are_closed() -> bool:
        nonlocal most_mb
        for _ in range(100):
            producer.produce("unread", b"x" * 10_000)
        assert producer.flush(PATIENCE_S) == 0
        most_mb = max(most_mb, anonymous_mb(broker))
        return metric(http, "live_clients") == 0

    eventually(are_closed, "the broker closes the streams")
    assert most_mb - before_mb < 60
    for client in clients:
        client.close()


def test_console_files_that_are_not_read_hold_bounded_memory(
    broker: BrokerProcess, http: httpx.Client
) -> None:
    host, _, port = http_address(broker).removeprefix("http://").rpartition(":")
    request = b"GET /console/plotly.min.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
    size = len(http.get("/console/plotly.min.js").content)  # the broker has it in memory now
    before_mb = anonymous_mb(broker)
    clients = [slow_client(host, int(port)) for _ in range(100)]
    for client in clients:
        client.sendall(request)
    for client in clients:
        assert client.recv(12) == b"HTTP/1.1 200"
    ok(http.get("/api/v1/topics"))
    assert anonymous_mb(broker) - before_mb < 100 < len(clients) * size / 2**20
    for client in clients:
        client.close()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators are left alone")
def test_the_broker_does_not_get_the_memory_of_each_response_from_the_kernel_again(
    broker: BrokerProcess,
) -> None:
    batch = bytes(build_batch(int(time.time() * 1000), [b"x" * 1000] * 900))
    partitions, limit, count = 4, 1_000_000, 50
    body = struct.pack(">iiiib", -1, 0, 1, partitions * limit, 0) + struct.pack(">ih", 1, 1) + b"t"
    rows = [struct.pack(">iqi", number, 0, limit) for number in range(partitions)]
    fetch = frame(1, 4, body + struct.pack(">i", partitions) + b"".join(rows))
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{broker.port}"})
    admin.create_topics([NewTopic("t", partitions)])["t"].result(PATIENCE_S)
    with socket.create_connection(("127.0.0.1", broker.port), PATIENCE_S) as connection:
        for number in range(partitions):
            produce(connection, batch, 2, partition=number)
        fetched_bytes = before = 0
        for number in range(2 * count):
            if number == count:  # the heap has its size now
                fetched_bytes, before = 0, page_faults(broker)
            connection.sendall(fetch)
            fetched_bytes += len(receive(connection))
        faults = page_faults(broker) - before
    assert fetched_bytes > partitions * count * len(batch)
    assert faults * mmap.PAGESIZE < fetched_bytes / 10
