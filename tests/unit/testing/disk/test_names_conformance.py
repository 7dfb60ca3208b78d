"""Names, folders and locks: what `storage.files` promises, asked of both disks alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from strandlog.errors import StorageError
from strandlog.storage.files import DIRECTORY

if TYPE_CHECKING:
    from tests.unit.testing.disk.conftest import Place


# ---- names ----


def test_list_dir_tells_sizes_and_folders(place: Place) -> None:
    place.files.append_to(place.path("a"), b"123")
    place.files.append_to(place.path("empty"), b"")
    place.files.make_dir(place.path("sub/deep"))
    assert place.files.list_dir(place.folder) == {"a": 3, "empty": 0, "sub": DIRECTORY}
    assert place.files.list_dir(place.path("sub")) == {"deep": DIRECTORY}
    assert place.files.list_dir(place.path("sub/deep")) == {}


def test_exists_sees_files_and_folders(place: Place) -> None:
    place.files.append_to(place.path("a"), b"")
    assert place.files.exists(place.path("a"))
    assert place.files.exists(place.folder)
    assert not place.files.exists(place.path("b"))
    assert not place.files.exists(place.path("a/b"))
    assert not place.files.exists(place.path("b/c"))


def test_rename_takes_the_place_of_another_file(place: Place) -> None:
    place.files.append_to(place.path("a"), b"new")
    place.files.append_to(place.path("b"), b"older")
    place.files.rename(place.path("a"), place.path("b"))
    assert place.files.list_dir(place.folder) == {"b": 3}
    place.files.rename(place.path("b"), place.path("b"))
    assert place.files.read(place.path("b")) == b"new"


def test_rename_moves_a_folder_with_all_that_is_in_it(place: Place) -> None:
    place.files.make_dir(place.path("orders-0"))
    place.files.append_to(place.path("orders-0/x.log"), b"123")
    place.files.make_dir(place.path("attic"))
    place.files.rename(place.path("orders-0"), place.path("attic/orders-0"))
    assert place.files.list_dir(place.folder) == {"attic": DIRECTORY}
    assert place.files.read(place.path("attic/orders-0/x.log")) == b"123"


def test_rename_refuses_what_posix_refuses(place: Place) -> None:
    place.files.make_dir(place.path("empty"))
    place.files.make_dir(place.path("full/sub"))
    place.files.append_to(place.path("file"), b"1")
    for source, target in [
        ("empty", "full"),
        ("file", "empty"),
        ("empty", "file"),
        ("full", "full/sub/inside"),
        ("file", "x" * 256),
    ]:
        with pytest.raises(StorageError):
            place.files.rename(place.path(source), place.path(target))
    place.files.rename(place.path("full"), place.path("empty"))
    assert place.files.list_dir(place.path("empty")) == {"sub": DIRECTORY}


def test_remove_is_silent_about_what_is_not_there(place: Place) -> None:
    place.files.append_to(place.path("a"), b"1")
    place.files.remove(place.path("a"))
    place.files.remove(place.path("a"))
    place.files.remove(place.path("no/such/folder"))
    assert place.files.list_dir(place.folder) == {}


def test_remove_does_not_take_a_folder(place: Place) -> None:
    place.files.make_dir(place.path("sub"))
    with pytest.raises(StorageError):
        place.files.remove(place.path("sub"))
    assert place.files.exists(place.path("sub"))


def test_make_dir_makes_parents_and_can_be_repeated(place: Place) -> None:
    place.files.make_dir(place.path("a/b/c"))
    place.files.make_dir(place.path("a/b/c"))
    place.files.append_to(place.path("a/b/c/file"), b"1")
    with pytest.raises(StorageError):
        place.files.make_dir(place.path("a/b/c/file"))
    with pytest.raises(StorageError):
        place.files.make_dir(place.path("a/b/c/file/d"))


def test_remove_tree_takes_everything_and_is_silent_when_missing(place: Place) -> None:
    place.files.make_dir(place.path("t/a/b"))
    place.files.append_to(place.path("t/a/b/file"), b"1")
    place.files.append_to(place.path("t/file"), b"1")
    place.files.append_to(place.path("stays"), b"1")
    place.files.remove_tree(place.path("t"))
    place.files.remove_tree(place.path("t"))
    assert place.files.list_dir(place.folder) == {"stays": 1}


def test_remove_tree_does_not_take_a_file(place: Place) -> None:
    place.files.append_to(place.path("file"), b"1")
    with pytest.raises(StorageError):
        place.files.remove_tree(place.path("file"))
    assert place.files.exists(place.path("file"))


def test_what_is_missing_is_a_file_not_found_error(place: Place) -> None:
    missing = place.path("missing")
    below = place.path("missing/file")
    for call in (
        lambda: place.files.map(missing),
        lambda: place.files.read(missing),
        lambda: place.files.size(missing),
        lambda: place.files.list_dir(missing),
        lambda: place.files.truncate(missing, 0),
        lambda: place.files.rename(missing, place.path("b")),
        lambda: place.files.sync_file(missing),
        lambda: place.files.sync_dir(missing),
        lambda: place.files.open_log(below),
        lambda: place.files.append_to(below, b"1"),
        lambda: place.files.write_at(below, 0, b"1"),
        lambda: place.files.replace(below, b"1"),
        lambda: place.files.lock(below),
    ):
        with pytest.raises(FileNotFoundError):
            call()
    assert place.files.list_dir(place.folder) == {}


def test_a_folder_that_is_gone_has_no_disk(place: Place) -> None:
    for call in (place.files.free_bytes, place.files.total_bytes):
        with pytest.raises(StorageError, match="missing"):
            call(place.path("missing"))


def test_a_folder_is_no_file_and_a_file_no_folder(place: Place) -> None:
    place.files.make_dir(place.path("sub"))
    place.files.append_to(place.path("file"), b"1")
    for call in (
        lambda: place.files.open_log(place.path("sub")),
        lambda: place.files.map(place.path("sub")),
        lambda: place.files.read(place.path("sub")),
        lambda: place.files.append_to(place.path("sub"), b"1"),
        lambda: place.files.truncate(place.path("sub"), 0),
        lambda: place.files.sync_dir(place.path("file")),
        lambda: place.files.size(place.path("file/below")),
        lambda: place.files.open_log(place.path("file/below")),
        lambda: place.files.open_log(place.path("x" * 256)),
    ):
        with pytest.raises(StorageError):
            call()
    with pytest.raises(NotADirectoryError):
        place.files.list_dir(place.path("file"))


def test_files_and_folders_can_be_synced(place: Place) -> None:
    place.files.append_to(place.path("a"), b"1")
    place.files.sync_file(place.path("a"))
    place.files.sync_dir(place.folder)
    place.files.sync_file(place.folder)


# ---- locks and space ----


def test_a_lock_has_one_owner_until_it_is_released(place: Place) -> None:
    lock = place.files.lock(place.path(".lock"))
    assert lock is not None
    assert place.files.lock(place.path(".lock")) is None
    assert place.files.list_dir(place.folder) == {".lock": 0}
    lock.release()
    again = place.files.lock(place.path(".lock"))
    assert again is not None
    lock.release()  # the old owner has no say any more
    assert place.files.lock(place.path(".lock")) is None
    again.release()


def test_locks_of_two_folders_do_not_mind_each_other(place: Place) -> None:
    for name in ("a", "b"):
        place.files.make_dir(place.path(name))
    first = place.files.lock(place.path("a/.lock"))
    second = place.files.lock(place.path("b/.lock"))
    assert first is not None
    assert second is not None
    first.release()
    second.release()


def test_a_folder_whose_lock_file_was_removed_is_still_locked(place: Place) -> None:
    first = place.files.lock(place.path(".lock"))
    assert first is not None
    place.files.remove(place.path(".lock"))
    assert place.files.lock(place.path(".lock")) is None
    first.release()
    second = place.files.lock(place.path(".lock"))
    assert second is not None
    second.release()


def test_there_is_space(place: Place) -> None:
    assert 0 < place.files.free_bytes(place.folder) <= place.files.total_bytes(place.folder)
