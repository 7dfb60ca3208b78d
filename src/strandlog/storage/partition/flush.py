"""Tracks what is not on disk yet, makes flush plans and applies their outcome.

    append, roll         add what is new
    plan                 what to fsync so that all of it is durable
    completed, failed    the outcome of a plan
    persist_recovery_point
                         makes the recovery point durable, before gaps are made below it
    rewrite_tail         writes an unsynced tail again, so that the next fsync covers it
    close                nothing is accepted from here on

Any thread may execute a plan, together with the plans of other partitions: that is group commit.
The outcome is applied in the owner's thread. A plan keeps its files open until it is dropped;
executing it twice is harmless. Files are fsynced from old to new, because a later segment must not
become durable before an earlier one, and the directory before the recovery point may pass new
files.

Plans may be executed late, overtake each other or be dropped: a file stays due until a plan that
was made after its last change is completed. After one plan failed, no other counts: when fsync
fails, the kernel marks the pages clean, and a later fsync proves nothing about them. That remains
true across a restart, so the recovery point records it (`fsync_failed`).

Two producer snapshots are kept. The recovery point is fsynced with each snapshot, one snapshot
late, so the snapshot that a surviving recovery point names always exists.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from strandlog.errors import StorageError
from strandlog.storage.files import LogFile
from strandlog.storage.partition.producer_state import snapshot_name
from strandlog.storage.partition.recovery_point import RecoveryPoint, write_recovery_point
from strandlog.storage.paths import RECOVERY_POINT, SIDE_SUFFIXES, SNAPSHOT_SUFFIX, join
from strandlog.storage.segment.scan import scan_strict, view_source
from strandlog.storage.segment.segment import LogPosition, Segment, stem_of
from strandlog.storage.segment.transaction_index import IndexMark

if TYPE_CHECKING:
    from strandlog.storage.partition.log import LogContext
    from strandlog.storage.partition.recovery import Recovered
from collections.abc import Sequence

from strandlog.storage.files import Files


class FlushPlan:
    """What to sync, and what is durable after it."""

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
        self.side_paths = side_paths  # indexes and snapshots that are due
        self.log_files = log_files
        self.sealed = sealed  # the segments that the plan makes durable as a whole
        self.folder = folder  # synced when names in it are new
        self.end_offset = end_offset
        self.snapshot_offset = snapshot_offset  # indexes and producer state are good up to here
        self.older_snapshot_offset = older_snapshot_offset  # what the synced recovery point names
        self.end_position = end_position  # of end_offset
        self.directory_version = directory_version
        self.epoch = epoch

    def execute(self) -> None:
        """Sync everything; `StorageError` when the disk refuses."""
        for path in self.side_paths:
            # An index that was retired meanwhile, with its segment or topic, has nothing to keep.
            with contextlib.suppress(FileNotFoundError):
                self._files.sync_file(path)
        for log_file in self.log_files:
            log_file.sync()
        for active in self.log_files[-1:]:  # the older ones may have been retired meanwhile
            active.check_present()
        if self.folder is not None:
            with contextlib.suppress(FileNotFoundError):
                self._files.sync_dir(self.folder)


SNAPSHOT_EVERY_BYTES = 16 * 1024 * 1024


class FlushState:
    """Keeps count of what is durable, for one open partition."""

    __slots__ = (
        "_aborted",
        "_context",
        "_dirty_sealed",
        "_epoch",
        "_flushed_position",
        "_folder",
        "_names_changed",
        "_names_synced",
        "_point",
        "_producers",
        "_segments",
        "_since_snapshot_bytes",
        "_snapshot_due",
        "_snapshots",
        "failure",
        "first_unflushed_ms",
        "flushed_offset",
        "is_closed",
    )

    def __init__(self, folder: str, context: LogContext, recovered: Recovered) -> None:
        self._folder = folder
        self._context = context
        self._segments = recovered.segments
        self._producers = recovered.producers
        self._aborted = recovered.aborted
        self._point = recovered.point
        self._snapshots = recovered.snapshots
        self._epoch = 0
        self._dirty_sealed: list[tuple[Segment, LogFile]] = []
        self._names_changed = self._names_synced = 0  # how often
        self._since_snapshot_bytes = 0
        self._snapshot_due = False
        self._flushed_position = self._segments.end_position
        self.failure: StorageError | None = None
        self.is_closed = False
        self.first_unflushed_ms: int | None = None
        self.flushed_offset = recovered.log_end_offset
        if recovered.needs_flush:
            # What recovery read or changed must be on disk before it is served.
            self.flushed_offset = min(recovered.point.offset, recovered.log_end_offset - 1)
            self._snapshot_due = True
            self._names_changed += 1

    # -- what is new -------------------------------------------------------------------------

    def note_append(self, size: int, *, is_first: bool) -> None:
        """A batch was written; `is_first` when it is the first of its segment."""
        self._since_snapshot_bytes += size
        if is_first:
            self._names_changed += 1
        if self.first_unflushed_ms is None:
            self.first_unflushed_ms = self._context.steady_clock.now_ms()

    def note_roll(self, sealed: Segment, file: LogFile) -> None:
        """A segment was sealed; its indexes are complete now, and a new one begins."""
        self._dirty_sealed.append((sealed, file))
        self._snapshot_due = True
        self._names_changed += 1

    def forget(self, gone: list[Segment]) -> None:
        """Sealed segments were taken out of the log: nothing of them is due any more."""
        self._dirty_sealed = [pair for pair in self._dirty_sealed if pair[0] not in gone]

    def note_truncation(self, offset: int) -> None:
        """The log was cut at `offset`, and all that is left is on disk. Plans of before no longer
        count, and snapshots no longer tell the truth."""
        self._epoch += 1
        self._flushed_position = self._segments.end_position
        self._snapshot_due = True
        for newer in [number for number in self._snapshots if number > offset]:
            self._context.files.remove(self._snapshot_path(newer))
            self._snapshots.discard(newer)

    def request_snapshot(self, offset: int) -> bool:
        """The next plan shall bring the snapshot point up to `offset` at least. False when it is
        there already."""
        is_behind = self._point.snapshot_offset < offset
        self._snapshot_due = self._snapshot_due or is_behind
        return is_behind

    def renew_snapshot(self) -> None:
        """The next plan shall write a snapshot even if there is one of that offset: what it says of
        the transaction index is no longer true."""
        self._snapshots.discard(self._point.snapshot_offset)
        self._snapshot_due = True

    # -- plans -------------------------------------------------------------------------------

    def plan(self, end_offset: int) -> FlushPlan | None:
        """What to sync so that everything written so far is durable; None when it is already, or
        when syncing would prove nothing (`failure`)."""
        is_durable = self.flushed_offset == end_offset and not self._snapshot_due
        if is_durable or self.failure is not None:
            return None
        log_files = [*(file for _, file in self._dirty_sealed), self._segments.active.file]
        side_paths = [path for sealed, _ in self._dirty_sealed for path in self._indexes_of(sealed)]
        snapshot_offset = self._point.snapshot_offset
        if self._snapshot_due or self._since_snapshot_bytes >= SNAPSHOT_EVERY_BYTES:
            # A full disk must not keep records that are written from becoming durable.
            with contextlib.suppress(StorageError, FileNotFoundError):
                side_paths += self._write_snapshot(end_offset)
                snapshot_offset = end_offset
                self._since_snapshot_bytes, self._snapshot_due = 0, False
        # Until a plan that syncs the folder is completed, every plan does: they may overtake.
        folder = self._folder if self._names_changed != self._names_synced else None
        return FlushPlan(
            self._context.files,
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
        return [path for path in paths if self._context.files.exists(path)]

    def _write_snapshot(self, end_offset: int) -> list[str]:
        """Bring the indexes up to date and write the producer state; returns what to sync."""
        files, active = self._context.files, self._segments.active
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
            files.append_to(path, self._producers.snapshot(name, mark))
            self._names_changed += 1
            self._snapshots.add(end_offset)
        return [*written, path]

    def _snapshot_path(self, offset: int) -> str:
        return stem_of(self._folder, offset) + SNAPSHOT_SUFFIX

    def completed(self, plan: FlushPlan) -> bool:
        """A plan was executed: note what it made durable. False when it no longer counts."""
        if plan.epoch != self._epoch or plan.end_offset < self.flushed_offset:
            return False  # the log was truncated or failed since, or a newer plan was quicker
        self.flushed_offset = plan.end_offset
        self._flushed_position = plan.end_position
        self._names_synced = max(self._names_synced, plan.directory_version)
        # A segment that was sealed after the plan was made has bytes and indexes that it missed.
        self.forget(list(plan.sealed))
        is_all = plan.end_position == self._segments.end_position
        self.first_unflushed_ms = None if is_all else self._context.steady_clock.now_ms()
        snapshot_offset = max(self._point.snapshot_offset, plan.snapshot_offset)
        self._move_point(plan.end_offset, snapshot_offset)
        if plan.snapshot_offset == snapshot_offset:
            self._drop_snapshots(plan)
        return True

    def _move_point(self, offset: int, snapshot_offset: int, *, fsync_failed: bool = False) -> None:
        point = RecoveryPoint(
            offset,
            snapshot_offset,
            self._point.sequence + 1,
            self._context.settings.waits_for_fsync,
            fsync_failed,
        )
        path = join(self._folder, RECOVERY_POINT)
        # An old point is as true as a new one, it only makes the next start slower.
        with contextlib.suppress(StorageError, FileNotFoundError):
            write_recovery_point(self._context.files, path, point)
            self._point = point

    def persist_recovery_point(self) -> None:
        """Make the recovery point itself durable, before a gap is made in what lies below it.

        Above the recovery point a start takes a gap for records that did not reach the disk, and
        cuts the log there. Written anew even if it is the same: a sync that failed before proves
        nothing about what was written then.
        """
        point = self._point._replace(offset=self.flushed_offset, sequence=self._point.sequence + 1)
        path = join(self._folder, RECOVERY_POINT)
        write_recovery_point(self._context.files, path, point, settled=True)
        self._point = point
        self._context.files.sync_dir(self._folder)

    def _drop_snapshots(self, plan: FlushPlan) -> None:
        for offset in list(self._snapshots):
            if offset >= plan.snapshot_offset or offset == plan.older_snapshot_offset:
                continue
            with contextlib.suppress(StorageError):
                self._context.files.remove(self._snapshot_path(offset))
                self._snapshots.discard(offset)

    # -- failures ----------------------------------------------------------------------------

    def failed(self, error: StorageError) -> None:
        """A plan could not be executed: from now on nothing is acknowledged, by no plan."""
        self._epoch += 1
        self._snapshot_due = True
        self._snapshots = {o for o in self._snapshots if o <= self._point.snapshot_offset}
        self._move_point(self.flushed_offset, self._point.snapshot_offset, fsync_failed=True)
        self.failure = StorageError(
            f"{self._folder} stopped taking records: {error}; it goes on once its unsynced tail "
            f"was read back, checked and synced"
        )

    def close(self) -> None:
        """The partition was closed or deleted: no plan counts any more, nothing is taken."""
        self._epoch += 1
        self.is_closed = True
        self.failure = StorageError(f"{self._folder} is closed; open it again")

    def rewrite_tail(self) -> None:
        """Read the unsynced tail back, check it and write it anew; the next plan syncs it."""
        if self.is_closed:
            raise StorageError(str(self.failure))
        active = self._segments.active
        for segment, file in [*self._dirty_sealed, (active, active.file)]:
            base, position = self._flushed_position
            start = position if segment.base_offset == base else 0
            data = file.read(start, segment.size_bytes - start)
            for _ in scan_strict(
                view_source(memoryview(data)),
                0,
                segment.size_bytes - start,
                path=segment.log_path,
                next_offset=segment.base_offset,
                crc_from_offset=0,
            ):
                pass
            file.overwrite(start, data)
            for path in self._indexes_of(segment):
                self._context.files.replace(path, self._context.files.read(path))
        self._names_changed += 1
        self.failure = None
