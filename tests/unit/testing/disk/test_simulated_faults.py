"""Faults on command: full disks, failed syncs that lose pages, reads that fail, rot."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable

import pytest

from strandlog.errors import DiskFullError, StorageError
from strandlog.storage.files import DIRECTORY, Files
from strandlog.testing import SimulatedFiles
from strandlog.testing.disk.crash_outcome import ALL_KEPT, ALL_LOST
from strandlog.testing.disk.faults import Operation


def durable(files: SimulatedFiles, path: str = "log") -> bytes:
    return files.after_crash(ALL_LOST).read(path)


def disk_with_log(contents: bytes = b"") -> SimulatedFiles:
    files = SimulatedFiles()
    files.append_to("log", contents)
    files.sync_everything()
    return files


def test_simulated_files_implement_the_files_interface() -> None:
    files: Files = SimulatedFiles()
    files.make_dir("d")
    assert files.list_dir("") == files.list_dir("/") == files.list_dir(".") == {"d": DIRECTORY}


# ---- space ----


def test_an_append_to_a_full_disk_is_partly_written_and_rolled_back() -> None:
    files = SimulatedFiles(capacity_bytes=100)
    log = files.open_log("log")
    log.append([b"a" * 60])
    with pytest.raises(DiskFullError, match="could not append to log: No space left"):
        log.append([b"b" * 60])
    assert log.size == files.size("log") == 60
    assert [str(step) for step in files.trace[-2:]] == ["append log +60", "truncate log =60"]
    assert files.free_bytes("") == 40
    log.append([b"c" * 40])
    assert files.free_bytes("") == 0


def test_the_partial_write_of_a_full_disk_may_survive_a_crash() -> None:
    files = SimulatedFiles(capacity_bytes=100)
    log = files.open_log("log")
    log.append([b"a" * 60])
    files.sync_everything()
    with pytest.raises(DiskFullError):
        log.append([b"b" * 60])
    found = {files.after_crash(choice).read("log") for choice in files.crash_states()}
    assert {b"a" * 60, b"a" * 60 + b"b" * 40} <= found


def test_overwriting_needs_no_space_and_removing_gives_some() -> None:
    files = SimulatedFiles(capacity_bytes=10)
    files.append_to("a", b"0123456789")
    files.write_at("a", 5, b"XXXXX")
    with pytest.raises(DiskFullError):
        files.write_at("a", 8, b"YYYY")
    assert files.read("a") == b"01234XXXYY"
    files.truncate("a", 4)
    files.append_to("b", b"123456")
    files.remove("b")
    assert files.free_bytes("") == 6
    files.capacity_bytes = None
    files.append_to("a", b"z" * 1000)
    files.capacity_bytes = 50
    assert files.free_bytes("") == 0


def test_a_full_disk_leaves_the_old_file_on_replace() -> None:
    files = SimulatedFiles(capacity_bytes=20)
    files.replace("state", b"old")
    with pytest.raises(DiskFullError):
        files.replace("state", b"n" * 30)
    assert files.read("state") == b"old"


# ---- failing on command ----


def test_fail_next_fails_once_with_the_given_errno() -> None:
    files = disk_with_log()
    log = files.open_log("log")
    files.fail_next("append", errno.ENOSPC)
    with pytest.raises(DiskFullError):
        log.append([b"123456"])
    assert files.read("log") == b""
    log.append([b"123456"])
    assert files.read("log") == b"123456"


def test_fail_on_chooses_path_count_and_time() -> None:
    files = SimulatedFiles()
    files.fail_on("append", "b.log", count=2, skip=1, error=errno.EIO)
    outcomes = []
    for name in ("a.log", "b.log", "b.log", "a.log", "b.log", "b.log"):
        try:
            files.append_to(name, b"1234")
            outcomes.append("ok")
        except StorageError:
            outcomes.append("failed")
    assert outcomes == ["ok", "ok", "failed", "ok", "failed", "ok"]
    assert files.read("b.log") == b"1234" + b"12" + b"12" + b"1234"


def test_written_bytes_sets_how_much_is_written_before_the_failure() -> None:
    files = SimulatedFiles()
    files.fail_on("append", written_bytes=3)
    with pytest.raises(StorageError):
        files.append_to("a", b"123456")
    assert files.read("a") == b"123"


@pytest.mark.parametrize("operation", ["create", "mkdir", "rename", "remove", "truncate"])
def test_a_failing_change_changes_nothing(operation: Operation) -> None:
    files = disk_with_log(b"123")
    before = files.contents()
    files.fail_next(operation, errno.EROFS)
    works: dict[str, Callable[[], object]] = {
        "create": lambda: files.append_to("new", b""),
        "mkdir": lambda: files.make_dir("new"),
        "rename": lambda: files.rename("log", "new"),
        "remove": lambda: files.remove("log"),
        "truncate": lambda: files.truncate("log", 0),
    }
    work = works[operation]
    with pytest.raises(StorageError, match="Read-only"):
        work()
    assert files.contents() == before
    assert list(files.list_dir("")) == ["log"]
    work()


def test_reads_maps_lists_opens_and_locks_can_fail() -> None:
    files = disk_with_log(b"123")
    log = files.open_log("log")
    calls: list[tuple[Operation, Callable[[], object]]] = [
        ("read", lambda: files.read("log")),
        ("read", lambda: log.read(0, 3)),
        ("map", lambda: files.map("log")),
        ("list", lambda: files.list_dir("")),
        ("open", lambda: files.open_log("log")),
        ("lock", lambda: files.lock("lock")),
    ]
    for operation, call in calls:
        files.fail_next(operation)
        with pytest.raises(StorageError, match="Input/output error"):
            call()
        call()


def test_faults_can_be_cleared() -> None:
    files = disk_with_log(b"123")
    files.fail_on("read", count=1000)
    files.clear_faults()
    assert files.read("log") == b"123"


# ---- failed syncs ----


def test_a_sync_after_a_failed_one_succeeds_without_writing_the_lost_bytes() -> None:
    files = disk_with_log(b"old")
    log = files.open_log("log")
    log.append([b"new"])
    files.fail_next("sync")
    with pytest.raises(StorageError):
        log.sync()
    log.sync()
    assert files.read("log") == b"oldnew", "the page cache still has it"
    assert durable(files) == b"old\0\0\0"
    assert files.after_crash(ALL_KEPT).read("log") == b"old\0\0\0"
    assert files.after_kill().read("log") == b"oldnew"
    assert durable(files.after_kill()) == b"old\0\0\0"


def test_bytes_of_a_failed_sync_may_be_on_disk() -> None:
    files = disk_with_log(b"old")
    files.append_to("log", b"new")
    files.fail_next("sync")
    with pytest.raises(StorageError):
        files.sync_file("log")
    assert durable(files) == b"old"
    assert files.after_crash(ALL_KEPT).read("log") == b"oldnew"


def test_rewriting_the_bytes_of_a_failed_sync_makes_them_durable() -> None:
    files = disk_with_log(b"old")
    log = files.open_log("log")
    log.append([b"new"])
    files.fail_next("sync")
    with pytest.raises(StorageError):
        log.sync()
    log.overwrite(3, log.read(3, 3))
    log.append([b"er"])
    log.sync()
    assert durable(files) == b"oldnewer"


def test_bytes_appended_after_a_failed_sync_are_synced_and_the_hole_stays() -> None:
    files = disk_with_log(b"old")
    log = files.open_log("log")
    log.append([b"lost"])
    files.fail_next("sync")
    with pytest.raises(StorageError):
        log.sync()
    log.append([b"kept"])
    log.sync()
    assert log.read(0, 99) == b"oldlostkept"
    assert durable(files) == b"old\0\0\0\0kept"


def test_a_failed_sync_of_an_overwrite_leaves_the_old_bytes() -> None:
    files = disk_with_log(b"0123456789")
    files.write_at("log", 4, b"XX")
    files.fail_next("sync")
    with pytest.raises(StorageError):
        files.sync_file("log")
    files.sync_file("log")
    assert files.read("log") == b"0123XX6789"
    assert durable(files) == b"0123456789"


def test_truncating_the_bytes_of_a_failed_sync_recovers_the_file() -> None:
    files = disk_with_log(b"old")
    log = files.open_log("log")
    log.append([b"lost"])
    files.fail_next("sync")
    with pytest.raises(StorageError):
        log.sync()
    log.truncate(3)
    log.append([b"new"])
    log.sync()
    assert durable(files) == b"oldnew"


def test_names_of_a_folder_stay_unsynced_after_a_failed_sync() -> None:
    files = SimulatedFiles()
    files.append_to("a", b"")
    files.fail_next("sync_dir")
    with pytest.raises(StorageError):
        files.sync_dir("")
    assert files.after_crash(ALL_LOST).list_dir("") == {}
    files.sync_dir("")
    assert files.after_crash(ALL_LOST).list_dir("") == {"a": 0}


# ---- rot and misuse ----


def test_a_flipped_bit_stays_flipped() -> None:
    files = disk_with_log(b"\x00\x00")
    files.append_to("log", b"\x00\x00")
    files.flip_bit("log", 9)
    files.flip_bit("log", 31)
    assert files.read("log") == b"\x00\x02\x00\x80"
    assert durable(files) == b"\x00\x02"
    files.sync_file("log")
    assert durable(files) == b"\x00\x02\x00\x80"
    with pytest.raises(AssertionError, match="32 bits"):
        files.flip_bit("log", 32)


def test_truncating_mapped_bytes_raises() -> None:
    files = disk_with_log(b"0123456789")
    mapped = files.map("log")
    files.append_to("log", b"more")
    files.truncate("log", 10)
    with pytest.raises(AssertionError, match="truncated to 9 bytes while 10 are mapped"):
        files.truncate("log", 9)
    mapped.close()
    mapped.close()
    files.truncate("log", 3)
    dropped = files.map("log")
    del dropped
    files.truncate("log", 0)


def test_overwriting_past_the_end_is_caught() -> None:
    log = disk_with_log(b"0123").open_log("log")
    with pytest.raises(AssertionError, match="overwrite ends at 5, the file has 4"):
        log.overwrite(2, b"abc")


def test_syncing_from_another_thread_loses_nothing() -> None:
    files = disk_with_log()
    log = files.open_log("log")
    stop = threading.Event()

    def keep_syncing() -> None:
        while not stop.is_set():
            log.sync()

    threads = [threading.Thread(target=keep_syncing) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(3000):
        log.append([number.to_bytes(4, "big")])
    stop.set()
    for thread in threads:
        thread.join()
    log.sync()
    assert durable(files) == files.read("log")
    assert len(durable(files)) == 12_000
