"""`strandlog pipeline run` on a real Spark: in the shared session, and once as a process."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.server.spark_access.report_server import listening
from tests.support.broker_process import BrokerProcess
from tests.support.http_client import client_of, ok
from tests.support.processes import kill_with_children, signal_with_children

from strandlog.cli.main import run as strandlog_command
from strandlog.client.wire.client import WireClient
from strandlog.model import IsolationLevel, Record, TopicPartition
from strandlog.record.batch import iter_batches
from strandlog.record.builder import build_batch

PIPELINE = """
[pipeline]
name = "{topic}"
bootstrap = "{address}"
checkpoint = "{folder}/checkpoints"

[[source]]
name = "flights"
topic = "{topic}"
schema = "carrier STRING, delay DOUBLE"
dead_letter = "{topic}.bad"

[[view]]
name = "delays"
sql = "SELECT carrier, count(*) AS flights, avg(delay) AS delay FROM flights GROUP BY carrier"

[[sink]]
from = "delays"
topic = "{topic}.delays"
key = "carrier"
partitions = 1
mode = "update"

[[sink]]
from = "flights"
parquet = "{folder}/lake"
"""

# Takes the terminal on stdin as its controlling terminal, so that Ctrl-C is a signal, then execs.
IN_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


def pipeline_file(topic: str, broker: BrokerProcess, folder: Path) -> Path:
    file = folder / "flights.toml"
    file.write_text(PIPELINE.format(topic=topic, address=broker.address, folder=folder))
    return file


def strandlog_pipeline(command: str, file: Path, *arguments: str) -> None:
    """Run the command in this process, where it uses the active Spark session."""
    with pytest.raises(SystemExit) as ended:
        strandlog_command(["pipeline", command, str(file), *arguments])
    assert ended.value.code in (0, None)


def records(client: WireClient, topic: str) -> list[Record]:
    tp = TopicPartition(topic, 0)
    end = client.latest_offsets([tp], IsolationLevel.READ_COMMITTED)[tp]
    found: list[Record] = []
    for piece in client.read_range(tp, 0, end, IsolationLevel.READ_COMMITTED):
        for batch in iter_batches(piece.data):
            if not batch.header.is_control:
                found += batch.records(*tp)
    return found


def send(client: WireClient, topic: str, *values: bytes | None) -> None:
    tp = TopicPartition(topic, 0)
    assert client.produce({tp: [build_batch(1, list(values))]})[tp].error is None


def test_a_pipeline_resumes_where_it_stopped_and_sets_bad_records_aside(
    spark: Any, broker: BrokerProcess, client: WireClient, topic: str, tmp_path: Path, capsys: Any
) -> None:
    assert spark.streams.active == []
    file = pipeline_file(topic, broker, tmp_path)
    strandlog_pipeline("validate", file)
    send(client, topic, b'{"carrier": "AA", "delay": 4}')
    own = (("a", b"1"), ("a", None), ("topic", b"mine"))
    tp = TopicPartition(topic, 0)
    oops = build_batch(1, [b"oops \xff\x00"], [b"k\xfe"], headers=[own])
    assert client.produce({tp: [oops]})[tp].error is None
    send(client, topic, b'{"carrier": "UA", "delay": 1}')
    capsys.readouterr()
    strandlog_pipeline("run", file, "--available-now", "--json")
    printed = capsys.readouterr().out
    with client_of(broker) as http:
        shown = ok(http.get(f"/api/v1/pipelines/{topic}"))
    assert (shown["state"], shown["error"]) == ("stopped", None)
    lags = {query["last"]["name"]: query["last"]["lag"] for query in shown["queries"]}
    assert len(lags) == 3
    assert set(lags.values()) == {0}
    reports = [json.loads(line) for line in printed.splitlines()]
    assert {report["name"] for report in reports} >= {"flights-dead-letter"}
    assert all(report["lag"] == 0 for report in reports)
    send(client, topic, b'{"carrier": "AA", "delay": 8}')
    with listening() as other:
        strandlog_pipeline("run", file, "--available-now", "--report", other.address)
    assert "rows/s" in capsys.readouterr().err
    assert [each["state"] for each in (other.reports[0], other.reports[-1])] == [
        "running",
        "stopped",
    ]
    with client_of(broker) as http:
        assert ok(http.get(f"/api/v1/pipelines/{topic}")) == shown, "--report replaces the broker"
    rows = [(row.key, json.loads(row.value or b"")) for row in records(client, f"{topic}.delays")]
    assert sorted(rows[:2], key=str) == [
        (b"AA", {"carrier": "AA", "flights": 1, "delay": 4.0}),
        (b"UA", {"carrier": "UA", "flights": 1, "delay": 1.0}),
    ]
    assert rows[2:] == [(b"AA", {"carrier": "AA", "flights": 2, "delay": 6.0})]
    [bad] = records(client, f"{topic}.bad")
    assert (bad.key, bad.value) == (b"k\xfe", b"oops \xff\x00"), "byte for byte"
    assert [*bad.headers] == [
        *own,
        ("__strandlog.errors.topic", topic.encode()),
        ("__strandlog.errors.partition", b"0"),
        ("__strandlog.errors.offset", b"1"),
        ("__strandlog.errors.timestamp", b"1"),
        ("__strandlog.errors.reason", b"the value is not UTF-8"),
    ]
    assert len(list((tmp_path / "lake").glob("*.parquet"))) >= 2
    assert client.committed_offsets(topic)[TopicPartition(topic, 0)].offset == 4


@pytest.mark.long
def test_ctrl_c_on_a_terminal_stops_a_pipeline_with_exit_code_0(
    broker: BrokerProcess, client: WireClient, topic: str, tmp_path: Path
) -> None:
    file = pipeline_file(topic, broker, tmp_path)
    send(client, topic, b'{"carrier": "AA", "delay": 4}')
    with listening() as server:
        text = terminal_output_until_ctrl_c(file, server.address)
    assert "stopping" in text
    assert server.reports[0]["ui_url"] in text
    assert server.reports[-1]["state"] == "stopped"
    assert "cannot report" not in text
    assert "Exception" not in text
    assert "Traceback" not in text


def terminal_output_until_ctrl_c(file: Path, report: str) -> str:
    """Run a pipeline in a terminal, with a live table, and press Ctrl-C when it shows a query."""
    command = [sys.executable, "-c", IN_TERMINAL, sys.executable, "-m", "strandlog"]
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    process = subprocess.Popen(
        [*command, "pipeline", "run", str(file), "--master", "local[2]", "--report", report],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(theirs)
    shown = b""
    try:
        while b"delays-topic" not in shown or b"rows/s" not in shown:
            shown += os.read(ours, 4096)
        os.write(ours, b"\x03")  # the terminal turns it into SIGINT for its foreground processes
        with contextlib.suppress(OSError):  # the terminal was closed
            while more := os.read(ours, 4096):
                shown += more
        assert process.wait(60) == 0, shown.decode()
    finally:
        if process.poll() is None:
            kill_with_children(process.pid)
            process.wait()
        os.close(ours)
    return shown.decode(errors="replace")


@pytest.mark.long
@pytest.mark.parametrize("stop", [os.killpg, signal_with_children], ids=["group", "everything"])
def test_sigterm_to_all_processes_of_a_pipeline_is_a_clean_stop(
    spark: Any,
    broker: BrokerProcess,
    client: WireClient,
    topic: str,
    tmp_path: Path,
    stop: Callable[[int, signal.Signals], None],
) -> None:
    """`timeout` and shells signal the whole group; systemd signals every process of a service."""
    file = pipeline_file(topic, broker, tmp_path)
    send(client, topic, *[b'{"carrier": "AA", "delay": 4}'] * 50)
    process = subprocess.Popen(
        [sys.executable, "-m", "strandlog", "pipeline", "run", str(file), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        while not any(b"delays-topic" in line for line in iter(process.stdout.readline, b"")):
            pass
        send(client, topic, *[b'{"carrier": "AA", "delay": 4}'] * 50)
        stop(process.pid, signal.SIGTERM)
        _, errors = process.communicate(timeout=120)
    finally:
        kill_with_children(process.pid)
        process.wait()
    text = errors.decode()
    assert process.returncode == 0, text
    assert "Traceback" not in text
    assert "Exception" not in text
    strandlog_pipeline("run", file, "--available-now", "--json")
    assert spark.read.parquet(str(tmp_path / "lake")).count() == 100
    assert json.loads(records(client, f"{topic}.delays")[-1].value or b"")["flights"] == 100
