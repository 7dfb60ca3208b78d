"""Iterating over the batches of a fetch whose bytes changed after the broker wrote them."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandlog.broker.reads.fetch import FetchPartitionData
from strandlog.broker.reads.fetched_records import checked_batches, records_of
from strandlog.errors import UndecodableBatchError
from strandlog.record.builder import build_batch


def _found(*batches: bytes | bytearray) -> FetchPartitionData:
    return FetchPartitionData("t", 0, None, 1000, 0, b"".join(batches))


def _batch(base_offset: int, count: int = 1) -> bytearray:
    return build_batch(0, [b"v"] * count, base_offset=base_offset)


def _offsets(found: FetchPartitionData) -> list[int]:
    return [batch.header.base_offset for batch, _ in checked_batches(found)]


@given(
    sizes=st.lists(st.integers(1, 5), min_size=3, max_size=6),
    bit=st.integers(0, 63),
    data=st.data(),
)
def test_no_record_gets_a_wrong_offset_if_a_bit_of_a_base_offset_flips(
    sizes: list[int], bit: int, data: st.DataObject
) -> None:
    bases = [sum(sizes[:number]) for number in range(len(sizes))]
    batches = [_batch(base, size) for base, size in zip(bases, sizes, strict=True)]
    wrong = data.draw(st.integers(1, len(sizes) - 1))  # the fetch verifies the first batch
    flipped = struct.unpack(">Q", batches[wrong][:8])[0] ^ (1 << bit)
    batches[wrong][:8] = struct.pack(">Q", flipped)
    found = _found(*batches)
    assert _offsets(found) == bases[:wrong]
    *_, last = records_of(found, 0, 1_000_000)
    assert last.next_offset == bases[wrong], "the next fetch starts at the damaged batch"


@pytest.mark.parametrize(
    ("bases", "kept"),
    [
        ([0, 10, 20], [0, 10]),  # the last one is left to the next fetch
        ([0, 10, 11, 12], [0, 10, 11, 12]),
        ([5, 6, 7], [5, 6, 7]),
        ([5], [5]),
        ([5, 5, 6], [5]),  # a batch that was copied over its neighbour
    ],
)
def test_gaps_of_compaction_are_no_damage(bases: Sequence[int], kept: Sequence[int]) -> None:
    assert _offsets(_found(*map(_batch, bases))) == kept


def test_damage_after_the_first_batch_is_left_to_the_next_fetch() -> None:
    batches = [_batch(0), _batch(1), _batch(2)]
    batches[1][-1] ^= 1
    assert _offsets(_found(*batches)) == [0]
    with pytest.raises(UndecodableBatchError):
        list(checked_batches(_found(*batches[1:])))
    problems: list[UndecodableBatchError] = []
    seen = [visible for _, visible in checked_batches(_found(*batches[1:]), problems)]
    assert (seen, len(problems)) == ([False, True], 1)
