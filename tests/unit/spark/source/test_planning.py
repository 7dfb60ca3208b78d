"""How ranges of offsets become tasks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from strandlog.model import TopicPartition
from strandlog.spark.source.planning import (
    SMALLEST_TASK_RECORDS,
    OffsetRange,
    limited,
    split,
)

A, B = TopicPartition("a", 0), TopicPartition("b", 1)

RANGES = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from("xy"), st.integers(0, 3)),
    st.tuples(st.integers(0, 10**6), st.integers(1, 10**6)),
    max_size=6,
).map(lambda found: [OffsetRange(tp, at, at + size) for tp, (at, size) in sorted(found.items())])


@given(
    RANGES,
    st.none() | st.integers(1, 50),
    st.none() | st.integers(1, 10**5).map(lambda n: n + 50_000),
    st.integers(1, 8),
)
def test_tasks_cover_the_ranges_exactly(
    ranges: list[OffsetRange], min_tasks: int | None, max_records: int | None, cores: int
) -> None:
    tasks = split(ranges, min_tasks=min_tasks, max_records=max_records, cores=cores)
    for whole in ranges:
        parts = sorted(part for part in tasks if part.tp == whole.tp)
        assert [part.start for part in parts] == [whole.start, *(part.end for part in parts[:-1])]
        assert parts[-1].end == whole.end
        assert all(part.size > 0 for part in parts)
        if max_records is not None:
            assert all(part.size <= max_records for part in parts)


def test_one_large_partition_feeds_all_cores() -> None:
    whole = [OffsetRange(A, 0, 1_000_000)]
    assert len(split(whole, min_tasks=None, max_records=None, cores=4)) == 4
    few = [OffsetRange(A, 0, SMALLEST_TASK_RECORDS)]
    assert split(few, min_tasks=None, max_records=None, cores=4) == few


def test_skewed_partitions_are_split_in_proportion() -> None:
    ranges = [OffsetRange(A, 0, 900_000), OffsetRange(B, 0, 100)]
    tasks = split(ranges, min_tasks=10, max_records=None, cores=1)
    assert len([task for task in tasks if task.tp == A]) == 9
    assert len([task for task in tasks if task.tp == B]) == 1


@given(RANGES, st.integers(1, 10**6))
def test_a_limited_batch_advances_and_stays_within_its_limit(
    ranges: list[OffsetRange], limit: int
) -> None:
    start = {each.tp: each.start for each in ranges}
    end = {each.tp: each.end for each in ranges}
    until = limited(start, end, limit)
    taken = {tp: until[tp] - start[tp] for tp in until}
    assert all(0 <= taken[tp] <= end[tp] - start[tp] for tp in taken)
    assert sum(taken.values()) <= limit + len(ranges)  # at least one of each that has any
    assert all(taken.values())


def test_tasks_are_cut_at_index_entries_unless_their_size_is_set() -> None:
    def cut(whole: OffsetRange, pieces: int) -> list[int]:
        return [whole.start + number for number in range(1, pieces)]

    whole = [OffsetRange(A, 0, 1_000_000)]
    tasks = split(whole, min_tasks=3, max_records=None, cores=1, cut=cut)
    assert [(task.start, task.end) for task in tasks] == [(0, 1), (1, 2), (2, 1_000_000)]
    tasks = split(whole, min_tasks=3, max_records=500_000, cores=1, cut=cut)
    assert max(task.size for task in tasks) <= 500_000
