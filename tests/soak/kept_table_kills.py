"""A broker keeps a table while it and its sync process are killed; DuckDB counts every row.

    python -m tests.soak.kept_table_kills --rounds 20 [--records N] [--seed N] [--json]

The topic has `table.format=delta` and `retention.after.table=true`, with small segments and a
retention of a moment, so that the log soon lacks what only the table has. Each round produces
numbered records, some of them in transactions that abort, and kills the sync process or the broker
with kill -9 at a random moment, or stops the broker with SIGTERM. In the end:

    rows        DuckDB finds every committed number in the table exactly once, although retention
                has deleted records all the time
    retention   the log start of each partition never passed the offset that the table has
    orphans     no sync process outlives its broker
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL, SIGTERM

from confluent_kafka import Producer
from tests.soak.reading import PATIENCE_S, say, show
from tests.support.broker_process import BrokerProcess
from tests.support.lake import counts, query
from tests.support.processes import is_running, table_workers
from tests.support.waiting import eventually

import strandlog
from strandlog.errors import TableNotFoundError
from strandlog.tables.table import open_table
from strandlog.tables.topics.source import FolderSource
from strandlog.tables.topics.status import read_status

TOPIC, PARTITIONS = "numbers", 3
VICTIMS = ("worker", "broker", "worker", "stop")
ABORT_EVERY = 3  # rounds
ABORTED_RECORDS = 500
DEFAULT_RECORDS = 200_000
CONFIG = {
    "table.format": "delta",
    "table.sync.interval.ms": "100",
    "retention.after.table": "true",
    "retention.ms": "1",
    "segment.bytes": "16384",
    "file.delete.delay.ms": "0",
}
SETTINGS = {"log.retention.check.interval.ms": "200"}


@dataclass
class Report:
    """Kills, and the contents of the table."""

    worker_kills: int = 0
    broker_kills: int = 0
    stops: int = 0
    records: int = 0
    aborted: int = 0
    rows: int = 0
    distinct: int = 0
    numbers: int = 0  # distinct values in the table
    commits: int = 0
    deleted_by_retention: int = 0  # offsets
    passed: int = 0  # times that the log start was beyond the table's offset
    orphans: int = 0
    seconds: float = 0.0

    @property
    def is_right(self) -> bool:
        found = {self.rows, self.distinct, self.numbers}
        is_kept = not self.passed and not self.orphans and self.deleted_by_retention > 0
        return found == {self.records} and self.records > 0 and is_kept


class Soak:
    """One run."""

    def __init__(self, folder: Path, seed: int, records: int = DEFAULT_RECORDS) -> None:
        self.report = Report()
        self._rng = random.Random(seed)
        self._folder = folder
        self._records = records
        self._table = open_table(folder / "lake" / TOPIC, "delta")
        settings = {**SETTINGS, "table.dir": str(folder / "lake")}
        self._broker = BrokerProcess(folder / "data", settings, log=folder / "broker.log")

    def run(self, rounds: int) -> Report:
        began = time.monotonic()
        self._broker.start()
        try:
            with strandlog.connect(self._broker.address) as log:
                log.create_topic(TOPIC, PARTITIONS, CONFIG)
            for number in range(rounds):
                self._round(number, rounds)
            self._finish()
        finally:
            self._stop(SIGTERM)
        self._check()
        self.report.seconds = round(time.monotonic() - began, 1)
        return self.report

    def _round(self, number: int, rounds: int) -> None:
        victim = VICTIMS[number % len(VICTIMS)]
        before, half = self._version(), self._records // rounds // 2
        self._produce(half)
        if number % ABORT_EVERY == ABORT_EVERY - 1:
            self._produce(ABORTED_RECORDS, **{"transactional.id": "aborts"})
        eventually(lambda: self._version() > max(before, 0), "a commit")
        self._produce(half)  # so that the kill hits a process that works
        time.sleep(self._rng.random() * 0.3)
        if victim == "worker":
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._worker(), SIGKILL)
            self.report.worker_kills += 1
        else:
            self._stop(SIGKILL if victim == "broker" else SIGTERM)
            self.report.broker_kills += victim == "broker"
            self.report.stops += victim == "stop"
            self._broker.start()
        self._look()
        say(f"round {number + 1} of {rounds}: {victim}, {self.report.records} produced")

    def _version(self) -> int:
        try:
            return self._table.load().version
        except TableNotFoundError:
            return -1

    def _worker(self) -> int:
        assert self._broker.process is not None
        pid = self._broker.process.pid
        return eventually(lambda: table_workers(pid), "a sync process")[0]

    def _stop(self, how: int) -> None:
        """Stop the broker; its sync process must end with it."""
        if self._broker.process is None:
            return
        workers = table_workers(self._broker.process.pid)
        self._broker.stop(SIGKILL if how == SIGKILL else SIGTERM)
        deadline = time.monotonic() + PATIENCE_S
        while any(map(is_running, workers)) and time.monotonic() < deadline:
            time.sleep(0.01)
        self.report.orphans += sum(map(is_running, workers))

    def _look(self) -> None:
        """Compare the log starts with what the table has; the log start is read first."""
        source = FolderSource(str(self._folder / "data"), TOPIC)
        try:
            starts = {n: bounds.start for n, bounds in source.describe().partitions.items()}
            with contextlib.suppress(TableNotFoundError):
                for each in read_status(self._table, source).partitions:
                    self.report.passed += starts[each.partition] > (each.synced_offset or 0)
        finally:
            source.close()

    def _produce(self, count: int, **settings: str) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._broker.address,
                "enable.idempotence": True,
                "linger.ms": 5,
                "queue.buffering.max.messages": 1_000_000,
                **settings,
            }
        )
        is_aborted = "transactional.id" in settings
        if is_aborted:
            producer.init_transactions(PATIENCE_S)
            producer.begin_transaction()
        first = self.report.records
        for number in range(first, first + count):
            value = b"aborted" if is_aborted else b"%d" % number
            producer.produce(TOPIC, value, b"key-%d" % self._rng.randrange(5_000))
        assert producer.flush(PATIENCE_S) == 0, "not every record was acknowledged"
        if is_aborted:
            producer.abort_transaction(PATIENCE_S)
            self.report.aborted += count
        else:
            self.report.records += count

    def _finish(self) -> None:
        """Wait until the table has the whole topic, and retention has deleted something."""

        def is_done() -> bool:
            source = FolderSource(str(self._folder / "data"), TOPIC)
            try:
                found = read_status(self._table, source).partitions
            finally:
                source.close()
            self.report.deleted_by_retention = sum(each.start_offset for each in found)
            is_synced = not any(each.lag for each in found)
            return is_synced and self.report.deleted_by_retention > 0

        eventually(is_done, "the end of the sync and a deletion by retention")

    def _check(self) -> None:
        report = self.report
        report.rows, report.distinct = counts(self._table)
        [[report.numbers]] = query(self._table, "SELECT count(DISTINCT value) FROM rows")
        report.commits = self._table.load().version


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill a broker that keeps a table.")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--records", type=int, default=DEFAULT_RECORDS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="strandlog-soak-") as folder:
        report = Soak(Path(folder), options.seed, options.records).run(options.rounds)
    show(report, as_json=options.json)
    return 0 if report.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
