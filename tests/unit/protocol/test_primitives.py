"""The reader trusts no length; the writer writes nothing that could not be read back."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandlog.config.limits.kafka import MAX_STRING_BYTES
from strandlog.errors import DataError
from strandlog.protocol.primitives import Reader, Writer, encoded_text

READS: list[Callable[[Reader], Any]] = [
    Reader.int8,
    Reader.int16,
    Reader.int32,
    Reader.int64,
    Reader.uvarint,
    Reader.string,
    Reader.nullable_string,
    Reader.compact_string,
    Reader.compact_nullable_string,
    Reader.byte_string,
    Reader.nullable_byte_string,
    Reader.compact_byte_string,
    lambda reader: reader.array(reader.int32, 4),
    lambda reader: reader.compact_array(reader.int8, 1),
    Reader.skip_tagged_fields,
]


def test_every_type_round_trips() -> None:
    writer = Writer()
    writer.int8(-1)
    writer.int16(-2)
    writer.int32(-3)
    writer.int64(-4)
    writer.string("é")
    writer.nullable_string(None)
    writer.nullable_string("")
    writer.byte_string(b"\x00")
    writer.nullable_byte_string(None)
    writer.nullable_byte_string(memoryview(b"x"))
    writer.array([1, 2], writer.int16)
    reader = Reader(writer.to_bytes())
    assert [reader.int8(), reader.int16(), reader.int32(), reader.int64()] == [-1, -2, -3, -4]
    assert [reader.string(), reader.nullable_string(), reader.nullable_string()] == ["é", None, ""]
    assert reader.byte_string() == b"\x00"
    assert [reader.nullable_byte_string(), reader.nullable_byte_string()] == [None, b"x"]
    assert reader.array(reader.int16, 2) == [1, 2]
    assert reader.remaining == 0


def test_bytes_are_big_endian() -> None:
    writer = Writer()
    writer.int32(1)
    writer.string("ab")
    assert writer.to_bytes() == b"\x00\x00\x00\x01\x00\x02ab"


@pytest.mark.parametrize(
    ("data", "value"), [(b"\x00", 0), (b"\x7f", 127), (b"\x80\x01", 128), (b"\xac\x02", 300)]
)
def test_variable_length_numbers(data: bytes, value: int) -> None:
    assert Reader(data).uvarint() == value


def test_tagged_fields_are_skipped() -> None:
    reader = Reader(b"\x02\x00\x03abc\x05\x00\x2a")
    reader.skip_tagged_fields()
    assert reader.int8() == 42


@pytest.mark.parametrize("count", [2**31 - 1, 1000, 3])
def test_an_array_longer_than_the_data_is_rejected(count: int) -> None:
    reader = Reader(struct.pack(">i", count) + bytes(8))
    with pytest.raises(DataError):
        reader.array(reader.int32, 4)


@pytest.mark.parametrize("size", [-2, -32768, 5])
def test_a_string_longer_than_the_data_is_rejected(size: int) -> None:
    with pytest.raises(DataError):
        Reader(struct.pack(">h", size) + b"abcd").nullable_string()


def test_null_is_rejected_where_a_value_is_required() -> None:
    with pytest.raises(DataError):
        Reader(b"\xff\xff").string()
    with pytest.raises(DataError):
        Reader(b"\x00").compact_byte_string()


def test_a_null_array_is_an_empty_one_and_other_negative_counts_are_not() -> None:
    reader = Reader(b"\xff\xff\xff\xff")
    assert reader.array(reader.int8, 1) == []
    reader = Reader(b"\xff\xff\xff\xfe")
    with pytest.raises(DataError):
        reader.array(reader.int8, 1)


@given(st.binary(max_size=64), st.sampled_from(READS))
def test_random_bytes_are_read_or_rejected(data: bytes, read: Callable[[Reader], Any]) -> None:
    reader = Reader(data)
    try:
        read(reader)
    except DataError:
        return
    assert reader.remaining >= 0


def test_text_that_does_not_fit_is_rejected() -> None:
    assert len(encoded_text("x" * MAX_STRING_BYTES)) == MAX_STRING_BYTES
    for text in ("x" * (MAX_STRING_BYTES + 1), "é" * MAX_STRING_BYTES, "\ud800"):
        with pytest.raises(DataError):
            Writer().string(text)
    with pytest.raises(DataError):
        Writer().int16(2**15)
