"""Tables synced from a broker: transactions, security, and the same table from its folder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from tests.server.wire_client.records import batch_of, numbered, write
from tests.support.command_line import CommandLine
from tests.support.lake import counts, query
from tests.support.samples import one_in
from tests.support.secured_broker import READ, SecuredBroker

import strandlog
from strandlog.broker.access.permission import TOPIC
from strandlog.client.readonly.raw_range import RawChunk
from strandlog.client.wire.client import WireClient
from strandlog.client.wire.cluster import TopicMetadata
from strandlog.errors import TableGapError
from strandlog.model import ProducerIdentity, TopicPartition
from strandlog.tables.table import FORMATS, Table, open_table
from strandlog.tables.topics.columns import RawColumns
from strandlog.tables.topics.source import ClusterSource, FolderSource, TopicSource
from strandlog.tables.topics.status import read_status
from strandlog.tables.topics.sync import Sync, SyncOptions, SyncReport
from strandlog.testing.server import ServerThread

ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ServerThread]:
    with ServerThread(tmp_path / "data", {"log.retention.ms": "-1"}) as running:
        yield running


@pytest.fixture(params=one_in(3, FORMATS))
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    return open_table(tmp_path / "lake" / "orders", request.param)


def sync(
    table: Table,
    source: TopicSource,
    options: SyncOptions = SyncOptions(),  # noqa: B008 - frozen
) -> SyncReport:
    made = Sync(table, source, RawColumns(), options)
    try:
        made.create()
        return made.run()
    finally:
        source.close()


def transaction(
    client: WireClient, name: str, values: list[bytes], *, commits: bool | None
) -> ProducerIdentity:
    producer = client.init_producer_id(name)
    client.add_partitions_to_txn(name, *producer, [ORDERS])
    write(client, ORDERS, batch_of(values, producer, is_transactional=True), name=name)
    if commits is not None:
        client.end_txn(name, *producer, commit=commits)
    return producer


def test_only_committed_records_become_rows(broker: ServerThread, table: Table) -> None:
    with WireClient(broker.address) as client:
        client.create_topic("orders", 1)
        transaction(client, "a", numbered(0, 5), commits=True)
        transaction(client, "b", numbered(5, 5), commits=False)
        write(client, ORDERS, batch_of(numbered(10, 5)))
        assert sync(table, ClusterSource(broker.address, "orders")).rows == 10
        transaction(client, "c", numbered(15, 5), commits=False)
        # Offsets move past aborted records, although there is no row.
        report = sync(table, ClusterSource(broker.address, "orders"))
        assert (report.rows, report.commits) == (0, 1)
        assert sync(table, ClusterSource(broker.address, "orders")).commits == 0
        producer = transaction(client, "d", numbered(20, 5), commits=None)
        write(client, ORDERS, batch_of(numbered(25, 5)))
        assert sync(table, ClusterSource(broker.address, "orders")).rows == 0, "d is open"
        client.end_txn("d", *producer, commit=False)
        assert sync(table, ClusterSource(broker.address, "orders")).rows == 5
    found = [int(value) for (value,) in query(table, 'SELECT value FROM rows ORDER BY "offset"')]
    assert found == [*range(5), *range(10, 15), *range(25, 30)]


def test_the_lag_counts_records_behind_an_open_transaction(
    broker: ServerThread, table: Table
) -> None:
    def lags() -> set[tuple[int, int, int]]:
        """Return the end, the lag and its part behind transactions, from both sources."""
        sources = ClusterSource(broker.address, "orders"), FolderSource(str(broker.data), "orders")
        with contextlib.closing(sources[0]), contextlib.closing(sources[1]):
            found = [read_status(table, each).partitions[0] for each in sources]
        return {(each.end_offset, each.lag, each.open_transaction_lag) for each in found}

    with WireClient(broker.address) as client:
        client.create_topic("orders", 1)
        write(client, ORDERS, batch_of(numbered(0, 5)))
        sync(table, ClusterSource(broker.address, "orders"))
        assert lags() == {(5, 0, 0)}
        write(client, ORDERS, batch_of(numbered(5, 2)))
        producer = transaction(client, "a", numbered(7, 3), commits=None)
        assert lags() == {(10, 5, 3)}
        sync(table, ClusterSource(broker.address, "orders"))
        assert lags() == {(10, 3, 3)}, "nothing can be synced, and the table is not up to date"
        client.end_txn("a", *producer, commit=True)
        assert lags() == {(11, 4, 0)}
        sync(table, ClusterSource(broker.address, "orders"))
        assert lags() == {(11, 0, 0)}


def test_the_status_asks_for_the_metadata_of_the_topic_once(
    broker: ServerThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = open_table(tmp_path / "lake", "parquet")
    with WireClient(broker.address) as client:
        client.create_topic("orders", 2)
        write(client, ORDERS, batch_of(numbered(0, 5)))
    sync(table, ClusterSource(broker.address, "orders"))
    source, asked, inner = (
        ClusterSource(broker.address, "orders"),
        list[object](),
        WireClient.topics,
    )

    def counting(
        client: WireClient, names: Iterable[str] | None = None
    ) -> dict[str, TopicMetadata]:
        asked.append(names)
        return inner(client, names)

    monkeypatch.setattr(WireClient, "topics", counting)
    assert [part.end_offset for part in read_status(table, source).partitions] == [5, 0]
    assert len(asked) == 1
    source.close()


def test_a_sync_continues_between_folder_and_broker(broker: ServerThread, table: Table) -> None:
    with WireClient(broker.address) as client:
        client.create_topic("orders", 1)
        write(client, ORDERS, batch_of(numbered(0, 5)))
        assert sync(table, ClusterSource(broker.address, "orders")).rows == 5
        write(client, ORDERS, batch_of(numbered(5, 5)))
        # The files are read while the broker runs.
        assert sync(table, FolderSource(str(broker.data), "orders")).rows == 5
        write(client, ORDERS, batch_of(numbered(10, 5)))
        assert sync(table, ClusterSource(broker.address, "orders")).rows == 5
    assert counts(table) == (15, 15)


@pytest.mark.slow
def test_the_command_logs_in_to_a_secured_broker(tmp_path: Path) -> None:
    with SecuredBroker(tmp_path) as broker:
        broker.add_user("lake", "secret")
        broker.allow("lake", (READ.on(TOPIC), "orders"))
        with strandlog.connect(broker.open_address) as log:
            log.create_topic("orders", partitions=1)
            with log.producer() as producer:
                producer.send("orders", b"x")
        settings = [
            part
            for name, value in broker.client("lake").items()
            for part in ("-X", f"{name}={value}")
        ]
        cli = CommandLine(tmp_path / "none", broker.address)
        target = str(tmp_path / "lake")
        report = cli("table", "sync", "orders", target, "--json", *settings).document
        assert (report["synced"], report["rows"]) == (1, 1)
        denied = cli("table", "sync", "orders", target, "-X", "sasl.username=lake", code=1)
        assert denied.err.startswith("error: ")


def test_records_deleted_while_they_are_read_are_a_gap_and_not_a_failed_read(
    broker: ServerThread, tmp_path: Path
) -> None:
    """DeleteRecords, or retention, comes between the plan of a round and its read."""

    class Racing(ClusterSource):
        def read(self, partition: int, start: int, end: int) -> Iterator[RawChunk]:
            with strandlog.connect(broker.address) as log:
                log.delete_records("orders", 0, 30)
            return super().read(partition, start, end)

    table = open_table(tmp_path / "lake", "delta")
    with WireClient(broker.address) as client:
        client.create_topic("orders", 1)
        write(client, ORDERS, batch_of(numbered(0, 10)))
        sync(table, ClusterSource(broker.address, "orders"))
        write(client, ORDERS, batch_of(numbered(10, 90)))
    with pytest.raises(TableGapError, match="10"):
        sync(table, Racing(broker.address, "orders"))
    source = ClusterSource(broker.address, "orders")
    report = sync(table, source, SyncOptions(accepts_gap=True))
    assert [tuple(gap) for gap in report.gaps] == [(0, 10, 30)]
    assert counts(table) == (80, 80)
