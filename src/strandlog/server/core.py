"""What all doors lead to: the broker, and everybody who waits for it.

    doors        Kafka's protocol, gRPC, HTTP: they read requests, ask here, and write replies
    core         the broker; its timers, long polls, syncs and transactions; work in steps
    app          starts and stops all of it, and gives it a thread and an alarm clock

Everything here belongs to the event loop's thread and returns at once: a result that comes later is
a `Deferred`, or a call back. A door that has coroutines waits for them with `waiting.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from strandlog.broker.broker import Broker
from strandlog.broker.durability import Durability, Waiter
from strandlog.broker.fetch import Fetches
from strandlog.broker.metrics import Metrics
from strandlog.broker.timers import Timers
from strandlog.broker.topics.topic import forbid_internal
from strandlog.broker.transactions.coordinator import TransactionCoordinator, TransactionEffects
from strandlog.broker.visibility import Visibility
from strandlog.config.setting import Value
from strandlog.errors import StorageError, TopicDeletionDisabledError
from strandlog.server.background import SlowWork
from strandlog.server.memory import ByteBudget
from strandlog.server.turns import Turns
from strandlog.storage.files import Buffer
from strandlog.storage.partition.log import AppendResult, PartitionLog
from strandlog.storage.work import Work, run_inline

logger = logging.getLogger(__name__)

MAX_PROBLEMS_LOGGED = 100
REFUSAL_QUIET_MS = 60_000  # from one line about a disk that refuses records to the next


class ServerCore:
    """One broker, shared by its doors."""

    def __init__(self, broker: Broker, on_work: Callable[[], None] = lambda: None) -> None:
        """`on_work` hears that there may be something to sync, or to wait for."""
        self.broker = broker
        self.metrics = broker.metrics
        self.clock = broker.clock
        self.on_work = on_work
        self.timers = Timers()
        settings = broker.settings
        queued, stall_ms = settings.queued_max_request_bytes, settings.queued_stall_timeout_ms
        # Over the limit one connection may still finish its frame, however large.
        most = queued + settings.socket_request_max_bytes
        self.request_bytes = ByteBudget("requests", queued, most, stall_ms, broker.clock)
        queued = settings.queued_max_response_bytes
        self.reply_bytes = ByteBudget("replies", queued, 2 * queued, stall_ms, broker.clock)
        self.turns = Turns()
        self.fetches = Fetches(
            self.timers, self.when_visible, self.reply_bytes.room, self._in_turn, logger.warning
        )
        self.durability = Durability(broker.clock, broker.upkeep.syncing, self.fetches.visible)
        self._visibility = Visibility(
            self.durability, self.timers, broker.clock, broker.settings.visibility_max_wait_ms
        )
        self.producer_ids = broker.producer_ids
        self._quiet_until_ms = 0
        self.write_failure: StorageError | None = None  # of the last append, if it failed
        # Where the server listens and keeps its data, by setting, once it does.
        self.listener_settings: dict[str, Value] = {}
        # Whoever has threads does work in steps there; else it is done at once.
        self.slow_work: SlowWork | None = None
        broker.upkeep.sync_elsewhere = self._sync_for_chore
        broker.upkeep.on_released = self._released
        broker.upkeep.keeps_reserve = True
        broker.log_dir.reserve.hold()
        broker.on_written = self._sync_soon if broker.settings.fsyncs else self.fetches.visible
        self.transactions = TransactionCoordinator(
            broker.settings,
            broker.clock,
            self.timers,
            broker.transactions_table,
            TransactionEffects(
                self.producer_ids.next,
                broker.write_marker,
                self.when_durable,
                broker.open_transactions,
            ),
        )
        aborted = self.transactions.load()
        if aborted:
            logger.warning("%d transactions that no coordinator knew were aborted", aborted)
        for transaction in self.transactions.all():
            self.producer_ids.note(transaction.producer_id)
        self.producer_ids.check()
        self._log_problems()

    def _log_problems(self) -> None:
        """Write what the start found wrong to the log, as far as a log should grow from it."""
        problems = self.broker.problems
        for problem in problems[:MAX_PROBLEMS_LOGGED]:
            logger.warning("%s", problem)
        if len(problems) > MAX_PROBLEMS_LOGGED:
            more = len(problems) - MAX_PROBLEMS_LOGGED
            logger.warning("%d more problems; GET /api/v1/broker lists them", more)

    def _sync_for_chore(self, log: PartitionLog) -> None:
        self._sync_soon(log)
        self.on_work()

    def _released(self, log: PartitionLog) -> None:
        self.durability.released(log)
        self.on_work()  # who waited for the chore to let go need not wait for the next alarm

    def _sync_soon(self, log: PartitionLog) -> None:
        self.durability.appended(log, is_awaited=True)

    # -- records ---------------------------------------------------------------------------------

    def append(
        self, log: PartitionLog, data: Buffer, *, records_checked: bool = False
    ) -> AppendResult:
        """Append batches of a client; written when this returns, on disk some time later."""
        forbid_internal(log.tp.topic)
        try:
            result = self.broker.append(log, data, records_checked=records_checked)
        except StorageError as error:
            self._tell_refusal(error)
            raise
        self._appended(log)
        return result

    def append_all(
        self, parts: Sequence[tuple[PartitionLog, Buffer]], *, records_checked: bool = False
    ) -> list[AppendResult]:
        """The same for several partitions; when one refuses its part, nothing is written."""
        for log, _ in parts:
            forbid_internal(log.tp.topic)
        try:
            results = self.broker.append_all(parts, records_checked=records_checked)
        except StorageError as error:
            self._tell_refusal(error)
            raise
        for log, _ in parts:
            self._appended(log)
        return results

    def _tell_refusal(self, error: StorageError) -> None:
        """Clients of Kafka try again in silence, and then say "timed out": the reason is here."""
        self.write_failure = error
        now_ms = self.clock.monotonic_ms()
        if now_ms >= self._quiet_until_ms:
            self._quiet_until_ms = now_ms + REFUSAL_QUIET_MS
            logger.error("records are refused: %s", error)

    def _appended(self, log: PartitionLog) -> None:
        if self.write_failure is not None:
            self.write_failure = None
        if self.broker.settings.fsyncs:
            self.durability.appended(log, is_awaited=self.fetches.has_parked(log))
        else:
            self.fetches.visible(log)

    def when_durable(self, log: PartitionLog, end_offset: int, told: Waiter) -> None:
        """Call back once everything below an offset is as safe as acks=all promises."""
        if self.broker.settings.fsyncs:
            self.durability.when_durable(log, end_offset, told)
        else:
            told(None)

    def when_visible(self, logs: Iterable[PartitionLog], then: Callable[[], None]) -> bool:
        """Call `then` when readers see all that was written to these partitions before, or when
        the disk failed or takes too long; True when that was at once."""
        return self._visibility.when_visible(logs, then)

    def when_group_is_durable(self, group: str, told: Waiter) -> None:
        """Call back once what the coordinator wrote for a group is on disk."""
        table = self.broker.offsets_table
        if not self.broker.settings.fsyncs or not table.exists:
            told(None)
            return
        log = table.existing_log_for(group)
        self.durability.when_durable(log, log.log_end_offset, told)

    def when_groups_are_durable(self, groups: Iterable[str], told: Waiter) -> None:
        """The same for several groups; the last error counts."""
        table = self.broker.offsets_table
        if not self.broker.settings.fsyncs or not table.exists:
            told(None)
            return
        logs = {table.existing_log_for(group) for group in groups}
        waiting, failure = len(logs) + 1, None

        def one(error: StorageError | None) -> None:
            nonlocal waiting, failure
            waiting, failure = waiting - 1, error or failure
            if not waiting:
                told(failure)

        for log in logs:
            self.durability.when_durable(log, log.log_end_offset, one)
        one(None)

    # -- figures ---------------------------------------------------------------------------------

    def up_to_date_metrics(self) -> Metrics:
        """The table of figures, with those that nobody counts looked up now."""
        metrics = self.metrics
        metrics.waiting_fetches = self.fetches.parked_count
        metrics.fetched_bytes = self.fetches.read_bytes
        metrics.queued_request_bytes = self.request_bytes.total
        metrics.queued_response_bytes = self.reply_bytes.total
        closed = self.request_bytes.closed + self.reply_bytes.closed
        metrics.connections_stalled_closed = closed
        metrics.problems = len(self.broker.problems)
        reports = [log.last_report for log in self.broker.log_dir.logs.values()]
        metrics.torn_bytes = sum(report.torn_bytes for report in reports)
        return metrics

    # -- topics ----------------------------------------------------------------------------------

    def deleting_topic(self, name: str) -> Work[None]:
        """Remove a topic, where that is allowed; whoever waits for it hears so."""
        logs = list(self.broker.catalog.logs(name))
        if not self.broker.settings.delete_topic_enable:
            raise TopicDeletionDisabledError
        yield from self.broker.deleting_topic(name)
        for log in logs:
            self.durability.forget(log)
            self.fetches.deleted(log)

    def _in_turn(self, run: Callable[[], None]) -> None:
        """Go on later, after what else takes long; at once where there is no event loop."""
        if self.slow_work is None:
            run()
        else:
            self.turns.add(run)

    def in_decoder(self, name: str, work: Work[None]) -> None:
        """Do work whose slow parts decode large batches."""
        if self.slow_work is None:
            run_inline(work)
        else:
            self.slow_work.in_decoder(name, work)

    def in_steps(self, name: str, work: Work[None]) -> None:
        """Do work that waits for the disk, after all that was asked for before it."""
        if self.slow_work is None:
            run_inline(work)
        else:
            self.slow_work.in_turn(name, work)
