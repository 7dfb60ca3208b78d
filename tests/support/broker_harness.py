"""A broker whose disk, clock and fsyncs a test controls.

The test does what the server's threads do: `sync` (or `take` and `execute` for each partition)
flushes what was written, and `advance` lets time pass. So a test can examine every state in which a
change is not on disk yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from tests.support.log_builders import START_MS, batch, uuids

from strandlog.broker.broker import Broker
from strandlog.broker.context import embedded_context
from strandlog.broker.deferred import Deferred
from strandlog.broker.groups.requests import CommitRequest
from strandlog.broker.runtime import FlushJob, InlineRuntime
from strandlog.broker.topics.topic import OFFSETS_TOPIC
from strandlog.config.tables.broker import BROKER_SETTINGS, broker_settings
from strandlog.errors import StorageError, StrandlogError
from strandlog.model import OffsetAndMetadata, ProducerIdentity, TopicPartition
from strandlog.protocol.transaction_records import TransactionState
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.partition.read import aborted_in, read
from strandlog.storage.segment.scan import batches_of_read
from strandlog.testing import CrashChoice, FakeClock, SimulatedFiles

CONTEXT = embedded_context()

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
TOPICS = {"t": 2, "u": 1}
TIMEOUT_MS = 60_000
RETRY_MS = 1_000
NEW = ProducerIdentity()
SMALL: dict[str, object] = {
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
}

R = TypeVar("R")


class TransactionHarness:
    """One broker, with shorthands for the requests of its producers."""

    def __init__(
        self,
        disk: SimulatedFiles | None = None,
        clock: FakeClock | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self.disk = disk or SimulatedFiles()
        self.clock = clock or FakeClock(START_MS)
        self._settings = {**SMALL, **(settings or {})}
        is_new = disk is None or not disk.exists("data")
        self.broker = Broker(
            "data",
            self.disk,
            self.clock,
            uuids(1 if is_new else 1_000),
            broker_settings(BROKER_SETTINGS.parse(self._settings)),
            InlineRuntime(executes_flushes=True),
        )
        self.broker.stop_maintenance()  # the harness repairs failed partitions itself
        for topic, partitions in TOPICS.items():
            if is_new:
                self.broker.create_topic(CONTEXT, topic, partitions).result()
        self.transactions = self.broker._transaction_coordinator
        self._sequences: dict[tuple[ProducerIdentity, TopicPartition], int] = {}

    def after_kill(self) -> TransactionHarness:
        """The broker that starts after this one was killed."""
        return TransactionHarness(self.disk.after_kill(), self.clock, self._settings)

    def after_crash(self, choice: CrashChoice | None = None) -> TransactionHarness:
        """The broker that starts after a power cut; by default, all unsynced bytes are lost."""
        disk = self.disk.after_crash(choice or CrashChoice())
        return TransactionHarness(disk, self.clock, self._settings)

    # -- disk and time -------------------------------------------------------------------------

    def take(self) -> list[FlushJob]:
        """The flushes that are due, by partition."""
        return sorted(self.broker._durability.take_flushes(), key=lambda job: job.log.tp)

    def execute(self, job: FlushJob) -> None:
        """Execute one flush."""
        try:
            job.plan.execute()
        except StorageError as error:
            self.broker._durability.flush_done(job, error)
        else:
            self.broker._durability.flush_done(job, None)

    def sync(self, topic: str = "") -> list[TopicPartition]:
        """Flush what is due, once; with `topic`, only that topic. Returns what was flushed."""
        jobs = self.take()
        wanted = [job for job in jobs if job.log.tp.topic.startswith(topic)]
        for job in wanted:
            self.execute(job)
        for job in jobs:
            if job not in wanted:  # not yet: the job stays in the queue
                self.broker.flush_dropped(job)
        return [job.log.tp for job in wanted]

    def settle(self) -> None:
        """Flush until nothing is due."""
        for _ in range(100):
            if not self.broker._durability.is_due():
                return
            self.sync()
        raise AssertionError("there is always something to sync")

    def advance(self, ms: int, *, syncing: bool = True) -> None:
        """Advance the clock, with a tick at every deadline."""
        end_ms = self.clock.monotonic_ms() + ms
        self.broker._maintenance.repair()
        while True:
            if syncing:
                self.settle()
            deadline_ms = self.broker._timers.next_deadline_ms()
            if deadline_ms is None or deadline_ms > end_ms:
                break
            self.clock.advance(max(0, deadline_ms - self.clock.monotonic_ms()))
            self.broker._maintenance.repair()
            self.broker._timers.run_due(self.clock.monotonic_ms())
        self.clock.advance(end_ms - self.clock.monotonic_ms())

    # -- producers -----------------------------------------------------------------------------

    def init(
        self, name: str = "tx", given: ProducerIdentity = NEW, timeout_ms: int = TIMEOUT_MS
    ) -> Deferred[ProducerIdentity]:
        return self.transactions.init_producer(name, timeout_ms, given)

    def add(
        self, producer: ProducerIdentity, *partitions: TopicPartition, name: str = "tx"
    ) -> Deferred[None]:
        return self.transactions.add_partitions(name, producer, partitions)

    def end(
        self, producer: ProducerIdentity, *, commit: bool = True, name: str = "tx"
    ) -> Deferred[None]:
        return self.transactions.end(name, producer, commit=commit)

    def send(self, producer: ProducerIdentity, tp: TopicPartition, *texts: bytes) -> None:
        """Write records inside the transaction; not yet on disk."""
        self.transactions.check_append(producer, tp)
        sequence = self._sequences.get((producer, tp), 0)
        data = batch(
            *texts,
            producer=(*producer, sequence),
            transactional=True,
            timestamp=self.clock.now_ms(),
        )
        log = self.log(tp)
        self.broker._appender.append(log, data)
        self._sequences[producer, tp] = sequence + len(texts)
        self.broker._durability.written(log)

    def when_group_durable(self, group: str, on_durable: Callable[[object], None]) -> None:
        """Call back, with an error or None, when the offsets of a group are on disk."""
        self.broker.when_groups_durable([group], None).on_done(lambda done: on_durable(done.error))

    def offsets_partition(self, group: str = "g") -> TopicPartition:
        return self.broker._offsets_table.log_for(group).tp

    def send_offsets(
        self, producer: ProducerIdentity, offsets: Mapping[TopicPartition, int], group: str = "g"
    ) -> None:
        """Commit offsets inside the transaction; not yet on disk."""
        self.transactions.check_append(producer, self.offsets_partition(group))
        request = self._commit_request(group, offsets)
        assert not self.broker._group_coordinator.try_commit_in_transaction(request, producer)

    def commit_offsets(self, offsets: Mapping[TopicPartition, int], group: str = "g") -> None:
        """Commit offsets outside of any transaction."""
        self.broker._group_coordinator.commit_offsets(self._commit_request(group, offsets))

    @staticmethod
    def _commit_request(group: str, offsets: Mapping[TopicPartition, int]) -> CommitRequest:
        kept = {tp: OffsetAndMetadata(offset) for tp, offset in offsets.items()}
        return CommitRequest(group_id=group, offsets=kept)

    def done(self, ask: Callable[[], Deferred[R]]) -> R:
        """Send a request and retry it, as clients do, until it succeeds."""
        for _ in range(30):
            try:
                pending = ask()
                self.settle()
                if pending.is_done:
                    return pending.result()
            except StrandlogError as error:
                if not error.retriable:
                    raise
            self.advance(RETRY_MS)
        raise AssertionError("asked thirty times, and there is no answer")

    def producer(self, name: str = "tx", given: ProducerIdentity = NEW) -> ProducerIdentity:
        """An initialized producer."""
        return self.done(lambda: self.init(name, given))

    def begun(self, *partitions: TopicPartition, name: str = "tx") -> ProducerIdentity:
        """A producer with an open transaction, all of it on disk."""
        producer = self.producer(name)
        self.done(lambda: self.add(producer, *partitions, name=name))
        return producer

    # -- looking -------------------------------------------------------------------------------

    def log(self, tp: TopicPartition) -> PartitionLog:
        return self.broker._catalog.log(tp.topic, tp.partition)

    def state(self, name: str = "tx") -> TransactionState:
        return self.transactions.describe(name).state

    def seen(self, tp: TopicPartition) -> list[bytes | None]:
        """What a reader of committed records gets, by the rule that clients follow."""
        return committed_values(self.log(tp))

    def committed(self, group: str = "g") -> dict[TopicPartition, int]:
        found = self.broker._group_coordinator.fetch_offsets(group)
        return {tp: value.offset for tp, value in found.items() if value}

    def held_back(self) -> list[TopicPartition]:
        """Partitions whose last stable offset is below the log end offset."""
        return [
            tp
            for tp, log in sorted(self.broker._log_dir.logs.items())
            if log.last_stable_offset != log.log_end_offset
        ]

    def marker_count(self, tp: TopicPartition) -> int:
        """How many markers a partition has, on disk or not."""
        data = read(self.log(tp), 0, 1_000_000, unflushed=True)
        views = batches_of_read(data, path="", offset=0, end_offset=self.log(tp).log_end_offset)
        return sum(view.header.is_control for view in views)

    def known_offsets_partitions(self) -> list[TopicPartition]:
        return [log.tp for log in self.broker._catalog.logs(OFFSETS_TOPIC)]


def committed_values(log: PartitionLog) -> list[bytes | None]:
    """The values below the last stable offset that no aborted transaction wrote."""
    offset, end_offset = log.log_start_offset, log.last_stable_offset
    aborted = aborted_in(log, offset, end_offset)
    found: list[bytes | None] = []
    while offset < end_offset:
        data = read(log, offset, 2_000, committed=True)
        if not data:
            break
        for view in batches_of_read(data, path="", offset=offset, end_offset=log.log_end_offset):
            header = view.header
            offset = header.next_offset
            is_aborted = header.is_transactional and any(
                entry.producer_id == header.producer_id
                and entry.first_offset <= header.base_offset <= entry.last_offset
                for entry in aborted
            )
            if not header.is_control and not is_aborted:
                found += [record.value for record in view.records(*log.tp)]
    return found
