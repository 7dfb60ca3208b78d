"""Topics are synced to tables while the syncs and the broker are killed; DuckDB counts every row.

    python -m tests.soak.table_kills --rounds 20 [--records N] [--seed N] [--json] [--typed]

Three syncs follow a topic over the wire: to a Delta table, to an Iceberg table, and in upsert mode
to a Delta table with the latest value of each key. Each round produces numbered records, some of
them in transactions that abort, waits for a commit, produces more, and kills one of the syncs or
the broker with kill -9 at a random moment. Half-way, another program adds a column to each table.
With `--typed`, values have a schema of the registry, which gets a field in every round, before the
kill; some producers still use the version before. In the end:

    appended   the table has every committed (partition, offset) of the topic exactly once
    upserted   the table is the dict of the topic: the last value of each key, no deleted key
    typed      each row has the fields of the version that its value was written with
"""

from __future__ import annotations

import argparse
import json
import random
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from signal import SIGKILL
from typing import Any

import fastavro
import pyarrow as pa
from confluent_kafka import Producer
from tests.soak.reading import PATIENCE_S, say, show
from tests.support.broker_process import BrokerProcess, free_port
from tests.support.lake import counts, query

import strandlog
from strandlog.client.registry.api import NewSchema
from strandlog.client.registry.connect import connect_registry
from strandlog.client.wire.client import WireClient
from strandlog.errors import TableConflictError, TableNotFoundError
from strandlog.model import IsolationLevel, TopicPartition
from strandlog.tables.table import Table, open_table
from strandlog.tables.topics.source import FolderSource
from strandlog.tables.topics.status import read_status

TOPIC, PARTITIONS, KEYS = "numbers", 3, 5_000
TOMBSTONE_EVERY = 11
ABORT_EVERY = 3  # rounds
KINDS = ("delta", "iceberg", "upsert")
VICTIMS = (*KINDS, "broker")
DEFAULT_RECORDS = 200_000
PAUSE_S = 0.02


@dataclass
class Report:
    """Kills, and the contents of the tables."""

    kills: int = 0
    broker_kills: int = 0
    exits: int = 0  # a sync ended by itself, because the broker was away, and was started again
    records: int = 0
    aborted: int = 0
    delta_rows: int = 0
    delta_distinct: int = 0
    delta_commits: int = 0
    iceberg_rows: int = 0
    iceberg_distinct: int = 0
    iceberg_commits: int = 0
    keys: int = 0
    upsert_wrong: int = 0
    versions: int = 0  # of the schema
    wrong_fields: int = 0  # rows with other fields than their value, or with an error
    orphans: int = 0  # files of killed syncs
    seconds: float = 0.0

    @property
    def is_right(self) -> bool:
        found = {
            *(self.delta_rows, self.delta_distinct, self.iceberg_rows, self.iceberg_distinct),
        }
        wrong = self.upsert_wrong + self.wrong_fields
        return found == {self.records} and self.records > 0 and not wrong


class RawValues:
    """Numbers as text."""

    options: tuple[str, ...] = ()
    number = "CAST(decode(value) AS BIGINT)"  # in SQL
    versions = 0

    def change(self, address: str, first: int) -> None:
        """Change the schema of the values from the number `first` on."""

    def encode(self, number: int) -> bytes:
        return b"%d" % number

    def wrong(self, _: Table) -> int:
        """Count the rows that do not have the fields of their value."""
        return 0


class TypedValues(RawValues):
    """Numbers in records of Avro. Version `n` has the fields f1 to fn beside the number.

    Even numbers are written with the version before the newest one, as by a producer that was not
    updated yet.
    """

    options = ("--values", "registry")
    number = "value.id"

    def __init__(self) -> None:
        self._since: list[int] = []  # the first number of each version
        self._schemas: list[tuple[bytes, Any]] = []  # the prefix and the schema of each version

    @property
    def versions(self) -> int:  # type: ignore[override]
        return len(self._since)

    def change(self, address: str, first: int) -> None:
        added = [f"f{number}" for number in range(1, len(self._since) + 1)]
        text = {"name": "text", "type": ["null", "string"], "default": None}
        fields = [{"name": "id", "type": "long"}, *({**text, "name": name} for name in added)]
        schema = {"type": "record", "name": "Numbered", "fields": fields}
        with connect_registry(address) as registry:
            found = registry.register(f"{TOPIC}-value", NewSchema(json.dumps(schema))).schema
        self._schemas.append((struct.pack(">bI", 0, found.id), fastavro.parse_schema(schema)))
        self._since.append(first)

    def encode(self, number: int) -> bytes:
        newest = len(self._since) - 1
        version = newest if number % 2 else max(newest - 1, 0)
        prefix, schema = self._schemas[version]
        row = {"id": number, **{f"f{at}": str(number) for at in range(1, version + 1)}}
        out = BytesIO(prefix)
        out.seek(len(prefix))
        fastavro.schemaless_writer(out, schema, row)
        return out.getvalue()

    def wrong(self, table: Table) -> int:
        conditions = ["error IS NOT NULL"]
        for number in range(1, len(self._since)):
            later = self._since[number + 1] if number + 1 < len(self._since) else 2**62
            first = f"CASE WHEN value.id % 2 = 1 THEN {self._since[number]} ELSE {later} END"
            wanted = f"CASE WHEN value.id >= {first} THEN CAST(value.id AS VARCHAR) END"
            conditions.append(f"value.f{number} IS DISTINCT FROM {wanted}")
        where = " OR ".join(f"({each})" for each in conditions)
        found: int = query(table, f"SELECT count(*) FROM rows WHERE {where}")[0][0]
        return found


class Syncing:
    """One sync, started again whenever it ended."""

    def __init__(self, kind: str, folder: Path, address: str, more: tuple[str, ...] = ()) -> None:
        self.kind = kind
        table_format = "iceberg" if kind == "iceberg" else "delta"
        self.table: Table = open_table(folder / kind, table_format)
        self._log = folder / f"{kind}.log"
        self._arguments = [
            *(sys.executable, "-m", "strandlog", "table", "sync", TOPIC, str(folder / kind)),
            *("--format", table_format, "-b", address, "--follow", "--interval", "50ms"),
            *("--round-bytes", "2MiB", "--compact-files", "40"),
            *("-X", "default.api.timeout.ms=20000"),
            *(("--mode", "upsert") if kind == "upsert" else ()),
            *more,
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._arguments, stdout=log, stderr=log)

    @property
    def has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def version(self) -> int:
        try:
            return self.table.load().version
        except TableNotFoundError:
            return -1


class Soak:
    """One run."""

    def __init__(
        self, folder: Path, seed: int, records: int = DEFAULT_RECORDS, *, is_typed: bool = False
    ) -> None:
        self.report = Report()
        self._values = TypedValues() if is_typed else RawValues()
        self._rng = random.Random(seed)
        self._folder = folder
        self._records = records
        self._model: dict[bytes, int] = {}
        self._produced = 0
        self._broker = BrokerProcess(
            folder / "data",
            {"log.retention.ms": "-1"},
            log=folder / "broker.log",
            listeners=("--no-grpc", "--http-port", str(free_port())),
        )

    def run(self, rounds: int) -> Report:
        began = time.monotonic()
        self._broker.start()
        address, options = self._broker.address, self._values.options
        self._syncs = {kind: Syncing(kind, self._folder, address, options) for kind in KINDS}
        try:
            with strandlog.connect(self._broker.address) as log:
                log.create_topic(TOPIC, PARTITIONS)
            self._values.change(address, 0)
            self._produce(1)
            for sync in self._syncs.values():
                sync.start()
            for number in range(rounds):
                self._round(number, rounds)
            self._finish()
        finally:
            for sync in self._syncs.values():
                sync.kill()
            self._broker.stop()
        self._check()
        self.report.seconds = round(time.monotonic() - began, 1)
        return self.report

    def _round(self, number: int, rounds: int) -> None:
        victim = VICTIMS[number % len(VICTIMS)]
        before = {kind: sync.version() for kind, sync in self._syncs.items()}
        half = self._records // rounds // 2
        self._produce(half)
        if number % ABORT_EVERY == ABORT_EVERY - 1:
            self._abort()
        watched = self._syncs.get(victim, self._syncs["delta"])
        self._wait(lambda: watched.version() > before[watched.kind], "a commit")
        if number == rounds // 2:
            self._add_column()
        self._values.change(self._broker.address, self._produced)
        self._produce(half)  # so that the kill hits a sync that works
        time.sleep(self._rng.random() * 0.3)
        if victim == "broker":
            self._broker.stop(SIGKILL)
            self._broker.start()
            self.report.broker_kills += 1
        else:
            self._syncs[victim].kill()
            self._syncs[victim].start()
            self.report.kills += 1
        say(f"round {number + 1} of {rounds}: {victim}, {self._produced} produced")

    def _wait(self, condition: Any, what: str) -> None:
        deadline = time.monotonic() + 4 * PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                logs = "".join(
                    f"{s.kind}: {s._log.read_text()[-800:]}\n" for s in self._syncs.values()
                )
                raise AssertionError(f"{what}: not in time\n{logs}")
            for sync in self._syncs.values():
                if sync.has_ended:
                    self.report.exits += 1
                    sync.start()
            time.sleep(PAUSE_S)

    def _produce(self, count: int, **settings: str) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._broker.address,
                "enable.idempotence": True,
                "linger.ms": 20,
                "queue.buffering.max.messages": 1_000_000,
                **settings,
            }
        )
        is_aborted = "transactional.id" in settings
        if is_aborted:
            producer.init_transactions(PATIENCE_S)
            producer.begin_transaction()
        for number in range(self._produced, self._produced + count):
            key = b"key-%d" % self._rng.randrange(KEYS)
            value = None if number % TOMBSTONE_EVERY == 0 else self._values.encode(number)
            while True:
                try:
                    producer.produce(TOPIC, value, key)
                    break
                except BufferError:
                    producer.poll(0.1)
            if is_aborted:
                continue
            if value is None:
                self._model.pop(key, None)
            else:
                self._model[key] = number
        assert producer.flush(PATIENCE_S) == 0, "not every record was acknowledged"
        if is_aborted:
            producer.abort_transaction(PATIENCE_S)
            self.report.aborted += count
        else:
            self._produced += count
            self.report.records += count

    def _abort(self) -> None:
        self._produce(1_000, **{"transactional.id": "aborts"})

    def _add_column(self) -> None:
        for sync in self._syncs.values():
            for _ in range(100):
                try:
                    sync.table.extend(pa.schema([("note", pa.string())]))
                    break
                except TableConflictError:  # a sync was faster
                    continue

    def _finish(self) -> None:
        """Wait until every table has the whole topic."""
        partitions = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        with WireClient(self._broker.address) as client:
            ends = client.latest_offsets(partitions, IsolationLevel.READ_COMMITTED)
        wanted = {tp.partition: end for tp, end in ends.items()}

        def is_done(sync: Syncing) -> bool:
            source = FolderSource(str(self._folder / "data"), TOPIC)
            try:
                found = read_status(sync.table, source).partitions
            finally:
                source.close()
            return {each.partition: each.synced_offset for each in found} == wanted

        for sync in self._syncs.values():
            self._wait(lambda sync=sync: is_done(sync), f"the end of {sync.kind}")

    def _check(self) -> None:
        report = self.report
        delta, iceberg, upsert = (self._syncs[kind].table for kind in KINDS)
        report.delta_rows, report.delta_distinct = counts(delta)
        report.iceberg_rows, report.iceberg_distinct = counts(iceberg)
        report.delta_commits, report.iceberg_commits = delta.load().version, iceberg.load().version
        found = dict(query(upsert, f"SELECT key, {self._values.number} FROM rows"))
        rows = query(upsert, "SELECT count(*) FROM rows")[0][0]
        report.keys = len(found)
        wrong = {
            key
            for key in found.keys() | self._model.keys()
            if found.get(key) != self._model.get(key)
        }
        report.upsert_wrong = len(wrong) + rows - len(found)
        report.versions = self._values.versions
        report.wrong_fields = sum(self._values.wrong(each) for each in (delta, iceberg, upsert))
        for table in (delta, iceberg):
            listed = set(table.load().data_files())
            report.orphans += len(
                {str(path) for path in Path(table.folder).rglob("*.parquet")} - listed
            )


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill syncs of tables and the broker.")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--records", type=int, default=DEFAULT_RECORDS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--typed", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="strandlog-soak-") as folder:
        soak = Soak(Path(folder), options.seed, options.records, is_typed=options.typed)
        report = soak.run(options.rounds)
    show(report, as_json=options.json)
    return 0 if report.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
