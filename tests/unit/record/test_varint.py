"""Varints: every 64-bit number round-trips, and other bytes are rejected."""

from __future__ import annotations

import pytest
from aiokafka.record import util as aiokafka_util
from hypothesis import given
from hypothesis import strategies as st

from strandlog.errors import CorruptRecordError
from strandlog.record.varint import (
    CACHE_LIMIT,
    MAX_INT64,
    MIN_INT64,
    NumberCache,
    decode_varint,
    encode_varint,
    varint_size,
)

EDGES = sorted(
    {sign * (1 << bits) + step for bits in range(63) for sign in (1, -1) for step in (-1, 0, 1)}
    | {MAX_INT64, MIN_INT64}
)
int64s = st.integers(MIN_INT64, MAX_INT64) | st.sampled_from(EDGES)


@given(int64s, st.binary(max_size=4), st.binary(max_size=4))
def test_comes_back_from_any_position(value: int, before: bytes, after: bytes) -> None:
    encoded = encode_varint(value)
    assert len(encoded) == varint_size(value) <= 10
    for kind in (bytes, bytearray, memoryview):
        buffer = kind(before + encoded + after)
        assert decode_varint(buffer, len(before)) == (value, len(before) + len(encoded))


@given(int64s)
def test_is_what_aiokafka_writes(value: int) -> None:
    written = bytearray()
    aiokafka_util.encode_varint_py(value, written.append)
    assert encode_varint(value) == written


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(0, "00"), (-1, "01"), (1, "02"), (63, "7e"), (-64, "7f"), (64, "8001"), (300, "d804")],
)
def test_known_bytes(value: int, encoded: str) -> None:
    assert encode_varint(value).hex() == encoded


@given(int64s, st.data())
def test_cut_off_is_refused(value: int, data: st.DataObject) -> None:
    encoded = encode_varint(value)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(CorruptRecordError, match="end in the middle"):
        decode_varint(encoded[:cut], 0)


def test_eleven_bytes_are_refused() -> None:
    with pytest.raises(CorruptRecordError, match="longer than 10 bytes"):
        decode_varint(b"\x80" * 10 + b"\x00", 0)


def test_more_than_64_bits_are_refused() -> None:
    with pytest.raises(CorruptRecordError, match="64 bits"):
        decode_varint(b"\xff" * 9 + b"\x7f", 0)


def test_padding_is_read() -> None:
    assert decode_varint(b"\x82\x80\x00", 0) == (1, 3)


def test_cache_forgets_at_its_limit() -> None:
    cache = NumberCache(varint_size)
    for number in range(CACHE_LIMIT + 10):
        assert cache[number] == varint_size(number)
    assert len(cache) == 10
