"""When a log is compacted, how far, and which segments become one: tables."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.log_builders import START_MS, small_settings

from strandlog.storage.cleaning.policy import compaction_need, groups
from strandlog.storage.cleaning.retention import SegmentSummary
from strandlog.storage.segment.segment import MAX_RELATIVE_OFFSET, Segment

# Three sealed segments of 100 bytes, ten offsets each; the newest records are 30, 20 and 10 ms old.
THREE = [SegmentSummary(10 * n, 10 * n + 10, 100, START_MS - 30 + 10 * n) for n in range(3)]


@pytest.mark.parametrize(
    ("first_dirty", "dirty_bytes"), [(0, 300), (9, 300), (10, 200), (20, 100), (30, 0), (99, 0)]
)
def test_segments_below_the_first_dirty_offset_are_clean(
    first_dirty: int, dirty_bytes: int
) -> None:
    need = compaction_need(THREE, first_dirty, 30, small_settings(), START_MS)
    assert (need.dirty_bytes, need.total_bytes, need.end_offset) == (dirty_bytes, 300, 30)
    assert need.dirty_ratio == dirty_bytes / 300


@pytest.mark.parametrize(
    ("ratio", "first_dirty", "is_due"),
    [(0.5, 0, True), (0.5, 10, True), (0.5, 20, False), (0.3, 20, True), (0.0, 30, False)],
)
def test_a_log_is_due_when_it_is_dirtier_than_allowed(
    ratio: float, first_dirty: int, is_due: bool
) -> None:
    settings = small_settings(min_cleanable_dirty_ratio=ratio)
    assert compaction_need(THREE, first_dirty, 30, settings, START_MS).is_due is is_due


def test_the_allowed_ratio_itself_is_allowed() -> None:
    settings = small_settings(min_cleanable_dirty_ratio=0.5)
    two = THREE[:2]
    assert not compaction_need(two, 10, 20, settings, START_MS).is_due


@pytest.mark.parametrize(
    ("lag_ms", "end_offset"), [(0, 30), (10, 30), (11, 20), (20, 20), (21, 10), (31, 0)]
)
def test_records_younger_than_min_compaction_lag_and_all_after_them_wait(
    lag_ms: int, end_offset: int
) -> None:
    settings = small_settings(min_compaction_lag_ms=lag_ms)
    need = compaction_need(THREE, 0, 30, settings, START_MS)
    assert (need.end_offset, need.total_bytes) == (end_offset, 10 * end_offset)
    assert need.is_due is (end_offset > 0)


@pytest.mark.parametrize(("stable", "end_offset"), [(30, 30), (29, 20), (10, 10), (9, 0), (0, 0)])
def test_records_above_the_stable_offset_wait(stable: int, end_offset: int) -> None:
    assert compaction_need(THREE, 0, stable, small_settings(), START_MS).end_offset == end_offset


@pytest.mark.parametrize(
    ("max_lag_ms", "first_dirty", "is_due"),
    [(30, 0, False), (29, 0, True), (20, 10, False), (19, 10, True), (0, 30, False)],
)
def test_a_log_is_due_when_its_oldest_dirty_record_waits_too_long(
    max_lag_ms: int, first_dirty: int, is_due: bool
) -> None:
    settings = small_settings(min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=max_lag_ms)
    assert compaction_need(THREE, first_dirty, 30, settings, START_MS).is_due is is_due


def test_a_log_without_sealed_segments_is_not_due() -> None:
    need = compaction_need([], 0, 100, small_settings(min_cleanable_dirty_ratio=0.0), START_MS)
    assert need == (0, 0, 0, False)
    assert need.dirty_ratio == 0.0


def of_sizes(*sizes: int) -> list[Segment]:
    return [Segment(f"s{n}", 10 * n, size) for n, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((), []),
        ((600,), [[600]]),
        ((9000,), [[9000]]),
        ((300, 300, 1), [[300, 300], [1]]),
        ((100, 9000, 100, 100), [[100], [9000], [100, 100]]),
        ((0, 0, 600, 0), [[0, 0, 600, 0]]),
        ((600, 1, 599, 1), [[600], [1, 599], [1]]),
    ],
)
def test_adjacent_segments_that_fit_into_one_file_are_merged(
    sizes: tuple[int, ...], expected: list[list[int]]
) -> None:
    found = groups(of_sizes(*sizes), small_settings(), 1000)
    assert [[segment.size_bytes for segment in group] for group in found] == expected


@pytest.mark.parametrize(("beyond", "count"), [(0, 1), (1, 2)])
def test_segments_are_merged_only_if_their_offsets_fit_one_index(beyond: int, count: int) -> None:
    two = [Segment("a", 50, 10), Segment("b", 60, 10)]
    end_offset = 50 + MAX_RELATIVE_OFFSET + beyond
    assert len(groups(two, small_settings(), end_offset)) == count


@given(sizes=st.lists(st.integers(0, 900), max_size=20))
def test_groups_are_the_segments_in_order_and_only_lone_ones_are_too_large(
    sizes: list[int],
) -> None:
    segments = of_sizes(*sizes)
    found = groups(segments, small_settings(), 1000)
    assert [segment for group in found for segment in group] == segments
    totals = [sum(segment.size_bytes for segment in group) for group in found]
    assert all(total <= 600 or len(group) == 1 for total, group in zip(totals, found, strict=True))
    for (_, right), total in zip(pairwise(found), totals, strict=False):
        assert total + right[0].size_bytes > 600, "it would have fitted"
