"""Consumers of a folder return the records of committed transactions only.

Each test reads a folder with the embedded log and with the read-only log, as records and as Arrow
tables: the four must agree.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.embedded_harness import EmbeddedHarness, drain
from tests.support.transactions import TIMEOUT_MS, TransactionalWriter

from strandlog import Consumer, CorruptSegmentError
from strandlog.client.readonly.log import ReadOnlyLog, ReadOnlySource
from strandlog.client.record_source import Decode, Fetched
from strandlog.model import TopicPartition
from strandlog.record.batch import iter_batches
from strandlog.storage.readonly import committed

TP = TopicPartition("orders", 0)
SMALL_SEGMENTS = {"segment.bytes": 1024}


@pytest.fixture
def writer(embedded: EmbeddedHarness) -> TransactionalWriter:
    embedded.log.create_topic("orders", 1)
    return TransactionalWriter(embedded.log)


def arrow_values(consumer: Consumer) -> list[bytes | None]:
    found: list[bytes | None] = []
    while (table := consumer.poll_arrow(3)).num_rows:
        found += table.column("value").to_pylist()
    return found


def record_values(consumer: Consumer) -> list[bytes | None]:
    return [record.value for record in drain(consumer, 3)]


def values(embedded: EmbeddedHarness) -> list[bytes | None]:
    """What all consumers of the folder return."""
    embedded.log.flush()
    found = record_values(embedded.log.consumer(["orders"]))
    assert arrow_values(embedded.log.consumer(["orders"])) == found
    assert [record.value for record in embedded.log.consumer(["orders"])] == found
    with ReadOnlyLog("data", files=embedded.disk) as reader:
        assert record_values(reader.consumer(["orders"])) == found
        assert arrow_values(reader.consumer(["orders"])) == found
    return found


def test_aborted_records_are_returned_as_data(
    embedded: EmbeddedHarness, writer: TransactionalWriter
) -> None:
    writer.write("a", TP, b"committed")
    writer.end("a", commit=True)
    writer.write("a", TP, b"aborted")
    writer.end("a", commit=False)
    embedded.send("orders", b"plain")
    assert values(embedded) == [b"committed", b"plain"]
    embedded.reopen()
    assert values(embedded) == [b"committed", b"plain"]


def test_records_of_an_open_transaction_are_returned_before_it_ends(
    embedded: EmbeddedHarness, writer: TransactionalWriter
) -> None:
    embedded.send("orders", b"before")
    writer.write("a", TP, b"open")
    embedded.send("orders", b"after")
    assert values(embedded) == [b"before"]
    with ReadOnlyLog("data", files=embedded.disk) as reader:
        consumers = [embedded.log.consumer(["orders"]), reader.consumer(["orders"])]
        for consumer in consumers:
            assert [record.value for record in consumer] == [b"before"]
            assert consumer.position("orders", 0) == 1, "the last stable offset"
        writer.end("a", commit=True)
        for consumer in consumers:
            assert [record.value for record in consumer] == [b"open", b"after"]


def test_interleaved_transactions_of_two_producers_are_mixed_up(
    embedded: EmbeddedHarness, writer: TransactionalWriter
) -> None:
    for number in range(3):
        writer.write("a", TP, b"a%d" % number)
        embedded.send("orders", b"plain%d" % number)
        writer.write("b", TP, b"b%d" % number)
        if number == 1:
            writer.end("a", commit=False)
    writer.end("b", commit=True)
    assert values(embedded) == [b"plain0", b"b0", b"plain1", b"b1"], "a2 is open"
    writer.end("a", commit=True)
    expected = [b"plain0", b"b0", b"plain1", b"b1", b"a2", b"plain2", b"b2"]
    assert values(embedded) == expected


def test_aborted_records_appear_in_a_transaction_that_spans_segments(
    embedded: EmbeddedHarness,
) -> None:
    embedded.log.create_topic("orders", 1, SMALL_SEGMENTS)
    writer = TransactionalWriter(embedded.log)
    for number in range(30):
        writer.write("kept", TP, b"k%d" % number)
        writer.write("not", TP, b"n%d" % number * 20)
    writer.end("kept", commit=True)
    assert values(embedded) == [b"k0"], "the other transaction begins after it"
    writer.end("not", commit=False)
    assert embedded.log.describe_topic("orders").partitions[0].segments > 3
    assert values(embedded) == [b"k%d" % number for number in range(30)]


def test_a_transaction_that_a_killed_broker_left_open_blocks_consumers_forever(
    embedded: EmbeddedHarness, writer: TransactionalWriter
) -> None:
    writer.write("a", TP, b"open")
    embedded.send("orders", b"after")
    embedded.kill()
    assert values(embedded) == []
    consumer = embedded.log.consumer(["orders"])
    assert consumer.poll() == []
    embedded.advance(2 * TIMEOUT_MS)
    assert [record.value for record in consumer.poll()] == [b"after"]
    assert values(embedded) == [b"after"]


def test_a_waiting_poll_at_an_open_transaction_reads_without_pause(
    embedded: EmbeddedHarness, writer: TransactionalWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks once per wake-up, and returns the record when the transaction has ended."""
    writer.write("a", TP, b"open")
    log = embedded.log
    consumer = log.consumer(["orders"])
    reads: list[int] = []
    fetch = log.source.fetch

    def counted(tp: TopicPartition, offset: int, decode: Decode, topic_id: str) -> Fetched:
        reads.append(offset)
        return fetch(tp, offset, decode, topic_id)

    monkeypatch.setattr(log.source, "fetch", counted)
    waits: list[int] = []

    def wait(timeout_ms: int) -> None:
        waits.append(timeout_ms)
        embedded.clock.advance(timeout_ms)
        if len(waits) == 3:
            writer.end("a", commit=True)

    monkeypatch.setattr(log, "wait", wait)
    assert [record.value for record in consumer.poll(timeout_ms=5_000)] == [b"open"]
    assert len(waits) == 3
    assert len(reads) <= 6


def test_compaction_brings_aborted_records_back(
    embedded: EmbeddedHarness,
) -> None:
    embedded.log.create_topic("orders", 1, {**SMALL_SEGMENTS, "cleanup.policy": "compact"})
    writer = TransactionalWriter(embedded.log)
    for number in range(30):
        writer.write("a", TP, b"new%d" % number, key=b"%d" % (number % 3))
        writer.write("b", TP, b"not%d" % number * 20, key=b"%d" % (number % 3))
        if number % 2:
            writer.end("a", commit=True)
            writer.end("b", commit=False)
    expected = [b"new%d" % number for number in range(30)]
    assert values(embedded) == expected
    embedded.log.compact("orders")
    found = values(embedded)
    assert len(found) < 30 and found[-3:] == expected[-3:]
    assert not [value for value in found if value is not None and value.startswith(b"not")]


def test_a_reader_that_starts_behind_an_open_transaction_returns_its_records(
    embedded: EmbeddedHarness, writer: TransactionalWriter
) -> None:
    """It waits for the last stable offset, as a read_committed consumer does."""
    writer.write("a", TP, b"open")
    embedded.send("orders", b"one", b"two")
    with ReadOnlyLog("data", files=embedded.disk) as reader:
        consumers = [embedded.log.consumer(["orders"]), reader.consumer(["orders"])]
        for consumer in consumers:
            consumer.seek("orders", 0, 2)
            assert consumer.poll() == []
            assert consumer.position("orders", 0) == 2
        writer.end("a", commit=False)
        for consumer in consumers:
            assert [record.value for record in consumer.poll()] == [b"two"]


def test_damage_that_may_hide_a_marker_stops_a_reader_without_an_error(
    embedded: EmbeddedHarness, writer: TransactionalWriter
) -> None:
    embedded.send("orders", b"before")
    writer.write("a", TP, b"open")
    writer.end("a", commit=True)
    embedded.send("orders", b"after")
    embedded.log.close()
    disk = embedded.disk
    for name in disk.list_dir("data/orders-0"):
        if name.endswith(".snapshot"):
            disk.remove(f"data/orders-0/{name}")
    path = "data/orders-0/00000000000000000000.log"
    [marker] = [each for each in iter_batches(disk.read(path)) if each.header.is_control]
    disk.write_at(path, marker.position + marker.size_bytes - 1, b"?")
    with ReadOnlyLog("data", files=disk) as reader:
        consumer = reader.consumer(["orders"], on_unreadable="skip")
        assert [record.value for record in consumer.poll()] == [b"before"]
        with pytest.raises(CorruptSegmentError, match="transaction that starts at offset 1"):
            consumer.poll()


def test_a_reader_computes_the_committed_view_for_every_read(
    embedded: EmbeddedHarness, writer: TransactionalWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The view is computed for new transactional records only, and never without any."""
    counted: list[int] = []
    compute = committed.committed_view

    def counting(*given: object) -> committed.CommittedView:
        counted.append(1)
        return compute(*given)  # type: ignore[arg-type]

    monkeypatch.setattr("strandlog.client.readonly.committed_views.committed_view", counting)
    embedded.send("orders", *[b"plain"] * 20)
    with ReadOnlyLog("data", files=embedded.disk) as reader:
        consumer = reader.consumer(["orders"])
        assert len(drain(consumer, 3)) == 20
        assert not counted
        writer.write("a", TP, b"open")
        for _ in range(5):
            assert consumer.poll() == []
        assert len(counted) == 1
        writer.end("a", commit=True)
        assert len(drain(consumer, 3)) == 1
        for _ in range(5):
            assert consumer.poll() == []
        assert len(counted) == 2
        consumer.seek("orders", 0, 0)
        assert len(drain(consumer, 3)) == 21
        assert len(counted) == 2
        assert isinstance(reader.source, ReadOnlySource)


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["write", "write", "plain", "commit", "abort", "reopen", "kill"]),
        st.sampled_from(["a", "b", "c"]),
    ),
    max_size=25,
)


@given(ACTIONS)
def test_consumers_of_a_folder_disagree_with_the_model(actions: list[tuple[str, str]]) -> None:
    """All interleavings of three producers, with restarts and kills of the owner in between."""
    embedded = EmbeddedHarness()
    log = embedded.log
    log.create_topic("orders", 1, SMALL_SEGMENTS)
    writer = TransactionalWriter(log)
    written: list[tuple[bytes, str | None]] = []  # the value, and its transaction
    fates: dict[str, bool] = {}  # whether a transaction was committed, if it has ended
    open_ones: dict[str, str] = {}
    for number, (action, name) in enumerate(actions):
        value = b"%d " % number * 30
        if action == "plain":
            embedded.send("orders", value)
            written.append((value, None))
        elif action == "write":
            writer.write(name, TP, value)
            written.append((value, open_ones.setdefault(name, f"{name}{number}")))
        elif action in ("commit", "abort"):
            writer.end(name, commit=action == "commit")
            if name in open_ones:
                fates[open_ones.pop(name)] = action == "commit"
        else:
            reopened: Callable[[], object] = (
                embedded.reopen if action == "reopen" else embedded.kill
            )
            reopened()
            writer = writer.after_restart(embedded.log)
    expected: list[bytes] = []
    for value, transaction in written:
        if transaction is not None and transaction not in fates:
            break
        if transaction is None or fates[transaction]:
            expected.append(value)
    assert values(embedded) == expected
    embedded.log.close()
