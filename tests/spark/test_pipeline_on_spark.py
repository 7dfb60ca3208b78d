"""A pipeline of a TOML file, run by the command line on a real Spark."""

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
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.server.spark_access.report_server import listening
from tests.support.broker_process import BrokerProcess
from tests.support.http_client import client_of, ok

from strandlog.client.wire.client import WireClient
from strandlog.model import IsolationLevel, Record, TopicPartition
from strandlog.record.batch import iter_batches
from strandlog.record.builder import build_batch

pytestmark = pytest.mark.xdist_group("jvm")
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

# Makes the terminal on stdin its own, so that Ctrl-C there is a signal, and becomes the command.
IN_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


def run(file: Path, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "strandlog", "pipeline", command, str(file), *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )


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


def test_a_pipeline_runs_goes_on_and_sets_bad_records_aside(
    broker: BrokerProcess, client: WireClient, topic: str, tmp_path: Path
) -> None:
    file = tmp_path / "flights.toml"
    file.write_text(PIPELINE.format(topic=topic, address=broker.address, folder=tmp_path))
    assert run(file, "validate").returncode == 0
    send(client, topic, b'{"carrier": "AA", "delay": 4}')
    own = (("a", b"1"), ("a", None), ("topic", b"mine"))
    tp = TopicPartition(topic, 0)
    oops = build_batch(1, [b"oops \xff\x00"], [b"k\xfe"], headers=[own])
    assert client.produce({tp: [oops]})[tp].error is None
    send(client, topic, b'{"carrier": "UA", "delay": 1}')
    first = run(file, "run", "--available-now", "--master", "local[2]", "--json")
    assert first.returncode == 0, first.stderr
    with client_of(broker) as http:
        shown = ok(http.get(f"/api/v1/pipelines/{topic}"))
    assert (shown["state"], shown["error"]) == ("stopped", None)
    lags = {query["last"]["name"]: query["last"]["lag"] for query in shown["queries"]}
    assert len(lags) == 3
    assert set(lags.values()) == {0}
    reports = [json.loads(line) for line in first.stdout.splitlines()]
    assert {report["name"] for report in reports} >= {"flights-dead-letter"}
    assert all(report["lag"] == 0 for report in reports)
    send(client, topic, b'{"carrier": "AA", "delay": 8}')
    with listening() as other:
        again = ("run", "--available-now", "--master", "local[2]", "--report", other.address)
        second = run(file, *again)
    assert second.returncode == 0, second.stderr
    assert "rows/s" in second.stderr
    assert other.told[0]["ui_url"] in second.stderr
    assert [each["state"] for each in (other.told[0], other.told[-1])] == ["running", "stopped"]
    with client_of(broker) as http:
        assert ok(http.get(f"/api/v1/pipelines/{topic}")) == shown, "another was to be told"
    told = [(row.key, json.loads(row.value or b"")) for row in records(client, f"{topic}.delays")]
    assert sorted(told[:2], key=str) == [
        (b"AA", {"carrier": "AA", "flights": 1, "delay": 4.0}),
        (b"UA", {"carrier": "UA", "flights": 1, "delay": 1.0}),
    ]
    assert told[2:] == [(b"AA", {"carrier": "AA", "flights": 2, "delay": 6.0})]
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


def test_a_pipeline_that_fails_is_shown_with_the_reason(
    broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    file = tmp_path / "flights.toml"
    file.write_text(PIPELINE.format(topic=topic, address=broker.address, folder=tmp_path))
    failed = run(file, "run", "--master", "moon")
    assert failed.returncode == 1
    with client_of(broker) as http:
        shown = ok(http.get(f"/api/v1/pipelines/{topic}"))
    assert shown["state"] == "failed"
    assert shown["error"].startswith("cannot start Spark: ")
    assert f"error: {shown['error']}" in failed.stderr


def test_a_wrong_file_is_told_by_line_and_not_run(tmp_path: Path) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text('[pipeline]\nname = "x"\n')
    told = run(file, "validate")
    assert told.returncode == 1
    assert f"{file}:1:" in told.stdout
    refused = run(file, "run")
    assert refused.returncode == 1
    assert "bootstrap" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.fixture
def silent_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """One that does not answer HTTP."""
    running = BrokerProcess(tmp_path / "data")
    running.start()
    yield running
    assert running.stop() == 0, "a broker stops cleanly"


def test_ctrl_c_on_a_terminal_is_no_failure(silent_broker: BrokerProcess, tmp_path: Path) -> None:
    file = tmp_path / "flights.toml"
    file.write_text(PIPELINE.format(topic="t", address=silent_broker.address, folder=tmp_path))
    with WireClient(silent_broker.address) as client:
        client.create_topic("t", 1)
        send(client, "t", b'{"carrier": "AA", "delay": 4}')
    command = [sys.executable, "-c", IN_TERMINAL, sys.executable, "-m", "strandlog"]
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    process = subprocess.Popen(
        [*command, "pipeline", "run", str(file), "--master", "local[2]"],
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
        os.write(ours, b"\x03")  # the terminal makes a signal of it, for all processes in it
        with contextlib.suppress(OSError):  # that is how a terminal ends
            while more := os.read(ours, 4096):
                shown += more
        assert process.wait(60) == 0, shown.decode()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        os.close(ours)
    text = shown.decode(errors="replace")
    assert "stopping" in text
    assert "cannot be told" not in text, "a broker that does not answer HTTP is no trouble"
    assert "Exception" not in text
    assert "Traceback" not in text
