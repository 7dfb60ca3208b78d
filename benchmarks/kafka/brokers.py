"""The brokers that are compared: strandlog and Apache Kafka, each fsyncing or not.

    strandlog                 default settings: acks=all waits for an fsync
    strandlog, page cache     log.durability=page_cache: nothing waits for an fsync
    Kafka                     its default: no acknowledgement waits for an fsync
    Kafka, fsync              log.flush.interval.messages=1: every append is fsynced

Kafka runs with the G1 collector and a heap of 1 GB, as its start script sets it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.clients.apache_kafka import CLUSTER_ID, free_ports
from tools.fetch_peers import KAFKA_BROKER

from strandlog.client.wire.client import WireClient
from strandlog.errors import UnreachableError

START_SECONDS = 600  # the longest time a broker may take to start or to stop
MEGABYTE = 1024 * 1024
_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
_JAVA = ("java", "-Xmx1g", "-Xms1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
_KAFKA_SETTINGS = """process.roles=broker,controller
node.id=0
controller.quorum.voters=0@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={data}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""


@dataclass(frozen=True, slots=True)
class Kind:
    """One of the compared brokers, and the settings that it adds to its defaults."""

    name: str
    is_kafka: bool
    settings: tuple[str, ...] = ()

    @property
    def is_available(self) -> bool:
        return KAFKA_BROKER.is_complete or not self.is_kafka


STRANDLOG = Kind("strandlog", is_kafka=False)
STRANDLOG_CACHED = Kind("strandlog, page cache", False, ("log.durability=page_cache",))
KAFKA = Kind("Kafka", is_kafka=True)
KAFKA_FSYNC = Kind("Kafka, fsync", True, ("log.flush.interval.messages=1",))
KINDS = (STRANDLOG, STRANDLOG_CACHED, KAFKA, KAFKA_FSYNC)


@dataclass
class Broker:
    """A broker in a process of its own. After `stop` or `kill` it can start again on its data."""

    kind: Kind
    home: Path
    port: int = 0
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None, "the broker is not running"
        return self.process.pid

    def start(self) -> float:
        """Start the broker. Return the seconds until it answered a request of a client."""
        self.home.mkdir(parents=True, exist_ok=True)
        if not self.port:
            self.port, controller = free_ports(2)
            if self.kind.is_kafka:
                self._format(controller)
        began = time.perf_counter()
        with (self.home / "broker.log").open("ab") as log:
            self.process = subprocess.Popen(self._command(), stdout=log, stderr=log, cwd=self.home)
        self._wait_until_it_answers()
        return time.perf_counter() - began

    def stop(self) -> float:
        """Stop the broker with SIGTERM. Return the seconds until its process ended."""
        return self._end(signal.SIGTERM)

    def kill(self) -> float:
        return self._end(signal.SIGKILL)

    def cpu_seconds(self) -> float:
        """The processor time that the broker has used since its start."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * _TICK_SECONDS

    def resident_megabytes(self) -> float:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024 / MEGABYTE

    def _end(self, how: signal.Signals) -> float:
        assert self.process is not None, "the broker is not running"
        began = time.perf_counter()
        os.kill(self.process.pid, how)
        self.process.wait(timeout=START_SECONDS)
        self.process = None
        return time.perf_counter() - began

    def _format(self, controller: int) -> None:
        """Write Kafka's settings and format its data folder, which it does not do at the start."""
        values = {"port": self.port, "controller": controller, "data": self.home / "data"}
        text = _KAFKA_SETTINGS.format(**values)
        config = self.home / "server.properties"
        config.write_text(text + "\n".join(self.kind.settings) + "\n")
        tool = ("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(config))
        command = ["java", "-cp", _jars(), *tool]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def _command(self) -> Sequence[str]:
        if self.kind.is_kafka:
            config = str(self.home / "server.properties")
            return [*_JAVA, "-cp", _jars(), "kafka.Kafka", config]
        command = [sys.executable, "-m", "strandlog", "serve", str(self.home / "data")]
        command += ["--port", str(self.port), "--no-grpc", "--no-http"]
        for setting in ("group.initial.rebalance.delay.ms=0", *self.kind.settings):
            command += ["--set", setting]
        return command

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                with WireClient(self.address, {"default.api.timeout.ms": "250"}) as client:
                    client.topics()
                    return
            except UnreachableError:
                assert self.process is not None
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise


def _jars() -> str:
    return str(KAFKA_BROKER.folder / "*")
