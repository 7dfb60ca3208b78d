"""From timestamp to offset: Kafka's 12 bytes, and the last entry at or below a time."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandlog.storage.segment import sparse_index
from strandlog.storage.segment.time_index import TimeEntry, TimeIndex, entry_before, search
from strandlog.testing import SimulatedFiles

PATH = "0.timeindex"
BASE = 1000
NOW = 1_700_000_000_000

steps = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 9)), max_size=20)


def entries_of(gaps: list[tuple[int, int]]) -> list[TimeEntry]:
    entries: list[TimeEntry] = []
    timestamp, offset = NOW, BASE
    for more_ms, more_offsets in gaps:
        timestamp, offset = timestamp + more_ms, offset + more_offsets
        entries.append(TimeEntry(timestamp, offset))
    return entries


def test_the_file_has_kafkas_format() -> None:
    files = SimulatedFiles()
    index = TimeIndex(files, PATH, BASE)
    index.append(TimeEntry(NOW, BASE + 7))
    index.append(TimeEntry(2**63 - 1, BASE + 8))
    index.save()
    assert files.read(PATH) == struct.pack(">qiqi", NOW, 7, 2**63 - 1, 8)
    assert TimeIndex(files, PATH, BASE).last == (2**63 - 1, BASE + 8)


@given(gaps=steps, saved=st.integers(0, 20), target=st.integers(NOW - 1, NOW + 1000))
def test_a_lookup_finds_what_a_plain_list_finds(
    gaps: list[tuple[int, int]], saved: int, target: int
) -> None:
    files, entries = SimulatedFiles(), entries_of(gaps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sparse_index, "KEEP_AT_MOST_ENTRIES", 2)
        index = TimeIndex(files, PATH, BASE)
        for number, entry in enumerate(entries):
            index.append(entry)
            if number == saved:
                index.save()
        below = [entry for entry in entries if entry.timestamp <= target]
        last_two = (below[-2] if len(below) > 1 else None, below[-1] if below else None)
        assert index.last_two(target) == last_two
        assert index.lookup(target) == last_two[1]
        index.save()
        if entries:
            assert search(files.read(PATH), BASE, target) == last_two[1]


@given(gaps=steps, offset=st.integers(BASE - 1, BASE + 190))
def test_entries_from_an_offset_on_can_be_removed(gaps: list[tuple[int, int]], offset: int) -> None:
    files, entries = SimulatedFiles(), entries_of(gaps)
    index = TimeIndex(files, PATH, BASE)
    for entry in entries:
        index.append(entry)
    index.save()
    index.keep(index.ascending_count_up_to(offset - 1))
    left = [entry for entry in entries if entry.offset < offset]
    assert index.size_bytes == 12 * len(left)
    assert index.last == (left[-1] if left else None)
    assert TimeIndex(files, PATH, BASE).last == index.last


def test_there_is_no_entry_before_the_first() -> None:
    entries = struct.pack(">qiqi", NOW, 1, NOW + 5, 4)
    found = [entry_before(entries, BASE, count) for count in (-1, 0, 1, 2)]
    assert found == [None, None, (NOW, BASE + 1), (NOW + 5, BASE + 4)]


def test_entries_that_do_not_ascend_are_not_counted() -> None:
    index = TimeIndex(SimulatedFiles(), PATH, BASE)
    for entry in (TimeEntry(NOW, BASE + 1), TimeEntry(NOW - 1, BASE + 2), TimeEntry(NOW, BASE + 9)):
        index.append(entry)
    assert index.ascending_count_up_to(BASE) == 0
    assert index.ascending_count_up_to(BASE + 1) == 1
    assert index.ascending_count_up_to(BASE + 2) == 0
