"""Fills topics with numbered values, for the tests of the Spark source and sink."""

from __future__ import annotations

import time

from strandlog.client.wire.client import WireClient
from strandlog.model import TopicPartition
from strandlog.record.builder import build_batch

NOW_MS = time.time_ns() // 1_000_000_000 * 1000  # whole seconds; young enough for retention


def fill(client: WireClient, topic: str, count: int, partitions: int = 2) -> list[bytes]:
    """Write numbered values in turn to the partitions of a topic."""
    values = [b"%d" % number for number in range(count)]
    batches = {}
    for partition in range(partitions):
        mine = values[partition::partitions]
        keys: list[bytes | None] = [b"k" + value[-1:] for value in mine]
        batches[TopicPartition(topic, partition)] = [build_batch(NOW_MS, mine, keys)]
    for result in client.produce(batches).values():
        assert result.error is None
    return values
