"""From offset to position: Kafka's 8 bytes, and the last entry at or below a target."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandlog.storage.segment import sparse_index
from strandlog.storage.segment.offset_index import IndexEntry, OffsetIndex, search
from strandlog.storage.segment.segment import MAX_RELATIVE_OFFSET
from strandlog.testing import SimulatedFiles

PATH = "0.index"
BASE = 1000

steps = st.lists(st.tuples(st.integers(1, 9), st.integers(61, 500)), max_size=20)


def entries_of(gaps: list[tuple[int, int]]) -> list[IndexEntry]:
    entries: list[IndexEntry] = []
    offset, position = BASE, 0
    for more_offsets, more_bytes in gaps:
        offset, position = offset + more_offsets, position + more_bytes
        entries.append(IndexEntry(offset, position))
    return entries


def test_the_file_has_kafkas_format() -> None:
    files = SimulatedFiles()
    index = OffsetIndex(files, PATH, BASE)
    index.append(BASE + 7, 300)
    index.append(BASE + MAX_RELATIVE_OFFSET, 2**31 - 1)
    index.save()
    assert files.read(PATH) == struct.pack(">iiii", 7, 300, 2**31 - 1, 2**31 - 1)
    assert OffsetIndex(files, PATH, BASE).last == (BASE + MAX_RELATIVE_OFFSET, 2**31 - 1)


@pytest.mark.parametrize("relative", [-(2**31) - 1, 2**31])
def test_an_offset_too_far_from_the_base_does_not_fit(relative: int) -> None:
    index = OffsetIndex(SimulatedFiles(), PATH, BASE)
    with pytest.raises(struct.error):
        index.append(BASE + relative, 0)
    assert index.last is None


@given(gaps=steps, saved=st.integers(0, 20), target=st.integers(BASE - 2, BASE + 190))
def test_a_lookup_finds_what_a_plain_list_finds(
    gaps: list[tuple[int, int]], saved: int, target: int
) -> None:
    files, entries = SimulatedFiles(), entries_of(gaps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sparse_index, "KEEP_AT_MOST_ENTRIES", 2)
        index = OffsetIndex(files, PATH, BASE)
        for number, entry in enumerate(entries):
            index.append(*entry)
            if number == saved:
                index.save()
        expected = max((entry for entry in entries if entry.offset <= target), default=None)
        assert index.lookup(target) == expected
        assert index.last == (entries[-1] if entries else None)
        index.save()
        if entries:
            assert search(files.read(PATH), BASE, target) == expected


@given(gaps=steps, offset=st.integers(BASE - 1, BASE + 190))
def test_entries_above_an_offset_can_be_forgotten(gaps: list[tuple[int, int]], offset: int) -> None:
    files, entries = SimulatedFiles(), entries_of(gaps)
    index = OffsetIndex(files, PATH, BASE)
    for entry in entries:
        index.append(*entry)
    index.save()
    index.keep(index.count_up_to(offset))
    left = [entry for entry in entries if entry.offset <= offset]
    assert index.size_bytes == 8 * len(left)
    assert index.last == (left[-1] if left else None)
    assert OffsetIndex(files, PATH, BASE).last == index.last


def test_a_search_in_nothing_finds_nothing() -> None:
    assert search(b"", BASE, BASE) is None
    assert search(struct.pack(">ii", 5, 70), BASE, BASE + 4) is None
    assert search(struct.pack(">ii", 5, 70), BASE, BASE + 5) == (BASE + 5, 70)
