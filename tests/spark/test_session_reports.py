"""Queries of a session in the list of pipelines of their brokers, on a real Spark."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.http_client import client_of, ok
from tests.support.numbered_values import fill
from tests.support.waiting import eventually

from strandlog.client.wire.client import WireClient
from strandlog.errors import InvalidSettingError

pytest.importorskip("pyspark", reason="Spark tests need the spark extra")

from strandlog.spark.monitoring.progress import watch


def shown(broker: BrokerProcess, name: str) -> dict[str, Any]:
    """The session in the broker's list of pipelines, and its queries by name."""
    with client_of(broker) as http:
        found = ok(http.get("/api/v1/pipelines"))["pipelines"]
    mine: dict[str, Any] = next((each for each in found if each["name"] == name), {})
    return {**mine, "queries": {each["last"]["name"]: each["last"] for each in mine["queries"]}}


def stream(spark: Any, broker: BrokerProcess, topic: str) -> Any:
    return (
        spark.readStream.format("strandlog")
        .option("bootstrap.servers", broker.address)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )


def test_a_query_is_shown_while_it_runs_and_when_it_has_ended(
    spark: Any, broker: BrokerProcess, client: WireClient, topic: str, checkpoint: str
) -> None:
    fill(client, topic, 100)
    query = (
        stream(spark, broker, topic)
        .writeStream.format("noop")
        .queryName(topic)
        .option("checkpointLocation", checkpoint)
        .start()
    )
    try:
        name = spark.sparkContext.appName
        eventually(lambda: topic in shown(broker, name)["queries"], "the query is reported")
        found = shown(broker, name)
        assert found["state"] == "running"
        assert (found["queries"][topic]["rows"], found["queries"][topic]["lag"]) == (100, 0)
    finally:
        query.stop()
    eventually(lambda: shown(broker, name)["state"] == "stopped", "the query is reported")


def test_a_query_that_only_writes_is_shown_and_one_of_another_format_is_not(
    spark: Any, broker: BrokerProcess, topic: str, checkpoint: str
) -> None:
    rates = spark.readStream.format("rate").load().selectExpr("CAST(value AS STRING) AS value")
    other = (
        rates.writeStream.format("noop")
        .queryName(f"{topic}-other")
        .option("checkpointLocation", f"{checkpoint}-other")
        .start()
    )
    mine = (
        rates.writeStream.format("strandlog")
        .queryName(topic)
        .option("bootstrap.servers", broker.address)
        .option("topic", topic)
        .option("checkpointLocation", checkpoint)
        .start()
    )
    try:
        name = spark.sparkContext.appName
        eventually(
            lambda: topic in shown(broker, name)["queries"] and other.lastProgress,
            "the query is reported",
        )
        assert f"{topic}-other" not in shown(broker, name)["queries"]
    finally:
        for query in (mine, other):
            query.stop()


@pytest.mark.long
def test_a_query_that_fails_is_shown_with_the_reason(
    spark: Any, broker: BrokerProcess, client: WireClient, topic: str, checkpoint: str
) -> None:
    fill(client, topic, 10)
    query = (
        stream(spark, broker, topic)
        .selectExpr("raise_error('out of milk') AS value")
        .writeStream.format("noop")
        .option("checkpointLocation", checkpoint)
        .start()
    )
    with pytest.raises(Exception, match="out of milk"):
        query.awaitTermination(60)
    name = spark.sparkContext.appName
    eventually(lambda: shown(broker, name)["state"] == "failed", "the query is reported")
    assert "out of milk" in shown(broker, name)["error"]
    assert "\n" not in shown(broker, name)["error"]


FAILING_APPLICATION = """
import sys
from strandlog.spark import session

address, topic, checkpoint = sys.argv[1:]
spark = session("local[1]", app_name="failing application")
spark.sparkContext.setLogLevel("OFF")
source = {"bootstrap.servers": address, "subscribe": topic, "startingOffsets": "earliest"}
values = spark.readStream.format("strandlog").options(**source).load()
failing = values.selectExpr("raise_error('out of milk') AS value").writeStream.format("noop")
failing.option("checkpointLocation", checkpoint).start().awaitTermination()
"""


@pytest.mark.long
def test_an_application_that_ends_with_a_failed_query_is_shown_as_failed(
    broker: BrokerProcess, client: WireClient, topic: str, checkpoint: str
) -> None:
    """The end of the program replaced the state "failed" and the reason by "stopped"."""
    fill(client, topic, 10)
    arguments = [broker.address, topic, checkpoint]
    command = [sys.executable, "-c", FAILING_APPLICATION, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "out of milk" in ended.stderr
    found = shown(broker, "failing application")
    assert found["state"] == "failed"
    assert "out of milk" in found["error"]


def test_an_invalid_report_address_is_an_error(spark: Any) -> None:
    with pytest.raises(InvalidSettingError, match="http://HOST:PORT"):
        watch(spark, report="nowhere")
