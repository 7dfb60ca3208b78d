"""Kills a pipeline that writes a table and a topic, and checks that each row is there once.

    python -m tests.soak.pipeline_kills [--rounds 20] [--seed N]

Numbers go into a topic all the time, up to a backlog of `MAX_BACKLOG`. A pipeline copies them to a
Delta table and to a topic, in one group: each micro-batch is read once and written to both. Each
round waits until the table grows, then kills driver and JVM with kill -9 at a random moment, and
starts the pipeline again. In the end DuckDB must find every number exactly once in the files of the
table, and a consumer of committed records must find it once in the topic.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import duckdb
from confluent_kafka import Producer
from tests.soak.reading import PATIENCE_S, read_partition, run_soak, say
from tests.support.broker_process import BrokerProcess
from tests.support.processes import kill_with_children

from strandlog.client.wire.client import WireClient
from strandlog.errors import TableError
from strandlog.tables.table import open_table

START_SECONDS = 600  # Spark on a busy machine
FEED_SECONDS = 0.02
MAX_BACKLOG = 10_000  # more would pile up while Spark starts, and the last run would take hours
PIPELINE = """
[pipeline]
name = "numbers"
bootstrap = "{address}"
checkpoint = "{folder}/checkpoints"
report = "off"

[[source]]
name = "numbers"
topic = "numbers"
schema = "number BIGINT, bucket INT"
options = {{ maxOffsetsPerTrigger = 2000 }}

[[sink]]
from = "numbers"
table = "{folder}/table"
partition_by = ["bucket"]
group = "copies"

[[sink]]
from = "numbers"
topic = "copies"
partitions = 1
group = "copies"
"""


@dataclass
class Report:
    """Kills, and the contents of the table and the topic."""

    kills: int = 0
    numbers: int = 0
    versions: int = 0  # of the table
    rows: int = 0
    missing: int = 0
    duplicated: int = 0
    uncommitted_files: int = 0  # left by micro-batches that were killed before their commit
    topic_rows: int = 0
    topic_missing: int = 0
    topic_duplicated: int = 0
    seconds: float = 0.0

    @property
    def is_right(self) -> bool:
        wrong = self.missing + self.duplicated + self.topic_missing + self.topic_duplicated
        return self.numbers > 0 and not wrong


class Soak:
    """One run."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.report = Report()
        self._rng = random.Random(seed)
        self._folder = folder
        self._broker = BrokerProcess(folder / "data", {}, log=folder / "broker.log")
        self._table = open_table(folder / "table", "delta")
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, rounds: int) -> Report:
        began = time.monotonic()
        self._broker.start()
        try:
            with WireClient(self._broker.address) as client:
                client.create_topic("numbers", 2)
            file = self._folder / "numbers.toml"
            file.write_text(PIPELINE.format(address=self._broker.address, folder=self._folder))
            self._copy(file, rounds)
            self._check()
        finally:
            self._kill()
            self._broker.stop()
        self.report.seconds = round(time.monotonic() - began, 1)
        return self.report

    def _copy(self, file: Path, rounds: int) -> None:
        feeder = Producer({"bootstrap.servers": self._broker.address, "enable.idempotence": True})
        for number in range(rounds):
            self._start(file)
            self._wait_for_rows(feeder, self._count())
            self._feed(feeder, self._rng.random() * 2)
            self._kill()
            self.report.kills += 1
            say(f"round {number + 1} of {rounds}: {self._count()} of {self.report.numbers} copied")
        assert feeder.flush(PATIENCE_S) == 0, "not every number was acknowledged"
        done = self._run(file, "--once")
        assert done.wait(START_SECONDS) == 0, (self._folder / "pipeline.log").read_text()[-2000:]

    def _start(self, file: Path) -> None:
        self._process = self._run(file)

    def _run(self, file: Path, *more: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "strandlog", "pipeline", "run", str(file), *more]
        command += ["--master", "local[2]", "--conf", "spark.ui.enabled=false"]
        with (self._folder / "pipeline.log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log)

    def _kill(self) -> None:
        """Kill the driver with its JVM."""
        process, self._process = self._process, None
        if process is not None:
            if process.poll() is None:
                kill_with_children(process.pid)
            process.wait()

    def _wait_for_rows(self, feeder: Producer, before: int) -> None:
        deadline = time.monotonic() + START_SECONDS
        while self._count() <= before:
            assert time.monotonic() < deadline, "nothing was copied"
            assert self._process is not None
            assert self._process.poll() is None, "the pipeline has ended by itself"
            self._feed(feeder, 0.2)

    def _feed(self, feeder: Producer, seconds: float) -> None:
        end = time.monotonic() + seconds
        most = self._count() + MAX_BACKLOG
        while True:
            for _ in range(min(self._rng.randint(5, 50), most - self.report.numbers)):
                number = self.report.numbers
                feeder.produce("numbers", b'{"number": %d, "bucket": %d}' % (number, number % 3))
                self.report.numbers += 1
            feeder.poll(0)
            if time.monotonic() >= end:
                return
            time.sleep(FEED_SECONDS)

    def _count(self) -> int:
        try:
            return self._table.load().row_count()
        except TableError:
            return 0  # not created yet

    def _check(self) -> None:
        report, snapshot = self.report, self._table.load()
        files = snapshot.data_files()
        report.versions = snapshot.version
        found = duckdb.sql("SELECT number FROM read_parquet(?)", params=[files]).fetchall()
        numbers = [number for (number,) in found]
        report.rows = len(numbers)
        report.missing = len(set(range(report.numbers)) - set(numbers))
        report.duplicated = len(numbers) - len(set(numbers))
        on_disk = list((self._folder / "table").rglob("*.parquet"))
        report.uncommitted_files = len(on_disk) - len(files)
        copies = [
            int((message.value() or b"").split(b":")[1].split(b",")[0])
            for message in read_partition(self._broker.address, "copies", 0, "read_committed")
        ]
        report.topic_rows = len(copies)
        report.topic_missing = len(set(range(report.numbers)) - set(copies))
        report.topic_duplicated = len(copies) - len(set(copies))


if __name__ == "__main__":
    sys.exit(run_soak(Soak, "Kill a pipeline that writes a table and a topic.", "rounds"))
