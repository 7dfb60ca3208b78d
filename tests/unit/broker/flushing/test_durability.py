"""Group commit: immediately for waiting requests, otherwise by flush.ms and flush.messages."""

from __future__ import annotations

import pytest
from tests.support.log_builders import batch, create_partition, open_dir, small_settings

from strandlog.broker.deferred import Deferred
from strandlog.broker.flushing.durability import (
    MAX_JOBS,
    RESERVED_JOBS,
    Durability,
)
from strandlog.broker.reads.fetch import DelayedFetches
from strandlog.broker.runtime import FlushJob, InlineRuntime
from strandlog.broker.timers import Timers
from strandlog.config.tables.broker import broker_settings
from strandlog.errors import StorageError
from strandlog.model import TopicPartition
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.work import run_inline
from strandlog.testing import FakeClock, SimulatedFiles

FLUSH_MS = small_settings().flush_ms


class _Fetches(DelayedFetches):
    """Delayed fetches that the test decides about."""

    def __init__(self) -> None:
        super().__init__(Timers(), InlineRuntime())
        self.shown: list[int] = []
        self.awaited = False

    def is_awaited(self, log: PartitionLog) -> bool:
        return self.awaited

    def high_watermark_moved(self, log: PartitionLog) -> None:
        self.shown.append(log.tp.partition)


class DurabilityHarness:
    """Three partitions of a simulated disk, and the callbacks that ran."""

    def __init__(self) -> None:
        self.disk = SimulatedFiles()
        self.clock = FakeClock()
        self.log_dir = open_dir(self.disk, self.clock)
        for number in range(3):
            tp = TopicPartition("t", number)
            create_partition(self.log_dir, tp, "id", small_settings())
        self.log_dir.fsync_directory()
        self.fetches = _Fetches()
        self.shown = self.fetches.shown
        self.done: list[StorageError | None] = []
        self.reopened: list[PartitionLog] = []
        runtime = InlineRuntime(executes_flushes=True)
        self.durability = Durability(
            self.clock, broker_settings(), self.fetches, runtime, reopen=self.reopened.append
        )

    def log(self, number: int = 0) -> PartitionLog:
        return self.log_dir.logs[TopicPartition("t", number)]

    def append(self, number: int = 0, *, is_awaited: bool = False) -> PartitionLog:
        log = self.log(number)
        log.append(batch(b"v", timestamp=self.clock.now_ms()))
        self.fetches.awaited = is_awaited
        self.durability.appended(log)
        return log

    def flush_all(self) -> Deferred[None]:
        return self.durability.flush_all(self.log_dir.logs.values())

    def take(self) -> list[int]:
        """Flush the partitions that are due; returns their numbers."""
        jobs = self.durability.take_flushes()
        for job in jobs:
            self.execute(job)
        return [job.log.tp.partition for job in jobs]

    def execute(self, job: FlushJob) -> None:
        try:
            job.plan.execute()
        except StorageError as error:
            self.durability.flush_done(job, error)
        else:
            self.durability.flush_done(job, None)


@pytest.fixture
def harness() -> DurabilityHarness:
    return DurabilityHarness()


def test_an_append_without_a_waiting_request_is_flushed_after_flush_ms(
    harness: DurabilityHarness,
) -> None:
    log = harness.append()
    assert not harness.durability.is_due()
    assert harness.take() == []
    assert harness.durability.next_due_ms() == FLUSH_MS
    harness.clock.advance(FLUSH_MS - 1)
    harness.append()  # a second append does not put the first one off
    assert harness.take() == []
    harness.clock.advance(1)
    assert harness.durability.is_due()
    assert harness.take() == [0]
    assert log.flushed_offset == log.high_watermark == 2
    assert harness.shown == [0]
    assert harness.durability.next_due_ms() is None


def test_only_the_partition_that_a_producer_waits_for_is_due_immediately(
    harness: DurabilityHarness,
) -> None:
    harness.append(0)
    log = harness.append(1)
    harness.durability.when_durable(log, 1, harness.done.append)
    assert harness.durability.is_due()
    assert harness.take() == [1]
    assert harness.done == [None]
    assert harness.durability.next_due_ms() == FLUSH_MS


def test_waiting_for_flushed_records_completes_immediately(harness: DurabilityHarness) -> None:
    log = harness.append(is_awaited=True)
    harness.take()
    harness.durability.when_durable(log, 1, harness.done.append)
    assert harness.done == [None]
    assert not harness.durability.is_due()


def test_a_delayed_fetch_makes_an_append_urgent(harness: DurabilityHarness) -> None:
    harness.append(is_awaited=True)
    assert harness.take() == [0]
    assert harness.shown == [0]


def test_a_partition_never_has_two_flushes_in_flight(harness: DurabilityHarness) -> None:
    log = harness.append(is_awaited=True)
    (job,) = harness.durability.take_flushes()
    harness.append(is_awaited=True)
    harness.durability.when_durable(log, 2, harness.done.append)
    assert harness.durability.take_flushes() == []
    assert harness.durability.next_due_ms() is None, "else the loop would spin until it is done"
    harness.execute(job)
    assert harness.done == []
    assert harness.take() == [0]
    assert harness.done == [None]


def test_other_partitions_become_due_during_a_flush(harness: DurabilityHarness) -> None:
    harness.append(0, is_awaited=True)
    (job,) = harness.durability.take_flushes()
    harness.append(0)
    harness.clock.advance(10)
    harness.append(1)
    assert harness.durability.next_due_ms() == FLUSH_MS + 10
    harness.execute(job)
    assert harness.durability.next_due_ms() == FLUSH_MS
    harness.clock.advance(FLUSH_MS)
    assert sorted(harness.take()) == [0, 1]


def test_a_failed_flush_fails_all_waiting_requests(harness: DurabilityHarness) -> None:
    log = harness.append()
    harness.durability.when_durable(log, 1, harness.done.append)
    harness.durability.when_durable(log, 1, harness.done.append)
    harness.disk.fail_next("sync")
    harness.take()
    assert [type(error) for error in harness.done] == [StorageError] * 2
    assert harness.shown == []
    harness.durability.when_durable(log, 1, harness.done.append)
    assert harness.take() == []
    assert isinstance(harness.done[-1], StorageError), (
        "a sync would prove nothing until it is mended"
    )


def test_waiting_for_a_deleted_partition_fails(harness: DurabilityHarness) -> None:
    log = harness.append()
    harness.durability.when_durable(log, 1, harness.done.append)
    harness.durability.deleted([log])
    assert isinstance(harness.done[0], StorageError)
    assert harness.durability.next_due_ms() is None


def _append_to_many(
    harness: DurabilityHarness, count: int, *, is_bulk: bool, first: int = 100
) -> list[int]:
    numbers = list(range(first, first + count))
    for number in numbers:
        tp = TopicPartition("t", number)
        create_partition(harness.log_dir, tp, "id", small_settings())
        log = harness.append(number)
        harness.durability.when_durable(
            log, log.log_end_offset, harness.done.append, is_bulk=is_bulk
        )
    return numbers


def test_a_producer_does_not_wait_for_all_partitions_of_a_request_that_names_many(
    harness: DurabilityHarness,
) -> None:
    many = _append_to_many(harness, 200, is_bulk=True)
    log = harness.append(1)
    harness.durability.when_durable(log, log.log_end_offset, harness.done.append)
    first = harness.take()
    assert first[0] == 1
    assert len(first) == MAX_JOBS
    rounds = [first]
    while harness.durability.is_due():
        rounds.append(harness.take())
    assert [number for each in rounds for number in each] == [1, *many]
    assert len(harness.done) == 201


def test_partitions_of_large_requests_are_flushed_beside_many_small_ones(
    harness: DurabilityHarness,
) -> None:
    many = _append_to_many(harness, 40, is_bulk=True)
    few = _append_to_many(harness, 100, is_bulk=False, first=500)
    found = harness.take()
    assert found == few[: MAX_JOBS - RESERVED_JOBS] + many[:RESERVED_JOBS]


def test_one_group_commit_has_a_limited_number_of_flushes(harness: DurabilityHarness) -> None:
    for number in range(100, 300):
        create_partition(harness.log_dir, TopicPartition("t", number), "id", small_settings())
        harness.append(number)
    harness.clock.advance(FLUSH_MS)
    assert harness.take() == list(range(100, 100 + MAX_JOBS))


def test_a_partition_is_not_flushed_before_flush_ms_is_over(harness: DurabilityHarness) -> None:
    """The server flushed every partition after 100 ms, whatever its topic said."""
    log = harness.append()
    log.settings = small_settings(flush_ms=3_600_000)
    harness.take()
    harness.clock.advance(FLUSH_MS)
    harness.take()
    harness.append()
    harness.clock.advance(3_599_999)
    assert harness.take() == []
    harness.clock.advance(1)
    assert harness.take() == [0]


def test_a_lower_flush_ms_applies_to_records_appended_before(harness: DurabilityHarness) -> None:
    """They waited for the old time, and so did all later records of the partition."""
    log = harness.log(0)
    log.settings = small_settings(flush_ms=3_600_000)
    harness.append(0)
    log.settings = small_settings(flush_ms=50)
    harness.durability.settings_changed()
    harness.clock.advance(49)
    assert harness.take() == []
    harness.clock.advance(1)
    assert harness.take() == [0]


def test_a_lower_flush_messages_applies_to_records_appended_before(
    harness: DurabilityHarness,
) -> None:
    harness.append(0)
    harness.append(1)
    harness.log(0).settings = small_settings(flush_messages=1)
    harness.durability.settings_changed()
    assert harness.take() == [0]


def test_a_partition_is_flushed_after_flush_messages_records(harness: DurabilityHarness) -> None:
    """flush.messages had no effect in the server."""
    harness.log().settings = small_settings(flush_messages=3)
    harness.append()
    harness.append()
    assert harness.take() == []
    harness.append()
    assert harness.take() == [0]


def test_partitions_with_a_short_flush_ms_do_not_wait_for_others(
    harness: DurabilityHarness,
) -> None:
    harness.log(0).settings = small_settings(flush_ms=10_000)
    harness.append(0)
    harness.log(1).settings = small_settings(flush_ms=50)
    harness.append(1)
    assert harness.durability.next_due_ms() == 50
    harness.clock.advance(50)
    assert harness.take() == [1]
    assert harness.durability.next_due_ms() == 10_000


def test_waiting_without_flush_threads_flushes_immediately(harness: DurabilityHarness) -> None:
    durability = Durability(
        harness.clock, broker_settings(), harness.fetches, InlineRuntime(), harness.reopened.append
    )
    log = harness.log()
    log.append(batch(b"v"))
    durability.appended(log)
    durability.when_durable(log, 1, harness.done.append)
    assert harness.done == [None]
    assert log.flushed_offset == 1


def test_an_append_after_the_flush_of_a_thread_is_flushed_within_flush_ms(
    harness: DurabilityHarness,
) -> None:
    log = harness.append()
    harness.durability.try_flush(log)
    assert log.flushed_offset == 1
    harness.clock.advance(FLUSH_MS - 1)
    harness.append()
    harness.clock.advance(FLUSH_MS)
    assert harness.durability.flush_due() == []
    assert log.flushed_offset == 2
    assert harness.durability.next_due_ms() is None  # not due again at once


def test_a_lazy_flush_that_finds_nothing_to_do_ends_the_schedule(
    harness: DurabilityHarness,
) -> None:
    log = harness.append()
    harness.durability.try_flush(log)
    harness.clock.advance(FLUSH_MS)
    assert harness.durability.flush_due() == []
    assert harness.shown == [0]  # one flush
    assert harness.durability.next_due_ms() is None


def test_flush_all_completes_when_every_partition_is_on_disk() -> None:
    harness = DurabilityHarness()
    harness.append(0)
    harness.append(2)
    done = harness.flush_all()
    assert not done.is_done
    first, second = harness.durability.take_flushes()
    harness.execute(first)
    assert not done.is_done
    harness.execute(second)
    done.result()
    assert harness.durability.next_due_ms() is None
    harness.flush_all().result()


def test_flush_all_fails_if_a_partition_cannot_be_flushed() -> None:
    harness = DurabilityHarness()
    harness.append(0)
    harness.append(1)
    harness.disk.fail_on("sync", "/t-1/")
    done = harness.flush_all()
    assert sorted(harness.take()) == [0, 1]
    with pytest.raises(StorageError):
        done.result()
    assert not harness.durability.has_waiting


def test_flush_all_does_not_succeed_beside_a_partition_whose_flush_failed_before() -> None:
    """The drain took its records for durable."""
    harness = DurabilityHarness()
    log = harness.append(0)
    harness.disk.fail_on("sync", "/t-0/")
    harness.durability.when_durable(log, 1, harness.done.append)
    assert harness.take() == [0]
    harness.append(1)
    done = harness.flush_all()
    assert harness.take() == [1]
    with pytest.raises(StorageError, match="t-0 rejects records"):
        done.result()
    run_inline(log.rewrite_tail())
    harness.flush_all().result()


def test_flush_all_waits_for_the_repair_of_a_partition() -> None:
    harness = DurabilityHarness()
    log = harness.append(0)
    harness.disk.fail_on("sync", "/t-0/")
    harness.durability.when_durable(log, 1, harness.done.append)
    harness.take()
    harness.durability.hold(log)
    done = harness.flush_all()
    assert (harness.take(), done.is_done) == ([], False)
    run_inline(log.rewrite_tail())
    harness.durability.release(log)
    done.result()


def test_flush_all_fails_only_after_all_other_partitions_are_on_disk() -> None:
    """The drain ended early, so readers did not see the last records of the others."""
    harness = DurabilityHarness()
    harness.append(0)
    harness.append(1)
    harness.disk.fail_on("sync", "/t-0/")
    done = harness.flush_all()
    first, second = sorted(harness.durability.take_flushes(), key=lambda job: job.log.tp)
    harness.execute(first)
    assert not done.is_done
    harness.execute(second)
    assert isinstance(done.error, StorageError)


def test_flush_all_flushes_although_requests_do_not_wait_for_fsyncs() -> None:
    harness = DurabilityHarness()
    harness.durability.waits_for_fsync = False
    log = harness.append(0)
    done = harness.flush_all()
    assert not done.is_done
    assert harness.take() == [0]
    done.result()
    assert log.unflushed_count == 0
