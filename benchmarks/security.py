"""Compares produce and fetch requests with and without TLS, SASL and ACLs.

    plain        PLAINTEXT, no authorizer
    ACLs         PLAINTEXT, with an authorizer, this client's rules and 1,000 for other clients
    SASL         SASL_PLAINTEXT with SCRAM-SHA-512
    TLS          SSL, TLS 1.3
    TLS, SASL, ACLs   SASL_SSL with SCRAM-SHA-512 and the same ACLs

All brokers run at the same time and are measured in turn, several rounds each; the best round of
each counts. `GB per CPU second` counts the processor time of the broker, without the client's.

The cost of ACLs is smaller than the noise of a rate, so it is measured separately: `PAIRS` short
bursts of the smallest requests, where a check per request matters most, alternate between the
brokers with and without ACLs. Each burst measures the broker's processor time. The first deciles
are compared, because a flush or another process makes some bursts longer and none shorter.

python -m benchmarks.security [--rounds N] [--json FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic

import strandlog
from benchmarks.measure import Row, print_table, write_json
from benchmarks.wire import (
    PARTITIONS,
    fetch_request,
    new_producer,
    pipelined_rate,
    produce_request,
    produce_seconds,
    raw_fetch_rate,
)
from strandlog.broker.access.acl import Acl
from strandlog.broker.access.permission import (
    EVERYTHING,
    Operation,
    PatternType,
    PermissionType,
    ResourceType,
)

USER, PASSWORD = "bench", "a password for the benchmark"
OTHER_RULES = 1_000
PLAIN, ACLS = "plain", "ACLs"
COUNTS = {100: 300_000, 1000: 150_000}  # records per round, by size
CONSUMED = 200_000
TOPIC = "bench"
PAIRS, BURST = 300, 300  # bursts per broker, requests per burst
ACLS_GOAL = 1.03  # of the processor time without ACLs


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to configure broker and clients."""

    name: str
    protocol: str
    has_acls: bool = False

    @property
    def uses_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.protocol.startswith("SASL")

    def client(self, certificates: Path) -> dict[str, Any]:
        """Return the settings of a client."""
        found: dict[str, Any] = {"security.protocol": self.protocol}
        if self.uses_sasl:
            found |= {"sasl.mechanism": "SCRAM-SHA-512"}
            found |= {"sasl.username": USER, "sasl.password": PASSWORD}
        if self.uses_tls:
            found |= {"ssl.ca.location": str(certificates / "ca.pem")}
        return found

    def settings(self, certificates: Path) -> list[str]:
        """Return the settings of the broker."""
        found = [f"listeners={self.protocol}://127.0.0.1:0", "group.initial.rebalance.delay.ms=0"]
        if self.uses_tls:
            found.append(f"ssl.keystore.location={certificates / 'server.pem'}")
        if self.has_acls:
            found.append("authorizer.class.name=strandlog")
        return found


MODES = (
    Mode(PLAIN, "PLAINTEXT"),
    Mode(ACLS, "PLAINTEXT", has_acls=True),
    Mode("SASL", "SASL_PLAINTEXT"),
    Mode("TLS", "SSL"),
    Mode("TLS, SASL, ACLs", "SASL_SSL", has_acls=True),
)


@dataclass
class Running:
    """A running broker, and its best rates so far."""

    mode: Mode
    address: str
    pid: int
    client: dict[str, Any]
    certificates: Path
    best: dict[str, float] = field(default_factory=dict)

    def cpu_seconds(self) -> float:
        """Return the processor time that the broker has used: Linux has a clock per process, whose
        number derives from the process id (clock_getcpuclockid)."""
        return time.clock_gettime((~self.pid << 3) | 2)

    def connect(self) -> socket.socket:
        """Return a connection for the measurements without a Kafka client."""
        host, _, port = self.address.rpartition(":")
        connection = socket.create_connection((host, int(port)))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self.mode.uses_tls:
            return connection
        context = ssl.create_default_context(cafile=str(self.certificates / "ca.pem"))
        return context.wrap_socket(connection, server_hostname="localhost")

    def note(self, figure: str, value: float) -> None:
        self.best[figure] = max(self.best.get(figure, 0.0), value)


def _rules() -> list[Acl]:
    """Return the rules of this client, and many rules for other clients."""
    everything = [
        Acl(
            kind,
            EVERYTHING,
            PatternType.LITERAL,
            principal,
            EVERYTHING,
            Operation.ALL,
            PermissionType.ALLOW,
        )
        for kind in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER)
        for principal in (f"User:{USER}", "User:ANONYMOUS")
    ]
    others = [
        Acl(
            ResourceType.TOPIC,
            f"team-{number}-",
            PatternType.PREFIXED,
            f"User:user-{number}",
            EVERYTHING,
            Operation.READ,
            PermissionType.ALLOW,
        )
        for number in range(OTHER_RULES)
    ]
    return [*everything, *others]


@contextlib.contextmanager
def running(mode: Mode, folder: Path, certificates: Path) -> Iterator[Running]:
    """Run a broker in a separate process."""
    with strandlog.open(str(folder)) as log:
        log.set_password(USER, PASSWORD)
        if mode.has_acls:
            log.create_acls(_rules())
    arguments = [sys.executable, "-m", "strandlog", "serve", str(folder), "--no-grpc", "--no-http"]
    for setting in mode.settings(certificates):
        arguments += ["--set", setting]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[1].removeprefix("kafka=")
        client = {"bootstrap.servers": address, **mode.client(certificates)}
        try:
            yield Running(mode, address, process.pid, client, certificates)
        finally:
            os.kill(process.pid, signal.SIGTERM)
            process.wait(timeout=60)


def measure_produce(broker: Running) -> None:
    for size, count in COUNTS.items():
        producer = new_producer(broker.client, acks="1")
        value = b"x" * size
        produce_seconds(producer, TOPIC, value, PARTITIONS)  # connect and fetch metadata
        before = broker.cpu_seconds()
        broker.note(
            f"produce {size} B, records/s", count / produce_seconds(producer, TOPIC, value, count)
        )
        if size == 1000:
            used = broker.cpu_seconds() - before
            broker.note("produce, GB per CPU second", size * count / 1e9 / max(used, 0.01))


def measure_consume(broker: Running) -> None:
    consumer = Consumer(
        {
            **broker.client,
            "group.id": f"bench-{time.monotonic_ns()}",
            "auto.offset.reset": "earliest",
            "fetch.message.max.bytes": 8_000_000,
            "fetch.max.bytes": 50_000_000,
            "queued.max.messages.kbytes": 1_000_000,
            "check.crcs": False,
        }
    )
    consumer.subscribe([f"{TOPIC}-consumed"])
    left, started = CONSUMED, 0.0
    while left:
        found = len(consumer.consume(min(left, 10_000), 1.0))
        if found and not started:
            started = time.perf_counter()
        left -= found
    broker.note("consume 1 KB, MB/s", CONSUMED / 1000 / (time.perf_counter() - started))
    consumer.close()


def measure_raw(broker: Running) -> None:
    """Measure on a plain socket, except with SASL, where requests after the login are the same."""
    if broker.mode.uses_sasl:
        return
    with broker.connect() as connection:
        before = broker.cpu_seconds()
        rate, total = raw_fetch_rate(connection, f"{TOPIC}-consumed")
        used = broker.cpu_seconds() - before
        broker.note("fetch 1 KB at the socket, MB/s", rate)
        broker.note("fetch, GB per CPU second", total / 1e9 / max(used, 0.01))
    with broker.connect() as connection:
        rate = pipelined_rate(connection, produce_request("single", 1))
        broker.note("single-record requests, /s", rate)


def _first_decile(values: list[float]) -> float:
    return statistics.quantiles(values, n=10)[0]


def acl_rows(plain: Running, acls: Running) -> list[Row]:
    """Return the ratio of the processor times of small requests with and without ACLs."""
    requests = {
        "produce of one record": produce_request("single", 1),
        "fetch of one batch": fetch_request("single", 0, 1),
    }
    rows = []
    for name, frame in requests.items():
        used: dict[str, list[float]] = {plain.mode.name: [], acls.mode.name: []}
        with plain.connect() as without, acls.connect() as with_acls:
            for number in range(PAIRS):
                order = [(plain, without), (acls, with_acls)]
                for broker, connection in order[:: 1 if number % 2 else -1]:
                    before = broker.cpu_seconds()
                    pipelined_rate(connection, frame, BURST)
                    used[broker.mode.name].append(broker.cpu_seconds() - before)
        low, middle = (
            cut(used[acls.mode.name]) / cut(used[plain.mode.name])
            for cut in (_first_decile, statistics.median)
        )
        rows.append(
            Row(
                f"{name}: CPU with ACLs / without",
                low,
                "ratio",
                ACLS_GOAL,
                higher_is_better=False,
                note=f"{PAIRS} bursts each; ratio of the medians {middle:.3f}",
            )
        )
    return rows


def _prepare(broker: Running) -> None:
    admin = AdminClient(broker.client)
    topics = {TOPIC: PARTITIONS, f"{TOPIC}-consumed": PARTITIONS, "single": 1}
    created = admin.create_topics([NewTopic(name, count, 1) for name, count in topics.items()])
    for each in created.values():
        each.result(timeout=30)
    producer = new_producer(broker.client)
    produce_seconds(producer, f"{TOPIC}-consumed", b"x" * 1000, CONSUMED)


MEASUREMENTS: tuple[Callable[[Running], None], ...] = (
    measure_produce,
    measure_consume,
    measure_raw,
)


def rows_of(brokers: list[Running]) -> list[Row]:
    """Return the figures of each mode, and their ratio to those without security."""
    plain = next(each for each in brokers if each.mode.name == PLAIN)
    rows = []
    for figure, reference in plain.best.items():
        name, _, unit = figure.rpartition(", ")
        for each in brokers:
            if (value := each.best.get(figure)) is None:
                continue
            rows.append(Row(f"{name}: {each.mode.name}", value, unit))
            if each is not plain:
                rows.append(Row(f"{name}: {each.mode.name} / {PLAIN}", value / reference, "ratio"))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the cost of TLS, SASL and ACLs.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=Path("out/security.json"))
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="strandlog-bench-") as name,
        contextlib.ExitStack() as stack,
    ):
        folder = Path(name)
        certificates = folder / "certificates"
        command = [sys.executable, "-m", "strandlog", "tls", "init", str(certificates)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        brokers = [
            stack.enter_context(running(mode, folder / f"data-{number}", certificates))
            for number, mode in enumerate(MODES)
        ]
        for broker in brokers:
            _prepare(broker)
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds} …", file=sys.stderr, flush=True)
            for measure in MEASUREMENTS:
                for broker in brokers:
                    measure(broker)
        named = {broker.mode.name: broker for broker in brokers}
        rows = rows_of(brokers) + acl_rows(named[PLAIN], named[ACLS])
    print_table(rows)
    write_json(rows, options.json)
    print(f"\nwritten to {options.json}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
