"""Append, truncation and lookup: earlier bugs, named after their symptoms."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.log_builders import (
    FOLDER,
    START_MS,
    TP,
    all_records,
    batch,
    create_partition,
    fill,
    new_log,
    offsets,
    reopen,
    small_settings,
    uuids,
    values,
)

from strandlog.errors import CorruptRecordError, InvalidRecordError, StorageError
from strandlog.record.batch_header import (
    HEADER_SIZE,
    MAX_TIMESTAMP_POSITION,
    read_header,
    stamp,
)
from strandlog.record.builder import build_single
from strandlog.storage.cleaning.compaction import compact_now, plan_compaction
from strandlog.storage.cleaning.retention import enforce_retention
from strandlog.storage.files import DiskFiles
from strandlog.storage.folder.log_dir import LogDir
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.partition.read import read
from strandlog.storage.partition.time_lookup import find_timestamp
from strandlog.storage.work import run_inline
from strandlog.testing import FakeClock, SimulatedFiles
from strandlog.testing.disk.crash_outcome import ALL_LOST


def keyed(log: PartitionLog, count: int, keys: int = 3) -> None:
    """Append records whose keys repeat."""
    for _ in range(count):
        offset = log.log_end_offset
        log.append(batch(b"v%d" % offset, keys=[b"k%d" % (offset % keys)]))


# -- appending ---------------------------------------------------------------------------------


def test_a_new_batch_is_not_dropped_because_a_duplicate_came_with_it() -> None:
    _, log = new_log(SimulatedFiles())
    first, second = batch(b"a", producer=(7, 0, 0)), batch(b"b", producer=(7, 0, 1))
    log.append(first)
    with pytest.raises(InvalidRecordError, match="one at a time"):
        log.append(first + second)
    assert log.log_end_offset == 1
    assert log.append(first).is_duplicate
    assert log.append(second).base_offset == 1


def test_batches_without_a_producer_may_come_together() -> None:
    _, log = new_log(SimulatedFiles())
    result = log.append(batch(b"a") + batch(b"b", b"c") + batch(b"d"))
    assert (result.base_offset, result.last_offset) == (0, 3)
    assert values(log, unflushed=True) == [b"a", b"b", b"c", b"d"]


def test_a_closed_log_rejects_appends_and_writes_nothing() -> None:
    files = SimulatedFiles()
    log_dir, log = new_log(files)
    fill(log, 2)
    log_dir.close()
    steps = len(files.trace)
    with pytest.raises(StorageError, match="closed"):
        log.append(batch(b"late"))
    assert len(files.trace) == steps


def test_a_writable_buffer_that_could_not_be_appended_can_be_appended_again() -> None:
    files = SimulatedFiles()
    _, log = new_log(files)
    fill(log, 2)
    buffer = bytearray(batch(b"again"))
    files.fail_on("append", ".log")
    with pytest.raises(StorageError):
        log.append(buffer)
    fill(log, 1)
    assert log.append(buffer).base_offset == 3
    assert values(log, unflushed=True) == [b"v0", b"v1", b"v2", b"again"]


# -- truncating --------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [0, 1, 7, 8, 20, 29, 30])
def test_truncated_records_do_not_come_back_after_a_power_cut(cut: int) -> None:
    files = SimulatedFiles()
    _, log = new_log(files)
    fill(log, 30)
    log.truncate_to(cut)
    assert offsets(log) == list(range(cut))
    _, restarted = reopen(files.after_crash(ALL_LOST))
    assert offsets(restarted) == list(range(cut))
    assert restarted.log_end_offset == 30
    assert restarted.append(batch(b"next")).base_offset == 30


def test_truncated_records_do_not_come_back_with_a_compaction_that_was_under_way() -> None:
    _, log = new_log(SimulatedFiles())
    keyed(log, 30)
    log.roll()
    log.flush()
    plan = plan_compaction(log, 0, log.high_watermark)
    assert plan is not None
    plan.execute()
    log.truncate_to(10)
    left = all_records(log)
    run_inline(plan.complete())
    assert [r for r in all_records(log) if r.offset >= 10] == []
    assert set(all_records(log)) <= set(left)


def test_a_reader_keeps_what_it_holds_while_the_log_is_truncated(tmp_path: Path) -> None:
    """Truncating a mapped file would kill the process that reads the mapping."""
    log_dir = LogDir(str(tmp_path / "data"), DiskFiles(), FakeClock(START_MS), uuids())
    create_partition(log_dir, TP, "id", small_settings())
    log = log_dir.logs[TP]
    fill(log, 30)
    log.flush()
    held = read(log, 9, 10_000)
    copy = bytes(held)
    log.truncate_to(10)
    assert bytes(held) == copy
    assert offsets(log) == list(range(10))
    log_dir.close()


def test_truncation_between_two_batches_of_one_segment_keeps_the_first() -> None:
    _, log = new_log(SimulatedFiles(), settings=small_settings(segment_bytes=10**6))
    log.append(batch(b"a", b"b", b"c") + batch(b"d", b"e"))
    log.truncate_to(3)
    assert offsets(log) == [0, 1, 2]
    log.truncate_to(1)
    assert offsets(log) == [], "the batch that holds the offset goes as a whole"
    assert log.log_end_offset == 5


# -- compaction --------------------------------------------------------------------------------


def test_a_segment_removed_during_its_compaction_raises_storage_error() -> None:
    clock = FakeClock(START_MS)
    settings = small_settings(cleanup_policy=("compact", "delete"), retention_ms=1000)
    _, log = new_log(SimulatedFiles(), clock, settings)
    keyed(log, 30)
    log.roll()
    log.flush()
    plan = plan_compaction(log, 0, log.high_watermark)
    clock.advance(60_000)
    enforce_retention(log)
    assert plan is not None
    with pytest.raises(StorageError, match="removed while it was being compacted"):
        plan.execute()


def test_a_cleaner_checkpoint_beyond_the_log_end_does_not_bring_deleted_keys_back() -> None:
    """A mark beyond the end was taken for a clean log, in which tombstones go first."""
    clock = FakeClock(START_MS)
    _, log = new_log(SimulatedFiles(), clock, small_settings(delete_retention_ms=0))
    keyed(log, 9)
    log.append(batch(None, None, None, keys=[b"k0", b"k1", b"k2"], timestamp=clock.now_ms()))
    log.roll()
    log.flush()
    for _ in range(3):
        plan = plan_compaction(log, 10**6, log.high_watermark)
        assert plan is not None
        plan.execute()
        run_inline(plan.complete())
        clock.advance(1)
    assert values(log) == []


def test_a_start_reports_no_problem_after_compaction_removed_the_last_records() -> None:
    clock = FakeClock(START_MS)
    files = SimulatedFiles()
    settings = small_settings(delete_retention_ms=0)
    _, log = new_log(files, clock, settings)
    keyed(log, 9)
    log.append(batch(None, keys=[b"k0"], timestamp=clock.now_ms()))
    for _ in range(2):
        compact_now(log)
        clock.advance(1)
    for disk in (files.after_kill(), files.after_crash(ALL_LOST)):
        _, restarted = reopen(disk, clock, settings)
        assert restarted.log_end_offset == 10
        assert restarted.last_report.problems == []


# -- lookups by time ---------------------------------------------------------------------------


def damaged_log(bit: int, segment_bytes: int = 600) -> tuple[PartitionLog, SimulatedFiles]:
    """A log whose second batch has a flipped bit; each record is 10 ms younger than the last."""
    files, clock = SimulatedFiles(), FakeClock(START_MS)
    settings = small_settings(segment_bytes=segment_bytes)
    log_dir, log = new_log(files, clock, settings)
    fill(log, 30, advance_ms=10)
    log_dir.close()
    path = f"{FOLDER}/{0:020d}.log"
    size = read_header(files.read(path)).size_bytes
    files.flip_bit(path, 8 * size + bit)
    return reopen(files, clock, settings)[1], files


def test_a_time_lookup_finds_records_after_damage() -> None:
    log, _ = damaged_log(8 * (HEADER_SIZE + 3))
    for offset in range(30):
        found = run_inline(find_timestamp(log, START_MS + 10 * offset))
        expected = 2 if offset == 1 else offset
        assert found == (START_MS + 10 * expected, expected)
    assert any("checksum" in problem for problem in log.last_report.problems)
    count = len(log.last_report.problems)
    run_inline(find_timestamp(log, START_MS + 10))
    assert len(log.last_report.problems) == count, "what is known is not said again"


def test_a_timestamp_damaged_into_the_future_does_not_hide_later_segments() -> None:
    log, _ = damaged_log(8 * MAX_TIMESTAMP_POSITION + 5)  # some hundred thousand years ahead
    assert run_inline(find_timestamp(log, START_MS + 290)) == (START_MS + 290, 29)
    assert run_inline(find_timestamp(log, START_MS + 291)) is None


@pytest.mark.slow
def test_a_damaged_time_index_does_not_skip_the_first_of_several_equal_timestamps() -> None:
    """Many batches may have one timestamp; the index names the first of them."""
    files, clock = SimulatedFiles(), FakeClock(START_MS)
    settings = small_settings(segment_bytes=10**6)
    log_dir, log = new_log(files, clock, settings)
    fill(log, 8, advance_ms=10)
    clock.advance(1000)
    fill(log, 30)
    clock.advance(1000)
    fill(log, 8, advance_ms=10)
    log.roll()
    log_dir.close()
    path = f"{FOLDER}/{0:020d}.timeindex"
    wanted = START_MS + 1080
    for bit in range(8 * files.size(path)):
        disk = files.after_kill()
        disk.flip_bit(path, bit)
        assert run_inline(find_timestamp(reopen(disk, clock, settings)[1], wanted)) == (wanted, 8)


# -- opening -----------------------------------------------------------------------------------


def test_a_start_after_a_power_cut_scans_only_the_tail() -> None:
    files = SimulatedFiles()
    _, log = new_log(files)
    for _ in range(40):
        fill(log, 3)
        log.flush()
    total = log.segments.size_bytes
    _, restarted = reopen(files.after_crash(ALL_LOST))
    assert offsets(restarted) == list(range(120))
    assert restarted.last_report.scanned_bytes < total / 4


def test_garbage_in_an_index_that_was_never_synced_is_discarded() -> None:
    files = SimulatedFiles()
    log_dir, log = new_log(files)
    log_dir.abandon()
    stem = log.segments.active.stem
    files.append_to(stem + ".log", b"")
    files.append_to(stem + ".index", b"\xff" * 16 + b"\x00" * 7)
    files.append_to(stem + ".timeindex", b"\x80" * 30)
    log_dir, log = reopen(files)
    fill(log, 30)
    log_dir.close()
    _, log = reopen(files)
    assert offsets(log) == list(range(30))
    assert log.last_report.is_clean
    assert log.last_report.scanned_bytes == 0


def test_indexes_without_a_log_are_removed() -> None:
    files = SimulatedFiles()
    log_dir, log = new_log(files)
    fill(log, 10)
    log_dir.close()
    for suffix in (".index", ".timeindex", ".txnindex"):
        files.append_to(f"{FOLDER}/{99:020d}{suffix}", b"12345678")
    _, log = reopen(files)
    assert offsets(log) == list(range(10))
    assert not any(name.startswith(f"{99:020d}") for name in files.list_dir(FOLDER))


def test_a_partition_with_an_empty_transaction_marker_opens() -> None:
    files = SimulatedFiles()
    _, log = new_log(files)
    fill(log, 2)
    marker = build_single(START_MS, b"", b"", producer_id=5, producer_epoch=0, is_control=True)
    with pytest.raises(CorruptRecordError):
        log.append(marker, is_control=True)
    stamp(marker, log.log_end_offset, 0)
    log.segments.active.append([marker], len(marker), log.log_end_offset, START_MS)
    log.log_end_offset += 1
    fill(log, 2)
    _, restarted = reopen(files.after_kill())
    assert offsets(restarted) == [0, 1, 3, 4]
    assert any("marker" in problem for problem in restarted.last_report.problems)
