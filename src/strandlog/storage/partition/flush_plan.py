"""Which files must be synced so that a partition is durable up to an offset.

A partition makes the plan (`PartitionLog.flush_plan`), anybody may execute it, in any thread,
together with the plans of other partitions: that is group commit. Then the partition is told
(`flush_completed`, `flush_failed`), in the thread that owns it. Executing twice is harmless; a plan
keeps its files open until it is dropped.

Order matters: a later segment must not become durable before an earlier one, so files are synced
from old to new, and the folder (the names of new files) before the recovery point may pass them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from strandlog.storage.files import Files, LogFile
from strandlog.storage.segment.segment import Segment


class FlushPlan:
    """What to sync, and what is durable after it."""

    __slots__ = (
        "_files",
        "end_offset",
        "epoch",
        "folder",
        "log_files",
        "names_version",
        "older_snapshot_offset",
        "place",
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
        place: tuple[int, int],
        names_version: int,
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
        self.place = place  # (segment base, position) of end_offset
        self.names_version = names_version
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
