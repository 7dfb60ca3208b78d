"""Scripts that end without `spark.stop()`, on a real Spark in a process of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.numbered_values import fill

from strandlog.client.wire.client import WireClient
from strandlog.model import TopicPartition

pytest.importorskip("pyspark", reason="Spark tests need the spark extra")

START = """
import os, signal, sys
from strandlog.spark import session

spark = session("local[1]", {"spark.ui.enabled": "false"}, quiet=True)
spark.sparkContext.setLogLevel("ERROR")
"""
COPY = """
address, topic, checkpoint = sys.argv[1:]
rows = spark.readStream.format("strandlog").option("bootstrap.servers", address)
rows = rows.options(subscribe=topic, groupId=topic, startingOffsets="earliest").load()
query = rows.writeStream.format("noop").option("checkpointLocation", checkpoint)
query.trigger(availableNow=True).start().awaitTermination()
"""
KILL = """
java = spark.sparkContext._gateway.proc
os.kill(java.pid, signal.SIGKILL)
java.wait()
"""


def run(script: str, *arguments: str) -> str:
    """Run a script to its end, and return what it wrote to stderr."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        check=False,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.long
def test_a_successful_script_prints_a_java_stack_trace_at_exit(
    broker: BrokerProcess, client: WireClient, topic: str, tmp_path: Path
) -> None:
    fill(client, topic, 10)
    printed = run(START + COPY, broker.address, topic, str(tmp_path / "checkpoint"))
    assert "Exception" not in printed
    assert "Traceback" not in printed
    found = {tp: at.offset for tp, at in client.committed_offsets(topic).items()}
    ends = {TopicPartition(topic, number): 5 for number in range(2)}
    assert found == ends, "the listener has received the last micro-batch"


@pytest.mark.long
def test_a_script_whose_java_has_died_ends_without_a_traceback() -> None:
    assert "Traceback" not in run(START + KILL)
