"""Names, folders and locks: the contract of `storage.files`, on both disks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from strandlog.errors import StorageError
from strandlog.storage.files import DIRECTORY

if TYPE_CHECKING:
    from tests.unit.testing.disk.conftest import DiskUnderTest


# ---- names ----


def test_list_dir_returns_sizes_and_folders(disk: DiskUnderTest) -> None:
    disk.files.append_to(disk.path("a"), b"123")
    disk.files.append_to(disk.path("empty"), b"")
    disk.files.make_dir(disk.path("sub/deep"))
    assert disk.files.list_dir(disk.folder) == {"a": 3, "empty": 0, "sub": DIRECTORY}
    assert disk.files.list_dir(disk.path("sub")) == {"deep": DIRECTORY}
    assert disk.files.list_dir(disk.path("sub/deep")) == {}


def test_exists_sees_files_and_folders(disk: DiskUnderTest) -> None:
    disk.files.append_to(disk.path("a"), b"")
    assert disk.files.exists(disk.path("a"))
    assert disk.files.exists(disk.folder)
    assert not disk.files.exists(disk.path("b"))
    assert not disk.files.exists(disk.path("a/b"))
    assert not disk.files.exists(disk.path("b/c"))


def test_rename_takes_the_place_of_another_file(disk: DiskUnderTest) -> None:
    disk.files.append_to(disk.path("a"), b"new")
    disk.files.append_to(disk.path("b"), b"older")
    disk.files.rename(disk.path("a"), disk.path("b"))
    assert disk.files.list_dir(disk.folder) == {"b": 3}
    disk.files.rename(disk.path("b"), disk.path("b"))
    assert disk.files.read(disk.path("b")) == b"new"


def test_rename_moves_a_folder_with_all_that_is_in_it(disk: DiskUnderTest) -> None:
    disk.files.make_dir(disk.path("orders-0"))
    disk.files.append_to(disk.path("orders-0/x.log"), b"123")
    disk.files.make_dir(disk.path("attic"))
    disk.files.rename(disk.path("orders-0"), disk.path("attic/orders-0"))
    assert disk.files.list_dir(disk.folder) == {"attic": DIRECTORY}
    assert disk.files.read(disk.path("attic/orders-0/x.log")) == b"123"


def test_rename_refuses_what_posix_refuses(disk: DiskUnderTest) -> None:
    disk.files.make_dir(disk.path("empty"))
    disk.files.make_dir(disk.path("full/sub"))
    disk.files.append_to(disk.path("file"), b"1")
    for source, target in [
        ("empty", "full"),
        ("file", "empty"),
        ("empty", "file"),
        ("full", "full/sub/inside"),
        ("file", "x" * 256),
    ]:
        with pytest.raises(StorageError):
            disk.files.rename(disk.path(source), disk.path(target))
    disk.files.rename(disk.path("full"), disk.path("empty"))
    assert disk.files.list_dir(disk.path("empty")) == {"sub": DIRECTORY}


def test_remove_ignores_missing_files(disk: DiskUnderTest) -> None:
    disk.files.append_to(disk.path("a"), b"1")
    disk.files.remove(disk.path("a"))
    disk.files.remove(disk.path("a"))
    disk.files.remove(disk.path("no/such/folder"))
    assert disk.files.list_dir(disk.folder) == {}


def test_remove_rejects_a_folder(disk: DiskUnderTest) -> None:
    disk.files.make_dir(disk.path("sub"))
    with pytest.raises(StorageError):
        disk.files.remove(disk.path("sub"))
    assert disk.files.exists(disk.path("sub"))


def test_make_dir_makes_parents_and_can_be_repeated(disk: DiskUnderTest) -> None:
    assert disk.files.make_dir(disk.path("a/b/c"))
    assert not disk.files.make_dir(disk.path("a/b/c"))
    assert disk.files.make_dir(disk.path("a/b/d"))
    disk.files.append_to(disk.path("a/b/c/file"), b"1")
    with pytest.raises(StorageError):
        disk.files.make_dir(disk.path("a/b/c/file"))
    with pytest.raises(StorageError):
        disk.files.make_dir(disk.path("a/b/c/file/d"))


def test_remove_tree_takes_everything_and_is_silent_when_missing(disk: DiskUnderTest) -> None:
    disk.files.make_dir(disk.path("t/a/b"))
    disk.files.append_to(disk.path("t/a/b/file"), b"1")
    disk.files.append_to(disk.path("t/file"), b"1")
    disk.files.append_to(disk.path("stays"), b"1")
    disk.files.remove_tree(disk.path("t"))
    disk.files.remove_tree(disk.path("t"))
    assert disk.files.list_dir(disk.folder) == {"stays": 1}


def test_remove_tree_rejects_a_file(disk: DiskUnderTest) -> None:
    disk.files.append_to(disk.path("file"), b"1")
    with pytest.raises(StorageError):
        disk.files.remove_tree(disk.path("file"))
    assert disk.files.exists(disk.path("file"))


def test_a_missing_path_raises_file_not_found_error(disk: DiskUnderTest) -> None:
    missing = disk.path("missing")
    below = disk.path("missing/file")
    for call in (
        lambda: disk.files.map(missing),
        lambda: disk.files.read(missing),
        lambda: disk.files.size(missing),
        lambda: disk.files.list_dir(missing),
        lambda: disk.files.truncate(missing, 0),
        lambda: disk.files.rename(missing, disk.path("b")),
        lambda: disk.files.sync_file(missing),
        lambda: disk.files.sync_dir(missing),
        lambda: disk.files.open_log(below),
        lambda: disk.files.append_to(below, b"1"),
        lambda: disk.files.write_at(below, 0, b"1"),
        lambda: disk.files.replace(below, b"1"),
        lambda: disk.files.lock(below),
    ):
        with pytest.raises(FileNotFoundError):
            call()
    assert disk.files.list_dir(disk.folder) == {}


def test_free_and_total_bytes_of_a_missing_folder_raise(disk: DiskUnderTest) -> None:
    for call in (disk.files.free_bytes, disk.files.total_bytes):
        with pytest.raises(StorageError, match="missing"):
            call(disk.path("missing"))


def test_a_folder_is_no_file_and_a_file_no_folder(disk: DiskUnderTest) -> None:
    disk.files.make_dir(disk.path("sub"))
    disk.files.append_to(disk.path("file"), b"1")
    for call in (
        lambda: disk.files.open_log(disk.path("sub")),
        lambda: disk.files.map(disk.path("sub")),
        lambda: disk.files.read(disk.path("sub")),
        lambda: disk.files.append_to(disk.path("sub"), b"1"),
        lambda: disk.files.truncate(disk.path("sub"), 0),
        lambda: disk.files.sync_dir(disk.path("file")),
        lambda: disk.files.size(disk.path("file/below")),
        lambda: disk.files.open_log(disk.path("file/below")),
        lambda: disk.files.open_log(disk.path("x" * 256)),
    ):
        with pytest.raises(StorageError):
            call()
    with pytest.raises(NotADirectoryError):
        disk.files.list_dir(disk.path("file"))


def test_files_and_folders_can_be_synced(disk: DiskUnderTest) -> None:
    disk.files.append_to(disk.path("a"), b"1")
    disk.files.sync_file(disk.path("a"))
    disk.files.sync_dir(disk.folder)
    disk.files.sync_file(disk.folder)


# ---- locks and space ----


def test_a_lock_has_one_owner_until_it_is_released(disk: DiskUnderTest) -> None:
    lock = disk.files.lock(disk.path(".lock"))
    assert lock is not None
    assert disk.files.lock(disk.path(".lock")) is None
    assert disk.files.list_dir(disk.folder) == {".lock": 0}
    lock.release()
    again = disk.files.lock(disk.path(".lock"))
    assert again is not None
    lock.release()  # the old owner has no say any more
    assert disk.files.lock(disk.path(".lock")) is None
    again.release()


def test_locks_of_two_folders_are_independent(disk: DiskUnderTest) -> None:
    for name in ("a", "b"):
        disk.files.make_dir(disk.path(name))
    first = disk.files.lock(disk.path("a/.lock"))
    second = disk.files.lock(disk.path("b/.lock"))
    assert first is not None
    assert second is not None
    first.release()
    second.release()


def test_a_folder_whose_lock_file_was_removed_is_still_locked(disk: DiskUnderTest) -> None:
    first = disk.files.lock(disk.path(".lock"))
    assert first is not None
    disk.files.remove(disk.path(".lock"))
    assert disk.files.lock(disk.path(".lock")) is None
    first.release()
    second = disk.files.lock(disk.path(".lock"))
    assert second is not None
    second.release()


def test_free_bytes_are_between_zero_and_total_bytes(disk: DiskUnderTest) -> None:
    assert 0 < disk.files.free_bytes(disk.folder) <= disk.files.total_bytes(disk.folder)
