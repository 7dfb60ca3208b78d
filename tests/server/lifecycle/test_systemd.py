"""`strandlog serve` under systemd: readiness, watchdog, SIGHUP, stop."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import eventually

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
    eventually(lambda: "keeping the settings" in log.read_text(), "the error")
    assert broker.stop() == 0
    assert "stopped: " in log.read_text()
