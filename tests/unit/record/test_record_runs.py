"""Runs of equal records are read by columns, up to the first record that differs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples

from strandlog.model import Record
from strandlog.record.record import decode_records, encode_record
from strandlog.record.record_runs import MIN_RUN, Frame, _offset_column, read_run
from strandlog.record.varint import MAX_INT64, MIN_INT64, encode_varint

FRAME = Frame("t", 0, 100, 1 << 20, 5000, False)


def run_of(parts: list[bytes], first: int = 0) -> tuple[int, list[Record]]:
    """Give the first record to the run reader; how many it read in all, and the rest of them."""
    records = [Record("t", 0, 100 + first, 0, None, None)]
    end = read_run(b"".join(parts), 0, len(parts[0]), len(parts) - 1, FRAME, records)
    assert end == len(b"".join(parts[: len(records)]))
    return len(records), records[1:]


def test_whole_run() -> None:
    parts = [encode_record(7, index, b"k%02d" % index, b"v%02d" % index) for index in range(60)]
    count, rest = run_of(parts)
    assert count == 60
    assert rest == [
        Record("t", 0, 100 + index, 5007, b"k%02d" % index, b"v%02d" % index)
        for index in range(1, 60)
    ]


@pytest.mark.parametrize("odd_one", [16, 17, 40, 59])
@pytest.mark.parametrize(
    "other",
    [
        lambda i: encode_record(7, i, b"key", b"valuable"),
        lambda i: encode_record(7, i, b"keys", b"valu"),
        lambda i: encode_record(7, i, None, b"value" + bytes(3)),
        lambda i: encode_record(700, i, b"key", b"valu"),
        lambda i: encode_record(-1, i, b"key", b"value"),
    ],
)
def test_a_run_ends_before_a_record_of_another_layout(odd_one: int, other: object) -> None:
    assert callable(other)
    parts = [encode_record(7, index, b"key", b"value") for index in range(60)]
    parts[odd_one] = other(odd_one)
    assert run_of(parts)[0] == odd_one


def test_no_run_where_offsets_have_a_gap() -> None:
    parts = [encode_record(7, index + (index > 30), None, b"value") for index in range(60)]
    assert run_of(parts)[0] == 1


def test_a_run_ends_where_offsets_take_more_bytes() -> None:
    parts = [encode_record(7, index, None, b"value") for index in range(100)]
    assert run_of(parts)[0] == 64
    assert run_of(parts[64:], 64)[0] == 36


@pytest.mark.parametrize("step", [0, 1, 100])
def test_times_of_one_and_two_bytes(step: int) -> None:
    parts = [encode_record(index * step, index, None, b"v") for index in range(60)]
    wide = next((i for i in range(60) if len(encode_varint(i * step)) > 1), 60)
    if wide > MIN_RUN:
        assert [record.timestamp for record in run_of(parts)[1]] == [
            5000 + index * step for index in range(1, wide)
        ]
    if wide < 60:
        assert [record.timestamp for record in run_of(parts[wide:], wide)[1]] == [
            5000 + index * step for index in range(wide + 1, 60)
        ]


def test_wide_times_must_stay_the_same() -> None:
    parts = [encode_record(-(10**12), index, None, b"v") for index in range(40)]
    assert run_of(parts)[0] == 40
    parts[30] = encode_record(-(10**12) - 1, 30, None, b"v")
    assert run_of(parts)[0] == 30


def test_a_run_has_no_more_records_than_requested() -> None:
    data = b"".join(encode_record(0, index, None, b"v") for index in range(40))
    records = [Record("t", 0, 100, 0, None, None)]
    assert read_run(data, 0, len(data) // 40, 30, FRAME, records) == len(data) // 40 * 31
    assert len(records) == 31


def test_short_runs_records_with_headers_and_nulls_are_not_read_by_columns() -> None:
    assert run_of([encode_record(0, i, None, b"v") for i in range(MIN_RUN - 1)])[0] == 1
    assert run_of([encode_record(0, i, b"key", None) for i in range(40)])[0] == 1
    assert run_of([encode_record(0, i, None, b"v", (("h", b""),)) for i in range(40)])[0] == 1


@examples(0.5)
@given(st.integers(1, 4), st.integers(0, 1 << 27), st.integers(1, 300))
def test_offset_columns_spell_varints(width: int, delta: int, count: int) -> None:
    lowest = 0 if width == 1 else 1 << 7 * (width - 1) - 1
    end = 1 << 7 * width - 1
    delta = lowest + delta % (end - lowest)
    count = min(count, end - delta)
    spelled = [encode_varint(delta + index) for index in range(count)]
    for index in range(width):
        column = _offset_column(delta, count, index, width)
        assert column == bytes(one[index] for one in spelled)


@pytest.mark.parametrize("base", [MAX_INT64, MAX_INT64 - 50, MAX_INT64 - 0x1FFF, MIN_INT64, 5000])
@pytest.mark.parametrize("step", [0, 1, 100])
@pytest.mark.parametrize("first_delta", [0, 60, MAX_INT64, MIN_INT64])
def test_timestamps_of_a_run_wrap_like_those_of_single_records(
    base: int, step: int, first_delta: int
) -> None:
    count = 60
    deltas = [min(first_delta + step * index, MAX_INT64) for index in range(count)]
    frame = Frame("t", 0, 100, count, base, False)
    payload = b"".join(encode_record(d, i, b"k", b"v") for i, d in enumerate(deltas))
    found = [record.timestamp for record in decode_records(payload, count, frame)]
    assert found == [(base + d + 2**63) % 2**64 - 2**63 for d in deltas]
