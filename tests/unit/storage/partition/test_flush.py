"""Group commit, failed syncs and full disks: what is acknowledged is on disk, always.

The simulated disk lies as ext4 does: after a sync has failed, the next one succeeds and saves
nothing. A power cut (`all_lost`) then shows the loss.
"""

from __future__ import annotations

import errno

import pytest
from tests.support.log_builders import (
    FOLDER,
    TP,
    all_records,
    batch,
    create_partition,
    fill,
    new_log,
    offsets,
    reopen,
    small_settings,
    values,
)

from strandlog.errors import DiskFullError, StorageError
from strandlog.storage.cleaning.compaction import compact_now
from strandlog.storage.cleaning.retention import enforce_retention
from strandlog.storage.file_remover import EVERYTHING_MS
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.partition.recovery_point import write_recovery_point
from strandlog.storage.paths import SNAPSHOT_SUFFIX
from strandlog.storage.readonly.verify import look_at_partition
from strandlog.storage.work import run_inline
from strandlog.testing import FakeClock, SimulatedFiles, Step
from strandlog.testing.disk.crash_outcome import ALL_LOST


def after_power_cut(files: SimulatedFiles) -> PartitionLog:
    """The log when everything that was not synced is gone."""
    return reopen(files.after_crash(ALL_LOST))[1]


def test_flush_on_an_empty_partition_does_nothing() -> None:
    files = SimulatedFiles()
    _, log = new_log(files)
    steps = len(files.trace)
    log.flush()
    assert log.flush_plan() is None
    assert len(files.trace) == steps
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (0, 0, 0)


def test_readers_see_nothing_that_is_not_flushed() -> None:
    _, log = new_log(SimulatedFiles())
    fill(log, 3)
    assert (log.high_watermark, log.unflushed_count) == (0, 3)
    assert all_records(log) == []
    log.flush()
    assert values(log) == [b"v0", b"v1", b"v2"]


def test_with_page_cache_durability_readers_see_what_is_written() -> None:
    _, log = new_log(SimulatedFiles(), log_durability="page_cache")
    fill(log, 3)
    assert log.high_watermark == 3
    assert log.flushed_offset == 0
    assert offsets(log) == [0, 1, 2]


def test_a_flush_survives_a_power_cut() -> None:
    files = SimulatedFiles()
    _, log = new_log(files)
    fill(log, 20)
    log.flush()
    fill(log, 5)
    assert offsets(after_power_cut(files)) == list(range(20))


# -- plans that are executed late, out of order or never ---------------------------------------


def test_a_plan_completed_late_does_not_count_for_records_appended_since() -> None:
    files = SimulatedFiles()
    _, log = new_log(files)
    fill(log, 2)
    plan = log.flush_plan()
    assert plan is not None
    plan.execute()
    fill(log, 2)
    log.roll()
    log.flush_completed(plan)
    fill(log, 1)
    log.flush()
    assert log.high_watermark == 5
    assert offsets(after_power_cut(files)) == [0, 1, 2, 3, 4]


def test_a_newer_plan_also_syncs_the_directory_entries_of_an_older_one() -> None:
    files = SimulatedFiles()
    _, log = new_log(files)
    fill(log, 2)
    older = log.flush_plan()
    fill(log, 2)
    newer = log.flush_plan()
    assert older is not None and newer is not None
    newer.execute()
    log.flush_completed(newer)
    assert offsets(after_power_cut(files)) == [0, 1, 2, 3]


def test_an_older_plan_completed_later_does_not_lower_the_high_watermark() -> None:
    files = SimulatedFiles()
    _, log = new_log(files)
    fill(log, 2)
    older = log.flush_plan()
    fill(log, 8)
    newer = log.flush_plan()
    assert older is not None and newer is not None
    for plan in (newer, older):
        plan.execute()
        log.flush_completed(plan)
    assert (log.flushed_offset, log.high_watermark) == (10, 10)
    assert len(values(log)) == 10


def test_a_plan_that_is_never_executed_leaves_no_snapshots() -> None:
    files = SimulatedFiles()
    log_dir, log = new_log(files)
    for _ in range(4):
        fill(log, 3)
        log.roll()
        log.flush_plan()
    log.flush()
    log_dir.close()
    _, log = reopen(files)
    assert log.last_report.is_clean
    assert offsets(log) == list(range(12))
    snapshots = [name for name in files.list_dir(FOLDER) if name.endswith(".snapshot")]
    assert len(snapshots) <= 2


def test_a_plan_may_complete_after_its_segments_are_deleted() -> None:
    files, clock = SimulatedFiles(), FakeClock()
    _, log = new_log(files, clock, small_settings(retention_ms=1000))
    fill(log, 12)
    plan = log.flush_plan()
    log.flush()
    clock.advance(10_000)
    assert enforce_retention(log) == 2
    assert plan is not None
    plan.execute()
    log.flush_completed(plan)
    assert (log.log_start_offset, log.high_watermark) == (12, 12)
    log.append(batch(b"next"))
    log.flush()
    assert offsets(after_power_cut(files)) == [12]


def test_a_plan_of_a_deleted_partition_acknowledges_nothing() -> None:
    files = SimulatedFiles()
    log_dir, log = new_log(files)
    fill(log, 3)
    plan = log.flush_plan()
    log_dir.delete_partition(TP, 0)
    run_inline(log_dir.remover.remove(EVERYTHING_MS))
    assert plan is not None
    plan.execute()
    log.flush_completed(plan)
    assert log.flushed_offset == 0, "records of a deleted partition are never durable"
    with pytest.raises(StorageError, match="closed"):
        log.append(batch(b"v"))
    with pytest.raises(StorageError, match="closed"):
        log.flush()
    with pytest.raises(StorageError, match="closed"):
        run_inline(log.rewrite_tail())


# -- a sync that fails -------------------------------------------------------------------------


def failed_log() -> tuple[SimulatedFiles, PartitionLog]:
    """Three records are durable; the sync of two more was refused."""
    files = SimulatedFiles()
    _, log = new_log(files)
    fill(log, 3)
    log.flush()
    fill(log, 2)
    files.fail_on("sync", ".log")
    with pytest.raises(StorageError):
        log.flush()
    return files, log


def test_after_a_failed_fsync_appends_and_flushes_are_rejected() -> None:
    _, log = failed_log()
    assert log.failure is not None
    with pytest.raises(StorageError, match="rejects records"):
        log.append(batch(b"v"))
    with pytest.raises(StorageError, match="rejects records"):
        log.flush()
    assert log.flush_plan() is None
    assert log.high_watermark == 3
    assert values(log) == [b"v0", b"v1", b"v2"]


def test_repeating_a_failed_fsync_loses_the_records() -> None:
    """What the log must not do, shown on the disk below it."""
    files, log = failed_log()
    log.segments.active.file.sync()
    assert offsets(after_power_cut(files)) == [0, 1, 2]


def test_a_plan_made_before_a_failed_fsync_does_not_count_after_it() -> None:
    files = SimulatedFiles()
    _, log = new_log(files)
    fill(log, 2)
    refused, other = log.flush_plan(), log.flush_plan()
    assert refused is not None and other is not None
    files.fail_on("sync", ".log")
    with pytest.raises(StorageError) as caught:
        refused.execute()
    other.execute()  # the disk says that it worked
    log.flush_failed(refused, caught.value)
    log.flush_completed(other)
    assert log.high_watermark == 0
    run_inline(log.rewrite_tail())
    assert log.high_watermark == 2
    assert offsets(after_power_cut(files)) == [0, 1]


def test_rewrite_tail_makes_records_durable_after_a_failed_fsync() -> None:
    files, log = failed_log()
    run_inline(log.rewrite_tail())
    assert log.failure is None
    assert (log.high_watermark, log.flushed_offset) == (5, 5)
    fill(log, 1)
    log.flush()
    assert offsets(after_power_cut(files)) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("refused", range(8))
def test_rewrite_tail_recovers_whichever_fsync_failed(refused: int) -> None:
    files = SimulatedFiles()
    _, log = new_log(files)
    fill(log, 3)
    log.flush()
    fill(log, 9)
    files.fail_on("sync", "", skip=refused)
    try:
        log.flush()
    except StorageError:
        files.clear_faults()
        run_inline(log.rewrite_tail())
    files.clear_faults()
    assert log.high_watermark == 12
    restarted = after_power_cut(files)
    assert offsets(restarted) == list(range(12))
    assert restarted.last_report.problems == []


def test_rewrite_tail_repeats_a_failed_fsync_of_the_folder() -> None:
    files = SimulatedFiles()
    _, log = new_log(files)
    fill(log, 3)
    files.fail_on("sync_dir", FOLDER)
    with pytest.raises(StorageError):
        log.flush()
    run_inline(log.rewrite_tail())
    assert offsets(after_power_cut(files)) == [0, 1, 2]


def test_rewrite_tail_fails_as_long_as_the_disk_fails() -> None:
    files, log = failed_log()
    files.fail_on("sync", ".log", count=2)
    for _ in range(2):
        with pytest.raises(StorageError):
            run_inline(log.rewrite_tail())
        assert log.failure is not None
        assert log.high_watermark == 3
    run_inline(log.rewrite_tail())
    assert offsets(after_power_cut(files)) == [0, 1, 2, 3, 4]


def test_records_shown_after_a_failed_fsync_and_a_restart_survive_a_power_cut() -> None:
    files, _ = failed_log()
    killed = files.after_kill()
    _, log = reopen(killed)
    shown = offsets(log)
    assert shown == [0, 1, 2, 3, 4]
    assert offsets(after_power_cut(killed)) == shown


def test_records_of_sealed_segments_shown_after_a_failed_fsync_survive_a_power_cut() -> None:
    files = SimulatedFiles()
    _, log = new_log(files)
    fill(log, 2)
    log.flush()
    fill(log, 20)
    files.fail_on("sync", ".log", count=9)
    with pytest.raises(StorageError):
        log.flush()
    files.clear_faults()
    killed = files.after_kill()
    _, log = reopen(killed)
    assert offsets(log) == list(range(22))
    assert offsets(after_power_cut(killed)) == list(range(22))


# -- a disk that is full -----------------------------------------------------------------------


def test_a_full_disk_rejects_one_append_and_the_log_continues() -> None:
    files = SimulatedFiles()
    _, log = new_log(files)
    fill(log, 3)
    log.flush()
    files.capacity_bytes = sum(map(len, files.contents().values())) + 40
    with pytest.raises(DiskFullError):
        log.append(batch(b"too much"))
    assert log.log_end_offset == 3
    assert log.failure is None
    assert values(log) == [b"v0", b"v1", b"v2"]
    files.capacity_bytes = None
    fill(log, 2)
    log.flush()
    assert offsets(after_power_cut(files)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("room", range(0, 900, 13))
def test_every_acknowledged_record_survives_a_disk_that_fills_up_at_any_step(room: int) -> None:
    files = SimulatedFiles()
    log_dir, log = new_log(files, settings=small_settings(index_interval_bytes=0))
    fill(log, 3)
    log.flush()
    files.capacity_bytes = sum(map(len, files.contents().values())) + room
    for _ in range(20):
        try:
            fill(log, 1)
            log.flush()
        except StorageError:
            break
    flushed = log.flushed_offset
    assert offsets(log) == list(range(flushed)) == list(range(log.high_watermark))
    files.capacity_bytes = None
    if log.failure is not None:
        run_inline(log.rewrite_tail())
    fill(log, 12)
    log.flush()
    assert offsets(after_power_cut(files)) == list(range(log.log_end_offset))
    log_dir.close()
    _, log = reopen(files)
    assert log.last_report.is_clean
    assert values(log) == [b"v%d" % offset for offset in range(log.log_end_offset)]


def test_written_records_become_durable_on_a_full_disk() -> None:
    files = SimulatedFiles()
    _, log = new_log(files)
    fill(log, 12)  # segments were rolled, so that a snapshot is due
    files.capacity_bytes = 0
    log.flush()
    assert log.high_watermark == 12
    files.capacity_bytes = None
    assert offsets(after_power_cut(files)) == list(range(12))


@pytest.mark.parametrize("written_bytes", [0, 5])
def test_a_full_disk_leaves_no_torn_snapshot_behind(written_bytes: int) -> None:
    files = SimulatedFiles()
    _, log = new_log(files)
    fill(log, 12)  # segments were rolled, so that a snapshot is due
    files.fail_on("append", ".snapshot", error=errno.ENOSPC, written_bytes=written_bytes)
    log.flush()
    killed = files.after_kill()
    assert not [name for name in killed.list_dir(FOLDER) if name.endswith(SNAPSHOT_SUFFIX)]
    assert not look_at_partition(killed, FOLDER).is_damaged


def test_a_failed_index_write_does_not_duplicate_an_offset() -> None:
    files = SimulatedFiles()
    log_dir, log = new_log(
        files, settings=small_settings(segment_bytes=10**6, index_interval_bytes=0)
    )
    files.fail_on("overwrite", ".index", count=5, error=errno.ENOSPC, written_bytes=3)
    files.fail_on("append", "index", count=5, error=errno.ENOSPC, written_bytes=3)
    fill(log, 200)
    assert log.log_end_offset == 200
    log.flush()
    files.clear_faults()
    fill(log, 100)
    log_dir.close()
    _, log = reopen(files, settings=small_settings(segment_bytes=10**6, index_interval_bytes=0))
    assert log.last_report.is_clean
    assert offsets(log) == list(range(300))
    for offset in (0, 64, 65, 199, 200, 299):
        assert next(iter(all_records(log)[offset:])).value == b"v%d" % offset
    assert log.last_report.problems == []


def test_a_recovery_point_that_cannot_be_written_hides_no_record() -> None:
    files = SimulatedFiles()
    _, log = new_log(files)
    fill(log, 3)
    files.fail_on("overwrite", "recovery-point", error=errno.ENOSPC)
    log.flush()
    assert log.high_watermark == 3
    assert values(log) == [b"v0", b"v1", b"v2"]
    assert offsets(after_power_cut(files)) == [0, 1, 2]


def test_a_failed_fsync_that_cannot_be_recorded_is_reported() -> None:
    files = SimulatedFiles()
    _, log = new_log(files)
    fill(log, 3)
    log.flush()
    fill(log, 2)
    files.fail_on("sync", ".log")
    files.fail_on("overwrite", "recovery-point")
    with pytest.raises(StorageError):
        log.flush()
    (problem,) = log.last_report.problems
    assert "an fsync failed and could not be recorded" in problem
    assert "recovery-point" in problem
    assert "the tail from offset 3 on" in problem
    run_inline(log.rewrite_tail())
    assert offsets(after_power_cut(files)) == [0, 1, 2, 3, 4]


def test_the_recovery_point_counts_further_than_an_unsigned_int() -> None:
    """A partition that syncs a thousand times a second gets there in seven weeks."""
    files = SimulatedFiles()
    log_dir, log = new_log(files)
    log._flusher._point = log._flusher._point._replace(sequence=2**32 - 2)
    for _ in range(4):
        fill(log, 1)
        log.flush()
    log_dir.abandon()
    _, log = reopen(files)
    assert offsets(log) == [0, 1, 2, 3]
    assert log.last_report.scanned_bytes == 0 or log.flushed_offset == 4


def test_a_restart_after_a_failed_fsync_does_not_overwrite_durable_records() -> None:
    """The mark of a failed sync may outlive its mending in a power cut: what was mended since is
    durable, and must not be written over in place."""
    files, log = failed_log()
    run_inline(log.rewrite_tail())
    suspect = log._flusher._point._replace(offset=3, sequence=99, fsync_failed=True)
    write_recovery_point(files, f"{FOLDER}/recovery-point", suspect, settled=True)
    killed = files.after_kill()
    killed.sync_everything()

    def look(_step: Step) -> None:
        for choice in killed.crash_states(40):
            assert offsets(reopen(killed.after_crash(choice))[1]) == [0, 1, 2, 3, 4]

    killed.watch(look)
    assert offsets(reopen(killed)[1]) == [0, 1, 2, 3, 4]


def test_records_after_a_lost_segment_end_are_not_served() -> None:
    """The disk wrote the newer segment and not the end of the older one; no flush of
    either has completed."""
    files = SimulatedFiles()
    _, log = new_log(files)
    fill(log, 3)
    log.flush()
    fill(log, 12)
    first, second = (segment.log_path for segment in log.segments.all()[:2])
    disk = files.after_kill()
    size = disk.size(first)
    whole_batches = size - 2 * (size // log.segments.sealed[0].end_offset)
    disk.truncate(first, whole_batches)
    disk.sync_everything()
    _, log = reopen(disk)
    shown = offsets(log)
    assert shown == list(range(len(shown)))
    assert 3 <= len(shown) < 15
    assert any(second in problem for problem in log.last_report.problems)
    assert log.append(batch(b"next")).base_offset == log.log_end_offset - 1 >= 15


def test_gaps_left_by_compaction_are_not_reported_as_loss_after_a_power_cut() -> None:
    files = SimulatedFiles()
    _, log = new_log(files)
    for number in range(30):
        log.append(batch(b"v%d" % number, keys=[b"k%d" % (number % 3)]))
    compact_now(log)
    before = all_records(log)
    fill(log, 5)
    log.flush()
    restarted = after_power_cut(files)
    assert all_records(restarted)[: len(before)] == before
    assert len(offsets(restarted)) == len(before) + 5
    assert restarted.last_report.problems == []


def test_a_failed_flush_of_a_deleted_partition_does_not_harm_a_new_one_of_the_same_name() -> None:
    files = SimulatedFiles()
    log_dir, deleted = new_log(files)
    fill(deleted, 5)
    deleted.flush()
    fill(deleted, 1)
    plan = deleted.flush_plan()
    assert plan is not None
    log_dir.delete_partition(TP, 0)
    create_partition(log_dir, TP, "another-id", small_settings())
    fill(log_dir.logs[TP], 2)
    log_dir.logs[TP].flush()
    deleted.flush_failed(plan, StorageError("the disk failed"))
    assert "is closed" in str(deleted.failure)
    _, log = reopen(files.after_kill())
    assert (offsets(log), log.log_end_offset, log.last_report.problems) == ([0, 1], 2, [])
