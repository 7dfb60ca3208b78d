"""Disk space set aside for the writes that free space."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from strandlog.errors import DiskFullError
from strandlog.storage.files import DiskFiles
from strandlog.storage.folder.disk_reserve import DiskReserve
from strandlog.testing.disk.files import SimulatedFiles

SIZE = 1000


def folder_of(capacity_bytes: int | None) -> SimulatedFiles:
    files = SimulatedFiles()
    files.make_dir("/data")
    files.capacity_bytes = capacity_bytes
    return files


def test_the_reserve_is_released_only_while_the_disk_is_full() -> None:
    files = folder_of(10 * SIZE)
    reserve = DiskReserve(files, "/data", SIZE)
    reserve.hold()
    with reserve.spending():
        assert reserve.is_held, "there is room without it"
    files.append_to("/data/filler", bytes(9 * SIZE))
    with pytest.raises(DiskFullError):
        files.replace("/data/state", bytes(SIZE // 2))
    with reserve.spending():
        files.replace("/data/state", bytes(SIZE // 2))
        files.remove("/data/filler")
        reserve.hold()
        assert not files.exists("/data/.reserve"), "not while an operation may need the space"
    reserve.hold()
    assert files.exists("/data/.reserve")


def test_the_reserve_is_not_allocated_if_it_would_fill_the_disk() -> None:
    files = folder_of(2 * SIZE - 1)
    reserve = DiskReserve(files, "/data", SIZE)
    reserve.hold()
    assert not reserve.is_held


def test_an_incomplete_reserve_file_is_allocated_again() -> None:
    files = folder_of(None)
    files.append_to("/data/.reserve", bytes(SIZE - 1))
    reserve = DiskReserve(files, "/data", SIZE)
    assert not reserve.is_held
    reserve.hold()
    assert files.size("/data/.reserve") == SIZE


def test_a_failed_allocation_is_not_an_error() -> None:
    files = folder_of(None)
    reserve = DiskReserve(files, "/data", SIZE)
    files.fail_next("append", errno.ENOSPC)
    reserve.hold()
    assert not reserve.is_held


def test_a_size_of_zero_disables_the_reserve() -> None:
    files = folder_of(None)
    DiskReserve(files, "/data", 0).hold()
    assert not files.exists("/data/.reserve")


def test_on_a_real_disk_the_reserve_occupies_blocks_and_follows_no_symlink(tmp_path: Path) -> None:
    files = DiskFiles()
    reserve = DiskReserve(files, str(tmp_path), 1 << 20)
    reserve.hold()
    path = tmp_path / ".reserve"
    assert path.stat().st_blocks * 512 >= 1 << 20
    path.unlink()
    victim = tmp_path / "victim"
    victim.write_bytes(b"kept")
    path.symlink_to(victim)
    reserve.hold()
    assert victim.read_bytes() == b"kept"
