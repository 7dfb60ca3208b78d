"""A broker in a process of its own, for tests that kill it, send signals or measure memory."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from strandlog import RemoteLog


def free_port() -> int:
    """A port that is free now, for a broker that several settings must name."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


@dataclass
class BrokerProcess:
    """`strandlog serve` in a process of its own; can be killed and started again on its port."""

    data: Path
    settings: dict[str, str] = field(default_factory=dict)
    port: int = 0
    process: subprocess.Popen[str] | None = None
    log: Path | None = None  # what it says on stderr goes here; else to the test's own
    listeners: tuple[str, ...] = ("--no-grpc", "--no-http")
    ready: str = ""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        arguments = [sys.executable, "-m", "strandlog", "serve", str(self.data)]
        if "listeners" not in self.settings:
            arguments += ["--port", str(self.port)]
        arguments += self.listeners
        for name, value in self.settings.items():
            arguments += ["--set", f"{name}={value}"]
        with contextlib.ExitStack() as stack:
            log = stack.enter_context(self.log.open("a")) if self.log is not None else None
            self.process = subprocess.Popen(
                arguments, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("ready kafka="), line
        self.ready = line
        self.port = int(line.split()[1].rpartition(":")[2])

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        os.kill(self.process.pid, how)
        code = self.process.wait(timeout=30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None
        return code


def emptied(log: RemoteLog) -> RemoteLog:
    """The log, with nothing left of the test before."""
    for group in log.groups():
        log.delete_group(group)
    for topic in log.topics():
        log.delete_topic(topic)
    return log
