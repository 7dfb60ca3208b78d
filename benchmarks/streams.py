"""Measures strandlog beside Redis Streams and NATS JetStream, each with its usual Python client.

    python -m benchmarks.streams [--rounds N] [--scale X]     (make bench-streams)

The protocols differ, so the clients do: confluent-kafka, redis with hiredis, and nats-py. A figure
is what one Python program gets, not what the server could do. All records go to one topic with one
partition, because a Redis stream and a JetStream stream are one sequence. "fsync" means that the
server acknowledges a record after it is on disk; without it, a power cut may lose the last records:

    strandlog   acks=all, or acks=1
    Redis       appendfsync always, or everysec, its default
    NATS        its default, an fsync every two minutes; Debian's version has no other setting

Servers run one at a time. The Debian packages are redis-server and nats-server, the Python packages
redis, hiredis and nats-py; what is missing is not measured, with a message.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from confluent_kafka import Consumer, Producer, TopicPartition
from rich.console import Console
from rich.table import Table
from tests.clients.apache_kafka import free_ports

from benchmarks.kafka.report import machine, shown
from benchmarks.wire import create_topic, new_producer

VALUE_BYTES = 1000
BATCH = 1000  # records per pipeline of Redis, per fetch, and in flight to NATS
START_SECONDS = 20
SENT_ALONE = 2000
RECORDS = 200_000
NAME = "records"
WORKLOADS = (
    ("produce 1 KB, many in flight", "records/s"),
    ("produce 1 KB, one at a time: median", "ms"),
    ("consume 1 KB", "records/s"),
    ("memory of the server afterwards", "MB"),
)


class System(ABC):
    """A server in a process of its own, and a client of it."""

    name: ClassVar[str]
    programs: ClassVar[Sequence[str]] = ()
    modules: ClassVar[Sequence[str]] = ()

    def __init__(self, folder: Path, *, is_synced: bool) -> None:
        self.folder = folder
        self.is_synced = is_synced
        [self.port] = free_ports(1)

    @classmethod
    def missing(cls) -> list[str]:
        """Return the programs and modules that this system needs and this machine lacks."""
        lacking = [each for each in cls.programs if shutil.which(each) is None]
        return lacking + [each for each in cls.modules if not _can_import(each)]

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command that starts the server."""

    @abstractmethod
    def produce(self, value: bytes, count: int) -> None:
        """Send records, many in flight, and wait for their acknowledgements."""

    @abstractmethod
    def produce_alone(self, value: bytes, count: int) -> list[float]:
        """Send records, each after the acknowledgement of the one before it; return the seconds."""

    @abstractmethod
    def consume(self, count: int) -> None:
        """Read that many records from the start."""

    def prepare(self) -> None:  # noqa: B027 - Redis needs no preparation
        """Create the topic or stream."""

    @contextlib.contextmanager
    def running(self) -> Iterator[int]:
        """Run the server; yield its process id."""
        with (self.folder / "server.log").open("ab") as log:
            process = subprocess.Popen(self.command(), stdout=log, stderr=log, cwd=self.folder)
        try:
            self._wait_until_it_listens(process)
            self.prepare()
            yield process.pid
        finally:
            process.terminate()
            process.wait(START_SECONDS)

    def _wait_until_it_listens(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except ConnectionError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise
            else:
                return


class Strandlog(System):
    name = "strandlog"

    def command(self) -> list[str]:
        serve = [sys.executable, "-m", "strandlog", "serve", str(self.folder / "data")]
        return [*serve, "--port", str(self.port), "--no-grpc", "--no-http"]

    @property
    def _address(self) -> dict[str, Any]:
        return {"bootstrap.servers": f"127.0.0.1:{self.port}"}

    def _producer(self, **config: Any) -> Producer:
        return new_producer(self._address, acks="all" if self.is_synced else "1", **config)

    def prepare(self) -> None:
        create_topic(f"127.0.0.1:{self.port}", NAME, 1)

    def produce(self, value: bytes, count: int) -> None:
        producer = self._producer()
        for number in range(count):
            producer.produce(NAME, value)
            if not number % BATCH:
                producer.poll(0)
        assert producer.flush(60) == 0, "the broker did not acknowledge all records"

    def produce_alone(self, value: bytes, count: int) -> list[float]:
        producer = self._producer(**{"linger.ms": 0})
        seconds = []
        for _ in range(count):
            began = time.perf_counter()
            producer.produce(NAME, value)
            assert producer.flush(60) == 0, "the broker did not acknowledge a record"
            seconds.append(time.perf_counter() - began)
        return seconds

    def consume(self, count: int) -> None:
        consumer = Consumer({**self._address, "group.id": NAME, "enable.auto.commit": False})
        consumer.assign([TopicPartition(NAME, 0, 0)])
        left = count
        while left:
            left -= len(consumer.consume(min(BATCH, left), 10))
        consumer.close()


class Redis(System):
    name = "Redis Streams"
    programs = ("redis-server",)
    modules = ("redis", "hiredis")

    def command(self) -> list[str]:
        fsync = "always" if self.is_synced else "everysec"
        files = ["--dir", str(self.folder), "--save", "", "--appendonly", "yes"]
        return ["redis-server", "--port", str(self.port), *files, "--appendfsync", fsync]

    def _client(self) -> Any:
        return importlib.import_module("redis").Redis(port=self.port)

    def produce(self, value: bytes, count: int) -> None:
        client = self._client()
        for _ in range(count // BATCH):
            pipeline = client.pipeline(transaction=False)
            for _ in range(BATCH):
                pipeline.xadd(NAME, {"value": value})
            pipeline.execute()

    def produce_alone(self, value: bytes, count: int) -> list[float]:
        client = self._client()
        seconds = []
        for _ in range(count):
            began = time.perf_counter()
            client.xadd(NAME, {"value": value})
            seconds.append(time.perf_counter() - began)
        return seconds

    def consume(self, count: int) -> None:
        client = self._client()
        last, left = b"0", count
        while left > 0:
            [(_, records)] = client.xread({NAME: last}, count=min(BATCH, left))
            last, left = records[-1][0], left - len(records)


class Nats(System):
    name = "NATS JetStream"
    programs = ("nats-server",)
    modules = ("nats",)

    def command(self) -> list[str]:
        return ["nats-server", "-p", str(self.port), "-js", "-sd", str(self.folder)]

    def prepare(self) -> None:
        async def create(stream: Any) -> None:
            await stream.add_stream(name=NAME, subjects=[NAME])

        self._run(create)

    def produce(self, value: bytes, count: int) -> None:
        async def send(stream: Any) -> None:
            for _ in range(count):
                await stream.publish_async(NAME, value, wait_stall=60.0)
            await stream.publish_async_completed()

        self._run(send)

    def produce_alone(self, value: bytes, count: int) -> list[float]:
        async def send(stream: Any) -> list[float]:
            seconds = []
            for _ in range(count):
                began = time.perf_counter()
                await stream.publish(NAME, value)
                seconds.append(time.perf_counter() - began)
            return seconds

        found: list[float] = self._run(send)
        return found

    def consume(self, count: int) -> None:
        async def read(stream: Any) -> None:
            policy = importlib.import_module("nats.js.api").AckPolicy.NONE
            config = importlib.import_module("nats.js.api").ConsumerConfig(ack_policy=policy)
            subscription = await stream.pull_subscribe(NAME, config=config)
            left = count
            while left:
                left -= len(await subscription.fetch(min(BATCH, left), timeout=10))

        self._run(read)

    def _run(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        async def connected() -> Any:
            client = await importlib.import_module("nats").connect(f"nats://127.0.0.1:{self.port}")
            try:
                return await work(client.jetstream(publish_async_max_pending=BATCH))
            finally:
                await client.close()

        return asyncio.run(connected())


SYSTEMS: tuple[type[System], ...] = (Strandlog, Redis, Nats)


def measure(system: System, scale: float) -> list[float]:
    """Return a figure for each workload."""
    count = max(BATCH, int(RECORDS * scale) // BATCH * BATCH)
    value = bytes(range(250)) * (VALUE_BYTES // 250)
    with system.running() as pid:
        system.produce(value, BATCH)
        began = time.perf_counter()
        system.produce(value, count)
        produced = count / (time.perf_counter() - began)
        alone = statistics.median(system.produce_alone(value, int(SENT_ALONE * scale) or 1))
        began = time.perf_counter()
        system.consume(count)
        consumed = count / (time.perf_counter() - began)
        status = Path(f"/proc/{pid}/status").read_text()
        memory = int(status.partition("VmRSS:")[2].split()[0]) / 1024
    return [produced, alone * 1000, consumed, memory]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies numbers of records")
    options = parser.parse_args()
    console = Console(stderr=True)
    variants: list[tuple[type[System], bool]] = []
    for kind in SYSTEMS:
        if lacking := kind.missing():
            print(f"not measured: {kind.name}, which needs {', '.join(lacking)}", file=sys.stderr)
        else:
            variants += [(kind, False)] if kind is Nats else [(kind, False), (kind, True)]
    figures: dict[tuple[type[System], bool], list[list[float]]] = {each: [] for each in variants}
    for number in range(options.rounds):
        first = number % len(variants)
        for kind, is_synced in variants[first:] + variants[:first]:
            console.print(f"round {number + 1} of {options.rounds}: {_title(kind, is_synced)}")
            with tempfile.TemporaryDirectory(prefix="bench-streams-") as folder:
                system = kind(Path(folder), is_synced=is_synced)
                figures[kind, is_synced].append(measure(system, options.scale))
    console.print(f"{machine()}; medians of {options.rounds} rounds")
    table = Table("server", *(f"{name}, {unit}" for name, unit in WORKLOADS))
    for variant, rounds in figures.items():
        medians = map(statistics.median, zip(*rounds, strict=True))
        table.add_row(_title(*variant), *map(shown, medians))
    console.print(table)
    return 0


def _title(kind: type[System], is_synced: bool) -> str:
    return f"{kind.name}, fsync" if is_synced else kind.name


def _can_import(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


if __name__ == "__main__":
    raise SystemExit(main())
