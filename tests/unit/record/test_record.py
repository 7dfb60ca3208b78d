"""Decoding records: three readers with the same results.

`slow_records` below reads the format in the plainest way. Whatever bytes are given, the quick
readers must return the same records, or raise CorruptRecordError exactly where it finds a fault.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples

from strandlog.config.limits.records import MAX_RECORD_HEADERS
from strandlog.errors import CorruptRecordError, InvalidRecordError
from strandlog.model import Headers, Record
from strandlog.record import record as record_module
from strandlog.record.record import (
    decode_records,
    encode_headers,
    encode_record,
    record_pieces,
)
from strandlog.record.record_runs import Frame
from strandlog.record.varint import MAX_INT64, MIN_INT64, encode_varint

BASE_OFFSET = 1000
BASE_TIMESTAMP = 1_700_000_000_000


class MalformedError(Exception):
    """The slow reader found a fault."""


class Cursor:
    """Reads fields one after the other, slowly."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def take(self, size: int) -> bytes:
        if size < 0 or self.position + size > len(self.data):
            raise MalformedError
        self.position += size
        return self.data[self.position - size : self.position]

    def number(self) -> int:
        raw = 0
        for index in range(10):
            (byte,) = self.take(1)
            raw += (byte % 128) << 7 * index
            if byte < 128:
                if raw >= 2**64:
                    raise MalformedError
                return raw // 2 if raw % 2 == 0 else -(raw // 2) - 1
        raise MalformedError

    def field(self) -> bytes | None:
        size = self.number()
        return None if size == -1 else self.take(size)


def slow_records(payload: bytes, count: int, frame: Frame) -> list[Record]:
    cursor = Cursor(payload)
    records: list[Record] = []
    for _ in range(count):
        record = Cursor(cursor.take(cursor.number()))
        record.take(1)
        time = frame.base_timestamp + record.number() * (not frame.is_append_time)
        time = (time + 2**63) % 2**64 - 2**63
        offset = frame.base_offset + record.number()
        key, value = record.field(), record.field()
        header_count = record.number()
        if header_count < 0 or header_count > len(record.data):
            raise MalformedError
        headers: list[tuple[str, bytes | None]] = []
        for _ in range(header_count):
            name = record.field()
            if name is None:
                raise MalformedError
            headers.append((name.decode("utf-8", "surrogateescape"), record.field()))
        before = records[-1].offset if records else frame.base_offset - 1
        last_offset = frame.base_offset + frame.last_offset_delta
        if record.position != len(record.data) or not before < offset <= last_offset:
            raise MalformedError
        records.append(Record("t", 3, offset, time, key, value, tuple(headers)))
    if cursor.position != len(payload):
        raise MalformedError
    return records


def frame_for(count: int, **changes: Any) -> Frame:
    return Frame("t", 3, BASE_OFFSET, count - 1, BASE_TIMESTAMP, False)._replace(**changes)


def compare(payload: bytes, count: int, frame: Frame) -> bool:
    """Whether the payload is sound, about which both readers must agree."""
    try:
        truth = slow_records(payload, count, frame)
    except MalformedError:
        for form in (payload, memoryview(payload)):
            with pytest.raises(CorruptRecordError):
                decode_records(form, count, frame)
        return False
    assert decode_records(payload, count, frame) == truth
    assert decode_records(memoryview(payload), count, frame) == truth
    return True


fields = st.one_of(
    st.none(),
    st.binary(max_size=3),
    st.integers(60, 70).map(bytes),
    st.sampled_from([8188, 8191, 8192, 8200, 20_000]).map(bytes),
)
deltas = st.one_of(
    st.integers(0, 70),
    st.integers(-70, 9000),
    st.sampled_from([8191, 8192, MAX_INT64, MIN_INT64]),
)
names = st.text(max_size=4) | st.binary(max_size=4).map(
    lambda b: b.decode("utf-8", "surrogateescape")
)
some_headers = st.lists(st.tuples(names, st.none() | st.binary(max_size=3)), max_size=2).map(tuple)
rows = st.tuples(deltas, fields, fields, st.just(()) | some_headers)


@given(st.lists(rows, max_size=12), st.booleans(), st.sampled_from([BASE_TIMESTAMP, MAX_INT64, -1]))
def test_comes_back(
    batch: list[tuple[int, bytes | None, bytes | None, Headers]], is_append_time: bool, base: int
) -> None:
    payload = b"".join(encode_record(row[0], index, *row[1:]) for index, row in enumerate(batch))
    frame = frame_for(len(batch), is_append_time=is_append_time, base_timestamp=base)
    assert compare(payload, len(batch), frame)
    for record, (_, key, value, headers) in zip(
        decode_records(payload, len(batch), frame), batch, strict=True
    ):
        assert (record.key, record.value, record.headers) == (key, value, headers)
        assert type(record) is Record


@examples(0.3)
@given(st.lists(st.integers(0, 2_000_000), unique=True, min_size=1, max_size=60), st.data())
def test_offsets_may_have_gaps(numbers: list[int], data: st.DataObject) -> None:
    """As compaction leaves them; and nothing else than rising offsets gets through."""
    numbers.sort()
    payload = b"".join(encode_record(5, number, b"k", b"value") for number in numbers)
    assert compare(payload, len(numbers), frame_for(numbers[-1] + 1))
    if numbers[-1]:
        assert not compare(payload, len(numbers), frame_for(numbers[-1]))
    shuffled = data.draw(st.permutations(numbers))
    payload = b"".join(encode_record(5, number, b"k", b"value") for number in shuffled)
    assert compare(payload, len(numbers), frame_for(numbers[-1] + 1)) == (shuffled == numbers)


def uniform(chance: random.Random) -> list[bytes]:
    size = chance.choice((0, 10, 55, 56, 100, 8180))
    key = chance.choice((None, b"", b"key", bytes(70)))
    times = chance.choice((lambda _: 0, lambda i: i, lambda i: i * 40, lambda _: -7))
    count = chance.choice((40, 70, 140)) if size < 1000 else 20
    return [encode_record(times(i), i, key, chance.randbytes(size)) for i in range(count)]


def mixed(chance: random.Random) -> list[bytes]:
    kinds: list[Callable[[int], bytes]] = [
        lambda i: encode_record(i, i, None, chance.randbytes(20)),
        lambda i: encode_record(i, i, b"key", None),
        lambda i: encode_record(i, i, None, b"v", (("name", b"value"), ("n", None))),
        lambda i: encode_record(-i, i, b"k" * 80, b"v" * 300),
    ]
    weights = chance.choice(((1, 0, 0, 0), (8, 1, 1, 1), (1, 1, 1, 1), (0, 0, 1, 0)))
    return [chance.choices(kinds, weights)[0](i) for i in range(chance.randrange(1, 120))]


def mutate(payload: bytes, chance: random.Random) -> bytes:
    changed = bytearray(payload)
    at = chance.randrange(len(changed))
    match chance.randrange(6):
        case 0:
            changed[at] ^= 1 << chance.randrange(8)
        case 1:
            changed[at] = chance.choice((0, 1, 2, 127, 128, 255))
        case 2:
            del changed[at : at + chance.choice((1, 2, 50))]
        case 3:
            changed[at:at] = chance.randbytes(chance.choice((1, 2, 50)))
        case 4:
            del changed[at:]
        case _:
            changed += chance.randbytes(1)
    return bytes(changed)


@pytest.mark.parametrize("kind", [uniform, mixed])
@pytest.mark.parametrize("seed", range(6))
def test_damage_is_found_and_nothing_is_made_up(
    kind: Callable[[random.Random], list[bytes]], seed: int
) -> None:
    chance = random.Random(seed)
    for _ in range(8):
        records = kind(chance)
        payload = b"".join(records)
        frame = frame_for(len(records), is_append_time=chance.random() < 0.2)
        assert compare(payload, len(records), frame)
        assert not compare(payload, len(records) - 1, frame)
        assert not compare(payload, len(records) + 1, frame)
        for _ in range(25):
            compare(mutate(payload, chance), len(records), frame)


@pytest.mark.parametrize("size", [40, 8180])
def test_damage_in_every_layout_byte_of_a_run(size: int) -> None:
    records = [encode_record(0, index, b"key", bytes(size)) for index in range(40)]
    payload = b"".join(records)
    start = len(b"".join(records[:25]))
    for at in (*range(start, start + 14), start + len(records[25]) - 1):
        for byte in (0, 1, 2, 9, 60, 127, 128, 255):
            changed = bytearray(payload)
            changed[at] = byte
            compare(bytes(changed), len(records), frame_for(40))


def test_a_key_length_of_minus_two_is_rejected() -> None:
    body = b"\0\0\0" + encode_varint(-2) + b"x" + encode_varint(1) + b"v" + b"\0"
    payload = encode_varint(len(body)) + body
    with pytest.raises(CorruptRecordError):
        decode_records(payload, 1, frame_for(1))


@pytest.mark.parametrize("size", [8185, 8191])
def test_record_with_a_three_byte_length_is_not_read_askew(size: int) -> None:
    """From its last length byte on, this one looks like a shorter record of a fitting length."""
    payload = encode_record(0, 0, bytes(size), b"")
    assert payload[2] == 1
    (record,) = decode_records(payload, 1, frame_for(1))
    assert (record.key, record.value) == (bytes(size), b"")


def test_record_with_a_four_byte_offset_is_not_read_askew() -> None:
    """From its last offset byte on, this torso looks like a record without a key."""
    body = b"\0\0" + encode_varint(1 << 20) + encode_varint(3) + b"abc" + b"\0"
    payload = encode_varint(len(body)) + body
    with pytest.raises(CorruptRecordError):
        decode_records(payload, 1, frame_for(1 << 21))


@pytest.mark.parametrize("headers", [(), (("name", b"value"),)])
def test_one_offset_twice_is_refused(headers: Headers) -> None:
    payload = encode_record(0, 3, None, b"v", headers) * 2
    with pytest.raises(CorruptRecordError, match="offset 1003 follows offset 1003"):
        decode_records(payload, 2, frame_for(10))


@pytest.mark.parametrize("count", [-1, 2**31 - 1])
def test_impossible_count_is_refused(count: int) -> None:
    with pytest.raises(CorruptRecordError, match=f"cannot hold {count}"):
        decode_records(b"abc", count, frame_for(1))


def test_impossible_header_count_is_refused_at_once() -> None:
    body = b"\0\0\0\x01\x01" + encode_varint(2**60)
    payload = encode_varint(len(body)) + body
    with pytest.raises(CorruptRecordError, match="headers do not fit"):
        decode_records(payload, 1, frame_for(1))


def test_header_name_that_is_no_utf8_keeps_its_bytes() -> None:
    encoded = encode_record(0, 0, None, None, (("caf\udce9", b"x"),))
    assert b"caf\xe9" in encoded
    (record,) = decode_records(encoded, 1, frame_for(1))
    assert encode_headers(record.headers) in encoded


def test_header_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidRecordError, match="not valid text"):
        encode_headers((("\ud800", b""),))


def test_a_record_of_more_headers_than_fit_into_memory_is_refused() -> None:
    count = MAX_RECORD_HEADERS + 1
    body = b"\0\0\0\1\1" + encode_varint(count) + b"\0\0" * count
    with pytest.raises(CorruptRecordError, match=f"{count} headers"):
        decode_records(encode_varint(len(body)) + body, 1, frame_for(1))
    with pytest.raises(InvalidRecordError, match=f"{count} headers"):
        encode_headers([("", b"")] * count)


def test_records_with_many_headers_come_in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_module, "PIECE_HEADERS", 100)
    monkeypatch.setattr(record_module, "MAX_BATCH_HEADERS", 500)
    headers: Headers = (("h", b"x"),) * 40
    payload = b"".join(encode_record(0, n, None, b"v", headers) for n in range(20))
    pieces = list(record_pieces(payload, 20, frame_for(20), 4096))
    assert [len(piece) for piece in pieces] == [3, 3, 3, 3, 3, 3, 2]
    records = [record for piece in pieces for record in piece]
    assert records == slow_records(payload, 20, frame_for(20))
    with pytest.raises(CorruptRecordError, match="more than 500 headers"):
        decode_records(payload, 20, frame_for(20))
    fewer = b"".join(encode_record(0, n, None, b"v", headers) for n in range(9))
    assert decode_records(fewer, 9, frame_for(9)) == slow_records(fewer, 9, frame_for(9))
