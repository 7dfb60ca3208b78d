"""The consumer: merged polls, seeks, waiting, retention and deletion during reading."""

from __future__ import annotations

import threading

import pytest
from tests.support.embedded_harness import EmbeddedHarness, drain, member, numbered, place

from strandlog import (
    ClosedError,
    CorruptSegmentError,
    InvalidGroupError,
    NotOwnerError,
    OffsetOutOfRangeError,
    TopicNotFoundError,
    TopicPartition,
)
from strandlog.errors import InvalidSettingError

PATIENCE_MS = 10_000


# -- polling -----------------------------------------------------------------------------------


def test_a_poll_merges_all_partitions_and_keeps_the_order_in_each(
    embedded: EmbeddedHarness,
) -> None:
    embedded.log.create_topic("a", 3)
    embedded.log.create_topic("b", 2)
    embedded.send("a", *numbered(30))
    embedded.send("b", *numbered(20))
    found = embedded.log.consumer(["a", "b"]).poll()
    assert len(found) == 50
    for tp in {(record.topic, record.partition) for record in found}:
        offsets = [r.offset for r in found if (r.topic, r.partition) == tp]
        assert offsets == list(range(10))


def test_max_records_limits_a_poll_and_no_record_is_skipped(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", 3)
    embedded.send("t", *numbered(50))
    consumer = embedded.log.consumer(["t"])
    polls = []
    while records := consumer.poll(max_records=7):
        polls.append(records)
    assert [len(records) for records in polls] == [7] * 7 + [1]
    assert sorted(r.value or b"" for records in polls for r in records) == sorted(numbered(50))


def test_each_partition_gets_its_turn_first(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", 3)
    embedded.send("t", *numbered(90))
    consumer = embedded.log.consumer(["t"])
    assert {consumer.poll(max_records=1)[0].partition for _ in range(3)} == {0, 1, 2}


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "5"])
def test_an_invalid_max_records_raises(embedded: EmbeddedHarness, wrong: int) -> None:
    with pytest.raises(InvalidSettingError, match="for max_records: expected an integer"):
        embedded.log.consumer().poll(max_records=wrong)


def test_a_second_poll_finds_nothing(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    embedded.send("t", b"x")
    consumer = embedded.log.consumer(["t"])
    assert len(consumer.poll()) == 1
    assert consumer.poll() == []


def test_iteration_ends_without_records_and_can_continue_later(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    embedded.send("t", *numbered(3))
    consumer = embedded.log.consumer(["t"])
    assert [record.value for record in consumer] == numbered(3)
    assert list(consumer) == []
    embedded.send("t", b"more")
    assert [record.value for record in consumer] == [b"more"]


def test_one_topic_may_be_given_as_a_string(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("topic")
    embedded.send("topic", b"x")
    assert len(embedded.log.consumer("topic").poll()) == 1


def test_a_consumer_sees_what_was_written_but_not_yet_synced(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    producer = embedded.log.producer(acks=0)
    producer.send("t", b"x")
    assert [record.value for record in embedded.log.consumer(["t"]).poll()] == [b"x"]
    embedded.lose_power()
    assert embedded.values("t") == [b"x"], "what a reader has seen is not taken back"


def test_a_poll_reads_over_segments_and_large_records(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", config={"segment.bytes": 2_000_000})
    embedded.send("t", *(bytes([number]) * 900_000 for number in range(5)))
    assert embedded.log.describe_topic("t").partitions[0].segments == 3
    assert [record.value for record in embedded.log.consumer(["t"]).poll()] == [
        bytes([number]) * 900_000 for number in range(5)
    ]


# -- waiting -----------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", [0, "all"])
def test_a_waiting_poll_is_woken_by_a_send(acks: str) -> None:
    embedded = EmbeddedHarness()
    embedded.log.create_topic("t", 2)
    consumer = embedded.log.consumer(["t"])
    timer = threading.Timer(0.05, lambda: embedded.log.producer(acks).send("t", b"x"))  # type: ignore[arg-type]
    timer.start()
    assert [record.value for record in consumer.poll(timeout_ms=PATIENCE_MS)] == [b"x"]
    timer.join()
    embedded.log.close()


def test_a_waiting_poll_is_woken_by_a_batch(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    consumer = embedded.log.consumer(["t"])
    timer = threading.Timer(
        0.05, lambda: embedded.log.producer(acks=1).send_batch("t", numbered(3))
    )
    timer.start()
    assert len(consumer.poll(timeout_ms=PATIENCE_MS)) == 3
    timer.join()


def test_a_waiting_poll_ends_when_the_log_is_closed(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    consumer = embedded.log.consumer(["t"])
    timer = threading.Timer(0.05, embedded.log.close)
    timer.start()
    with pytest.raises(ClosedError, match="this consumer is closed; open a new one"):
        consumer.poll(timeout_ms=PATIENCE_MS)
    timer.join()


def test_a_poll_without_records_waits_for_its_timeout() -> None:
    embedded = EmbeddedHarness()

    def let_time_pass() -> None:
        while not is_done.wait(0.01):
            embedded.clock.advance(50)

    embedded.log.create_topic("t")
    is_done = threading.Event()
    passing = threading.Thread(target=let_time_pass)
    passing.start()
    began_ms = embedded.clock.monotonic_ms()
    assert embedded.log.consumer(["t"]).poll(timeout_ms=500) == []
    waited_ms = embedded.clock.monotonic_ms() - began_ms
    is_done.set()
    passing.join()
    assert waited_ms >= 500
    embedded.log.close()


# -- moving ------------------------------------------------------------------------------------


def test_seek_goes_to_an_offset_of_the_range(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    embedded.send("t", *numbered(5))
    consumer = embedded.log.consumer(["t"])
    consumer.poll(max_records=2)
    assert consumer.position("t", 0) == 2
    for offset in (4, 0, 5, 2):
        consumer.seek("t", 0, offset)
        assert consumer.position("t", 0) == offset
        assert [r.offset for r in consumer.poll()] == list(range(offset, 5))
    for outside in (6, -1):
        with pytest.raises(OffsetOutOfRangeError, match=r"is outside t-0 \[0, 5\)"):
            consumer.seek("t", 0, outside)
    for wrong in (None, "1", 1.0):
        with pytest.raises(TypeError, match="an offset must be an int"):
            consumer.seek("t", 0, wrong)  # type: ignore[arg-type]
    assert consumer.position("t", 0) == 5


def test_seek_to_the_end_of_unsynced_records_does_not_restart(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    producer = embedded.log.producer(acks=1)
    producer.send_batch("t", numbered(3))
    consumer = embedded.log.consumer(["t"])
    consumer.seek("t", 0, 3)
    assert consumer.poll() == []
    producer.send("t", b"next")
    assert [record.value for record in consumer.poll()] == [b"next"]


def test_seek_all_takes_the_nearest_offset_of_each_partition(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", 2)
    embedded.send("t", *numbered(3), partition=0)
    embedded.send("t", *numbered(6), partition=1)
    embedded.log.delete_records("t", 1, 2)
    consumer = embedded.log.consumer(["t"])
    positions = {}
    for offset in (0, 1, 4, 99):
        consumer.seek_all(offset)
        positions[offset] = (consumer.position("t", 0), consumer.position("t", 1))
    assert positions == {0: (0, 2), 1: (1, 2), 4: (3, 4), 99: (3, 6)}


def test_seek_to_time_goes_to_the_first_record_at_or_after_it(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", 2)
    producer = embedded.log.producer(acks=1)
    for number in range(10):
        producer.send("t", b"x", partition=number % 2, timestamp=1_000 + number)
    consumer = embedded.log.consumer(["t"])
    for time_ms, positions in ((0, (0, 0)), (1_004, (2, 2)), (1_005, (3, 2)), (9_999, (5, 5))):
        consumer.seek_to_time(time_ms)
        assert (consumer.position("t", 0), consumer.position("t", 1)) == positions
    consumer.seek_to_time(1_008)
    assert sorted(record.timestamp for record in drain(consumer)) == [1_008, 1_009]


def test_assign_reads_exactly_those_partitions(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", 3)
    embedded.send("t", *numbered(9))
    consumer = embedded.log.consumer()
    assert consumer.poll() == [] and consumer.assignment == []
    consumer.assign([("t", 1), ("t", 2)])
    assert {record.partition for record in consumer.poll()} == {1, 2}
    consumer.assign([("t", 2), ("t", 0)])
    assert consumer.position("t", 2) == 3, "what stays keeps its place"
    assert {record.partition for record in consumer.poll()} == {0}
    with pytest.raises(NotOwnerError):
        consumer.position("t", 1)
    for wrong, message in ((("t", 3), "it has 0 to 2"), (("u", 0), "create it first")):
        with pytest.raises(TopicNotFoundError, match=message):
            consumer.assign([wrong])
    assert consumer.assignment == [TopicPartition("t", 0), TopicPartition("t", 2)]


def test_a_consumer_without_a_group_commits_nothing(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    consumer = embedded.log.consumer(["t"])
    assert consumer.group is None and consumer.committed("t", 0) is None
    with pytest.raises(InvalidGroupError, match="commit requires a group"):
        consumer.commit()


# -- where a consumer begins -------------------------------------------------------------------


@pytest.mark.parametrize("group", [None, "g"])
@pytest.mark.parametrize("acks", [1, "all"])
def test_earliest_and_latest(embedded: EmbeddedHarness, group: str | None, acks: str) -> None:
    embedded.log.create_topic("t", 2)
    producer = embedded.log.producer(acks)  # type: ignore[arg-type]
    producer.send_batch("t", numbered(4))
    early = embedded.log.consumer(["t"], group=group, auto_offset_reset="earliest")
    assert len(early.poll()) == 4
    early.close()
    late = embedded.log.consumer(["t"], group=group, auto_offset_reset="latest")
    assert late.poll() == []
    producer.send_batch("t", [b"new", b"newer"])
    assert {record.value for record in late.poll()} == {b"new", b"newer"}


def test_reset_none_raises_in_each_poll_until_a_seek(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", 2)
    embedded.send("t", *numbered(4))
    consumer = member(embedded, auto_offset_reset="none")
    message = r"no committed offset for t-\d, and auto_offset_reset is 'none'.* \[0, 2\]"
    for _ in range(3):
        with pytest.raises(OffsetOutOfRangeError, match=message):
            consumer.poll()
    with pytest.raises(OffsetOutOfRangeError, match=message):
        consumer.position("t", 0)
    assert consumer.commit() == {}
    consumer.seek_all(1)
    assert len(consumer.poll()) == 2
    consumer.commit()
    consumer.close()
    again = member(embedded, auto_offset_reset="none")
    assert again.poll() == [] and again.position("t", 0) == 2


def test_reset_none_without_a_group_starts_at_the_beginning(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    embedded.send("t", *numbered(4))
    assert len(embedded.log.consumer(["t"], auto_offset_reset="none").poll()) == 4


def test_the_policy_of_one_member_does_not_fail_another(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", 2)
    embedded.send("t", *numbered(4))
    strict = member(embedded, auto_offset_reset="none")
    lenient = member(embedded)
    assert len(lenient.poll()) == 2
    with pytest.raises(OffsetOutOfRangeError):
        strict.poll()


def test_an_unknown_reset_policy_raises(embedded: EmbeddedHarness) -> None:
    with pytest.raises(InvalidSettingError, match="one of earliest, latest, none"):
        embedded.log.consumer(auto_offset_reset="newest")  # type: ignore[arg-type]


# -- the log moves on --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reset", "expected"), [("earliest", numbered(10)[6:]), ("latest", []), ("none", None)]
)
def test_a_consumer_whose_offset_was_deleted_resets_or_raises(
    embedded: EmbeddedHarness, reset: str, expected: list[bytes] | None
) -> None:
    embedded.log.create_topic("t")
    embedded.send("t", *numbered(10))
    consumer = embedded.log.consumer(["t"], auto_offset_reset=reset)  # type: ignore[arg-type]
    consumer.seek("t", 0, 2)
    embedded.log.delete_records("t", 0, 6)
    if expected is None:
        with pytest.raises(OffsetOutOfRangeError, match=r"offset 2 is outside t-0 \[6, 10\)"):
            consumer.poll()
        consumer.seek("t", 0, 8)
        expected = numbered(10)[8:]
    assert [record.value for record in consumer.poll()] == expected
    assert consumer.position("t", 0) == 10


def test_a_consumer_whose_offset_retention_removed_starts_at_the_log_start(
    embedded: EmbeddedHarness,
) -> None:
    embedded.log.create_topic("t", config={"segment.bytes": 1024, "retention.bytes": 2048})
    embedded.send("t", *(b"%04d" % n + bytes(200) for n in range(40)))
    consumer = embedded.log.consumer(["t"])
    dropped = embedded.log.enforce_retention("t")
    assert dropped > 20
    assert [record.offset for record in consumer.poll()] == list(range(dropped, 40))


def test_a_deleted_committed_offset_resets_or_raises(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    embedded.send("t", *numbered(10))
    consumer = member(embedded)
    consumer.poll(max_records=3)
    consumer.commit()
    consumer.close()
    embedded.log.delete_records("t", 0, 6)
    assert [record.offset for record in member(embedded, group="g").poll()] == [6, 7, 8, 9]
    strict = embedded.log.consumer(group="g", auto_offset_reset="none")
    strict.assign([("t", 0)])
    with pytest.raises(OffsetOutOfRangeError, match=r"offset 3 is outside t-0 \[6, 10\)"):
        strict.poll()


def test_a_consumer_whose_topic_was_deleted_finds_nothing(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    embedded.log.create_topic("u")
    embedded.send("t", b"t")
    embedded.send("u", b"u")
    consumer = embedded.log.consumer(["t", "u"])
    embedded.log.delete_topic("t")
    assert [record.value for record in consumer.poll()] == [b"u"]
    assert consumer.assignment == [TopicPartition("u", 0)]
    with pytest.raises(TopicNotFoundError):
        consumer.position("t", 0)
    embedded.log.create_topic("t")
    embedded.send("t", b"new")
    assert [record.value for record in consumer.poll()] == [b"new"]


def test_a_recreated_topic_is_read_from_its_start(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    embedded.send("t", *numbered(5))
    consumer = embedded.log.consumer(["t"])
    assert len(consumer.poll(max_records=3)) == 3
    embedded.log.delete_topic("t")
    embedded.log.create_topic("t")
    embedded.send("t", *numbered(10))
    assert [record.value for record in consumer.poll()] == numbered(10)


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_a_consumer_without_a_group_finds_new_partitions(
    embedded: EmbeddedHarness, reset: str
) -> None:
    embedded.log.create_topic("t")
    consumer = embedded.log.consumer(["t"], auto_offset_reset=reset)  # type: ignore[arg-type]
    assigned = embedded.log.consumer()
    assigned.assign([("t", 0)])
    consumer.poll()
    embedded.log.alter_topic("t", partitions=3)
    embedded.send("t", *numbered(6))
    assert sorted(record.value or b"" for record in drain(consumer)) == numbered(6)
    assert len(drain(assigned)) == 2


def test_compaction_under_a_reader_leaves_gaps_not_errors(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", config={"segment.bytes": 1024})
    producer = embedded.log.producer()
    for number in range(60):
        producer.send("t", b"%d" % number, key=b"k%d" % (number % 3))
    consumer = embedded.log.consumer(["t"])
    first = consumer.poll(max_records=5)
    embedded.log.compact("t")
    rest = drain(consumer)
    offsets = [record.offset for record in first + rest]
    assert offsets == sorted(set(offsets))
    assert {record.value for record in rest} >= {b"57", b"58", b"59"}
    consumer.seek_all(0)
    assert [record.value for record in drain(consumer)] == [b"57", b"58", b"59"]


# -- damage ------------------------------------------------------------------------------------


def damaged_log(embedded: EmbeddedHarness, topic: str = "t", record: int = 5) -> str:
    """Ten records, each in its own batch; one of them rots."""
    embedded.log.create_topic(topic)
    embedded.send(topic, *numbered(10))
    path = f"data/{topic}-0/{0:020d}.log"
    size = len(embedded.disk.contents()[path]) // 10
    embedded.disk.flip_bit(path, 8 * (size * record + 65))
    return path


def test_records_before_damage_are_read(embedded: EmbeddedHarness) -> None:
    path = damaged_log(embedded)
    consumer = embedded.log.consumer(["t"])
    assert [record.value for record in consumer.poll()] == numbered(5)
    for _ in range(2):
        with pytest.raises(CorruptSegmentError, match=f"{path} is damaged at byte 345 ") as caught:
            consumer.poll()
        assert consumer.position("t", 0) == 5
    assert caught.value.resume_offset == 6
    consumer.seek("t", 0, caught.value.resume_offset)
    assert [record.value for record in consumer.poll()] == numbered(10)[6:]


def test_damage_in_one_partition_takes_nothing_from_the_others(embedded: EmbeddedHarness) -> None:
    damaged_log(embedded, record=0)
    embedded.log.create_topic("u", 3)
    embedded.send("u", *numbered(90))
    consumer = embedded.log.consumer(["t", "u"])
    found, complaints = [], 0
    for _ in range(40):
        try:
            found += consumer.poll(max_records=4)
        except CorruptSegmentError:
            complaints += 1
    assert complaints > 5
    assert len({place(record) for record in found}) == len(found) == 90


# -- the end -----------------------------------------------------------------------------------


def test_a_closed_consumer_raises_closed_error(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    with embedded.log.consumer(["t"]) as consumer:
        pass
    consumer.close()
    for call in (
        consumer.poll,
        lambda: next(consumer),
        lambda: consumer.seek("t", 0, 0),
        lambda: consumer.seek_all(0),
        lambda: consumer.seek_to_time(0),
        lambda: consumer.position("t", 0),
        lambda: consumer.committed("t", 0),
        consumer.commit,
        lambda: consumer.assign([("t", 0)]),
    ):
        with pytest.raises(ClosedError, match="this consumer is closed; open a new one"):
            call()


def test_a_consumer_of_a_closed_log_raises_closed_error(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    consumer = embedded.log.consumer(["t"])
    embedded.log.close()
    with pytest.raises(ClosedError):
        consumer.poll()
    consumer.close()


def test_consuming_does_not_create_topics(embedded: EmbeddedHarness) -> None:
    with pytest.raises(TopicNotFoundError, match="topic 'nowhere' does not exist; create it first"):
        embedded.log.consumer(["nowhere"])
    assert embedded.log.topics() == []
