"""A data folder owned by this process: lock, partitions and shared checkpoints.

The owner holds the lock on `.lock`. `meta.properties` identifies the folder as a strandlog data
folder and records its layout and cluster id; a folder with other contents is rejected and never
modified. A clean shutdown leaves a marker, and `strandlog doctor` warns if it is missing. A start
without the marker need not read entire logs, because each partition records the offset up to which
it is durable.

    checkpoint                         content                                  if it is lost
    log-start-offset-checkpoint        log start offsets set by delete_records  records reappear,
                                                                                which is reported
    cleaner-offset-checkpoint          how far each log was compacted           compacted again
    replication-offset-checkpoint      the high watermark, for other tools      no effect
    recovery-point-offset-checkpoint   a second copy of the recovery point      no effect

The last checkpoint records the offset up to which each partition was durable at the last clean
shutdown or, by default, at most a minute before a crash. A partition that ends below that offset,
because its files or its folder are missing, reports the loss and does not reuse the lost offsets.
If a partition lost its own recovery point too and the last stop was a crash, it skips another
`UNSEEN_OFFSETS`, because the offsets of the last minute are unknown.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar
from uuid import UUID

from strandlog.clock import Clock, SteadyClock
from strandlog.config.tables.broker import BrokerSettings, broker_settings
from strandlog.config.tables.topic import LogSettings
from strandlog.errors import AlreadyOpenError, StorageError
from strandlog.model import TopicPartition
from strandlog.storage import paths
from strandlog.storage.file_remover import EVERYTHING_MS, FileRemover
from strandlog.storage.files import DIRECTORY, Files, Lock
from strandlog.storage.folder.checkpoint import OffsetCheckpoint, write_offsets
from strandlog.storage.folder.disk_reserve import DiskReserve
from strandlog.storage.folder.identity import (
    check_layout,
    is_identified,
    make_durable_folder,
    take_identity,
)
from strandlog.storage.partition.flush import FlushPlan
from strandlog.storage.partition.log import LogContext, PartitionLog
from strandlog.storage.partition.metadata import (
    PartitionMetadata,
    has_seal,
    metadata_text,
    owner_in,
    read_metadata,
)
from strandlog.storage.partition.producer_state import EARLY_EXPIRATION_MS, ProducerIdsSeen
from strandlog.storage.partition.recovery import KnownEnd, RecoveryReport
from strandlog.storage.partition.recovery_point import read_recovery_point
from strandlog.storage.paths import join
from strandlog.storage.problem_list import ProblemList
from strandlog.storage.segment.cache import SegmentCache
from strandlog.storage.segment.segment import OpenFiles
from strandlog.storage.work import Parallel, Work, run_inline, yield_control

__all__ = ["LogDir", "check_layout"]


PRODUCER_COUNT_INTERVAL_MS = 1000
FLUSHED_TOGETHER = 64  # partitions per step, at shutdown
FLUSH_STEPS = 8  # approximate number of parts of a step, which can run concurrently
MANY_PARTITIONS = 128  # from this number on, one sync of the file system saves time

T = TypeVar("T")
Plans = list[tuple[PartitionLog, FlushPlan]]
UNSEEN_OFFSETS = 2**32  # more than can be written between two checkpoints


class LogDir:
    """A data folder that this process owns."""

    def __init__(
        self,
        path: str,
        files: Files,
        clock: Clock,
        new_uuid: Callable[[], UUID],
        settings: BrokerSettings | None = None,
    ) -> None:
        """Take ownership of the folder. Raise `AlreadyOpenError` if it has another owner,
        `UnknownLayoutError` if it is not a strandlog data folder or has an unknown layout, and
        `CorruptStateError` if `meta.properties` and its copy are damaged."""
        settings = settings or broker_settings()
        self.path = path
        self.files = files
        self.clock = clock
        self.steady_clock = SteadyClock(clock)
        self.producer_ids_seen = ProducerIdsSeen(
            settings.producer_ids_max_count, self._count_producers
        )
        self._producers_counted_ms = 0
        self.problems = ProblemList()
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self._unclean: dict[TopicPartition, PartitionLog] = {}
        self._removed: set[TopicPartition] = set()
        self._close_error: StorageError | None = None
        self._new_uuid = new_uuid
        check_layout(files, path)
        self.is_new = not is_identified(files, path)
        make_durable_folder(files, path)
        self._lock = self._acquired_lock()
        self.reserve = DiskReserve(files, path, settings.log_reserve_bytes)
        try:
            self.cluster_id = take_identity(files, path, new_uuid, self.problems)
            self.was_clean = self._take_clean_marker()
            self.remover = FileRemover(files)
            self.cache = SegmentCache(
                files, settings.log_segment_cache_size, on_cut=self.problems.report
            )
            self._context = LogContext(
                files,
                clock,
                self.cache,
                self.remover,
                OpenFiles(settings.log_max_open_files),
                self.steady_clock,
                self.producer_ids_seen,
                settings,
                self._unclean,
            )
            self._log_starts = self._checkpoint(paths.LOG_START_CHECKPOINT)
            self._begin_log_starts()
            self._cleaner_points = self._checkpoint(paths.CLEANER_CHECKPOINT)
            self._recovery_points = self._checkpoint(paths.RECOVERY_CHECKPOINT)
            self.cleaner_offsets = dict(self._cleaner_points.offsets)
            self._drop_deleted_folders()
        except BaseException:
            self._lock.release()
            raise

    def _acquired_lock(self) -> Lock:
        lock = self.files.lock(join(self.path, paths.LOCK))
        if lock is None:
            raise AlreadyOpenError(self.path)
        return lock

    def _count_producers(self) -> int:
        """Forget long-idle producers, and return the number of producers in all partitions. This
        visits every partition, so it runs at most once per second; in between, the last count is
        returned."""
        now_ms = self.steady_clock.now_ms()
        if now_ms - self._producers_counted_ms < PRODUCER_COUNT_INTERVAL_MS:
            return self.producer_ids_seen.count
        self._producers_counted_ms = now_ms
        for log in self.logs.values():
            log.producers.expire(now_ms, EARLY_EXPIRATION_MS)
        return sum(len(log.producers) for log in self.logs.values())

    def _take_clean_marker(self) -> bool:
        path = join(self.path, paths.CLEAN_SHUTDOWN)
        was_clean = self.files.exists(path)
        if was_clean:
            self.files.remove(path)
            self.files.sync_dir(self.path)
        return was_clean

    def _checkpoint(self, name: str) -> OffsetCheckpoint:
        return OffsetCheckpoint(self.files, join(self.path, name), self.problems)

    def _begin_log_starts(self) -> None:
        """Create a missing log start checkpoint. If partitions exist, report that it was lost."""
        if not self._log_starts.is_missing:
            return
        if self.partitions_on_disk():
            self.problems.append(
                f"{join(self.path, paths.LOG_START_CHECKPOINT)} and its copy are missing; "
                "deleted records may have reappeared"
            )
        with contextlib.suppress(StorageError):  # a full disk must not prevent opening
            self._log_starts.create()

    def _drop_deleted_folders(self) -> None:
        for name, size in self.files.list_dir(self.path).items():
            if size == DIRECTORY and name.endswith(paths.DELETE_DIR_SUFFIX):
                self.files.remove_tree(join(self.path, name))

    # -- partitions ---------------------------------------------------------------------------

    def partition_folders(self) -> Iterator[tuple[TopicPartition, str]]:
        """Yield every partition on disk with the topic id from its folder, or "" if that is
        unreadable."""
        for tp in self.partitions_on_disk():
            yield tp, read_topic_id(self.files, join(self.path, paths.partition_dir(tp)))

    def partitions_on_disk(self) -> list[TopicPartition]:
        """Return the partitions that have a folder."""
        names = sorted(self.files.list_dir(self.path).items())
        parsed = (paths.parse_partition_dir(name) for name, size in names if size == DIRECTORY)
        return [tp for tp in parsed if tp is not None]

    def metadata(self, tp: TopicPartition) -> PartitionMetadata:
        """Read the `partition.metadata` of a partition."""
        return read_metadata(self.files, join(self.path, paths.partition_dir(tp)))

    def original_of(
        self, tp: TopicPartition, partitions: Iterable[TopicPartition]
    ) -> TopicPartition | None:
        """Return which of `partitions` the `partition.metadata` of `tp` was written for, or None if
        that is unknown. The result differs from `tp` if the folder was copied or renamed by hand.
        """
        path = join(join(self.path, paths.partition_dir(tp)), paths.PARTITION_METADATA)
        try:
            data = self.files.read(path)
        except FileNotFoundError:
            return None
        if not has_seal(data):
            return None
        names = {paths.partition_dir(other): other for other in partitions}
        owner = owner_in(data, names)
        return None if owner is None else names[owner]

    def has_history(self, tp: TopicPartition) -> bool:
        """Return whether the folder of a partition shows that records were ever written to it."""
        folder = join(self.path, paths.partition_dir(tp))
        names = self.files.list_dir(folder)
        logs = [parsed for name in names if (parsed := paths.parse_segment_file(name))]
        if any(parsed[0] > 0 for parsed in logs):
            return True
        if any(size > 0 and name.endswith(paths.LOG_SUFFIX) for name, size in names.items()):
            return True
        point = read_recovery_point(self.files, join(folder, paths.RECOVERY_POINT))
        return point is not None and point.offset > 0

    def clear_checkpoints(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove these partitions from the checkpoints that a start reads. They may contain entries
        for deleted partitions with the same names."""
        partitions = list(partitions)
        for checkpoint in (self._log_starts, self._cleaner_points, self._recovery_points):
            checkpoint.forget(partitions)

    def create_files(
        self, partitions: Sequence[TopicPartition], topic_id: str, settings: LogSettings
    ) -> list[PartitionLog]:
        """Create the files of empty partitions, which are not visible until they are registered.
        Call `clear_checkpoints` first and `fsync_new` afterwards."""
        if not is_identified(self.files, self.path):  # else the next start would reject the folder
            names = ", ".join(map(str, partitions))
            raise StorageError(f"could not create {names}: the data folder {self.path} was removed")
        return [self._create(tp, topic_id, settings) for tp in partitions]

    def _create(self, tp: TopicPartition, topic_id: str, settings: LogSettings) -> PartitionLog:
        name = paths.partition_dir(tp)
        folder = join(self.path, name)
        metadata = join(folder, paths.PARTITION_METADATA)
        is_new = self.files.make_dir(folder)
        if not is_new:
            self.files.remove(metadata)
        self.files.append_to(metadata, metadata_text(name, topic_id))
        return self._opened(tp, settings, 0, is_new=is_new)

    def restore_partition(self, tp: TopicPartition, topic_id: str, settings: LogSettings) -> None:
        """Recreate a partition whose folder is missing. It is empty and continues after all offsets
        that may have been assigned."""
        known_end = max(self._known_end(tp), self._log_starts.offsets.get(tp, 0))
        self._cleaner_points.forget([tp])
        folder = join(self.path, paths.partition_dir(tp))
        self.files.make_dir(folder)
        self.write_partition_metadata(tp, topic_id)
        known_end += self._unseen_offsets
        self.register(self._opened(tp, settings, known_end))
        lost = f"; offsets below {known_end} are lost" if known_end else ""
        self.problems.append(f"the folder of {tp} was missing; an empty one was created{lost}")

    def _known_end(self, tp: TopicPartition) -> int:
        """Return the offset up to which the partition was durable when the checkpoint was
        written."""
        return self._recovery_points.offsets.get(tp, 0)

    def register(self, log: PartitionLog) -> None:
        """Register a partition whose files were created."""
        self.cleaner_offsets.pop(log.tp, None)
        # From now on `logs`, not `_removed`, hides the checkpoint entry of a deleted partition.
        self._removed.discard(log.tp)
        self.logs[log.tp] = log

    def write_partition_metadata(self, tp: TopicPartition, topic_id: str) -> None:
        """Record in the partition's folder which topic it belongs to."""
        name = paths.partition_dir(tp)
        path = join(join(self.path, name), paths.PARTITION_METADATA)
        self.files.replace(path, metadata_text(name, topic_id))

    def fsync_new(self, logs: Sequence[PartitionLog]) -> Work[None]:
        """Make the files of new partitions and their folders durable."""
        if len(logs) >= MANY_PARTITIONS and self.files.can_sync_file_system:
            yield partial(self.files.sync_file_system, self.path)
        else:
            yield _in_parallel(self._fsync_files, logs)
        yield self.fsync_directory

    def _fsync_files(self, logs: Sequence[PartitionLog]) -> None:
        for log in logs:
            self.files.sync_file(join(log.folder, paths.PARTITION_METADATA))
            self.files.sync_file(join(log.folder, paths.RECOVERY_POINT))
            self.files.sync_dir(log.folder)

    def fsync_directory(self) -> None:
        """Make new and renamed partition folders durable."""
        self.files.sync_dir(self.path)

    def open_partition(
        self, tp: TopicPartition, settings: LogSettings, *, was_created: bool = False
    ) -> PartitionLog:
        """Open an existing partition, recovering it if necessary. `was_created` means that its
        creation is known to have completed, so missing files count as lost."""
        log_start = self._log_starts.offsets.get(tp, 0)
        unseen_offsets = self._unseen_offsets if was_created else 0
        log = self._opened(tp, settings, log_start, unseen_offsets)
        self.logs[tp] = log
        return log

    @property
    def _unseen_offsets(self) -> int:
        """The number of offsets that may have been assigned since the checkpoint was written."""
        return 0 if self.was_clean else UNSEEN_OFFSETS

    def _opened(
        self,
        tp: TopicPartition,
        settings: LogSettings,
        log_start: int,
        unseen_offsets: int = 0,
        *,
        is_new: bool = False,
    ) -> PartitionLog:
        folder = join(self.path, paths.partition_dir(tp))
        known = KnownEnd(self._known_end(tp), unseen_offsets)
        return PartitionLog(tp, folder, settings, self._context, log_start, known, is_new=is_new)

    def delete_partition(self, tp: TopicPartition, delay_ms: int) -> None:
        """Remove a partition immediately, and delete its files after `delay_ms`."""
        self.unregister(tp)
        self.remove_later(self.rename_away(tp), delay_ms)

    def unregister(self, tp: TopicPartition) -> None:
        """Unregister a partition and release its files, before its folder is renamed."""
        log = self.logs.pop(tp, None)
        self._unclean.pop(tp, None)
        if log is not None:
            log.abandon()
        self.cleaner_offsets.pop(tp, None)
        self._removed.add(tp)

    def rename_away(self, tp: TopicPartition) -> str:
        """Rename the folder of a partition for deletion and return its new path. May be called
        from any thread."""
        return self._rename_folder(tp, paths.DELETE_DIR_SUFFIX)

    def remove_later(self, renamed: str, delay_ms: int) -> None:
        """Delete a renamed folder after `delay_ms`."""
        self.remover.remove_later(renamed, self.clock.now_ms() + delay_ms)

    def set_stray_aside(self, tp: TopicPartition) -> None:
        """Rename the folder of a partition that belongs to no topic, and report it."""
        self._removed.add(tp)
        renamed = self._rename_folder(tp, paths.STRAY_DIR_SUFFIX)
        self.problems.append(f"{tp} belongs to no topic and was set aside as {renamed}")

    def _rename_folder(self, tp: TopicPartition, suffix: str) -> str:
        name = paths.partition_dir(tp)
        tail = f".{self._new_uuid().hex}{suffix}"
        renamed = join(self.path, name[: paths.MAX_NAME_BYTES - len(tail)] + tail)
        self.files.rename(join(self.path, name), renamed)
        return renamed

    def reports(self) -> list[RecoveryReport]:
        """Return the reports of the partitions that have problems. The cost does not depend on the
        number of other partitions."""
        found = list(self._unclean.items())
        # A partition that was opened again, or whose creation failed, is not the registered one.
        return [log.last_report for tp, log in found if self.logs.get(tp) is log]

    # -- checkpoints and shutdown -------------------------------------------------------------

    def write_log_starts(self) -> Work[None]:
        """Make advanced log start offsets durable."""
        # Partitions that exist but were not opened keep their entry.
        known = self.logs.keys() | self._removed
        starts = {tp: o for tp, o in self._log_starts.offsets.items() if tp not in known}
        for tp, log in self.logs.items():
            if log.log_start_offset > log.segments.first_base:
                starts[tp] = log.log_start_offset
        if self._log_starts.is_stale(starts):
            with self.reserve.spending():
                yield partial(self._log_starts.write, starts)

    def write_checkpoints(self) -> Work[None]:
        """Write all four checkpoints."""
        yield from self.write_log_starts()
        yield partial(self._cleaner_points.write, dict(self.cleaner_offsets))
        marks = {tp: log.high_watermark for tp, log in self.logs.items()}
        yield partial(self._write_checkpoint, paths.HIGH_WATERMARK_CHECKPOINT, marks)
        points = {tp: log.flushed_offset for tp, log in self.logs.items()}
        yield partial(self._recovery_points.write, points)

    def _write_checkpoint(self, name: str, offsets: dict[TopicPartition, int]) -> None:
        write_offsets(self.files, join(self.path, name), offsets)

    def flush_for_close(self) -> Work[None]:
        """Flush all partitions, many at a time, so that `close` has little left to do. Flushing
        thousands of partitions one after the other would take a minute."""
        logs = [log for log in self.logs.values() if log.failure is None]
        plans: Plans = []
        with self.reserve.spending():
            for start in range(0, len(logs), FLUSHED_TOGETHER):
                yield yield_control
                for log in logs[start : start + FLUSHED_TOGETHER]:
                    if (plan := log.closing_plan()) is not None:
                        plans.append((log, plan))
                    elif not log.is_closed:  # deleting a partition closes its log
                        self._close_error = self._close_error or log.failure
            if len(plans) >= MANY_PARTITIONS and self.files.can_sync_file_system:
                plans = yield from self._sync_ahead(plans)
            for start in range(0, len(plans), FLUSHED_TOGETHER):
                yield from self._flush_together(plans[start : start + FLUSHED_TOGETHER])

    def _sync_ahead(self, plans: Plans) -> Work[Plans]:
        """Sync the whole file system, so that the syncs of single files find nothing left to write.
        Return the plans to execute: none if the sync fails, because the kernel may have marked the
        pages clean, and a later sync would then prove nothing."""
        try:
            yield partial(self.files.sync_file_system, self.path)
        except StorageError as error:
            for log, plan in plans:
                log.flush_failed(plan, error)
            self._close_error = self._close_error or error
            return []
        return plans

    def _flush_together(self, plans: Plans) -> Work[None]:
        failures: dict[PartitionLog, StorageError] = {}

        def execute(some: Sequence[tuple[PartitionLog, FlushPlan]]) -> None:
            for log, plan in some:
                try:
                    plan.execute()
                except StorageError as error:
                    failures[log] = error

        yield _in_parallel(execute, plans)
        for log, plan in plans:
            if log in failures:
                log.flush_failed(plan, failures[log])
                self._close_error = self._close_error or failures[log]
            else:
                log.flush_completed(plan)

    def close(self) -> None:
        """Shut down cleanly: flush all partitions, write the marker and release the lock.

        If a partition cannot be flushed, the others are still flushed, but no marker is written,
        and the first error is raised at the end. A partition that failed earlier also prevents the
        marker, but its error is not raised again.
        """
        with self.reserve.spending():
            run_inline(self.flush_for_close())
            self._close()

    def _close(self) -> None:
        failures = [log.failure for log in self.logs.values() if log.failure is not None]
        error = self._close_error
        try:
            for log in self.logs.values():
                try:
                    log.close()
                except StorageError as failure:
                    log.abandon()
                    error = error or failure
            with contextlib.suppress(StorageError):  # the next start deletes the rest
                run_inline(self.remover.remove(EVERYTHING_MS))
            run_inline(self.write_checkpoints())
            if not failures and error is None:
                marker = join(self.path, paths.CLEAN_SHUTDOWN)
                self.files.replace(marker, b'{"version":0,"brokerEpoch":-1}')
        finally:
            self.cache.close()
            self._lock.release()
        if error is not None:
            raise error

    def abandon(self) -> None:
        """Release the folder without writing anything, as a crash would. For callers that fail
        during startup or shutdown, and for a forked child process."""
        self.cache.close()
        self._lock.release()


def read_topic_id(files: Files, folder: str) -> str:
    """Return the topic id recorded in a partition's folder, or "" if it is unreadable."""
    return read_metadata(files, folder).topic_id


def _in_parallel(act: Callable[[Sequence[T]], None], items: Sequence[T]) -> Parallel:
    """Return the work of calling `act` with parts of the items, which can run concurrently."""
    size = max(1, len(items) // FLUSH_STEPS)
    parts = [items[start : start + size] for start in range(0, len(items), size)]
    return Parallel([partial(act, part) for part in parts])
