"""A dict in fixed memory: the same answers, until it is full."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from strandlog.storage.cleaning.offset_map import LOAD_FACTOR, MIN_SLOTS, SLOT_SIZE, OffsetMap

keys = st.binary(max_size=3) | st.integers(0, 40).map(lambda n: b"k%d" % n)


@given(
    puts=st.lists(st.tuples(keys, st.integers(0, 2**62)), max_size=60),
    slots=st.integers(1, 64),
    asked=st.lists(keys, max_size=10),
)
def test_the_map_behaves_like_a_dict_that_rejects_new_keys_when_full(
    puts: list[tuple[bytes, int]], slots: int, asked: list[bytes]
) -> None:
    offset_map, expected = OffsetMap(slots * SLOT_SIZE), dict[bytes, int]()
    capacity = int(max(slots, MIN_SLOTS) * LOAD_FACTOR)
    for key, offset in puts:
        fits = key in expected or len(expected) < capacity
        assert offset_map.put(key, offset) is fits
        if fits:
            expected[key] = offset
        assert offset_map.is_full is (len(expected) == capacity)
    assert len(offset_map) == len(expected)
    for key in [*expected, *(key for key, _ in puts), *asked]:
        assert offset_map.get(key) == expected.get(key, -1)


def test_a_full_map_still_takes_newer_offsets_of_known_keys() -> None:
    offset_map = OffsetMap(0)
    taken = [n for n in range(100) if offset_map.put(b"%d" % n, n)]
    assert taken == list(range(14))
    assert offset_map.put(b"0", 500)
    assert (offset_map.get(b"0"), offset_map.get(b"99"), len(offset_map)) == (500, -1, 14)


def test_offset_zero_and_the_empty_key_are_an_offset_and_a_key() -> None:
    offset_map = OffsetMap(1000)
    assert offset_map.get(b"") == -1
    offset_map.put(b"", 0)
    assert (offset_map.get(b""), len(offset_map)) == (0, 1)


def test_memory_does_not_depend_on_the_keys() -> None:
    offset_map = OffsetMap(100 * SLOT_SIZE)
    for number in range(90):
        assert offset_map.put(b"a long key " * 1000 + b"%d" % number, number)
    assert len(offset_map._table) == 100 * SLOT_SIZE
    assert not offset_map.put(b"one more", 1)
