"""Maintenance: when each task is due, and that errors of one partition do not affect others."""

from __future__ import annotations

import contextlib
import gc
import itertools
from uuid import UUID

import pytest

from strandlog.broker.broker import Broker
from strandlog.broker.context import embedded_context
from strandlog.broker.maintenance import FAILURES_KEPT
from strandlog.broker.runtime import InlineRuntime, Runtime
from strandlog.config.tables.broker import BROKER_SETTINGS, broker_settings
from strandlog.errors import StorageError
from strandlog.record.builder import build_single
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.work import Work
from strandlog.testing import FakeClock, SimulatedFiles

CONTEXT = embedded_context()

DAY_MS = 86_400_000
EXPIRY_MS = DAY_MS // 6  # maintenance runs every few seconds of it


class StartedTasks(InlineRuntime):
    """Collects the tasks that are started, by name; the test runs them."""

    def __init__(self) -> None:
        super().__init__(executes_flushes=True)
        self.works: dict[str, Work[None]] = {}

    def run_in_background(self, name: str, work: Work[None], *, is_long: bool) -> None:
        self.works[name] = work

    def take(self, broker: Broker) -> dict[str, Work[None]]:
        """Start what is due."""
        self.works = {}
        broker.tick()
        return self.works


class MaintenanceHarness:
    """A broker with a clock that the test advances."""

    def __init__(
        self,
        disk: SimulatedFiles | None = None,
        clock: FakeClock | None = None,
        runtime: Runtime | None = None,
        **settings: object,
    ) -> None:
        self.disk = disk or SimulatedFiles()
        self.clock = clock or FakeClock()
        self.settings = settings
        ids = itertools.count(1)
        overrides = BROKER_SETTINGS.parse({k.replace("_", "."): v for k, v in settings.items()})
        self.broker = Broker(
            "data",
            self.disk,
            self.clock,
            lambda: UUID(int=next(ids)),
            broker_settings(overrides),
            runtime,
        )

    def restarted(self, *, is_killed: bool = False, down_ms: int = 0) -> MaintenanceHarness:
        """The broker that starts after this one was stopped; its monotonic clock starts at 0."""
        if not is_killed:
            self.broker.close()
        disk = self.disk.after_kill()
        return MaintenanceHarness(
            disk, FakeClock(self.clock.now_ms() + down_ms), None, **self.settings
        )

    def topic(self, name: str, **config: object) -> None:
        self.broker.create_topic(
            CONTEXT, name, 1, {k.replace("_", "."): v for k, v in config.items()}
        ).result()

    def append(self, topic: str, value: bytes = b"v", key: bytes | None = b"k") -> None:
        log = self.broker._catalog.log(topic, 0)
        self.broker._appender.append(log, build_single(self.clock.now_ms(), value, key))

    def pass_ms(self, ms: int) -> None:
        """Advance the clock, with a tick at every deadline."""
        end_ms = self.clock.monotonic_ms() + ms
        while (due_ms := self.broker.next_deadline_ms()) is not None and due_ms <= end_ms:
            self.clock.advance(max(0, due_ms - self.clock.monotonic_ms()))
            self.broker.tick()
        self.clock.advance(end_ms - self.clock.monotonic_ms())

    def unflushed(self, topic: str) -> int:
        return self.broker._catalog.log(topic, 0).unflushed_count

    def start(self, topic: str) -> int:
        return self.broker._catalog.log(topic, 0).log_start_offset

    def rot(self, topic: str) -> None:
        """Let a bit of the topic's first record flip."""
        self.disk.flip_bit(f"data/{topic}-0/{0:020d}.log", 8 * 66)


def test_appended_records_are_flushed_after_flush_ms() -> None:
    harness = MaintenanceHarness()
    harness.topic("slow", flush_ms="10s")
    harness.topic("quick", flush_ms=200)
    harness.append("slow")
    harness.append("quick")
    harness.pass_ms(150)
    assert harness.unflushed("quick") == harness.unflushed("slow") == 1
    harness.pass_ms(150)
    assert (harness.unflushed("quick"), harness.unflushed("slow")) == (0, 1)
    harness.pass_ms(10_000)
    assert harness.unflushed("slow") == 0


def test_appended_records_are_flushed_after_flush_ms_although_the_clock_is_put_back() -> None:
    harness = MaintenanceHarness()
    harness.topic("t", flush_ms=200)
    harness.append("t")
    harness.clock.set_wall(harness.clock.now_ms() - DAY_MS)
    harness.pass_ms(400)
    assert harness.unflushed("t") == 0


def test_appended_records_are_flushed_at_flush_messages() -> None:
    harness = MaintenanceHarness()
    harness.topic("t", flush_ms="1h", flush_messages=3)
    harness.append("t")
    harness.append("t")
    harness.pass_ms(1_000)
    assert harness.unflushed("t") == 2
    harness.append("t")
    harness.pass_ms(100)
    assert harness.unflushed("t") == 0


def test_a_busy_partition_is_not_flushed() -> None:
    harness = MaintenanceHarness()
    harness.topic("t", flush_ms=0)
    harness.append("t")
    log = harness.broker._catalog.log("t", 0)
    harness.broker._durability.busy.add(log)
    harness.pass_ms(1_000)
    assert harness.unflushed("t") == 1
    harness.broker._durability.busy.clear()
    harness.pass_ms(1_000)
    assert harness.unflushed("t") == 0


def test_retention_runs_at_its_interval() -> None:
    harness = MaintenanceHarness(log_retention_check_interval_ms="1m")
    harness.topic("t", segment_bytes=1024, retention_ms="1h")
    for number in range(20):
        harness.append("t", b"%d" % number + bytes(300))
    harness.clock.advance(3_600_000)
    harness.broker.tick()
    assert harness.start("t") == 0, "not older than an hour yet"
    harness.pass_ms(59_000)
    assert harness.start("t") == 0
    harness.pass_ms(1_000)
    assert harness.start("t") == 20
    files = [path for path in harness.disk.contents() if ".log" in path and "/t-0/" in path]
    assert len([path for path in files if path.endswith(".deleted")]) >= 6
    harness.pass_ms(62_000)
    files = [path for path in harness.disk.contents() if ".log" in path and "/t-0/" in path]
    assert len(files) == 1, "what was removed waits for file.delete.delay.ms, then goes"


def test_dirty_partitions_are_compacted_one_per_turn() -> None:
    harness = MaintenanceHarness(log_cleaner_backoff_ms="15s")
    for topic in ("a", "b"):
        harness.topic(topic, cleanup_policy="compact", segment_bytes=1024, retention_ms="-1")
        for number in range(40):
            harness.append(topic, bytes(200), b"k%d" % (number % 2))
        harness.broker._catalog.log(topic, 0).flush()
    logs = [harness.broker._catalog.log(topic, 0) for topic in ("a", "b")]
    whole = logs[0].segments.size_bytes
    compacted = []
    for _ in range(3):
        compacted.append(sum(log.segments.size_bytes < whole / 2 for log in logs))
        harness.pass_ms(15_000)
    assert compacted == [0, 1, 2]
    assert list(harness.broker._maintenance.failures) == []


def test_files_of_a_deleted_topic_are_removed_after_the_delay() -> None:
    harness = MaintenanceHarness()
    harness.topic("t")
    harness.append("t")
    harness.broker.delete_topic(CONTEXT, "t").result()
    assert [path for path in harness.disk.contents() if "-delete/" in path]
    harness.pass_ms(61_000)
    assert not [path for path in harness.disk.contents() if "/t-0" in path]


def test_checkpoints_are_written_at_their_interval() -> None:
    harness = MaintenanceHarness(log_flush_offset_checkpoint_interval_ms="1m")
    harness.topic("t")
    harness.append("t")
    harness.pass_ms(59_000)
    assert "data/recovery-point-offset-checkpoint" not in harness.disk.contents()
    harness.pass_ms(1_000)
    assert b"t 0 1\n" in harness.disk.contents()["data/recovery-point-offset-checkpoint"]


def test_a_partition_whose_fsync_failed_is_repaired() -> None:
    harness = MaintenanceHarness()
    harness.topic("t", flush_ms=0)
    harness.append("t")
    harness.disk.fail_on("sync", "/t-0/")
    harness.pass_ms(1_000)
    with pytest.raises(StorageError, match="rejects records"):
        harness.append("t")
    harness.pass_ms(5_000)
    harness.append("t")
    harness.pass_ms(1_000)
    assert harness.unflushed("t") == 0
    assert "could not sync" in harness.broker.problems[0]


def test_the_event_loop_does_not_read_the_unsynced_tail_of_a_partition_that_is_repaired() -> None:
    tasks = StartedTasks()
    harness = MaintenanceHarness(runtime=tasks, log_durability="page_cache")
    harness.topic("t", flush_ms="10h", segment_bytes=1024)
    for number in range(10):
        harness.append("t", b"%d" % number + bytes(300))
    harness.disk.fail_on("sync", "/t-0/")
    log = harness.broker._catalog.log("t", 0)
    with pytest.raises(StorageError):
        log.flush()
    harness.disk.fail_on("read", "/t-0/", count=99)  # fails in a step, not between steps
    harness.clock.advance(5_000)
    steps = tasks.take(harness.broker)["repair"]
    step = next(steps)
    assert harness.broker._durability.is_busy(log)
    with pytest.raises(StorageError, match="rejects records"):
        harness.append("t")
    with pytest.raises(StorageError, match="could not read"):
        step()
    harness.disk.clear_faults()
    done = 0
    with contextlib.suppress(StopIteration):
        while True:
            step()
            done += 1
            step = next(steps)
    assert done > len(log.segments.sealed)
    assert (log.failure, log.unflushed_count) == (None, 0)
    assert not harness.broker._durability.is_busy(log)
    harness.append("t")


def test_a_partition_that_is_deleted_during_its_repair_is_no_failure() -> None:
    tasks = StartedTasks()
    harness = MaintenanceHarness(runtime=tasks)
    harness.topic("t", flush_ms=0)
    harness.append("t")
    harness.disk.fail_on("sync", "/t-0/")
    with pytest.raises(StorageError):
        harness.broker._catalog.log("t", 0).flush()
    harness.clock.advance(5_000)
    steps = tasks.take(harness.broker)["repair"]
    next(steps)()
    harness.broker.delete_topic(CONTEXT, "t").result()
    for step in steps:
        step()
    assert list(harness.broker._maintenance.failures) == []
    assert not harness.broker._durability.busy


def test_a_partition_that_cannot_be_repaired_does_not_stop_the_repair_of_others() -> None:
    harness = MaintenanceHarness()
    for topic in ("bad", "good"):
        harness.topic(topic, flush_ms=0)
        harness.append(topic)
        harness.disk.fail_on("sync", f"/{topic}-0/")
    harness.pass_ms(1_000)
    harness.rot("bad")
    harness.pass_ms(6_000)
    harness.append("good")
    with pytest.raises(StorageError):
        harness.append("bad")


def test_a_partition_that_fails_to_flush_does_not_stop_the_flush_of_others() -> None:
    harness = MaintenanceHarness()
    harness.topic("a", flush_ms=0)
    harness.topic("b", flush_ms=0)
    harness.append("a")
    harness.append("b")
    harness.disk.fail_on("sync", "/a-0/", count=100)
    harness.pass_ms(100)
    assert harness.unflushed("b") == 0


def test_a_damaged_partition_does_not_stop_the_compaction_of_others() -> None:
    harness = MaintenanceHarness()
    policy = {"cleanup_policy": "compact", "segment_bytes": 1024, "retention_ms": "-1"}
    for topic, count in (("damaged", 60), ("whole", 40)):
        harness.topic(topic, **policy)
        for number in range(count):
            harness.append(topic, bytes(200), b"k%d" % (number % 2))
        harness.broker._catalog.log(topic, 0).flush()
    harness.rot("damaged")
    size = harness.broker._catalog.log("whole", 0).segments.size_bytes
    harness.pass_ms(60_000)
    assert harness.broker._catalog.log("whole", 0).segments.size_bytes < size / 2
    assert [p for p in harness.broker.problems if "damaged-0" in p and "is damaged" in p]


def _due_for_compaction(harness: MaintenanceHarness, topic: str, count: int) -> PartitionLog:
    harness.topic(topic, cleanup_policy="compact", segment_bytes=1024, retention_ms="-1")
    for number in range(count):
        harness.append(topic, bytes(200), b"k%d" % (number % 2))
    log = harness.broker._catalog.log(topic, 0)
    log.flush()
    return log


def test_a_partition_whose_compaction_keeps_failing_does_not_starve_others() -> None:
    harness = MaintenanceHarness(log_cleaner_backoff_ms="15s")
    failing = _due_for_compaction(harness, "failing", 60)
    others = [_due_for_compaction(harness, f"other-{number}", 40) for number in range(2)]
    sizes = {log: log.segments.size_bytes for log in (failing, *others)}
    harness.disk.fail_on("create", "/failing-0/", count=10_000)
    harness.pass_ms(60_000)
    assert all(log.segments.size_bytes < sizes[log] / 2 for log in others)
    assert failing.segments.size_bytes == sizes[failing]
    assert [each for each in harness.broker._maintenance.failures if "failing-0" in each]
    harness.disk.clear_faults()
    harness.pass_ms(15_000)  # retried at the next interval if no other partition is due
    assert failing.segments.size_bytes < sizes[failing] / 2


def test_a_deleted_partition_that_was_damaged_is_not_kept_in_memory() -> None:
    harness = MaintenanceHarness(log_cleaner_backoff_ms="15s")
    context = _due_for_compaction(harness, "damaged", 60).context
    harness.rot("damaged")
    harness.pass_ms(15_000)
    harness.broker.delete_topic(CONTEXT, "damaged").result()
    harness.pass_ms(120_000)  # its files are removed too
    gc.collect()
    logs = [each for each in gc.get_objects() if type(each) is PartitionLog]
    assert "damaged" not in {log.tp.topic for log in logs if log.context is context}


def test_a_partition_of_which_a_task_finds_no_file_is_reopened() -> None:
    tasks = StartedTasks()
    harness = MaintenanceHarness(runtime=tasks, log_retention_check_interval_ms="1m")
    harness.topic("t", segment_bytes=1024, retention_ms="1h")
    for number in range(20):
        harness.append("t", b"%d" % number + bytes(300))
    log = harness.broker._catalog.log("t", 0)
    log.flush()
    harness.clock.advance(7_200_000)
    steps = tasks.take(harness.broker)["retention"]
    next(steps)
    with pytest.raises(FileNotFoundError):
        steps.throw(FileNotFoundError("a segment"))
    assert harness.broker._catalog.log("t", 0) is not log


def test_repeated_failures_are_noted_once_and_limited() -> None:
    harness = MaintenanceHarness()
    harness.topic("t", flush_ms=0)
    harness.append("t")
    harness.disk.fail_on("sync", "/t-0/", count=10_000)
    harness.pass_ms(60_000)
    failures = harness.broker._maintenance.failures
    assert 1 <= len(failures) == len(set(failures)) <= 3
    for number in range(3 * FAILURES_KEPT):
        failures.append(str(number))
    assert len(failures) == FAILURES_KEPT


def test_idle_producers_expire() -> None:
    harness = MaintenanceHarness(producer_id_expiration_ms=DAY_MS)
    harness.topic("t")
    log = harness.broker._catalog.log("t", 0)
    batch = build_single(
        harness.clock.now_ms(), b"v", b"k", producer_id=7, producer_epoch=0, base_sequence=0
    )
    harness.broker._appender.append(log, bytes(batch))
    assert harness.broker._appender.append(log, bytes(batch)).is_duplicate
    harness.clock.advance(2 * DAY_MS)
    harness.broker.tick()
    assert 7 not in log.producers.last_offsets() and not log.producers.last_offsets()


OLD_MS = 1_357_000_000_000  # a day in 2013


def old_batch(sequence: int, producer_id: int = 7) -> bytes:
    """A record of an idempotent producer that replays events of 2013."""
    return bytes(
        build_single(
            OLD_MS, b"v", producer_id=producer_id, producer_epoch=0, base_sequence=sequence
        )
    )


def test_a_retried_batch_with_timestamps_of_2013_is_not_written_twice_after_the_tick() -> None:
    harness = MaintenanceHarness()
    harness.topic("t", retention_ms=-1)
    log = harness.broker._catalog.log("t", 0)
    harness.broker._appender.append(log, old_batch(0))
    harness.pass_ms(600_000)
    again = harness.broker._appender.append(log, old_batch(0))
    assert (again.is_duplicate, again.base_offset, log.log_end_offset) == (True, 0, 1)


@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("down_ms", [0, 3 * DAY_MS], ids=["at once", "after three days"])
def test_a_batch_that_is_retried_across_a_restart_is_not_written_twice(
    how: str, down_ms: int
) -> None:
    harness = MaintenanceHarness()
    harness.topic("t", retention_ms=-1)
    harness.broker._appender.append(harness.broker._catalog.log("t", 0), old_batch(0))
    harness = harness.restarted(is_killed=how == "kill", down_ms=down_ms)
    harness.pass_ms(1_800_000)
    log = harness.broker._catalog.log("t", 0)
    assert harness.broker._appender.append(log, old_batch(0)).is_duplicate
    assert log.log_end_offset == 1


def test_producers_expire_by_their_last_append_across_restarts_and_jumps_of_the_clock() -> None:
    harness = MaintenanceHarness(producer_id_expiration_ms=EXPIRY_MS)
    harness.topic("t", retention_ms=-1)
    log = harness.broker._catalog.log("t", 0)
    harness.broker._appender.append(log, old_batch(0))
    for jump_ms in (400 * DAY_MS, -800 * DAY_MS, 400 * DAY_MS):
        harness.clock.set_wall(harness.clock.now_ms() + jump_ms)
        harness.pass_ms(600_000)
        assert len(log.producers) == 1
    harness.pass_ms(EXPIRY_MS // 2)
    harness = harness.restarted()
    harness.pass_ms(EXPIRY_MS // 4)
    log = harness.broker._catalog.log("t", 0)
    assert len(log.producers) == 1
    harness.pass_ms(EXPIRY_MS // 4)
    assert not len(log.producers), "a restart does not keep producers for ever"


def test_a_producer_that_retries_stays_known() -> None:
    harness = MaintenanceHarness(producer_id_expiration_ms=EXPIRY_MS)
    harness.topic("t", retention_ms=-1)
    log = harness.broker._catalog.log("t", 0)
    harness.broker._appender.append(log, old_batch(0))
    for _ in range(4):
        harness.pass_ms(EXPIRY_MS * 3 // 4)
        assert harness.broker._appender.append(log, old_batch(0)).is_duplicate


# -- in steps ------------------------------------------------------------------------------------


def test_a_running_task_is_not_started_again() -> None:
    tasks = StartedTasks()
    harness = MaintenanceHarness(runtime=tasks)
    broker = harness.broker
    harness.topic("t", file_delete_delay_ms=0)
    harness.broker.delete_topic(CONTEXT, "t").result()
    harness.clock.advance(1_000)
    begun = tasks.take(broker)
    remove = next(begun["files"])
    harness.clock.advance(5_000)
    assert "files" not in tasks.take(broker)
    next_ms = broker.next_deadline_ms()
    assert next_ms is None or next_ms > harness.clock.monotonic_ms(), (
        "tick would be called in a loop"
    )
    remove()
    with pytest.raises(StopIteration):
        next(begun["files"])
    assert "files" in tasks.take(broker)
    assert not [path for path in harness.disk.contents() if path.startswith("data/t-0")]


def test_retention_skips_a_busy_partition() -> None:
    """Of two concurrent fsyncs one can report success for what the other lost."""
    harness = MaintenanceHarness(log_retention_check_interval_ms="1m")
    harness.topic("t", segment_bytes=1024, retention_ms="1h", flush_ms="10h")
    for number in range(20):
        harness.append("t", b"%d" % number + bytes(300))
    log = harness.broker._catalog.log("t", 0)
    log.flush()
    harness.clock.advance(7_200_000)
    durability = harness.broker._durability
    durability.hold(log)
    harness.broker.tick()
    assert harness.start("t") == 0
    durability.release(log)
    harness.pass_ms(1_000)
    assert harness.start("t") == 20, "a second later, not at the next turn"
    assert not durability.busy
    assert harness.broker.metrics.retention_segments >= 6


def test_a_server_flushes_in_its_own_threads() -> None:
    harness = MaintenanceHarness(runtime=StartedTasks())
    harness.topic("t", flush_ms=100)
    harness.append("t")
    harness.clock.advance(300)
    harness.broker.tick()
    assert harness.unflushed("t") == 1
    assert [job.log for job in harness.broker.take_flushes()] == [
        harness.broker._catalog.log("t", 0)
    ]


def test_a_topic_deleted_during_a_task_is_no_failure() -> None:
    tasks = StartedTasks()
    harness = MaintenanceHarness(runtime=tasks, log_retention_check_interval_ms="1m")
    harness.topic("t", segment_bytes=1024, retention_ms="1h")
    for number in range(20):
        harness.append("t", b"%d" % number + bytes(300))
    harness.broker._catalog.log("t", 0).flush()
    harness.clock.advance(7_200_000)
    steps = tasks.take(harness.broker)["retention"]
    part = next(steps)
    harness.broker.delete_topic(CONTEXT, "t").result()
    with contextlib.suppress(StopIteration):
        while True:
            try:
                part()
            except FileNotFoundError as error:
                part = steps.throw(error)
            else:
                part = next(steps)
    assert list(harness.broker._maintenance.failures) == []
    assert not harness.broker._durability.busy


def test_a_request_completes_when_a_task_has_flushed_its_partition() -> None:
    tasks = StartedTasks()
    harness = MaintenanceHarness(runtime=tasks, log_retention_check_interval_ms="1m")
    harness.topic("t", segment_bytes=1024, retention_ms="1h", flush_ms="10h")
    for number in range(20):
        harness.append("t", b"%d" % number + bytes(300))
    log = harness.broker._catalog.log("t", 0)
    log.flush()
    harness.clock.advance(7_200_000)
    harness.append("t")
    told: list[object] = []
    durability = harness.broker._durability
    steps = tasks.take(harness.broker)["retention"]
    part = next(steps)
    durability.when_durable(log, log.log_end_offset, told.append)
    assert durability.take_flushes() == [], "the task flushes it"
    part()
    for part in steps:
        part()
    if not told:  # the flush of the task came before the append
        (job,) = durability.take_flushes()
        job.plan.execute()
        durability.flush_done(job, None)
    assert told == [None]


def test_an_overdue_task_starts_at_the_tick_after_its_previous_run() -> None:
    tasks = StartedTasks()
    harness = MaintenanceHarness(runtime=tasks)
    harness.topic("t", file_delete_delay_ms=0)
    harness.broker.delete_topic(CONTEXT, "t").result()
    harness.clock.advance(1_000)
    running = tasks.take(harness.broker)["files"]
    step = next(running)
    harness.clock.advance(5_000)
    tasks.take(harness.broker)
    step()
    assert next(running, None) is None
    assert "files" not in tasks.works, "work starts only inside tick"
    assert harness.broker.next_deadline_ms() == harness.clock.monotonic_ms()
    assert "files" in tasks.take(harness.broker)


def test_no_task_starts_after_maintenance_has_stopped() -> None:
    tasks = StartedTasks()
    harness = MaintenanceHarness(runtime=tasks)
    harness.topic("t", file_delete_delay_ms=0)
    harness.broker.delete_topic(CONTEXT, "t").result()
    harness.clock.advance(1_000)
    running = tasks.take(harness.broker)["files"]
    step = next(running)
    harness.clock.advance(DAY_MS)
    tasks.take(harness.broker)
    harness.broker.stop_maintenance()
    harness.broker._maintenance.schedule_soon("retention")
    step()
    assert next(running, None) is None
    harness.clock.advance(DAY_MS)
    assert tasks.take(harness.broker) == {}
