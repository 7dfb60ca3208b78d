"""Apache Kafka's own broker, one node without ZooKeeper, where `make peers` has fetched it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.clients.peers import PATIENCE_SECONDS, folder, run
from tools.fetch_peers import KAFKA_BROKER

from strandlog.client.wire.client import WireClient
from strandlog.errors import UnreachableError

SERVER = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={data}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=2
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=2
"""
CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"


def _free_ports() -> tuple[int, int]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("", 0)) as two:
        return one.getsockname()[1], two.getsockname()[1]


def _wait_until_it_serves(address: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            with WireClient(address, {"default.api.timeout.ms": "1000"}) as client:
                client.create_topic("ready", 1)
                return
        except UnreachableError:
            if time.monotonic() > deadline:
                raise


@contextlib.contextmanager
def running_kafka(home: Path) -> Iterator[str]:
    """A broker that keeps everything below a folder; yields its address. Skips where there is no
    Kafka."""
    jars = folder(KAFKA_BROKER) / "*"
    port, controller = _free_ports()
    config = home / "server.properties"
    config.write_text(SERVER.format(port=port, controller=controller, data=home / "data"))
    tool = "kafka.tools.StorageTool"
    run("java", "-cp", jars, tool, "format", "-t", CLUSTER_ID, "-c", config)
    with (home / "kafka.log").open("w") as log:
        command = ["java", "-Xmx512m", "-cp", str(jars), "kafka.Kafka", str(config)]
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=home)
    try:
        address = f"127.0.0.1:{port}"
        _wait_until_it_serves(address)
        yield address
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=60)
