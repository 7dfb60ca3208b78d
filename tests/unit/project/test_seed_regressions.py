"""What broke in the systems that strandlog descends from, each as a test named after its symptom.

Where they differ from us in words (truncate, messages) the test says what a program would do here.
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


class Place:
    """A folder that is opened again and again, after clean stops and after kills."""

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
        """As it is, after a clean stop, and after a kill."""
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
def place() -> Place:
    return Place()


# -- the eight of DDIA's partitioned_log.py ----------------------------------------------------


def test_1_compaction_and_retention_survive_a_reload(place: Place) -> None:
    place.log.create_topic("compacted")
    place.send("compacted", (b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"b", b"4"))
    place.log.compact("compacted")
    place.log.create_topic("retained", config={"segment.bytes": 1024, "retention.bytes": 2048})
    place.send("retained", *((None, bytes(400)) for _ in range(20)))
    place.log.enforce_retention("retained")
    left = place.offsets("retained")
    assert 0 < len(left) < 20
    for _ in place.restarts():
        assert place.offsets("compacted") == [2, 3]
        assert place.offsets("retained") == left


def test_2_the_start_is_right_when_records_go_from_a_log_with_gaps(place: Place) -> None:
    place.log.create_topic("t")
    place.send("t", (None, b"0"), (b"k", b"1"), (b"k", b"2"), (b"k", b"3"), (None, b"4"))
    place.log.compact("t")
    assert place.offsets("t") == [0, 3, 4]
    place.log.delete_records("t", 0, 4)
    for _ in place.restarts():
        assert place.offsets("t") == [4]
        assert place.span("t") == (4, 5)


def test_2_the_start_is_right_when_retention_takes_segments_with_gaps(place: Place) -> None:
    place.log.create_topic("t", config={"segment.bytes": 1024})
    place.send("t", *((b"%d" % (n % 3), b"%d" % n + bytes(300)) for n in range(30)))
    place.log.compact("t")
    place.send("t", *((None, bytes(300)) for _ in range(10)))
    place.log.alter_topic("t", {"retention.bytes": 1500})
    place.log.enforce_retention("t")
    offsets = place.offsets("t")
    assert offsets
    start, end = place.span("t")
    assert start <= offsets[0] and end == offsets[-1] + 1 == 40
    assert not [offset for offset in offsets if offset < start]


@pytest.mark.parametrize("how", ["delete_records", "retention"])
def test_3_offsets_are_not_given_out_again_when_everything_is_gone(place: Place, how: str) -> None:
    place.log.create_topic("t")
    place.send("t", (None, b"0"), (b"k", b"1"), (b"k", b"2"), (b"k", b"3"))
    place.log.compact("t")
    assert place.offsets("t") == [0, 3]
    if how == "delete_records":
        place.log.delete_records("t", 0, 4)
    else:
        place.log.alter_topic("t", {"retention.ms": 1000})
        place.clock.advance(1_001)
        assert place.log.enforce_retention("t") == 4
    next_offset = 4
    for _ in place.restarts():
        assert place.span("t")[1] == next_offset
        assert place.send("t", (None, b"new")) == [next_offset]
        next_offset += 1


def test_4_a_commit_by_a_non_owner_does_not_move_the_group_back(place: Place) -> None:
    place.log.create_topic("r", 2)
    place.send("r", *((None, b"x") for _ in range(10)))
    quick = {"group": "g", "max_poll_interval_ms": 10_000}
    c1 = place.log.consumer(["r"], **quick)  # type: ignore[arg-type]
    c1.poll(max_records=1)
    c2 = place.log.consumer(["r"], **quick)  # type: ignore[arg-type]
    for _ in range(11):
        place.clock.advance(1_000)
        c2.poll()
        c2.commit()
    committed = place.log.committed_offsets("g")
    assert {at.offset for at in committed.values()} == {5}
    with pytest.raises(GroupError):
        c1.commit()
    assert place.log.committed_offsets("g") == committed
    c1.poll()
    foreign = c2.assignment[0]
    with pytest.raises(NotOwnerError):
        c1.seek(*foreign, 0)
    c1.commit()
    assert {at.offset for at in place.log.committed_offsets("g").values()} == {5}


def test_5_creating_a_topic_twice_does_not_wipe_it(place: Place) -> None:
    place.log.create_topic("t", 2)
    place.send("t", (b"k", b"v"))
    for partitions in (1, 2, 3):
        with pytest.raises(TopicExistsError):
            place.log.create_topic("t", partitions)
    for _ in place.restarts():
        assert [record.value for record in place.records("t")] == [b"v"]


@pytest.mark.parametrize("group", ["a|b", "|", "a|t|0", "t-0", "a b", "a\\b", 'a"b'])
def test_6_a_group_id_with_a_bar_can_start_again(place: Place, group: str) -> None:
    place.log.create_topic("t")
    place.send("t", *((None, b"x") for _ in range(3)))
    with place.log.consumer(["t"], group=group) as consumer:
        consumer.poll(max_records=2)
        consumer.commit()
    for _ in place.restarts():
        assert place.log.groups() == [group]
        assert place.log.committed_offsets(group)[TopicPartition("t", 0)].offset == 2


def test_7_names_that_look_alike_reload_with_their_own_partitions(place: Place) -> None:
    counts = {"a": 1, "a_b": 2, "a-1": 3, "a-1-0": 1, "a.b": 2, "a-0": 1}
    for name, count in counts.items():
        place.log.create_topic(name, count)
        place.log.producer().send(name, name.encode(), partition=count - 1)
    for _ in place.restarts():
        assert place.log.topics() == sorted(counts)
        for name, count in counts.items():
            assert len(place.log.describe_topic(name).partitions) == count
            assert [record.value for record in place.records(name)] == [name.encode()]


@pytest.mark.parametrize("assignor", ["range", "roundrobin"])
def test_8_a_rebalance_gives_nobody_foreign_topics(place: Place, assignor: str) -> None:
    place.log.create_topic("a", 3)
    place.log.create_topic("b", 3)
    wishes = [["a"], ["b"], ["a", "b"], ["b"]]
    consumers = [place.log.consumer(wish, group="g", assignors=[assignor]) for wish in wishes]
    order = random.Random(8)
    for _ in range(20):
        number = order.randrange(len(wishes))
        consumers[number].close()
        wish = wishes[number]
        consumers[number] = place.log.consumer(wish, group="g", assignors=[assignor])
        have = []
        for consumer, wish in zip(consumers, wishes, strict=True):
            consumer.poll()
            assert {tp.topic for tp in consumer.assignment} <= set(wish)
            have += consumer.assignment
        assert sorted(have) == [TopicPartition(topic, n) for topic in "ab" for n in range(3)]


# -- PyLogStreams ------------------------------------------------------------------------------


def test_the_log_end_is_right_after_a_restart_with_many_segments(place: Place) -> None:
    place.log.create_topic("t", config={"segment.bytes": 1024})
    sent = 0
    for _ in place.restarts():
        sent += len(place.send("t", *((None, b"%d" % n + bytes(300)) for n in range(10))))
        assert place.log.describe_topic("t").partitions[0].segments >= 3
        assert place.span("t") == (0, sent)
        assert place.offsets("t") == list(range(sent))


def test_positions_come_back_after_a_restart(place: Place) -> None:
    place.log.create_topic("t", 2)
    place.send("t", *((None, b"%d" % n) for n in range(10)))
    read = 0
    for _ in place.restarts():
        with place.log.consumer(["t"], group="g") as consumer:
            read += len(consumer.poll(max_records=3))
            consumer.commit()
        committed = place.log.committed_offsets("g").values()
        assert sum(at.offset for at in committed) == read
    assert read == 9


def test_names_with_spaces_are_refused_in_words(place: Place) -> None:
    with pytest.raises(InvalidTopicError, match="invalid topic name 'a b': letters, digits"):
        place.log.create_topic("a b")
    place.log.create_topic("t")
    with place.log.consumer(["t"], group="a group with spaces") as consumer:
        consumer.commit()
    for _ in place.restarts():
        assert place.log.groups() == ["a group with spaces"]


def test_values_need_not_be_utf_8(place: Place) -> None:
    place.log.create_topic("t")
    values = [b"\xff\xfe\x00", bytes(range(256)), b"\n\r\0 ", "ü".encode("latin-1")]
    place.send("t", *((value, value) for value in values))
    for _ in place.restarts():
        assert [(record.key, record.value) for record in place.records("t")] == [
            (value, value) for value in values
        ]


# -- LogBroker ---------------------------------------------------------------------------------


def test_a_null_key_is_not_an_empty_one(place: Place) -> None:
    place.log.create_topic("t")
    place.send("t", (None, None), (b"", b""))
    for _ in place.restarts():
        assert [(record.key, record.value) for record in place.records("t")] == [
            (None, None),
            (b"", b""),
        ]


def test_a_record_larger_than_a_segment_is_kept(place: Place) -> None:
    place.log.create_topic("t", config={"segment.bytes": 1024})
    values = [b"small", bytes(100_000), b"small, too"]
    place.send("t", *((None, value) for value in values))
    for _ in place.restarts():
        assert [record.value for record in place.records("t")] == values


def test_nothing_is_created_by_asking_for_it(place: Place) -> None:
    calls: list[Callable[[], object]] = [
        lambda: place.log.producer().send("t", b"x"),
        lambda: place.log.consumer(["t"]),
        lambda: place.log.consumer(["t"], group="g"),
        lambda: place.log.describe_topic("t"),
    ]
    for call in calls:
        with pytest.raises(TopicNotFoundError):
            call()
    assert place.log.topics() == [] and place.log.groups() == []


def test_an_empty_topic_can_be_flushed_read_and_cleaned(place: Place) -> None:
    place.log.create_topic("t", 3)
    for _ in place.restarts():
        place.log.flush()
        assert place.log.compact("t").records_retained == 0
        assert place.log.enforce_retention("t") == 0
        place.log.delete_records("t", 0, 0)
        assert place.records("t") == []
        assert place.span("t") == (0, 0), "and the first record of an empty log gets offset 0"
    assert place.send("t", (None, b"first")) == [0]


# -- kafko -------------------------------------------------------------------------------------


def test_settings_of_a_topic_are_there_after_a_restart(place: Place) -> None:
    config = {"retention.ms": "2d", "segment.bytes": "1MiB", "cleanup.policy": "compact"}
    place.log.create_topic("t", config=config)
    place.log.alter_topic("t", {"max.message.bytes": 500})
    for _ in place.restarts():
        assert place.log.describe_topic("t").config == {
            "retention.ms": 172_800_000,
            "segment.bytes": 1_048_576,
            "cleanup.policy": ("compact",),
            "max.message.bytes": 500,
        }
        with pytest.raises(MessageTooLargeError):
            place.send("t", (b"k", bytes(500)))


def test_a_batch_that_unpacks_to_gigabytes_is_not_unpacked(place: Place) -> None:
    place.log.create_topic("t", config={"max.message.bytes": 10_000_000})
    with pytest.raises(MessageTooLargeError, match=r"raise decompressed.max.bytes"):
        place.log.producer(compression="zstd").send("t", bytes(70_000_000))
    place.send("t", (None, b"before"))
    bomb = build_single(place.clock.now_ms(), bytes(70_000_000), codec=Codec.ZSTD)
    place.log.broker.appender.append(place.log.broker.catalog.log("t", 0), bomb)
    place.send("t", (None, b"after"))
    consumer = place.log.consumer(["t"])
    assert [record.value for record in consumer.poll()] == [b"before"]
    with pytest.raises(UndecodableBatchError, match="limit of 67108864 bytes"):
        consumer.poll()
    consumer.seek("t", 0, 2)
    assert [record.value for record in consumer.poll()] == [b"after"]


def test_a_torn_or_foreign_folder_is_refused_not_guessed(tmp_path: Path) -> None:
    with strandlog.open(tmp_path / "data") as log:
        log.create_topic("t")
    (tmp_path / "data" / "meta.properties").unlink()
    for name in ("meta.properties.previous",):
        (tmp_path / "data" / name).unlink(missing_ok=True)
    with pytest.raises(strandlog.StrandlogError, match="is not a strandlog folder"):
        strandlog.open(tmp_path / "data")
    assert (tmp_path / "data" / "t-0").is_dir()
