"""Messages to systemd, received from a real datagram socket."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandlog.server.monitoring.systemd import Systemd

RECEIVED_BYTES = 4096


@pytest.fixture
def inbox(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.settimeout(20)
        yield receiver


def _received(inbox: socket.socket) -> list[str]:
    return inbox.recv(RECEIVED_BYTES).decode().splitlines()


def _systemd(inbox: socket.socket, **environment: str) -> Systemd:
    return Systemd({"NOTIFY_SOCKET": inbox.getsockname(), **environment})


def test_the_life_of_a_server_is_reported(inbox: socket.socket) -> None:
    systemd = _systemd(inbox)
    systemd.ready("ready kafka=127.0.0.1:9092")
    assert _received(inbox) == ["READY=1", "STATUS=ready kafka=127.0.0.1:9092"]
    systemd.reloading()
    reloading, moment = _received(inbox)
    assert reloading == "RELOADING=1"
    assert int(moment.removeprefix("MONOTONIC_USEC=")) > 0
    systemd.stopping()
    assert _received(inbox) == ["STOPPING=1"]
    systemd.close()
    systemd.stopping()  # has no effect


def test_the_event_loop_feeds_the_watchdog(inbox: socket.socket) -> None:
    async def serve() -> None:
        systemd = _systemd(inbox, WATCHDOG_USEC="2000", WATCHDOG_PID=str(os.getpid()))
        assert systemd.watchdog_seconds == 0.002
        systemd.ready("")
        assert _received(inbox)[0] == "READY=1"
        for _ in range(3):
            assert await asyncio.to_thread(_received, inbox) == ["WATCHDOG=1"]
        systemd.close()

    asyncio.run(serve())


@pytest.mark.parametrize(
    "environment",
    [{}, {"WATCHDOG_USEC": "10", "WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "often"}],
    ids=["none", "of another process", "invalid"],
)
def test_a_watchdog_of_another_process_is_not_fed(
    inbox: socket.socket, environment: dict[str, str]
) -> None:
    systemd = _systemd(inbox, **environment)
    assert systemd.watchdog_seconds == 0
    systemd.close()


def test_an_abstract_socket_is_used() -> None:
    name = f"strandlog-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(f"\0{name}")
        receiver.settimeout(20)
        systemd = Systemd({"NOTIFY_SOCKET": f"@{name}"})
        systemd.stopping()
        assert _received(receiver) == ["STOPPING=1"]
        systemd.close()


def test_nothing_is_sent_without_systemd() -> None:
    systemd = Systemd({})
    assert not systemd.is_used
    systemd.ready("")
    systemd.close()


def test_a_socket_that_is_gone_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    systemd = Systemd({"NOTIFY_SOCKET": str(tmp_path / "gone")})
    with caplog.at_level(logging.WARNING):
        systemd.stopping()
        systemd.stopping()
    systemd.close()
    assert caplog.text.count("cannot report to systemd") == 1
