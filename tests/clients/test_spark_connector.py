"""Spark's own Kafka connector: batch and stream, both ways, as any existing job would."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.clients import peers
from tests.support.broker_process import BrokerProcess
from tools.fetch_peers import SPARK

PROGRAM = Path(__file__).with_name("kafka_connector_job.py")
MARK = "said: "
COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]


@pytest.fixture(scope="session")
def spark() -> Path:
    return peers.folder(SPARK)


def test_a_job_reads_and_writes_in_batches_and_as_a_stream_that_resumes(
    spark: Path, shared_broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    python = spark / "venv" / "bin" / "python"
    printed = peers.run(
        *(python, PROGRAM, shared_broker.address, topic, tmp_path),
        PEER_JARS=str(spark / "jars"),
        PYSPARK_PYTHON=str(python),
        PYTHONPATH="",
    )
    lines = [line for line in printed.splitlines() if line.startswith(MARK)]
    assert [json.loads(line.removeprefix(MARK)) for line in lines] == [
        {"columns": COLUMNS, "count": 1000, "total": 499_500, "partitions": [0]},
        {"first": 100, "last": 149, "rows": 50},
        {"since_1970": 1000},
        {"tasks": 4, "rows": 1000},
        {"batches": 3},
        {"batches": 3},
        {"count": 1000, "distinct": 1000},
    ]
