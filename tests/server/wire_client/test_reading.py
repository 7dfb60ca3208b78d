"""Reading ranges from a broker: gaps, transactions, codecs, sizes, out-of-range offsets."""

from __future__ import annotations

import pytest
from tests.server.wire_client.records import (
    NOW_MS,
    batch_of,
    end_txn,
    numbered,
    values_of,
    visible,
    write,
)
from tests.support.server import RunningBroker

from strandlog.client.wire.client import WireClient
from strandlog.client.wire.fetch import cut_at, whole_batches
from strandlog.errors import (
    CorruptRecordError,
    OffsetOutOfRangeError,
    TopicNotFoundError,
    UnreachableError,
)
from strandlog.model import IsolationLevel, TimestampOffset, TopicPartition
from strandlog.record.batch import iter_batches
from strandlog.record.codecs import Codec


def test_a_range_is_read_to_the_offset(client: WireClient, tp: TopicPartition) -> None:
    write(client, tp, *(batch_of(numbered(first, 10)) for first in range(0, 100, 10)))
    for start, end in ((0, 100), (0, 1), (3, 47), (99, 100), (50, 50)):
        pieces = client.read_range(tp, start, end)
        found = visible(pieces, start, end)
        assert [record.offset for record in found] == list(range(start, end))
        assert [record.value for record in found] == numbered(start, end - start)


def test_a_piece_has_no_batch_that_starts_after_the_range(
    client: WireClient, tp: TopicPartition
) -> None:
    write(client, tp, *(batch_of(numbered(first, 10)) for first in range(0, 100, 10)))
    [piece] = client.read_range(tp, 15, 42)
    bases = [batch.header.base_offset for batch in iter_batches(piece.data)]
    assert bases == [10, 20, 30, 40]


@pytest.mark.parametrize("codec", list(Codec))
def test_packed_batches_come_as_they_were_sent(
    client: WireClient, tp: TopicPartition, codec: Codec
) -> None:
    sent = batch_of(numbered(0, 500), codec=codec)
    write(client, tp, sent)
    [piece] = client.read_range(tp, 0, 500)
    assert piece.data[21:] == sent[21:]  # behind what a broker stamps
    assert values_of(client, tp) == numbered(0, 500)


def test_a_large_range_comes_in_many_pieces_that_belong_together(
    broker: RunningBroker, client: WireClient, tp: TopicPartition
) -> None:
    sender = client.sender()
    for first in range(0, 30_000, 100):
        sender.send(tp, batch_of(numbered(first, 100, size=1000)))
    assert sender.flush()[tp].error is None
    with WireClient(broker.address, {"max.partition.fetch.bytes": "1MiB"}) as small:
        position, offsets, count = 0, 0, 0
        for piece in small.read_range(tp, 0, 30_000):
            headers = [batch.header for batch in iter_batches(piece.data)]
            assert headers[0].base_offset == position
            assert sum(header.size_bytes for header in headers) == len(piece.data)
            position = headers[-1].next_offset
            offsets += sum(header.record_count for header in headers)
            count += 1
        assert (position, offsets) == (30_000, 30_000)
        assert count > 20


def test_a_batch_that_is_larger_than_a_piece_comes_whole(
    broker: RunningBroker, client: WireClient, tp: TopicPartition
) -> None:
    write(client, tp, batch_of([b"x" * 2_000_000]), batch_of([b"y" * 2_000_000]))
    with WireClient(broker.address, {"max.partition.fetch.bytes": "10000"}) as small:
        assert values_of(small, tp) == [b"x" * 2_000_000, b"y" * 2_000_000]


def test_a_small_range_of_a_large_log_does_not_fetch_all_of_it(
    client: WireClient, tp: TopicPartition
) -> None:
    sender = client.sender()
    for first in range(0, 8000, 10):
        sender.send(tp, batch_of(numbered(first, 10, size=1000)))
    assert sender.flush()[tp].error is None
    pieces = list(client.read_range(tp, 0, 1500))
    assert pieces[-1].next_offset < 2200
    assert len(visible(pieces, 0, 1500)) == 1500


def test_a_reader_that_stops_half_way_leaves_the_client_usable(
    client: WireClient, tp: TopicPartition
) -> None:
    sender = client.sender()
    for first in range(0, 8000, 100):
        sender.send(tp, batch_of(numbered(first, 100, size=1000)))
    sender.flush()
    for _ in range(3):
        reading = client.read_range(tp, 0, 8000)
        next(reading)
        reading.close()
        assert client.latest_offsets([tp]) == {tp: 8000}
    assert len(visible(client.read_range(tp, 7990, 8000), 7990, 8000)) == 10


def test_two_ranges_are_read_side_by_side_while_batches_are_written(
    client: WireClient, tp: TopicPartition
) -> None:
    other = tp._replace(partition=1)
    for each in (tp, other):
        sender = client.sender()
        for first in range(0, 6000, 100):
            sender.send(each, batch_of(numbered(first, 100, size=1000)))
        sender.flush()
    third = tp._replace(partition=2)
    counts = [0, 0]
    for pieces in zip(
        client.read_range(tp, 0, 6000), client.read_range(other, 0, 6000), strict=True
    ):
        write(client, third, batch_of([b"x" * 500_000]))
        for number, piece in enumerate(pieces):
            counts[number] += sum(b.header.record_count for b in iter_batches(piece.data))
    assert counts == [6000, 6000]


def test_aborted_transactions_are_returned_and_open_ones_are_not_read(
    client: WireClient, tp: TopicPartition
) -> None:
    committing, aborting = (client.init_producer_id(f"{tp}-{name}") for name in ("c", "a"))
    for name, producer in (("c", committing), ("a", aborting)):
        client.add_partitions_to_txn(f"{tp}-{name}", *producer, [tp])
    sequences = {committing: 0, aborting: 0}
    for first in range(0, 100, 10):
        name, producer = ("c", committing) if first % 20 else ("a", aborting)
        write(
            client,
            tp,
            batch_of(numbered(first, 10), producer, sequences[producer], is_transactional=True),
            name=f"{tp}-{name}",
        )
        sequences[producer] += 10
    assert client.latest_offsets([tp]) == {tp: 0}
    assert client.latest_offsets([tp], IsolationLevel.READ_UNCOMMITTED) == {tp: 100}
    end_txn(client, f"{tp}-a", aborting, commit=False)
    assert client.latest_offsets([tp]) == {tp: 10}
    end_txn(client, f"{tp}-c", committing, commit=True)
    end = client.latest_offsets([tp])[tp]
    assert end == 102  # two markers
    expected = [v for first in range(10, 100, 20) for v in numbered(first, 10)]
    assert values_of(client, tp) == expected
    for start, stop in ((0, 35), (35, 77), (77, 102), (100, 102), (101, 102)):
        found = visible(client.read_range(tp, start, stop), start, stop)
        assert [r.value for r in found] == [v for v in expected if start <= int(v) < stop], (
            "every part of a range can be read by itself"
        )
    everything = client.read_range(tp, 0, end, IsolationLevel.READ_UNCOMMITTED)
    assert sum(len(piece.aborted) for piece in everything) == 0


def test_a_range_behind_an_open_transaction_is_given_up_with_the_reason(
    broker: RunningBroker, client: WireClient, tp: TopicPartition
) -> None:
    producer = client.init_producer_id(f"{tp}")
    client.add_partitions_to_txn(f"{tp}", *producer, [tp])
    write(client, tp, batch_of([b"before"]))
    write(client, tp, batch_of([b"open"], producer, is_transactional=True), name=f"{tp}")
    with WireClient(broker.address, {"default.api.timeout.ms": "700"}) as hasty:
        reading = hasty.read_range(tp, 0, 2)
        assert [r.value for r in visible([next(reading)], 0, 2)] == [b"before"]
        with pytest.raises(UnreachableError, match=r"up to offset 1.*transaction"):
            next(reading)
    end_txn(client, f"{tp}", producer, commit=False)


def test_an_offset_that_is_not_there_is_an_error_with_the_range(
    client: WireClient, tp: TopicPartition
) -> None:
    write(client, tp, batch_of(numbered(0, 5)))
    with pytest.raises(OffsetOutOfRangeError) as caught:
        client.fetch(tp, 77)
    assert (caught.value.start_offset, caught.value.end_offset) == (0, 5)
    with pytest.raises(OffsetOutOfRangeError, match=r"\[0, 5\)"):
        list(client.read_range(tp, 77, 80))


def test_a_fetch_without_records_waits_and_returns_empty(
    client: WireClient, tp: TopicPartition
) -> None:
    piece = client.fetch(tp, 0, max_wait_ms=50)
    assert (len(piece.data), piece.next_offset, piece.high_watermark) == (0, 0, 0)
    write(client, tp, batch_of([b"x"]))
    piece = client.fetch(tp, 0, max_wait_ms=10_000)
    assert (piece.next_offset, piece.last_stable_offset, piece.log_start_offset) == (1, 1, 0)


def test_offsets_by_time(client: WireClient, tp: TopicPartition) -> None:
    for hour in range(3):
        write(client, tp, batch_of(numbered(0, 10), timestamp_ms=NOW_MS + hour * 3_600_000))
    other = tp._replace(partition=1)
    found = client.offsets_for_times({tp: NOW_MS + 1, other: NOW_MS})
    assert found == {tp: TimestampOffset(NOW_MS + 3_600_000, 10), other: None}
    assert client.offsets_for_times({tp: NOW_MS + 10**9}) == {tp: None}
    assert client.earliest_offsets([tp, other]) == {tp: 0, other: 0}
    assert client.latest_offsets([tp, other]) == {tp: 30, other: 0}


def test_topics_and_partitions_that_are_not_there_are_named(
    client: WireClient, tp: TopicPartition
) -> None:
    with pytest.raises(TopicNotFoundError, match="'nowhere'"):
        client.partitions([tp.topic, "nowhere"])
    with pytest.raises(TopicNotFoundError, match="no partition 9"):
        client.fetch(tp._replace(partition=9), 0)
    with pytest.raises(TopicNotFoundError, match="'nowhere'"):
        client.latest_offsets([TopicPartition("nowhere", 0)])


def test_the_whole_batches_of_a_cut_answer_are_found() -> None:
    one, two = (bytearray(batch_of(numbered(0, count))) for count in (3, 4))
    two[0:8] = (7).to_bytes(8)
    data = memoryview(bytes(one + two))
    assert whole_batches(data, 0) == (len(data), 11)
    for end in range(len(one), len(data)):
        assert whole_batches(data[:end], 0) == (len(one), 3)
    for end in range(len(one)):
        assert whole_batches(data[:end], 5) == (0, 5)
    damaged = bytearray(data)
    damaged[8:12] = (-1).to_bytes(4, signed=True)
    with pytest.raises(CorruptRecordError):
        whole_batches(memoryview(damaged), 0)


def test_a_piece_is_cut_between_batches(client: WireClient, tp: TopicPartition) -> None:
    write(client, tp, batch_of(numbered(0, 5)), batch_of(numbered(5, 5)))
    piece = client.fetch(tp, 0)
    assert piece.next_offset == 10
    first = next(iter_batches(piece.data)).size_bytes
    assert [len(cut_at(piece, end).data) for end in (0, 1, 5, 6, 10, 99)] == [
        0,
        first,
        first,
        len(piece.data),
        len(piece.data),
        len(piece.data),
    ]
