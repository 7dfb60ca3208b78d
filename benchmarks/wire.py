"""Compares the broker with librdkafka's in-memory mock broker, using librdkafka as the client.

The mock stores nothing on disk and keeps only 5 MB per partition, so its rate is the upper limit of
this client on this machine. Rounds alternate between the two, and the best round of each counts.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.measure import Row
from strandlog.record.builder import build_batch

PARTITIONS = 4


@contextlib.contextmanager
def running_broker(folder: Path, *settings: str) -> Iterator[str]:
    """Run a broker in a separate process, and yield its address."""
    arguments = [sys.executable, "-m", "strandlog", "serve", str(folder), "--port", "0"]
    arguments += ["--no-grpc"]
    for setting in ("group.initial.rebalance.delay.ms=0", *settings):
        arguments += ["--set", setting]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            yield line.split()[1].removeprefix("kafka=")
        finally:
            os.kill(process.pid, signal.SIGTERM)
            process.wait(timeout=60)


def create_topic(address: str, name: str, partitions: int = PARTITIONS) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(timeout=30)


def new_producer(target: dict[str, Any], **config: Any) -> Producer:
    return Producer(
        {
            **target,
            "linger.ms": 5,
            "batch.num.messages": 10_000,
            "queue.buffering.max.messages": 2_000_000,
            "queue.buffering.max.kbytes": 1_000_000,
            **config,
        }
    )


def produce_seconds(producer: Producer, topic: str, value: bytes, count: int) -> float:
    started = time.perf_counter()
    for number in range(count):
        producer.produce(topic, value, partition=number % PARTITIONS)
        if not number % 10_000:
            producer.poll(0)
    assert producer.flush(120) == 0
    return time.perf_counter() - started


# Waits for a line (or the end) of stdin, then writes a number of bytes to a file at full speed.
_WRITE = """
import os, sys
data, pieces = bytes(1 << 20), int(sys.argv[2]) >> 20
sys.stdin.readline()
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
for number in range(pieces):
    os.pwrite(file, data, number << 20)
"""


def _storing_seconds(folder: Path, value: bytes, count: int) -> float:
    """Measure the mock while another process writes the same number of bytes to a file, unsynced.

    This is the upper limit for a broker that stores its records on this machine.
    """
    producer = new_producer({"test.mock.num.brokers": 1}, acks="1")
    produce_seconds(producer, "stored", value, PARTITIONS)
    command = [sys.executable, "-c", _WRITE, str(folder / "raw"), str(count * len(value))]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as writer:
        assert writer.stdin is not None
        time.sleep(0.2)  # let the writer start up
        started = time.perf_counter()
        writer.stdin.close()
        produce_seconds(producer, "stored", value, count)
        writer.wait()
        return time.perf_counter() - started


def produce_rows(address: str, unsynced: str, folder: Path) -> list[Row]:
    """Compare acks=1, acks=all (synced) and a broker that leaves syncing to the kernel, like Kafka.

    The reference is the mock, alone and beside a raw write, because the mock itself stores nothing.
    """
    rows = []
    for size, count in ((100, 300_000), (1000, 150_000)):
        topic = f"produce-{size}"
        for each in (address, unsynced):
            create_topic(each, topic)
        value = b"x" * size
        ours: dict[str, Any] = {"bootstrap.servers": address}
        best = {"mock": 0.0, "acks=1": 0.0, "acks=all": 0.0, "acks=1, page_cache": 0.0}
        storing = 0.0
        for _ in range(3):
            for name, producer in (
                ("mock", new_producer({"test.mock.num.brokers": 1}, acks="1")),
                ("acks=1", new_producer(ours, acks="1")),
                ("acks=all", new_producer(ours, acks="all")),
                ("acks=1, page_cache", new_producer({"bootstrap.servers": unsynced}, acks="1")),
            ):
                produce_seconds(producer, topic, value, PARTITIONS)  # connect and fetch metadata
                took = produce_seconds(producer, topic, value, count)
                best[name] = max(best[name], count / took)
            storing = max(storing, count / _storing_seconds(folder, value, count))
        rows += [
            Row(f"produce {size} B, mock", best["mock"], "records/s"),
            Row(f"produce {size} B, acks=1", best["acks=1"], "records/s"),
            Row(f"produce {size} B, acks=all", best["acks=all"], "records/s"),
            Row(f"produce {size} B, acks=1, page_cache", best["acks=1, page_cache"], "records/s"),
            Row(f"produce {size} B, mock beside a raw write", storing, "records/s"),
            Row(f"produce {size} B, acks=1 / mock", best["acks=1"] / best["mock"], "ratio", 0.9),
            Row(f"produce {size} B, acks=1 / mock + write", best["acks=1"] / storing, "ratio", 0.9),
            Row(
                f"produce {size} B, acks=1, page_cache / mock",
                best["acks=1, page_cache"] / best["mock"],
                "ratio",
                0.9,
            ),
        ]
    return rows


def consume_rows(address: str) -> list[Row]:
    """Measure consuming 1 KB records, with librdkafka and on a plain socket."""
    topic, count, value = "consume", 300_000, b"x" * 1000
    create_topic(address, topic)
    produce_seconds(new_producer({"bootstrap.servers": address}), topic, value, count)
    best = 0.0
    for number in range(3):
        consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": f"bench-{number}",
                "auto.offset.reset": "earliest",
                "fetch.message.max.bytes": 8_000_000,
                "fetch.max.bytes": 50_000_000,
                "queued.max.messages.kbytes": 1_000_000,
                "check.crcs": False,
            }
        )
        consumer.subscribe([topic])
        left, started = count, 0.0
        while left:
            found = len(consumer.consume(min(left, 10_000), 1.0))
            if found and not started:
                started = time.perf_counter()
            left -= found
        best = max(best, count * len(value) / 1e6 / (time.perf_counter() - started))
        consumer.close()
    wire = 0.0
    for _ in range(3):
        with connect(address) as connection:
            wire = max(wire, raw_fetch_rate(connection, topic)[0])
    return [
        Row("consume 1 KB, librdkafka", best, "MB/s", 400),
        Row("fetch 1 KB, at the socket", wire, "MB/s", 400),
    ]


def receive(connection: socket.socket) -> bytes:
    """Return the next response, without its length."""
    length = struct.unpack(">i", _exactly(connection, 4))[0]
    return _exactly(connection, length)


def _exactly(connection: socket.socket, length: int) -> bytes:
    parts = bytearray(length)
    view, got = memoryview(parts), 0
    while got < length:
        count = connection.recv_into(view[got:])
        assert count, "the broker closed the connection"
        got += count
    return bytes(parts)


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def raw_fetch_rate(connection: socket.socket, topic: str) -> tuple[float, int]:
    """Return the MB/s and the bytes of Fetch v4 responses for one partition, without decoding the
    records."""
    name = topic.encode()
    total, offset = 0, 0
    started = time.perf_counter()
    while True:
        connection.sendall(fetch_request(topic, offset, 8_000_000))
        answer = receive(connection)
        records = answer[4 + 4 + 4 + 2 + len(name) + 4 + 4 + 2 + 8 + 8 + 4 + 4 :]
        if len(records) < 61:
            return total / 1e6 / (time.perf_counter() - started), total
        total += len(records)
        position = 0
        while position + 61 <= len(records):
            base, length = struct.unpack_from(">qi", records, position)
            if position + 12 + length > len(records):
                break
            offset = base + struct.unpack_from(">i", records, position + 23)[0] + 1
            position += 12 + length


def pipelined_rate(connection: socket.socket, frame: bytes, count: int = 20_000) -> float:
    """Return the responses per second to `count` equal requests, of which 32 are in flight."""
    window = 32
    started = time.perf_counter()
    for _ in range(window):
        connection.sendall(frame)
    for number in range(count):
        receive(connection)
        if number + window < count:
            connection.sendall(frame)
    return count / (time.perf_counter() - started)


def produce_request(topic: str, acks: int) -> bytes:
    """Return a Produce request with one record, as a frame."""
    batch = bytes(build_batch(int(time.time() * 1000), [b"x" * 100]))
    name = topic.encode()
    body = (
        struct.pack(">hhih", 0, 3, 0, -1)
        + struct.pack(">hhi", -1, acks, 10_000)
        + struct.pack(">ih", 1, len(name))
        + name
        + struct.pack(">iii", 1, 0, len(batch))
        + batch
    )
    return struct.pack(">i", len(body)) + body


def fetch_request(topic: str, offset: int, max_bytes: int) -> bytes:
    """Return a Fetch v4 request for partition 0, as a frame; it does not wait for records."""
    name = topic.encode()
    body = (
        struct.pack(">hhih", 1, 4, 0, -1)
        + struct.pack(">iiiib", -1, 0, 1, 50_000_000, 0)
        + struct.pack(">ih", 1, len(name))
        + name
        + struct.pack(">iiqi", 1, 0, offset, max_bytes)
    )
    return struct.pack(">i", len(body)) + body


def latency_rows(address: str) -> list[Row]:
    """Measure the rate of pipelined single-record requests, and the latency of one request."""
    create_topic(address, "single", 1)
    rows = []
    with connect(address) as connection:
        rate = max(pipelined_rate(connection, produce_request("single", 1)) for _ in range(3))
        rows.append(Row("single-record requests, pipelined", rate, "requests/s", 20_000))
        for acks, label, tries in ((1, "acks=1", 3000), (-1, "acks=all", 500)):
            frame, times = produce_request("single", acks), []
            for _ in range(tries):
                began = time.perf_counter()
                connection.sendall(frame)
                receive(connection)
                times.append((time.perf_counter() - began) * 1000)
            centiles = statistics.quantiles(times, n=100)
            rows.append(Row(f"produce latency {label}, p50", centiles[49], "ms"))
            rows.append(Row(f"produce latency {label}, p99", centiles[98], "ms"))
    return rows


def start_rows(folder: Path) -> list[Row]:
    """Measure the time from the command to `ready`, and the memory usage of an idle broker."""
    started = time.perf_counter()
    arguments = [sys.executable, "-m", "strandlog", "serve", str(folder), "--port", "0"]
    arguments += ["--grpc-port", "0", "--http-port", "0"]  # with all listeners
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        took = time.perf_counter() - started
        status = Path(f"/proc/{process.pid}/status").read_text()
        resident = int(status.partition("VmRSS:")[2].split()[0]) / 1024
        os.kill(process.pid, signal.SIGTERM)
        process.wait(timeout=30)
    return [
        Row("serve: start to ready", took, "s", 0.5, higher_is_better=False),
        Row("serve: idle memory", resident, "MB", 80, higher_is_better=False),
    ]


def wire_rows(folder: Path) -> list[Row]:
    rows = start_rows(folder / "idle")
    with (
        running_broker(folder / "wire") as address,
        running_broker(folder / "unsynced", "log.durability=page_cache") as unsynced,
    ):
        rows += produce_rows(address, unsynced, folder)
        rows += consume_rows(address)
        rows += latency_rows(address)
    return rows
