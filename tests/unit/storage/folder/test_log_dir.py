"""A data folder: one owner, only ours, and its checkpoints."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import cast
from uuid import UUID

import pytest
from tests.support.log_builders import (
    DATA,
    FOLDER,
    TP,
    CountingFiles,
    batch,
    create_partition,
    fill,
    new_log,
    offsets,
    open_dir,
    reopen,
    small_settings,
    uuids,
    values,
)

from strandlog.errors import (
    AlreadyOpenError,
    CorruptStateError,
    StorageError,
    StrandlogError,
    UnknownLayoutError,
)
from strandlog.model import TopicPartition
from strandlog.storage.cleaning.compaction import compact_now
from strandlog.storage.file_remover import EVERYTHING_MS
from strandlog.storage.files import DiskFiles, Files
from strandlog.storage.folder.identity import base64_id, parent_of, parse_properties, uuid_of
from strandlog.storage.folder.log_dir import MANY_PARTITIONS, LogDir
from strandlog.storage.work import run_inline
from strandlog.testing import FakeClock, SimulatedFiles
from strandlog.testing.disk.crash_outcome import ALL_LOST

OTHER = TopicPartition("other-topic", 12)


def test_a_second_owner_is_rejected_and_the_first_one_is_unaffected() -> None:
    files = SimulatedFiles()
    first, log = new_log(files)
    with pytest.raises(AlreadyOpenError, match="data"):
        open_dir(files)
    fill(log, 1)
    first.close()
    second, log = reopen(files)
    assert values(log) == [b"v0"]
    second.close()


def test_a_second_owner_is_rejected_on_a_real_disk(tmp_path: Path) -> None:
    folder = str(tmp_path / "deep" / "er" / "data")
    first = LogDir(folder, DiskFiles(), FakeClock(), uuids())
    with pytest.raises(AlreadyOpenError):
        LogDir(folder, DiskFiles(), FakeClock(), uuids())
    first.close()
    second = LogDir(folder, DiskFiles(), FakeClock(), uuids())
    assert second.was_clean
    assert second.cluster_id == first.cluster_id
    second.close()


def test_a_path_to_a_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"hello")
    with pytest.raises(UnknownLayoutError, match="a file, not a folder"):
        LogDir(str(tmp_path / "file"), DiskFiles(), FakeClock(), uuids())
    files = SimulatedFiles()
    files.append_to(DATA, b"hello")
    with pytest.raises(UnknownLayoutError, match="a file, not a folder"):
        open_dir(files)


def test_a_folder_with_other_files_is_rejected_and_not_touched() -> None:
    files = SimulatedFiles()
    files.make_dir(DATA)
    files.append_to("data/holiday.jpg", b"...")
    before = files.contents()
    with pytest.raises(UnknownLayoutError, match=r"it holds 'holiday\.jpg'; use an empty"):
        open_dir(files)
    assert files.contents() == before


def test_a_folder_of_kafka_is_rejected_and_not_touched() -> None:
    files = SimulatedFiles()
    files.make_dir(DATA)
    files.append_to(
        "data/meta.properties", b"#\n#Sat Jan 01\nversion=1\ncluster.id=abc\nnode.id=1\n"
    )
    before = files.contents()
    with pytest.raises(UnknownLayoutError, match="Apache Kafka"):
        open_dir(files)
    assert files.contents() == before


def test_a_newer_layout_is_rejected() -> None:
    files = SimulatedFiles()
    files.make_dir(DATA)
    files.append_to("data/meta.properties", b"version=1\ncluster.id=abc\nstrandlog.layout=2\n")
    with pytest.raises(UnknownLayoutError, match=r"layout 2.*newer"):
        open_dir(files)


def test_a_folder_with_only_lost_and_found_is_accepted() -> None:
    files = SimulatedFiles()
    files.make_dir("data/lost+found")
    open_dir(files).close()


@pytest.mark.parametrize("operation", ["append", "sync", "rename", "sync_dir", "read", "list"])
def test_a_failed_start_releases_the_lock(operation: str) -> None:
    files = SimulatedFiles()
    new_log(files)[0].close()
    for skip in range(12):
        files.fail_on(operation, "", skip=skip)  # type: ignore[arg-type]
        try:
            log_dir = open_dir(files)
        except StorageError:
            files.clear_faults()
            log_dir = open_dir(files)
        files.clear_faults()
        log_dir.open_partition(TP, small_settings())
        log_dir.close()


def test_a_new_folder_survives_a_power_cut_after_its_first_flush_at_any_depth() -> None:
    files = SimulatedFiles()
    log_dir = LogDir("srv/logs/data", files, FakeClock(), uuids())
    create_partition(log_dir, TP, "id", small_settings())
    log_dir.fsync_directory()
    log = log_dir.logs[TP]
    fill(log, 3)
    log.flush()
    again = LogDir("srv/logs/data", files.after_crash(ALL_LOST), FakeClock(), uuids())
    assert offsets(again.open_partition(TP, small_settings())) == [0, 1, 2]


@pytest.mark.parametrize(
    ("path", "parent"),
    [("data", "."), ("a/data", "a"), ("/data", "/"), ("/a/data/", "/a"), ("./data", ".")],
)
def test_the_parent_of_a_path(path: str, parent: str) -> None:
    assert parent_of(path) == parent


def test_the_clean_shutdown_marker_counts_for_one_start() -> None:
    files = SimulatedFiles()
    first = open_dir(files)
    assert not first.was_clean
    first.close()
    second = open_dir(files)
    assert second.was_clean
    assert not open_dir(files.after_kill()).was_clean
    assert not open_dir(files.after_crash(ALL_LOST)).was_clean


def test_the_identity_stays_and_is_written_as_kafka_writes_it() -> None:
    files = SimulatedFiles()
    first = open_dir(files)
    first.close()
    text = files.read("data/meta.properties")
    properties = parse_properties(text)
    assert properties["version"] == "1"
    assert uuid_of(properties["cluster.id"]) == UUID(int=1)
    assert base64_id(UUID(int=2)) == properties["directory.id"]
    assert len(properties["cluster.id"]) == 22
    second = LogDir(DATA, files, FakeClock(), uuids(50))
    assert second.cluster_id == first.cluster_id


@pytest.mark.slow
def test_one_flipped_bit_in_meta_properties_is_repaired_at_the_start() -> None:
    files = SimulatedFiles()
    log_dir, log = new_log(files)
    fill(log, 2)
    log_dir.close()
    for name in ("data/meta.properties", "data/meta.properties.previous"):
        for bit in range(8 * files.size(name)):
            damaged = files.after_kill()
            damaged.flip_bit(name, bit)
            again = open_dir(damaged)
            assert again.cluster_id == log_dir.cluster_id
            assert again.problems == [f"{name} failed its checksum and was rewritten"]
            again.close()
            assert damaged.read(name) == files.read(name)


def test_a_folder_with_both_copies_of_its_identity_damaged_does_not_open() -> None:
    files = SimulatedFiles()
    open_dir(files).close()
    for name in ("data/meta.properties", "data/meta.properties.previous"):
        files.flip_bit(name, 8 * 25)
    with pytest.raises(CorruptStateError, match="checksum"):
        open_dir(files)


# -- log starts --------------------------------------------------------------------------------


def test_deleted_records_stay_deleted_after_a_power_cut() -> None:
    files = SimulatedFiles()
    log_dir, log = new_log(files)
    fill(log, 10)
    log.flush()
    log.raise_log_start(4)
    run_inline(log_dir.write_log_starts())
    _, log = reopen(files.after_crash(ALL_LOST))
    assert offsets(log) == [4, 5, 6, 7, 8, 9]


def test_a_partition_that_was_not_opened_keeps_its_log_start() -> None:
    files = SimulatedFiles()
    log_dir, log = new_log(files)
    create_partition(log_dir, OTHER, "other", small_settings())
    fill(log, 10)
    log.flush()
    log.raise_log_start(4)
    log_dir.close()
    again = open_dir(files)
    log = again.open_partition(OTHER, small_settings())
    fill(log, 3)
    log.flush()
    log.raise_log_start(1)
    again.close()
    again = open_dir(files)
    assert offsets(again.open_partition(TP, small_settings())) == [4, 5, 6, 7, 8, 9]
    assert offsets(again.open_partition(OTHER, small_settings())) == [1, 2]


@pytest.mark.parametrize("how", ["close", "kill", "power cut"])
def test_a_recreated_topic_does_not_inherit_the_log_start_offset(how: str) -> None:
    files = SimulatedFiles()
    log_dir, log = new_log(files)
    fill(log, 10)
    log.flush()
    log.raise_log_start(8)
    run_inline(log_dir.write_checkpoints())
    log_dir.delete_partition(TP, 0)
    log_dir.fsync_directory()
    create_partition(log_dir, TP, "another-id", small_settings())
    log_dir.fsync_directory()
    log = log_dir.logs[TP]
    fill(log, 9)
    log.flush()
    if how == "close":
        log_dir.close()
    elif how == "kill":
        files = files.after_kill()
    else:
        files = files.after_crash(ALL_LOST)
    # Not even when the checkpoint is damaged and the one before it is used.
    for damage in (False, True):
        disk = files.after_kill()
        if damage and disk.exists("data/log-start-offset-checkpoint"):
            disk.flip_bit("data/log-start-offset-checkpoint", 3)
        assert offsets(reopen(disk)[1]) == list(range(9))


def test_a_recreated_topic_does_not_inherit_the_cleaner_offset() -> None:
    files = SimulatedFiles()
    settings = small_settings(cleanup_policy=("compact",))
    log_dir, log = new_log(files, settings=settings)
    fill(log, 10)
    log_dir.cleaner_offsets[TP] = compact_now(log).next_dirty_offset
    run_inline(log_dir.write_checkpoints())
    log_dir.delete_partition(TP, 0)
    create_partition(log_dir, TP, "another-id", settings)
    log_dir.fsync_directory()
    assert TP not in log_dir.cleaner_offsets
    assert TP not in open_dir(files.after_crash(ALL_LOST)).cleaner_offsets


def test_a_deleted_partition_is_removed_from_the_checkpoint() -> None:
    files = SimulatedFiles()
    log_dir, log = new_log(files)
    fill(log, 10)
    log.flush()
    log.raise_log_start(8)
    run_inline(log_dir.write_checkpoints())
    assert b"events 0 8" in files.read("data/log-start-offset-checkpoint")
    log_dir.delete_partition(TP, 0)
    run_inline(log_dir.write_checkpoints())
    assert b"events" not in files.read("data/log-start-offset-checkpoint")


def test_a_log_start_above_the_log_end_raises_the_log_end() -> None:
    """With page-cache durability a power cut may take more than was deleted."""
    files = SimulatedFiles()
    log_dir, log = new_log(files, log_durability="page_cache")
    fill(log, 4)
    log.flush()
    fill(log, 6)
    log.raise_log_start(8)
    run_inline(log_dir.write_log_starts())
    _, log = reopen(files.after_crash(ALL_LOST), log_durability="page_cache")
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (8, 8, 8)
    assert log.append(batch(b"next")).base_offset == 8
    assert values(log) == [b"next"]


# -- partitions --------------------------------------------------------------------------------


def test_partition_folders_are_listed_with_their_topic_ids() -> None:
    files = SimulatedFiles()
    log_dir, _ = new_log(files)
    create_partition(log_dir, OTHER, "id-2", small_settings())
    files.make_dir("data/not a partition")
    files.make_dir("data/no-metadata-7")
    assert list(log_dir.partition_folders()) == [
        (TP, "topic-id"),
        (TopicPartition("no-metadata", 7), ""),
        (OTHER, "id-2"),
    ]


def test_a_deleted_partition_disappears_immediately_and_its_files_after_the_delay() -> None:
    files, clock = SimulatedFiles(), FakeClock()
    log_dir, log = new_log(files, clock)
    fill(log, 3)
    log_dir.delete_partition(TP, 1000)
    log_dir.fsync_directory()
    assert list(log_dir.partition_folders()) == []
    assert run_inline(log_dir.remover.remove(clock.now_ms())) == 0
    assert any("-delete/" in path for path in files.contents())
    clock.advance(1000)
    assert run_inline(log_dir.remover.remove(clock.now_ms())) == 1
    assert not any("events-0" in path for path in files.contents())


def test_a_crash_before_the_delay_is_over_removes_the_files_at_the_next_start() -> None:
    files = SimulatedFiles()
    log_dir, log = new_log(files)
    fill(log, 3)
    log_dir.delete_partition(TP, 1000)
    log_dir.fsync_directory()
    disk = files.after_crash(ALL_LOST)
    open_dir(disk)
    assert not any("events-0" in path for path in disk.contents())


def test_a_stray_folder_is_kept_under_another_name() -> None:
    files = SimulatedFiles()
    log_dir, log = new_log(files)
    fill(log, 3)
    log_dir.close()
    log_dir = open_dir(files)
    log_dir.set_stray_aside(TP)
    assert list(log_dir.partition_folders()) == []
    assert "set aside" in log_dir.problems[0]
    assert any("-stray/" in path and path.endswith(".log") for path in files.contents())


def test_a_topic_with_the_longest_name_can_be_deleted() -> None:
    files = SimulatedFiles()
    log_dir = open_dir(files)
    tp = TopicPartition("x" * 249, 9999)
    for _ in range(2):
        create_partition(log_dir, tp, "id", small_settings())
        fill(log_dir.logs[tp], 1)
        log_dir.logs[tp].flush()
        log_dir.delete_partition(tp, 0)
    assert list(log_dir.partition_folders()) == []
    assert run_inline(log_dir.remover.remove(EVERYTHING_MS)) == 2
    assert not any("xxx" in path for path in files.contents())


# -- stopping ----------------------------------------------------------------------------------


def test_close_flushes_the_other_partitions_if_one_cannot_be_flushed() -> None:
    files = SimulatedFiles()
    log_dir, log = new_log(files)
    create_partition(log_dir, OTHER, "other", small_settings())
    log_dir.fsync_directory()
    fill(log, 3)
    fill(log_dir.logs[OTHER], 3)
    files.fail_on("sync", FOLDER, count=99)
    with pytest.raises(StorageError):
        log_dir.close()
    files.clear_faults()
    disk = files.after_crash(ALL_LOST)
    again = open_dir(disk)
    assert not again.was_clean
    assert offsets(again.open_partition(OTHER, small_settings())) == [0, 1, 2]
    # The lock is free, and what the process wrote is still in the page cache.
    assert offsets(reopen(files)[1]) == [0, 1, 2]


def test_a_failed_partition_leaves_no_clean_marker() -> None:
    files = SimulatedFiles()
    log_dir, log = new_log(files)
    fill(log, 3)
    files.fail_on("sync", ".log")
    with pytest.raises(StorageError):
        log.flush()
    log_dir.close()
    assert not open_dir(files).was_clean


def test_closing_twice_is_harmless_after_a_failure() -> None:
    files = SimulatedFiles()
    log_dir, _ = new_log(files)
    files.fail_on("sync", "checkpoint", count=1)
    with pytest.raises(StrandlogError):
        log_dir.close()
    again, _ = reopen(files)
    again.close()


def test_the_four_checkpoints_are_kafkas_text_with_a_checksum() -> None:
    files = SimulatedFiles()
    log_dir, log = new_log(files)
    fill(log, 5)
    log.flush()
    fill(log, 2)
    log.raise_log_start(2)
    log_dir.cleaner_offsets[TP] = 3
    run_inline(log_dir.write_checkpoints())
    expected = {"log-start": 2, "cleaner": 3, "replication": 5, "recovery-point": 5}
    for name, offset in expected.items():
        lines = files.read(f"data/{name}-offset-checkpoint").decode().splitlines()
        assert lines[:3] == ["0", "1", f"events 0 {offset}"]
        assert lines[3].startswith("crc32c ")


def test_durability_defaults_to_waiting_for_fsync() -> None:
    log_dir = LogDir(DATA, SimulatedFiles(), FakeClock(), uuids())
    create_partition(log_dir, TP, "id", dataclasses.replace(small_settings()))
    assert log_dir.logs[TP].context.settings.waits_for_fsync


def _dirty_dir(files: SimulatedFiles, count: int) -> LogDir:
    log_dir = open_dir(files)
    for number in range(count):
        tp = TopicPartition("t", number)
        create_partition(log_dir, tp, "id", small_settings())
        log_dir.logs[tp].append(batch(b"v"))
    return log_dir


def test_close_does_not_fsync_partitions_that_flush_for_close_has_flushed() -> None:
    files = SimulatedFiles()
    log_dir = _dirty_dir(files, 100)
    run_inline(log_dir.flush_for_close())
    synced: list[str] = []
    files.watch(lambda step: synced.append(step.path) if step.operation == "sync" else None)
    log_dir.close()
    assert not [path for path in synced if path.startswith("data/t-")]
    again = open_dir(files)
    for number in range(100):
        log = again.open_partition(TopicPartition("t", number), small_settings())
        assert log.high_watermark == 1
    again.close()


def test_close_reports_an_fsync_that_failed_in_flush_for_close() -> None:
    files = SimulatedFiles()
    log_dir = _dirty_dir(files, 3)
    files.fail_on("sync", "t-1")
    run_inline(log_dir.flush_for_close())
    files.clear_faults()
    with pytest.raises(StorageError):
        log_dir.close()
    assert not files.exists("data/.kafka_cleanshutdown")


def test_a_failed_sync_of_many_partitions_leaves_none_of_them_marked_as_clean() -> None:
    files = SimulatedFiles()
    log_dir = _dirty_dir(files, MANY_PARTITIONS)
    files.fail_on("sync", "t-7/")
    run_inline(log_dir.flush_for_close())
    files.clear_faults()
    assert all(log.flushed_offset == 0 for log in log_dir.logs.values())
    with pytest.raises(StorageError):
        log_dir.close()
    assert not files.exists("data/.kafka_cleanshutdown")


def test_close_reports_a_partition_whose_file_cannot_be_opened() -> None:
    files = SimulatedFiles()
    log_dir, log = new_log(files, log_durability="page_cache")
    fill(log, 3)
    log.segments.active.forget_file()  # as `OpenFiles` does above its limit
    files.fail_on("open", log.segments.active.log_path, count=100)
    with pytest.raises(StorageError, match="could not open"):
        log_dir.close()
    assert not files.exists(f"{DATA}/.kafka_cleanshutdown")


def test_closing_many_partitions_makes_their_records_durable() -> None:
    files = SimulatedFiles()
    log_dir = _dirty_dir(files, MANY_PARTITIONS)
    log_dir.close()
    after = files.after_crash(ALL_LOST)
    again = open_dir(after)
    assert again.was_clean
    for number in range(MANY_PARTITIONS):
        log = again.open_partition(TopicPartition("t", number), small_settings())
        assert log.high_watermark == 1
    again.close()


class SyncCounter(DiskFiles):
    """Counts the syncs of files and folders."""

    __slots__ = ("syncs",)

    def __init__(self) -> None:
        super().__init__()
        self.syncs = 0

    def _sync(self, path: str, flags: int) -> None:
        self.syncs += 1
        super()._sync(path, flags)


def test_many_partitions_are_created_without_a_sync_for_each_of_them(tmp_path: Path) -> None:
    files = SyncCounter()
    if not files.can_sync_file_system:
        pytest.skip("syncfs is missing here, or hides errors")
    log_dir = LogDir(str(tmp_path / "data"), files, FakeClock(), uuids())
    partitions = [TopicPartition("t", number) for number in range(MANY_PARTITIONS)]
    before = files.syncs
    logs = log_dir.create_files(partitions, "topic-id", small_settings())
    run_inline(log_dir.fsync_new(logs))
    assert files.syncs == before + 1  # the data folder
    assert all(log.log_end_offset == 0 for log in logs)
    for log in logs:
        log_dir.register(log)
    log_dir.close()


def test_creating_a_partition_does_not_look_for_files_that_cannot_exist() -> None:
    """With 5,000 partitions, every call to the disk costs tens of milliseconds."""
    counting = CountingFiles(SimulatedFiles())
    log_dir = open_dir(cast("Files", counting))
    log_dir.clear_checkpoints([TP])
    counting.calls.clear()
    log_dir.create_files([TP], "topic-id", small_settings())
    creations = {"make_dir": 1, "append_to": 1, "write_at": 1}  # the folder and its two files
    looking_for_the_data_folder = {"exists": 1}
    assert counting.calls == creations | looking_for_the_data_folder


@pytest.mark.parametrize("count", [1, MANY_PARTITIONS])
def test_new_partitions_survive_a_power_cut(count: int) -> None:
    files = SimulatedFiles()
    log_dir = open_dir(files)
    partitions = [TopicPartition("t", number) for number in range(count)]
    log_dir.clear_checkpoints(partitions)
    run_inline(log_dir.fsync_new(log_dir.create_files(partitions, "topic-id", small_settings())))
    again = open_dir(files.after_crash(ALL_LOST))
    assert dict(again.partition_folders()) == dict.fromkeys(partitions, "topic-id")
    log = again.open_partition(partitions[-1], small_settings(), was_created=True)
    assert log.log_end_offset == 0  # without its recovery point, it would continue after a gap
    assert log.last_report.problems == []
