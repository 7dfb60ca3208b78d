"""The real disk: faults that the kernel can be made to show, and what must outlive a process.

What holds for every disk is in `tests/unit/testing/disk/test_files_conformance.py`, which runs on
this one as well.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandlog.errors import DiskFullError, StorageError
from strandlog.storage.files import TEMP_SUFFIX, DiskFiles, disk_error

TMPFS_BYTES = 64 * 1024
BIG = b"x" * (2 * TMPFS_BYTES)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[str]:
    """A folder on a disk of 64 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={TMPFS_BYTES}", "tmpfs", str(folder)]
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small tmpfs")
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"a small tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield str(folder)
    finally:
        gc.collect()  # an open file would keep it busy
        subprocess.run(["umount", str(folder)], check=True)


@contextlib.contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """No file may grow beyond `size`; Python ignores the SIGXFSZ that comes with it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# ---- a full disk ----


def test_append_to_a_full_disk_is_cut_back(small_disk: str) -> None:
    log = DiskFiles().open_log(f"{small_disk}/a.log")
    log.append([b"kept"])
    with pytest.raises(DiskFullError, match=r"could not append to .*a\.log: No space left"):
        log.append([b"y" * 10_000, BIG])
    assert log.size == 4
    assert os.stat(f"{small_disk}/a.log").st_size == 4
    log.append([b", and more"])
    assert log.read(0, 100) == b"kept, and more"
    log.close()


def test_append_works_again_after_space_is_freed(small_disk: str) -> None:
    files = DiskFiles()
    files.append_to(f"{small_disk}/ballast", b"b" * (TMPFS_BYTES - 8192))
    log = files.open_log(f"{small_disk}/a.log")
    with pytest.raises(DiskFullError):
        log.append([b"z" * 20_000])
    files.remove(f"{small_disk}/ballast")
    log.append([b"z" * 20_000])
    assert files.size(f"{small_disk}/a.log") == 20_000
    log.close()


def test_replace_on_a_full_disk_leaves_the_old_file(small_disk: str) -> None:
    files = DiskFiles()
    files.replace(f"{small_disk}/state", b"old")
    with pytest.raises(DiskFullError):
        files.replace(f"{small_disk}/state", BIG)
    assert files.read(f"{small_disk}/state") == b"old"


def test_writes_by_name_to_a_full_disk_raise_disk_full_error(small_disk: str) -> None:
    files = DiskFiles()
    with pytest.raises(DiskFullError):
        files.append_to(f"{small_disk}/a", BIG)
    files.remove(f"{small_disk}/a")
    with pytest.raises(DiskFullError):
        files.write_at(f"{small_disk}/b", 0, BIG)


def test_free_bytes_shrink_by_the_size_of_a_written_file(small_disk: str) -> None:
    files = DiskFiles()
    before = files.free_bytes(small_disk)
    assert before == TMPFS_BYTES
    files.append_to(f"{small_disk}/a", b"1" * 8192)
    assert files.free_bytes(small_disk) == before - 8192


# ---- short writes, without being root ----


def test_a_short_append_is_cut_back(tmp_path: Path) -> None:
    log = DiskFiles().open_log(str(tmp_path / "a.log"))
    log.append([b"0123456789"])
    with file_size_limit(64), pytest.raises(StorageError, match="File too large"):
        log.append([b"a" * 40, b"b" * 40])
    assert log.size == 10
    assert (tmp_path / "a.log").read_bytes() == b"0123456789"
    with file_size_limit(64):
        log.append([b"c" * 54])  # exactly up to the limit
    assert log.size == 64
    log.close()


def test_short_writes_by_name_are_not_mistaken_for_complete_ones(tmp_path: Path) -> None:
    files = DiskFiles()
    with file_size_limit(64):
        with pytest.raises(StorageError):
            files.write_at(str(tmp_path / "a"), 0, b"x" * 100)
        with pytest.raises(StorageError):
            files.append_to(str(tmp_path / "b"), b"x" * 100)
        with pytest.raises(StorageError):
            files.replace(str(tmp_path / "c"), b"x" * 100)
    assert not (tmp_path / "c").exists()


# ---- a failing disk ----


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, DiskFullError),
        (errno.EDQUOT, DiskFullError),
        (errno.EIO, StorageError),
        (errno.EROFS, StorageError),
        (errno.EACCES, StorageError),
    ],
)
def test_disk_error_names_the_operation_the_path_and_the_reason(
    number: int, kind: type[StorageError]
) -> None:
    error = disk_error("sync", "/data/x.log", OSError(number, os.strerror(number)))
    assert type(error) is kind
    assert str(error).startswith(f"could not sync /data/x.log: {os.strerror(number)}")


def test_a_failed_sync_is_a_storage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    files = DiskFiles()
    log = files.open_log(str(tmp_path / "a.log"))
    monkeypatch.setattr(os, "fdatasync", refuse)
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(StorageError, match=r"could not sync .*a\.log: Input/output error"):
        log.sync()
    with pytest.raises(StorageError):
        files.sync_file(str(tmp_path / "a.log"))
    with pytest.raises(StorageError):
        files.sync_dir(str(tmp_path))
    with pytest.raises(StorageError):
        files.replace(str(tmp_path / "b"), b"1")
    assert not (tmp_path / "b").exists()
    log.close()


def test_a_file_that_grows_during_the_check_is_not_reported_as_truncated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = DiskFiles().open_log(str(tmp_path / "log"))
    file.append([b"first"])
    fstat = os.fstat

    def append_meanwhile(fd: int) -> os.stat_result:
        found = fstat(fd)
        file.append([b"second"])
        return found

    monkeypatch.setattr(os, "fstat", append_meanwhile)
    file.check_present()
    monkeypatch.undo()
    os.truncate(tmp_path / "log", 3)
    with pytest.raises(StorageError, match="was truncated from 11 to 3 bytes"):
        file.check_present()
    file.close()


def test_replace_is_durable_in_the_right_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    real_sync, real_replace = os.fsync, os.replace

    def sync(fd: int) -> None:
        seen.append(f"sync {os.path.basename(os.readlink(f'/proc/self/fd/{fd}'))}")
        real_sync(fd)

    def replace(source: str, target: str) -> None:
        seen.append(f"rename {os.path.basename(source)} {os.path.basename(target)}")
        real_replace(source, target)

    DiskFiles().replace(str(tmp_path / "a"), b"old")
    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", replace)
    DiskFiles().replace(str(tmp_path / "a"), b"new")
    assert seen == [
        f"sync a{TEMP_SUFFIX}",
        f"rename a{TEMP_SUFFIX} a",
        f"sync {tmp_path.name}",
    ]


def test_replace_of_a_bare_name_syncs_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    DiskFiles().replace("a", b"1")
    assert (tmp_path / "a").read_bytes() == b"1"


# ---- what the process holds ----


def test_no_file_stays_open(tmp_path: Path) -> None:
    files = DiskFiles()
    before = len(os.listdir("/proc/self/fd"))
    for name in ("a", "b"):
        log = files.open_log(str(tmp_path / name))
        log.append([b"123"])
        files.map(str(tmp_path / name)).close()
        files.replace(str(tmp_path / name), b"456")
        files.sync_file(str(tmp_path / name))
        lock = files.lock(str(tmp_path / "lock"))
        assert lock is not None
        assert files.lock(str(tmp_path / "lock")) is None
        lock.release()
        log.close()
    with pytest.raises(FileNotFoundError):
        files.open_log(str(tmp_path / "no" / "a"))
    del log
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_mapping_goes_when_its_last_slice_goes(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"0123456789" * 1000)
    mapped = DiskFiles().map(str(path))
    held = mapped.view[9_990:]
    mapped.close()
    del mapped
    gc.collect()
    assert bytes(held) == b"0123456789"
    assert str(path) in Path("/proc/self/maps").read_text()
    held.release()
    del held
    gc.collect()
    assert str(path) not in Path("/proc/self/maps").read_text()


HOLD_LOCK = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(fd, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    path = str(tmp_path / ".lock")
    with subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "locked\n"
        assert DiskFiles().lock(path) is None
        child.kill()
        child.wait()
    lock = DiskFiles().lock(path)
    assert lock is not None
    lock.release()


def test_a_file_removed_while_its_folder_is_listed_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"1")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")  # looks the same to stat
    assert DiskFiles().list_dir(str(tmp_path)) == {"there": 1}


def test_opening_a_planted_fifo_does_not_block(tmp_path: Path) -> None:
    path = str(tmp_path / "00000000000000000000.log")
    os.mkfifo(path)
    files = DiskFiles()
    assert files.read(path) == b""
    with pytest.raises(StorageError):
        files.append_to(path, b"x")
