"""Once a partition is closed, it neither changes nor reads the files at its path."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.support.log_builders import (
    FOLDER,
    TP,
    batch,
    create_partition,
    new_log,
    offsets,
    small_settings,
)

from strandlog.errors import StorageError
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.partition.partition_files import PartitionFiles
from strandlog.storage.partition.read import read
from strandlog.storage.partition.time_lookup import find_latest, find_timestamp
from strandlog.storage.segment.swap import finish_swap
from strandlog.storage.work import run_inline
from strandlog.testing.disk.files import SimulatedFiles

PATH = f"{FOLDER}/file"
CHANGES: dict[str, Callable[[PartitionFiles], object]] = {
    "open_log": lambda files: files.open_log(f"{PATH}.log"),
    "append_to": lambda files: files.append_to(PATH, b"x"),
    "write_at": lambda files: files.write_at(PATH, 0, b"x"),
    "truncate": lambda files: files.truncate(PATH, 0),
    "allocate": lambda files: files.allocate(PATH, 100),
    "replace": lambda files: files.replace(PATH, b"x"),
    "rename": lambda files: files.rename(PATH, f"{PATH}.renamed"),
    "remove": lambda files: files.remove(PATH),
    "make_dir": lambda files: files.make_dir(f"{PATH}.dir"),
    "remove_tree": lambda files: files.remove_tree(FOLDER),
    "lock": lambda files: files.lock(f"{PATH}.lock"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_closed_partition_refuses_every_change(change: str) -> None:
    disk = SimulatedFiles()
    disk.make_dir(FOLDER)
    disk.append_to(PATH, b"content")
    before = disk.contents()
    files = PartitionFiles(disk, FOLDER)
    files.close()
    with pytest.raises(StorageError, match=f"{FOLDER} is closed"):
        CHANGES[change](files)
    assert disk.contents() == before
    assert files.read(PATH) == b"content"
    files.sync_file(PATH)


@pytest.mark.parametrize("change", CHANGES)
def test_an_open_partition_makes_the_change(change: str) -> None:
    disk = SimulatedFiles()
    disk.make_dir(FOLDER)
    disk.append_to(PATH, b"content")
    CHANGES[change](PartitionFiles(disk, FOLDER))


def deleted_and_created_again() -> tuple[SimulatedFiles, PartitionLog, PartitionLog]:
    """A deleted partition, and a new one of the same name."""
    disk = SimulatedFiles()
    log_dir, log = new_log(disk, settings=small_settings())
    for number in range(30):
        log.append(batch(b"%d" % number + bytes(80)))
    log.flush()
    assert log.segments.sealed
    log_dir.delete_partition(TP, 0)
    create_partition(log_dir, TP, "another-id", small_settings())
    new = log_dir.logs[TP]
    new.append(batch(b"new"))  # the new segment has the name of the oldest one
    return disk, log, new


def _swap(log: PartitionLog) -> None:
    finish_swap(log.files, log.folder, log.segments.sealed, 0, log.context.remover, 0)


WRITERS: dict[str, Callable[[PartitionLog], object]] = {
    "recovery point": lambda log: log.persist_recovery_point(),
    "manifest": lambda log: log.manifest.withdraw(0),
    "active segment": lambda log: log.segments.active.open_file(),
    "removal": lambda log: log.remove_segments(log.segments.sealed[:1]),
    "swap": _swap,
}


@pytest.mark.parametrize("writer", WRITERS)
def test_writers_of_a_deleted_partition_do_not_change_a_new_one_of_the_same_name(
    writer: str,
) -> None:
    disk, log, _ = deleted_and_created_again()
    before = disk.contents()
    with pytest.raises(StorageError, match="is closed"):
        WRITERS[writer](log)
    assert disk.contents() == before


READERS: dict[str, Callable[[PartitionLog], object]] = {
    "read": lambda log: read(log, 0, 1000),
    "time lookup": lambda log: run_inline(find_timestamp(log, 0)),
    "latest": lambda log: run_inline(find_latest(log)),
    "offset index": lambda log: log.cache.get(log.segments.sealed[0]),
    "rebuild of an index": lambda log: log.cache.rebuild(log.segments.sealed[0]),
}


@pytest.mark.parametrize("reader", READERS)
def test_readers_of_a_deleted_partition_do_not_read_a_new_one_of_the_same_name(
    reader: str,
) -> None:
    disk, log, new = deleted_and_created_again()
    before = disk.contents()
    with pytest.raises(StorageError, match="is closed"):
        READERS[reader](log)
    assert disk.contents() == before
    for number in range(30):
        new.append(batch(b"new %d" % number))
    new.flush()
    assert new.segments.sealed
    assert offsets(new) == list(range(31))
