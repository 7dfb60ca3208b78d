"""What both soaks need: a partition read to its end, and a report shown."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

PATIENCE_S = 90


def read_partition(
    bootstrap: str, topic: str, partition: int, isolation: str = "read_committed"
) -> Iterator[Message]:
    """Every record of a partition, from its beginning to its end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "judge",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    try:
        while True:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, f"no end of {topic}-{partition}"
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                return
            assert error is None, error
            yield message
    finally:
        consumer.close()


def say(text: str) -> None:
    """Progress, for whoever looks on."""
    sys.stderr.write(text + "\n")


def show(report: Any, *, as_json: bool) -> None:
    """A report, a line for each figure."""
    figures = asdict(report)
    if as_json:
        sys.stdout.write(json.dumps(figures) + "\n")
        return
    for name, value in figures.items():
        sys.stdout.write(f"{name.replace('_', ' '):<26}{value:>10,}\n")
