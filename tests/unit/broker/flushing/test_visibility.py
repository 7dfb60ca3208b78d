"""Requests that read the end of a partition wait for one flush, and not longer than the limit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.support.log_builders import batch, create_partition, open_dir, small_settings

from strandlog.broker.deferred import Deferred
from strandlog.broker.flushing.durability import Durability
from strandlog.broker.flushing.visibility import Visibility
from strandlog.broker.reads import fetch as fetches
from strandlog.broker.reads.fetch import DelayedFetches, FetchPartition, FetchRequest, FetchResult
from strandlog.broker.runtime import FlushJob, InlineRuntime
from strandlog.broker.timers import Timers
from strandlog.config.tables.broker import broker_settings
from strandlog.errors import OffsetOutOfRangeError, StorageError
from strandlog.model import TopicPartition
from strandlog.storage.partition.log import PartitionLog
from strandlog.testing import FakeClock, SimulatedFiles

MAX_WAIT_MS = 5000


class VisibilityHarness:
    """Two partitions of a simulated disk that flushes on command."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.log_dir = open_dir(SimulatedFiles(), self.clock)
        for number in range(2):
            create_partition(self.log_dir, TopicPartition("t", number), "id", small_settings())
        self.log_dir.fsync_directory()
        self.timers = Timers()
        self.reopened: list[PartitionLog] = []
        runtime = InlineRuntime(executes_flushes=True)
        self.fetches = DelayedFetches(self.timers, runtime)
        self.durability = Durability(
            self.clock, broker_settings(), self.fetches, runtime, reopen=self.reopened.append
        )
        self.visibility = Visibility(self.durability, self.timers, self.clock, MAX_WAIT_MS)
        self.answered: list[int] = []
        self.syncs = 0

    def log(self, number: int = 0) -> PartitionLog:
        return self.log_dir.logs[TopicPartition("t", number)]

    def append(self, number: int = 0) -> PartitionLog:
        log = self.log(number)
        log.append(batch(b"v", timestamp=self.clock.now_ms()))
        self.durability.appended(log)
        return log

    def look(self, *numbers: int) -> bool:
        logs = [self.log(number) for number in numbers or (0,)]
        return self.visibility.when_visible(logs, lambda: self.answered.append(len(self.answered)))

    def sync(self) -> int:
        """Flush what is due; returns the number of partitions."""
        jobs = self.durability.take_flushes()
        for job in jobs:
            self.finish(job)
        return len(jobs)

    def finish(self, job: FlushJob, error: StorageError | None = None) -> None:
        if error is None:
            job.plan.execute()
        self.durability.flush_done(job, error)

    def wait(self, ms: int) -> None:
        self.clock.advance(ms)
        self.timers.run_due(self.clock.monotonic_ms())

    def fetch(self, offset: int, *, wait_ms: int = 0, min_bytes: int = 1) -> object:
        now_ms = self.clock.monotonic_ms()
        part = FetchPartition("t", 0, offset, 10_000)
        request = FetchRequest([part], min_bytes, 10_000, now_ms + wait_ms)
        found = self.fetches.fetch(request, [self.log()], now_ms, self.visibility.when_visible)
        return found if isinstance(found, Deferred) else Deferred.done(found)


@pytest.fixture
def harness() -> VisibilityHarness:
    return VisibilityHarness()


def test_a_request_that_finds_everything_durable_is_answered_at_once(
    harness: VisibilityHarness,
) -> None:
    assert harness.look(0, 1)
    assert harness.answered == [0]
    assert not harness.durability.is_due()


def test_a_request_for_the_end_makes_the_flush_due_immediately(harness: VisibilityHarness) -> None:
    harness.append()
    assert not harness.durability.is_due()
    assert not harness.look()
    assert harness.durability.is_due()
    assert harness.sync() == 1
    assert harness.answered == [0]
    assert harness.timers.next_deadline_ms() is None


def test_a_thousand_requests_for_the_end_cost_two_flushes(harness: VisibilityHarness) -> None:
    harness.append()
    for _ in range(500):
        harness.look()
    (job,) = harness.durability.take_flushes()
    harness.append()
    for _ in range(500):
        harness.look()
        assert harness.durability.take_flushes() == [], "one sync at a time"
    harness.finish(job)
    assert len(harness.answered) == 500
    assert harness.sync() == 1
    assert len(harness.answered) == 1000
    assert harness.sync() == 0


def test_a_request_is_answered_when_all_of_its_partitions_are_durable(
    harness: VisibilityHarness,
) -> None:
    harness.append(0)
    harness.append(1)
    harness.look(0, 1)
    first, second = harness.durability.take_flushes()
    harness.finish(first)
    assert harness.answered == []
    harness.finish(second)
    assert harness.answered == [0]


def test_a_slow_disk_delays_a_request_no_longer_than_the_limit(
    harness: VisibilityHarness,
) -> None:
    harness.append()
    harness.look()
    (job,) = harness.durability.take_flushes()
    harness.wait(MAX_WAIT_MS - 1)
    assert harness.answered == []
    harness.wait(1)
    assert harness.answered == [0]
    assert harness.log().high_watermark == 0, "the answer is what is durable"
    harness.finish(job)
    assert harness.answered == [0], "answered once"


def test_after_a_failed_flush_requests_see_what_is_durable(harness: VisibilityHarness) -> None:
    harness.append()
    harness.look()
    (job,) = harness.durability.take_flushes()
    harness.finish(job, StorageError("no"))
    assert harness.answered == [0]
    assert harness.look(), "there is nothing to wait for until the partition is mended"


def test_a_deleted_partition_is_not_waited_for(harness: VisibilityHarness) -> None:
    harness.append()
    harness.look()
    harness.durability.deleted([harness.log()])
    assert harness.answered == [0]


def test_a_fetch_that_would_not_wait_gets_what_was_acknowledged_before(
    harness: VisibilityHarness,
) -> None:
    harness.append()
    pending = harness.fetch(0)
    assert not pending.is_done  # type: ignore[attr-defined]
    harness.sync()
    [found] = pending.result()  # type: ignore[attr-defined]
    assert (found.error, found.high_watermark) == (None, 1)
    assert len(found.data)


@pytest.mark.parametrize("offset", [0, 1, 2])
def test_a_fetch_between_high_watermark_and_log_end_is_not_out_of_range(
    harness: VisibilityHarness, offset: int
) -> None:
    harness.append()
    harness.append()
    pending = harness.fetch(offset)
    harness.wait(MAX_WAIT_MS)
    [found] = pending.result()  # type: ignore[attr-defined]
    assert (found.error, found.high_watermark, len(found.data)) == (None, 0, 0)


def test_a_fetch_behind_the_log_end_is_out_of_range(harness: VisibilityHarness) -> None:
    harness.append()
    [found] = harness.fetch(2).result()  # type: ignore[attr-defined]
    assert isinstance(found.error, OffsetOutOfRangeError)


def test_a_fetch_that_wants_more_than_the_flush_shows_waits_until_its_deadline(
    harness: VisibilityHarness,
) -> None:
    harness.append()
    pending = harness.fetch(0, wait_ms=100, min_bytes=9000)
    harness.sync()
    assert not pending.is_done  # type: ignore[attr-defined]
    harness.wait(100)
    [found] = pending.result()  # type: ignore[attr-defined]
    assert len(found.data)


class Later(InlineRuntime):
    """Collects what is to run soon."""

    def __init__(self, callbacks: list[Callable[[], None]]) -> None:
        super().__init__()
        self._callbacks = callbacks

    def run_soon(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)


class ManyPartitions:
    """Fetches of many partitions, read on command."""

    def __init__(self, count: int) -> None:
        self.harness = VisibilityHarness()
        for number in range(2, count):
            tp = TopicPartition("t", number)
            create_partition(self.harness.log_dir, tp, "id", small_settings())
        self.count = count
        self.later: list[Callable[[], None]] = []
        self.fetches = DelayedFetches(self.harness.timers, Later(self.later))

    def write(self, number: int) -> None:
        log = self.harness.log(number)
        log.append(batch(b"v" * 100))
        log.flush()
        self.fetches.high_watermark_moved(log)

    def fetch(self, min_bytes: int = 1) -> Deferred[FetchResult]:
        logs = [self.harness.log(number) for number in range(self.count)]
        parts = [FetchPartition("t", number, 0, 10_000) for number in range(self.count)]
        request = FetchRequest(parts, min_bytes, 10**6, 60_000)
        when_visible = self.harness.visibility.when_visible
        found = self.fetches.fetch(request, [*logs], 0, when_visible)
        assert isinstance(found, Deferred)
        return found

    def run(self) -> int:
        """Run all callbacks; returns how many there were."""
        calls = 0
        while self.later:
            self.later.pop(0)()
            calls += 1
        return calls


def test_a_fetch_of_many_partitions_is_read_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetches, "WAKE_SECONDS", -1.0)  # one partition in each slice
    many = ManyPartitions(50)
    many.write(7)
    pending = many.fetch()
    assert not pending.is_done
    assert many.run() >= 50
    assert [each.partition for each in pending.result() if each.data] == [7]


def test_large_fetches_are_read_one_after_the_other_and_not_for_a_client_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetches, "WAKE_SECONDS", -1.0)
    many = ManyPartitions(50)
    many.write(7)
    first, second, third = many.fetch(), many.fetch(), many.fetch()
    assert len(many.later) == 1
    many.fetches.cancel(first)
    many.run()
    assert (first.is_done, second.is_done, third.is_done) == (False, True, True)


def _fail(_: object) -> None:
    raise RuntimeError("the response cannot be sent")


def test_an_unexpected_error_in_one_fetch_stops_all_fetches_of_many_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetches, "WAKE_SECONDS", -1.0)
    many = ManyPartitions(50)
    many.write(7)
    first, second = many.fetch(), many.fetch()
    first.on_done(_fail)
    with pytest.raises(RuntimeError):
        many.run()
    many.run()
    assert second.is_done
    assert not many.fetch().is_done
    many.run()
    assert many.fetches._large == {}


def test_an_unexpected_error_in_one_fetch_leaves_all_waiting_fetches_asleep(
    harness: VisibilityHarness,
) -> None:
    first, second, third = (harness.fetch(0, wait_ms=9000) for _ in range(3))
    assert isinstance(first, Deferred) and isinstance(second, Deferred)
    first.on_done(_fail)
    harness.append()
    with pytest.raises(RuntimeError):
        harness.sync()
    assert second.is_done
    assert isinstance(third, Deferred) and third.is_done


def test_fetches_of_many_partitions_wait_only_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetches, "MAX_WAITING_PARTITIONS", 120)
    many = ManyPartitions(50)
    waiting = [many.fetch() for _ in range(5)]
    many.run()
    assert [each.is_done for each in waiting] == [False, False, True, True, True]
    many.write(3)
    many.run()
    assert all(each.is_done for each in waiting)
    assert many.fetches.waiting_count == 0
    again = many.fetch(10**6)
    assert not again.is_done, "there is room again"


def test_a_waiting_fetch_looks_only_at_the_partition_that_has_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many = ManyPartitions(50)
    pending = many.fetch(min_bytes=400)
    looked_at: list[PartitionLog] = []
    readable = fetches._readable_bytes

    def look(log: PartitionLog, offset: int, committed: bool) -> int:
        looked_at.append(log)
        return readable(log, offset, committed)

    monkeypatch.setattr(fetches, "_readable_bytes", look)
    many.write(3)
    assert [log.tp.partition for log in looked_at] == [3]
    many.write(4)
    many.write(3)
    many.run()
    assert pending.is_done
    assert [log.tp.partition for log in looked_at] == [3, 4, 3]
