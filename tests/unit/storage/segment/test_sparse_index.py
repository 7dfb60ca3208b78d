"""The common part of both indexes: entries in memory, entries on file, and the way between."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandlog.errors import StorageError
from strandlog.storage.segment import sparse_index
from strandlog.storage.segment.sparse_index import SparseIndex, count_at_or_below
from strandlog.testing import SimulatedFiles

PAIR = struct.Struct(">ii")
PATH = "an.index"


class PairIndex(SparseIndex):
    """Entries of two numbers."""

    __slots__ = ()
    layout = PAIR


def pairs(index: PairIndex) -> list[tuple[int, ...]]:
    found = [index.entry(number) for number in range(index.size_bytes // PAIR.size)]
    return [entry for entry in found if entry is not None]


def on_file(files: SimulatedFiles) -> list[tuple[int, ...]]:
    return list(PAIR.iter_unpack(files.read(PATH))) if files.exists(PATH) else []


@pytest.fixture
def small_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse_index, "KEEP_AT_MOST_ENTRIES", 3)


ascending = st.lists(st.integers(0, 50), max_size=30).map(sorted)


@given(fields=ascending, target=st.integers(-1, 51))
def test_the_binary_search_agrees_with_a_linear_one(fields: list[int], target: int) -> None:
    entries = b"".join(PAIR.pack(7, field) for field in fields)
    expected = sum(field <= target for field in fields)
    assert count_at_or_below(entries, PAIR, 1, target) == expected
    assert count_at_or_below(memoryview(entries), PAIR, 1, target) == expected


def test_entries_reach_the_file_when_they_are_saved_and_not_before() -> None:
    files = SimulatedFiles()
    index = PairIndex(files, PATH, 0)
    index.add(PAIR.pack(1, 10))
    assert (index.unsaved_count, index.size_bytes) == (1, PAIR.size)
    assert on_file(files) == []
    index.save()
    index.add(PAIR.pack(2, 20))
    assert (index.unsaved_count, on_file(files)) == (1, [(1, 10)])
    index.save()
    index.save()
    assert (index.unsaved_count, on_file(files)) == (0, [(1, 10), (2, 20)])
    assert pairs(PairIndex(files, PATH, 0)) == [(1, 10), (2, 20)]


def test_an_index_that_was_never_saved_makes_no_file() -> None:
    files = SimulatedFiles()
    index = PairIndex(files, PATH, 0)
    index.save()
    index.keep(0)
    assert not files.exists(PATH)


@pytest.mark.parametrize("torn_bytes", range(1, PAIR.size))
def test_a_torn_tail_of_the_file_is_cut_off(torn_bytes: int) -> None:
    files = SimulatedFiles()
    files.append_to(PATH, PAIR.pack(1, 10) + PAIR.pack(2, 20) + bytes(torn_bytes))
    index = PairIndex(files, PATH, 0)
    assert files.size(PATH) == 2 * PAIR.size
    index.add(PAIR.pack(3, 30))
    index.save()
    assert on_file(files) == pairs(index) == [(1, 10), (2, 20), (3, 30)]


@pytest.mark.usefixtures("small_tail")
def test_only_a_short_tail_stays_in_memory() -> None:
    files = SimulatedFiles()
    index = PairIndex(files, PATH, 0)
    for number in range(10):
        index.add(PAIR.pack(number, number))
    assert len(index._tail) == 10 * PAIR.size, "nothing goes before it is on file"
    index.save()
    assert len(index._tail) == 3 * PAIR.size
    assert pairs(index) == [(number, number) for number in range(10)]
    assert [index.count_at_or_below(0, target) for target in (-1, 0, 6, 7, 99)] == [0, 1, 7, 8, 10]


@pytest.mark.usefixtures("small_tail")
@pytest.mark.parametrize("saved", [0, 2, 8, 10])
@pytest.mark.parametrize("kept", [0, 1, 6, 7, 8, 9, 10])
def test_keeping_the_first_entries_forgets_the_others_everywhere(saved: int, kept: int) -> None:
    files = SimulatedFiles()
    index = PairIndex(files, PATH, 0)
    for number in range(10):
        if number == saved:
            index.save()
        index.add(PAIR.pack(number, number))
    if saved == 10:
        index.save()
    index.keep(kept)
    expected = [(number, number) for number in range(kept)]
    assert pairs(index) == expected
    assert on_file(files) == expected[:saved]
    index.add(PAIR.pack(77, 77))
    index.save()
    assert on_file(files) == pairs(index) == [*expected, (77, 77)]


def test_a_save_that_failed_halfway_is_completed_by_the_next() -> None:
    files = SimulatedFiles()
    index = PairIndex(files, PATH, 0)
    index.add(PAIR.pack(1, 10))
    index.save()
    index.add(PAIR.pack(2, 20))
    files.fail_on("overwrite", PATH, written_bytes=5)
    with pytest.raises(StorageError):
        index.save()
    assert index.unsaved_count == 1
    index.add(PAIR.pack(3, 30))
    index.save()
    assert on_file(files) == pairs(index) == [(1, 10), (2, 20), (3, 30)]


operations = st.lists(
    st.one_of(st.just("add"), st.just("save"), st.just("reload"), st.integers(0, 12)), max_size=40
)


@given(steps=operations, targets=st.lists(st.integers(-1, 60), min_size=1, max_size=4))
def test_an_index_behaves_like_a_list(steps: list[str | int], targets: list[int]) -> None:
    """Whatever was added, saved, cut and opened again, lookups see a plain list."""
    files, expected = SimulatedFiles(), list[tuple[int, ...]]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sparse_index, "KEEP_AT_MOST_ENTRIES", 2)
        index = PairIndex(files, PATH, 0)
        for step in steps:
            if step == "add":
                last = expected[-1][0] if expected else 0
                expected.append((last + 2, 3 * last))
                index.add(PAIR.pack(*expected[-1]))
            elif step == "save":
                index.save()
            elif step == "reload":
                index.save()
                index = PairIndex(files, PATH, 0)
            elif isinstance(step, int):
                index.keep(min(step, len(expected)))
                del expected[step:]
        assert pairs(index) == expected
        for target in targets:
            below = sum(entry[0] <= target for entry in expected)
            assert index.count_at_or_below(0, target) == below
