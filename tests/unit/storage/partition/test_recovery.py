"""Recovery after any stop: what is scanned, truncated, kept and reported."""

from __future__ import annotations

from typing import cast

import pytest
from tests.support.log_builders import (
    FOLDER,
    START_MS,
    TP,
    CountingFiles,
    all_records,
    batch,
    fill,
    iter_records,
    new_log,
    offsets,
    open_dir,
    reopen,
    small_settings,
    values,
)

from strandlog.errors import CorruptSegmentError
from strandlog.record.batch_header import MAGIC_POSITION, read_header
from strandlog.record.control import ControlType, control_batch
from strandlog.storage.files import Files
from strandlog.storage.folder.log_dir import UNSEEN_OFFSETS
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.partition.recovery import Recovery
from strandlog.storage.partition.time_lookup import find_timestamp
from strandlog.storage.work import run_inline
from strandlog.testing import FakeClock, SimulatedFiles


def positions(files: SimulatedFiles, path: str) -> list[int]:
    """Where the batches of a file begin, and where the last one ends."""
    data, found = files.read(path), [0]
    while found[-1] < len(data):
        found.append(found[-1] + read_header(data, found[-1]).size_bytes)
    return found


def readable(log: PartitionLog) -> list[int]:
    """The offsets that a reader gets if it continues after damage."""
    found, start = list[int](), log.log_start_offset
    while start < log.high_watermark:
        try:
            for record in iter_records(log, start):
                found.append(record.offset)
                start = record.offset + 1
            break
        except CorruptSegmentError as damage:
            if damage.resume_offset is not None:
                assert damage.resume_offset > start or damage.resume_offset not in found
                start = max(start + 1, damage.resume_offset)
            else:
                start += 1
    return found


def damaged_names(files: SimulatedFiles) -> list[str]:
    return sorted(name for name in files.list_dir(FOLDER) if name.endswith(".damaged"))


# -- how much is read --------------------------------------------------------------------------


def test_a_start_after_a_clean_stop_scans_and_changes_nothing() -> None:
    files = SimulatedFiles()
    log_dir, log = new_log(files)
    fill(log, 60)
    log_dir.close()
    log_dir, log = reopen(files)
    assert (log.last_report.scanned_bytes, log.last_report.is_clean) == (0, True)
    before = {path: data for path, data in files.contents().items() if FOLDER in path}
    log_dir.close()
    after = {path: data for path, data in files.contents().items() if FOLDER in path}
    assert after == before
    assert offsets(reopen(files)[1]) == list(range(60))


def test_a_start_after_a_kill_scans_only_from_the_last_snapshot() -> None:
    files = SimulatedFiles()
    log_dir, log = new_log(files)
    fill(log, 60)
    log_dir.close()
    large = small_settings(segment_bytes=10**6)
    _, log = reopen(files, settings=large)
    before = log.segments.size_bytes
    fill(log, 9)
    log.flush()
    fill(log, 4)
    written = log.segments.size_bytes - before
    _, log = reopen(files.after_kill(), settings=large)
    assert log.last_report.scanned_bytes == written
    assert log.last_report.is_clean
    assert offsets(log) == list(range(73))


def test_a_start_scans_little_after_a_flush_that_follows_a_roll() -> None:
    files = SimulatedFiles()
    _, log = new_log(files)
    fill(log, 60)
    log.flush()
    fill(log, 1)
    _, log = reopen(files.after_kill())
    assert 0 < log.last_report.scanned_bytes < 100 < log.segments.size_bytes
    assert offsets(log) == list(range(61))


def test_without_a_recovery_point_the_whole_log_is_scanned_and_nothing_is_lost() -> None:
    files = SimulatedFiles()
    log_dir, log = new_log(files)
    fill(log, 60)
    log_dir.close()
    for name in files.list_dir(FOLDER):
        if not name.endswith(".log"):
            files.remove(f"{FOLDER}/{name}")
    _, log = reopen(files)
    assert log.last_report.scanned_bytes == log.segments.size_bytes
    assert log.last_report.problems == [
        f"{FOLDER}/recovery-point is missing or empty; the whole log was read"
    ]
    assert offsets(log) == list(range(60))


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot"])
def test_missing_indexes_and_snapshots_are_rebuilt(suffix: str) -> None:
    files, clock = SimulatedFiles(), FakeClock(START_MS)
    log_dir, log = new_log(files, clock)
    fill(log, 60, advance_ms=10)
    log.append(batch(b"v60", producer=(7, 0, 5), timestamp=clock.now_ms()))
    log_dir.close()
    for name in files.list_dir(FOLDER):
        if name.endswith(suffix):
            files.remove(f"{FOLDER}/{name}")
    _, log = reopen(files, clock)
    assert offsets(log) == list(range(61))
    for number in range(60):
        at = START_MS + 10 * number
        assert run_inline(find_timestamp(log, at)) == (at, number)
    assert log.append(batch(b"v60", producer=(7, 0, 5), timestamp=clock.now_ms())).is_duplicate


def test_the_active_segment_rolls_at_the_same_offsets_after_a_kill() -> None:
    files = SimulatedFiles()
    _, log = new_log(files)
    fill(log, 8)
    log.flush()
    again = reopen(files.after_kill())[1]
    for one in (log, again):
        fill(one, 30)
        one.flush()
    bases = [segment.base_offset for segment in log.segments.all()]
    assert [segment.base_offset for segment in again.segments.all()] == bases
    assert all_records(again) == all_records(log)


# -- torn tails --------------------------------------------------------------------------------


def test_wherever_the_tail_is_torn_it_is_cut_off_and_counted() -> None:
    files = SimulatedFiles()
    _, log = new_log(files)
    fill(log, 2)
    log.flush()
    fill(log, 3)
    path = log.segments.active.log_path
    starts = positions(files, path)
    for cut in range(starts[2], starts[-1] + 1):
        disk = files.after_kill()
        disk.truncate(path, cut)
        _, log = reopen(disk)
        whole = sum(start <= cut for start in starts) - 1
        assert log.last_report.torn_bytes == cut - starts[whole]
        assert log.last_report.problems == []
        assert disk.size(path) == starts[whole]
        assert offsets(log) == list(range(whole))
        assert log.append(batch(b"next")).base_offset == whole


@pytest.mark.parametrize("noise", [bytes(10), bytes(500), b"\xff" * 500, b"\x02" * 500])
def test_garbage_after_the_last_batch_is_cut_off(noise: bytes) -> None:
    files = SimulatedFiles()
    log_dir, log = new_log(files)
    fill(log, 5)
    path = log.segments.active.log_path
    log_dir.close()
    size = files.size(path)
    files.append_to(path, noise)
    _, log = reopen(files)
    assert (log.last_report.torn_bytes, files.size(path)) == (len(noise), size)
    assert (offsets(log), log.log_end_offset) == (list(range(5)), 5)


def test_intact_batches_after_damage_are_set_aside_and_their_offsets_are_not_reused() -> None:
    files = SimulatedFiles()
    _, log = new_log(files)
    fill(log, 3)
    log.flush()
    fill(log, 3)
    path = log.segments.active.log_path
    starts = positions(files, path)
    disk = files.after_kill()
    disk.flip_bit(path, 8 * (starts[5] - 1))  # the fifth batch; the sixth is whole
    tail = disk.read(path)[starts[4] :]
    _, log = reopen(disk)
    assert offsets(log) == [0, 1, 2, 3]
    assert log.log_end_offset == 6
    assert log.append(batch(b"v6")).base_offset == 6
    log.flush()
    (name,) = damaged_names(disk)
    assert disk.read(f"{FOLDER}/{name}") == tail
    assert name in log.last_report.problems[0]
    assert offsets(reopen(disk.after_kill())[1]) == [0, 1, 2, 3, 6]


def test_damage_above_the_recovery_point_sets_later_segments_aside() -> None:
    files = SimulatedFiles()
    _, log = new_log(files)
    fill(log, 3)
    log.flush()
    fill(log, 27)
    first, *later = log.segments.all()
    assert len(later) > 2
    starts = positions(files, first.log_path)
    disk = files.after_kill()
    disk.flip_bit(first.log_path, 8 * (starts[5] - 1))
    _, log = reopen(disk)
    assert (offsets(log), log.log_end_offset) == ([0, 1, 2, 3], 30)
    assert len(damaged_names(disk)) == 1 + len(later)
    fill(log, 5)
    log.flush()
    assert offsets(reopen(disk.after_kill())[1]) == [0, 1, 2, 3, *range(30, 35)]


# -- damage ------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 2, 4])
@pytest.mark.parametrize("recovers_all", [False, True])
def test_damage_below_the_recovery_point_keeps_everything_after_it(
    number: int, recovers_all: bool
) -> None:
    files = SimulatedFiles()
    _, log = new_log(files)
    fill(log, 30)
    log.flush()
    segment = log.segments.sealed[1]
    starts = positions(files, segment.log_path)
    lost = segment.base_offset + number
    disk = files.after_kill()
    disk.flip_bit(segment.log_path, 8 * (starts[number + 1] - 1))
    before = disk.read(segment.log_path)
    if recovers_all:
        for name in disk.list_dir(FOLDER):
            if name.endswith(".snapshot"):
                disk.remove(f"{FOLDER}/{name}")
    _, log = reopen(disk)
    assert log.log_end_offset == 30
    assert log.last_report.torn_bytes == 0
    assert disk.read(segment.log_path) == before, "the bytes stay where they are"
    assert readable(log) == [offset for offset in range(30) if offset != lost]
    if log.last_report.scanned_bytes:
        (problem,) = log.last_report.problems
        assert f"offsets {lost} to {lost} are unreadable" in problem
        (name,) = damaged_names(disk)
        assert disk.read(f"{FOLDER}/{name}") == before[starts[number] : starts[number + 1]]


def test_a_missing_end_is_reported_and_its_offsets_are_not_reused() -> None:
    files = SimulatedFiles()
    _, log = new_log(files)
    fill(log, 5)
    log.flush()
    path = log.segments.active.log_path
    disk = files.after_kill()
    disk.truncate(path, positions(files, path)[3])
    _, log = reopen(disk)
    assert (offsets(log), log.log_end_offset) == ([0, 1, 2], 5)
    assert any("3 to 4" in problem for problem in log.last_report.problems)
    assert log.append(batch(b"v5")).base_offset == 5
    log.flush()
    assert values(reopen(disk.after_kill())[1]) == [b"v0", b"v1", b"v2", b"v5"]


@pytest.mark.parametrize("kept_batches", [0, 3, 5])
def test_offsets_are_not_reused_if_the_recovery_point_and_the_end_of_the_log_are_lost(
    kept_batches: int,
) -> None:
    """The checkpoint is older than the lost records, so only a gap keeps their offsets unused."""
    files = SimulatedFiles()
    _, log = new_log(files)
    fill(log, 5)
    log.flush()
    path = log.segments.active.log_path
    disk = files.after_kill()
    disk.truncate(path, positions(files, path)[kept_batches])
    disk.remove(f"{FOLDER}/recovery-point")
    log_dir = open_dir(disk)
    log = log_dir.open_partition(TP, small_settings(), was_created=True)
    assert offsets(log) == list(range(kept_batches))
    end = log.log_end_offset
    assert end == kept_batches + UNSEEN_OFFSETS
    assert any(f"continues at offset {end}" in problem for problem in log.last_report.problems)
    assert log.append(batch(b"next")).base_offset == end
    log.flush()
    log_dir = open_dir(disk.after_kill())
    log = log_dir.open_partition(TP, small_settings(), was_created=True)
    assert offsets(log) == [*range(kept_batches), end]
    assert log.last_report.is_clean


def test_a_log_without_segments_continues_at_its_old_end_offset() -> None:
    files = SimulatedFiles()
    log_dir, log = new_log(files)
    fill(log, 30)
    log_dir.close()
    for name in files.list_dir(FOLDER):
        if name.endswith((".log", "index")):
            files.remove(f"{FOLDER}/{name}")
    _, log = reopen(files)
    assert (log.log_start_offset, log.log_end_offset) == (30, 30)
    assert log.append(batch(b"v30")).base_offset == 30


def test_a_second_start_has_nothing_to_repair() -> None:
    files = SimulatedFiles()
    _, log = new_log(files)
    fill(log, 20)
    log.flush()
    fill(log, 3)
    disk = files.after_kill()
    path = log.segments.active.log_path
    disk.truncate(path, disk.size(path) - 5)
    log_dir, log = reopen(disk)
    assert not log.last_report.is_clean
    left = all_records(log)
    log_dir.close()
    _, log = reopen(disk)
    assert (log.last_report.is_clean, log.last_report.scanned_bytes) == (True, 0)
    assert all_records(log) == left


def test_a_start_after_a_clean_stop_needs_few_disk_operations() -> None:
    """With 50,000 partitions, every call costs a second."""
    files = SimulatedFiles()
    log_dir, log = new_log(files)
    log.append(batch(b"v", producer=(7, 0, 0)))
    log_dir.close()
    counting = CountingFiles(files)
    log_dir = open_dir(cast("Files", counting))
    counting.calls.clear()
    log = log_dir.open_partition(TP, small_settings())
    assert log.log_end_offset == 1
    assert counting.calls["list_dir"] == 1
    assert counting.calls.total() <= 9


def test_a_damaged_abort_marker_is_reported_with_the_transactions_that_were_open() -> None:
    files = SimulatedFiles()
    _, log = new_log(files, settings=small_settings(segment_bytes=1_000_000))
    log.append(batch(b"aborted", producer=(7, 0, 0), transactional=True))
    position = log.segments.active.size_bytes
    for kind, sequence in ((ControlType.ABORT, 1), (ControlType.COMMIT, 2)):
        marker = control_batch(kind, 7, 0, START_MS)
        log.append(marker, is_control=True, from_coordinator=True)
        log.append(batch(b"committed", producer=(7, 0, sequence), transactional=True))
    log.flush()
    for name in [name for name in files.list_dir(FOLDER) if name.endswith(".snapshot")]:
        files.remove(f"{FOLDER}/{name}")
    files.write_at(log.segments.active.log_path, position + MAGIC_POSITION, b"\xff")
    report = Recovery(files, FOLDER, small_settings(), START_MS).run().report
    unknown = [problem for problem in report.problems if "is unknown" in problem]
    assert len(unknown) == 1
    assert "the damage at offset 1 may include the end of" in unknown[0]
    assert "producer 7 from offset 0" in unknown[0]
