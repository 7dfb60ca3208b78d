"""What must be done now and then: flush lazily, clean, expire, checkpoint, remove files.

Nothing here runs by itself. Whoever embeds the broker looks when `next_due_ms` says so (on the
monotonic clock); the embedded library does it on the way through its calls (`step`), the server
takes what is due (`begin_due`) and does the slow parts of it in threads (storage/work.py). A chore
that is under way is not begun again. Each has its own interval and is independent of the others. So
is each partition: one that a chore cannot help is noted in `failures` and does not keep the chore
from the next. One that cannot be compacted, because it is damaged, is left alone from then on; all
others are tried again at the next turn.

    chore         how often                                  what
    flush         every 100 ms                               partitions past flush.ms or .messages
    mend          every 5 s                                  read back, check and sync a failed tail
    retention     log.retention.check.interval.ms            drop old segments and old producers
    compaction    log.cleaner.backoff.ms                     the dirtiest partition that is due
    files         every second                               remove what waited long enough, hold
                                                             the disk reserve
    checkpoints   log.flush.offset.checkpoint.interval.ms    the four of LogDir

`syncing` holds the partitions that are being synced or trimmed, by whomsoever: they are left alone,
and looked at again a second later. Whoever syncs elsewhere is handed lazy flushes
(`sync_elsewhere`) and hears when a chore lets go of a partition that it has synced (`on_released`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from strandlog.broker.metrics import Metrics
from strandlog.broker.topics.catalog import Catalog
from strandlog.clock import Clock
from strandlog.config.tables.broker import BrokerSettings
from strandlog.errors import CorruptSegmentError, DataError, StrandlogError
from strandlog.storage.cleaning.cleaning import (
    count_expired,
    need_for_compaction,
    plan_due_compaction,
)
from strandlog.storage.cleaning.compaction import CompactionPlan
from strandlog.storage.folder.log_dir import LogDir
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.partition.trimming import dropping_oldest
from strandlog.storage.work import Work, run_inline, yield_control

FLUSH_LOOK_MS = 100
MEND_INTERVAL_MS = 5_000
REMOVE_INTERVAL_MS = 1_000
TRY_AGAIN_MS = 1_000
FAILURES_KEPT = 100
MOST_UNDECODABLE = 10  # batches that one compaction reports
LOOKS_AT_A_TIME = 50  # partitions, before others get their turn

COMPACTION = "compaction"
RETENTION = "retention"


class _Chore(NamedTuple):
    name: str
    interval_ms: int
    begin: Callable[[], Work[None]]


class Upkeep:
    """The chores of one broker."""

    def __init__(
        self,
        log_dir: LogDir,
        catalog: Catalog,
        settings: BrokerSettings,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._log_dir = log_dir
        self._catalog = catalog
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self.failures: deque[str] = deque(maxlen=FAILURES_KEPT)
        self.syncing: set[PartitionLog] = set()
        self.sync_elsewhere: Callable[[PartitionLog], None] | None = None
        self.on_released: Callable[[PartitionLog], None] | None = None
        self.compacting: CompactionPlan | None = None
        self.keeps_reserve = False  # a server keeps one; a program that embeds the log does not
        self._uncleanable: set[PartitionLog] = set()
        self._under_way: set[str] = set()
        self._chores = (
            _Chore("flush", FLUSH_LOOK_MS, self._flushing_lazily),
            _Chore("mend", MEND_INTERVAL_MS, self._mending),
            _Chore(RETENTION, settings.log_retention_check_interval_ms, self._enforcing_retention),
            _Chore(COMPACTION, settings.log_cleaner_backoff_ms, self._compacting_dirtiest),
            _Chore("files", REMOVE_INTERVAL_MS, self._removing_files),
            _Chore(
                "checkpoints",
                settings.log_flush_offset_checkpoint_interval_ms,
                log_dir.writing_checkpoints,
            ),
        )
        now_ms = clock.monotonic_ms()
        self._due_ms = {chore.name: now_ms + chore.interval_ms for chore in self._chores}

    def next_due_ms(self) -> int:
        due_ms = [at for name, at in self._due_ms.items() if name not in self._under_way]
        return min(due_ms) if due_ms else self._clock.monotonic_ms() + TRY_AGAIN_MS

    def step(self) -> None:
        """Do what is due, here. A chore that fails is noted and tried again at its next turn."""
        for _, steps in self.begin_due():
            run_inline(steps)

    def begin_due(self) -> list[tuple[str, Work[None]]]:
        """The chores that are due and not under way, by name; each is to be done to its end."""
        now_ms = self._clock.monotonic_ms()
        begun = []
        for chore in self._chores:
            if now_ms >= self._due_ms[chore.name] and chore.name not in self._under_way:
                self._due_ms[chore.name] = now_ms + chore.interval_ms
                begun.append((chore.name, self._noting_failure(chore)))
        return begun

    def _noting_failure(self, chore: _Chore) -> Work[None]:
        self._under_way.add(chore.name)
        try:
            yield from chore.begin()
        except StrandlogError as error:
            self._note(error)
        finally:
            self._under_way.discard(chore.name)

    def hurry(self, name: str) -> None:
        """Let a chore be due soon."""
        soon_ms = self._clock.monotonic_ms() + TRY_AGAIN_MS
        self._due_ms[name] = min(self._due_ms[name], soon_ms)

    def _note(self, error: StrandlogError) -> None:
        if str(error) not in self.failures:
            self.failures.append(str(error))

    def _logs(self) -> list[PartitionLog]:
        return [log for name in self._catalog.names() for log in self._catalog.logs(name)]

    def _with_care(self, log: PartitionLog, work: Work[None]) -> Work[None]:
        """Work on one partition, whose trouble is its own."""
        try:
            yield from work
        except (StrandlogError, FileNotFoundError) as error:
            if log.is_closed:
                return  # it was deleted meanwhile, and its files with it
            if not isinstance(error, StrandlogError):
                raise
            self._note(error)
        except BaseException:
            self._catalog.distrust(log)
            raise

    def _for_each(self, work: Callable[[PartitionLog], Work[None]]) -> Work[None]:
        for number, log in enumerate(self._logs(), 1):
            if not log.is_closed:
                yield from self._with_care(log, work(log))
            if number % LOOKS_AT_A_TIME == 0:
                yield yield_control

    # -- flush and mend --------------------------------------------------------------------------

    def _flushing_lazily(self) -> Work[None]:
        """Sync partitions whose oldest unsynced record has waited long enough."""
        now_ms = self._log_dir.steady_clock.now_ms()
        for log in self._logs():
            if should_flush(log, now_ms) and log not in self.syncing and log.failure is None:
                yield from self._with_care(log, self._flush(log))

    def _flush(self, log: PartitionLog) -> Work[None]:
        if self.sync_elsewhere is not None:
            self.sync_elsewhere(log)
        else:
            yield log.flush

    def mend_failed(self) -> None:
        """Let partitions that failed to sync go on, where the disk allows it again."""
        run_inline(self._mending())

    def _mending(self) -> Work[None]:
        # In one piece: until it is over, nobody may look at what the partition says of itself.
        for log in self._logs():
            if log.failure is not None and log not in self.syncing:
                yield from self._with_care(log, self._mend(log))

    def _mend(self, log: PartitionLog) -> Work[None]:
        log.revalidate()
        self._release(log)
        yield yield_control

    def _release(self, log: PartitionLog) -> None:
        self.syncing.discard(log)
        if self.on_released is not None:
            self.on_released(log)

    # -- retention -------------------------------------------------------------------------------

    def _enforcing_retention(self) -> Work[None]:
        """Drop what is too old or too much, and forget producers that fell silent."""
        yield from self._for_each(self._drop_expired)
        now_ms = self._log_dir.steady_clock.now_ms()
        for log in self._logs():
            log.producers.expire(now_ms, self._settings.producer_id_expiration_ms)
        yield from self._log_dir.writing_log_starts()

    def _drop_expired(self, log: PartitionLog) -> Work[None]:
        count = count_expired(log)
        if not count:
            return
        is_compacted = self.compacting is not None and self.compacting.log is log
        if log in self.syncing or is_compacted:
            self.hurry(RETENTION)
            return
        self.syncing.add(log)
        try:
            with self._log_dir.reserve.spending():
                self._metrics.retention_bytes += yield from dropping_oldest(log, count)
            self._metrics.retention_segments += count
        finally:
            self._release(log)

    # -- compaction ------------------------------------------------------------------------------

    def _compacting_dirtiest(self) -> Work[None]:
        """Compact the one partition that needs it most."""
        due: list[tuple[float, PartitionLog]] = []

        def look(log: PartitionLog) -> Work[None]:
            if log.settings.compacts and log not in self._uncleanable:
                need = need_for_compaction(log, self._log_dir.cleaner_offsets.get(log.tp, 0))
                if need.is_due:
                    due.append((need.dirty_ratio, log))
            yield from ()

        yield from self._for_each(look)
        due = [pair for pair in due if not pair[1].is_closed]
        if not due:
            return
        _, log = max(due, key=lambda pair: pair[0])
        plan = plan_due_compaction(
            log,
            self._log_dir.cleaner_offsets.get(log.tp, 0),
            self._settings.log_cleaner_dedupe_buffer_size,
        )
        if plan is not None:
            self.compacting = plan
            try:
                yield from self._with_care(log, self._compact(plan))
            finally:
                self.compacting = None

    def _compact(self, plan: CompactionPlan) -> Work[None]:
        log = plan.log
        try:
            yield plan.execute
        except (CorruptSegmentError, DataError):
            self._uncleanable.add(log)
            raise
        while log in self.syncing and self.sync_elsewhere is not None:
            yield yield_control  # whoever syncs it is nearly done
        if log.is_closed:
            return
        is_free = log not in self.syncing
        self.syncing.add(log)
        try:
            report = yield from plan.completing()
        finally:
            if is_free:
                self._release(log)
        if self._log_dir.logs.get(log.tp) is log:
            self._log_dir.cleaner_offsets[log.tp] = report.next_dirty_offset
        for text in report.undecodable[:MOST_UNDECODABLE]:
            problem = f"compaction kept a batch whose records cannot be decoded: {text}"
            if problem not in log.last_report.problems:
                log.last_report.problems.append(problem)
        self._metrics.compactions += 1
        self._metrics.compacted_bytes += report.bytes_before
        self._metrics.compaction_saved_bytes += report.bytes_before - report.bytes_after

    # -- files -----------------------------------------------------------------------------------

    def remove_files(self) -> None:
        """Remove what waited long enough."""
        run_inline(self._removing_files())

    def _removing_files(self) -> Work[None]:
        yield from self._log_dir.remover.removing(self._clock.now_ms())
        if self.keeps_reserve:
            self._log_dir.reserve.hold()


def should_flush(log: PartitionLog, now_ms: int) -> bool:
    """Whether the lazy flusher's patience with a partition is over."""
    if log.first_unflushed_ms is None:
        return False
    waited_ms = now_ms - log.first_unflushed_ms
    return waited_ms >= log.settings.flush_ms or (
        log.unflushed_count >= log.settings.flush_messages
    )
