"""Raw batches to Arrow: the same records as the decoder that makes an object of each."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.record.arrow.column_cases import (
    FOREVER,
    PARTITION,
    TOPIC,
    Spec,
    fast_rows,
    log_of,
    plain,
    slow_rows,
    specs,
)

from strandlog.errors import CorruptRecordError, DecompressedTooLargeError, InvalidSettingError
from strandlog.model import Record
from strandlog.record.arrow.columns import COLUMNS, COLUMNS_WITHOUT_HEADERS, decode_columns
from strandlog.record.batch import iter_batches
from strandlog.record.batch_header import HEADER_SIZE, end_offset_of, seal
from strandlog.record.builder import build_batch, build_single, filtered_batch
from strandlog.record.codecs import Codec
from strandlog.record.record import encode_record


def decoded(data: bytes | bytearray, start: int = 0, end: int = FOREVER, **options: Any) -> Any:
    return decode_columns(data, start, end, topic=TOPIC, partition=PARTITION, **options)


def numbered(count: int, base_offset: int = 0, codec: Codec = Codec.NONE) -> bytes:
    values = [b"%d" % (base_offset + index) for index in range(count)]
    return bytes(build_batch(1_000, values, base_offset=base_offset, codec=codec))


# -- the same records -------------------------------------------------------------------------


@given(log=st.lists(specs, max_size=6), base_offset=st.sampled_from([0, 7, 2**40]))
def test_every_record_comes_out_as_the_slow_decoder_has_it(
    log: list[Spec], base_offset: int
) -> None:
    data = log_of(log, base_offset)
    assert fast_rows(data) == slow_rows(data)


@given(
    log=st.lists(specs, min_size=1, max_size=4),
    bounds=st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted),
    target_rows=st.integers(1, 5),
    target_bytes=st.sampled_from([1, 100, 10**6]),
)
def test_a_range_inside_batches_is_cut_to_the_record(
    log: list[Spec], bounds: list[int], target_rows: int, target_bytes: int
) -> None:
    data = log_of([spec._replace(gap=min(spec.gap, 2)) for spec in log])
    start, end = bounds
    columns = decoded(
        data, start, end, columns=COLUMNS, target_rows=target_rows, target_bytes=target_bytes
    )
    found = []
    for batch in columns:
        assert 0 < batch.num_rows <= target_rows
        found += plain(batch)
        assert columns.next_offset == found[-1]["offset"] + 1
    assert found == slow_rows(data, start, end)
    assert columns.next_offset == max(start, min(end, end_offset_of(data)))


@given(log=st.lists(specs, min_size=1, max_size=3), cut=st.integers(0, 10**6))
def test_a_batch_that_is_cut_off_is_left_for_the_next_read(log: list[Spec], cut: int) -> None:
    data = log_of(log)
    part = data[: cut % (len(data) + 1)]
    columns = decoded(part, columns=COLUMNS)
    found = list(itertools.chain.from_iterable(map(plain, columns)))
    assert found == slow_rows(part)
    assert columns.next_offset == end_offset_of(part)
    assert found + fast_rows(data, columns.next_offset) == slow_rows(data)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_taken(kind: Any) -> None:
    data = numbered(3) + numbered(2, 3, Codec.ZSTD)
    assert decoded(kind(data)).read_all().column("offset").to_pylist() == [0, 1, 2, 3, 4]


def test_empty_input_has_no_records() -> None:
    columns = decoded(b"", 7)
    assert list(columns) == []
    assert columns.next_offset == 7


def test_decoded_batches_outlive_their_input() -> None:
    data = bytearray(numbered(1000))
    (batch,) = decoded(data)
    before = batch.to_pylist()
    data[:] = bytes(len(data))
    assert batch.to_pylist() == before


# -- the form of the columns -------------------------------------------------------------------


def test_the_schema_is_that_of_sparks_kafka_source() -> None:
    (batch,) = decoded(numbered(1), columns=COLUMNS)
    assert batch.schema == pa.schema(
        [
            pa.field("key", pa.binary(), nullable=True),
            pa.field("value", pa.binary(), nullable=True),
            pa.field("topic", pa.string(), nullable=True),
            pa.field("partition", pa.int32(), nullable=True),
            pa.field("offset", pa.int64(), nullable=True),
            pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=True),
            pa.field("timestampType", pa.int32(), nullable=True),
            pa.field(
                "headers",
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
                nullable=True,
            ),
        ]
    )
    (batch,) = decoded(numbered(1))
    assert tuple(batch.schema.names) == COLUMNS_WITHOUT_HEADERS


def test_chosen_columns_come_in_the_order_asked_for() -> None:
    columns = decoded(numbered(3, 10), columns=("offset", "value"))
    (batch,) = columns
    assert batch.schema == columns.schema
    assert batch.to_pydict() == {"offset": [10, 11, 12], "value": [b"10", b"11", b"12"]}


@pytest.mark.parametrize("columns", [(), ("value", "value"), ("value", "colour")])
def test_columns_that_are_not_there_are_refused(columns: tuple[str, ...]) -> None:
    with pytest.raises(InvalidSettingError, match="key, value, topic"):
        decoded(b"", columns=columns)


def test_columns_without_nulls_have_no_bitmap() -> None:
    (batch,) = decoded(numbered(9))
    for name in ("value", "offset", "timestamp", "partition", "timestampType"):
        assert batch.column(name).buffers()[0] is None
    assert batch.column("key").null_count == 9


def test_small_batches_share_a_record_batch() -> None:
    data = b"".join(numbered(1, offset) for offset in range(300))
    assert [batch.num_rows for batch in decoded(data)] == [300]
    assert [batch.num_rows for batch in decoded(data, target_rows=128)] == [128, 128, 44]
    sizes = [batch.num_rows for batch in decoded(data, target_bytes=1000)]
    assert sum(sizes) == 300
    assert len(sizes) > 2


def test_a_time_that_microseconds_cannot_hold_is_null() -> None:
    rows = [(-1, None), (0, 0), (2**63 // 1000, (2**63 // 1000) * 1000), (2**63 // 1000 + 1, None)]
    data = bytes(build_batch(0, [b""] * 4, timestamps=[given for given, _ in rows]))
    times = decoded(data).read_all().column("timestamp").cast(pa.int64()).to_pylist()
    assert times == [expected for _, expected in rows]
    in_ms = decoded(data, timestamp_unit="ms").read_all().column("timestamp")
    assert in_ms.cast(pa.int64()).to_pylist() == [None, *(given for given, _ in rows[1:])]


def test_header_names_that_are_not_utf_8_get_replacement_characters_as_in_java() -> None:
    data = bytes(build_single(5, b"v", headers=(("\udcff\udcfeok", b"1"), ("ä", None))))
    (row,) = fast_rows(data)
    assert row["headers"] == [
        {"key": "\ufffd\ufffdok", "value": b"1"},
        {"key": "ä", "value": None},
    ]


# -- damage ------------------------------------------------------------------------------------


def sealed(payload: bytes, count: int, last_offset_delta: int, base_offset: int = 0) -> bytes:
    """A batch around any bytes, with a checksum that is right."""
    batch = bytearray(HEADER_SIZE) + payload
    seal(batch, base_offset, 0, 0, last_offset_delta, 0, 0, -1, -1, -1, count)
    return bytes(batch)


def test_records_before_the_damage_are_returned_first() -> None:
    bad = sealed(encode_record(0, 0, b"k", b"v") + b"\x7e", 2, 1, base_offset=5)
    data = numbered(5) + bad + numbered(3, 7)
    columns = decoded(data)
    found = []
    with pytest.raises(CorruptRecordError, match="batch at offset 5: record 1 claims 63"):
        for batch in columns:
            found += batch.column("offset").to_pylist()
    assert found == [0, 1, 2, 3, 4]
    assert columns.next_offset == 5


def test_a_wrong_checksum_is_found_before_the_bytes_are_used() -> None:
    flipped = bytearray(numbered(3, 3))
    flipped[-2] ^= 1
    columns = decoded(numbered(3) + bytes(flipped))
    batches = iter(columns)
    assert next(batches).num_rows == 3
    with pytest.raises(CorruptRecordError, match="checksum"):
        next(batches)
    assert columns.next_offset == 3


@pytest.mark.parametrize(
    ("payload", "count", "last_delta"),
    [
        (b"", 1, 0),
        (encode_record(0, 0, b"", b""), 2**31 - 1, 0),
        (encode_record(0, 0, b"", b""), -1, 0),
        (encode_record(0, 0, b"", b""), 1, -5),
        (encode_record(0, 1, b"", b""), 1, 0),
        (encode_record(0, -1, b"", b""), 1, 3),
        (encode_record(0, 0, b"", b"") * 2, 2, 5),
        (encode_record(0, 0, b"", b"") + b"\0", 1, 0),
        (b"\x0c\0\0\0\x80\x80\x80", 1, 0),  # varints that never end
        (b"\x16" + b"\0" + b"\xff" * 9 + b"\x02\0\0\0", 1, 0),  # more than 64 bits
        (b"\x0e\0\0\0\xfe\x7f\0\0", 1, 0),  # a key over the end
        (b"\x0c\0\0\0\x05\0\0", 1, 0),  # a size of -3
        (b"\x0c\0\0\0\0\0\x7e", 1, 0),  # 63 headers in no bytes
        (b"\x10\0\0\0\0\0\x02\x01\x01", 1, 0),  # a header without a name
        (b"\x0e\0\0\0\0\0\0\0", 1, 0),  # a byte after the headers
    ],
)
def test_bytes_that_contradict_themselves_are_refused(
    payload: bytes, count: int, last_delta: int
) -> None:
    with pytest.raises(CorruptRecordError, match="batch at offset 0"):
        fast_rows(sealed(payload, count, last_delta))


def test_offsets_that_run_over_64_bits_are_refused() -> None:
    data = sealed(encode_record(0, 9, b"", b""), 1, 9, base_offset=2**63 - 5)
    with pytest.raises(CorruptRecordError, match="has invalid offsets"):
        list(decode_columns(data, 0, 2**63 - 1, topic=TOPIC, partition=0))


def test_a_batch_that_unpacks_to_too_much_is_refused() -> None:
    data = bytes(build_batch(0, [bytes(1000)] * 100, codec=Codec.ZSTD))
    assert len(decoded(data, limit_bytes=200_000).read_all()) == 100
    with pytest.raises(DecompressedTooLargeError):
        decoded(data, limit_bytes=50_000).read_all()


def test_an_emptied_batch_moves_the_next_offset() -> None:
    full = numbered(10, 20, Codec.LZ4)
    (view,) = iter_batches(full)
    kept: list[Record] = []
    columns = decoded(bytes(filtered_batch(view.header, kept)), 20)
    assert list(columns) == []
    assert columns.next_offset == 30


def test_bytes_after_the_end_offset_are_ignored() -> None:
    columns = decoded(numbered(5) + bytes(sealed(b"rubbish", 1, 0, base_offset=9)), 0, 9)
    assert columns.read_all().num_rows == 5
    assert columns.next_offset == 9
