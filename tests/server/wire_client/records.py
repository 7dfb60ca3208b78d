"""Decodes raw pieces and builds batches, for the tests of the wire client."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.support.waiting import eventually

from strandlog.client.wire.client import WireClient
from strandlog.client.wire.coordinator import TransactionDescription
from strandlog.client.wire.fetch import RawFetch
from strandlog.errors import StrandlogError
from strandlog.model import ProducerIdentity, Record, TopicPartition
from strandlog.record.batch import iter_batches
from strandlog.record.builder import build_batch
from strandlog.record.codecs import Codec
from strandlog.record.control import is_abort_marker

NOW_MS = 1_700_000_000_000


def numbered(first: int, count: int, size: int = 20) -> list[bytes]:
    """Values that tell which ones they are."""
    return [b"%0*d" % (size, number) for number in range(first, first + count)]


def batch_of(
    values: Sequence[bytes],
    producer: ProducerIdentity | None = None,
    sequence: int = 0,
    *,
    codec: Codec = Codec.NONE,
    is_transactional: bool = False,
    timestamp_ms: int = NOW_MS,
) -> bytearray:
    if producer is None:
        return build_batch(timestamp_ms, values, codec=codec)
    return build_batch(
        timestamp_ms,
        values,
        codec=codec,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
        is_transactional=is_transactional,
    )


def write(
    client: WireClient, tp: TopicPartition, *batches: bytes | bytearray, name: str | None = None
) -> int:
    """Write, and be sure of it; gives the base offset."""
    result = client.produce({tp: batches}, transactional_id=name)[tp]
    if result.error is not None:
        raise result.error
    assert result.batch_count == len(batches)
    return result.base_offset


def visible(pieces: Iterable[RawFetch], start: int, end: int) -> list[Record]:
    """The records of [start, end) that were not aborted, by what the pieces say alone."""
    found: list[Record] = []
    for piece in pieces:
        begun = sorted(piece.aborted, key=lambda pair: pair[1])
        aborted: set[int] = set()
        for batch in iter_batches(piece.data):
            batch.check()
            header = batch.header
            while begun and begun[0][1] <= header.last_offset:
                aborted.add(begun.pop(0)[0])
            if header.is_control:
                if is_abort_marker(batch):
                    aborted.discard(header.producer_id)
                continue
            if header.is_transactional and header.producer_id in aborted:
                continue
            found += [
                record
                for record in batch.records(piece.tp.topic, piece.tp.partition)
                if start <= record.offset < end
            ]
    return found


def values_of(
    client: WireClient, tp: TopicPartition, start: int = 0, end: int | None = None
) -> list[bytes | None]:
    """All values that a reader of committed records sees."""
    end = client.latest_offsets([tp])[tp] if end is None else end
    return [record.value for record in visible(client.read_range(tp, start, end), start, end)]


def error_in(client: WireClient, tp: TopicPartition, batch: bytes | bytearray) -> StrandlogError:
    """Why a batch was not written."""
    error = client.produce({tp: [batch]})[tp].error
    assert error is not None
    return error


def wait_until_ended(client: WireClient, name: str) -> None:
    """Kafka answers before the markers are written; who asks at once sees what was before."""

    def is_complete() -> bool:
        found = client.describe_transactions([name])[name]
        assert isinstance(found, TransactionDescription), found
        return found.state.startswith("Complete")

    eventually(is_complete, f"the end of transaction {name}")


def end_txn(client: WireClient, name: str, producer: ProducerIdentity, *, commit: bool) -> None:
    """End a transaction, and wait until readers see it."""
    client.end_txn(name, *producer, commit=commit)
    wait_until_ended(client, name)
