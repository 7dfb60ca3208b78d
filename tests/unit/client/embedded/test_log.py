"""The log as a whole: topics, opening and closing, compaction and retention by hand."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.embedded_harness import EmbeddedHarness, drain, numbered

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


def test_a_topic_is_created_described_altered_and_deleted(embedded: EmbeddedHarness) -> None:
    made = embedded.log.create_topic("t", partitions=2, config={"retention.ms": "1h"})
    assert made == embedded.log.describe_topic("t")
    assert made.name == "t" and made.config == {"retention.ms": 3_600_000}
    assert [info.partition for info in made.partitions] == [0, 1]
    embedded.send("t", *numbered(3))
    infos = embedded.log.describe_topic("t").partitions
    assert [(info.start_offset, info.end_offset, info.segments) for info in infos] == [
        (0, 2, 1),
        (0, 1, 1),
    ]
    assert infos[0].size_bytes > infos[1].size_bytes > 60
    altered = embedded.log.alter_topic("t", {"retention.ms": None, "flush.ms": 5}, partitions=3)
    assert len(altered.partitions) == 3 and altered.config == {"flush.ms": 5}
    assert altered.topic_id == made.topic_id
    embedded.log.delete_topic("t")
    assert embedded.log.topics() == []


def test_topics_are_listed_by_name_without_internal_ones(embedded: EmbeddedHarness) -> None:
    for name in ("b", "a", "C"):
        embedded.log.create_topic(name)
    with embedded.log.consumer(["a"], group="g") as consumer:
        consumer.commit()
    assert embedded.log.topics() == ["C", "a", "b"]
    assert embedded.log.describe_topic("__consumer_offsets").partitions[0].end_offset > 0


def test_the_number_of_partitions_is_a_setting(embedded: EmbeddedHarness) -> None:
    embedded.settings = {"num.partitions": 3, "max.partitions.per.topic": 5}
    assert len(embedded.log.create_topic("t").partitions) == 3
    for count in (0, -1, 6):
        with pytest.raises(InvalidPartitionsError, match=f"got {count}"):
            embedded.log.create_topic("u", count)
    with pytest.raises(InvalidPartitionsError, match="partition count must be an integer, got '3'"):
        embedded.log.create_topic("u", "3")  # type: ignore[arg-type]
    with pytest.raises(InvalidPartitionsError, match="can only grow"):
        embedded.log.alter_topic("t", partitions=2)
    assert embedded.log.topics() == ["t"]


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
    embedded: EmbeddedHarness, config: dict[str, object], error: type[Exception], message: str
) -> None:
    embedded.log.create_topic("t")
    calls: list[Callable[[], object]] = [
        lambda: embedded.log.create_topic("u", 1, config),
        lambda: embedded.log.alter_topic("t", config),
    ]
    for call in calls:
        with pytest.raises(error, match=message):
            call()
    assert embedded.log.topics() == ["t"] and embedded.log.describe_topic("t").config == {}


def test_broker_settings_are_validated(tmp_path: Path) -> None:
    with pytest.raises(UnknownSettingError, match=r"did you mean 'log.durability'"):
        strandlog.open(tmp_path / "data", {"log.durabilty": "fsync"})
    with pytest.raises(InvalidSettingError, match="one of fsync, page_cache"):
        strandlog.open(tmp_path / "data", {"log.durability": "maybe"})
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("name", ["", "a b", "ä", "..", "x" * 250, None, 5])
def test_invalid_names_are_rejected(embedded: EmbeddedHarness, name: str) -> None:
    for call in (lambda: embedded.log.create_topic(name), lambda: embedded.log.delete_topic(name)):
        with pytest.raises(InvalidTopicError, match="invalid topic name"):
            call()


def test_unknown_topics(embedded: EmbeddedHarness) -> None:
    for call in topic_calls(embedded, "nowhere"):
        with pytest.raises(TopicNotFoundError, match="topic 'nowhere' does not exist; create it"):
            call()
    embedded.log.create_topic("t", 2)
    with pytest.raises(TopicNotFoundError, match="topic 't' has no partition 2; it has 0 to 1"):
        embedded.log.delete_records("t", 2, 0)


def topic_calls(embedded: EmbeddedHarness, name: str) -> list[Callable[[], object]]:
    log = embedded.log
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


def test_creating_an_existing_topic_keeps_its_records(embedded: EmbeddedHarness) -> None:
    made = embedded.log.create_topic("t", 2)
    embedded.send("t", b"kept")
    with pytest.raises(TopicExistsError, match="topic 't' already exists; use it, or"):
        embedded.log.create_topic("t", 5)
    assert embedded.log.describe_topic("t").topic_id == made.topic_id
    assert embedded.values("t") == [b"kept"]


# -- deleting and cleaning by hand -------------------------------------------------------------


def test_a_recreated_topic_starts_at_zero_for_all_consumers(embedded: EmbeddedHarness) -> None:
    old = embedded.log.create_topic("t")
    embedded.send("t", *numbered(5))
    with embedded.log.consumer(["t"], group="g") as consumer:
        consumer.poll()
        consumer.commit()
    embedded.log.delete_records("t", 0, 4)
    embedded.log.delete_topic("t")
    assert embedded.log.committed_offsets("g") == {}
    new = embedded.log.create_topic("t")
    assert new.topic_id != old.topic_id and new.partitions[0].end_offset == 0
    embedded.send("t", b"new")
    for reopen in (embedded.reopen, embedded.kill, embedded.lose_power):
        reopen()
        with embedded.log.consumer(["t"], group="g") as consumer:
            assert [(r.offset, r.value) for r in consumer.poll()] == [(0, b"new")]


def test_deleted_records_stay_deleted(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    embedded.send("t", *numbered(8))
    embedded.log.delete_records("t", 0, 5)
    embedded.log.delete_records("t", 0, 3)
    for reopen in (embedded.run_maintenance, embedded.reopen, embedded.kill, embedded.lose_power):
        reopen()
        assert embedded.log.describe_topic("t").partitions[0].start_offset == 5
        assert embedded.values("t") == numbered(8)[5:]
    for outside in (9, -1):
        with pytest.raises(OffsetOutOfRangeError, match=r"is outside t-0 \[5, 8\)"):
            embedded.log.delete_records("t", 0, outside)


def test_offsets_are_not_reused_after_deleting_all_records(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    embedded.send("t", *numbered(8))
    embedded.log.delete_records("t", 0, 8)
    assert embedded.values("t") == []
    for reopen in (embedded.kill, embedded.reopen, embedded.lose_power):
        reopen()
        end = embedded.log.describe_topic("t").partitions[0].end_offset
        assert end >= 8
        assert embedded.log.producer().send("t", b"next").offset == end


def test_compact_keeps_the_last_value_of_each_key(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    producer = embedded.log.producer()
    for key, value in ((b"a", b"1"), (None, b"2"), (b"b", b"3"), (b"a", b"4"), (b"b", None)):
        producer.send("t", value, key)
    report = embedded.log.compact("t")
    assert (report.records_removed, report.records_retained) == (2, 3)
    assert report.bytes_after < report.bytes_before
    for reopen in (embedded.run_maintenance, embedded.kill, embedded.reopen, embedded.lose_power):
        reopen()
        records = drain(embedded.log.consumer(["t"]))
        assert [(r.offset, r.key, r.value) for r in records] == [
            (1, None, b"2"),
            (3, b"a", b"4"),
            (4, b"b", None),
        ]
    assert producer_offset(embedded) == 5
    assert embedded.log.compact("t").records_removed == 0


def producer_offset(embedded: EmbeddedHarness) -> int:
    return embedded.log.producer().send("t", b"x").offset


def test_tombstones_are_removed_after_delete_retention_ms(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", config={"delete.retention.ms": "1h"})
    producer = embedded.log.producer()
    producer.send("t", b"1", b"k")
    producer.send("t", None, b"k")
    embedded.log.compact("t")
    assert embedded.values("t") == [None]
    embedded.clock.advance(3_600_001)
    embedded.log.compact("t")
    assert embedded.values("t") == []
    assert producer.send("t", b"2", b"k").offset == 2


def test_enforce_retention_deletes_segments_older_than_retention_ms(
    embedded: EmbeddedHarness,
) -> None:
    embedded.log.create_topic("t", config={"segment.bytes": 1024, "retention.ms": "1h"})
    embedded.send("t", *(bytes(300) for _ in range(8)))
    embedded.clock.advance(1_800_000)
    embedded.send("t", *(bytes(300) for _ in range(3)))
    assert embedded.log.enforce_retention("t") == 0
    embedded.clock.advance(1_800_001)
    assert embedded.log.enforce_retention("t") == 8
    assert embedded.log.describe_topic("t").partitions[0].start_offset == 8
    embedded.clock.advance(3_600_000)
    assert embedded.log.enforce_retention("t") == 3
    for reopen in (embedded.kill, embedded.reopen):
        reopen()
        assert embedded.values("t") == []
        assert embedded.log.describe_topic("t").partitions[0].end_offset == 11


def test_commit_offsets_checks_its_offsets_and_partitions(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    with pytest.raises(DataError, match="-1 is not an offset of t-0; offsets start at 0"):
        embedded.log.commit_offsets("g", {TopicPartition("t", 0): -1})
    with pytest.raises(TopicNotFoundError):
        embedded.log.commit_offsets("g", {TopicPartition("t", 1): 0})
    embedded.log.commit_offsets("g", {("t", 0): 0})  # type: ignore[dict-item]
    assert embedded.log.committed_offsets("g").keys() == {TopicPartition("t", 0)}


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


def test_a_closed_log_raises(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    log = embedded.log
    calls = topic_calls(embedded, "t")
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


def test_a_log_that_fails_to_close_releases_the_folder(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    embedded.log.producer(acks=0).send("t", b"x")
    embedded.disk.fail_on("sync", "/t-0/")
    with pytest.raises(StrandlogError):
        embedded.log.close()
    assert embedded.log.topics() == ["t"]


def test_a_closed_folder_has_no_problems(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    embedded.send("t", *numbered(3))
    assert embedded.reopen().problems == []
    embedded.kill()
    assert embedded.log.problems == []


def test_a_torn_tail_is_cut_and_reported(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    embedded.send("t", *numbered(3))
    embedded.disk.append_to(f"data/t-0/{0:020d}.log", b"half a bat")
    embedded.kill()
    assert embedded.log.problems == ["t-0: a torn tail of 10 bytes was cut off"]
    assert embedded.values("t") == numbered(3)
    assert embedded.log.producer().send("t", b"next").offset == 3


def test_topic_settings_survive_a_restart(embedded: EmbeddedHarness) -> None:
    config = {"segment.bytes": 1024, "compression.type": "zstd", "retention.ms": "1h"}
    embedded.log.create_topic("t", config=config)
    embedded.kill()
    assert embedded.log.describe_topic("t").config == {
        "segment.bytes": 1024,
        "compression.type": "zstd",
        "retention.ms": 3_600_000,
    }
    embedded.send("t", *(bytes(1500) for _ in range(30)))
    (info,) = embedded.log.describe_topic("t").partitions
    assert info.segments > 1 and info.size_bytes < 30 * 200


def test_topic_settings_default_to_broker_settings(tmp_path: Path) -> None:
    with strandlog.open(tmp_path / "data", {"log.retention.ms": 1_234_000}) as log:
        log.create_topic("t", config={"segment.bytes": "1MiB"})
        settings = log.topic_settings("t")
        assert (settings["retention.ms"], settings["segment.bytes"]) == (1_234_000, 1_048_576)
        assert log.describe_topic("t").config == {"segment.bytes": 1_048_576}
