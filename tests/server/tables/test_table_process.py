"""Tables that a broker keeps: the process that syncs them, kills, retention, and what is shown."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.command_line import CommandLine
from tests.support.lake import counts, query
from tests.support.processes import is_running, table_workers
from tests.support.waiting import eventually

import strandlog
from strandlog.client.registry.api import NewSchema
from strandlog.client.registry.connect import connect_registry
from strandlog.errors import TableNotFoundError
from strandlog.storage.paths import CLEAN_SHUTDOWN
from strandlog.tables.table import Table, open_table
from strandlog.testing.server import ServerThread

TABLE = {"table.format": "delta", "table.sync.interval.ms": "100"}
SMALL = {"segment.bytes": "4096", "retention.ms": "1", "file.delete.delay.ms": "0"}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    settings = {
        "table.dir": str(tmp_path / "lake"),
        "log.retention.check.interval.ms": "200",
    }
    made = BrokerProcess(
        tmp_path / "data",
        settings,
        log=tmp_path / "broker.log",
        listeners=("--no-grpc", "--http-port", "0"),
    )
    made.start()
    yield made
    if made.process is not None:
        made.stop()


def produce(broker: BrokerProcess, count: int) -> None:
    with strandlog.connect(broker.address) as log, log.producer() as producer:
        producer.send_batch("orders", [(b"k", b"%d" % number) for number in range(count)])
        producer.flush()


def create(broker: BrokerProcess, **more: str) -> None:
    config = {**TABLE, **{name.replace("_", "."): value for name, value in more.items()}}
    with strandlog.connect(broker.address) as log:
        log.create_topic("orders", 1, config)


def worker(broker: BrokerProcess) -> int:
    assert broker.process is not None
    pid = broker.process.pid
    return eventually(lambda: table_workers(pid), "a process that syncs tables")[0]


def wait_for_rows(tmp_path: Path, count: int) -> None:
    """Wait until the table has this many rows, each once."""
    table = open_table(tmp_path / "lake" / "orders", "delta")

    def has_rows() -> bool:
        try:
            return table.load().row_count() >= count
        except TableNotFoundError:
            return False

    eventually(has_rows, f"{count} rows")
    assert counts(table) == (count, count)


@pytest.mark.slow
def test_the_process_is_started_again_and_ends_with_its_broker(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    assert broker.process is not None
    assert table_workers(broker.process.pid) == []  # no topic has a table
    create(broker)
    produce(broker, 100)
    first = worker(broker)
    wait_for_rows(tmp_path, 100)
    os.kill(first, signal.SIGKILL)
    produce(broker, 50)
    wait_for_rows(tmp_path, 150)
    second = worker(broker)
    assert second != first
    assert "starting it again in 1 s" in (tmp_path / "broker.log").read_text()
    broker.stop(signal.SIGKILL)
    eventually(lambda: not is_running(second), "the end of a process whose broker was killed")


@pytest.mark.slow
def test_the_log_says_why_the_reports_of_the_process_cannot_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    endless_line = "import sys; sys.stdout.write('x' * 2**25); sys.stdin.read()"
    command = (sys.executable, "-c", endless_line)
    settings = {"table.dir": str(tmp_path / "lake")}
    with ServerThread(tmp_path / "data", settings, table_command=command) as server:
        with strandlog.connect(server.address) as log:
            log.create_topic("orders", 1, TABLE)
        server.wait_until(
            lambda each: each.metrics()["table_process_restarts"] == 1, "the process has ended"
        )
    assert "cannot read the reports of the process that syncs tables: " in caplog.text


@pytest.mark.slow
def test_retention_follows_the_table_and_all_can_be_seen(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    create(broker, retention_after_table="true", **SMALL)
    lake = tmp_path / "lake" / "orders"

    def start() -> int:
        with strandlog.connect(broker.address) as log:
            return log.describe_topic("orders").partitions[0].start_offset

    produce(broker, 500)
    wait_for_rows(tmp_path, 500)
    eventually(lambda: start() == 500, "retention after the sync")
    lake.rename(tmp_path / "moved")
    produce(broker, 500)
    page = eventually(lambda: failed_page(broker), "a failed sync")
    assert page is not None
    assert (page["lag"], start()) == (500, 500)
    assert not lake.exists()
    assert "no longer contains the table" in (tmp_path / "broker.log").read_text()
    (tmp_path / "moved").rename(lake)
    wait_for_rows(tmp_path, 1000)
    eventually(lambda: start() == 1000, "retention after the table is back")
    assert failed_page(broker) is None
    command = CommandLine(tmp_path / "data", broker.address)
    found = command.inside("table", "status", "orders", "--json").document
    assert (found["rows"], found["error"], found["table"]) == (1000, "", str(lake))
    metrics = get(broker, "/metrics").decode()
    assert 'strandlog_table_lag{topic="orders"} 0.0' in metrics
    assert 'strandlog_table_failing{topic="orders"} 0.0' in metrics
    assert "strandlog_tables 1.0" in metrics
    running = worker(broker)
    assert broker.stop() == 0
    assert not is_running(running)


KINDS = {
    "iceberg-append": {"table.format": "iceberg"},
    "parquet-append": {"table.format": "parquet", "table.partition.by": "hour"},
    "delta-upsert": {"table.format": "delta", "table.mode": "upsert"},
    "iceberg-upsert": {"table.format": "iceberg", "table.mode": "upsert"},
    "delta-typed": {"table.format": "delta", "table.values": "registry"},
    "iceberg-typed": {"table.format": "iceberg", "table.values": "registry"},
}


# An Avro long of 0 to 63 is one byte, in zigzag; the schema has the id 1.
NUMBER = {"type": "record", "name": "N", "fields": [{"name": "n", "type": "long"}]}
VALUES = [struct.pack(">bIB", 0, 1, 2 * number) for number in range(60)]


def contents(table: Table, is_upsert: bool) -> object:
    """The number of rows, or by key the value of the only row."""
    try:
        snapshot = table.load()
    except TableNotFoundError:
        return None
    if not is_upsert or not snapshot.data_files():
        return snapshot.row_count()
    return dict(query(table, "SELECT key, value FROM rows"))


@pytest.mark.slow
@pytest.mark.long
def test_a_broker_keeps_tables_of_every_kind(broker: BrokerProcess, tmp_path: Path) -> None:
    tables = {
        name: open_table(tmp_path / "lake" / name, config["table.format"])
        for name, config in KINDS.items()
    }
    with strandlog.connect(broker.address) as log, connect_registry(broker.address) as registry:
        for name, config in KINDS.items():
            found = registry.register(f"{name}-value", NewSchema(json.dumps(NUMBER)))
            assert found.schema.id == 1
            log.create_topic(name, 2, {**TABLE, **config})
    for start, end in ((0, 30), (30, 60)):
        keyed = [(b"k%d" % (at % 10), VALUES[at]) for at in range(end)]
        with strandlog.connect(broker.address) as log, log.producer() as producer:
            for name in KINDS:
                producer.send_batch(name, keyed[start:])
        for name, table in tables.items():
            is_upsert = "upsert" in name
            expected = dict(keyed) if is_upsert else end
            eventually(
                lambda table=table, is_upsert=is_upsert, expected=expected: (  # type: ignore[misc]
                    contents(table, is_upsert) == expected
                ),
                f"{end} records in {name}",
            )
        os.kill(worker(broker), signal.SIGKILL)
    for name in ("delta-typed", "iceberg-typed"):
        rows = query(tables[name], "SELECT value.n, error FROM rows ORDER BY ALL")
        assert rows == [(number, None) for number in range(60)]
    for name in ("iceberg-append", "parquet-append"):
        assert counts(tables[name]) == (60, 60)
    lines = (tmp_path / "broker.log").read_text().splitlines()
    failures = [line for line in lines if "cannot sync" in line]
    # A busy disk makes a sync slow, and the broker reports that. It is not a failure.
    assert [line for line in failures if "has not ended after" not in line] == []


def get(broker: BrokerProcess, path: str) -> bytes:
    http = next(word for word in broker.ready.split() if word.startswith("http="))
    with urllib.request.urlopen(f"http://{http.partition('=')[2]}{path}", timeout=10) as answer:
        body: bytes = answer.read()
        return body


def failed_page(broker: BrokerProcess) -> dict[str, Any] | None:
    """The table of the topic in the HTTP API, if the sync does not find it."""
    table: dict[str, Any] = json.loads(get(broker, "/api/v1/topics/orders"))["table"]
    return table if "no longer contains the table of the topic" in table["error"] else None


@pytest.mark.slow
def test_a_broker_stops_cleanly_while_its_sync_process_is_stopped(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    create(broker)
    produce(broker, 10)
    stopped = worker(broker)
    wait_for_rows(tmp_path, 10)
    os.kill(stopped, signal.SIGSTOP)
    produce(broker, 10)  # the topic does not depend on its table
    broker.stop()
    assert not is_running(stopped)
    assert (tmp_path / "data" / CLEAN_SHUTDOWN).exists()
    broker.start()
    wait_for_rows(tmp_path, 20)


@pytest.mark.slow
def test_a_missing_library_is_a_warning_and_not_silence(tmp_path: Path) -> None:
    blocked = tmp_path / "blocked" / "deltalake"
    blocked.mkdir(parents=True)
    (blocked / "__init__.py").write_text("raise ImportError('not here', name='deltalake')\n")
    log = tmp_path / "broker.log"
    broker = BrokerProcess(tmp_path / "data", log=log)
    path = f"{blocked.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        broker.start()
    try:
        create(broker)
        eventually(lambda: "strandlog[delta]" in log.read_text(), "a warning")
    finally:
        broker.stop()


def test_the_event_loop_loads_the_module_for_the_messages_of_the_process() -> None:
    code = (
        "import sys; from strandlog.server import table_process; "
        "table_process._start([sys.executable, '-c', '']).wait(); "
        "print('strandlog.server.table_messages' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_the_process_ends_when_its_input_ends(tmp_path: Path) -> None:
    from strandlog.testing.server import TABLE_COMMAND

    done = subprocess.run(
        [*TABLE_COMMAND, str(tmp_path)], input=b"", capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, b"")
