"""Which segments retention deletes: the decisions, and their effect on a log."""

from __future__ import annotations

import pytest
from tests.support.log_builders import START_MS, batch, fill, new_log, offsets, small_settings

from strandlog.storage.cleaning.retention import (
    SegmentSummary,
    below_log_start,
    enforce_retention,
    expired,
    over_size,
    too_old,
)
from strandlog.testing import FakeClock, SimulatedFiles

# Four segments of 100 bytes; ten offsets and ten milliseconds each. The last one is active.
FOUR = [SegmentSummary(10 * n - 10, 10 * n, 100, START_MS + 10 * n) for n in range(1, 5)]
EMPTY_ACTIVE = [*FOUR[:3], SegmentSummary(30, 30, 0, START_MS)]


@pytest.mark.parametrize(
    ("log_start", "count"), [(0, 0), (9, 0), (10, 1), (19, 1), (20, 2), (30, 3), (40, 3)]
)
def test_segments_below_the_log_start_are_deleted_except_the_active_one(
    log_start: int, count: int
) -> None:
    assert below_log_start(FOUR, log_start) == count


@pytest.mark.parametrize(
    ("retention_bytes", "count"),
    [(-1, 0), (400, 0), (401, 0), (399, 0), (301, 0), (300, 1), (200, 2), (101, 2), (0, 3)],
)
def test_at_least_retention_bytes_stay(retention_bytes: int, count: int) -> None:
    assert over_size(FOUR, retention_bytes) == count


@pytest.mark.parametrize(
    ("age_ms", "count"), [(0, 0), (10, 0), (20, 0), (21, 1), (30, 1), (31, 2), (41, 3), (51, 4)]
)
def test_segments_go_when_their_newest_record_is_too_old(age_ms: int, count: int) -> None:
    assert too_old(FOUR, 10, START_MS + age_ms) == count
    assert too_old(FOUR, -1, START_MS + age_ms) == 0


def test_an_empty_active_segment_stays() -> None:
    assert too_old(EMPTY_ACTIVE, 10, START_MS + 10**6) == 3
    assert too_old(EMPTY_ACTIVE[3:], 10, START_MS + 10**6) == 0
    assert over_size(EMPTY_ACTIVE, 0) == 3


def test_an_emptied_segment_does_not_delay_the_expiry_of_others() -> None:
    emptied = [FOUR[0], SegmentSummary(10, 20, 0, START_MS + 10**6), *FOUR[2:]]
    assert too_old(emptied, 10, START_MS + 31) == 2


def test_a_young_segment_keeps_the_segments_after_it() -> None:
    young_first = [SegmentSummary(0, 10, 100, START_MS + 10**6), *FOUR[1:]]
    assert too_old(young_first, 10, START_MS + 1000) == 0


@pytest.mark.parametrize(
    ("policy", "log_start", "count"),
    [
        (("delete",), 0, 2),
        (("delete",), 30, 3),
        (("compact",), 0, 0),
        (("compact",), 10, 1),
        (("compact", "delete"), 0, 2),
    ],
)
def test_the_strictest_limit_counts_and_only_the_delete_policy_expires(
    policy: tuple[str, ...], log_start: int, count: int
) -> None:
    settings = small_settings(cleanup_policy=policy, retention_bytes=300, retention_ms=10)
    assert expired(FOUR, log_start, settings, START_MS + 31) == count


def test_a_log_drops_by_size_and_starts_at_a_segment() -> None:
    _, log = new_log(SimulatedFiles(), settings=small_settings(retention_bytes=1200))
    fill(log, 60)
    log.flush()
    before = log.segments.size_bytes
    assert before > 3000
    assert enforce_retention(log) > 2
    assert 1200 <= log.segments.size_bytes < 1200 + 600
    assert log.log_start_offset == log.segments.first_base
    assert offsets(log) == list(range(log.log_start_offset, 60))
    assert enforce_retention(log) == 0


def test_when_everything_is_old_an_empty_segment_stays_at_the_end() -> None:
    clock = FakeClock(START_MS)
    _, log = new_log(SimulatedFiles(), clock, small_settings(retention_ms=100))
    fill(log, 30)
    log.flush()
    clock.advance(101)
    enforce_retention(log)
    assert (len(log.segments), log.segments.size_bytes) == (1, 0)
    assert (log.log_start_offset, log.log_end_offset, offsets(log)) == (30, 30, [])
    assert enforce_retention(log) == 0


def test_records_above_the_high_watermark_are_not_deleted() -> None:
    clock = FakeClock(START_MS)
    _, log = new_log(SimulatedFiles(), clock, small_settings(retention_ms=100))
    fill(log, 12)
    log.flush()
    fill(log, 18)
    clock.advance(1000)
    enforce_retention(log)
    assert log.log_start_offset <= log.high_watermark == 12
    log.flush()
    assert offsets(log) == list(range(log.log_start_offset, 30))


def test_records_without_time_do_not_expire_from_sealed_segments() -> None:
    clock = FakeClock(START_MS)
    _, log = new_log(SimulatedFiles(), clock, small_settings(retention_ms=100))
    for _ in range(30):
        log.append(batch(b"value", timestamp=-1))
    log.roll()
    log.flush()
    clock.advance(10**9)
    assert enforce_retention(log) == 0
    assert offsets(log) == list(range(30))


def test_deleted_records_free_their_segments_whatever_the_policy() -> None:
    _, log = new_log(SimulatedFiles(), settings=small_settings(cleanup_policy=("compact",)))
    fill(log, 30)
    log.flush()
    second = log.segments.sealed[1].base_offset
    log.raise_log_start(second - 1)
    assert enforce_retention(log) == 0
    log.raise_log_start(second)
    assert enforce_retention(log) == 1
    assert offsets(log) == list(range(second, 30))
