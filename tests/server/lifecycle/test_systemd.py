"""`strandlog serve` under systemd: readiness, watchdog, SIGHUP, stop; and the form of its log."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import eventually

from strandlog.cli.start_server import JsonFormatter

RECEIVED_BYTES = 4096


@pytest.fixture
def inbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket of systemd, which the broker finds in its environment."""
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(path))
        receiver.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        monkeypatch.setenv("WATCHDOG_USEC", "200000")
        yield receiver


def _next(inbox: socket.socket) -> str:
    """The first line of the next message that is not for the watchdog."""
    while (line := inbox.recv(RECEIVED_BYTES).decode().splitlines()[0]) == "WATCHDOG=1":
        pass
    return line


def test_systemd_learns_when_the_broker_is_ready_reloads_and_stops(
    inbox: socket.socket, tmp_path: Path
) -> None:
    broker = BrokerProcess(tmp_path / "data", log=tmp_path / "log")
    broker.start()
    message = inbox.recv(RECEIVED_BYTES).decode().splitlines()
    assert message == ["READY=1", f"STATUS={broker.ready.strip()}"]
    for _ in range(2):
        assert inbox.recv(RECEIVED_BYTES) == b"WATCHDOG=1"
    assert broker.process is not None
    os.kill(broker.process.pid, signal.SIGHUP)
    assert [_next(inbox), _next(inbox)] == ["RELOADING=1", "READY=1"]
    assert broker.stop() == 0
    assert _next(inbox) == "STOPPING=1"


def test_sighup_reads_the_log_level_and_reports_what_needs_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, log = tmp_path / "server.toml", tmp_path / "log"
    file.write_text('logging.level = "warning"\nnum.partitions = 1\n')
    monkeypatch.setenv("STRANDLOG_CONFIG", str(file))
    broker = BrokerProcess(tmp_path / "data", log=log)
    broker.start()
    assert broker.process is not None
    file.write_text('logging.level = "info"\nnum.partitions = 3\n')
    os.kill(broker.process.pid, signal.SIGHUP)
    eventually(lambda: "restart the broker to apply: num.partitions" in log.read_text(), "reload")
    assert "logging.level is info" in log.read_text()
    file.write_text("logging.level = 7\n")
    os.kill(broker.process.pid, signal.SIGHUP)
    eventually(lambda: "keeping the old ones" in log.read_text(), "the error")
    assert broker.stop() == 0
    assert "stopped: " in log.read_text()


def test_the_log_is_json_if_the_settings_say_so(tmp_path: Path) -> None:
    log = tmp_path / "log"
    broker = BrokerProcess(tmp_path / "data", log=log, settings={"logging.format": "json"})
    broker.start()
    assert broker.stop() == 0
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    assert entries, "the broker logs a summary when it stops"
    assert {*entries[-1]} == {"time", "level", "logger", "message"}
    assert entries[-1]["level"] == "info"
    assert entries[-1]["message"].startswith("stopped: ")
    assert datetime.fromisoformat(entries[-1]["time"]).tzinfo == UTC


def test_a_json_log_entry_has_the_traceback_of_an_exception() -> None:
    try:
        raise OSError("a line\nbreak")
    except OSError:
        record = logging.LogRecord("a", logging.ERROR, "", 0, "%s", ("it",), sys.exc_info())
    [line] = JsonFormatter().format(record).splitlines()
    entry = json.loads(line)
    assert entry["message"] == "it"
    assert "Traceback" in entry["traceback"]
    assert "OSError: a line\nbreak" in entry["traceback"]
