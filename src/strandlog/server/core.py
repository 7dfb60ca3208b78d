"""What is left of the server's core: forwards to `Broker` until all listeners call it directly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from strandlog.broker.broker import Broker
from strandlog.broker.durability import OnDurable
from strandlog.broker.metrics import Metrics
from strandlog.broker.runtime import Work, run_inline
from strandlog.errors import StorageError
from strandlog.model import Buffer
from strandlog.server.background import ServerRuntime
from strandlog.server.memory import ByteBudget, request_budget, response_budget
from strandlog.server.turns import Turns
from strandlog.storage.partition.log import AppendResult, PartitionLog


class ServerCore:
    """One broker, shared by its listeners."""

    def __init__(self, broker: Broker, runtime: ServerRuntime | None = None) -> None:
        self.broker = broker
        self.metrics = broker.metrics
        self.clock = broker.clock
        self.timers = broker.timers
        self.fetches = broker.delayed_fetches
        self.durability = broker.durability
        self.producer_ids = broker.producer_ids
        self.transactions = broker.transaction_coordinator
        self._runtime = runtime
        self.request_bytes: ByteBudget = (
            runtime.request_bytes if runtime else request_budget(broker.settings, broker.clock)
        )
        self.reply_bytes: ByteBudget = (
            runtime.response_bytes if runtime else response_budget(broker.settings, broker.clock)
        )
        self.turns = runtime.turns if runtime else Turns()
        self.on_work: Callable[[], None] = runtime.handle_wake if runtime else lambda: None

    @property
    def write_failure(self) -> StorageError | None:
        return self.broker.write_failure

    def append(
        self, log: PartitionLog, data: Buffer, *, records_checked: bool = False
    ) -> AppendResult:
        return self.broker.appender.append(log, data, records_checked=records_checked)

    def append_all(
        self, parts: Sequence[tuple[PartitionLog, Buffer]], *, records_checked: bool = False
    ) -> list[AppendResult]:
        return self.broker.appender.append_all(parts, records_checked=records_checked)

    def when_durable(self, log: PartitionLog, end_offset: int, told: OnDurable) -> None:
        self.durability.when_durable(log, end_offset, told)

    def when_visible(self, logs: Iterable[PartitionLog], then: Callable[[], None]) -> bool:
        return self.broker.visibility.when_visible(logs, then)

    def when_group_is_durable(self, group: str, told: OnDurable) -> None:
        self.when_groups_are_durable([group], told)

    def when_groups_are_durable(self, groups: Iterable[str], told: OnDurable) -> None:
        def done(error: Exception | None) -> None:
            assert error is None or isinstance(error, StorageError)
            told(error)

        self.broker.when_groups_durable(groups, None).on_done(lambda each: done(each.error))

    def up_to_date_metrics(self) -> Metrics:
        """The metrics, with those that are not counted on the way computed now."""
        metrics = self.broker.refresh_metrics()
        metrics.queued_request_bytes = self.request_bytes.total
        metrics.queued_response_bytes = self.reply_bytes.total
        closed = self.request_bytes.closed + self.reply_bytes.closed
        metrics.connections_stalled_closed = closed
        return metrics

    def deleting_topic(self, name: str) -> Work[None]:
        return self.broker.topic_admin.delete(name)

    def in_decoder(self, name: str, work: Work[None]) -> None:
        """Do work whose slow parts decode large batches."""
        if self._runtime is None:
            run_inline(work)
        else:
            self._runtime.run_in_decoder(name, work)

    def in_steps(self, name: str, work: Work[None]) -> None:
        """Do work that waits for the disk, after all that was asked for before it."""
        if self._runtime is None:
            run_inline(work)
        else:
            self._runtime.run_in_order(name, work)
