"""Defines the cases of the Spark benchmark and the topics that they read.

A case has a command for each contender (see spark_job.py), the number of rows, and the expected
result. Values are half repeated text and half random, for a realistic compression ratio.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from strandlog.client.wire.client import WireClient
from strandlog.clock import SystemClock
from strandlog.model import TopicPartition
from strandlog.record.builder import build_batch
from strandlog.record.codecs import Codec

PARTITIONS = 4
KEY_BYTES = 9
BATCH_BYTES = 64 * 1024  # typical of a producer tuned for throughput
DISTINCT_BATCHES = 40
MICRO_BATCHES = 6
TINY_MICRO_BATCHES = 40
READ_GOAL = 3.0
WRITE_GOAL = 1.5
TINY_GOAL = 1.0
TEXT = b'{"carrier": "UA", "origin": "EWR", "dest": "IAH", "dep_delay": 2.0, "note": "'


class Topic(Enum):
    """The topics to read: (value size in bytes, rows, codec). TINY is read by streams only, in
    micro-batches of 100 records, whose time is Spark's overhead and the source's."""

    SMALL = (100, 2_400_000, Codec.NONE)
    SMALL_ZSTD = (100, 2_400_000, Codec.ZSTD)
    LARGE = (1000, 480_000, Codec.NONE)
    LARGE_ZSTD = (1000, 480_000, Codec.ZSTD)
    TINY = (100, 4_000, Codec.NONE)

    def __init__(self, value_bytes: int, rows: int, codec: Codec) -> None:
        self.value_bytes = value_bytes
        self.rows = rows
        self.codec = codec

    @property
    def label(self) -> str:
        size = "100 B" if self.value_bytes == 100 else "1 KB"
        return f"{size}, {'plain' if self.codec is Codec.NONE else self.codec.name.lower()}"

    @property
    def sums(self) -> list[int]:
        """The expected row count and the sums of key lengths, value lengths and offsets."""
        each = self.rows // PARTITIONS
        offsets = PARTITIONS * each * (each - 1) // 2
        return [self.rows, self.rows * KEY_BYTES, self.rows * self.value_bytes, offsets]


READ = (Topic.SMALL, Topic.SMALL_ZSTD, Topic.LARGE, Topic.LARGE_ZSTD)
WRITTEN = (Topic.SMALL, Topic.LARGE)
COPY = "COPY"


@dataclass(frozen=True)
class Case:
    """One measurement, for all contenders."""

    name: str
    rows: int
    value_bytes: int
    orders: dict[str, dict[str, Any]]  # by contender
    goal: float
    expected: list[int] = field(default_factory=list)
    micro_batches: int = MICRO_BATCHES  # of a stream


def prepare(client: WireClient) -> None:
    """Create all topics, and fill those that are read."""
    for topic in Topic:
        client.create_topic(topic.name, PARTITIONS)
        _fill(client, topic)
    for target in (*map(_target, WRITTEN), COPY):
        client.create_topic(target, PARTITIONS)


def _target(topic: Topic) -> str:
    return f"OUT_{topic.name}"


def _fill(client: WireClient, topic: Topic) -> None:
    """Fill a topic with the same records in every partition."""
    rows = topic.rows // PARTITIONS
    size = max(size for size in range(1, BATCH_BYTES // topic.value_bytes) if rows % size == 0)
    now_ms = SystemClock().now_ms()
    noise = topic.value_bytes // 2
    batches = []
    for number in range(DISTINCT_BATCHES):
        values = [
            (os.urandom(noise).hex()[:noise].encode() + TEXT * topic.value_bytes)[
                : topic.value_bytes
            ]
            for _ in range(size)
        ]
        keys: list[bytes | None] = [b"%09d" % (number * size + row) for row in range(size)]
        batches.append(build_batch(now_ms, values, keys, codec=topic.codec))
    sender = client.sender(acks=1)
    for number in range(rows // size):
        for partition in range(PARTITIONS):
            tp = TopicPartition(topic.name, partition)
            sender.send(tp, batches[number % DISTINCT_BATCHES])
    for result in sender.flush().values():
        if result.error is not None:
            raise result.error


def all_cases(address: str, data: Path) -> Iterator[Case]:
    """Yield all cases, in the order in which they are measured."""
    ways = {
        "broker": ("strandlog", {"kafka.bootstrap.servers": address}),
        "path": ("strandlog", {"path": str(data)}),
        "connector": ("kafka", {"kafka.bootstrap.servers": address}),
    }

    def reading(do: str, topic: Topic, **more: Any) -> dict[str, dict[str, Any]]:
        options = {"subscribe": topic.name, "startingOffsets": "earliest"}
        if do == "stream":
            count = TINY_MICRO_BATCHES if topic is Topic.TINY else MICRO_BATCHES
            options["maxOffsetsPerTrigger"] = str(topic.rows // count)
        return {
            contender: {"do": do, "format": name, "options": place | options, **more}
            for contender, (name, place) in ways.items()
        }

    for topic in READ:
        for sink in ("noop", "sums"):
            yield Case(
                f"read {topic.label}, {sink}",
                topic.rows,
                topic.value_bytes,
                reading("read", topic, sink=sink),
                READ_GOAL,
                topic.sums,
            )
    for topic in (Topic.SMALL, Topic.LARGE):
        orders = reading("read", topic, sink="value")
        for contender, order in orders.items():
            if contender != "connector":  # the connector accepts no schema
                order["schema"] = "value BINARY"
        name, bytes_ = f"read {topic.label}, values alone", topic.rows * topic.value_bytes
        expected = [topic.rows, bytes_]
        yield Case(name, topic.rows, topic.value_bytes, orders, READ_GOAL, expected)
    for topic in (Topic.SMALL, Topic.LARGE):
        yield Case(
            f"stream {topic.label}, noop",
            topic.rows,
            topic.value_bytes,
            reading("stream", topic),
            READ_GOAL,
            [topic.rows],
        )
    yield Case(
        "stream of tiny micro-batches",
        Topic.TINY.rows,
        Topic.TINY.value_bytes,
        reading("stream", Topic.TINY),
        TINY_GOAL,
        [Topic.TINY.rows],
        TINY_MICRO_BATCHES,
    )
    yield from _writes(address)


def _writes(address: str) -> Iterator[Case]:
    for topic in WRITTEN:
        order = {"do": "write", "rows": topic.rows // 4, "value_bytes": topic.value_bytes}
        options = {"kafka.bootstrap.servers": address, "topic": _target(topic)}
        orders = {
            guarantee: {
                "format": "strandlog",
                "options": options | {"deliveryGuarantee": guarantee},
                **order,
            }
            for guarantee in ("at_least_once", "exactly_once")
        }
        orders["connector"] = {"format": "kafka", "options": options, **order}
        yield Case(
            f"write {topic.label}",
            topic.rows // 4,
            topic.value_bytes,
            orders,
            WRITE_GOAL,
        )
    options = {
        "kafka.bootstrap.servers": address,
        "subscribe": Topic.SMALL.name,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(Topic.SMALL.rows // MICRO_BATCHES),
    }
    target = {"kafka.bootstrap.servers": address, "topic": COPY}
    yield Case(
        "stream from topic to topic",
        Topic.SMALL.rows,
        Topic.SMALL.value_bytes,
        {
            contender: {"do": "stream", "format": name, "options": options, "target": target}
            for contender, name in (("exactly_once", "strandlog"), ("connector", "kafka"))
        },
        WRITE_GOAL,
        [Topic.SMALL.rows],
    )
