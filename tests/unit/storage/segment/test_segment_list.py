"""Which segment answers for an offset, through rolls and replacements."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.log_builders import FOLDER

from strandlog.storage.segment.segment import (
    MAX_RELATIVE_OFFSET,
    ActiveSegment,
    Segment,
    SegmentList,
    stem_of,
)
from strandlog.testing import SimulatedFiles


def sealed(base_offset: int, size_bytes: int = 10) -> Segment:
    return Segment(stem_of(FOLDER, base_offset), base_offset, size_bytes)


def active(base_offset: int) -> ActiveSegment:
    files = SimulatedFiles()
    files.make_dir(FOLDER)
    return ActiveSegment(files, stem_of(FOLDER, base_offset), base_offset, 100, 0)


def ends(segments: SegmentList) -> list[tuple[int, int]]:
    return [(segment.base_offset, segment.end_offset) for segment in segments.sealed]


def test_a_single_active_segment_covers_every_offset() -> None:
    segments = SegmentList([], active(7))
    assert (len(segments), segments.first_base, segments.size_bytes) == (1, 7, 0)
    for offset in (0, 7, 10**12):
        assert segments.at(offset) == (segments.active, None)


@given(
    bases=st.sets(st.integers(0, 60), min_size=2, max_size=8).map(sorted),
    offset=st.integers(0, 70),
)
def test_an_offset_belongs_to_the_last_segment_that_starts_at_or_below_it(
    bases: list[int], offset: int
) -> None:
    segments = SegmentList([sealed(base) for base in bases[:-1]], active(bases[-1]))
    found, end = segments.at(offset)
    assert found.base_offset == max((b for b in bases if b <= offset), default=bases[0])
    assert end == min((b for b in bases if b > found.base_offset), default=None)
    assert [segment.base_offset for segment in segments.all()] == bases
    assert segments.first_base == bases[0]


@pytest.mark.parametrize("bases", [(5, 5, 9), (5, 3, 9), (3, 9, 9), (3, 10, 9)])
def test_segments_out_of_order_are_an_error(bases: tuple[int, int, int]) -> None:
    first, second, last = bases
    with pytest.raises(AssertionError):
        SegmentList([sealed(first), sealed(second)], active(last))


def test_every_sealed_segment_ends_where_the_next_one_begins() -> None:
    segments = SegmentList([sealed(0), sealed(5)], active(9))
    assert ends(segments) == [(0, 5), (5, 9)]
    last = sealed(9, 33)
    assert last.end_offset == 9 + MAX_RELATIVE_OFFSET + 1
    segments.roll(last, active(20))
    assert ends(segments) == [(0, 5), (5, 9), (9, 20)]
    assert (len(segments), segments.size_bytes) == (4, 53)
    assert segments.at(19) == (last, 20)
    assert segments.at(20) == (segments.active, None)


@pytest.mark.parametrize(("sealed_base", "active_base"), [(8, 20), (9, 9), (9, 3)])
def test_only_the_active_segment_is_sealed_and_the_next_lies_behind_it(
    sealed_base: int, active_base: int
) -> None:
    segments = SegmentList([sealed(0)], active(9))
    with pytest.raises(AssertionError):
        segments.roll(sealed(sealed_base), active(active_base))


def test_adjacent_segments_are_replaced_by_one() -> None:
    segments = SegmentList([sealed(0), sealed(5), sealed(9), sealed(12)], active(20))
    new = sealed(5, 3)
    segments.replace(segments.sealed[1:3], new)
    assert ends(segments) == [(0, 5), (5, 12), (12, 20)]
    assert segments.at(11) == (new, 12)
    assert segments.size_bytes == 23


def test_offsets_of_removed_segments_belong_to_the_next_segment() -> None:
    segments = SegmentList([sealed(0), sealed(5), sealed(9)], active(20))
    segments.replace(segments.sealed[:1], None)
    assert (segments.first_base, ends(segments)) == (5, [(5, 9), (9, 20)])
    assert segments.at(0)[0].base_offset == 5, "offsets below the first are its own"
    segments.replace(segments.sealed[:2], None)
    assert (segments.first_base, segments.sealed) == (20, [])


def test_segments_that_are_not_adjacent_are_not_replaced() -> None:
    segments = SegmentList([sealed(0), sealed(5), sealed(9)], active(20))
    with pytest.raises(AssertionError):
        segments.replace([segments.sealed[0], segments.sealed[2]], sealed(0))
    with pytest.raises(ValueError, match="not in list"):
        segments.replace([sealed(5)], None)
    assert ends(segments) == [(0, 5), (5, 9), (9, 20)]
