"""A streaming job on a Spark cluster while its driver, its executors and the broker are killed.

    python -m tests.soak.spark_kills --rounds 20 [--seed N] [--json]

A cluster of two workers runs two queries (spark_copy.py) that copy numbers from one topic to two
others while more numbers arrive: one exactly once, one at least once. Each round kills the driver,
an executor or the broker with kill -9. Driver and broker are started again here, an executor by
Spark. In the end the first topic must have every number exactly once, for a consumer of committed
records, in the order of its key. The second must have every number, and some twice: a check that
finds no duplicates there would find none in the first topic either. So the driver is killed when
rows of an at-least-once batch have arrived that Spark has not committed. It is stopped first: on a
busy machine the batch may be committed between a look at the topic and the kill.

With `is_secured`, Spark uses a listener with TLS and SCRAM, as a user with the permissions that the
security guide lists; feeding and counting use a plaintext listener of the same broker.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, Signals

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.soak.reading import PATIENCE_S, read_partition, run_soak, say
from tests.soak.spark_copy import GUARANTEES, INPUT, output_of
from tests.spark.cluster import SparkCluster
from tests.support.broker_process import BrokerProcess, free_port
from tests.support.certificates import Authority
from tests.support.processes import kill_with_children, signal_with_children
from tests.support.secured_broker import (
    COMMITS,
    CREATE,
    READ,
    SINK_EXACTLY_ONCE,
    WRITE,
    acls_of,
)

import strandlog
from strandlog.broker.access.permission import GROUP, TOPIC
from strandlog.client.wire.client import WireClient
from strandlog.model import TopicPartition

PARTITIONS = 4
KEYS = 40
FEED_SECONDS = 0.02
VICTIMS = ("driver", "executor", "broker")
CONF = {
    "spark.driver.memory": "512m",
    "spark.ui.enabled": "false",
    "spark.task.maxFailures": "8",  # killed executors must not fail the job
}
START_SECONDS = 600  # a driver and two executors on a busy machine
SETTLE_SECONDS = 3
REFEED_SECONDS = 0.5


@dataclass
class Report:
    """Kills, and the contents of the topics."""

    driver_kills: int = 0
    executor_kills: int = 0
    broker_kills: int = 0
    query_failures: int = 0  # how often the job ended by itself and was started again
    numbers: int = 0
    copies: int = 0
    missing: int = 0
    duplicated: int = 0
    out_of_order: int = 0
    written: int = 0  # including those of aborted transactions
    loose_missing: int = 0  # with at_least_once
    loose_duplicated: int = 0
    seconds: float = 0.0

    @property
    def is_right(self) -> bool:
        wrong = self.missing + self.duplicated + self.out_of_order + self.loose_missing
        return self.numbers > 0 and not wrong and self.loose_duplicated > 0


class Job:
    """The driver of both queries, started again whenever it ended."""

    def __init__(
        self, broker: BrokerProcess, cluster: SparkCluster, folder: Path, options: dict[str, str]
    ) -> None:
        self._arguments = [
            sys.executable,
            "-m",
            "tests.soak.spark_copy",
            json.dumps(options),
            cluster.master_url,
            json.dumps(CONF | cluster.conf),
            str(folder),
        ]
        self._broker = broker
        self._log = folder / "driver.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._arguments, stdout=log, stderr=log)

    @property
    def has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def kill(self) -> None:
        """Kill the driver with its JVM."""
        if self._process is None:
            return
        if self._process.poll() is None:
            kill_with_children(self._process.pid)
        self._process.wait()

    def signal(self, number: Signals) -> None:
        """Stop the driver with its JVM, or let it continue."""
        if self._process is not None and self._process.poll() is None:
            signal_with_children(self._process.pid, number)

    def committed_batch(self, guarantee: str) -> int:
        """The number of the last micro-batch that a query has committed; -1 if none."""
        commits = self._log.parent / f"checkpoint-{guarantee}" / "commits"
        names = [path.name for path in commits.glob("[0-9]*")]
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def copies(self, guarantee: str, isolation: str = "read_committed") -> list[int]:
        """The copies in a topic, partition by partition."""
        return [
            int(message.value() or b"")
            for partition in range(PARTITIONS)
            for message in read_partition(
                self._broker.address, output_of(guarantee), partition, isolation
            )
        ]


class SecuredListener:
    """A listener with TLS and users, beside the plaintext one, and the user of the job."""

    def __init__(self, folder: Path) -> None:
        authority = Authority(folder / "certificates")
        self._port, plain_port = free_port(), free_port()
        listeners = f"PLAINTEXT://127.0.0.1:{plain_port},SASL_SSL://127.0.0.1:{self._port}"
        self.settings = {
            "listeners": listeners,
            "ssl.keystore.location": str(authority.issue("server").store),
            "authorizer.class.name": "strandlog",
            "super.users": "User:ANONYMOUS",
        }
        self._password = folder / "password"
        self._password.write_text("the password of the job")
        self.spark_options = {
            "bootstrap.servers": f"localhost:{self._port}",
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "kafka.sasl.username": "job",
            "kafka.sasl.password": f"${{file:{self._password}}}",
            "kafka.ssl.ca.location": str(authority.path),
        }

    def add_user(self, address: str) -> None:
        """Create the user of the job with the permissions of source and sink."""
        outputs = [output_of(guarantee) for guarantee in GUARANTEES]
        needed = [
            (READ.on(TOPIC), INPUT),
            *((READ.on(GROUP), name) for name in outputs),  # the groups have the same names
            *((WRITE.on(TOPIC), name) for name in outputs),
            (CREATE.on(TOPIC), COMMITS),
            *SINK_EXACTLY_ONCE[1:],
        ]
        with strandlog.connect(address) as log:
            log.set_password("job", self._password.read_text())
            log.create_acls(acls_of("job", needed))


class Soak:
    """One run."""

    def __init__(self, folder: Path, seed: int, *, is_secured: bool = False) -> None:
        self.report = Report()
        self._rng = random.Random(seed)
        self._folder = folder
        self._secured = SecuredListener(folder) if is_secured else None
        settings = {} if self._secured is None else self._secured.settings
        self._broker = BrokerProcess(folder / "data", settings, log=folder / "broker.log")
        self._cluster = SparkCluster(folder / "cluster")

    def run(self, rounds: int) -> Report:
        began = time.monotonic()
        self._broker.start()
        try:
            self._cluster.start()
            self._create_topics()
            if self._secured is not None:
                self._secured.add_user(self._broker.address)
            self._copy(rounds)
        finally:
            self._cluster.stop()
            self._broker.stop()
        self.report.seconds = round(time.monotonic() - began, 1)
        return self.report

    def _create_topics(self) -> None:
        admin = AdminClient({"bootstrap.servers": self._broker.address})
        names = (INPUT, *map(output_of, GUARANTEES))
        for future in admin.create_topics(
            [NewTopic(name, PARTITIONS, 1) for name in names]
        ).values():
            future.result(PATIENCE_S)

    def _copy(self, rounds: int) -> None:
        options = {"bootstrap.servers": self._broker.address}
        if self._secured is not None:
            options = self._secured.spark_options
        job = Job(self._broker, self._cluster, self._folder, options)
        feeder = Producer(
            {
                "bootstrap.servers": self._broker.address,
                "enable.idempotence": True,
                "reconnect.backoff.max.ms": 200,
            }
        )
        job.start()
        try:
            seen = 0
            victims: list[str] = []
            for number in range(rounds):
                seen = self._advance(job, feeder, seen)
                self._feed(feeder, self._rng.random() * 3)
                # Each kind as often as the others, in any order.
                victims = victims or self._rng.sample(VICTIMS, len(VICTIMS))
                victim = victims.pop()
                self._kill(job, feeder, victim)
                say(f"round {number + 1} of {rounds}: {victim}, {seen} copied")
            assert feeder.flush(PATIENCE_S) == 0, "not every number was acknowledged"
            self._check(job)
        finally:
            job.kill()

    def _advance(self, job: Job, feeder: Producer, seen: int) -> int:
        """Feed until there are more copies than before, so that a kill hits a running job."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            self._feed(feeder, 0.5)
            self._revive(job)
            now = len(job.copies("exactly_once"))
            if now > seen:
                return now
        raise AssertionError(f"nothing was copied for {START_SECONDS} s")

    def _revive(self, job: Job) -> None:
        if job.has_ended:
            self.report.query_failures += 1
            job.start()

    def _feed(self, feeder: Producer, seconds: float) -> None:
        end = time.monotonic() + seconds
        while True:
            for _ in range(self._rng.randint(5, 30)):
                number = self.report.numbers
                feeder.produce(INPUT, b"%d" % number, b"key-%d" % (number % KEYS))
                self.report.numbers += 1
            feeder.poll(0)
            if time.monotonic() >= end:
                return
            time.sleep(FEED_SECONDS)

    def _kill(self, job: Job, feeder: Producer, victim: str) -> None:
        if victim == "driver":
            self._stop_in_loose_batch(job, feeder)
            job.kill()
            job.start()
            self.report.driver_kills += 1
        elif victim == "executor":
            self._cluster.kill_executor()
            self.report.executor_kills += 1
        else:
            self._broker.stop(SIGKILL)
            self._broker.start()
            self.report.broker_kills += 1

    def _stop_in_loose_batch(self, job: Job, feeder: Producer) -> None:
        """Stop the driver in an at-least-once batch of which rows have arrived. Feed until then:
        the job may have copied everything."""
        output = output_of("at_least_once")
        partitions = [TopicPartition(output, number) for number in range(PARTITIONS)]
        deadline = time.monotonic() + START_SECONDS
        with WireClient(self._broker.address) as client:
            while True:
                batch = job.committed_batch("at_least_once")
                before = client.latest_offsets(partitions)
                fed = -REFEED_SECONDS
                while client.latest_offsets(partitions) == before:
                    assert time.monotonic() < deadline, "no row arrives"
                    if time.monotonic() - fed >= REFEED_SECONDS:
                        self._feed(feeder, 0)
                        fed = time.monotonic()
                    self._revive(job)
                    time.sleep(0.002)
                job.signal(SIGSTOP)
                if job.committed_batch("at_least_once") == batch and not job.has_ended:
                    return
                job.signal(SIGCONT)

    def _check(self, job: Job) -> None:
        """Let the queries catch up, then count."""
        report, numbers = self.report, set(range(self.report.numbers))
        found = self._caught_up(job, "exactly_once")
        report.written = len(job.copies("exactly_once", "read_uncommitted"))
        report.copies = len(found)
        report.missing = len(numbers - set(found))
        report.duplicated = len(found) - len(set(found))
        report.out_of_order = _out_of_order(found)
        loose = self._caught_up(job, "at_least_once")
        report.loose_missing = len(numbers - set(loose))
        report.loose_duplicated = len(loose) - len(set(loose))

    def _caught_up(self, job: Job, guarantee: str) -> list[int]:
        """All copies, once every number is among them."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            self._revive(job)
            found = job.copies(guarantee)
            if len(set(found)) >= self.report.numbers:
                if guarantee == "exactly_once":
                    time.sleep(SETTLE_SECONDS)  # a duplicate could still arrive
                return job.copies(guarantee)
            time.sleep(1)
        return job.copies(guarantee)


def _out_of_order(found: list[int]) -> int:
    last_of_key: dict[int, int] = {}
    wrong = 0
    for number in found:
        wrong += number <= last_of_key.get(number % KEYS, -1)
        last_of_key[number % KEYS] = number
    return wrong


if __name__ == "__main__":
    sys.exit(run_soak(Soak, "Kill a Spark job, its executors and the broker.", "rounds"))
