"""A real cluster: a master and two workers, the source and the sink at work on both."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

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
PATIENCE_SECONDS = 400  # on a busy machine

pytestmark = [pytest.mark.xdist_group("jvm"), pytest.mark.timeout(900)]

PIPELINE = """
[pipeline]
name = "{topic}"
bootstrap = "{address}"
checkpoint = "{folder}/checkpoints"

[[source]]
name = "numbers"
topic = "{topic}"
format = "string"

[[view]]
name = "endings"
sql = "SELECT right(value, 1) AS digit, count(*) AS numbers FROM numbers GROUP BY right(value, 1)"

[[sink]]
from = "endings"
topic = "{topic}.endings"
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


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return done.stdout


def committed(broker: BrokerProcess, topic: str, partitions: int) -> list[Message]:
    """Every record of a topic that a reader of committed records sees."""
    return [
        message
        for number in range(partitions)
        for message in read_partition(broker.address, topic, number)
    ]


def test_both_workers_read_and_write_and_each_record_arrives_once(
    cluster: SparkCluster, broker: BrokerProcess, client: WireClient, tmp_path: Path
) -> None:
    source, target = "cluster", "cluster.copy"
    for name in (source, target):
        client.create_topic(name, PARTITIONS)
    values = fill(client, source, COUNT, PARTITIONS)
    job = {
        "master": cluster.master_url,
        "conf": cluster.conf,
        "address": broker.address,
        "source": source,
        "target": target,
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    told = run("tests.spark.copy_job", json.dumps(job))
    assert json.loads(told.splitlines()[-1]) == [
        BATCH_OFFSETS,
        BATCH_OFFSETS,
        COUNT % BATCH_OFFSETS,
    ]
    found = committed(broker, target, PARTITIONS)
    assert Counter(message.value() for message in found) == Counter(values)
    share = Counter(dict(message.headers())[HEADER] for message in found)
    assert len(share) == 2, share
    assert min(share.values()) >= COUNT // 10, share  # one that only helped out would not count


def test_a_pipeline_runs_on_a_cluster(
    cluster: SparkCluster, broker: BrokerProcess, client: WireClient, topic: str, tmp_path: Path
) -> None:
    client.create_topic(f"{topic}.endings", 1)
    fill(client, topic, 1000)
    file = tmp_path / "endings.toml"
    file.write_text(PIPELINE.format(topic=topic, address=broker.address, folder=tmp_path))
    settings = [part for pair in cluster.conf.items() for part in ("--conf", "=".join(pair))]
    run(
        *("strandlog", "pipeline", "run", str(file), "--available-now"),
        *("--master", cluster.master_url, *settings),
    )
    found = [json.loads(each.value()) for each in committed(broker, f"{topic}.endings", 1)]
    assert sorted(found, key=str) == [{"digit": str(digit), "numbers": 100} for digit in range(10)]
