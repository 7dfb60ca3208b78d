"""Arrow rows to raw batches: the same bytes that the builders make of the same records."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples
from tests.unit.record.arrow.column_cases import FOREVER, Row, fast_rows, rows

from strandlog.errors import InvalidRecordError, InvalidTimestampError, MessageTooLargeError
from strandlog.model import TimestampType
from strandlog.record.arrow.columns import (
    decode_columns,
    encode_columns,
    group_rows,
    ready_rows,
    route_rows,
)
from strandlog.record.batch import BatchView
from strandlog.record.batch_header import HEADER_SIZE, stamp
from strandlog.record.builder import BatchBuilder, build_batch
from strandlog.record.codecs import Codec
from strandlog.record.partitioner import murmur2

NOW_MS = 1_750_000_000_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
BYTE_TYPES = (pa.binary(), pa.large_binary())
TEXT_TYPES = (pa.string(), pa.large_string())

timed_rows = rows.map(lambda row: row._replace(timestamp=max(row.timestamp, 0)))


def table_of(given: list[Row], kind: Any = BYTE_TYPES[0]) -> Any:
    return pa.table(
        {
            "key": pa.array([row.key for row in given], kind),
            "value": pa.array([row.value for row in given], kind),
            "timestamp": pa.array([row.timestamp for row in given], pa.timestamp("ms", tz="UTC")),
            "headers": pa.array(
                [[{"key": name, "value": value} for name, value in row.headers] for row in given],
                HEADERS,
            ),
        }
    )


def built(given: list[Row], **options: Any) -> bytearray:
    builder = BatchBuilder(**options)
    for row in given:
        builder.append(*row)
    return builder.build()


# -- the same bytes ---------------------------------------------------------------------------


@examples(0.3)
@given(
    given_rows=st.lists(timed_rows, min_size=1, max_size=8),
    codec=st.sampled_from(list(Codec)),
    kind=st.sampled_from(BYTE_TYPES),
    chosen=st.lists(st.integers(0, 7), min_size=1, max_size=10),
    cut=st.integers(0, 7),
)
def test_the_bytes_are_those_of_the_builder(
    given_rows: list[Row], codec: Codec, kind: Any, chosen: list[int], cut: int
) -> None:
    table = table_of(given_rows, kind)
    picked = [index % len(given_rows) for index in chosen]
    expected = built([given_rows[index] for index in picked], codec=codec)
    (batch,) = encode_columns(table, np.array(picked), timestamp_ms=NOW_MS, codec=codec)
    assert batch == expected
    # A slice, and the same rows in several chunks, are the same rows.
    cut %= len(given_rows)
    chunked = pa.concat_tables([table.slice(0, cut), table.slice(cut)])
    assert encode_columns(chunked, timestamp_ms=NOW_MS, codec=codec) == [
        built(given_rows, codec=codec)
    ]
    assert encode_columns(table.slice(cut), timestamp_ms=NOW_MS, codec=codec) == [
        built(given_rows[cut:], codec=codec)
    ]
    (whole,) = table.slice(cut).to_batches()
    assert encode_columns(whole, timestamp_ms=NOW_MS, codec=codec) == [
        built(given_rows[cut:], codec=codec)
    ]


@examples(0.3)
@given(
    given_rows=st.lists(timed_rows, min_size=1, max_size=20),
    codec=st.sampled_from(list(Codec)),
    max_batch_bytes=st.integers(9_000, 30_000),
    base_sequence=st.sampled_from([-1, 0, 2**31 - 3]),
)
def test_batches_are_cut_at_the_limit_and_lose_nothing(
    given_rows: list[Row], codec: Codec, max_batch_bytes: int, base_sequence: int
) -> None:
    given_rows = [row._replace(key=row.key and row.key[:100]) for row in given_rows]
    batches = encode_columns(
        table_of(given_rows),
        timestamp_ms=NOW_MS,
        codec=codec,
        max_batch_bytes=max_batch_bytes,
        producer_id=9,
        producer_epoch=2,
        base_sequence=base_sequence,
        is_transactional=True,
    )
    done = 0
    for batch in batches:
        assert len(batch) <= max_batch_bytes
        view = BatchView(batch)
        view.check()
        header = view.header
        part = given_rows[done : done + header.record_count]
        sequence = -1 if base_sequence < 0 else (base_sequence + done) % 2**31
        assert batch == built(
            part,
            codec=header.codec,
            producer_id=9,
            producer_epoch=2,
            base_sequence=sequence,
            is_transactional=True,
        )
        done += header.record_count
    assert done == len(given_rows)
    # No batch was cut without need: with the first record of the next one it is over the limit.
    counts = [BatchView(batch).header.record_count for batch in batches]
    for index in range(len(counts) - 1):
        start = sum(counts[:index])
        assert len(built(given_rows[start : start + counts[index] + 1])) > max_batch_bytes


@examples(0.3)
@given(given_rows=st.lists(timed_rows, min_size=1, max_size=8), codec=st.sampled_from(list(Codec)))
def test_records_round_trip(given_rows: list[Row], codec: Codec) -> None:
    (batch,) = encode_columns(table_of(given_rows), timestamp_ms=NOW_MS, codec=codec)
    stamp(batch, 40, 0)
    for index, (row, found) in enumerate(zip(given_rows, fast_rows(bytes(batch)), strict=True)):
        assert found["offset"] == 40 + index
        assert (found["key"], found["value"]) == (row.key, row.value)
        assert found["timestamp"] == row.timestamp * 1000
        assert found["timestampType"] == TimestampType.CREATE_TIME
        assert [(one["key"], one["value"]) for one in found["headers"]] == list(row.headers)


def test_decoded_records_can_be_encoded_again() -> None:
    data = bytes(build_batch(5, [b"a", None, b""], [None, b"k", b""], base_offset=7))
    (batch,) = decode_columns(data, 8, FOREVER, topic="t", partition=0)
    (again,) = encode_columns(batch, timestamp_ms=NOW_MS)
    assert again == build_batch(5, [None, b""], [b"k", b""])


# -- what may come in --------------------------------------------------------------------------


def one_batch(columns: dict[str, Any], **options: Any) -> bytearray:
    (batch,) = encode_columns(pa.table(columns), timestamp_ms=NOW_MS, **options)
    return batch


@pytest.mark.parametrize("kind", [*TEXT_TYPES, pa.string_view()])
def test_text_is_taken_as_utf_8(kind: Any) -> None:
    columns = {"key": pa.array(["ä", None], kind), "value": pa.array(["x" * 50, ""], kind)}
    assert one_batch(columns) == build_batch(NOW_MS, [b"x" * 50, b""], ["ä".encode(), None])


def test_other_forms_of_bytes_are_taken() -> None:
    words = pa.array([b"ab", None, b"ab"])
    expected = build_batch(NOW_MS, [b"ab", None, b"ab"])
    for column in (
        words.dictionary_encode(),
        words.cast(pa.binary_view()),
        pa.array([b"ab", None, b"ab"], pa.binary(2)),
    ):
        assert one_batch({"value": column}) == expected
    assert one_batch({"key": pa.nulls(3), "value": words}) == expected


def test_a_table_without_keys_times_and_headers_is_filled_in() -> None:
    assert one_batch({"value": [b"a", b"b"]}) == build_batch(NOW_MS, [b"a", b"b"])


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_of_any_unit_become_milliseconds(unit: str) -> None:
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    extra = 1 if unit in ("us", "ns") else 0
    times = pa.array([2 * per_second + extra, None], pa.int64()).cast(pa.timestamp(unit))
    batch = one_batch({"value": [b"a", b"b"], "timestamp": times})
    assert batch == build_batch(0, [b"a", b"b"], timestamps=[2000, NOW_MS])


def test_numbers_are_milliseconds() -> None:
    batch = one_batch({"value": [b"a", b"b"], "timestamp": pa.array([7, None], pa.int32())})
    assert batch == build_batch(0, [b"a", b"b"], timestamps=[7, NOW_MS])


def test_a_null_list_is_no_headers() -> None:
    headers = pa.array([None, [{"key": "h", "value": None}], []], HEADERS)
    batch = one_batch({"value": [b"a", b"b", b"c"], "headers": headers})
    assert batch == build_batch(NOW_MS, [b"a", b"b", b"c"], headers=[(), (("h", None),), ()])


def test_no_rows_make_no_batch() -> None:
    table = table_of([])
    assert encode_columns(table, timestamp_ms=NOW_MS) == []
    assert encode_columns(table.slice(0), np.empty(0, np.int64), timestamp_ms=NOW_MS) == []


@pytest.mark.parametrize(
    ("columns", "error", "words"),
    [
        ({"key": [b"a"]}, InvalidRecordError, "column 'value'"),
        ({"value": [1.5]}, InvalidRecordError, "bytes or text, not double"),
        ({"value": [b""], "timestamp": [-1]}, InvalidTimestampError, "row 0 has timestamp -1"),
        ({"value": [b""], "timestamp": [1.5]}, InvalidRecordError, "not double"),
        ({"value": [b""], "headers": [["a"]]}, InvalidRecordError, "list<struct<key"),
        (
            {"value": [b""] * 2, "headers": pa.array([[], [{"value": b"x"}]], HEADERS)},
            InvalidRecordError,
            "row 1 has a header without a key",
        ),
    ],
)
def test_columns_that_are_no_records_are_refused(
    columns: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        one_batch(columns)


def test_offsets_outside_the_content_are_refused() -> None:
    # Arrow itself looks at the first and the last one only.
    for offsets in ([0, 1_000_000, 3], [0, -5, 3], [2, 1, 3]):
        buffers = [None, pa.py_buffer(np.array(offsets, np.int32)), pa.py_buffer(b"abc")]
        with pytest.raises(InvalidRecordError, match="invalid offsets"):
            one_batch({"value": pa.Array.from_buffers(pa.binary(), 2, buffers)})


@pytest.mark.parametrize("rows_", [[5], [-1], [0, 2]])
def test_rows_that_are_not_there_are_refused(rows_: list[int]) -> None:
    with pytest.raises(InvalidRecordError, match="row numbers must be between 0 and 1"):
        one_batch({"value": [b"a", b"b"]}, rows=rows_)


def test_a_record_over_the_limit_is_refused() -> None:
    with pytest.raises(MessageTooLargeError, match=r"max\.message\.bytes"):
        one_batch({"value": [b"x" * 500]}, max_batch_bytes=500)
    noise = np.random.default_rng(1).bytes(500)
    with pytest.raises(MessageTooLargeError, match=r"max\.message\.bytes"):
        one_batch({"value": [noise]}, max_batch_bytes=500, codec=Codec.ZSTD)
    # Packed it fits, and that is what counts.
    assert len(one_batch({"value": [b"x" * 500]}, max_batch_bytes=500, codec=Codec.ZSTD)) < 500


def test_a_batch_that_compression_makes_too_large_is_sent_uncompressed() -> None:
    noise = np.random.default_rng(1).bytes(500)
    plain = one_batch({"value": [noise]})
    for codec in Codec:
        assert one_batch({"value": [noise]}, max_batch_bytes=len(plain), codec=codec) == plain


def test_batches_are_filled_to_the_exact_limit() -> None:
    values = [b"x" * 10] * 4
    size = len(build_batch(NOW_MS, values))
    table = pa.table({"value": values})
    for limit, counts in ((size, [4]), (size - 1, [3, 1]), (HEADER_SIZE + 17, [1] * 4)):
        batches = encode_columns(table, timestamp_ms=NOW_MS, max_batch_bytes=limit)
        assert [BatchView(batch).header.record_count for batch in batches] == counts


# -- partitions --------------------------------------------------------------------------------


@examples(0.3)
@given(
    keys=st.lists(st.none() | st.binary(max_size=40), max_size=20),
    count=st.integers(1, 50),
    start=st.integers(0, 10**6),
)
def test_keys_go_where_every_kafka_client_puts_them(
    keys: list[bytes | None], count: int, start: int
) -> None:
    turn = start
    expected = []
    for key in keys:
        expected.append(turn % count if key is None else murmur2(key) % count)
        turn += key is None
    array = pa.array(keys, pa.binary())
    routed = route_rows(array, count, start)
    assert routed.partitions.tolist() == expected
    assert routed.turns == turn - start
    large = route_rows(array.cast(pa.large_binary()), count, start)
    assert large.partitions.tolist() == expected
    grouped = group_rows(routed.partitions, count)
    for number in range(count):
        rows_ = grouped.rows_of(number).tolist()
        assert rows_ == [row for row, chosen in enumerate(expected) if chosen == number]


def test_a_given_partition_takes_precedence_over_the_key() -> None:
    keys = pa.array([b"a", b"a", None, None], pa.binary())
    given_ = pa.array([2, None, None, 0], pa.int64())
    routed = route_rows(keys, 3, 1, given=given_)
    assert routed.partitions.tolist() == [2, murmur2(b"a") % 3, 1, 0]
    assert routed.turns == 1
    assert route_rows(None, 3, 2, given=given_).partitions.tolist() == [2, 2, 0, 0]
    assert route_rows(None, 3, 5, given=given_, is_sticky=True).partitions.tolist() == [2, 2, 2, 0]
    assert route_rows(None, 3, 2, row_count=4).partitions.tolist() == [2, 0, 1, 2]


@pytest.mark.parametrize("number", [3, -1, -2, 2**40])
def test_a_partition_that_is_not_there_is_refused(number: int) -> None:
    with pytest.raises(InvalidRecordError, match="partition"):
        route_rows(None, 3, given=pa.array([0, number], pa.int64()))
    with pytest.raises(InvalidRecordError, match="partition numbers must be between 0 and 2"):
        group_rows(np.array([0, number]).clip(-5, 5).astype(np.int32), 3)


def test_prepared_rows_can_be_encoded_in_parts() -> None:
    table = pa.table({"value": [b"a", b"b", b"c"]})
    ready = ready_rows(table, NOW_MS)
    assert encode_columns(ready, np.array([2, 0]), timestamp_ms=0) == [
        build_batch(NOW_MS, [b"c", b"a"])
    ]
