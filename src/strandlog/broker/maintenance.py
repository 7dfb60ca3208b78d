"""Periodic tasks: repair after failed fsyncs, retention, compaction, file removal and checkpoints.

    task          interval                                   action
    repair        5 s                                        read back, check and flush the tail of
                                                             partitions whose fsync failed
    retention     log.retention.check.interval.ms            remove expired segments and producers,
                                                             and store the log start offsets
    compaction    log.cleaner.backoff.ms                     compact the dirtiest partition that is
                                                             due
    files         1 s                                        remove files after their delay, and
                                                             restore the disk reserve of a server
    checkpoints   log.flush.offset.checkpoint.interval.ms    write LogDir's four checkpoint files

Each task has a timer in the broker's heap. When the timer fires, inside `Broker.tick`, the task is
handed to the runtime as work in steps. If its previous run is still in progress, the first `tick`
after that run starts it. Tasks are independent of each other. So are partitions: an error is
recorded in `failures`, and the task continues with the next partition. A partition that cannot be
compacted because it is damaged is not tried again until it is reopened; everything else is retried
at the next interval. If the compaction of a partition keeps failing, for example because the disk
is full, other partitions that are due come first for more and more intervals.

Repair and retention skip busy partitions (`Durability.is_busy`), and retention also skips the one
that is being compacted; retention retries them after one second. Tasks yield to other work at least
after every `PARTITIONS_AT_A_TIME` partitions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from strandlog.broker.flushing.durability import Durability
from strandlog.broker.metrics import Metrics
from strandlog.broker.runtime import Runtime
from strandlog.broker.timers import Timers
from strandlog.broker.topics.catalog import TopicCatalog
from strandlog.broker.topics.lake_tables import LakeTables
from strandlog.clock import Clock
from strandlog.config.tables.broker import BrokerSettings
from strandlog.errors import CorruptSegmentError, DataError, StrandlogError
from strandlog.storage.cleaning.compaction import CompactionPlan, plan_due_compaction
from strandlog.storage.cleaning.policy import need_for_compaction
from strandlog.storage.cleaning.retention import count_expired, drop_oldest
from strandlog.storage.folder.log_dir import LogDir
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.work import Work, run_inline, yield_control

REPAIR_INTERVAL_MS = 5_000
REMOVE_INTERVAL_MS = 1_000
RETRY_MS = 1_000
FAILURES_KEPT = 100
POSTPONED_INTERVALS = 64  # maximum number of intervals for which other partitions come first
MAX_UNDECODABLE = 10  # maximum number of undecodable batches that one compaction reports
PARTITIONS_AT_A_TIME = 50

COMPACTION = "compaction"
RETENTION = "retention"


class _Postponed(NamedTuple):
    """A partition whose last compaction failed. Others come first for the given number of
    intervals, before interval number `until`."""

    intervals: int
    until: int


class _Task:
    """A periodic task. Its timer runs unless the task is overdue or maintenance has stopped."""

    __slots__ = ("begin", "interval_ms", "is_overdue", "is_running", "name", "timer")

    def __init__(
        self,
        name: str,
        interval_ms: int,
        begin: Callable[[], Work[None]],
        timers: Timers,
        now_ms: int,
        start: Callable[[_Task], None],
    ) -> None:
        self.name = name
        self.interval_ms = interval_ms
        self.begin = begin
        self.timer = timers.schedule(now_ms + interval_ms, lambda: start(self))
        self.is_running = False
        self.is_overdue = False  # the timer fired while the task was running


class Maintenance:
    """The periodic tasks of one broker."""

    def __init__(
        self,
        log_dir: LogDir,
        catalog: TopicCatalog,
        durability: Durability,
        settings: BrokerSettings,
        clock: Clock,
        timers: Timers,
        metrics: Metrics,
        runtime: Runtime,
        tables: LakeTables,
        *,
        keeps_reserve: bool = False,
    ) -> None:
        self._log_dir = log_dir
        self._catalog = catalog
        self._durability = durability
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._runtime = runtime
        self._tables = tables
        self._keeps_reserve = keeps_reserve
        self.failures: deque[str] = deque(maxlen=FAILURES_KEPT)
        self.compacting: CompactionPlan | None = None
        self._uncleanable: set[PartitionLog] = set()
        self._postponed: dict[PartitionLog, _Postponed] = {}
        self._compaction_interval = 0  # the number of the current interval
        self._is_stopped = False
        works = {
            "repair": (REPAIR_INTERVAL_MS, self._repair_all),
            RETENTION: (settings.log_retention_check_interval_ms, self._apply_retention),
            COMPACTION: (settings.log_cleaner_backoff_ms, self._compact_dirtiest),
            "files": (REMOVE_INTERVAL_MS, self._remove_files),
            "checkpoints": (
                settings.log_flush_offset_checkpoint_interval_ms,
                log_dir.write_checkpoints,
            ),
        }
        now_ms = clock.monotonic_ms()
        self._tasks = {
            name: _Task(name, interval_ms, begin, timers, now_ms, self._start)
            for name, (interval_ms, begin) in works.items()
        }

    def _start(self, task: _Task) -> None:
        """Start a task whose timer has fired, unless it is still running."""
        if task.is_running:
            task.is_overdue = True
            return
        task.timer.reschedule(self._clock.monotonic_ms() + task.interval_ms)
        work = self._run(task)
        self._runtime.run_in_background(task.name, work, is_long=task.name == COMPACTION)

    def _run(self, task: _Task) -> Work[None]:
        task.is_running = True
        try:
            yield from task.begin()
        except StrandlogError as error:
            self.note(error)
        finally:
            task.is_running = False
            if task.is_overdue and not self._is_stopped:
                task.timer.reschedule(self._clock.monotonic_ms())
            task.is_overdue = False

    def schedule_soon(self, name: str) -> None:
        """Schedule a task to start within a second, or after its current run."""
        task = self._tasks[name]
        if task.timer.is_waiting:
            soon_ms = self._clock.monotonic_ms() + RETRY_MS
            task.timer.reschedule(min(task.timer.deadline_ms, soon_ms))

    def stop(self) -> None:
        """Start no more tasks, and cancel a running compaction, unless it is already replacing
        segments; a cancelled one leaves its partition unchanged."""
        self._is_stopped = True
        for task in self._tasks.values():
            task.timer.cancel()
        if self.compacting is not None:
            self.compacting.cancel()

    def note(self, error: StrandlogError) -> None:
        """Add an error to `failures` unless it is already there."""
        if str(error) not in self.failures:
            self.failures.append(str(error))

    def _logs(self) -> list[PartitionLog]:
        return [log for name in self._catalog.names() for log in self._catalog.logs(name)]

    def _isolated(self, log: PartitionLog, work: Work[None]) -> Work[None]:
        """Run work on one partition. Note a `StrandlogError`, so that the task can continue with
        the next partition, and ignore the errors of a partition that has been deleted. Raise any
        other exception; the partition is then reopened before its next use."""
        try:
            yield from work
        except (StrandlogError, FileNotFoundError) as error:
            if log.is_closed:
                return  # the partition and its files have been deleted
            if not isinstance(error, StrandlogError):
                self._catalog.reopen_before_use(log)
                raise
            self.note(error)
        except BaseException:
            self._catalog.reopen_before_use(log)
            raise

    def _for_each(self, work: Callable[[PartitionLog], Work[None]]) -> Work[None]:
        for number, log in enumerate(self._logs(), 1):
            if not log.is_closed:
                yield from self._isolated(log, work(log))
            if number % PARTITIONS_AT_A_TIME == 0:
                yield yield_control

    # -- repair ----------------------------------------------------------------------------------

    def repair(self) -> None:
        """Make partitions writable again after a failed fsync, if the disk allows it and they are
        not busy."""
        run_inline(self._repair_all())

    def _repair_all(self) -> Work[None]:
        yield from self._for_each(self._repair)

    def _repair(self, log: PartitionLog) -> Work[None]:
        if log.failure is not None and not self._durability.is_busy(log):
            self._durability.hold(log)
            try:
                yield from log.rewrite_tail()
            finally:
                self._durability.release(log)

    # -- retention -------------------------------------------------------------------------------

    def _apply_retention(self) -> Work[None]:
        """Remove expired segments, and producers that have been idle for too long; then store the
        log start offsets."""
        self._tables.forget_deleted()
        yield from self._for_each(self._remove_expired)
        now_ms = self._log_dir.steady_clock.now_ms()
        for number, log in enumerate(self._logs(), 1):
            log.producers.expire(now_ms, self._settings.producer_id_expiration_ms)
            if number % PARTITIONS_AT_A_TIME == 0:
                yield yield_control
        yield from self._log_dir.write_log_starts()

    def _remove_expired(self, log: PartitionLog) -> Work[None]:
        count = self.removable(log, count_expired(log))
        if not count:
            return
        is_compacted = self.compacting is not None and self.compacting.log is log
        if self._durability.is_busy(log) or is_compacted:
            self.schedule_soon(RETENTION)
            return
        self._durability.hold(log)
        try:
            with self._log_dir.reserve.spending():
                self._metrics.retention_bytes += yield from drop_oldest(log, count)
            self._metrics.retention_segments += count
        finally:
            self._durability.release(log)

    def removable(self, log: PartitionLog, count: int) -> int:
        """Return how many of the `count` oldest segments, all expired, may be removed now."""
        return self._tables.removable(log, count)

    # -- compaction ------------------------------------------------------------------------------

    def _compact_dirtiest(self) -> Work[None]:
        """Compact the due partition with the highest dirty ratio. A partition whose last compaction
        failed may have to wait for others (`_postpone`)."""
        self._compaction_interval += 1
        self._uncleanable = {log for log in self._uncleanable if not log.is_closed}
        for log in [log for log in self._postponed if log.is_closed]:
            del self._postponed[log]
        due: list[tuple[float, PartitionLog]] = []

        def check(log: PartitionLog) -> Work[None]:
            if log.settings.compacts and log not in self._uncleanable:
                need = need_for_compaction(log, self._log_dir.cleaner_offsets.get(log.tp, 0))
                if need.is_due:
                    due.append((need.dirty_ratio, log))
            yield from ()

        yield from self._for_each(check)
        due = [pair for pair in due if not pair[1].is_closed]
        if not due:
            return
        _, log = min(due, key=lambda pair: (self._postponed_until(pair[1]), -pair[0]))
        try:
            yield from self._isolated(log, self._compact(log))
        finally:
            self.compacting = None

    def _postponed_until(self, log: PartitionLog) -> int:
        """Return the interval until which other partitions come first; 0 if none do."""
        until = self._postponed[log].until if log in self._postponed else 0
        return until if until > self._compaction_interval else 0

    def _postpone(self, log: PartitionLog) -> None:
        """Let other partitions come first for some intervals: 2, 4, 8 and so on, at most
        `POSTPONED_INTERVALS`."""
        before = self._postponed[log].intervals if log in self._postponed else 1
        intervals = min(2 * before, POSTPONED_INTERVALS)
        self._postponed[log] = _Postponed(intervals, self._compaction_interval + intervals)

    def _compact(self, log: PartitionLog) -> Work[None]:
        try:
            plan = plan_due_compaction(
                log,
                self._log_dir.cleaner_offsets.get(log.tp, 0),
                self._settings.log_cleaner_dedupe_buffer_size,
            )
            if plan is not None:
                self.compacting = plan
                yield from self._execute(plan)
        except (CorruptSegmentError, DataError):
            self._uncleanable.add(log)
            raise
        except StrandlogError:
            self._postpone(log)
            raise
        self._postponed.pop(log, None)

    def _execute(self, plan: CompactionPlan) -> Work[None]:
        log = plan.log
        yield plan.execute
        while self._durability.is_busy(log) and self._runtime.executes_flushes:
            yield yield_control  # wait for the fsync in flight, or for another task
        if log.is_closed:
            return
        was_busy = self._durability.is_busy(log)
        self._durability.hold(log)
        try:
            report = yield from plan.complete()
        finally:
            if not was_busy:
                self._durability.release(log)
        if self._log_dir.logs.get(log.tp) is log:
            self._log_dir.cleaner_offsets[log.tp] = report.next_dirty_offset
        for text in report.undecodable[:MAX_UNDECODABLE]:
            problem = f"compaction kept a batch whose records cannot be decoded: {text}"
            log.report(problem)
        self._metrics.compactions += 1
        self._metrics.compacted_bytes += report.bytes_before
        self._metrics.compaction_saved_bytes += report.bytes_before - report.bytes_after

    # -- files -----------------------------------------------------------------------------------

    def _remove_files(self) -> Work[None]:
        yield from self._log_dir.remover.remove(self._clock.now_ms())
        if self._keeps_reserve:
            self._log_dir.reserve.hold()
