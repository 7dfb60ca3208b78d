"""The read-only log on real files, while another process owns the folder."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import pytest
from tests.server.embedded_client.owner import key_of
from tests.support.embedded_harness import EmbeddedHarness, drain, numbered
from tests.support.examples import QUICK_STEP, is_quick

import strandlog
from strandlog import (
    ClosedError,
    Consumer,
    InvalidGroupError,
    ReadOnlyLog,
    Record,
    TopicNotFoundError,
    TopicPartition,
)
from strandlog.testing import PowerCut

OWNER = Path(__file__).with_name("owner.py")


class Owner:
    """Another process that owns the folder."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(OWNER), str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._open_answers = 0

    def begin(self, command: str) -> None:
        """Tell the owner something without waiting until it is done."""
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        self._open_answers += 1

    def finish(self) -> None:
        """Wait until all that was begun is done."""
        assert self._process.stdout is not None
        while self._open_answers:
            assert self._process.stdout.readline() == "ok\n", "the owner died"
            self._open_answers -= 1

    def do(self, command: str) -> None:
        self.begin(command)
        self.finish()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Owner:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


@contextmanager
def watched(path: Path, topic: str) -> Iterator[Consumer]:
    with strandlog.read(path) as log:
        yield log.consumer([topic])


def check_record(record: Record) -> int:
    """The number of a record that the owner sent; its bytes must be right to the last."""
    assert record.value is not None
    number, _, filling = record.value.partition(b":")
    assert filling == bytes([int(number) % 251]) * len(filling)
    assert record.key == key_of(int(number))
    assert record.offset == int(number)
    return int(number)


def test_a_reader_sees_only_durable_records(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with Owner(path) as owner:
        owner.do("create t 1 flush.ms=3600000")
        owner.do("send t 3 10")
        with watched(path, "t") as consumer:
            assert [check_record(record) for record in consumer.poll()] == [0, 1, 2]
            owner.do("write t 3 10")
            assert consumer.poll() == [], "written, but a power cut could take it back"
            owner.do("flush")
            assert [check_record(record) for record in consumer.poll()] == [3, 4, 5]
            owner.do("send t 1 10")
            assert [check_record(record) for record in consumer.poll(timeout_ms=5_000)] == [6]


def test_a_reader_sees_a_growing_prefix_while_the_owner_appends_and_rolls(
    tmp_path: Path,
) -> None:
    path = tmp_path / "data"
    with Owner(path) as owner:
        owner.do("create t 1 segment.bytes=16384")
        with watched(path, "t") as consumer:
            seen: list[int] = []
            for command in ("send t 100 100", "write t 700 300", "flush", "send t 200 700"):
                owner.begin(command)
            while len(seen) < 1_000:
                seen += [check_record(record) for record in consumer.poll(97, timeout_ms=10_000)]
            owner.finish()
        assert seen == list(range(1_000))


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["compact", "retain"])
def test_a_reader_while_the_owner_compacts(tmp_path: Path, policy: str) -> None:
    """Old readers keep reading or skip what is gone; never an error, never a wrong record."""
    path = tmp_path / "data"
    rounds = 15

    def check(offsets: list[int]) -> None:
        assert offsets == sorted(set(offsets))
        if policy == "compact" and offsets:
            kept = [offset for offset in offsets if not offset % 3]
            assert kept == list(range(0, offsets[-1] + 1, 3)), "what compaction kept was skipped"

    with Owner(path) as owner:
        owner.do("create t 1 segment.bytes=4096 retention.bytes=12000 file.delete.delay.ms=0")
        owner.do("send t 50 200")
        with strandlog.read(path) as reader:
            patient = reader.consumer(["t"])
            seen: list[int] = []
            for _ in range(rounds):
                for command in ("send t 2 200", "write t 38 200", "flush", f"{policy} t"):
                    owner.begin(command)
                check([check_record(r) for r in drain(reader.consumer(["t"]), 13)])
                seen += [check_record(record) for record in patient.poll(29)]
            owner.finish()
            seen += [check_record(record) for record in drain(patient)]
            check(seen)
            rest = [check_record(r) for r in drain(reader.consumer(["t"]))]
            check(rest)
            total = 50 + 40 * rounds
            assert seen[-1] == rest[-1] == total - 1
            assert len(rest) < total / 2, "the owner did clean"


def test_a_reader_after_the_owner_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with Owner(path) as owner:
        owner.do("create t 1")
        owner.do("send t 20 50")
        owner.do("write t 20 50")
        owner.kill()
        with watched(path, "t") as consumer:
            assert [check_record(record) for record in drain(consumer)] == list(range(20))
            with strandlog.open(path) as log:
                assert len(drain(log.consumer(["t"]))) == 40
            assert [check_record(record) for record in drain(consumer)] == list(range(20, 40))


def test_a_reader_sees_topics_created_grown_and_deleted(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with Owner(path) as owner:
        owner.do("create t 2")
        with strandlog.read(path) as reader:
            assert reader.topics() == ["t"]
            consumer = reader.consumer(["t"])
            owner.do("grow t 3")
            owner.do("create u 1 retention.ms=1000")
            assert reader.topics() == ["t", "u"]
            assert consumer.poll() == []
            assert consumer.assignment[-1] == TopicPartition("t", 2)
            described = reader.describe_topic("u")
            assert described.config == {"retention.ms": 1_000} and described.topic_id
            owner.do("delete t")
            assert reader.topics() == ["u"]
            assert consumer.poll() == [] and consumer.assignment == []
            with pytest.raises(TopicNotFoundError, match="topic 't' does not exist"):
                reader.consumer(["t"])


# -- in one process ----------------------------------------------------------------------------


@pytest.fixture
def folder(embedded: EmbeddedHarness) -> Iterator[ReadOnlyLog]:
    embedded.log.create_topic("t", 2)
    embedded.send("t", *numbered(6))
    with ReadOnlyLog("data", clock=embedded.clock, files=embedded.disk) as made:
        yield made


def test_a_read_only_log_reads_seeks_and_describes(
    embedded: EmbeddedHarness, folder: ReadOnlyLog
) -> None:
    consumer = folder.consumer(["t"])
    assert sorted(record.value or b"" for record in drain(consumer)) == numbered(6)
    consumer.seek("t", 0, 1)
    consumer.seek("t", 1, 3)
    assert [record.offset for record in drain(consumer)] == [1, 2]
    consumer.seek_to_time(embedded.clock.now_ms())
    assert len(drain(consumer)) == 6
    consumer.seek_to_time(embedded.clock.now_ms() + 1)
    assert drain(consumer) == []
    latest = folder.consumer(["t"], auto_offset_reset="latest")
    embedded.send("t", b"new")
    assert [record.value for record in latest.poll()] == [b"new"]
    ours, theirs = embedded.log.describe_topic("t"), folder.describe_topic("t")
    assert ours == theirs


def test_a_reader_of_a_folder_without_fsync(embedded: EmbeddedHarness) -> None:
    embedded.settings = {"log.durability": "page_cache"}
    embedded.log.create_topic("t")
    embedded.send("t", *numbered(3))
    with ReadOnlyLog("data", clock=embedded.clock, files=embedded.disk) as folder:
        consumer = folder.consumer(["t"])
        assert [record.value for record in consumer.poll()] == numbered(3)
        embedded.send("t", b"more")
        assert [record.value for record in consumer.poll()] == [b"more"]


@pytest.mark.parametrize("verb", ["producer", "create_topic", "delete_topic"])
def test_writing_to_a_read_only_log_raises_with_advice(folder: ReadOnlyLog, verb: str) -> None:
    with pytest.raises(AttributeError, match=rf"strandlog\.read is read-only and has no {verb}"):
        getattr(folder, verb)
    with pytest.raises(AttributeError, match="no attribute 'no_such_verb'"):
        folder.no_such_verb  # type: ignore[attr-defined]  # noqa: B018


def test_a_read_only_log_cannot_join_a_group(folder: ReadOnlyLog) -> None:
    message = "^a log opened with strandlog.read is read-only and cannot join group 'g'"
    with pytest.raises(InvalidGroupError, match=message):
        folder.consumer(["t"], group="g")
    consumer = folder.consumer(["t"])
    with pytest.raises(InvalidGroupError):
        consumer.commit()
    assert consumer.committed("t", 0) is None


def test_a_read_only_log_hides_internal_topics(
    embedded: EmbeddedHarness, folder: ReadOnlyLog
) -> None:
    with embedded.log.consumer(["t"], group="g") as consumer:
        consumer.commit()
    assert folder.topics() == ["t"]


def test_a_read_only_log_writes_nothing(embedded: EmbeddedHarness, folder: ReadOnlyLog) -> None:
    embedded.log.close()
    steps = len(embedded.disk.trace)
    before = embedded.disk.contents()
    assert len(drain(folder.consumer(["t"]))) == 6
    folder.describe_topic("t")
    folder.consumer(["t"]).seek_to_time(0)
    folder.close()
    assert embedded.disk.contents() == before and len(embedded.disk.trace) == steps


def test_a_closed_read_only_log_raises_closed_error(folder: ReadOnlyLog) -> None:
    consumer = folder.consumer(["t"])
    folder.close()
    folder.close()
    for call in (folder.topics, lambda: folder.describe_topic("t"), folder.consumer):
        with pytest.raises(ClosedError, match="this log is closed; open a new one"):
            call()
    with pytest.raises(ClosedError):
        consumer.poll()


class Watch:
    """Before each change of a file a reader reads everything, and sees no gap."""

    def __init__(self, embedded: EmbeddedHarness, *, has_retention: bool) -> None:
        self._embedded = embedded
        self._has_retention = has_retention
        self._patient = self._reader().consumer(["t"])
        self.seen = [record.offset for record in self._patient.poll(max_records=5)]
        self.looks = 0
        embedded.disk.watch(lambda _: self.look())

    def _reader(self) -> ReadOnlyLog:
        return ReadOnlyLog("data", clock=self._embedded.clock, files=self._embedded.disk)

    def look(self) -> None:
        self.looks += 1
        with self._reader() as reader:
            if "t" in reader.topics():
                self._check([record.offset for record in drain(reader.consumer(["t"]))])
        self.seen += [record.offset for record in self._patient.poll(max_records=1)]
        self._check(self.seen)

    def _check(self, offsets: list[int]) -> None:
        assert offsets == sorted(set(offsets))
        if offsets and not self._has_retention:
            own = [offset for offset in offsets if not offset % 3]
            assert own == list(range(0, offsets[-1] + 1, 3))

    def finish(self) -> None:
        """The owner is done: read the rest."""
        self._embedded.disk.watch(None)
        assert self.looks > 5
        self.seen += [record.offset for record in drain(self._patient)]
        self._check(self.seen)


def test_a_reader_whose_offset_is_deleted_repeatedly(
    embedded: EmbeddedHarness, folder: ReadOnlyLog
) -> None:
    """Retention may be quicker than a reader that looks where the log begins."""
    consumer = folder.consumer(["t"])
    real = folder.source.offset_range
    deleted = 1

    def offset_range(tp: TopicPartition) -> tuple[int, int]:
        nonlocal deleted
        found = real(tp)
        if tp.partition == 0 and deleted < 3:
            deleted += 1
            embedded.log.delete_records("t", 0, deleted)
            folder._folder._views.clear()
        return found

    embedded.log.delete_records("t", 0, 1)
    folder._folder._views.clear()
    folder.source.offset_range = offset_range  # type: ignore[method-assign]
    assert [record.partition for record in drain(consumer)] == [1, 1, 1]
    assert consumer.position("t", 0) == 3


def append(embedded: EmbeddedHarness, first: int, end: int) -> None:
    producer = embedded.log.producer()
    for number in range(first, end):
        producer.send("t", b"%d:" % number + bytes(150), key_of(number))


@pytest.mark.slow
@pytest.mark.parametrize("deed", ["compact", "append", "retain", "delete"])
def test_a_reader_at_every_step_of_the_owner(embedded: EmbeddedHarness, deed: str) -> None:
    embedded.log.create_topic("t", config={"segment.bytes": 1024, "retention.bytes": 3000})
    append(embedded, 0, 60)
    watch = Watch(embedded, has_retention=deed == "retain")
    match deed:
        case "compact":
            embedded.log.compact("t")
        case "append":
            append(embedded, 60, 80)
        case "retain":
            embedded.log.enforce_retention("t")
        case "delete":
            embedded.log.delete_topic("t")
    watch.finish()
    ends = {"compact": 60, "append": 80, "retain": 60}
    assert deed == "delete" or watch.seen[-1] == ends[deed] - 1


@pytest.mark.slow
@pytest.mark.long
def test_a_reader_skips_nothing_after_the_owner_died_during_compaction(
    embedded: EmbeddedHarness,
) -> None:
    embedded.log.create_topic("t", config={"segment.bytes": 1024})
    append(embedded, 0, 60)
    embedded.log.close()
    whole = embedded.disk
    for step in itertools.count(1, QUICK_STEP if is_quick() else 3):
        log = embedded.use(whole.after_kill())
        embedded.disk.stop_at(len(embedded.disk.trace) + step)
        try:
            log.compact("t")
        except PowerCut:
            embedded.disk = embedded.disk.after_kill()
        else:
            break
        with ReadOnlyLog("data", clock=embedded.clock, files=embedded.disk) as reader:
            offsets = [record.offset for record in drain(reader.consumer(["t"]))]
        own = [offset for offset in offsets if not offset % 3]
        assert own == list(range(0, offsets[-1] + 1 if offsets else 0, 3))
        embedded.kill()
        values = [value for value in embedded.values("t") if value]
        assert len([value for value in values if not int(value.split(b":")[0]) % 3]) == 20
    assert step > 40
    embedded.disk.stop_at(None)
