"""A full disk in the middle of a sync: an error, a table without harm, and then the rest."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.lake import counts

import strandlog
from strandlog.errors import DiskFullError, StrandlogError
from strandlog.tables.table import FORMATS, open_table
from strandlog.tables.topics.columns import RawColumns
from strandlog.tables.topics.source import FolderSource
from strandlog.tables.topics.sync import Sync, SyncOptions

DISK_BYTES = 3 * 1024 * 1024


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    mounted = tmp_path / "disk"
    mounted.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(mounted)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"this machine does not let us mount a tmpfs: {done.stderr.strip()}")
    yield mounted
    subprocess.run(["umount", "--lazy", str(mounted)], check=True)  # the catalog may be open


@pytest.mark.slow
@pytest.mark.parametrize("table_format", FORMATS)
def test_a_full_disk_stops_a_sync_which_continues_later(
    tmp_path: Path, disk: Path, table_format: str
) -> None:
    noise = random.Random(1)
    with strandlog.open(tmp_path / "data") as log:
        log.create_topic("orders")
        with log.producer() as producer:
            for _ in range(12):
                producer.send_batch("orders", [(None, noise.randbytes(1000)) for _ in range(500)])
    ballast = disk / "ballast"
    table = open_table(disk / "lake", table_format)
    source = FolderSource(str(tmp_path / "data"), "orders")
    sync = Sync(table, source, RawColumns(), SyncOptions(round_bytes=500_000))
    sync.create()
    ballast.write_bytes(bytes(DISK_BYTES // 2))
    with pytest.raises(StrandlogError) as failed:
        sync.run()
    assert isinstance(failed.value, DiskFullError), failed.value
    ballast.unlink()
    rows = table.load().row_count()
    assert 0 < rows < 6000
    if rows:
        assert counts(table) == (rows, rows)
    subprocess.run(
        ["mount", "-o", "remount,size=64m", "tmpfs", str(disk)], check=True, capture_output=True
    )
    sync.run()
    assert counts(table) == (6000, 6000)
