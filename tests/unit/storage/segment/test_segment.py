"""One segment: when index entries are added, and when the log rolls."""

from __future__ import annotations

import pytest
from tests.support.log_builders import FOLDER, START_MS, batch, fill, new_log, small_settings

from strandlog.config.tables.topic import LogSettings
from strandlog.record.batch_header import read_header
from strandlog.storage.segment.segment import (
    MAX_RELATIVE_OFFSET,
    SAVE_AT_ENTRIES,
    ActiveSegment,
    Segment,
    SegmentIndexes,
    stem_of,
)
from strandlog.testing import FakeClock, SimulatedFiles

STEM = f"{FOLDER}/{100:020d}"


def active(base_offset: int = 100, created_ms: int = START_MS) -> ActiveSegment:
    files = SimulatedFiles()
    files.make_dir(FOLDER)
    return ActiveSegment(files, stem_of(FOLDER, base_offset), base_offset, 100, created_ms)


def grown(size: int, first_timestamp: int = START_MS, base_offset: int = 100) -> ActiveSegment:
    segment = active(base_offset)
    segment.append([bytes(size)], size, base_offset, first_timestamp)
    return segment


def rolls(
    segment: ActiveSegment,
    settings: LogSettings,
    *,
    size: int = 100,
    last_offset: int = 101,
    max_timestamp: int = START_MS,
    now_ms: int = START_MS,
) -> bool:
    return segment.should_roll(size, last_offset, max_timestamp, now_ms, settings)


def test_a_segment_lists_the_paths_of_its_files() -> None:
    segment = Segment(STEM, 100, 5)
    assert segment.log_path == "data/events-0/00000000000000000100.log"
    suffixes = [path.removeprefix(STEM) for path in segment.paths]
    assert suffixes == [".log", ".index", ".timeindex", ".txnindex"]


@pytest.mark.parametrize(("size", "expected"), [(499, False), (500, False), (501, True)])
def test_a_segment_rolls_before_it_grows_too_large(size: int, expected: bool) -> None:
    assert rolls(grown(100), small_settings(), size=size) is expected


def test_an_empty_segment_takes_a_batch_of_any_size_and_age() -> None:
    segment = active(created_ms=0)
    assert not rolls(segment, small_settings(), size=10**9, max_timestamp=2**60)


@pytest.mark.parametrize(("relative", "expected"), [(0, False), (1, True)])
def test_a_segment_rolls_when_offsets_no_longer_fit_the_index(
    relative: int, expected: bool
) -> None:
    last_offset = 100 + MAX_RELATIVE_OFFSET + relative
    assert rolls(grown(100), small_settings(), last_offset=last_offset) is expected


@pytest.mark.parametrize(("age_ms", "expected"), [(0, False), (1000, False), (1001, True)])
def test_a_segment_rolls_by_the_time_of_its_records(age_ms: int, expected: bool) -> None:
    settings = small_settings(segment_ms=1000)
    later = START_MS + age_ms
    assert rolls(grown(100), settings, max_timestamp=later) is expected
    # What the clock says does not matter then: a replay of old data rolls alike.
    assert rolls(grown(100), settings, max_timestamp=later, now_ms=START_MS + 10**6) is expected


@pytest.mark.parametrize(("age_ms", "expected"), [(1000, False), (1001, True)])
def test_records_without_time_roll_by_the_clock(age_ms: int, expected: bool) -> None:
    settings = small_settings(segment_ms=1000)
    now_ms = START_MS + age_ms
    assert rolls(grown(100, -1), settings, max_timestamp=-1, now_ms=now_ms) is expected
    assert rolls(grown(100), settings, max_timestamp=-1, now_ms=now_ms) is expected


def test_jitter_differs_by_segment_and_is_the_same_in_every_run() -> None:
    settings = small_settings(segment_ms=1000, segment_jitter_ms=900)

    def first_age(base_offset: int) -> int:
        segment = grown(100, base_offset=base_offset)
        ages = (
            age
            for age in range(1002)
            if rolls(segment, settings, last_offset=base_offset + 1, max_timestamp=START_MS + age)
        )
        return next(ages)

    found = [first_age(base_offset) for base_offset in range(100, 120)]
    assert found == [first_age(base_offset) for base_offset in range(100, 120)]
    assert all(100 < age <= 1001 for age in found)
    assert len(set(found)) > 10


def test_a_log_rolls_when_an_index_is_full() -> None:
    settings = small_settings(segment_bytes=10**6, segment_index_bytes=128)
    _, log = new_log(SimulatedFiles(), settings=settings)
    fill(log, 100, advance_ms=1)
    assert len(log.segments) > 3
    for segment in log.segments.sealed:
        times = log.context.files.size(segment.stem + ".timeindex")
        assert 100 < times <= 128 + 12  # the largest timestamp may come on top when it is sealed


def test_a_log_rolls_at_its_size_and_each_file_is_named_by_its_first_offset() -> None:
    files = SimulatedFiles()
    _, log = new_log(files)
    fill(log, 30)
    for segment in log.segments.all():
        data = files.read(segment.log_path)
        assert read_header(data).base_offset == segment.base_offset
        assert 0 < len(data) == segment.size_bytes <= 600


def test_a_log_rolls_when_the_first_record_is_old() -> None:
    clock = FakeClock(START_MS)
    _, log = new_log(SimulatedFiles(), clock, small_settings(segment_ms=100, segment_bytes=10**6))
    fill(log, 50, advance_ms=10)
    assert [segment.base_offset for segment in log.segments.all()] == [0, 11, 22, 33, 44]


def test_an_index_entry_is_added_after_every_index_interval() -> None:
    indexes = SegmentIndexes(SimulatedFiles(), "s", 100, 100)
    found = []
    for number in range(8):
        indexes.note(number * 60, 60, 100 + number, START_MS + number)
        found.append(indexes.offsets.size_bytes // 8)
    assert found == [0, 0, 1, 1, 2, 2, 3, 3]
    assert indexes.offsets.last == (106, 360)
    assert indexes.times.last == (START_MS + 6, 106)
    assert indexes.size_bytes == 3 * 12


def test_the_time_index_takes_new_maxima_only_and_ends_with_the_largest() -> None:
    files = SimulatedFiles()
    indexes = SegmentIndexes(files, "s", 0, 0)
    for number, timestamp in enumerate([50, 40, 50, 45, 70, 60, 60]):
        indexes.note(number * 100, 100, number, timestamp)
    assert indexes.offsets.size_bytes // 8 == 6
    indexes.finish()
    times = SegmentIndexes(files, "s", 0, 0).times
    assert [times.entry(n) for n in range(times.size_bytes // 12)] == [(50, 0), (70, 4)]
    indexes.finish()
    assert files.size("s.timeindex") == 24, "finishing twice adds nothing"


def test_index_entries_are_saved_in_groups_without_a_call_to_save() -> None:
    files = SimulatedFiles()
    indexes = SegmentIndexes(files, "s", 0, 0)
    for number in range(SAVE_AT_ENTRIES + 1):
        assert not files.exists("s.index")
        indexes.note(number * 100, 100, number, START_MS + number)
    assert files.size("s.index") == 8 * SAVE_AT_ENTRIES


def test_index_entries_that_could_not_be_saved_are_saved_with_the_next_ones() -> None:
    files = SimulatedFiles()
    indexes = SegmentIndexes(files, "s", 0, 0)
    files.fail_on("overwrite", "s.", count=1)
    for number in range(SAVE_AT_ENTRIES + 1):
        indexes.note(number * 100, 100, number, START_MS + number)
    indexes.note(10**6, 100, 10**6, START_MS + 10**6)
    assert indexes.offsets.unsaved_count == 0
    assert files.size("s.index") == 8 * (SAVE_AT_ENTRIES + 1)


def test_a_sealed_segment_keeps_size_and_largest_timestamp() -> None:
    segment = active()
    for number, timestamp in enumerate([5, 9, 7]):
        segment.append([batch(b"v")], 80, 100 + number, timestamp)
    sealed = segment.seal()
    assert (sealed.base_offset, sealed.size_bytes, sealed.stem) == (100, 240, STEM)
    assert sealed.largest == (9, 101)
    assert type(sealed) is Segment


def test_a_jitter_above_segment_ms_does_not_roll_every_batch() -> None:
    settings = small_settings(segment_bytes=10**6, segment_ms=1000, segment_jitter_ms=10**9)
    _, log = new_log(SimulatedFiles(), settings=settings)
    fill(log, 1)
    log.roll()  # the first segment of a log has no jitter
    fill(log, 20)
    assert len(log.segments) < 20


def test_a_segment_has_both_index_files_or_none() -> None:
    files = SimulatedFiles()
    files.make_dir(FOLDER)
    segment = ActiveSegment(files, stem_of(FOLDER, 100), 100, 100, START_MS)
    segment.append([bytes(50)], 50, 100, START_MS)
    segment.indexes.save()
    assert not {f"{STEM}.index", f"{STEM}.timeindex"} & _files_in(files)
    segment.seal()  # notes the largest timestamp; a segment this small has no offset entry
    assert {f"{STEM}.index", f"{STEM}.timeindex"} <= _files_in(files)
    assert files.size(f"{STEM}.index") == 0


def test_entries_without_timestamps_make_both_index_files() -> None:
    files = SimulatedFiles()
    files.make_dir(FOLDER)
    segment = ActiveSegment(files, stem_of(FOLDER, 100), 100, 100, START_MS)
    for number in range(3):
        segment.append([bytes(90)], 90, 100 + number, -1)
    segment.indexes.save()
    assert {f"{STEM}.index", f"{STEM}.timeindex"} <= _files_in(files)


def _files_in(files: SimulatedFiles) -> set[str]:
    return {f"{FOLDER}/{name}" for name in files.list_dir(FOLDER)}
