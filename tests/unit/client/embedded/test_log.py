"""The log as a whole: topics, opening and closing, compaction and retention by hand."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.embedded_harness import Desk, drain, numbered

import strandlog
from strandlog import (
    AlreadyOpenError,
    ClosedError,
    InvalidPartitionsError,
    InvalidTopicError,
    OffsetOutOfRangeError,
    StrandlogError,
    TopicExistsError,
    TopicNotFoundError,
    TopicPartition,
    UnknownLayoutError,
)
from strandlog.errors import DataError, InvalidSettingError, UnknownSettingError

# -- topics ------------------------------------------------------------------------------------


def test_a_topic_is_created_described_altered_and_deleted(desk: Desk) -> None:
    made = desk.log.create_topic("t", partitions=2, config={"retention.ms": "1h"})
    assert made == desk.log.describe_topic("t")
    assert made.name == "t" and made.config == {"retention.ms": 3_600_000}
    assert [info.partition for info in made.partitions] == [0, 1]
    desk.send("t", *numbered(3))
    infos = desk.log.describe_topic("t").partitions
    assert [(info.start_offset, info.end_offset, info.segments) for info in infos] == [
        (0, 2, 1),
        (0, 1, 1),
    ]
    assert infos[0].size_bytes > infos[1].size_bytes > 60
    altered = desk.log.alter_topic("t", {"retention.ms": None, "flush.ms": 5}, partitions=3)
    assert len(altered.partitions) == 3 and altered.config == {"flush.ms": 5}
    assert altered.topic_id == made.topic_id
    desk.log.delete_topic("t")
    assert desk.log.topics() == []


def test_topics_are_listed_by_name_without_internal_ones(desk: Desk) -> None:
    for name in ("b", "a", "C"):
        desk.log.create_topic(name)
    with desk.log.consumer(["a"], group="g") as consumer:
        consumer.commit()
    assert desk.log.topics() == ["C", "a", "b"]
    assert desk.log.describe_topic("__consumer_offsets").partitions[0].end_offset > 0


def test_the_number_of_partitions_is_a_setting(desk: Desk) -> None:
    desk.settings = {"num.partitions": 3, "max.partitions.per.topic": 5}
    assert len(desk.log.create_topic("t").partitions) == 3
    for count in (0, -1, 6):
        with pytest.raises(InvalidPartitionsError, match=f"got {count}"):
            desk.log.create_topic("u", count)
    with pytest.raises(InvalidPartitionsError, match="partition count must be an integer, got '3'"):
        desk.log.create_topic("u", "3")  # type: ignore[arg-type]
    with pytest.raises(InvalidPartitionsError, match="can only grow"):
        desk.log.alter_topic("t", partitions=2)
    assert desk.log.topics() == ["t"]


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ({"retention.sm": 1}, UnknownSettingError, r"did you mean 'retention.ms'\?"),
        ({"nonsense": 1}, UnknownSettingError, "unknown setting 'nonsense'"),
        ({"segment.bytes": 5}, InvalidSettingError, r"a size in bytes .*, at least 1024"),
        ({"retention.ms": "soon"}, InvalidSettingError, r"a time in ms \(or 5s, 7d\)"),
        ({"cleanup.policy": "burn"}, InvalidSettingError, "list of delete, compact"),
        ({"compression.type": "rar"}, InvalidSettingError, "one of producer, uncompressed"),
        ({"min.cleanable.dirty.ratio": 2}, InvalidSettingError, "at least 0, at most 1"),
        ({"preallocate": "maybe"}, InvalidSettingError, "true or false"),
    ],
)
def test_topic_settings_are_validated(
    desk: Desk, config: dict[str, object], error: type[Exception], message: str
) -> None:
    desk.log.create_topic("t")
    calls: list[Callable[[], object]] = [
        lambda: desk.log.create_topic("u", 1, config),
        lambda: desk.log.alter_topic("t", config),
    ]
    for call in calls:
        with pytest.raises(error, match=message):
            call()
    assert desk.log.topics() == ["t"] and desk.log.describe_topic("t").config == {}


def test_broker_settings_are_validated(tmp_path: Path) -> None:
    with pytest.raises(UnknownSettingError, match=r"did you mean 'log.durability'"):
        strandlog.open(tmp_path / "data", {"log.durabilty": "fsync"})
    with pytest.raises(InvalidSettingError, match="one of fsync, page_cache"):
        strandlog.open(tmp_path / "data", {"log.durability": "maybe"})
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("name", ["", "a b", "ä", "..", "x" * 250, None, 5])
def test_invalid_names_are_rejected(desk: Desk, name: str) -> None:
    for call in (lambda: desk.log.create_topic(name), lambda: desk.log.delete_topic(name)):
        with pytest.raises(InvalidTopicError, match="invalid topic name"):
            call()


def test_unknown_topics(desk: Desk) -> None:
    for call in topic_calls(desk, "nowhere"):
        with pytest.raises(TopicNotFoundError, match="topic 'nowhere' does not exist; create it"):
            call()
    desk.log.create_topic("t", 2)
    with pytest.raises(TopicNotFoundError, match="topic 't' has no partition 2; it has 0 to 1"):
        desk.log.delete_records("t", 2, 0)


def topic_calls(desk: Desk, name: str) -> list[Callable[[], object]]:
    log = desk.log
    return [
        lambda: log.describe_topic(name),
        lambda: log.alter_topic(name, {}),
        lambda: log.alter_topic(name, partitions=5),
        lambda: log.delete_topic(name),
        lambda: log.compact(name),
        lambda: log.enforce_retention(name),
        lambda: log.delete_records(name, 0, 0),
        lambda: log.commit_offsets("g", {TopicPartition(name, 0): 1}),
    ]


def test_creating_an_existing_topic_keeps_its_records(desk: Desk) -> None:
    made = desk.log.create_topic("t", 2)
    desk.send("t", b"kept")
    with pytest.raises(TopicExistsError, match="topic 't' already exists; use it, or"):
        desk.log.create_topic("t", 5)
    assert desk.log.describe_topic("t").topic_id == made.topic_id
    assert desk.values("t") == [b"kept"]


# -- deleting and cleaning by hand -------------------------------------------------------------


def test_a_recreated_topic_starts_at_zero_for_all_consumers(desk: Desk) -> None:
    old = desk.log.create_topic("t")
    desk.send("t", *numbered(5))
    with desk.log.consumer(["t"], group="g") as consumer:
        consumer.poll()
        consumer.commit()
    desk.log.delete_records("t", 0, 4)
    desk.log.delete_topic("t")
    assert desk.log.committed_offsets("g") == {}
    new = desk.log.create_topic("t")
    assert new.topic_id != old.topic_id and new.partitions[0].end_offset == 0
    desk.send("t", b"new")
    for reopen in (desk.reopen, desk.kill, desk.lose_power):
        reopen()
        with desk.log.consumer(["t"], group="g") as consumer:
            assert [(r.offset, r.value) for r in consumer.poll()] == [(0, b"new")]


def test_deleted_records_stay_deleted(desk: Desk) -> None:
    desk.log.create_topic("t")
    desk.send("t", *numbered(8))
    desk.log.delete_records("t", 0, 5)
    desk.log.delete_records("t", 0, 3)
    for reopen in (desk.upkeep, desk.reopen, desk.kill, desk.lose_power):
        reopen()
        assert desk.log.describe_topic("t").partitions[0].start_offset == 5
        assert desk.values("t") == numbered(8)[5:]
    for outside in (9, -1):
        with pytest.raises(OffsetOutOfRangeError, match=r"is outside t-0 \[5, 8\)"):
            desk.log.delete_records("t", 0, outside)


def test_offsets_are_not_reused_after_deleting_all_records(desk: Desk) -> None:
    desk.log.create_topic("t")
    desk.send("t", *numbered(8))
    desk.log.delete_records("t", 0, 8)
    assert desk.values("t") == []
    for reopen in (desk.kill, desk.reopen, desk.lose_power):
        reopen()
        end = desk.log.describe_topic("t").partitions[0].end_offset
        assert end >= 8
        assert desk.log.producer().send("t", b"next").offset == end


def test_compaction_by_hand_keeps_the_last_value_of_each_key(desk: Desk) -> None:
    desk.log.create_topic("t")
    producer = desk.log.producer()
    for key, value in ((b"a", b"1"), (None, b"2"), (b"b", b"3"), (b"a", b"4"), (b"b", None)):
        producer.send("t", value, key)
    report = desk.log.compact("t")
    assert (report.records_removed, report.records_retained) == (2, 3)
    assert report.bytes_after < report.bytes_before
    for reopen in (desk.upkeep, desk.kill, desk.reopen, desk.lose_power):
        reopen()
        records = drain(desk.log.consumer(["t"]))
        assert [(r.offset, r.key, r.value) for r in records] == [
            (1, None, b"2"),
            (3, b"a", b"4"),
            (4, b"b", None),
        ]
    assert producer_offset(desk) == 5
    assert desk.log.compact("t").records_removed == 0


def producer_offset(desk: Desk) -> int:
    return desk.log.producer().send("t", b"x").offset


def test_tombstones_are_removed_after_delete_retention_ms(desk: Desk) -> None:
    desk.log.create_topic("t", config={"delete.retention.ms": "1h"})
    producer = desk.log.producer()
    producer.send("t", b"1", b"k")
    producer.send("t", None, b"k")
    desk.log.compact("t")
    assert desk.values("t") == [None]
    desk.clock.advance(3_600_001)
    desk.log.compact("t")
    assert desk.values("t") == []
    assert producer.send("t", b"2", b"k").offset == 2


def test_retention_by_hand(desk: Desk) -> None:
    desk.log.create_topic("t", config={"segment.bytes": 1024, "retention.ms": "1h"})
    desk.send("t", *(bytes(300) for _ in range(8)))
    desk.clock.advance(1_800_000)
    desk.send("t", *(bytes(300) for _ in range(3)))
    assert desk.log.enforce_retention("t") == 0
    desk.clock.advance(1_800_001)
    assert desk.log.enforce_retention("t") == 8
    assert desk.log.describe_topic("t").partitions[0].start_offset == 8
    desk.clock.advance(3_600_000)
    assert desk.log.enforce_retention("t") == 3
    for reopen in (desk.kill, desk.reopen):
        reopen()
        assert desk.values("t") == []
        assert desk.log.describe_topic("t").partitions[0].end_offset == 11


def test_offsets_from_outside_are_checked(desk: Desk) -> None:
    desk.log.create_topic("t")
    with pytest.raises(DataError, match="-1 is not an offset of t-0; offsets start at 0"):
        desk.log.commit_offsets("g", {TopicPartition("t", 0): -1})
    with pytest.raises(TopicNotFoundError):
        desk.log.commit_offsets("g", {TopicPartition("t", 1): 0})
    desk.log.commit_offsets("g", {("t", 0): 0})  # type: ignore[dict-item]
    assert desk.log.committed_offsets("g").keys() == {TopicPartition("t", 0)}


# -- opening and closing -----------------------------------------------------------------------


def test_a_folder_has_one_owner_in_a_process(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with strandlog.open(path) as log:
        assert log.path == str(path)
        with pytest.raises(AlreadyOpenError, match=r"close the owner, or use strandlog.read\("):
            strandlog.open(path)
        log.create_topic("t")
    with strandlog.open(path) as log:
        assert log.topics() == ["t"]


OWN_IT = """
import sys, strandlog
log = strandlog.open(sys.argv[1])
print("owned", flush=True)
sys.stdin.readline()
"""


def test_a_folder_has_one_owner_among_processes(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with subprocess.Popen(
        [sys.executable, "-c", OWN_IT, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "owned\n"
        with pytest.raises(AlreadyOpenError, match="is owned by another process"):
            strandlog.open(path)
        assert strandlog.read(path).topics() == []
        owner.kill()
    with strandlog.open(path) as log:
        assert log.topics() == []


def test_a_folder_with_other_files_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "diary.txt").write_text("precious")
    for call in (strandlog.open, strandlog.read):
        with pytest.raises(UnknownLayoutError, match="is not a strandlog folder: it holds 'diary"):
            call(tmp_path)
    with pytest.raises(UnknownLayoutError):
        strandlog.open(tmp_path / "diary.txt")
    with pytest.raises(UnknownLayoutError, match="there is no such folder"):
        strandlog.read(tmp_path / "nowhere")
    assert [path.name for path in tmp_path.iterdir()] == ["diary.txt"]


def test_a_relative_path_stays_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with strandlog.open("data") as log:
        monkeypatch.chdir("/")
        log.create_topic("t")
    assert (tmp_path / "data" / "t-0").is_dir()


def test_a_closed_log_raises(desk: Desk) -> None:
    desk.log.create_topic("t")
    log = desk.log
    calls = topic_calls(desk, "t")
    log.close()
    log.close()
    more: list[Callable[[], object]] = [
        *calls,
        log.topics,
        log.groups,
        log.producer,
        log.consumer,
        log.flush,
        log.run_maintenance,
        lambda: log.create_topic("u"),
        lambda: log.describe_group("g"),
        lambda: log.committed_offsets("g"),
        lambda: log.delete_group("g"),
    ]
    for call in more:
        with pytest.raises(ClosedError, match="this log is closed; open a new one"):
            call()


def test_a_log_that_fails_to_close_releases_the_folder(desk: Desk) -> None:
    desk.log.create_topic("t")
    desk.log.producer(acks=0).send("t", b"x")
    desk.disk.fail_on("sync", "/t-0/")
    with pytest.raises(StrandlogError):
        desk.log.close()
    assert desk.log.topics() == ["t"]


def test_a_closed_folder_has_no_problems(desk: Desk) -> None:
    desk.log.create_topic("t")
    desk.send("t", *numbered(3))
    assert desk.reopen().problems == []
    desk.kill()
    assert desk.log.problems == []


def test_a_torn_tail_is_cut_and_reported(desk: Desk) -> None:
    desk.log.create_topic("t")
    desk.send("t", *numbered(3))
    desk.disk.append_to(f"data/t-0/{0:020d}.log", b"half a bat")
    desk.kill()
    assert desk.log.problems == ["t-0: a torn tail of 10 bytes was cut off"]
    assert desk.values("t") == numbered(3)
    assert desk.log.producer().send("t", b"next").offset == 3


def test_topic_settings_survive_a_restart(desk: Desk) -> None:
    config = {"segment.bytes": 1024, "compression.type": "zstd", "retention.ms": "1h"}
    desk.log.create_topic("t", config=config)
    desk.kill()
    assert desk.log.describe_topic("t").config == {
        "segment.bytes": 1024,
        "compression.type": "zstd",
        "retention.ms": 3_600_000,
    }
    desk.send("t", *(bytes(1500) for _ in range(30)))
    (info,) = desk.log.describe_topic("t").partitions
    assert info.segments > 1 and info.size_bytes < 30 * 200


def test_topic_settings_default_to_broker_settings(tmp_path: Path) -> None:
    with strandlog.open(tmp_path / "data", {"log.retention.ms": 1_234_000}) as log:
        log.create_topic("t", config={"segment.bytes": "1MiB"})
        settings = log.topic_settings("t")
        assert (settings["retention.ms"], settings["segment.bytes"]) == (1_234_000, 1_048_576)
        assert log.describe_topic("t").config == {"segment.bytes": 1_048_576}
