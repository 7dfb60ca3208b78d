"""The topic catalog on a disk that loses power, rejects writes and flips bits."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from uuid import UUID

import pytest

from strandlog.broker.topics.catalog import TopicCatalog
from strandlog.config.tables.broker import BrokerSettings, broker_settings
from strandlog.config.tables.topic import log_settings
from strandlog.errors import (
    InvalidPartitionsError,
    InvalidSettingError,
    StorageError,
    TopicExistsError,
    TopicNotFoundError,
    UnknownSettingError,
)
from strandlog.model import TopicPartition
from strandlog.record.builder import build_single
from strandlog.storage.folder.log_dir import LogDir
from strandlog.storage.work import run_inline
from strandlog.testing import FakeClock, PowerCut, SimulatedFiles
from strandlog.testing.disk.faults import Operation

TOPICS_FILE = "data/topics.json"


class CatalogHarness:
    """A catalog over a simulated disk."""

    def __init__(
        self, disk: SimulatedFiles | None = None, settings: BrokerSettings | None = None
    ) -> None:
        self.disk = disk or SimulatedFiles()
        self.clock = FakeClock()
        self._ids = itertools.count(len(self.disk.contents()) * 1_000 + 1)
        self.log_dir = LogDir("data", self.disk, self.clock, self._new_uuid)
        self.catalog = TopicCatalog(self.log_dir, settings or broker_settings(), self._new_uuid)

    def _new_uuid(self) -> UUID:
        return UUID(int=next(self._ids))

    def reopened(self) -> CatalogHarness:
        self.log_dir.close()
        return CatalogHarness(self.disk)

    def killed(self) -> CatalogHarness:
        return CatalogHarness(self.disk.after_kill())

    def append(self, topic: str, value: bytes = b"v", partition: int = 0) -> None:
        log = self.catalog.log(topic, partition)
        log.append(build_single(self.clock.now_ms(), value))
        log.flush()

    def ends(self) -> dict[str, list[int]]:
        """The log end offsets of every topic."""
        return {
            name: [log.log_end_offset for log in self.catalog.logs(name)]
            for name in self.catalog.names()
        }


@pytest.fixture
def harness() -> CatalogHarness:
    return CatalogHarness()


def test_topics_and_their_settings_survive_a_restart(harness: CatalogHarness) -> None:
    run_inline(
        harness.catalog.create("a", 3, {"retention.ms": "7d", "cleanup.policy": "compact,delete"})
    )
    run_inline(harness.catalog.create("b"))
    harness.append("a", partition=2)
    before = [harness.catalog.topic(name) for name in harness.catalog.names()]
    for again in (harness.killed(), harness.reopened()):
        assert [again.catalog.topic(name) for name in again.catalog.names()] == before
        assert again.ends() == {"a": [0, 0, 1], "b": [0]}
        assert again.catalog.log("a", 0).settings.retention_ms == 7 * 86_400_000
        assert again.log_dir.problems == []


def test_names_that_contain_each_other_keep_their_own_partitions(harness: CatalogHarness) -> None:
    counts = {"a": 2, "a-1": 3, "a-1-0": 1, "a_b": 4, "a.b": 1, "a-0": 2, "0": 2}
    for name, count in counts.items():
        run_inline(harness.catalog.create(name, count))
        harness.append(name, name.encode())
    for again in (harness.killed(), harness.reopened()):
        assert {name: len(ends) for name, ends in again.ends().items()} == counts
        assert all(ends[0] == 1 and not any(ends[1:]) for ends in again.ends().values())


def test_creating_an_existing_topic_raises_topic_exists_error(harness: CatalogHarness) -> None:
    run_inline(harness.catalog.create("t", 2))
    harness.append("t")
    with pytest.raises(TopicExistsError, match="topic 't' already exists; use it, or"):
        run_inline(harness.catalog.create("t", 1))
    assert harness.ends() == {"t": [1, 0]}


def test_unknown_topics_and_partitions(harness: CatalogHarness) -> None:
    run_inline(harness.catalog.create("t", 2))
    for call in (
        lambda: harness.catalog.topic("u"),
        lambda: harness.catalog.logs("u"),
        lambda: harness.catalog.log("u", 0),
        lambda: run_inline(harness.catalog.alter("u", {})),
        lambda: run_inline(harness.catalog.add_partitions("u", 5)),
        lambda: run_inline(harness.catalog.delete("u")),
    ):
        with pytest.raises(TopicNotFoundError, match="topic 'u' does not exist; create it first"):
            call()
    for partition in (2, -1):
        with pytest.raises(TopicNotFoundError, match="it has 0 to 1"):
            harness.catalog.log("t", partition)


def test_partitions_can_be_added_but_not_removed(harness: CatalogHarness) -> None:
    run_inline(harness.catalog.create("t", 2))
    harness.append("t", partition=1)
    run_inline(harness.catalog.create("one", 1))
    with pytest.raises(InvalidPartitionsError, match="has 1 partition; the number can only grow"):
        run_inline(harness.catalog.add_partitions("one", 1))
    run_inline(harness.catalog.delete("one"))
    assert run_inline(harness.catalog.add_partitions("t", 4)).partitions == 4
    assert harness.killed().ends() == {"t": [0, 1, 0, 0]}
    for count in (4, 1):
        with pytest.raises(
            InvalidPartitionsError, match="has 4 partitions; the number can only grow"
        ):
            run_inline(harness.catalog.add_partitions("t", count))
    with pytest.raises(InvalidPartitionsError, match="between 1 and 10000"):
        run_inline(harness.catalog.add_partitions("t", 10_001))


def test_settings_can_be_changed_and_reset(harness: CatalogHarness) -> None:
    run_inline(harness.catalog.create("t", config={"retention.ms": 5}))
    run_inline(harness.catalog.alter("t", {"retention.ms": None, "segment.bytes": "1MiB"}))
    assert harness.catalog.topic("t").config == {"segment.bytes": 1 << 20}
    assert harness.catalog.log("t", 0).settings.segment_bytes == 1 << 20
    with pytest.raises(UnknownSettingError, match=r"did you mean 'retention.ms'"):
        run_inline(harness.catalog.alter("t", {"retention.m": 5}))
    with pytest.raises(UnknownSettingError):
        run_inline(harness.catalog.alter("t", {"nonsense": None}))
    with pytest.raises(InvalidSettingError, match="at least 1024"):
        run_inline(harness.catalog.alter("t", {"retention.ms": 1, "segment.bytes": 1}))
    assert harness.killed().catalog.topic("t").config == {"segment.bytes": 1 << 20}


def test_a_recreated_topic_has_a_new_id_and_no_records(harness: CatalogHarness) -> None:
    old = run_inline(harness.catalog.create("t", 3))
    harness.append("t")
    run_inline(harness.catalog.delete("t"))
    assert harness.catalog.names() == [] and "t" not in harness.catalog
    new = run_inline(harness.catalog.create("t", 1))
    assert new.topic_id != old.topic_id
    assert harness.ends() == harness.killed().ends() == harness.reopened().ends() == {"t": [0]}


def test_a_topic_with_the_longest_name_can_be_created_and_deleted(harness: CatalogHarness) -> None:
    name = "x" * 249
    run_inline(harness.catalog.create(name, 11))
    run_inline(harness.catalog.delete(name))
    assert harness.catalog.names() == harness.reopened().catalog.names() == []


def changes(harness: CatalogHarness) -> dict[str, Callable[[], object]]:
    return {
        "create": lambda: run_inline(harness.catalog.create("new", 2)),
        "grow": lambda: run_inline(harness.catalog.add_partitions("t", 3)),
        "alter": lambda: run_inline(harness.catalog.alter("t", {"retention.ms": 1})),
        "delete": lambda: run_inline(harness.catalog.delete("t")),
    }


def prepared(disk: SimulatedFiles | None = None) -> CatalogHarness:
    harness = CatalogHarness(disk)
    run_inline(harness.catalog.create("t", 2))
    harness.append("t", b"kept")
    run_inline(harness.catalog.create("other"))
    harness.append("other", b"kept, too")
    return harness


def state(harness: CatalogHarness) -> dict[str, object]:
    return {
        name: (harness.catalog.topic(name), harness.ends()[name])
        for name in harness.catalog.names()
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["create", "grow", "alter", "delete"])
def test_a_power_cut_at_any_step_leaves_the_old_or_the_new_state(name: str) -> None:
    whole = prepared()
    first = len(whole.disk.trace) + 1
    before = state(whole)
    changes(whole)[name]()
    after = state(whole)
    last = len(whole.disk.trace)
    assert last - first > 3
    for step in range(first, last + 1):
        harness = prepared(SimulatedFiles(crash_at=step, crash_moment="inside"))
        with pytest.raises(PowerCut):
            changes(harness)[name]()
        for choice in harness.disk.crash_states(budget=12):
            disk = harness.disk.after_crash(choice)
            found = state(CatalogHarness(disk))
            ids_aside = name == "create" and found.keys() == after.keys()
            assert ids_aside or found in (before, after), f"{step}: {harness.disk.describe(choice)}"


OPERATIONS: list[Operation] = ["create", "append", "sync", "sync_dir", "rename", "mkdir"]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("name", ["create", "grow", "alter", "delete"])
def test_a_change_that_cannot_be_written_is_rolled_back(name: str, operation: Operation) -> None:
    for skip in range(8):
        harness = prepared()
        before = state(harness)
        harness.disk.fail_on(operation, skip=skip)
        try:
            changes(harness)[name]()
        except StorageError:
            assert state(harness) == before, f"{operation} number {skip}"
            harness.disk.clear_faults()
            for each in (harness.killed(), harness):
                assert state(each) == before
            changes(harness)[name]()  # and nothing is in the way of trying again
        harness.disk.clear_faults()
        expected = state(harness)
        assert expected != before
        assert state(harness.killed()) == expected
        assert state(harness.reopened()) == expected


def test_a_topic_whose_deletion_failed_is_not_deleted_by_a_later_change(
    harness: CatalogHarness,
) -> None:
    run_inline(harness.catalog.create("t"))
    harness.disk.fail_on("append", "topics.json")
    with pytest.raises(StorageError):
        run_inline(harness.catalog.delete("t"))
    harness.append("t", b"written after the failure")
    run_inline(harness.catalog.create("another"))
    assert harness.killed().ends() == {"t": [1], "another": [0]}


def test_folders_that_could_not_be_removed_are_removed_when_the_topic_is_recreated(
    harness: CatalogHarness,
) -> None:
    run_inline(harness.catalog.create("t", 2))
    harness.append("t", b"old")
    harness.disk.fail_on("rename", "data/t-", count=2)
    run_inline(harness.catalog.delete("t"))
    assert harness.catalog.names() == []
    assert "files of the deleted topic 't' were not removed" in harness.log_dir.problems[0]
    assert harness.killed().catalog.names() == []
    with pytest.raises(StorageError):
        run_inline(harness.catalog.create("t"))
    run_inline(harness.catalog.create("t"))
    assert harness.ends() == harness.killed().ends() == {"t": [0]}


def test_a_broker_starts_although_the_folders_of_a_deleted_topic_cannot_be_renamed(
    harness: CatalogHarness,
) -> None:
    run_inline(harness.catalog.create("t", 2))
    run_inline(harness.catalog.create("other"))
    harness.append("t", b"deleted")
    harness.append("other", b"kept")
    harness.disk.fail_on("rename", "data/t-")
    run_inline(harness.catalog.delete("t"))
    disk = harness.disk.after_kill()
    for _ in range(2):  # the topic stays deleted across starts
        disk.fail_on("rename", "data/t-", count=100)
        again = CatalogHarness(disk)
        assert again.ends() == {"other": [1]}
        [problem] = again.log_dir.problems
        assert "files of the deleted topic 't' were not removed" in problem
        with pytest.raises(StorageError):
            run_inline(again.catalog.create("t"))
        run_inline(again.catalog.alter("other", {"retention.ms": 1}))
        disk = again.disk.after_kill()
    disk.clear_faults()
    last = CatalogHarness(disk)
    assert (last.ends(), last.log_dir.problems) == ({"other": [1]}, [])
    run_inline(last.catalog.create("t"))
    assert last.killed().ends() == {"other": [1], "t": [0]}


def test_a_new_topic_is_not_mixed_with_a_deleted_one_whose_folders_cannot_be_renamed(
    harness: CatalogHarness,
) -> None:
    run_inline(harness.catalog.create("t", 2))
    harness.append("t", b"deleted", partition=1)
    harness.disk.fail_on("rename", "data/t-", count=2)
    run_inline(harness.catalog.delete("t"))
    new = CatalogHarness()  # has another topic of that name, as a restored backup would
    new._ids = itertools.count(10**6)
    run_inline(new.catalog.create("t"))
    metadata = "data/t-0/partition.metadata"
    disk = harness.disk.after_kill()
    disk.replace(metadata, new.disk.contents()[metadata])
    disk.fail_on("rename", "data/t-1", count=100)
    with pytest.raises(StorageError, match="belongs to a new topic"):
        CatalogHarness(disk)


def test_a_missing_folder_is_recreated_and_reported(harness: CatalogHarness) -> None:
    run_inline(harness.catalog.create("t", 2))
    harness.append("t")
    harness.log_dir.close()
    harness.disk.remove_tree("data/t-0")
    again = CatalogHarness(harness.disk)
    assert again.ends() == {"t": [1, 0]}, "an offset was given out again"
    assert again.log_dir.problems == [
        "the folder of t-0 was missing; an empty one was created; offsets below 1 are lost"
    ]


def test_a_folder_of_no_topic_is_set_aside(harness: CatalogHarness) -> None:
    run_inline(harness.catalog.create("t", 1))
    harness.log_dir.close()
    harness.disk.make_dir("data/t-7")
    harness.disk.append_to("data/t-7/precious", b"x")
    again = CatalogHarness(harness.disk)
    assert "t-7 belongs to no topic and was set aside as" in again.log_dir.problems[0]
    assert [path for path in harness.disk.contents() if path.endswith("-stray/precious")]


def test_a_folder_with_a_wrong_id_gets_the_right_one(harness: CatalogHarness) -> None:
    topic = run_inline(harness.catalog.create("t"))
    harness.append("t")
    harness.log_dir.write_partition_metadata(TopicPartition("t", 0), "someone-else")
    again = harness.reopened()
    assert again.log_dir.problems == ["partition.metadata of t-0 was wrong and was rewritten"]
    assert again.ends() == {"t": [1]}
    assert topic.topic_id.encode() in harness.disk.contents()["data/t-0/partition.metadata"]


def test_a_damaged_catalog_is_read_from_its_copy(harness: CatalogHarness) -> None:
    run_inline(harness.catalog.create("t"))
    run_inline(harness.catalog.alter("t", {"retention.ms": 5}))
    harness.log_dir.close()
    harness.disk.flip_bit(TOPICS_FILE, 80)
    again = CatalogHarness(harness.disk)
    assert again.catalog.topic("t").config == {"retention.ms": 5}
    assert any("topics.json" in problem for problem in again.log_dir.problems)


# -- defaults of the broker ------------------------------------------------------------------------


def test_a_topic_takes_its_own_value_then_the_brokers_then_the_built_in_one() -> None:
    harness = CatalogHarness(
        settings=broker_settings({"log.retention.ms": 1000, "log.segment.bytes": 4096})
    )
    run_inline(harness.catalog.create("t", 1, {"retention.ms": 2000}))
    found = harness.catalog.log("t", 0).settings
    built_in = log_settings()
    assert (found.retention_ms, found.segment_bytes) == (2000, 4096)
    assert found.segment_ms == built_in.segment_ms
    run_inline(harness.catalog.alter("t", {"retention.ms": None}))
    assert harness.catalog.log("t", 0).settings.retention_ms == 1000


def test_defaults_of_the_broker_are_not_written_into_topics() -> None:
    harness = CatalogHarness(settings=broker_settings({"log.retention.ms": 1000}))
    run_inline(harness.catalog.create("t", 1))
    again = harness.reopened()  # with a broker that says nothing
    assert again.catalog.topic("t").config == {}
    assert again.catalog.log("t", 0).settings == log_settings()


# -- in steps ------------------------------------------------------------------------------------


def test_a_topic_whose_creation_is_in_progress_is_not_created_twice(
    harness: CatalogHarness,
) -> None:
    steps = harness.catalog.create("t", 2)
    clear_checkpoints = next(steps)
    assert harness.catalog.is_in_progress("t")
    assert "t" not in harness.catalog
    with pytest.raises(TopicExistsError):
        run_inline(harness.catalog.create("t", 1))
    run_inline(harness.catalog.create("other", 1))
    clear_checkpoints()
    for part in steps:
        part()
    assert not harness.catalog.is_in_progress("t")
    assert harness.ends() == {"other": [0], "t": [0, 0]}
    assert harness.reopened().ends() == {"other": [0], "t": [0, 0]}


def test_checkpoints_written_while_a_topic_is_recreated_do_not_hide_its_records(
    harness: CatalogHarness,
) -> None:
    """The old topic's log start came back as that of the new one."""
    run_inline(harness.catalog.create("t", 1))
    for _ in range(5):
        harness.append("t")
    harness.catalog.log("t", 0).raise_log_start(4)
    run_inline(harness.log_dir.write_checkpoints())
    run_inline(harness.catalog.delete("t"))
    for part in harness.catalog.create("t", 1):
        write = next(harness.log_dir.write_log_starts(), None)  # with what is known before it
        part()
        if write is not None:
            write()
    harness.append("t")
    again = harness.killed()
    assert again.catalog.log("t", 0).log_start_offset == 0
    assert again.ends() == {"t": [1]}


def test_a_failed_creation_leaves_nothing_behind(harness: CatalogHarness) -> None:
    steps = harness.catalog.create("t", 2)
    for _ in range(3):
        next(steps)()
    with pytest.raises(StorageError):
        steps.throw(StorageError("the last sync failed"))
    assert "t" not in harness.catalog
    assert not harness.catalog.is_in_progress("t")
    assert not harness.log_dir.logs
    run_inline(harness.catalog.create("t", 1))
    assert harness.reopened().ends() == {"t": [0]}


def test_a_deleted_topic_is_gone_before_its_folders_are(harness: CatalogHarness) -> None:
    run_inline(harness.catalog.create("t", 2))
    harness.append("t")
    steps = harness.catalog.delete("t")
    write = next(steps)
    assert "t" in harness.catalog, "until that is on disk"
    write()
    rename = next(steps)
    assert "t" not in harness.catalog
    assert not harness.log_dir.logs
    assert harness.killed().ends() == {}, "a crash before the folders went"
    rename()
    for step in steps:
        step()
    assert harness.reopened().ends() == {}


def test_work_that_is_stopped_after_the_catalog_was_written_leaves_the_topic(
    harness: CatalogHarness,
) -> None:
    """A server whose drain time is over closes the work of requests between two steps."""
    steps = harness.catalog.create("t", 2)
    before = harness.disk.contents()[TOPICS_FILE]
    while harness.disk.contents()[TOPICS_FILE] == before:
        next(steps)()
    steps.close()
    assert harness.ends() == {"t": [0, 0]}
    assert harness.reopened().ends() == {"t": [0, 0]}


def test_a_topic_change_fails_while_another_one_writes_the_catalog(harness: CatalogHarness) -> None:
    run_inline(harness.catalog.create("t", 1))
    alter = harness.catalog.alter("t", {"retention.ms": 1})
    write = next(alter)
    with pytest.raises(StorageError, match="try again"):
        run_inline(harness.catalog.create("other", 1))
    assert list(harness.log_dir.logs) == [TopicPartition("t", 0)]
    write()
    assert next(alter, None) is None
    run_inline(harness.catalog.create("other", 1))
    assert harness.reopened().ends() == {"other": [0], "t": [0]}
