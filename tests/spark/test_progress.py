"""Progress of queries: reports, and the groups that show their lag; on a real Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.numbered_values import fill
from tests.support.waiting import eventually

from strandlog.client.wire.client import WireClient
from strandlog.model import TopicPartition

pytest.importorskip("pyspark", reason="Spark tests need the spark extra")

from strandlog.spark.monitoring.progress import QueryReport, log_report, watch

REPORT = QueryReport("orders", 3, 1200, 4000.4, 300, 17, 5, 0, None)


def test_a_report_is_one_line() -> None:
    text = "orders: batch 3  1,200 rows  4,000 rows/s  300 ms  lag 17  state 5"
    assert str(REPORT) == text
    short = REPORT._replace(lag=None, state_rows=0, late_rows=2)
    assert str(short) == "orders: batch 3  1,200 rows  4,000 rows/s  300 ms  late 2"


@pytest.fixture
def reports(spark: Any, topic: str) -> Iterator[list[QueryReport]]:
    """The reports of the query named after the topic. Those of an earlier test may arrive late."""
    shown: list[QueryReport] = []

    def show(report: QueryReport) -> None:
        if report.name == topic:
            shown.append(report)

    watch(spark, show)
    yield shown
    watch(spark, log_report)


def stream(spark: Any, broker: BrokerProcess, topic: str, **options: str) -> Any:
    return (
        spark.readStream.format("strandlog")
        .option("bootstrap.servers", broker.address)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .options(**options)
        .load()
    )


def wait_for(found: Callable[[], Any], wanted: Any) -> None:
    """Spark calls listeners in its own thread."""
    eventually(lambda: found() == wanted, f"{wanted} in the reports")


def committed(client: WireClient, group: str) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for tp, at in client.committed_offsets(group).items():
        found.setdefault(tp.topic, {})[tp.partition] = at.offset
    return found


def test_after_a_bounded_run_the_group_is_at_the_end(
    spark: Any,
    broker: BrokerProcess,
    client: WireClient,
    topic: str,
    checkpoint: str,
    reports: list[QueryReport],
) -> None:
    fill(client, topic, 100)
    query = (
        stream(spark, broker, topic, groupId=topic, maxOffsetsPerTrigger="60")
        .writeStream.format("noop")
        .queryName(topic)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    wait_for(lambda: committed(client, topic), {topic: {0: 50, 1: 50}})
    wait_for(lambda: [(each.batch_id, each.rows, each.lag) for each in reports], [
        (0, 60, 40), (1, 40, 0),
    ])  # fmt: skip
    assert all(each.batch_ms > 0 for each in reports)
    # Spark takes metrics and a description only from sources in Java (docs/guides/spark.md).
    [source] = query.recentProgress[0]["sources"]
    assert not source["metrics"]
    assert "PythonMicroBatchStream" in source["description"]
    ends = [json.loads(source[name])[topic] for name in ("endOffset", "latestOffset")]
    assert ends == [{"0": 30, "1": 30}, {"0": 50, "1": 50}], "enough to compute the metrics"


def test_each_source_of_a_query_has_its_own_group(
    spark: Any, broker: BrokerProcess, client: WireClient, topic: str, checkpoint: str
) -> None:
    other, third = f"{topic}-other", f"{topic}-third"
    for name in (other, third):
        client.create_topic(name, 1)
    fill(client, topic, 10)
    fill(client, other, 7, partitions=1)
    fill(client, third, 5, partitions=1)
    rates = (
        spark.readStream.format("rate")
        .load()
        .selectExpr("CAST(CAST(value AS STRING) AS BINARY) AS value")
    )
    mine = stream(spark, broker, topic, groupId=f"{topic}-a").select("value")
    frame = (
        rates.where("false")
        .unionByName(mine)
        .unionByName(stream(spark, broker, third).select("value"))
        .unionByName(
            stream(spark, broker, other, **{"kafka.group.id": f"{topic}-b"}).select("value")
        )
        .unionByName(mine)
    )
    query = (
        frame.writeStream.format("noop")
        .option("checkpointLocation", checkpoint)
        .trigger(once=True)
        .start()
    )
    query.awaitTermination()
    wait_for(lambda: committed(client, f"{topic}-a"), {topic: {0: 5, 1: 5}})
    wait_for(lambda: committed(client, f"{topic}-b"), {other: {0: 7}})


def described_lag(broker: BrokerProcess, group: str) -> int:
    text = subprocess.run(
        [
            sys.executable,
            "-m",
            "strandlog",
            "group",
            "describe",
            group,
            "-b",
            broker.address,
            "--json",
        ],
        check=True,
        capture_output=True,
        text=True,
        timeout=600,
    )
    return sum(row["lag"] for row in json.loads(text.stdout)["partitions"])


def test_the_lag_of_a_running_query_is_seen_by_kafkas_tools(
    spark: Any, broker: BrokerProcess, client: WireClient, topic: str, tmp_path: Path
) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": broker.address})

    def offsets() -> dict[int, int]:
        asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(topic)])
        found = asked[topic].result(20).topic_partitions
        return {each.partition: each.offset for each in found}

    fill(client, topic, 30)
    query = (
        stream(spark, broker, topic, groupId=topic)
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="1 hour")
        .start()
    )
    try:
        wait_for(offsets, {0: 15, 1: 15})  # by the listener: no batch follows
        assert described_lag(broker, topic) == 0
        fill(client, topic, 12)
        assert query.isActive
        assert described_lag(broker, topic) == 12
        ends = client.latest_offsets([TopicPartition(topic, number) for number in range(2)])
        assert (
            sum(ends[TopicPartition(topic, number)] - at for number, at in offsets().items()) == 12
        )
    finally:
        query.stop()


def test_a_failed_commit_of_progress_does_not_fail_the_query(
    spark: Any,
    client: WireClient,
    broker: BrokerProcess,
    topic: str,
    checkpoint: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fill(client, topic, 10)
    query = (
        stream(spark, broker, topic, groupId="")
        .writeStream.format("noop")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert query.exception() is None
    assert sum(progress["numInputRows"] for progress in query.recentProgress) == 10
    text = "cannot commit progress to group ''"
    wait_for(lambda: any(text in record.getMessage() for record in caplog.records), wanted=True)


def test_a_session_has_one_listener(spark: Any) -> None:
    assert watch(spark) is watch(spark)
