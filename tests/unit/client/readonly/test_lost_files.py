"""Reads of a folder in which files of a partition are lost or have other kinds."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import strandlog
from strandlog.errors import CorruptSegmentError, UnknownLayoutError
from strandlog.storage.files import DiskFiles
from strandlog.storage.readonly.view import FolderView


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a partition with two segments."""
    with strandlog.open(tmp_path) as log:
        log.create_topic("t", 2, {"segment.bytes": 1024})
        for _ in range(12):
            log.producer().send("t", b"x" * 100, partition=0)
    return tmp_path / "t-0"


class ListsOnce(DiskFiles):
    """The first list of a partition's files does not have the last segment yet."""

    def __init__(self) -> None:
        super().__init__()
        self._is_first = True

    def list_dir(self, path: str) -> dict[str, int]:
        names = super().list_dir(path)
        if self._is_first and path.endswith("t-0"):
            self._is_first = False
            del names[max(name for name in names if name.endswith(".log"))]
        return names


def lose(path: Path) -> None:
    path.unlink()


def truncate(path: Path) -> None:
    os.truncate(path, 0)


@pytest.mark.parametrize("how", [lose, truncate])
def test_a_read_only_log_ends_silently_before_a_lost_last_segment(
    folder: Path, how: Callable[[Path], None]
) -> None:
    *_, before, last = sorted(folder.glob("*.log"))
    assert before.stat().st_size and last.stat().st_size
    lost = int(last.stem)
    how(last)
    with strandlog.read(folder.parent) as log:
        consumer = log.consumer(["t"])
        found = []
        with pytest.raises(CorruptSegmentError, match=f"{lost} to 11 were durable") as raised:
            while records := consumer.poll():
                found += records
        assert [record.offset for record in found] == list(range(lost))
        assert raised.value.resume_offset == 12
    with strandlog.read(folder.parent) as log:
        consumer = log.consumer(["t"], on_unreadable="skip")
        found = []
        while records := consumer.poll():
            found += records
        assert [record.offset for record in found] == list(range(lost))
        assert [skipped[2:4] for skipped in consumer.skipped] == [(lost, 11)]


def test_a_read_only_log_is_silently_empty_if_all_segments_are_lost(folder: Path) -> None:
    for path in folder.glob("*.log"):
        path.unlink()
    with strandlog.read(folder.parent) as log:
        consumer = log.consumer(["t"])
        with pytest.raises(CorruptSegmentError, match="offsets 0 to 11 were durable and are lost"):
            consumer.poll()


def test_a_reader_takes_a_segment_that_the_owner_has_just_added_for_a_lost_one(
    folder: Path,
) -> None:
    """The owner adds a segment after the reader has listed the files, and before it reads the
    recovery point."""
    tp = strandlog.TopicPartition("t", 0)
    view = FolderView(ListsOnce(), str(folder.parent)).view(tp)
    assert view.end_offset == 12
    assert not view.read(11, 1000)
    view.refresh()
    assert view.read(11, 1000)


def test_a_file_in_place_of_a_partition_is_a_not_a_directory_error(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    folder.write_bytes(b"")
    with (
        strandlog.read(folder.parent) as log,
        pytest.raises(UnknownLayoutError, match=r"t-0 .*a file, not a folder"),
    ):
        log.describe_topic("t")


def test_a_read_only_log_starts_silently_after_a_lost_first_segment(folder: Path) -> None:
    first, second, *_ = sorted(folder.glob("*.log"))
    lost = int(second.stem)
    with strandlog.read(folder.parent) as running:
        assert running.describe_topic("t").partitions[0].start_offset == 0
        lose(first)
        for log in (running, strandlog.read(folder.parent)):
            with pytest.raises(CorruptSegmentError, match="the file is missing") as raised:
                log.consumer(["t"]).poll()
            assert raised.value.resume_offset == lost
            consumer = log.consumer(["t"], on_unreadable="skip")
            assert consumer.poll()[0].offset == lost
            assert [skipped[2:4] for skipped in consumer.skipped] == [(0, lost - 1)]
    with strandlog.open(folder.parent) as owner:
        assert any("is missing" in problem for problem in owner.problems)


@pytest.mark.parametrize("how", ["retention", "deletion"])
def test_a_first_segment_that_the_owner_has_removed_is_not_reported_as_lost(
    folder: Path, how: str
) -> None:
    first, second, *_ = sorted(folder.glob("*.log"))
    start = int(second.stem)
    with strandlog.read(folder.parent) as log, strandlog.open(folder.parent) as owner:
        assert log.describe_topic("t").partitions[0].start_offset == 0
        if how == "deletion":
            owner.delete_records("t", 0, start)
        else:
            owner.alter_topic("t", {"retention.bytes": second.stat().st_size})
            owner.enforce_retention("t")
        assert not first.exists()
        for reader in (log, strandlog.read(folder.parent)):
            assert reader.consumer(["t"]).poll()[0].offset == start
