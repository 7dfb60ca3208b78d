"""Settings and start-up of sessions made by `session()`."""

from __future__ import annotations

import socket
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.accumulators import _start_update_server
from tests.support.broker_process import BrokerProcess
from tests.support.numbered_values import fill

from strandlog.client.wire.client import WireClient
from strandlog.spark.session import register, silence_closed_accumulator_connections


def _variables(spark: Any) -> set[str]:
    """The environment variables that all queries of the format share."""
    formats = spark._jsparkSession.sessionState().dataSourceManager()
    return set(formats.lookupDataSource("strandlog").dataSourceCls().envVars().keySet())


def test_queries_that_start_at_once_do_not_corrupt_the_shared_environment(
    spark: Any, broker: BrokerProcess, client: WireClient, topic: str, tmp_path: Path
) -> None:
    fill(client, topic, 100)
    before = _variables(spark)
    frame = (
        spark.readStream.format("strandlog")
        .option("bootstrap.servers", broker.address)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    queries = [
        frame.writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / str(number)))
        .trigger(availableNow=True)
        .start()
        for number in range(2)
    ]
    for query in queries:
        assert query.awaitTermination(120)
        assert sum(progress["numInputRows"] for progress in query.recentProgress) == 100
    # The race is rare; what makes it possible is a name that a starting query adds.
    assert _variables(spark) == before


SLOW_START = """
import os, sys, time
if any("python_streaming_source_runner" in word for word in sys.orig_argv):
    try:
        os.unlink({marker!r})
    except FileNotFoundError:
        pass
    else:
        time.sleep(11)  # Spark waits for ten
"""


@pytest.mark.long
def test_start_survives_a_python_process_that_is_too_slow(
    spark: Any, broker: BrokerProcess, client: WireClient, topic: str, tmp_path: Path
) -> None:
    fill(client, topic, 10)
    marker = tmp_path / "slow-once"
    marker.touch()
    (tmp_path / "sitecustomize.py").write_text(SLOW_START.format(marker=str(marker)))
    context = spark.sparkContext
    before = context.environment
    context.environment = {**before, "PYTHONPATH": str(tmp_path)}
    try:
        register(spark)
    finally:
        context.environment = before
    try:
        query = (
            spark.readStream.format("strandlog")
            .option("bootstrap.servers", broker.address)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .load()
            .writeStream.format("memory")  # takes no checkpoint that a query has begun
            .queryName("slow_start")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    finally:
        register(spark)
    assert not marker.exists(), "the first process was slow"
    assert spark.table("slow_start").count() == 10


def test_arrow_bounds_checks_are_off_in_java(spark: Any) -> None:
    arrow = spark._jvm.org.apache.arrow
    assert not arrow.memory.BoundsChecking.BOUNDS_CHECKING_ENABLED
    assert not arrow.vector.NullCheckingForGet.NULL_CHECKING_ENABLED


def test_registering_the_source_logs_no_warning(spark: Any) -> None:
    name = "org.apache.spark.sql.execution.datasources.DataSourceManager"
    assert not spark._jvm.org.apache.logging.log4j.LogManager.getLogger(name).isWarnEnabled()


def _printed_after_a_disconnect(sent: bytes, *, is_silent: bool, seen: Any) -> str:
    """What is printed when Java sends this and disconnects, and another connection follows."""
    server = _start_update_server("secret", False)
    if is_silent:
        silence_closed_accumulator_connections(SimpleNamespace(_accumulatorServer=server))
    with socket.create_connection(server.server_address, timeout=30) as java:
        java.sendall(sent)
    with socket.create_connection(server.server_address, timeout=30) as java:
        java.sendall(b"secret" + struct.pack("!i", 0))
        assert java.recv(1) == b"\x01"
        server.shutdown()  # nothing is printed after it
    return str(seen.readouterr().err)


def test_a_stopped_query_prints_no_traceback_of_accumulators(
    capsys: pytest.CaptureFixture[str],
) -> None:
    printed = _printed_after_a_disconnect(b"secret", is_silent=False, seen=capsys)
    assert "EOFError" in printed, "the traceback in question"
    assert _printed_after_a_disconnect(b"secret", is_silent=True, seen=capsys) == ""
    assert "not correct" in _printed_after_a_disconnect(b"wrong!", is_silent=True, seen=capsys)
