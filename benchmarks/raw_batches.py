"""Measures sending and reading raw batches with our client: the upper limit for a Spark task."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.measure import Row, seconds
from benchmarks.wire import running_broker
from strandlog.client.wire.client import WireClient
from strandlog.model import TopicPartition
from strandlog.record.builder import build_batch

TOTAL_BYTES = 500_000_000
ROUNDS = 3


def raw_batch_rows(folder: Path) -> list[Row]:
    """Measure writing half a gigabyte in 1 MB batches, and reading it back as one range."""
    batch = build_batch(1_700_000_000_000, [os.urandom(1000)] * 1000)
    count = TOTAL_BYTES // len(batch)
    tp = TopicPartition("raw", 0)
    with running_broker(folder / "raw-batches") as address, WireClient(address) as client:
        client.create_topic(tp.topic, 1, {"max.message.bytes": "2000000"})

        def write() -> None:
            sender = client.sender(acks=1)
            for _ in range(count):
                sender.send(tp, batch)
            assert sender.flush()[tp].error is None

        def read() -> None:
            size = sum(len(piece.data) for piece in client.read_range(tp, 0, count * 1000))
            assert size == count * len(batch)

        written = seconds(write)
        read_back = min(seconds(read) for _ in range(ROUNDS))
    megabytes = count * len(batch) / 1e6
    return [
        Row("raw batches of 1 MB, acks=1", megabytes / written, "MB/s"),
        Row("raw batches, read as a range", megabytes / read_back, "MB/s", goal=700),
    ]
