"""Tracks what is not on disk yet, creates flush plans and applies their results.

    note_append, note_roll   record new data that must be synced
    note_truncation          records that the end of the log was removed
    forget                   stops tracking sealed segments that are durable or were removed
    request_snapshot,        make the next plan write a snapshot of the producer state
      renew_snapshot
    plan                     lists what to fsync to make everything durable
    completed, failed        apply the result of a plan
    begin_recovery_point     writes the first recovery point of a new partition
    persist_recovery_point   makes the recovery point durable before gaps are created below it
    rewrite_tail             rewrites the unsynced tail, so that the next fsync writes it to disk
    close                    stops accepting records

Any thread may execute a plan, together with the plans of other partitions (group commit). The
result is applied in the owner's thread. A plan keeps its files open until it is dropped, and it is
safe to execute it twice. Log files are fsynced from oldest to newest, so that a failed plan never
leaves a segment synced while an earlier one is not. The directory is fsynced before the recovery
point moves past new files.

Plans may be executed late, out of order or not at all: a file needs a sync until a plan created
after its last change has completed. When a plan fails, the results of all plans created before the
failure are ignored: if fsync fails, the kernel marks the pages clean, so a later fsync proves
nothing about them. This still holds after a restart, so the recovery point records the failure
(`fsync_failed`).

Two producer snapshots are kept. Each snapshot is fsynced together with the recovery point that
names the previous one, so the snapshot named by a surviving recovery point always exists.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

from strandlog.errors import StorageError
from strandlog.storage.files import LogFile
from strandlog.storage.partition.partition_files import PartitionFiles
from strandlog.storage.partition.producer_state import snapshot_name
from strandlog.storage.partition.recovery_point import (
    RecoveryPoint,
    begin_recovery_point,
    write_recovery_point,
)
from strandlog.storage.paths import RECOVERY_POINT, SIDE_SUFFIXES, SNAPSHOT_SUFFIX, join
from strandlog.storage.segment.scan import scan_strict, view_source
from strandlog.storage.segment.segment import LogPosition, Segment, stem_of
from strandlog.storage.segment.transaction_index import IndexMark
from strandlog.storage.work import Work

if TYPE_CHECKING:
    from strandlog.storage.partition.log import LogContext
    from strandlog.storage.partition.recovery import Recovered
from collections.abc import Sequence

from strandlog.storage.files import Files


class FlushPlan:
    """The files to sync, and the offsets that are durable afterwards."""

    __slots__ = (
        "_files",
        "directory_version",
        "end_offset",
        "end_position",
        "epoch",
        "folder",
        "log_files",
        "older_snapshot_offset",
        "sealed",
        "side_paths",
        "snapshot_offset",
    )

    def __init__(
        self,
        files: Files,
        *,
        side_paths: Sequence[str],
        log_files: Sequence[LogFile],
        sealed: Sequence[Segment],
        folder: str | None,
        end_offset: int,
        snapshot_offset: int,
        older_snapshot_offset: int,
        end_position: LogPosition,
        directory_version: int,
        epoch: int,
    ) -> None:
        self._files = files
        self.side_paths = side_paths  # indexes, snapshot and recovery point to sync
        self.log_files = log_files
        self.sealed = sealed  # the segments that the plan makes fully durable
        self.folder = folder  # set if it contains new names and must be synced
        self.end_offset = end_offset
        self.snapshot_offset = snapshot_offset  # indexes and producer state are valid up to here
        # The offset of the snapshot that the recovery point named when the plan was created.
        self.older_snapshot_offset = older_snapshot_offset
        self.end_position = end_position  # the position of end_offset
        self.directory_version = directory_version
        self.epoch = epoch

    def execute(self) -> None:
        """Sync everything. Raise `StorageError` if a sync fails, or if another process has removed
        or truncated the file of the active segment."""
        for path in self.side_paths:
            # The index may have been removed with its segment or topic since the plan was created.
            with contextlib.suppress(FileNotFoundError):
                self._files.sync_file(path)
        for log_file in self.log_files:
            log_file.sync()
        for active in self.log_files[-1:]:  # retention may have removed the older ones
            active.check_present()
        if self.folder is not None:
            with contextlib.suppress(FileNotFoundError):
                self._files.sync_dir(self.folder)


SNAPSHOT_EVERY_BYTES = 16 * 1024 * 1024


class FlushState:
    """Tracks what is durable in one open partition."""

    __slots__ = (
        "_aborted",
        "_context",
        "_dirty_sealed",
        "_epoch",
        "_files",
        "_flushed_position",
        "_folder",
        "_names_changed",
        "_names_synced",
        "_point",
        "_problems",
        "_producers",
        "_segments",
        "_since_snapshot_bytes",
        "_snapshot_due",
        "_snapshots",
        "failure",
        "flushed_offset",
    )

    def __init__(
        self, folder: str, files: PartitionFiles, context: LogContext, recovered: Recovered
    ) -> None:
        self._folder = folder
        self._files = files
        self._context = context
        self._segments = recovered.segments
        self._producers = recovered.producers
        self._aborted = recovered.aborted
        self._point = recovered.point
        self._snapshots = recovered.snapshots
        self._problems = recovered.report.problems
        self._epoch = 0
        self._dirty_sealed: list[tuple[Segment, LogFile]] = []
        self._names_changed = self._names_synced = 0  # counters
        self._since_snapshot_bytes = 0
        self._snapshot_due = False
        self._flushed_position = self._segments.end_position
        self.failure: StorageError | None = None
        self.flushed_offset = recovered.log_end_offset
        if recovered.needs_flush:
            # Anything that recovery read or changed must be on disk before it is served.
            self.flushed_offset = min(recovered.point.offset, recovered.log_end_offset - 1)
            self._snapshot_due = True
            self._names_changed += 1

    # -- changes -----------------------------------------------------------------------------

    def note_append(self, size: int, *, is_first: bool) -> None:
        """Record that a batch was written. `is_first` is true for the first batch of a segment."""
        self._since_snapshot_bytes += size
        if is_first:
            self._names_changed += 1

    def note_roll(self, sealed: Segment, file: LogFile) -> None:
        """Record that a segment with complete indexes was sealed and a new one was started."""
        self._dirty_sealed.append((sealed, file))
        self._snapshot_due = True
        self._names_changed += 1

    def forget(self, gone: list[Segment]) -> None:
        """Stop tracking sealed segments that are durable or were removed from the log."""
        self._dirty_sealed = [pair for pair in self._dirty_sealed if pair[0] not in gone]

    def note_truncation(self, offset: int) -> None:
        """Record that the log was truncated at `offset` and that everything below it is on disk.
        Earlier plans become invalid, and newer snapshots are removed."""
        self._epoch += 1
        self._flushed_position = self._segments.end_position
        self._snapshot_due = True
        for newer in [number for number in self._snapshots if number > offset]:
            self._files.remove(self._snapshot_path(newer))
            self._snapshots.discard(newer)

    def request_snapshot(self, offset: int) -> bool:
        """Make the next plan move the snapshot point to at least `offset`. Return False if it is
        already there."""
        is_behind = self._point.snapshot_offset < offset
        self._snapshot_due = self._snapshot_due or is_behind
        return is_behind

    def renew_snapshot(self) -> None:
        """Make the next plan write a new snapshot, even at the offset of the current one, whose
        checksum of the transaction index is outdated."""
        self._snapshots.discard(self._point.snapshot_offset)
        self._snapshot_due = True

    # -- plans -------------------------------------------------------------------------------

    def plan(self, end_offset: int) -> FlushPlan | None:
        """Return the plan that makes all written data durable. Return None if there is nothing to
        sync, or if the log refuses appends (`failure`): after a failed sync, further syncs would
        prove nothing."""
        is_durable = self.flushed_offset == end_offset and not self._snapshot_due
        if is_durable or self.failure is not None:
            return None
        log_files = [*(file for _, file in self._dirty_sealed), self._segments.active.file]
        side_paths = [path for sealed, _ in self._dirty_sealed for path in self._indexes_of(sealed)]
        snapshot_offset = self._point.snapshot_offset
        if self._snapshot_due or self._since_snapshot_bytes >= SNAPSHOT_EVERY_BYTES:
            # A full disk must not prevent written records from becoming durable.
            with contextlib.suppress(StorageError, FileNotFoundError):
                side_paths += self._write_snapshot(end_offset)
                snapshot_offset = end_offset
                self._since_snapshot_bytes, self._snapshot_due = 0, False
        # Plans may complete out of order, so every plan syncs the folder until one of them has
        # completed.
        folder = self._folder if self._names_changed != self._names_synced else None
        return FlushPlan(
            self._files,
            side_paths=side_paths,
            log_files=log_files,
            sealed=[sealed for sealed, _ in self._dirty_sealed],
            folder=folder,
            end_offset=end_offset,
            snapshot_offset=snapshot_offset,
            older_snapshot_offset=self._point.snapshot_offset,
            end_position=self._segments.end_position,
            directory_version=self._names_changed,
            epoch=self._epoch,
        )

    def _indexes_of(self, segment: Segment) -> list[str]:
        paths = (segment.stem + suffix for suffix in SIDE_SUFFIXES)
        return [path for path in paths if self._files.exists(path)]

    def _write_snapshot(self, end_offset: int) -> list[str]:
        """Update the indexes and write the producer state. Return the paths to sync."""
        files, active = self._files, self._segments.active
        active.indexes.finish()
        if self._aborted.save(files, active.stem, active.base_offset, end_offset):
            self._names_changed += 1
        written = self._indexes_of(active)
        point_path = join(self._folder, RECOVERY_POINT)
        if files.exists(point_path):
            written.append(point_path)
        path = self._snapshot_path(end_offset)
        if end_offset not in self._snapshots:
            files.remove(path)
            name = snapshot_name(stem_of(self._folder, end_offset))
            base = active.base_offset
            mark = IndexMark(base, self._aborted.checksum(base, end_offset))
            try:
                files.append_to(path, self._producers.snapshot(name, mark))
            except StorageError:
                with contextlib.suppress(StorageError):
                    files.remove(path)  # a part of a snapshot would look like damage
                raise
            self._names_changed += 1
            self._snapshots.add(end_offset)
        return [*written, path]

    def _snapshot_path(self, offset: int) -> str:
        return stem_of(self._folder, offset) + SNAPSHOT_SUFFIX

    def completed(self, plan: FlushPlan) -> bool:
        """Record what an executed plan made durable. Return False if the plan is obsolete."""
        if plan.epoch != self._epoch or plan.end_offset < self.flushed_offset:
            return False  # the log was truncated or failed, or a newer plan completed first
        self.flushed_offset = plan.end_offset
        self._flushed_position = plan.end_position
        self._names_synced = max(self._names_synced, plan.directory_version)
        # Segments sealed after the plan was created contain data that the plan did not sync.
        self.forget(list(plan.sealed))
        snapshot_offset = max(self._point.snapshot_offset, plan.snapshot_offset)
        self._move_point(plan.end_offset, snapshot_offset)
        if plan.snapshot_offset == snapshot_offset:
            self._drop_snapshots(plan)
        return True

    def _move_point(
        self, offset: int, snapshot_offset: int, *, fsync_failed: bool = False
    ) -> StorageError | FileNotFoundError | None:
        """Write the next recovery point. Return the error if that fails."""
        point = RecoveryPoint(
            offset,
            snapshot_offset,
            self._point.sequence + 1,
            self._context.settings.waits_for_fsync,
            fsync_failed,
            is_provisional=fsync_failed and self._point.is_provisional,
        )
        path = join(self._folder, RECOVERY_POINT)
        # If the write fails, the old point stays in effect. It is only outdated: the next start
        # checks more of the log. A lost `fsync_failed` is worse, so `failed` reports it.
        try:
            write_recovery_point(self._files, path, point)
        except (StorageError, FileNotFoundError) as error:
            return error
        self._point = point
        return None

    def begin_recovery_point(self) -> None:
        """Write the first recovery point of a new partition. The caller syncs the file and its
        folder."""
        point = self._point._replace(
            sequence=self._point.sequence + 1,
            bounds_readers=self._context.settings.waits_for_fsync,
            is_provisional=False,
        )
        begin_recovery_point(self._files, join(self._folder, RECOVERY_POINT), point)
        self._point = point

    def persist_recovery_point(self) -> None:
        """Make the recovery point itself durable. Call this before a gap is created below it.

        Recovery treats a gap above the recovery point as records that did not reach the disk, and
        truncates the log there. The point is rewritten even if it has not changed, because an
        earlier write may not be durable if its sync failed.
        """
        point = self._point._replace(
            offset=self.flushed_offset,
            sequence=self._point.sequence + 1,
            bounds_readers=self._context.settings.waits_for_fsync,
            is_provisional=False,
        )
        path = join(self._folder, RECOVERY_POINT)
        write_recovery_point(self._files, path, point, settled=True)
        self._point = point
        self._files.sync_dir(self._folder)

    def _drop_snapshots(self, plan: FlushPlan) -> None:
        for offset in list(self._snapshots):
            if offset >= plan.snapshot_offset or offset == plan.older_snapshot_offset:
                continue
            with contextlib.suppress(StorageError):
                self._files.remove(self._snapshot_path(offset))
                self._snapshots.discard(offset)

    # -- failures ----------------------------------------------------------------------------

    def failed(self, error: StorageError) -> None:
        """Record that a plan failed or could not be created. No records are acknowledged until
        `rewrite_tail` succeeds."""
        if self._files.is_closed:
            return
        self._epoch += 1
        self._snapshot_due = True
        self._snapshots = {o for o in self._snapshots if o <= self._point.snapshot_offset}
        unwritten = self._move_point(
            self.flushed_offset, self._point.snapshot_offset, fsync_failed=True
        )
        if unwritten is not None:
            self._problems.report(
                f"an fsync failed and could not be recorded ({unwritten}): if the process stops "
                f"before the tail from offset {self.flushed_offset} on has been rewritten, the "
                "next start does not know that this tail may be missing on the disk"
            )
        self.failure = StorageError(
            f"{self._folder} rejects records: {error}; it accepts them again once its "
            f"unsynced tail has been read back, verified and synced"
        )

    def close(self) -> None:
        """Mark the partition as closed or deleted: pending plans are ignored, appends fail."""
        self._epoch += 1
        self._files.close()
        self.failure = StorageError(f"{self._folder} is closed; open it again")

    def rewrite_tail(self) -> Work[None]:
        """Read back the unsynced tail, verify it and rewrite it and its indexes, so that the next
        flush plan can sync them. There is one step per segment. The log refuses appends until the
        last step has finished, so the tail cannot change during these steps."""
        epoch = self._epoch
        self._files.check_is_open()
        base, position = self._flushed_position
        active = self._segments.active
        for segment, file in [*self._dirty_sealed, (active, active.file)]:
            start = position if segment.base_offset == base else 0
            yield partial(self._rewrite, segment, file, start, segment.size_bytes)
            if self._epoch != epoch:  # the log was closed, or failed again
                raise StorageError(str(self.failure))
        self._names_changed += 1
        self.failure = None

    def _rewrite(self, segment: Segment, file: LogFile, start: int, end: int) -> None:
        data = file.read(start, end - start)
        for _ in scan_strict(
            view_source(memoryview(data)),
            0,
            end - start,
            path=segment.log_path,
            next_offset=segment.base_offset,
            crc_from_offset=0,
        ):
            pass
        file.overwrite(start, data)
        for path in self._indexes_of(segment):
            self._files.replace(path, self._files.read(path))
