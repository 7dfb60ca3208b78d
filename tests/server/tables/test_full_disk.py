"""A full disk in the middle of a sync: an error, a table without harm, and then the rest."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.command_line import CommandLine, Result
from tests.support.lake import counts, query

import strandlog
from strandlog.errors import DiskFullError, StrandlogError
from strandlog.tables.table import FORMATS, UPSERT_FORMATS, open_table
from strandlog.tables.topics.columns import RawColumns
from strandlog.tables.topics.source import FolderSource
from strandlog.tables.topics.sync import Sync, SyncOptions

DISK_BYTES = 3 * 1024 * 1024
KEYS, BATCH = 30, 60
TOMBSTONE_EVERY = 7
LEVELS = 60  # more than a sync needs pages or inodes


class Disk:
    """A small disk of its own, whose free pages and inodes a test sets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def mount(self, options: str) -> str:
        """Mount the disk, or mount it again with other options; return the error, if any."""
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.folder)],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stderr.strip()

    def leave(self, what: str, count: int) -> None:
        """Leave free only so many pages or inodes."""
        found = os.statvfs(self.folder)
        if what == "pages":
            free = found.f_bavail * found.f_frsize
            self._ballast.write_bytes(bytes(max(free - count * found.f_frsize, 0)))
        else:
            used = found.f_files - found.f_ffree
            assert not self.mount(f"remount,nr_inodes={used + count}")

    def release(self) -> None:
        """Make all space free again."""
        self._ballast.unlink(missing_ok=True)
        assert not self.mount("remount,nr_inodes=100000")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    mounted = Disk(tmp_path / "disk")
    mounted.folder.mkdir()
    error = mounted.mount(f"size={DISK_BYTES},nr_inodes=100000")
    if error:
        pytest.skip(f"this machine does not let us mount a tmpfs: {error}")
    yield mounted
    # The catalog may be open.
    subprocess.run(["umount", "--lazy", str(mounted.folder)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("table_format", FORMATS)
def test_a_full_disk_stops_a_sync_which_continues_later(
    tmp_path: Path, disk: Disk, table_format: str
) -> None:
    noise = random.Random(1)
    with strandlog.open(tmp_path / "data") as log:
        log.create_topic("orders")
        with log.producer() as producer:
            for _ in range(12):
                producer.send_batch("orders", [(None, noise.randbytes(1000)) for _ in range(500)])
    table = open_table(disk.folder / "lake", table_format)
    source = FolderSource(str(tmp_path / "data"), "orders")
    sync = Sync(table, source, RawColumns(), SyncOptions(round_bytes=500_000))
    sync.create()
    disk.leave("pages", DISK_BYTES // 2 // os.statvfs(disk.folder).f_frsize)
    with pytest.raises(StrandlogError) as failed:
        sync.run()
    assert isinstance(failed.value, DiskFullError), failed.value
    rows = table.load().row_count()
    assert 0 < rows < 6000
    assert counts(table) == (rows, rows)
    disk.release()
    assert not disk.mount("remount,size=64m")
    sync.run()
    assert counts(table) == (6000, 6000)


class Orders:
    """A topic, and what a table of it must have."""

    def __init__(self, disk: Disk, data: Path, table_format: str, mode: str) -> None:
        self.is_upsert = mode == "upsert"
        self.table = open_table(disk.folder / "lake", table_format)
        self._log = strandlog.open(data)
        config = {"cleanup.policy": "compact"} if self.is_upsert else {}
        self._log.create_topic("orders", partitions=1, config=config)
        self._command = CommandLine(data)
        options = ["--format", table_format, "--mode", mode]
        self._sync = ["table", "sync", "orders", self.table.folder, *options]
        self._noise = random.Random(2)
        self._latest: dict[bytes, bytes] = {}
        self._count = 0

    def close(self) -> None:
        self._log.close()

    def produce(self) -> None:
        records: list[tuple[bytes, bytes | None]] = []
        for number in range(BATCH):
            key = b"%d" % self._noise.randrange(KEYS)
            value = None if number % TOMBSTONE_EVERY == 0 else self._noise.randbytes(20)
            records.append((key, value))
            self._latest.pop(key, None)
            if value is not None:
                self._latest[key] = value
        with self._log.producer() as producer:
            producer.send_batch("orders", records)
        self._count += BATCH

    def sync(self, code: int | None = 0) -> Result:
        return self._command.inside(*self._sync, code=code)

    def check(self, *, is_synced: bool) -> None:
        """Count rows twice: all of them if the table is in sync, else those of the last sync."""
        if not self.is_upsert:
            wanted = self._count if is_synced else self._count - BATCH
            assert counts(self.table) == (wanted, wanted)
            return
        found = query(self.table, "SELECT key, value FROM rows")
        assert len(found) == len({key for key, _ in found})
        if is_synced:
            assert dict(found) == self._latest


@pytest.mark.slow
@pytest.mark.parametrize("what", ["pages", "inodes"])
@pytest.mark.parametrize(
    ("table_format", "mode"),
    [*((each, "append") for each in FORMATS), *((each, "upsert") for each in UPSERT_FORMATS)],
)
def test_a_disk_that_becomes_full_anywhere_in_a_commit_is_reported_and_harms_no_row(
    tmp_path: Path, disk: Disk, table_format: str, mode: str, what: str
) -> None:
    orders = Orders(disk, tmp_path / "data", table_format, mode)
    orders.produce()
    orders.sync()
    failures = 0
    for free in range(LEVELS):
        orders.produce()
        disk.leave(what, free)
        done = orders.sync(code=None)
        orders.check(is_synced=done.code == 0)
        disk.release()
        if done.code == 0:
            break
        failures += 1
        assert done.code == 1
        assert "damage" not in done.err
        assert "No space left" in done.err or "disk is full" in done.err
        orders.sync()
        orders.check(is_synced=True)
    orders.close()
    assert 0 < failures < LEVELS
