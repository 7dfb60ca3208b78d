"""Measures end-to-end latency: the time from sending a record with acks=1 to its receipt.

python -m benchmarks.end_to_end [--records N] [--json FILE]

One connection has a Fetch request waiting at the end of a partition. The measured time is from when
another connection sends a Produce request with acks=1 until the Fetch response arrives. Brokers
alternate after every record, so that other load on the machine affects all of them equally:
strandlog with default settings, where records become visible once they are durable; strandlog with
log.durability=page_cache; and, if `make peers` has fetched it, Apache Kafka, where records become
visible once they are written. In each round, a record is also appended to a plain file on the same
disk and synced, to measure the cost of one fdatasync.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tools.fetch_peers import KAFKA_BROKER

from benchmarks.measure import Row, print_table, write_json
from benchmarks.wire import receive, running_broker
from strandlog.client.wire.client import WireClient
from strandlog.model import TopicPartition
from strandlog.record.builder import build_batch

TOPIC = "latency"
VALUE = b"x" * 100
WARM_UP = 100
PAUSE_SECONDS = 0.002  # lets the Fetch request start to wait, and avoids bursts
PRODUCE, FETCH = 0, 1
ACKS_LEADER = 1
DURABLE = "send to receipt, acks=1"
CACHED = "send to receipt, acks=1, page_cache"
KAFKA = "send to receipt, acks=1, Apache Kafka"
SYNC = "fdatasync of 100 bytes"
RECORDS = 2000

Measure = Callable[[], float]


class Route:
    """A producer connection and a consumer connection to one broker."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        with WireClient(address) as client:
            client.create_topic(TOPIC, 1)
            self._offset = _first_record(client)
        self._producer, self._consumer = (
            socket.create_connection((host, int(port)), timeout=60) for _ in range(2)
        )
        for connection in (self._producer, self._consumer):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def seconds(self) -> float:
        """Send one record to a waiting consumer, and return how long it took."""
        self._consumer.sendall(_fetch_frame(self._offset))
        time.sleep(PAUSE_SECONDS)
        batch = bytes(build_batch(time.time_ns() // 1_000_000, [VALUE]))
        request = _produce_frame(batch)
        began = time.perf_counter()
        self._producer.sendall(request)
        size = len(receive(self._consumer))
        took = time.perf_counter() - began
        assert size > len(VALUE), "the Fetch response lacks the record"
        receive(self._producer)
        self._offset += 1
        return took

    def close(self) -> None:
        self._producer.close()
        self._consumer.close()


def _first_record(client: WireClient) -> int:
    """Write records until one is readable, because Kafka answers the first requests for a new
    topic with errors. Return the next offset."""
    partition = TopicPartition(TOPIC, 0)
    while True:
        batch = build_batch(time.time_ns() // 1_000_000, [VALUE])
        client.produce({partition: [batch]})
        if next_offset := client.latest_offsets([partition])[partition]:
            return next_offset


def _frame(api_key: int, version: int, body: bytes) -> bytes:
    head = struct.pack(">hhih", api_key, version, 1, -1)
    return struct.pack(">i", len(head) + len(body)) + head + body


def _topic(partition: bytes) -> bytes:
    name = struct.pack(">ih", 1, len(TOPIC)) + TOPIC.encode()
    return name + struct.pack(">i", 1) + partition


def _produce_frame(batch: bytes) -> bytes:
    body = struct.pack(">hhi", -1, ACKS_LEADER, 30_000)
    return _frame(PRODUCE, 3, body + _topic(struct.pack(">ii", 0, len(batch)) + batch))


def _fetch_frame(offset: int) -> bytes:
    body = struct.pack(">iiiib", -1, 30_000, 1, 1_000_000, 0)
    return _frame(FETCH, 4, body + _topic(struct.pack(">iqi", 0, offset, 1_000_000)))


def _sync_seconds(descriptor: int) -> float:
    os.write(descriptor, VALUE)
    began = time.perf_counter()
    os.fdatasync(descriptor)
    return time.perf_counter() - began


def end_to_end_rows(folder: Path, records: int = RECORDS) -> list[Row]:
    """Measure every available broker, and the disk."""
    took: dict[str, list[float]] = {}
    folder.mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        brokers = {
            DURABLE: stack.enter_context(running_broker(folder / "durable")),
            CACHED: stack.enter_context(
                running_broker(folder / "cached", "log.durability=page_cache")
            ),
        }
        if KAFKA_BROKER.is_complete:
            from tests.clients.apache_kafka import running_kafka  # noqa: PLC0415 - optional

            home = folder / "kafka"
            home.mkdir()
            brokers[KAFKA] = stack.enter_context(running_kafka(home))
        else:
            print("Apache Kafka is not installed; `make peers` fetches it", file=sys.stderr)
        ways: dict[str, Measure] = {}
        for name, address in brokers.items():
            way = Route(address)
            stack.callback(way.close)
            ways[name] = way.seconds
        descriptor = os.open(folder / "plain", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        stack.callback(os.close, descriptor)
        ways[SYNC] = lambda: _sync_seconds(descriptor)
        for number in range(WARM_UP + records):
            for name, measure in ways.items():
                seconds = measure()
                if number >= WARM_UP:
                    took.setdefault(name, []).append(seconds)
    return _rows(took)


def _rows(took: dict[str, list[float]]) -> list[Row]:
    """Return p50 and p99 for each name.

    If Kafka was measured, its latency is the goal; one sync is added for durable writes.
    """
    centiles = {
        name: [1000 * each for each in statistics.quantiles(values, n=100)]
        for name, values in took.items()
    }
    rows = []
    for label, place in (("p50", 49), ("p99", 98)):
        sync = centiles[SYNC][place]
        for name, values in centiles.items():
            goal = None
            if KAFKA in centiles and name in (DURABLE, CACHED):
                goal = centiles[KAFKA][place] + (sync if name == DURABLE else 0)
            rows.append(Row(f"{name}, {label}", values[place], "ms", goal, higher_is_better=False))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the latency from producer to consumer.")
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--json", type=Path, default=Path("out/end_to_end.json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="strandlog-latency-") as name:
        rows = end_to_end_rows(Path(name), options.records)
    print_table(rows)
    write_json(rows, options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
