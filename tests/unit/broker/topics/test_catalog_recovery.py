"""Recovery of the catalog from folders that were lost, copied or renamed by hand."""

from __future__ import annotations

import itertools
from uuid import UUID

import pytest
from tests.support.log_builders import batch

from strandlog.broker.broker import Broker
from strandlog.broker.context import embedded_context
from strandlog.broker.groups.offsets import commit_records
from strandlog.broker.groups.requests import CommitRequest
from strandlog.broker.transactions.markers import Marker
from strandlog.config.tables.broker import BROKER_SETTINGS, broker_settings
from strandlog.model import OffsetAndMetadata, ProducerIdentity, TopicPartition
from strandlog.record.control import ControlType
from strandlog.storage.folder.log_dir import UNSEEN_OFFSETS
from strandlog.storage.work import run_inline
from strandlog.testing import FakeClock, SimulatedFiles
from strandlog.testing.disk.crash_outcome import CrashChoice

CONTEXT = embedded_context()

CATALOG = ("data/topics.json", "data/topics.json.previous")
LOG_STARTS = ("data/log-start-offset-checkpoint", "data/log-start-offset-checkpoint.previous")


def open_broker(disk: SimulatedFiles) -> Broker:
    ids = itertools.count(len(disk.contents()) * 1000 + 1)
    settings = broker_settings(BROKER_SETTINGS.parse({"offsets.topic.num.partitions": 7}))
    return Broker("data", disk, FakeClock(), lambda: UUID(int=next(ids)), settings)


def append(broker: Broker, topic: str, partition: int = 0, count: int = 1) -> int:
    """Append records, durably; returns the offset of the last."""
    log = broker._catalog.log(topic, partition)
    for _ in range(count):
        offset = broker._appender.append(
            log, batch(b"v", timestamp=broker.clock.now_ms())
        ).base_offset
    log.flush()
    return offset


def move(disk: SimulatedFiles, old: str, new: str, *, copies: bool) -> None:
    disk.make_dir(new)
    for path, data in disk.contents().items():
        if path.startswith(old + "/"):
            disk.replace(path.replace(old, new), data)
    if not copies:
        disk.remove_tree(old)


def strays(disk: SimulatedFiles) -> set[str]:
    return {path.split("/")[1].split(".")[0] for path in disk.contents() if "-stray/" in path}


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("name", ["orders-1", "orders-20261116", "backup-0", "backup-20261116"])
def test_a_copy_of_a_partition_folder_is_not_a_partition(name: str, is_lost: bool) -> None:
    disk = SimulatedFiles()
    broker = open_broker(disk)
    broker.create_topic(CONTEXT, "orders", 1).result()
    append(broker, "orders", count=3)
    broker.close()
    move(disk, "data/orders-0", f"data/{name}", copies=True)
    for path in CATALOG if is_lost else ():
        disk.remove(path)
    again = open_broker(disk)
    assert again._catalog.names() == ["orders"]
    assert [log.log_end_offset for log in again._catalog.logs("orders")] == [3]
    assert strays(disk) == {name}
    assert any(f"{name} belongs to no topic" in problem for problem in again.problems)


def test_a_partition_folder_that_was_renamed_does_not_become_another_partition() -> None:
    disk = SimulatedFiles()
    broker = open_broker(disk)
    broker.create_topic(CONTEXT, "orders", 1).result()
    append(broker, "orders", count=3)
    broker.close()
    move(disk, "data/orders-0", "data/orders-1", copies=False)
    again = open_broker(disk)
    assert again._catalog.topic("orders").partitions == 1
    assert append(again, "orders") == 3, "an offset came again"
    assert strays(disk) == {"orders-1"}


def test_folders_with_swapped_metadata_are_not_treated_as_copies() -> None:
    disk = SimulatedFiles()
    broker = open_broker(disk)
    broker.create_topic(CONTEXT, "orders", 2).result()
    for partition in range(2):
        append(broker, "orders", partition)
    broker.close()
    first, second = (f"data/orders-{n}/partition.metadata" for n in range(2))
    mine, its = disk.read(first), disk.read(second)
    disk.replace(first, its)
    disk.replace(second, mine)
    for path in CATALOG:
        disk.remove(path)
    again = open_broker(disk)
    assert [log.log_end_offset for log in again._catalog.logs("orders")] == [1, 1]
    assert strays(disk) == set()


@pytest.mark.parametrize("how", ["folder", "files", "active file and recovery point"])
def test_offsets_after_the_last_checkpoint_are_not_reused_after_a_crash(how: str) -> None:
    disk = SimulatedFiles()
    broker = open_broker(disk)
    broker.create_topic(CONTEXT, "orders", 1).result()
    append(broker, "orders", count=3)
    broker._catalog.log("orders", 0).roll()
    run_inline(broker._log_dir.write_checkpoints())
    last = append(broker, "orders", count=5)
    crashed = disk.after_kill()
    if how == "folder":
        crashed.remove_tree("data/orders-0")
    else:
        for path in [path for path in crashed.contents() if path.startswith("data/orders-0/")]:
            is_old = path.endswith(("00.log", "segments", "partition.metadata"))
            if how == "files" or not is_old:
                crashed.remove(path)
    for _ in range(2):
        again = open_broker(crashed)
        assert any("orders-0" in problem for problem in again.problems) or _
        offset = append(again, "orders")
        assert last < offset < 2 * UNSEEN_OFFSETS
        last = offset
        again.close()


def test_a_clean_stop_leaves_no_gap_where_a_folder_is_lost() -> None:
    disk = SimulatedFiles()
    broker = open_broker(disk)
    broker.create_topic(CONTEXT, "orders", 1).result()
    append(broker, "orders", count=8)
    broker.close()
    disk.remove_tree("data/orders-0")
    assert append(open_broker(disk), "orders") == 8


def test_internal_topics_keep_their_number_of_partitions_without_their_last_folder() -> None:
    disk = SimulatedFiles()
    broker = open_broker(disk)
    run_inline(broker._offsets_table.ensure())
    broker.close()
    for path in CATALOG:
        disk.remove(path)
    disk.remove_tree("data/__consumer_offsets-6")
    assert open_broker(disk)._catalog.topic("__consumer_offsets").partitions == 7


def test_deleted_records_do_not_come_back_without_a_report() -> None:
    disk = SimulatedFiles()
    broker = open_broker(disk)
    assert broker.problems == []
    broker.create_topic(CONTEXT, "orders", 1).result()
    append(broker, "orders", count=8)
    broker._catalog.log("orders", 0).raise_log_start(5)
    run_inline(broker._log_dir.write_log_starts())
    broker.close()
    assert open_broker(disk.after_kill()).problems == []
    for path in LOG_STARTS:
        disk.remove(path)
    again = open_broker(disk)
    assert again._catalog.log("orders", 0).log_start_offset == 0
    assert any("deleted records may have reappeared" in problem for problem in again.problems)
    again.close()
    assert open_broker(disk).problems == []


def test_old_offsets_in_a_swapped_log_do_not_replace_newer_ones() -> None:
    disk = SimulatedFiles()
    broker = open_broker(disk)
    groups = [f"group-{number}" for number in range(30)]
    tp = TopicPartition("orders", 0)

    def commit(offset: int) -> None:
        for group in groups:
            offsets = {tp: OffsetAndMetadata(offset)}
            broker._group_coordinator.commit_offsets(CommitRequest(group_id=group, offsets=offsets))

    commit(1)
    for log in broker._catalog.logs("__consumer_offsets"):
        log.roll()
    commit(2)
    broker.close()
    first, last = (f"data/__consumer_offsets-{n}/{0:020d}.log" for n in (0, 6))
    mine, its = disk.read(first), disk.read(last)
    disk.replace(first, its)
    disk.replace(last, mine)
    again = open_broker(disk)
    found = {group: again._group_coordinator.fetch_offsets(group).get(tp) for group in groups}
    assert {value.offset for value in found.values() if value} == {2}
    assert any("in the wrong partition" in problem for problem in again.problems)


def test_offsets_of_a_group_are_found_in_a_wrong_partition_when_the_right_one_has_none() -> None:
    disk = SimulatedFiles()
    broker = open_broker(disk)
    tp = TopicPartition("orders", 0)
    broker._group_coordinator.commit_offsets(
        CommitRequest(group_id="g", offsets={tp: OffsetAndMetadata(5)})
    )
    home = next(log for log in broker._catalog.logs("__consumer_offsets") if log.log_end_offset)
    other = (home.tp.partition + 1) % 7
    broker.close()
    disk.replace(
        f"data/__consumer_offsets-{other}/{0:020d}.log", disk.read(home.segments.active.log_path)
    )
    disk.truncate(home.segments.active.log_path, 0)
    found = open_broker(disk)._group_coordinator.fetch_offsets("g").get(tp)
    assert found is not None
    assert found.offset == 5


def test_damage_beside_aborted_commits_does_not_keep_the_broker_from_starting() -> None:
    disk = SimulatedFiles()
    broker = open_broker(disk)
    tp, table = TopicPartition("orders", 0), broker._offsets_table
    for number in range(12):
        producer = ProducerIdentity(broker._producer_ids.next(), 0)
        table.append(commit_records("g", {tp: OffsetAndMetadata(number)}), 0, producer)
        kind = ControlType.ABORT if number % 2 else ControlType.COMMIT
        broker._markers.write(Marker(table.existing_log_for("g").tp, producer), kind)
    path = table.existing_log_for("g").segments.active.log_path
    broker.close()
    size = len(disk.read(path))
    for start in range(0, size, 61):
        damaged = disk.after_kill()
        damaged.write_at(path, start, bytes(min(120, size - start)))
        assert open_broker(damaged).problems


@pytest.mark.parametrize("names_kept", [False, True])
@pytest.mark.parametrize("rest_kept", [False, True])
def test_a_topic_starts_at_offset_0_after_a_power_cut_right_after_its_creation(
    names_kept: bool, rest_kept: bool
) -> None:
    disk = SimulatedFiles()
    open_broker(disk).create_topic(CONTEXT, "orders", 2).result()
    broker = open_broker(disk.after_crash(CrashChoice((), (), rest_kept, names_kept)))
    assert [log.log_end_offset for log in broker._catalog.logs("orders")] == [0, 0]
    assert not broker.problems
