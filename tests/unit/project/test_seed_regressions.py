"""Defects of the systems that strandlog descends from, each as a test named after its symptom.

Where their terms differ (truncate, messages), the test does what a strandlog program would do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import strandlog
from strandlog import (
    InvalidTopicError,
    Log,
    MessageTooLargeError,
    NotOwnerError,
    Record,
    TopicExistsError,
    TopicNotFoundError,
    TopicPartition,
)
from strandlog.errors import GroupError, UndecodableBatchError
from strandlog.record.builder import build_single
from strandlog.record.codecs import Codec
from strandlog.testing import FakeClock, SimulatedFiles


class LogHarness:
    """A log on a simulated disk, with ways to stop, kill and reopen it."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self._disk = SimulatedFiles()
        self.log = self._opened()

    def _opened(self) -> Log:
        return Log("data", clock=self.clock, files=self._disk)

    def reload(self) -> None:
        self.log.close()
        self.log = self._opened()

    def kill(self) -> None:
        self._disk = self._disk.after_kill()
        self.log = self._opened()

    def restarts(self) -> Iterator[None]:
        """Yield three times: without a restart, after a clean stop, and after a kill."""
        yield
        self.reload()
        yield
        self.kill()
        yield

    def records(self, topic: str) -> list[Record]:
        return self.log.consumer([topic]).poll(max_records=10**6)

    def offsets(self, topic: str) -> list[int]:
        return [record.offset for record in self.records(topic)]

    def span(self, topic: str, partition: int = 0) -> tuple[int, int]:
        info = self.log.describe_topic(topic).partitions[partition]
        return info.start_offset, info.end_offset

    def send(self, topic: str, *pairs: tuple[bytes | None, bytes | None]) -> list[int]:
        producer = self.log.producer()
        return [producer.send(topic, value, key).offset for key, value in pairs]


@pytest.fixture
def harness() -> LogHarness:
    return LogHarness()


# -- the eight of DDIA's partitioned_log.py ----------------------------------------------------


def test_1_compaction_and_retention_survive_a_reload(harness: LogHarness) -> None:
    harness.log.create_topic("compacted")
    harness.send("compacted", (b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"b", b"4"))
    harness.log.compact("compacted")
    harness.log.create_topic("retained", config={"segment.bytes": 1024, "retention.bytes": 2048})
    harness.send("retained", *((None, bytes(400)) for _ in range(20)))
    harness.log.enforce_retention("retained")
    left = harness.offsets("retained")
    assert 0 < len(left) < 20
    for _ in harness.restarts():
        assert harness.offsets("compacted") == [2, 3]
        assert harness.offsets("retained") == left


def test_2_the_log_start_is_right_after_records_of_a_log_with_gaps_are_deleted(
    harness: LogHarness,
) -> None:
    harness.log.create_topic("t")
    harness.send("t", (None, b"0"), (b"k", b"1"), (b"k", b"2"), (b"k", b"3"), (None, b"4"))
    harness.log.compact("t")
    assert harness.offsets("t") == [0, 3, 4]
    harness.log.delete_records("t", 0, 4)
    for _ in harness.restarts():
        assert harness.offsets("t") == [4]
        assert harness.span("t") == (4, 5)


def test_2_the_log_start_is_right_after_retention_drops_segments_with_gaps(
    harness: LogHarness,
) -> None:
    harness.log.create_topic("t", config={"segment.bytes": 1024})
    harness.send("t", *((b"%d" % (n % 3), b"%d" % n + bytes(300)) for n in range(30)))
    harness.log.compact("t")
    harness.send("t", *((None, bytes(300)) for _ in range(10)))
    harness.log.alter_topic("t", {"retention.bytes": 1500})
    harness.log.enforce_retention("t")
    offsets = harness.offsets("t")
    assert offsets
    start, end = harness.span("t")
    assert start <= offsets[0] and end == offsets[-1] + 1 == 40
    assert not [offset for offset in offsets if offset < start]


@pytest.mark.parametrize("how", ["delete_records", "retention"])
def test_3_offsets_are_not_reused_after_all_records_are_deleted(
    harness: LogHarness, how: str
) -> None:
    harness.log.create_topic("t")
    harness.send("t", (None, b"0"), (b"k", b"1"), (b"k", b"2"), (b"k", b"3"))
    harness.log.compact("t")
    assert harness.offsets("t") == [0, 3]
    if how == "delete_records":
        harness.log.delete_records("t", 0, 4)
    else:
        harness.log.alter_topic("t", {"retention.ms": 1000})
        harness.clock.advance(1_001)
        assert harness.log.enforce_retention("t") == 4
    next_offset = 4
    for _ in harness.restarts():
        assert harness.span("t")[1] == next_offset
        assert harness.send("t", (None, b"new")) == [next_offset]
        next_offset += 1


def test_4_a_commit_by_a_non_owner_does_not_move_the_group_back(harness: LogHarness) -> None:
    harness.log.create_topic("r", 2)
    harness.send("r", *((None, b"x") for _ in range(10)))
    quick = {"group": "g", "max_poll_interval_ms": 10_000}
    c1 = harness.log.consumer(["r"], **quick)  # type: ignore[arg-type]
    c1.poll(max_records=1)
    c2 = harness.log.consumer(["r"], **quick)  # type: ignore[arg-type]
    for _ in range(11):
        harness.clock.advance(1_000)
        c2.poll()
        c2.commit()
    committed = harness.log.committed_offsets("g")
    assert {at.offset for at in committed.values()} == {5}
    with pytest.raises(GroupError):
        c1.commit()
    assert harness.log.committed_offsets("g") == committed
    c1.poll()
    foreign = c2.assignment[0]
    with pytest.raises(NotOwnerError):
        c1.seek(*foreign, 0)
    c1.commit()
    assert {at.offset for at in harness.log.committed_offsets("g").values()} == {5}


def test_5_creating_a_topic_twice_does_not_wipe_it(harness: LogHarness) -> None:
    harness.log.create_topic("t", 2)
    harness.send("t", (b"k", b"v"))
    for partitions in (1, 2, 3):
        with pytest.raises(TopicExistsError):
            harness.log.create_topic("t", partitions)
    for _ in harness.restarts():
        assert [record.value for record in harness.records("t")] == [b"v"]


@pytest.mark.parametrize("group", ["a|b", "|", "a|t|0", "t-0", "a b", "a\\b", 'a"b'])
def test_6_a_group_id_with_a_bar_can_start_again(harness: LogHarness, group: str) -> None:
    harness.log.create_topic("t")
    harness.send("t", *((None, b"x") for _ in range(3)))
    with harness.log.consumer(["t"], group=group) as consumer:
        consumer.poll(max_records=2)
        consumer.commit()
    for _ in harness.restarts():
        assert harness.log.groups() == [group]
        assert harness.log.committed_offsets(group)[TopicPartition("t", 0)].offset == 2


def test_7_topics_with_similar_names_reload_with_their_own_partitions(harness: LogHarness) -> None:
    counts = {"a": 1, "a_b": 2, "a-1": 3, "a-1-0": 1, "a.b": 2, "a-0": 1}
    for name, count in counts.items():
        harness.log.create_topic(name, count)
        harness.log.producer().send(name, name.encode(), partition=count - 1)
    for _ in harness.restarts():
        assert harness.log.topics() == sorted(counts)
        for name, count in counts.items():
            assert len(harness.log.describe_topic(name).partitions) == count
            assert [record.value for record in harness.records(name)] == [name.encode()]


@pytest.mark.parametrize("assignor", ["range", "roundrobin"])
def test_8_a_rebalance_assigns_no_topic_a_member_did_not_subscribe_to(
    harness: LogHarness, assignor: str
) -> None:
    harness.log.create_topic("a", 3)
    harness.log.create_topic("b", 3)
    wishes = [["a"], ["b"], ["a", "b"], ["b"]]
    consumers = [harness.log.consumer(wish, group="g", assignors=[assignor]) for wish in wishes]
    order = random.Random(8)
    for _ in range(20):
        number = order.randrange(len(wishes))
        consumers[number].close()
        wish = wishes[number]
        consumers[number] = harness.log.consumer(wish, group="g", assignors=[assignor])
        have = []
        for consumer, wish in zip(consumers, wishes, strict=True):
            consumer.poll()
            assert {tp.topic for tp in consumer.assignment} <= set(wish)
            have += consumer.assignment
        assert sorted(have) == [TopicPartition(topic, n) for topic in "ab" for n in range(3)]


# -- PyLogStreams ------------------------------------------------------------------------------


def test_the_log_end_is_right_after_a_restart_with_many_segments(harness: LogHarness) -> None:
    harness.log.create_topic("t", config={"segment.bytes": 1024})
    sent = 0
    for _ in harness.restarts():
        sent += len(harness.send("t", *((None, b"%d" % n + bytes(300)) for n in range(10))))
        assert harness.log.describe_topic("t").partitions[0].segments >= 3
        assert harness.span("t") == (0, sent)
        assert harness.offsets("t") == list(range(sent))


def test_committed_offsets_survive_a_restart(harness: LogHarness) -> None:
    harness.log.create_topic("t", 2)
    harness.send("t", *((None, b"%d" % n) for n in range(10)))
    read = 0
    for _ in harness.restarts():
        with harness.log.consumer(["t"], group="g") as consumer:
            read += len(consumer.poll(max_records=3))
            consumer.commit()
        committed = harness.log.committed_offsets("g").values()
        assert sum(at.offset for at in committed) == read
    assert read == 9


def test_a_topic_name_with_a_space_is_rejected_with_the_allowed_characters(
    harness: LogHarness,
) -> None:
    with pytest.raises(InvalidTopicError, match="invalid topic name 'a b': only letters, digits"):
        harness.log.create_topic("a b")
    harness.log.create_topic("t")
    with harness.log.consumer(["t"], group="a group with spaces") as consumer:
        consumer.commit()
    for _ in harness.restarts():
        assert harness.log.groups() == ["a group with spaces"]


def test_values_need_not_be_utf_8(harness: LogHarness) -> None:
    harness.log.create_topic("t")
    values = [b"\xff\xfe\x00", bytes(range(256)), b"\n\r\0 ", "ü".encode("latin-1")]
    harness.send("t", *((value, value) for value in values))
    for _ in harness.restarts():
        assert [(record.key, record.value) for record in harness.records("t")] == [
            (value, value) for value in values
        ]


# -- LogBroker ---------------------------------------------------------------------------------


def test_a_null_key_is_not_an_empty_one(harness: LogHarness) -> None:
    harness.log.create_topic("t")
    harness.send("t", (None, None), (b"", b""))
    for _ in harness.restarts():
        assert [(record.key, record.value) for record in harness.records("t")] == [
            (None, None),
            (b"", b""),
        ]


def test_a_record_larger_than_a_segment_is_kept(harness: LogHarness) -> None:
    harness.log.create_topic("t", config={"segment.bytes": 1024})
    values = [b"small", bytes(100_000), b"small, too"]
    harness.send("t", *((None, value) for value in values))
    for _ in harness.restarts():
        assert [record.value for record in harness.records("t")] == values


def test_using_a_missing_topic_does_not_create_it(harness: LogHarness) -> None:
    calls: list[Callable[[], object]] = [
        lambda: harness.log.producer().send("t", b"x"),
        lambda: harness.log.consumer(["t"]),
        lambda: harness.log.consumer(["t"], group="g"),
        lambda: harness.log.describe_topic("t"),
    ]
    for call in calls:
        with pytest.raises(TopicNotFoundError):
            call()
    assert harness.log.topics() == [] and harness.log.groups() == []


def test_an_empty_topic_can_be_flushed_read_and_cleaned(harness: LogHarness) -> None:
    harness.log.create_topic("t", 3)
    for _ in harness.restarts():
        harness.log.flush()
        assert harness.log.compact("t").records_retained == 0
        assert harness.log.enforce_retention("t") == 0
        harness.log.delete_records("t", 0, 0)
        assert harness.records("t") == []
        assert harness.span("t") == (0, 0), "and the first record of an empty log gets offset 0"
    assert harness.send("t", (None, b"first")) == [0]


# -- kafko -------------------------------------------------------------------------------------


def test_settings_of_a_topic_survive_a_restart(harness: LogHarness) -> None:
    config = {"retention.ms": "2d", "segment.bytes": "1MiB", "cleanup.policy": "compact"}
    harness.log.create_topic("t", config=config)
    harness.log.alter_topic("t", {"max.message.bytes": 500})
    for _ in harness.restarts():
        assert harness.log.describe_topic("t").config == {
            "retention.ms": 172_800_000,
            "segment.bytes": 1_048_576,
            "cleanup.policy": ("compact",),
            "max.message.bytes": 500,
        }
        with pytest.raises(MessageTooLargeError):
            harness.send("t", (b"k", bytes(500)))


def test_a_batch_that_unpacks_to_gigabytes_is_not_unpacked(harness: LogHarness) -> None:
    harness.log.create_topic("t", config={"max.message.bytes": 10_000_000})
    with pytest.raises(MessageTooLargeError, match=r"raise decompressed.max.bytes"):
        harness.log.producer(compression="zstd").send("t", bytes(70_000_000))
    harness.send("t", (None, b"before"))
    bomb = build_single(harness.clock.now_ms(), bytes(70_000_000), codec=Codec.ZSTD)
    harness.log.broker._appender.append(harness.log.broker._catalog.log("t", 0), bomb)
    harness.send("t", (None, b"after"))
    consumer = harness.log.consumer(["t"])
    assert [record.value for record in consumer.poll()] == [b"before"]
    with pytest.raises(UndecodableBatchError, match="limit of 67108864 bytes"):
        consumer.poll()
    consumer.seek("t", 0, 2)
    assert [record.value for record in consumer.poll()] == [b"after"]


def test_a_folder_without_meta_properties_is_rejected_and_not_touched(tmp_path: Path) -> None:
    with strandlog.open(tmp_path / "data") as log:
        log.create_topic("t")
    (tmp_path / "data" / "meta.properties").unlink()
    for name in ("meta.properties.previous",):
        (tmp_path / "data" / name).unlink(missing_ok=True)
    with pytest.raises(strandlog.StrandlogError, match="is not a strandlog folder"):
        strandlog.open(tmp_path / "data")
    assert (tmp_path / "data" / "t-0").is_dir()
