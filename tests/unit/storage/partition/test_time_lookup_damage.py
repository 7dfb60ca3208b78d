"""A lookup by time says so when damage hides records from it."""

from __future__ import annotations

import pytest
from tests.support.log_builders import (
    DATA,
    FOLDER,
    START_MS,
    TP,
    batch,
    new_log,
    reopen,
    small_settings,
)

from strandlog.record.batch_header import MAGIC_POSITION
from strandlog.record.codecs import Codec
from strandlog.storage.cleaning.retention import enforce_retention
from strandlog.storage.partition.time_lookup import find_latest, find_timestamp
from strandlog.storage.readonly.view import FolderView
from strandlog.storage.segment.time_index import ENTRY
from strandlog.storage.work import run_inline
from strandlog.testing import FakeClock, SimulatedFiles

MAX_TIMESTAMP_POSITION = 35


def filled() -> tuple[SimulatedFiles, list[int]]:
    """Batches of one record, ten milliseconds apart, in several segments; and the size of each."""
    files = SimulatedFiles()
    log_dir, log = new_log(files, settings=small_settings(segment_bytes=1500))
    for number in range(60):
        log.append(batch(b"value", timestamp=START_MS + 10 * number))
    log.flush()
    bases = [segment.base_offset for segment in log.segments.sealed]
    log_dir.close()
    assert len(bases) > 1
    return files, bases


@pytest.mark.parametrize("segment", [0, 1])
def test_a_damaged_timestamp_does_not_hide_a_batch_silently(segment: int) -> None:
    files, bases = filled()
    path = f"{FOLDER}/{bases[segment]:020d}.log"
    size = len(batch(b"value"))
    for number in (1, 3):
        damaged = files.after_kill()
        damaged.flip_bit(path, 8 * (number * size + MAX_TIMESTAMP_POSITION + 5))
        _, log = reopen(damaged, settings=small_settings(segment_bytes=1500))
        offset = bases[segment] + number
        found = run_inline(find_timestamp(log, START_MS + 10 * offset))
        assert found is not None
        assert found.offset == offset + 1
        assert any(path in problem for problem in log.last_report.problems)


def test_a_segment_whose_end_is_zeros_is_not_passed_over_silently() -> None:
    files, bases = filled()
    path = f"{FOLDER}/{bases[0]:020d}.log"
    whole, size = len(files.read(path)), len(batch(b"value"))
    files.write_at(path, 2 * size, bytes(whole - 2 * size))
    _, log = reopen(files, settings=small_settings(segment_bytes=1500))
    found = run_inline(find_timestamp(log, START_MS + 10 * 4))
    assert found is not None
    assert found.offset == bases[1]
    assert any(path in problem for problem in log.last_report.problems)


def with_truncated_time_index() -> SimulatedFiles:
    """A folder whose first time index lacks its last entries."""
    files, settings = SimulatedFiles(), small_settings(segment_bytes=1500, index_interval_bytes=1)
    log_dir, log = new_log(files, settings=settings)
    for number in range(60):
        log.append(batch(b"value", timestamp=START_MS + 10 * number))
    log.flush()
    log_dir.close()
    files.truncate(f"{FOLDER}/{0:020d}.timeindex", 2 * ENTRY.size)
    return files


def test_a_truncated_time_index_does_not_hide_the_rest_of_its_segment() -> None:
    files = with_truncated_time_index()
    view = FolderView(files, DATA).view(TP)
    assert view.find_timestamp(START_MS + 50) == (START_MS + 50, 5)
    _, log = reopen(files, settings=small_settings(segment_bytes=1500))
    assert run_inline(find_timestamp(log, START_MS + 50)) == (START_MS + 50, 5)
    assert any("time index" in problem for problem in log.last_report.problems)


def test_retention_does_not_take_a_truncated_time_index_for_the_age_of_a_segment() -> None:
    files = with_truncated_time_index()
    settings = small_settings(segment_bytes=1500, retention_ms=1000)
    _, log = reopen(files, settings=settings, clock=FakeClock(START_MS + 1050))
    assert enforce_retention(log) == 0
    assert log.log_start_offset == 0


def test_the_largest_visible_timestamp_is_found_behind_a_damaged_batch() -> None:
    files, settings = SimulatedFiles(), small_settings(segment_bytes=10**6)
    log_dir, log = new_log(files, settings=settings)
    for time in (900, 10, 20, 30):
        log.append(batch(b"value", timestamp=START_MS + time))
    log.roll()
    log_dir.close()
    size = len(batch(b"value"))
    files.flip_bit(f"{FOLDER}/{0:020d}.log", 8 * (size + MAGIC_POSITION))  # of offset 1
    _, log = reopen(files, settings=settings)
    log.raise_log_start(1)
    found = run_inline(find_latest(log))
    assert found is not None
    assert (found.timestamp - START_MS, found.offset) == (30, 3)
    assert any("damaged" in problem for problem in log.last_report.problems)


def test_a_time_lookup_unpacks_no_more_than_decompressed_max_bytes() -> None:
    _, log = new_log(SimulatedFiles(), settings=small_settings(), decompressed_max_bytes=10_000)
    log.append(batch(bytes(20_000), timestamp=START_MS, codec=Codec.ZSTD))
    log.append(batch(b"small", timestamp=START_MS))
    log.flush()
    assert run_inline(find_timestamp(log, START_MS)) == (START_MS, 1)
    assert run_inline(find_latest(log)) == (START_MS, 0), "the header alone says so"
    assert any("10000" in problem for problem in log.last_report.problems)
