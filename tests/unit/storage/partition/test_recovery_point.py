"""What a start does without an intact recovery point, if it does not finish either."""

from __future__ import annotations

import pytest
from tests.support.log_builders import (
    FOLDER,
    TP,
    batch,
    fill,
    new_log,
    offsets,
    open_dir,
    small_settings,
)

from strandlog.errors import StorageError
from strandlog.storage.folder.log_dir import UNSEEN_OFFSETS
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.partition.recovery_point import (
    SECTOR_BYTES,
    SLOT_SIZE,
    read_recovery_point,
)
from strandlog.testing import SimulatedFiles
from strandlog.testing.disk.faults import Step

POINT = f"{FOLDER}/recovery-point"


def crashed_disk() -> SimulatedFiles:
    """A durable log of offsets 0 to 4 that loses the last two, and every slot, in a crash."""
    files = SimulatedFiles()
    _, log = new_log(files)
    fill(log, 5)
    log.flush()
    path = log.segments.active.log_path
    disk = files.after_kill()
    disk.truncate(path, disk.size(path) * 3 // 5)
    data = disk.read(POINT)
    for start in range(0, len(data), SECTOR_BYTES):
        if any(data[start : start + SECTOR_BYTES]):
            disk.write_at(POINT, start, b"\xff" * SLOT_SIZE)
    disk.sync_everything()
    return disk


def start(disk: SimulatedFiles) -> PartitionLog:
    return open_dir(disk).open_partition(TP, small_settings(), was_created=True)


def check_continues_after_the_gap(disk: SimulatedFiles) -> None:
    log = start(disk)
    assert offsets(log) == [0, 1, 2]
    assert log.append(batch(b"next")).base_offset >= UNSEEN_OFFSETS, "an offset came again"


def test_offsets_are_not_reused_after_a_crash_while_a_lost_recovery_point_is_recovered() -> None:
    disk = crashed_disk()

    def look(_step: Step) -> None:
        check_continues_after_the_gap(disk.after_kill())
        for choice in disk.crash_states(6):
            check_continues_after_the_gap(disk.after_crash(choice))

    disk.watch(look)
    log = start(disk)
    disk.watch(None)
    assert sum("failed its checksum" in problem for problem in log.last_report.problems) == 2
    log = start(disk.after_kill())
    assert (log.last_report.problems, log.log_end_offset) == ([], 3 + UNSEEN_OFFSETS)


@pytest.mark.parametrize("starts", [1, 2])
@pytest.mark.parametrize("operation", ["open", "sync"])
def test_offsets_are_not_reused_if_the_flush_of_a_recovery_without_recovery_point_fails(
    operation: str, starts: int
) -> None:
    disk = crashed_disk()
    for _ in range(starts):
        disk.fail_on(operation, f"{3 + UNSEEN_OFFSETS:020d}.log")  # type: ignore[arg-type]
        with pytest.raises(StorageError):
            start(disk)
        assert read_recovery_point(disk, POINT) is None
        disk.clear_faults()
        disk = disk.after_kill()
    for choice in disk.crash_states(20):
        check_continues_after_the_gap(disk.after_crash(choice))
    check_continues_after_the_gap(disk)
