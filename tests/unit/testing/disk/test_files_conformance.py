"""The contract of `storage.files`, on the real disk and on the simulated one.

A test belongs here when it holds for both. That the double behaves as the disk does is what makes
every other test that uses it worth something.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from strandlog.errors import StorageError
from strandlog.model import Buffer
from strandlog.storage.files import TEMP_SUFFIX

if TYPE_CHECKING:
    from tests.unit.testing.disk.conftest import DiskUnderTest


# ---- open files ----


def test_an_opened_log_is_made_empty_when_missing(disk: DiskUnderTest) -> None:
    log = disk.files.open_log(disk.path("a.log"))
    assert log.size == 0
    assert disk.files.size(disk.path("a.log")) == 0
    log.close()


def test_append_writes_all_buffers_in_order_at_the_end(disk: DiskUnderTest) -> None:
    log = disk.files.open_log(disk.path("a.log"))
    buffers: list[Buffer] = [b"one", bytearray(b"two"), memoryview(b"-three-")[1:6], b""]
    log.append(buffers)
    log.append([b"four"])
    assert log.size == 15
    assert disk.files.read(disk.path("a.log")) == b"onetwothreefour"
    log.close()


@pytest.mark.parametrize("buffers", [[], [b""], [b"", b""]])
def test_append_of_nothing_changes_nothing(disk: DiskUnderTest, buffers: list[Buffer]) -> None:
    log = disk.files.open_log(disk.path("a.log"))
    log.append(buffers)
    assert log.size == 0
    log.close()


def test_a_reopened_log_appends_at_its_end(disk: DiskUnderTest) -> None:
    first = disk.files.open_log(disk.path("a.log"))
    first.append([b"abc"])
    first.close()
    second = disk.files.open_log(disk.path("a.log"))
    assert second.size == 3
    second.append([b"def"])
    assert second.read(0, 100) == b"abcdef"
    second.close()


@pytest.mark.parametrize(
    ("position", "length", "expected"),
    [(0, 3, b"012"), (8, 2, b"89"), (8, 10, b"89"), (10, 1, b""), (99, 5, b""), (3, 0, b"")],
)
def test_read_is_shorter_at_the_end(
    disk: DiskUnderTest, position: int, length: int, expected: bytes
) -> None:
    log = disk.files.open_log(disk.path("a.log"))
    log.append([b"0123456789"])
    assert log.read(position, length) == expected
    log.close()


def test_overwrite_changes_bytes_and_not_the_size(disk: DiskUnderTest) -> None:
    log = disk.files.open_log(disk.path("a.log"))
    log.append([b"0123456789"])
    log.overwrite(8, memoryview(b"xy"))
    log.overwrite(0, b"z")
    assert log.size == 10
    assert log.read(0, 10) == b"z1234567xy"
    log.close()


def test_append_continues_at_the_end_that_truncate_sets(disk: DiskUnderTest) -> None:
    log = disk.files.open_log(disk.path("a.log"))
    log.append([b"0123456789"])
    log.truncate(4)
    assert log.size == 4
    log.append([b"ab"])
    assert disk.files.read(disk.path("a.log")) == b"0123ab"
    log.close()


def test_truncate_beyond_the_end_adds_zeros(disk: DiskUnderTest) -> None:
    log = disk.files.open_log(disk.path("a.log"))
    log.append([b"ab"])
    log.truncate(4)
    assert log.size == 4
    assert log.read(0, 9) == b"ab\0\0"
    log.close()


def test_sync_and_close_can_be_repeated(disk: DiskUnderTest) -> None:
    log = disk.files.open_log(disk.path("a.log"))
    log.append([b"ab"])
    log.sync()
    log.sync()
    log.close()
    log.close()


def test_a_closed_log_refuses_everything(disk: DiskUnderTest) -> None:
    log = disk.files.open_log(disk.path("a.log"))
    log.append([b"ab"])
    log.close()
    with pytest.raises(StorageError):
        log.append([b"cd"])
    with pytest.raises(StorageError):
        log.read(0, 1)
    with pytest.raises(StorageError):
        log.overwrite(0, b"x")
    with pytest.raises(StorageError):
        log.truncate(0)
    with pytest.raises(StorageError):
        log.sync()
    assert disk.files.read(disk.path("a.log")) == b"ab"


def test_an_open_log_survives_rename_and_removal(disk: DiskUnderTest) -> None:
    log = disk.files.open_log(disk.path("a.log"))
    log.append([b"one"])
    disk.files.rename(disk.path("a.log"), disk.path("b.log"))
    log.append([b"two"])
    assert disk.files.read(disk.path("b.log")) == b"onetwo"
    disk.files.remove(disk.path("b.log"))
    log.append([b"three"])
    log.sync()
    assert log.read(0, 100) == b"onetwothree"
    assert disk.files.list_dir(disk.folder) == {}
    log.close()


def test_each_handle_appends_where_it_saw_the_end(disk: DiskUnderTest) -> None:
    first = disk.files.open_log(disk.path("a.log"))
    second = disk.files.open_log(disk.path("a.log"))
    first.append([b"abc"])
    assert second.size == 0
    second.append([b"X"])
    assert disk.files.read(disk.path("a.log")) == b"Xbc"
    first.close()
    second.close()


def test_append_after_a_truncation_through_another_handle_leaves_zeros(disk: DiskUnderTest) -> None:
    log = disk.files.open_log(disk.path("a.log"))
    log.append([b"abcd"])
    disk.files.truncate(disk.path("a.log"), 1)
    log.append([b"e"])
    assert disk.files.read(disk.path("a.log")) == b"a\0\0\0e"
    log.close()


# ---- mappings ----


def test_a_map_shows_the_file(disk: DiskUnderTest) -> None:
    disk.files.append_to(disk.path("a.log"), b"0123456789")
    mapped = disk.files.map(disk.path("a.log"))
    assert bytes(mapped.view[2:4]) == b"23"
    assert len(mapped.view) == 10
    assert mapped.view.readonly
    mapped.close()


def test_an_empty_file_can_be_mapped(disk: DiskUnderTest) -> None:
    disk.files.append_to(disk.path("a.log"), b"")
    mapped = disk.files.map(disk.path("a.log"))
    assert len(mapped.view) == 0
    mapped.close()


def test_a_map_may_be_closed_while_a_slice_is_held_and_twice(disk: DiskUnderTest) -> None:
    disk.files.append_to(disk.path("a.log"), b"0123456789" * 1000)
    mapped = disk.files.map(disk.path("a.log"))
    held = mapped.view[5000:5004]
    mapped.close()
    mapped.close()
    assert bytes(held) == b"0123"
    assert len(mapped.view) == 0


def test_a_map_survives_removal_and_appends(disk: DiskUnderTest) -> None:
    disk.files.append_to(disk.path("a.log"), b"0123")
    mapped = disk.files.map(disk.path("a.log"))
    disk.files.append_to(disk.path("a.log"), b"4567")
    disk.files.remove(disk.path("a.log"))
    assert bytes(mapped.view) == b"0123"
    mapped.close()


# ---- whole files ----


def test_append_to_makes_the_file_and_then_adds(disk: DiskUnderTest) -> None:
    disk.files.append_to(disk.path("a"), b"one")
    disk.files.append_to(disk.path("a"), memoryview(b"two"))
    assert disk.files.read(disk.path("a")) == b"onetwo"
    assert disk.files.size(disk.path("a")) == 6


def test_write_at_makes_overwrites_and_extends(disk: DiskUnderTest) -> None:
    disk.files.write_at(disk.path("a"), 2, b"cd")
    assert disk.files.read(disk.path("a")) == b"\0\0cd"
    disk.files.write_at(disk.path("a"), 0, b"ab")
    disk.files.write_at(disk.path("a"), 3, b"DE")
    assert disk.files.read(disk.path("a")) == b"abcDE"


def test_truncate_by_name(disk: DiskUnderTest) -> None:
    disk.files.append_to(disk.path("a"), b"0123")
    disk.files.truncate(disk.path("a"), 1)
    assert disk.files.read(disk.path("a")) == b"0"
    disk.files.truncate(disk.path("a"), 3)
    assert disk.files.read(disk.path("a")) == b"0\0\0"


def test_replace_leaves_one_file_with_the_new_contents(disk: DiskUnderTest) -> None:
    disk.files.replace(disk.path("a"), b"first, and rather long")
    disk.files.replace(disk.path("a"), memoryview(b"second"))
    assert disk.files.read(disk.path("a")) == b"second"
    assert disk.files.list_dir(disk.folder) == {"a": 6}


def test_replace_can_write_an_empty_file(disk: DiskUnderTest) -> None:
    disk.files.replace(disk.path("a"), b"")
    assert disk.files.list_dir(disk.folder) == {"a": 0}


def test_replace_takes_over_a_temp_file_that_was_left(disk: DiskUnderTest) -> None:
    disk.files.append_to(disk.path("a" + TEMP_SUFFIX), b"half of something longer")
    disk.files.replace(disk.path("a"), b"whole")
    assert disk.files.list_dir(disk.folder) == {"a": 5}
    assert disk.files.read(disk.path("a")) == b"whole"


def test_a_reader_keeps_the_replaced_file(disk: DiskUnderTest) -> None:
    disk.files.replace(disk.path("a"), b"old")
    log = disk.files.open_log(disk.path("a"))
    disk.files.replace(disk.path("a"), b"new")
    assert log.read(0, 9) == b"old"
    log.close()
