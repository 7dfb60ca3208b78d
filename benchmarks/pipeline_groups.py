"""Compares sinks that have a query each with sinks that share one query (`group`).

    python -m benchmarks.pipeline_groups [--records N] [--rounds N]

A pipeline reads a topic of JSON records to its end (availableNow), and each of its sinks writes a
hundredth of the rows to a topic, so that reading and parsing dominate. It prints the bytes that the
broker delivered, the CPU time of all processes and the elapsed time: the best of several rounds,
after a warm-up round.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.processor_time import look, spent_seconds
from strandlog.client.wire.client import WireClient
from strandlog.model import TopicPartition
from strandlog.record.builder import build_batch
from strandlog.spark import session
from strandlog.spark.pipeline import start
from strandlog.spark.pipeline.file import PipelineFile
from strandlog.testing.server import ServerThread

PARTITIONS = 4
BATCH_RECORDS = 5_000
MAX_SINKS = 3
HEAD = """
[pipeline]
name = "{name}"
bootstrap = "{address}"
checkpoint = "{folder}/{name}"

[[source]]
name = "orders"
topic = "orders"
schema = "id BIGINT, customer STRING, amount DOUBLE, at TIMESTAMP, note STRING"
"""
SINK = """
[[view]]
name = "part_{number}"
sql = "SELECT * FROM orders WHERE id % 100 = {number}"

[[sink]]
from = "part_{number}"
topic = "{name}-{number}"
partitions = 1
{group}
"""


class Figures(NamedTuple):
    """The cost of one run of a pipeline."""

    fetched_bytes: int
    cpu_seconds: float
    seconds: float


def fill(client: WireClient, records: int) -> None:
    client.create_topic("orders", PARTITIONS)
    for first in range(0, records, BATCH_RECORDS):
        values = [
            json.dumps(
                {
                    "id": number,
                    "customer": f"customer-{number % 1000}",
                    "amount": number / 7,
                    "at": "2026-01-01T10:00:00Z",
                    "note": "x" * 60,
                }
            ).encode()
            for number in range(first, min(first + BATCH_RECORDS, records))
        ]
        tp = TopicPartition("orders", first // BATCH_RECORDS % PARTITIONS)
        result = client.produce({tp: [build_batch(1, values)]})[tp]
        assert result.error is None, result.error


def measured(spark: Any, server: ServerThread, name: str, text: str) -> Figures:
    pipeline = PipelineFile(text).pipeline
    assert pipeline is not None, name
    fetched = server.call(lambda: server.server.broker.metrics.fetched_bytes)
    before, began = look(), time.perf_counter()
    with start(pipeline, spark=spark, available_now=True, report="off") as running:
        running.wait()
    seconds, spent = time.perf_counter() - began, spent_seconds(before, look())
    done = server.call(lambda: server.server.broker.metrics.fetched_bytes)
    return Figures(done - fetched, spent, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Compare sinks with a query each and a shared one."
    )
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    spark = session("local[2]", {"spark.ui.enabled": "false"}, quiet=True)
    spark.sparkContext.setLogLevel("ERROR")
    found: dict[tuple[int, str], list[Figures]] = {}
    with tempfile.TemporaryDirectory() as path, ServerThread(Path(path) / "data") as server:
        folder = Path(path)
        with WireClient(server.address) as client:
            fill(client, options.records)
        for number in range(options.rounds + 1):
            for sinks in range(1, MAX_SINKS + 1):
                for kind, group in (("queries", ""), ("group", 'group = "all"')):
                    name = f"{kind}-{sinks}-{number}"
                    text = HEAD.format(name=name, address=server.address, folder=folder)
                    text += "".join(
                        SINK.format(name=name, number=each, group=group) for each in range(sinks)
                    )
                    figures = measured(spark, server, name, text)
                    if number:
                        found.setdefault((sinks, kind), []).append(figures)
    spark.stop()
    print(f"{'sinks':<18}{'MB fetched':>12}{'CPU s':>10}{'seconds':>10}")
    for (sinks, kind), rounds in sorted(found.items()):
        best = Figures(*(min(values) for values in zip(*rounds, strict=True)))
        label = f"{sinks}, {'one group' if kind == 'group' else 'own queries'}"
        print(
            f"{label:<18}{best.fetched_bytes / 1e6:>12.1f}{best.cpu_seconds:>10.1f}"
            f"{best.seconds:>10.1f}"
        )


if __name__ == "__main__":
    main()
