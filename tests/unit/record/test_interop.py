"""Both ways against the codecs of kafka-python and aiokafka, with all five codecs.

kafka-python is lent aiokafka's snappy, lz4 and zstd, whose packages it would need otherwise; its
reading and writing of batches is what is compared here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import kafka.codec
import kafka.record.default_records as kafka_python
import pytest
from aiokafka import codec as aiokafka_codec
from aiokafka.record import default_records as aiokafka
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples

from strandlog.model import Headers, Record, TimestampType
from strandlog.record.batch import BatchView
from strandlog.record.batch_header import BatchHeader, stamp
from strandlog.record.builder import BatchBuilder, build_batch, build_single, filtered_batch
from strandlog.record.codecs import Codec
from strandlog.record.control import ControlType, control_batch

Row = tuple[int, bytes | None, bytes | None, Headers]

contents = st.one_of(st.none(), st.binary(max_size=12), st.binary(min_size=120, max_size=200))
headers = st.lists(st.tuples(st.text(max_size=6), st.none() | st.binary(max_size=6)), max_size=3)
rows = st.tuples(
    st.integers(0, 2**45) | st.integers(1_700_000_000_000, 1_700_000_000_300),
    contents,
    contents,
    st.one_of(st.just(()), headers.map(tuple)),
)
batches = st.lists(rows, min_size=1, max_size=8)
codecs = st.sampled_from(list(Codec))

READERS: dict[str, Any] = {
    "kafka-python": kafka_python.DefaultRecordBatch,
    "aiokafka": aiokafka.DefaultRecordBatch,
    "aiokafka without C": aiokafka._DefaultRecordBatchPy,
}
WRITERS: dict[str, Any] = {
    "kafka-python": kafka_python.DefaultRecordBatchBuilder,
    "aiokafka": aiokafka.DefaultRecordBatchBuilder,
    "aiokafka without C": aiokafka._DefaultRecordBatchBuilderPy,
}


@pytest.fixture(scope="module", autouse=True)
def _kafka_python_knows_every_codec() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("snappy", "lz4", "zstd"):
            patch.setattr(kafka.codec, f"has_{name}", lambda: True)
            for verb in ("encode", "decode"):
                function = getattr(aiokafka_codec, f"{name}_{verb}")
                patch.setattr(kafka_python, f"{name}_{verb}", function)
        yield


def read_by(reader: str, batch: bytes | bytearray) -> list[tuple[Any, ...]]:
    """What the other library sees, as (offset, timestamp, key, value, headers)."""
    theirs = READERS[reader](bytes(batch))
    assert theirs.validate_crc()
    return [
        (one.offset, one.timestamp, one.key, one.value, tuple(map(tuple, one.headers)))
        for one in theirs
    ]


def ours(batch: bytes | bytearray) -> list[tuple[Any, ...]]:
    view = BatchView(batch)
    view.check()
    return [record[2:] for record in view.records("t", 0)]


def expected(batch: list[Row], base_offset: int = 0) -> list[tuple[Any, ...]]:
    return [(base_offset + index, *row) for index, row in enumerate(batch)]


@pytest.mark.parametrize("reader", READERS)
@examples(0.3)
@given(batch=batches, codec=codecs, base_offset=st.integers(0, 2**50))
def test_they_read_what_we_write(
    reader: str, batch: list[Row], codec: Codec, base_offset: int
) -> None:
    builder = BatchBuilder(codec, base_offset=base_offset)
    for timestamp, key, value, extra in batch:
        builder.append(timestamp, key, value, extra)
    built = builder.build()
    assert read_by(reader, built) == expected(batch, base_offset)
    assert ours(built) == expected(batch, base_offset)
    timestamps, keys, values, extras = (list(column) for column in zip(*batch, strict=True))
    in_bulk = build_batch(
        0, values, keys, extras, codec=codec, timestamps=timestamps, base_offset=base_offset
    )
    assert in_bulk == built


@pytest.mark.parametrize("writer", WRITERS)
@examples(0.3)
@given(batch=batches, codec=codecs, base_offset=st.integers(0, 2**50))
def test_we_read_what_they_write(
    writer: str, batch: list[Row], codec: Codec, base_offset: int
) -> None:
    builder = WRITERS[writer](2, int(codec), 0, -1, -1, -1, 1 << 30)
    for index, (timestamp, key, value, extra) in enumerate(batch):
        builder.append(index, timestamp, key, value, list(extra))
    built = bytearray(builder.build())
    stamp(built, base_offset, 3)
    assert ours(built) == expected(batch, base_offset)
    header = BatchView(built).header
    assert header.record_count == header.last_offset_delta + 1 == len(batch)
    assert header.max_timestamp == max(row[0] for row in batch)
    # They leave a batch unpacked where packing would not make it smaller; we never do.
    if header.codec is codec is Codec.NONE:
        again = BatchBuilder(codec, base_offset=base_offset, leader_epoch=3)
        for timestamp, key, value, extra in batch:
            again.append(timestamp, key, value, extra)
        assert again.build() == built


@pytest.mark.slow
@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("codec", list(Codec))
def test_we_read_long_batches_that_they_write(writer: str, codec: Codec) -> None:
    """Long enough for runs, and for offsets and times of every width."""
    batch: list[Row] = [(10**12 + i // 5, b"k%04d" % i, b"v" * 100, ()) for i in range(9000)]
    builder = WRITERS[writer](2, int(codec), 0, -1, -1, -1, 1 << 30)
    for index, (timestamp, key, value, _) in enumerate(batch):
        builder.append(index, timestamp, key, value, [])
    built = builder.build()
    assert BatchView(built).header.codec is codec
    assert ours(built) == expected(batch)
    timestamps, keys, values, _ = zip(*batch, strict=True)
    again = build_batch(0, values, keys, codec=codec, timestamps=timestamps)
    assert read_by(writer, again) == expected(batch)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("codec", list(Codec))
def test_producer_fields_and_bits(reader: str, codec: Codec) -> None:
    built = build_single(
        5,
        b"v",
        codec=codec,
        base_offset=7,
        producer_id=2**40,
        producer_epoch=12,
        base_sequence=2**31 - 1,
        is_transactional=True,
    )
    theirs = READERS[reader](bytes(built))
    assert theirs.is_transactional
    assert not theirs.is_control_batch
    assert theirs.compression_type == codec
    assert theirs.producer_id == 2**40
    assert theirs.producer_epoch == 12
    assert theirs.base_sequence == 2**31 - 1
    assert theirs.next_offset == 8


@pytest.mark.parametrize("writer", WRITERS)
def test_we_read_their_producer_fields(writer: str) -> None:
    builder = WRITERS[writer](2, 0, 1, 2**40, 12, 345, 1 << 20)
    builder.append(0, 5, b"k", b"v", [])
    header: BatchHeader = BatchView(builder.build()).header
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch) == (2**40, 12)
    assert header.base_sequence == header.last_sequence == 345


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("codec", list(Codec))
def test_append_time(reader: str, codec: Codec) -> None:
    built = build_batch(
        0, [b"a", None, b""], codec=codec, timestamps=[50, 10, 90], append_time_ms=77
    )
    want = [(0, 77, None, b"a", ()), (1, 77, None, None, ()), (2, 77, None, b"", ())]
    assert BatchView(built).header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert ours(built) == want
    assert read_by(reader, built) == want


@pytest.mark.parametrize("kind", list(ControlType))
def test_they_read_our_control_batches(kind: ControlType) -> None:
    built = control_batch(kind, 9, 4, 1000, coordinator_epoch=6)
    for reader in READERS.values():
        theirs = reader(bytes(built))
        assert theirs.validate_crc()
        assert theirs.is_control_batch
        assert theirs.is_transactional
        assert (theirs.producer_id, theirs.producer_epoch, theirs.base_sequence) == (9, 4, -1)
    (record,) = kafka_python.DefaultRecordBatch(bytes(built))
    assert (record.version, record.abort, record.commit) == (0, kind == 0, kind == 1)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("horizon", [None, 10_000])
def test_they_read_what_compaction_leaves(reader: str, codec: Codec, horizon: int | None) -> None:
    values = [b"v%d" % index for index in range(10)]
    view = BatchView(build_batch(5000, values, values, codec=codec, base_offset=40))
    kept: list[Record] = view.records("t", 0)[2:9:3]
    left = filtered_batch(view.header, kept, delete_horizon_ms=horizon)
    assert read_by(reader, left) == [record[2:] for record in kept]
    nothing = filtered_batch(view.header, [], delete_horizon_ms=horizon)
    assert read_by(reader, nothing) == []
