"""Every layout that Arrow has for bytes, text and lists gives the same records."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.record.arrow.column_cases import Row

from strandlog.client.arrow.table import items_of
from strandlog.config.limits.records import MAX_RECORD_HEADERS
from strandlog.errors import InvalidRecordError
from strandlog.record.arrow.columns import encode_columns, ready_rows, route_rows
from strandlog.record.builder import BatchBuilder

NOW_MS = 1_750_000_000_000
HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
WIDE_HEADER = pa.struct([("key", pa.large_string()), ("value", pa.large_binary())])
PLAIN_BYTES = (pa.binary(), pa.large_binary(), pa.string(), pa.large_string())


def read_only(array: Any) -> Any:
    """The array over memory that must not be written, as other libraries hand it out."""
    if array.type.num_fields:
        return array
    buffers = [
        None if each is None else pa.py_buffer(each.to_pybytes()) for each in array.buffers()
    ]
    copied = pa.Array.from_buffers(array.type, len(array), buffers, offset=array.offset)
    assert not any(each.is_mutable for each in copied.buffers() if each is not None)
    return copied


def dictionary(array: Any) -> Any:
    return array.dictionary_encode()


def fixed(array: Any) -> Any:
    sizes = {len(each) for each in array.to_pylist() if each is not None}
    return array.cast(pa.binary(sizes.pop())) if len(sizes) == 1 and 0 not in sizes else array


def plain(kind: Any) -> Callable[[Any], Any]:
    return lambda array: read_only(array.cast(kind))


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    **{str(kind): plain(kind) for kind in PLAIN_BYTES},
    "binary_view": lambda array: array.cast(pa.binary_view()),
    "string_view": lambda array: array.cast(pa.string()).cast(pa.string_view()),
    "fixed": fixed,
    "dictionary": dictionary,
    "dictionary of text": lambda array: array.cast(pa.large_string()).dictionary_encode(),
}
LISTS: dict[str, Callable[[Any], Any]] = {
    "list": lambda array: array,
    "large_list": lambda array: array.cast(pa.large_list(WIDE_HEADER)),
}

texts = st.none() | st.text(max_size=8).map(str.encode)
names = st.text(max_size=4)
rows = st.builds(
    Row,
    st.just(NOW_MS),
    texts,
    texts,
    st.lists(st.tuples(names, texts), max_size=2).map(tuple),
)


def laid_out(values: list[Any], layout: Callable[[Any], Any], kind: Any, cuts: list[int]) -> Any:
    """The values in chunks, each a slice of a longer array."""
    bounds = sorted({0, len(values), *(min(cut, len(values)) for cut in cuts)})
    chunks = []
    for start, end in itertools.pairwise(bounds):
        padded = pa.array([values[0], *values[start:end], values[-1]], kind)
        chunks.append(layout(padded.slice(1, end - start)))
    if len({chunk.type for chunk in chunks}) > 1:  # not all chunks are of one fixed size
        chunks = [chunk.cast(kind) for chunk in chunks]
    return pa.chunked_array(chunks)


@given(
    given_rows=st.lists(rows, min_size=1, max_size=8),
    key_layout=st.sampled_from(list(LAYOUTS)),
    value_layout=st.sampled_from(list(LAYOUTS)),
    list_layout=st.sampled_from(list(LISTS)),
    cuts=st.lists(st.integers(0, 8), max_size=3),
)
def test_every_layout_gives_the_bytes_of_the_builder(
    given_rows: list[Row], key_layout: str, value_layout: str, list_layout: str, cuts: list[int]
) -> None:
    headers = [[{"key": name, "value": value} for name, value in row.headers] for row in given_rows]
    table = pa.table(
        {
            "key": laid_out(
                [row.key for row in given_rows], LAYOUTS[key_layout], pa.binary(), cuts
            ),
            "value": laid_out(
                [row.value for row in given_rows], LAYOUTS[value_layout], pa.binary(), cuts
            ),
            "headers": laid_out(headers, LISTS[list_layout], pa.list_(HEADER), cuts),
        }
    )
    builder = BatchBuilder()
    for row in given_rows:
        builder.append(*row)
    (batch,) = encode_columns(ready_rows(table, NOW_MS), None, timestamp_ms=NOW_MS)
    assert batch == builder.build()
    plain_keys = pa.array([row.key for row in given_rows], pa.binary())
    routed = route_rows(table.column("key"), 7, 3)
    assert routed.partitions.tolist() == route_rows(plain_keys, 7, 3).partitions.tolist()
    items = list(items_of(table))
    assert [(item["key"], item["value"]) for item in items] == [
        (row.key, row.value) for row in given_rows
    ]


@pytest.mark.parametrize("kind", [pa.large_string(), pa.large_binary()])
def test_64_bit_offsets_in_read_only_buffers(kind: Any) -> None:
    array = read_only(pa.array([b"a", None, b"", b"ccc"]).cast(kind))
    table = pa.table({"key": array, "value": array})
    (batch,) = encode_columns(ready_rows(table, NOW_MS), None, timestamp_ms=NOW_MS)
    builder = BatchBuilder()
    for value in (b"a", None, b"", b"ccc"):
        builder.append(NOW_MS, value, value, ())
    assert batch == builder.build()


def test_headers_in_lists_of_a_fixed_size() -> None:
    lists = pa.array([[{"key": "a", "value": b"1"}], None], pa.list_(HEADER, 1))
    table = pa.table({"value": [b"x", b"y"], "headers": lists})
    (batch,) = encode_columns(ready_rows(table, NOW_MS), None, timestamp_ms=NOW_MS)
    builder = BatchBuilder()
    builder.append(NOW_MS, None, b"x", (("a", b"1"),))
    builder.append(NOW_MS, None, b"y", ())
    assert batch == builder.build()


def test_a_row_with_more_headers_than_readers_accept_is_rejected() -> None:
    names = pa.array(["n"] * (MAX_RECORD_HEADERS + 1))
    pairs = pa.StructArray.from_arrays([names, names.cast(pa.binary())], fields=list(HEADER))
    most = pa.ListArray.from_arrays(pa.array([0, 1, MAX_RECORD_HEADERS + 1], pa.int32()), pairs)
    values = [b"x", b"y"]
    ready_rows(pa.table({"value": values, "headers": most}), NOW_MS)
    more = pa.ListArray.from_arrays(pa.array([0, 0, MAX_RECORD_HEADERS + 1], pa.int32()), pairs)
    with pytest.raises(InvalidRecordError, match=f"row 1 has {MAX_RECORD_HEADERS + 1} headers"):
        ready_rows(pa.table({"value": values, "headers": more}), NOW_MS)
