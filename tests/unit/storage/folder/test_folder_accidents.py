"""Other programs change the files of an open log: it notices, and continues where possible."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.log_builders import (
    START_MS,
    TP,
    batch,
    create_partition,
    fill,
    small_settings,
    uuids,
)

from strandlog.errors import AlreadyOpenError, CorruptSegmentError, StorageError, StrandlogError
from strandlog.model import TopicPartition
from strandlog.storage.cleaning.compaction import compact_now
from strandlog.storage.files import DiskFiles
from strandlog.storage.folder.log_dir import LogDir
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.partition.read import read
from strandlog.storage.work import run_inline
from strandlog.testing import FakeClock


def opened(folder: Path, segment_bytes: int = 12_000) -> tuple[LogDir, PartitionLog]:
    log_dir = LogDir(str(folder), DiskFiles(), FakeClock(START_MS), uuids())
    create_partition(log_dir, TP, "topic-id", small_settings(segment_bytes=segment_bytes))
    return log_dir, log_dir.logs[TP]


def cut_under_a_reader(folder: str) -> None:
    """In a process of its own, which SIGBUS would kill."""
    log_dir, log = opened(Path(folder))
    fill(log, 600)
    log.flush()
    first = log.segments.sealed[0]
    assert first.size_bytes > 2 * 4096, "the cut must take a whole page away"
    assert read(log, 0, 100)  # from now on it is mapped
    os.truncate(first.log_path, 200)
    assert read(log, 0, 50), "what is left can be read"
    with pytest.raises(CorruptSegmentError) as damage:
        read(log, first.end_offset - 1, 100)
    assert damage.value.resume_offset == first.end_offset
    assert read(log, first.end_offset, 100)
    assert any("was truncated while it was open" in problem for problem in log_dir.problems)
    with pytest.raises(CorruptSegmentError):
        compact_now(log)


def test_truncating_a_mapped_sealed_segment_does_not_kill_the_process(tmp_path: Path) -> None:
    call = f"from {__name__} import cut_under_a_reader as f; f({str(tmp_path / 'data')!r})"
    done = subprocess.run(
        [sys.executable, "-c", call], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stderr}"


def test_a_removed_sealed_segment_is_reported_as_damage_with_a_resume_offset(
    tmp_path: Path,
) -> None:
    log_dir, log = opened(tmp_path / "data", 600)
    fill(log, 60)
    log.flush()
    first = log.segments.sealed[0]
    assert read(log, 0, 100)
    os.truncate(first.log_path, 10)
    with pytest.raises(CorruptSegmentError):
        read(log, 0, 100)
    Path(first.log_path).unlink()  # of a segment that is no longer mapped
    with pytest.raises(CorruptSegmentError):
        read(log, 0, 100)
    log.context.cache.drop(first.stem)
    assert not Path(first.log_path).exists()
    with pytest.raises(CorruptSegmentError, match="the file is missing") as damage:
        read(log, 0, 100)
    assert damage.value.resume_offset == first.end_offset
    assert any("was removed while it was in use" in problem for problem in log_dir.problems)


@pytest.mark.parametrize("accident", ["removed", "truncated"])
def test_nothing_is_acknowledged_after_the_folder_is_removed_or_the_segment_truncated(
    tmp_path: Path, accident: str
) -> None:
    log_dir, log = opened(tmp_path / "data")
    fill(log, 3)
    log.flush()
    if accident == "removed":
        shutil.rmtree(tmp_path / "data")
    else:
        os.truncate(log.segments.active.log_path, 10)
        fill(log, 1)
        os.truncate(log.segments.active.log_path, 10)
    log.append(batch(b"lost"))
    if accident == "truncated":
        os.truncate(log.segments.active.log_path, 10)
    end = log.flushed_offset
    with pytest.raises(StorageError, match=f"was {accident}"):
        log.flush()
    assert log.flushed_offset == end
    with pytest.raises(StorageError):
        log.append(batch(b"refused"))
    with pytest.raises(StrandlogError):
        run_inline(log.rewrite_tail())
    if accident == "removed":
        with pytest.raises(StorageError, match="was removed"):
            create_partition(log_dir, TopicPartition("later", 0), "id", small_settings())
        with pytest.raises(StorageError, match="No such file"):
            log_dir.files.free_bytes(log_dir.path)
        assert not (tmp_path / "data").exists(), "half a folder would be refused at the next start"
        with pytest.raises(StorageError, match="its folder is missing"):
            log_dir.close()


@pytest.mark.parametrize("accident", ["removed", "truncated"])
def test_records_are_not_appended_to_a_file_that_lost_its_bytes_while_it_was_closed(
    tmp_path: Path, accident: str
) -> None:
    _, log = opened(tmp_path / "data")
    fill(log, 3)
    log.flush()
    active = log.segments.active
    active.forget_file()  # as `OpenFiles` does above its limit
    if accident == "removed":
        Path(active.log_path).unlink()
    else:
        os.truncate(active.log_path, 10)
    with pytest.raises(StorageError, match=f"bytes instead of {active.size_bytes}"):
        log.append(batch(b"lost"))
    assert log.log_end_offset == 3


@pytest.mark.parametrize("mode", [0o700, 0o750])
def test_new_folders_and_files_are_private_unless_set_otherwise(tmp_path: Path, mode: int) -> None:
    umask = os.umask(0)
    try:
        data = tmp_path / "made" / "data"
        log_dir = LogDir(str(data), DiskFiles(mode), FakeClock(START_MS), uuids())
        create_partition(log_dir, TP, "topic-id", small_settings())
        fill(log_dir.logs[TP], 60)
        log_dir.close()
    finally:
        os.umask(umask)
    found = [data.parent, data, *data.rglob("*")]
    assert len(found) > 20
    for path in found:
        wanted = mode if path.is_dir() else mode & 0o666
        assert stat.S_IMODE(path.lstat().st_mode) == wanted, path


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    files, victim = DiskFiles(), tmp_path / "victim"
    victim.write_bytes(b"precious")
    planted = tmp_path / "state.tmp"
    planted.symlink_to(victim)
    files.replace(str(tmp_path / "state"), b"new")
    assert (tmp_path / "state").read_bytes() == b"new"
    for write in (
        lambda path: files.append_to(path, b"x"),
        lambda path: files.write_at(path, 0, b"x"),
        lambda path: files.open_log(path).append([b"x"]),
        files.lock,
    ):
        planted.symlink_to(victim)
        with pytest.raises(StorageError):
            write(str(planted))
        planted.unlink()
    assert victim.read_bytes() == b"precious"


def test_removing_the_lock_file_does_not_admit_a_second_owner(tmp_path: Path) -> None:
    log_dir, _ = opened(tmp_path)
    (tmp_path / ".lock").unlink()
    with pytest.raises(AlreadyOpenError):
        LogDir(str(tmp_path), DiskFiles(), FakeClock(START_MS), uuids())
    log_dir.close()
    LogDir(str(tmp_path), DiskFiles(), FakeClock(START_MS), uuids()).close()
