"""A standalone cluster of a master and two workers: source, sink and a pipeline on both workers.

One driver runs everything; the tests check what it left behind.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import pytest
from confluent_kafka import Message
from tests.soak.reading import read_partition
from tests.spark.cluster import SparkCluster
from tests.spark.copy_job import BATCH_OFFSETS, HEADER
from tests.support.broker_process import BrokerProcess
from tests.support.numbered_values import fill

from strandlog.client.wire.client import WireClient

PARTITIONS = 4
COUNT = 10_000
SOURCE, TARGET, ENDINGS = "cluster", "cluster.copy", "cluster.endings"
PATIENCE_SECONDS = 600  # on a busy machine

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]

PIPELINE = """
[pipeline]
name = "endings"
bootstrap = "{address}"
checkpoint = "{folder}/checkpoints"

[[source]]
name = "numbers"
topic = "cluster"
format = "string"

[[view]]
name = "endings"
sql = "SELECT right(value, 1) AS digit, count(*) AS numbers FROM numbers GROUP BY right(value, 1)"

[[sink]]
from = "endings"
topic = "cluster.endings"
partitions = 1
key = "digit"
mode = "update"
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    pytest.importorskip("pyspark", reason="Spark tests need the spark extra")
    running = SparkCluster(tmp_path_factory.mktemp("cluster"))
    running.start()
    yield running
    running.stop()
    assert running.executor_pids() == []


@pytest.fixture(scope="module")
def copied(
    cluster: SparkCluster, broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[bytes], list[int]]:
    """The values of the source, and the rows of each micro-batch that copied them."""
    folder = tmp_path_factory.mktemp("copy")
    with WireClient(broker.address) as client:
        for name in (SOURCE, TARGET):
            client.create_topic(name, PARTITIONS)
        values = fill(client, SOURCE, COUNT, PARTITIONS)
    pipeline = folder / "endings.toml"
    pipeline.write_text(PIPELINE.format(address=broker.address, folder=folder))
    job = {
        "master": cluster.master_url,
        "conf": cluster.conf,
        "address": broker.address,
        "source": SOURCE,
        "target": TARGET,
        "checkpoint": str(folder / "checkpoint"),
        "pipeline": str(pipeline),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.copy_job", json.dumps(job)],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return values, json.loads(done.stdout.splitlines()[-1])


def committed(broker: BrokerProcess, topic: str, partitions: int) -> list[Message]:
    """All committed records of a topic."""
    return [
        message
        for number in range(partitions)
        for message in read_partition(broker.address, topic, number)
    ]


def test_both_workers_read_and_write_and_each_record_arrives_once(
    copied: tuple[list[bytes], list[int]], broker: BrokerProcess
) -> None:
    values, batches = copied
    assert batches == [BATCH_OFFSETS, BATCH_OFFSETS, COUNT % BATCH_OFFSETS]
    found = committed(broker, TARGET, PARTITIONS)
    assert Counter(message.value() for message in found) == Counter(values)
    share = Counter(dict(message.headers())[HEADER] for message in found)
    assert len(share) == 2, share
    assert min(share.values()) >= COUNT // 10, share


def test_a_pipeline_runs_on_a_cluster(
    copied: tuple[list[bytes], list[int]], broker: BrokerProcess
) -> None:
    values, _ = copied
    found = [json.loads(each.value()) for each in committed(broker, ENDINGS, 1)]
    counts = Counter(value[-1:].decode() for value in values)
    assert sorted(found, key=str) == [
        {"digit": digit, "numbers": count} for digit, count in sorted(counts.items())
    ]
