"""What must be done now and then: flush lazily, clean, expire, checkpoint, remove files.

Nothing here runs by itself. Whoever embeds the broker calls `step` when `next_due_ms` says so (both
on the monotonic clock); the embedded library does it on the way through its calls, the server from
its loop. One step does all that is due; each chore has its own interval and is independent of the
others. So is each partition: one that a chore cannot help is noted in `failures` and does not keep
the chore from the next. One that cannot be compacted, because it is damaged, is left alone from
then on; all others are tried again at the next turn.

    chore         how often                                  what
    flush         every 100 ms                               partitions past flush.ms or .messages
    mend          every 5 s                                  read back, check and sync a failed tail
    retention     log.retention.check.interval.ms            drop old segments and old producers
    compaction    log.cleaner.backoff.ms                     the dirtiest partition that is due
    files         every second                               remove what waited long enough
    checkpoints   log.flush.offset.checkpoint.interval.ms    the four of LogDir
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from strandlog.broker.catalog import Catalog
from strandlog.clock import Clock
from strandlog.config.broker_settings import BrokerSettings
from strandlog.errors import CorruptSegmentError, DataError, StrandlogError
from strandlog.storage.cleaning import enforce_retention, need_for_compaction, plan_due_compaction
from strandlog.storage.log_dir import LogDir
from strandlog.storage.partition_log import PartitionLog

FLUSH_LOOK_MS = 100
MEND_INTERVAL_MS = 5_000
REMOVE_INTERVAL_MS = 1_000
FAILURES_KEPT = 100


class Upkeep:
    """The chores of one broker."""

    def __init__(
        self, log_dir: LogDir, catalog: Catalog, settings: BrokerSettings, clock: Clock
    ) -> None:
        self._log_dir = log_dir
        self._catalog = catalog
        self._settings = settings
        self._clock = clock
        self.failures: deque[str] = deque(maxlen=FAILURES_KEPT)
        self.syncing: set[PartitionLog] = set()  # whoever syncs elsewhere says so here
        self._uncleanable: set[PartitionLog] = set()
        self._chores: list[tuple[int, Callable[[], None]]] = [
            (FLUSH_LOOK_MS, self.flush_lazily),
            (MEND_INTERVAL_MS, self.mend_failed),
            (settings.log_retention_check_interval_ms, self.enforce_retention),
            (settings.log_cleaner_backoff_ms, self.compact_dirtiest),
            (REMOVE_INTERVAL_MS, self.remove_files),
            (settings.log_flush_offset_checkpoint_interval_ms, log_dir.write_checkpoints),
        ]
        now_ms = clock.monotonic_ms()
        self._due_ms = [now_ms + interval_ms for interval_ms, _ in self._chores]

    def next_due_ms(self) -> int:
        return min(self._due_ms)

    def step(self) -> None:
        """Do what is due. A chore that fails is noted and tried again at its next turn."""
        now_ms = self._clock.monotonic_ms()
        for number, (interval_ms, chore) in enumerate(self._chores):
            if now_ms >= self._due_ms[number]:
                self._due_ms[number] = now_ms + interval_ms
                try:
                    chore()
                except StrandlogError as error:
                    self._note(error)

    def _note(self, error: StrandlogError) -> None:
        if str(error) not in self.failures:
            self.failures.append(str(error))

    def _logs(self) -> list[PartitionLog]:
        return [log for name in self._catalog.names() for log in self._catalog.logs(name)]

    def _for_each(self, work: Callable[[PartitionLog], object]) -> None:
        for log in self._logs():
            try:
                work(log)
            except StrandlogError as error:
                self._note(error)
            except BaseException:
                self._catalog.distrust(log)
                raise

    def flush_lazily(self) -> None:
        """Sync partitions whose oldest unsynced record has waited long enough."""
        now_ms = self._clock.now_ms()

        def flush(log: PartitionLog) -> None:
            if should_flush(log, now_ms) and log not in self.syncing and log.failure is None:
                log.flush()

        self._for_each(flush)

    def mend_failed(self) -> None:
        """Let partitions that failed to sync go on, where the disk allows it again."""

        def mend(log: PartitionLog) -> None:
            if log.failure is not None:
                log.revalidate()

        self._for_each(mend)

    def enforce_retention(self) -> None:
        """Drop what is too old or too much, and forget producers that fell silent."""
        now_ms = self._clock.now_ms()
        self._for_each(enforce_retention)
        for log in self._logs():
            log.producers.expire(now_ms, self._settings.producer_id_expiration_ms)
        self._log_dir.write_log_starts()

    def compact_dirtiest(self) -> None:
        """Compact the one partition that needs it most."""
        cleaner_offsets = self._log_dir.cleaner_offsets
        due: list[tuple[float, PartitionLog]] = []

        def look(log: PartitionLog) -> None:
            if log.settings.compacts and log not in self._uncleanable:
                need = need_for_compaction(log, cleaner_offsets.get(log.tp, 0))
                if need.is_due:
                    due.append((need.dirty_ratio, log))

        self._for_each(look)
        if not due:
            return
        _, log = max(due, key=lambda pair: pair[0])
        plan = plan_due_compaction(
            log, cleaner_offsets.get(log.tp, 0), self._settings.log_cleaner_dedupe_buffer_size
        )
        if plan is not None:
            try:
                plan.execute()
            except (CorruptSegmentError, DataError):
                self._uncleanable.add(log)
                raise
            with self._catalog.changing(log):
                cleaner_offsets[log.tp] = plan.complete().next_dirty_offset

    def remove_files(self) -> None:
        self._log_dir.remover.step(self._clock.now_ms())


def should_flush(log: PartitionLog, now_ms: int) -> bool:
    """Whether the lazy flusher's patience with a partition is over."""
    if log.first_unflushed_ms is None:
        return False
    waited_ms = now_ms - log.first_unflushed_ms
    return waited_ms >= log.settings.flush_ms or (
        log.unflushed_count >= log.settings.flush_messages
    )
