"""Topics on a disk that stops, refuses and rots: what is there afterwards."""

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


class Shelf:
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

    def reopened(self) -> Shelf:
        self.log_dir.close()
        return Shelf(self.disk)

    def killed(self) -> Shelf:
        return Shelf(self.disk.after_kill())

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
def shelf() -> Shelf:
    return Shelf()


def test_topics_with_their_settings_are_there_after_a_restart(shelf: Shelf) -> None:
    run_inline(
        shelf.catalog.create("a", 3, {"retention.ms": "7d", "cleanup.policy": "compact,delete"})
    )
    run_inline(shelf.catalog.create("b"))
    shelf.append("a", partition=2)
    before = [shelf.catalog.topic(name) for name in shelf.catalog.names()]
    for again in (shelf.killed(), shelf.reopened()):
        assert [again.catalog.topic(name) for name in again.catalog.names()] == before
        assert again.ends() == {"a": [0, 0, 1], "b": [0]}
        assert again.catalog.log("a", 0).settings.retention_ms == 7 * 86_400_000
        assert again.log_dir.problems == []


def test_names_that_contain_each_other_keep_their_own_partitions(shelf: Shelf) -> None:
    counts = {"a": 2, "a-1": 3, "a-1-0": 1, "a_b": 4, "a.b": 1, "a-0": 2, "0": 2}
    for name, count in counts.items():
        run_inline(shelf.catalog.create(name, count))
        shelf.append(name, name.encode())
    for again in (shelf.killed(), shelf.reopened()):
        assert {name: len(ends) for name, ends in again.ends().items()} == counts
        assert all(ends[0] == 1 and not any(ends[1:]) for ends in again.ends().values())


def test_a_topic_is_made_once(shelf: Shelf) -> None:
    run_inline(shelf.catalog.create("t", 2))
    shelf.append("t")
    with pytest.raises(TopicExistsError, match="topic 't' already exists; use it, or"):
        run_inline(shelf.catalog.create("t", 1))
    assert shelf.ends() == {"t": [1, 0]}


def test_unknown_topics_and_partitions(shelf: Shelf) -> None:
    run_inline(shelf.catalog.create("t", 2))
    for call in (
        lambda: shelf.catalog.topic("u"),
        lambda: shelf.catalog.logs("u"),
        lambda: shelf.catalog.log("u", 0),
        lambda: run_inline(shelf.catalog.alter("u", {})),
        lambda: run_inline(shelf.catalog.add_partitions("u", 5)),
        lambda: run_inline(shelf.catalog.delete("u")),
    ):
        with pytest.raises(TopicNotFoundError, match="topic 'u' does not exist; create it first"):
            call()
    for partition in (2, -1):
        with pytest.raises(TopicNotFoundError, match="it has 0 to 1"):
            shelf.catalog.log("t", partition)


def test_a_topic_grows_and_never_shrinks(shelf: Shelf) -> None:
    run_inline(shelf.catalog.create("t", 2))
    shelf.append("t", partition=1)
    assert run_inline(shelf.catalog.add_partitions("t", 4)).partitions == 4
    assert shelf.killed().ends() == {"t": [0, 1, 0, 0]}
    for count in (4, 1):
        with pytest.raises(
            InvalidPartitionsError, match="has 4 partitions; the number can only grow"
        ):
            run_inline(shelf.catalog.add_partitions("t", count))
    with pytest.raises(InvalidPartitionsError, match="between 1 and 10000"):
        run_inline(shelf.catalog.add_partitions("t", 10_001))


def test_settings_are_changed_and_taken_back(shelf: Shelf) -> None:
    run_inline(shelf.catalog.create("t", config={"retention.ms": 5}))
    run_inline(shelf.catalog.alter("t", {"retention.ms": None, "segment.bytes": "1MiB"}))
    assert shelf.catalog.topic("t").config == {"segment.bytes": 1 << 20}
    assert shelf.catalog.log("t", 0).settings.segment_bytes == 1 << 20
    with pytest.raises(UnknownSettingError, match=r"did you mean 'retention.ms'"):
        run_inline(shelf.catalog.alter("t", {"retention.m": 5}))
    with pytest.raises(UnknownSettingError):
        run_inline(shelf.catalog.alter("t", {"nonsense": None}))
    with pytest.raises(InvalidSettingError, match="at least 1024"):
        run_inline(shelf.catalog.alter("t", {"retention.ms": 1, "segment.bytes": 1}))
    assert shelf.killed().catalog.topic("t").config == {"segment.bytes": 1 << 20}


def test_a_topic_made_anew_is_another_one(shelf: Shelf) -> None:
    old = run_inline(shelf.catalog.create("t", 3))
    shelf.append("t")
    run_inline(shelf.catalog.delete("t"))
    assert shelf.catalog.names() == [] and "t" not in shelf.catalog
    new = run_inline(shelf.catalog.create("t", 1))
    assert new.topic_id != old.topic_id
    assert shelf.ends() == shelf.killed().ends() == shelf.reopened().ends() == {"t": [0]}


def test_the_longest_name_can_be_made_and_deleted(shelf: Shelf) -> None:
    name = "x" * 249
    run_inline(shelf.catalog.create(name, 11))
    run_inline(shelf.catalog.delete(name))
    assert shelf.catalog.names() == shelf.reopened().catalog.names() == []


def changes(shelf: Shelf) -> dict[str, Callable[[], object]]:
    return {
        "create": lambda: run_inline(shelf.catalog.create("new", 2)),
        "grow": lambda: run_inline(shelf.catalog.add_partitions("t", 3)),
        "alter": lambda: run_inline(shelf.catalog.alter("t", {"retention.ms": 1})),
        "delete": lambda: run_inline(shelf.catalog.delete("t")),
    }


def prepared(disk: SimulatedFiles | None = None) -> Shelf:
    shelf = Shelf(disk)
    run_inline(shelf.catalog.create("t", 2))
    shelf.append("t", b"kept")
    run_inline(shelf.catalog.create("other"))
    shelf.append("other", b"kept, too")
    return shelf


def state(shelf: Shelf) -> dict[str, object]:
    return {name: (shelf.catalog.topic(name), shelf.ends()[name]) for name in shelf.catalog.names()}


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
        shelf = prepared(SimulatedFiles(crash_at=step, crash_moment="inside"))
        with pytest.raises(PowerCut):
            changes(shelf)[name]()
        for choice in shelf.disk.crash_states(budget=12):
            disk = shelf.disk.after_crash(choice)
            found = state(Shelf(disk))
            ids_aside = name == "create" and found.keys() == after.keys()
            assert ids_aside or found in (before, after), f"{step}: {shelf.disk.describe(choice)}"


OPERATIONS: list[Operation] = ["create", "append", "sync", "sync_dir", "rename", "mkdir"]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("name", ["create", "grow", "alter", "delete"])
def test_a_change_that_the_disk_refuses_has_not_happened(name: str, operation: Operation) -> None:
    for skip in range(8):
        shelf = prepared()
        before = state(shelf)
        shelf.disk.fail_on(operation, skip=skip)
        try:
            changes(shelf)[name]()
        except StorageError:
            assert state(shelf) == before, f"{operation} number {skip}"
            shelf.disk.clear_faults()
            for each in (shelf.killed(), shelf):
                assert state(each) == before
            changes(shelf)[name]()  # and nothing is in the way of trying again
        shelf.disk.clear_faults()
        expected = state(shelf)
        assert expected != before
        assert state(shelf.killed()) == expected
        assert state(shelf.reopened()) == expected


def test_a_topic_whose_deletion_failed_is_not_deleted_by_a_later_change(shelf: Shelf) -> None:
    run_inline(shelf.catalog.create("t"))
    shelf.disk.fail_on("append", "topics.json")
    with pytest.raises(StorageError):
        run_inline(shelf.catalog.delete("t"))
    shelf.append("t", b"written after the failure")
    run_inline(shelf.catalog.create("another"))
    assert shelf.killed().ends() == {"t": [1], "another": [0]}


def test_folders_that_do_not_go_are_tried_again(shelf: Shelf) -> None:
    run_inline(shelf.catalog.create("t", 2))
    shelf.append("t", b"old")
    shelf.disk.fail_on("rename", "data/t-", count=2)
    run_inline(shelf.catalog.delete("t"))
    assert shelf.catalog.names() == []
    assert "files of the deleted topic 't' stay" in shelf.log_dir.problems[0]
    assert shelf.killed().catalog.names() == []
    with pytest.raises(StorageError):
        run_inline(shelf.catalog.create("t"))
    run_inline(shelf.catalog.create("t"))
    assert shelf.ends() == shelf.killed().ends() == {"t": [0]}


def test_a_folder_that_is_gone_is_made_anew_and_reported(shelf: Shelf) -> None:
    run_inline(shelf.catalog.create("t", 2))
    shelf.append("t")
    shelf.log_dir.close()
    shelf.disk.remove_tree("data/t-0")
    again = Shelf(shelf.disk)
    assert again.ends() == {"t": [1, 0]}, "an offset was given out again"
    assert again.log_dir.problems == [
        "the folder of t-0 was missing; an empty one was created; offsets below 1 are lost"
    ]


def test_a_folder_that_no_topic_knows_is_set_aside(shelf: Shelf) -> None:
    run_inline(shelf.catalog.create("t", 1))
    shelf.log_dir.close()
    shelf.disk.make_dir("data/t-7")
    shelf.disk.append_to("data/t-7/precious", b"x")
    again = Shelf(shelf.disk)
    assert "t-7 belongs to no topic and was set aside as" in again.log_dir.problems[0]
    assert [path for path in shelf.disk.contents() if path.endswith("-stray/precious")]


def test_a_folder_with_a_wrong_id_gets_the_right_one(shelf: Shelf) -> None:
    topic = run_inline(shelf.catalog.create("t"))
    shelf.append("t")
    shelf.log_dir.write_partition_metadata(TopicPartition("t", 0), "someone-else")
    again = shelf.reopened()
    assert again.log_dir.problems == ["partition.metadata of t-0 was wrong and was rewritten"]
    assert again.ends() == {"t": [1]}
    assert topic.topic_id.encode() in shelf.disk.contents()["data/t-0/partition.metadata"]


def test_a_damaged_catalog_has_a_copy_that_says_the_same(shelf: Shelf) -> None:
    run_inline(shelf.catalog.create("t"))
    run_inline(shelf.catalog.alter("t", {"retention.ms": 5}))
    shelf.log_dir.close()
    shelf.disk.flip_bit(TOPICS_FILE, 80)
    again = Shelf(shelf.disk)
    assert again.catalog.topic("t").config == {"retention.ms": 5}
    assert any("topics.json" in problem for problem in again.log_dir.problems)


# -- defaults of the broker ------------------------------------------------------------------------


def test_a_topic_takes_its_own_value_then_the_brokers_then_the_built_in_one() -> None:
    shelf = Shelf(settings=broker_settings({"log.retention.ms": 1000, "log.segment.bytes": 4096}))
    run_inline(shelf.catalog.create("t", 1, {"retention.ms": 2000}))
    found = shelf.catalog.log("t", 0).settings
    built_in = log_settings()
    assert (found.retention_ms, found.segment_bytes) == (2000, 4096)
    assert found.segment_ms == built_in.segment_ms
    run_inline(shelf.catalog.alter("t", {"retention.ms": None}))
    assert shelf.catalog.log("t", 0).settings.retention_ms == 1000


def test_defaults_of_the_broker_are_not_written_into_topics() -> None:
    shelf = Shelf(settings=broker_settings({"log.retention.ms": 1000}))
    run_inline(shelf.catalog.create("t", 1))
    again = shelf.reopened()  # with a broker that says nothing
    assert again.catalog.topic("t").config == {}
    assert again.catalog.log("t", 0).settings == log_settings()


# -- in steps ------------------------------------------------------------------------------------


def test_a_topic_that_is_being_made_is_not_made_twice(shelf: Shelf) -> None:
    steps = shelf.catalog.create("t", 2)
    clear_checkpoints = next(steps)
    assert shelf.catalog.is_in_progress("t")
    assert "t" not in shelf.catalog
    with pytest.raises(TopicExistsError):
        run_inline(shelf.catalog.create("t", 1))
    run_inline(shelf.catalog.create("other", 1))
    clear_checkpoints()
    for part in steps:
        part()
    assert not shelf.catalog.is_in_progress("t")
    assert shelf.ends() == {"other": [0], "t": [0, 0]}
    assert shelf.reopened().ends() == {"other": [0], "t": [0, 0]}


def test_checkpoints_written_while_a_topic_is_made_again_do_not_hide_its_records(
    shelf: Shelf,
) -> None:
    """The old topic's log start came back as that of the new one."""
    run_inline(shelf.catalog.create("t", 1))
    for _ in range(5):
        shelf.append("t")
    shelf.catalog.log("t", 0).raise_log_start(4)
    run_inline(shelf.log_dir.write_checkpoints())
    run_inline(shelf.catalog.delete("t"))
    for part in shelf.catalog.create("t", 1):
        write = next(shelf.log_dir.write_log_starts(), None)  # with what is known before it
        part()
        if write is not None:
            write()
    shelf.append("t")
    again = shelf.killed()
    assert again.catalog.log("t", 0).log_start_offset == 0
    assert again.ends() == {"t": [1]}


def test_making_a_topic_that_fails_leaves_nothing_behind(shelf: Shelf) -> None:
    steps = shelf.catalog.create("t", 2)
    for _ in range(3):
        next(steps)()
    with pytest.raises(StorageError):
        steps.throw(StorageError("the last sync failed"))
    assert "t" not in shelf.catalog
    assert not shelf.catalog.is_in_progress("t")
    assert not shelf.log_dir.logs
    run_inline(shelf.catalog.create("t", 1))
    assert shelf.reopened().ends() == {"t": [0]}


def test_a_deleted_topic_is_gone_before_its_folders_are(shelf: Shelf) -> None:
    run_inline(shelf.catalog.create("t", 2))
    shelf.append("t")
    steps = shelf.catalog.delete("t")
    write = next(steps)
    assert "t" in shelf.catalog, "until that is on disk"
    write()
    rename = next(steps)
    assert "t" not in shelf.catalog
    assert not shelf.log_dir.logs
    assert shelf.killed().ends() == {}, "a crash before the folders went"
    rename()
    for step in steps:
        step()
    assert shelf.reopened().ends() == {}


def test_work_that_is_stopped_after_the_catalog_was_written_leaves_the_topic(shelf: Shelf) -> None:
    """A server whose drain time is over closes the work of requests between two steps."""
    steps = shelf.catalog.create("t", 2)
    before = shelf.disk.contents()[TOPICS_FILE]
    while shelf.disk.contents()[TOPICS_FILE] == before:
        next(steps)()
    steps.close()
    assert shelf.ends() == {"t": [0, 0]}
    assert shelf.reopened().ends() == {"t": [0, 0]}


def test_a_topic_change_fails_while_another_one_writes_the_catalog(shelf: Shelf) -> None:
    run_inline(shelf.catalog.create("t", 1))
    alter = shelf.catalog.alter("t", {"retention.ms": 1})
    write = next(alter)
    with pytest.raises(StorageError, match="try again"):
        run_inline(shelf.catalog.create("other", 1))
    assert list(shelf.log_dir.logs) == [TopicPartition("t", 0)]
    write()
    assert next(alter, None) is None
    run_inline(shelf.catalog.create("other", 1))
    assert shelf.reopened().ends() == {"other": [0], "t": [0]}
