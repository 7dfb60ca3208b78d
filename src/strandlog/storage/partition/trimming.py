"""Takes old segments out of a partition, in steps (steps.py).

    1  the producers outlive their records: a snapshot of them is made durable
    2  the manifest withdraws its claims, durably. The name of the active segment is made durable:
       when the others are gone, it alone tells which offset comes next
    3  the segments go, a few at a time: renamed, forgotten; the log starts later
    4  the renames are made durable. A crash before that brings segments back, and the next
       retention takes them again

Nobody else may sync or trim the partition meanwhile; appends and reads go on. It may be deleted
meanwhile: then there is nothing left to do.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from strandlog.errors import StorageError
from strandlog.storage.work import Work, yield_control

if TYPE_CHECKING:
    from strandlog.storage.partition.log import PartitionLog

RETIRED_AT_A_TIME = 25  # segments, each with a few files to rename


def dropping_oldest(log: PartitionLog, count: int) -> Work[int]:
    """Remove that many segments from the old end; returns their bytes. Durable at the end."""
    if count == len(log.segments):
        log.roll()
    doomed = log.segments.sealed[:count]
    if not doomed:
        return 0
    if log.want_snapshot(doomed[-1].end_offset):
        yield from flushing(log)
        _check_is_open(log)
    log.open_active_file()
    log.manifest.withdraw(0, doomed[-1].end_offset)
    yield log.manifest.sync
    sync_names = partial(log.context.files.sync_dir, log.folder)
    yield sync_names
    _check_is_open(log)
    for first in range(0, len(doomed), RETIRED_AT_A_TIME):
        log.retire(doomed[first : first + RETIRED_AT_A_TIME])
        yield yield_control
        _check_is_open(log)
    yield sync_names
    yield partial(log.manifest.shorten, log.claims_of(log.segments.sealed))
    return sum(segment.size_bytes for segment in doomed)


def flushing(log: PartitionLog) -> Work[None]:
    """Make everything that is written durable."""
    plan = log.flush_plan()
    if plan is None:
        if log.failure is not None:
            raise StorageError(str(log.failure))
        return
    try:
        yield plan.execute
    except StorageError as error:
        log.flush_failed(plan, error)
        raise
    log.flush_completed(plan)


def _check_is_open(log: PartitionLog) -> None:
    if log.is_closed:
        raise StorageError(f"{log.tp} was closed or deleted meanwhile")
