"""What both soaks need: a command line, a partition read to its end, and a report shown."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
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
    """Prints the progress of a run."""
    sys.stderr.write(text + "\n")


def run_soak(soak: Callable[[Path, int], Any], description: str, counted: str) -> int:
    """The command line of a soak; `counted` names what it does how many times."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(f"--{counted}", type=int, default=50, dest="count")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="strandlog-soak-") as folder:
        report = soak(Path(folder), options.seed).run(options.count)
    show(report, as_json=options.json)
    return 0 if report.is_right else 1


def show(report: Any, *, as_json: bool) -> None:
    """A report, a line for each figure."""
    figures = asdict(report)
    if as_json:
        sys.stdout.write(json.dumps(figures) + "\n")
        return
    for name, value in figures.items():
        sys.stdout.write(f"{name.replace('_', ' '):<26}{value:>10,}\n")
