"""Bytes of a read become batches: whole ones, intact ones, and each at its place."""

from __future__ import annotations

import pytest
from tests.support.log_builders import batch

from strandlog.errors import CorruptSegmentError
from strandlog.record.batch_header import read_header, stamp
from strandlog.storage.segment.scan import batches_of_read


def at(base_offset: int, count: int = 1) -> bytes:
    data = bytearray(batch(*[b"value %d" % (base_offset + n) for n in range(count)]))
    stamp(data, base_offset, 0)
    return bytes(data)


def bases(data: bytes, *, offset: int = 0, end_offset: int = 100) -> list[int]:
    batches = batches_of_read(data, path="p", offset=offset, end_offset=end_offset)
    return [view.header.base_offset for view in batches]


def test_complete_batches_are_returned_and_an_incomplete_last_one_is_not() -> None:
    data = at(0) + at(1, 3) + at(4)
    assert bases(data) == [0, 1, 4]
    for missing in range(1, len(at(4)) + 1):
        assert bases(data[:-missing]) == [0, 1]


def test_fewer_bytes_than_a_header_hold_no_batch() -> None:
    assert bases(b"") == []
    assert bases(at(0)[:60]) == []


def test_an_incomplete_first_batch_is_damage() -> None:
    with pytest.raises(CorruptSegmentError):
        bases(at(0)[:-1])


def test_bytes_after_the_end_offset_are_ignored() -> None:
    assert bases(at(0) + at(1) + b"\xff" * 200, end_offset=2) == [0, 1]
    assert bases(at(0) + at(1) + at(2), end_offset=1) == [0]


def test_a_read_inside_a_batch_gets_the_whole_batch() -> None:
    assert bases(at(4, 5) + at(9), offset=6) == [4, 9]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_every_flipped_bit_is_found_where_it_is(number: int) -> None:
    pieces = [at(0, 2), at(2), at(3, 2)]
    start = sum(map(len, pieces[:number]))
    first = read_header(pieces[number]).base_offset
    for bit in range(8 * len(pieces[number])):
        if number == 0 and bit < 8 * 8:
            continue  # the place of the first batch is what the read itself has checked
        if 12 * 8 <= bit < 16 * 8:
            continue  # the leader epoch, which says nothing here
        data = bytearray(b"".join(pieces))
        data[start + bit // 8] ^= 1 << bit % 8
        got: list[int] = []
        try:
            for view in batches_of_read(bytes(data), path="p", offset=0, end_offset=5):
                got.append(view.header.base_offset)
        except CorruptSegmentError as damage:
            assert damage.path == "p"
            assert damage.position == start
            assert damage.offset == first - 1
        expected = [0, 2, 3][:number]
        assert got == expected, f"bit {bit}"


def test_a_gap_is_accepted_if_the_next_two_batches_are_consecutive() -> None:
    assert bases(at(0) + at(5) + at(6)) == [0, 5, 6]
    assert bases(at(0) + at(5) + at(9)) == [0, 5]


def test_a_gap_at_the_end_of_the_bytes_is_left_to_the_next_read() -> None:
    assert bases(at(0) + at(1) + at(7)) == [0, 1]
    assert bases(at(7), offset=2) == [7]


def test_batches_that_overlap_are_damage() -> None:
    with pytest.raises(CorruptSegmentError, match="neighbouring") as caught:
        bases(at(0, 5) + at(3) + at(5))
    assert caught.value.position == len(at(0, 5))
    with pytest.raises(CorruptSegmentError, match="neighbouring"):
        bases(at(0) + at(8, 3) + at(9))


def test_a_batch_that_extends_past_the_end_offset_is_damage() -> None:
    with pytest.raises(CorruptSegmentError, match="neighbouring"):
        bases(at(0) + at(1, 5), end_offset=3)
