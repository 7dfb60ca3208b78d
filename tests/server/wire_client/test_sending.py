"""Raw batches to a real broker: errors by partition, idempotence, transactions in two phases."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.server.wire_client.records import (
    batch_of,
    end_txn,
    error_in,
    numbered,
    values_of,
    wait_until_ended,
    write,
)
from tests.support.server import RunningBroker

from strandlog.client.wire.client import WireClient
from strandlog.client.wire.coordinator import TransactionDescription
from strandlog.errors import (
    CorruptRecordError,
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    MessageTooLargeError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    TopicExistsError,
    TopicNotFoundError,
    TransactionalIdNotFoundError,
)
from strandlog.model import OffsetAndMetadata, TopicPartition
from strandlog.testing.server import ServerThread

# A driver that knows only three values: transactional id, producer id and epoch.
DRIVER = """
import sys
from pathlib import Path
from strandlog.client.wire.client import WireClient
address, name, producer_id, epoch, commit = sys.argv[1:]
with WireClient(address) as client:
    client.end_txn(name, int(producer_id), int(epoch), commit=commit == "commit")
"""


def test_batches_of_many_partitions_keep_their_order(
    client: WireClient, tp: TopicPartition
) -> None:
    partitions = client.partitions([tp.topic])
    producer = client.init_producer_id()  # what keeps the order, should a broker refuse one
    sender = client.sender()
    for first in range(0, 1000, 10):
        for each in partitions:
            sender.send(each, batch_of(numbered(first, 10), producer, first))
    for each, result in sender.flush().items():
        assert result == (0, 100, None), each
        assert values_of(client, each) == numbered(0, 1000)


def test_an_error_is_about_its_partition_alone(client: WireClient, tp: TopicPartition) -> None:
    good, missing, large = tp, tp._replace(partition=7), tp._replace(partition=1)
    producer = client.init_producer_id()
    found = client.produce(
        {
            missing: [batch_of([b"x"])],
            large: [
                batch_of([value], producer, number)
                for number, value in enumerate((b"first", b"x" * 4_000_000, b"last"))
            ],
            good: [batch_of([b"a"], producer, 0), batch_of([b"b"], producer, 1)],
        }
    )
    assert found[good] == (0, 2, None)
    assert isinstance(found[missing].error, TopicNotFoundError)
    assert isinstance(found[large].error, MessageTooLargeError)
    assert values_of(client, good) == [b"a", b"b"]
    assert found[large][:2] == (0, 1)
    assert values_of(client, large) == [b"first"]


def test_a_damaged_batch_fails_at_once(client: WireClient, tp: TopicPartition) -> None:
    damaged = batch_of([b"value"])
    damaged[-2] ^= 1
    assert isinstance(error_in(client, tp, damaged), CorruptRecordError)


def test_a_batch_that_is_sent_twice_is_written_once(client: WireClient, tp: TopicPartition) -> None:
    producer = client.init_producer_id()
    first, second = (batch_of(numbered(n, 5), producer, n) for n in (0, 5))
    write(client, tp, first, second)
    write(client, tp, first, second)
    assert values_of(client, tp) == numbered(0, 10)
    gap = batch_of([b"x"], producer, 50)
    assert isinstance(error_in(client, tp, gap), OutOfOrderSequenceError)


def test_what_is_sent_is_bounded_and_all_of_it_arrives(
    broker: RunningBroker, tp: TopicPartition
) -> None:
    with WireClient(broker.address, {"buffer.memory": "1MiB"}) as client:
        sender = client.sender()
        for number in range(40):
            sender.send(tp, batch_of([b"%d" % number + b"x" * 200_000]))
        assert sender.flush()[tp] == (0, 40, None)
        assert sender.flush() == {}
        assert client.latest_offsets([tp]) == {tp: 40}


@pytest.mark.parametrize("how", ["commit", "abort"])
def test_another_process_ends_a_transaction(
    broker: RunningBroker, client: WireClient, tp: TopicPartition, how: str
) -> None:
    name = f"{tp}-{how}"
    with WireClient(broker.address) as task:
        producer = task.init_producer_id(name, timeout_ms=60_000)
        task.add_partitions_to_txn(name, *producer, [tp])
        batch = batch_of(numbered(0, 5), producer, is_transactional=True)
        assert task.produce({tp: [batch]}, transactional_id=name)[tp].error is None
    state = client.describe_transactions([name])[name]
    assert isinstance(state, TransactionDescription)
    assert (state.state, state.partitions, state.timeout_ms) == ("Ongoing", (tp,), 60_000)
    assert (state.producer_id, state.epoch) == producer
    assert values_of(client, tp) == []
    arguments = [broker.address, name, str(producer.producer_id), str(producer.epoch), how]
    subprocess.run([sys.executable, "-c", DRIVER, *arguments], check=True, timeout=60)
    wait_until_ended(client, name)
    assert values_of(client, tp) == (numbered(0, 5) if how == "commit" else [])


def test_a_commit_may_be_asked_for_twice_and_cannot_become_an_abort(
    client: WireClient, tp: TopicPartition
) -> None:
    name = f"{tp}"
    producer = client.init_producer_id(name)
    client.add_partitions_to_txn(name, *producer, [tp])
    write(client, tp, batch_of([b"x"], producer, is_transactional=True), name=name)
    end_txn(client, name, producer, commit=True)
    end_txn(client, name, producer, commit=True)
    with pytest.raises(InvalidTransactionStateError, match=f"aborting.*{tp}"):
        end_txn(client, name, producer, commit=False)
    assert values_of(client, tp) == [b"x"]


def test_a_task_that_was_replaced_can_neither_write_nor_be_committed(
    client: WireClient, tp: TopicPartition
) -> None:
    name = f"{tp}"
    old = client.init_producer_id(name)
    client.add_partitions_to_txn(name, *old, [tp])
    write(client, tp, batch_of([b"old"], old, is_transactional=True), name=name)
    new = client.init_producer_id(name)
    assert (new.producer_id, new.epoch > old.epoch) == (old.producer_id, True)
    fenced = (ProducerFencedError, InvalidProducerEpochError)
    with pytest.raises(fenced):
        end_txn(client, name, old, commit=True)
    late = batch_of([b"late"], old, 1, is_transactional=True)
    result = client.produce({tp: [late]}, transactional_id=name)[tp]
    assert isinstance(result.error, (*fenced, InvalidTransactionStateError))
    client.add_partitions_to_txn(name, *new, [tp])
    write(client, tp, batch_of([b"new"], new, is_transactional=True), name=name)
    end_txn(client, name, new, commit=True)
    assert values_of(client, tp) == [b"new"]


def test_one_transaction_after_the_other_does_not_trip_over_the_one_before(
    client: WireClient, tp: TopicPartition
) -> None:
    name = f"{tp}"
    producer = client.init_producer_id(name)
    for number in range(10):
        client.add_partitions_to_txn(name, *producer, [tp])
        batch = batch_of([b"%d" % number], producer, number, is_transactional=True)
        write(client, tp, batch, name=name)
        end_txn(client, name, producer, commit=number % 2 == 0)
    assert values_of(client, tp) == [b"0", b"2", b"4", b"6", b"8"]


def test_an_unused_transactional_id_is_not_found(client: WireClient) -> None:
    found = client.describe_transactions(["unknown"])
    assert isinstance(found["unknown"], TransactionalIdNotFoundError)


def test_a_partition_that_is_not_there_does_not_join_a_transaction(
    broker: RunningBroker, client: WireClient, tp: TopicPartition
) -> None:
    producer = client.init_producer_id(f"{tp}")
    missing = TopicPartition(tp.topic, 9)
    with (
        WireClient(broker.address, {"default.api.timeout.ms": "500"}) as hasty,
        pytest.raises(TopicNotFoundError),
    ):
        hasty.add_partitions_to_txn(f"{tp}", *producer, [tp, missing])


def test_positions_of_a_group_without_members(client: WireClient, tp: TopicPartition) -> None:
    group, other = f"group-{tp}", tp._replace(partition=1)
    assert client.committed_offsets(group) == {}
    client.commit_offsets(group, {tp: 5, other: OffsetAndMetadata(7, metadata="note")})
    found = client.committed_offsets(group)
    assert {each: row.offset for each, row in found.items()} == {tp: 5, other: 7}
    assert found[other].metadata == "note"
    assert list(client.committed_offsets(group, [other])) == [other]
    client.commit_offsets(group, {tp: 9})
    assert client.committed_offsets(group, [tp])[tp].offset == 9
    client.commit_offsets(group, {})


def test_a_topic_that_exists_is_not_made_again(client: WireClient, tp: TopicPartition) -> None:
    with pytest.raises(TopicExistsError):
        client.create_topic(tp.topic)
    assert client.topics([tp.topic])[tp.topic].partition_count == 3
    assert client.topics()[tp.topic].topic_id is not None
    assert client.find_coordinator(group="g") == client.find_coordinator(transactional_id="t")


def test_a_topic_to_write_is_made_by_a_broker_that_makes_topics_by_itself(
    client: WireClient, tp: TopicPartition
) -> None:
    assert client.topic_to_write(tp.topic).partition_count == 3, "one that is there stays"
    name = f"{tp.topic}-made-by-writing"
    assert client.topics([name]) == {}
    assert client.topic_to_write(name).partition_count == 1
    assert list(client.topics([name])) == [name]


@pytest.mark.slow
def test_a_topic_that_the_broker_does_not_make_is_not_found(tmp_path: Path) -> None:
    broker = ServerThread(tmp_path, {"auto.create.topics.enable": "false"})
    broker.start()
    try:
        with WireClient(broker.address) as client:
            with pytest.raises(TopicNotFoundError, match="topic 'mistyped' does not exist"):
                client.topic_to_write("mistyped")
            assert client.topics() == {}
    finally:
        broker.stop()
