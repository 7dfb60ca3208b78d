"""Folders that a broker with transactional clients has written, and their consumers.

librdkafka, with read_committed, says which records are to be returned.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaError
from confluent_kafka import TopicPartition as KafkaPartition
from tests.server.wire_client.records import batch_of, end_txn, write
from tests.support.broker_process import BrokerProcess
from tests.support.command_line import CommandLine
from tests.support.kafka_transactions import KafkaTransactions

import strandlog
import strandlog.aio
from strandlog import Consumer
from strandlog.client.wire.client import WireClient
from strandlog.model import ProducerIdentity, TopicPartition
from strandlog.testing.server import ServerThread

PATIENCE_S = 30
PARTITIONS = 6
SETTINGS = {"group.initial.rebalance.delay.ms": "0"}

Values = dict[int, list[bytes | None]]


class Transactions:
    """Random transactions of two producers in each partition, with plain records in between."""

    def __init__(self, client: WireClient, seed: int) -> None:
        self._client = client
        self._random = random.Random(seed)
        self._sequences: dict[tuple[str, int], int] = {}
        self._producers: dict[str, ProducerIdentity] = {}
        self._open: set[str] = set()

    def run(self, steps: int) -> None:
        for number in range(steps):
            partition = self._random.randrange(PARTITIONS)
            name = f"p{partition}-{self._random.choice('ab')}"
            choice = self._random.random()
            if choice < 0.2:
                tp = TopicPartition("orders", partition)
                write(self._client, tp, batch_of([b"plain %d" % number]))
            elif choice < 0.7:
                self.write(name, partition, b"%s %d" % (name.encode(), number))
            elif name in self._open:
                self.end(name, commit=choice < 0.85)

    def write(self, name: str, partition: int, value: bytes) -> None:
        client, tp = self._client, TopicPartition("orders", partition)
        if name not in self._producers:
            self._producers[name] = client.init_producer_id(name)
        producer = self._producers[name]
        if name not in self._open:
            client.add_partitions_to_txn(name, *producer, [tp])
            self._open.add(name)
        sequence = self._sequences.get((name, partition), 0)
        write(client, tp, batch_of([value], producer, sequence, is_transactional=True), name=name)
        self._sequences[name, partition] = sequence + 1

    def end(self, name: str, *, commit: bool) -> None:
        self._open.discard(name)
        end_txn(self._client, name, self._producers[name], commit=commit)


def by_partition(records: list[strandlog.Record]) -> Values:
    found: Values = {number: [] for number in range(PARTITIONS)}
    for record in sorted(records, key=lambda each: (each.partition, each.offset)):
        found[record.partition].append(record.value)
    return found


def of_arrow(consumer: Consumer) -> Values:
    found: Values = {number: [] for number in range(PARTITIONS)}
    while (table := consumer.poll_arrow(7)).num_rows:
        for row in table.sort_by("offset").to_pylist():
            found[row["partition"]].append(row["value"])
    return found


def of_librdkafka(address: str) -> Values:
    """All records up to the last stable offset of each partition."""
    consumer = KafkaConsumer(
        {
            "bootstrap.servers": address,
            "group.id": "unused",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    found: Values = {number: [] for number in range(PARTITIONS)}
    consumer.assign([KafkaPartition("orders", number, 0) for number in found])
    left = set(found)
    while left:
        message = consumer.poll(PATIENCE_S)
        assert message is not None, left
        if message.error() is None:
            found[message.partition()].append(message.value())
        else:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            left.discard(message.partition())
    consumer.close()
    return found


async def of_asyncio(path: Path) -> Values:
    async with strandlog.aio.read(path) as log, log.consumer(["orders"]) as consumer:
        found: list[strandlog.Record] = []
        while records := await consumer.poll(timeout_ms=0):
            found += records
        return by_partition(found)


def of_command(cli: CommandLine) -> Values:
    found: Values = {number: [] for number in range(PARTITIONS)}
    for line in cli.inside("consume", "orders", "-e", "-f", "%p:%s\\n").lines:
        number, _, value = line.partition(":")
        found[int(number)].append(value.encode())
    return found


def of_folder(path: Path) -> Values:
    """What all consumers of the files return; a broker may own them."""
    with strandlog.read(path) as log:
        found = by_partition(list(log.consumer(["orders"])))
        assert of_arrow(log.consumer(["orders"])) == found
    assert asyncio.run(of_asyncio(path)) == found
    assert of_command(CommandLine(path)) == found
    return found


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ServerThread]:
    with ServerThread(tmp_path / "data", SETTINGS) as running:
        with strandlog.connect(running.address) as log:
            log.create_topic("orders", PARTITIONS, {"segment.bytes": 1024})
        yield running


@pytest.mark.slow
def test_a_folder_has_other_records_than_its_broker(broker: ServerThread) -> None:
    """While transactions are open in most partitions, and after the broker has stopped."""
    data = broker.data
    with WireClient(broker.address) as client:
        transactions = Transactions(client, 7)
        for _ in range(2):
            transactions.run(150)
            expected = of_librdkafka(broker.address)
            assert of_folder(data) == expected
    assert sum(map(len, expected.values())) > 50
    wire = CommandLine(data, broker.address)
    assert of_command(wire) == expected
    every = wire.inside("consume", "orders", "-e", "-X", "isolation.level=read_uncommitted")
    assert len(every.lines) > sum(map(len, expected.values()))
    broker.stop()
    with strandlog.open(data) as owner:
        assert by_partition(list(owner.consumer(["orders"]))) == expected
        assert of_arrow(owner.consumer(["orders"])) == expected
    assert of_folder(data) == expected


@pytest.mark.slow
def test_aborted_records_come_back_after_kill_9(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", {"transaction.max.timeout.ms": "60000"})
    broker.start()
    try:
        with strandlog.connect(broker.address) as log:
            log.create_topic("orders", 1)
        transactions = KafkaTransactions(
            broker.address, "shop", **{"transaction.timeout.ms": 2_000}
        )
        transactions.begin("orders", b"committed")
        transactions.commit()
        transactions.begin("orders", b"aborted")
        transactions.abort()
        transactions.begin("orders", b"open")
    finally:
        broker.stop(signal.SIGKILL)
    data = tmp_path / "data"
    cli = CommandLine(data)
    assert cli.inside("consume", "orders", "-e").lines == ["committed"]
    with strandlog.open(data) as log:
        consumer = log.consumer(["orders"])
        assert [record.value for record in consumer.poll()] == [b"committed"]
        log.producer().send("orders", b"later")
        # The transaction times out two seconds after it began; then it is aborted.
        found = consumer.poll(timeout_ms=PATIENCE_S * 1000)
        assert [record.value for record in found] == [b"later"]
    assert cli.inside("consume", "orders", "-e").lines == ["committed", "later"]


def test_an_asyncio_reader_waits_on_after_the_end_of_a_transaction(broker: ServerThread) -> None:
    async def follow(transactions: Transactions) -> list[bytes | None]:
        async with strandlog.aio.read(broker.data) as log, log.consumer(["orders"]) as consumer:
            assert await consumer.poll(timeout_ms=0) == []
            await asyncio.to_thread(transactions.end, "shop", commit=False)
            found = await consumer.poll(timeout_ms=PATIENCE_S * 1000)
            return [record.value for record in found]

    with WireClient(broker.address) as client:
        transactions = Transactions(client, 1)
        transactions.write("shop", 0, b"open")
        write(client, TopicPartition("orders", 0), batch_of([b"after"]))
        assert asyncio.run(follow(transactions)) == [b"after"]


def test_an_asyncio_owner_returns_records_of_an_open_transaction(broker: ServerThread) -> None:
    async def poll_twice() -> list[list[bytes | None]]:
        async with strandlog.aio.open(broker.data) as log, log.consumer(["orders"]) as consumer:
            polled = [await consumer.poll(timeout_ms=0) for _ in range(2)]
            return [[record.value for record in records] for records in polled]

    with WireClient(broker.address) as client:
        transactions = Transactions(client, 1)
        transactions.write("shop", 0, b"committed")
        transactions.end("shop", commit=True)
        transactions.write("shop", 0, b"open")
    broker.stop()
    assert asyncio.run(poll_twice()) == [[b"committed"], []]


def test_a_folder_shows_old_offsets_of_groups_while_a_transaction_is_open(
    broker: ServerThread,
) -> None:
    tp = TopicPartition("orders", 0)
    cli = CommandLine(broker.data)

    def check(**expected: int) -> None:
        """What the broker, a new and an old read-only log and the command line show."""
        with strandlog.read(broker.data) as new:
            for log in (remote, new, reader):
                assert log.groups() == sorted(expected)
                found = {group: log.committed_offsets(group) for group in expected}
                assert {group: held[tp].offset for group, held in found.items()} == expected
                assert log.committed_offsets("new") == {}
        for group, offset in expected.items():
            document = cli.inside("group", "describe", group, "--json").document
            [row] = [each for each in document["partitions"] if each["partition"] == 0]
            assert row["committed"] == offset

    with strandlog.connect(broker.address) as remote, strandlog.read(broker.data) as reader:
        with remote.producer() as producer:
            for _ in range(20):
                producer.send("orders", b"x", partition=0)
        remote.commit_offsets("shop", {tp: 1})
        remote.commit_offsets("other", {tp: 2})
        transactions = KafkaTransactions(broker.address, "shop")
        transactions.begin("orders")
        transactions.send_offset("shop", "orders", 5)
        transactions.send_offset("new", "orders", 5)
        check(shop=1, other=2)
        remote.commit_offsets("other", {tp: 3})
        remote.commit_offsets("late", {tp: 4})
        check(shop=1, other=3, late=4)
        transactions.abort()
        check(shop=1, other=3, late=4)
        transactions.begin("orders")
        transactions.send_offset("shop", "orders", 6)
        transactions.send_offset("late", "orders", 6)
        remote.commit_offsets("late", {tp: 7})  # after that of the transaction
        check(shop=1, other=3, late=7)
        transactions.commit()
        check(shop=6, other=3, late=7)
        transactions.begin("orders")
        transactions.send_offset("shop", "orders", 8)
        remote.commit_offsets("other", {tp: 9})
        check(shop=6, other=9, late=7)
        remote.delete_group("late")
        check(shop=6, other=9)
        transactions.commit()
        check(shop=8, other=9)
