"""Work in steps: order, errors, and what deleting a partition in the middle of it does."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar

import pytest
from tests.support.log_builders import (
    FOLDER,
    TP,
    batch,
    create_partition,
    new_log,
    reopen,
    small_settings,
    values,
)

from strandlog.errors import StorageError
from strandlog.storage.cleaning.compaction import plan_compaction
from strandlog.storage.cleaning.retention import drop_oldest
from strandlog.storage.folder.log_dir import LogDir
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.work import Work, run_inline
from strandlog.testing import FakeClock, SimulatedFiles

T = TypeVar("T")
PAUSES = range(12)  # more than any work here has


def do_with(steps: Work[T], pause: int, act: Callable[[], None]) -> T:
    """Do the work, and something else while it waits for its part number `pause`."""

    def interrupted() -> Work[T]:
        inner, number, error = steps, 0, None
        while True:
            try:
                part = next(inner) if error is None else inner.throw(error)
            except StopIteration as end:
                result: T = end.value
                return result
            if number == pause:
                act()
            number += 1
            error = None
            try:
                yield part
            except StorageError as refused:
                error = refused

    return run_inline(interrupted())


def test_parts_run_in_order_and_the_result_is_returned() -> None:
    done: list[str] = []

    def work() -> Work[int]:
        done.append("begin")
        yield lambda: done.append("slow")
        done.append("between")
        yield lambda: done.append("slower")
        return 7

    assert run_inline(work()) == 7
    assert done == ["begin", "slow", "between", "slower"]


def test_the_error_of_a_part_is_raised_inside_the_generator() -> None:
    def fail() -> None:
        raise StorageError("no")

    def stubborn() -> Work[str]:
        try:
            yield fail
        except StorageError as error:
            return f"went on after {error}"
        return "never"

    def helpless() -> Work[None]:
        yield fail

    assert run_inline(stubborn()) == "went on after no"
    with pytest.raises(StorageError):
        run_inline(helpless())


def test_work_without_slow_parts_is_done_at_once() -> None:
    def work() -> Work[int]:
        yield from ()
        return 3

    assert run_inline(work()) == 3


def _filled() -> tuple[SimulatedFiles, LogDir, PartitionLog]:
    files = SimulatedFiles()
    log_dir, log = new_log(files, FakeClock(), small_settings())
    for number in range(30):
        log.append(batch(b"%d" % number + bytes(80), keys=[b"k%d" % (number % 3)]))
    log.flush()
    return files, log_dir, log


@pytest.mark.parametrize("pause", PAUSES)
def test_appends_while_old_segments_are_dropped_are_kept(pause: int) -> None:
    files, log_dir, log = _filled()
    log.append(batch(b"before", keys=[b"k"]))  # not synced: the drop has to

    def append() -> None:
        log.append(batch(b"meanwhile", keys=[b"k"]))

    count = len(log.segments)
    do_with(drop_oldest(log, count), pause, append)
    log.append(batch(b"after", keys=[b"k"]))
    log.flush()
    kept = [b"after"]
    if log.log_end_offset == 33:
        kept.insert(0, b"meanwhile")
    assert values(log)[-len(kept) :] == kept
    log_dir.close()
    _, again = reopen(files)
    assert values(again)[-len(kept) :] == kept
    assert again.log_end_offset == log.log_end_offset


@pytest.mark.parametrize("pause", PAUSES)
def test_a_partition_deleted_while_old_segments_are_dropped_is_gone(pause: int) -> None:
    _, log_dir, log = _filled()
    log.append(batch(b"unsynced", keys=[b"k"]))
    try:
        do_with(
            drop_oldest(log, len(log.segments)),
            pause,
            lambda: log_dir.delete_partition(TP, 0),
        )
    except (StorageError, FileNotFoundError):
        assert log.is_closed, "only a deleted partition has an excuse"
    log_dir.close()


@pytest.mark.parametrize("pause", PAUSES)
def test_readers_see_every_key_while_a_compaction_is_completed(pause: int) -> None:
    files, log_dir, log = _filled()
    plan = plan_compaction(log, 0, log.high_watermark)
    assert plan is not None
    plan.execute()

    def look() -> None:
        found = values(log)
        assert [value[:2] for value in found if value][-3:] == [b"27", b"28", b"29"]

    do_with(plan.complete(), pause, look)
    look()
    compacted = values(log)  # a closed log does not open its files again
    log_dir.close()
    _, again = reopen(files)
    assert values(again) == compacted
    assert len(compacted) < 30


@pytest.mark.parametrize("pause", PAUSES)
def test_a_partition_deleted_while_a_compaction_is_completed_is_gone(pause: int) -> None:
    _, log_dir, log = _filled()
    plan = plan_compaction(log, 0, log.high_watermark)
    assert plan is not None
    plan.execute()
    try:
        do_with(plan.complete(), pause, lambda: log_dir.delete_partition(TP, 0))
    except (StorageError, FileNotFoundError):
        assert log.is_closed
    log_dir.close()


@pytest.mark.parametrize("operation", ["retention", "compaction"])
@pytest.mark.parametrize("pause", PAUSES)
def test_work_on_a_deleted_partition_does_not_change_a_new_one_of_the_same_name(
    pause: int, operation: str
) -> None:
    files, log_dir, log = _filled()
    created: dict[str, bytes] = {}

    def files_of_partition() -> dict[str, bytes]:
        return {name: data for name, data in files.contents().items() if f"{FOLDER}/" in name}

    def renew() -> None:
        log_dir.delete_partition(TP, 0)
        create_partition(log_dir, TP, "another-id", small_settings())
        created.update(files_of_partition())

    plan = plan_compaction(log, 0, log.high_watermark)
    assert plan is not None
    plan.execute()
    log.manifest.is_damaged = True  # so that retention rewrites it
    work: Work[object] = drop_oldest(log, 2) if operation == "retention" else plan.complete()
    with contextlib.suppress(StorageError, FileNotFoundError):
        do_with(work, pause, renew)
    assert not created or files_of_partition() == created


def test_a_cancelled_compaction_ends_soon_and_changes_nothing() -> None:
    files, log_dir, log = _filled()
    before = values(log)
    plan = plan_compaction(log, 0, log.high_watermark)
    assert plan is not None
    plan.cancel()
    with pytest.raises(StorageError, match="cancelled"):
        plan.execute()
    assert values(log) == before
    log_dir.close()
    _, again = reopen(files)
    assert values(again) == before
