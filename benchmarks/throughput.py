"""Measures the throughput of appends, sends and polls."""

from __future__ import annotations

import os
from pathlib import Path

import strandlog
from benchmarks.measure import Row, best_rate, seconds
from strandlog.record.builder import build_batch

MIB = 1024 * 1024
VALUE = b"x" * 100


def append_rows(folder: Path, total_bytes: int = 256 * MIB) -> list[Row]:
    """Compare appending prepared batches to the log with raw writes of the same bytes."""
    rows = []
    for size, label in ((MIB, "1 MB"), (16 * 1024, "16 KB")):
        with strandlog.open(folder / f"append-{size}") as log:
            log.create_topic("t", 1, {"max.message.bytes": 4 * MIB})
            partition = log.broker._catalog.log("t", 0)
            record_size = min(1000, size // 16)
            batch = build_batch(
                log.clock.now_ms(), [b"x" * record_size] * (size // (record_size + 10))
            )
            count = total_bytes // len(batch)
            raw_fd = os.open(folder / f"raw-{size}", os.O_WRONLY | os.O_CREAT)

            def append(partition=partition, batch=batch, count=count) -> None:  # type: ignore[no-untyped-def]
                for _ in range(count):
                    partition.append(batch)

            def write_raw(fd: int = raw_fd, batch: bytearray = batch, count: int = count) -> None:
                for _ in range(count):
                    os.write(fd, batch)

            ours, raw = 0.0, 0.0
            for _ in range(3):
                megabytes = count * len(batch) / 1e6
                ours = max(ours, megabytes / seconds(append))
                raw = max(raw, megabytes / seconds(write_raw))
            os.close(raw_fd)
            goal = 0.6 if size == MIB else None
            rows += [
                Row(f"append, {label} batches", ours, "MB/s"),
                Row(f"raw write, {label}", raw, "MB/s"),
                Row(f"append / raw, {label}", ours / raw, "ratio", goal),
            ]
    return rows


def producer_rows(folder: Path) -> list[Row]:
    """Measure send and send_batch with 100-byte records."""
    with strandlog.open(folder / "produce") as log:
        log.create_topic("one", 1)
        log.create_topic("three", 3)
        producer = log.producer(acks=1)
        values = [VALUE] * 5000
        pairs = [(b"key-%d" % number, VALUE) for number in range(5000)]

        def send() -> None:
            for _ in range(30_000):
                producer.send("one", VALUE)

        def send_batches(topic: str, records: list[bytes] | list[tuple[bytes, bytes]]) -> None:
            for _ in range(60):
                producer.send_batch(topic, records)

        durable = log.producer(acks="all")

        def send_durably() -> None:
            for _ in range(100):
                durable.send("one", VALUE)

        return [
            Row("send, acks=1", best_rate(30_000, send), "records/s", 60_000),
            Row("send, acks=all (fsync each)", best_rate(100, send_durably, 2), "records/s"),
            Row(
                "send_batch, 5000 values",
                best_rate(300_000, lambda: send_batches("one", values)),
                "records/s",
                800_000,
            ),
            Row(
                "send_batch, 5000 values, 3 partitions",
                best_rate(300_000, lambda: send_batches("three", values)),
                "records/s",
            ),
            Row(
                "send_batch, 5000 pairs",
                best_rate(300_000, lambda: send_batches("one", pairs)),
                "records/s",
            ),
            Row(
                "send_batch, 5000 pairs, 3 partitions",
                best_rate(300_000, lambda: send_batches("three", pairs)),
                "records/s",
            ),
        ]


def consumer_rows(folder: Path) -> list[Row]:
    """Measure poll with 100-byte records, in batches of 1000 and in single-record batches."""
    with strandlog.open(folder / "consume") as log:
        for topic in ("batched", "single", "zstd"):
            log.create_topic(topic, 1)
        producer = log.producer(acks=1)
        for _ in range(300):
            producer.send_batch("batched", [VALUE] * 1000)
        zipped = log.producer(acks=1, compression="zstd")
        for _ in range(300):
            zipped.send_batch("zstd", [VALUE] * 1000)
        for _ in range(50_000):
            producer.send("single", VALUE)
        producer.flush()

        def poll(topic: str) -> None:
            consumer = log.consumer([topic])
            while consumer.poll(max_records=1000):
                pass

        return [
            Row(
                "poll, batches of 1000",
                best_rate(300_000, lambda: poll("batched")),
                "records/s",
                600_000,
            ),
            Row(
                "poll, zstd batches of 1000", best_rate(300_000, lambda: poll("zstd")), "records/s"
            ),
            Row(
                "poll, single-record batches",
                best_rate(50_000, lambda: poll("single")),
                "records/s",
            ),
        ]
