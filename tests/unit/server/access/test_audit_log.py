"""The files of the audit log: rotation, a full disk, restarts and hostile content."""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strandlog.clock import SystemClock
from strandlog.config.limits.access import AUDIT_MAX_QUEUED_EVENTS
from strandlog.errors import AuditLogError
from strandlog.server.access import audit_log
from strandlog.server.access.audit_log import AuditFile, AuditLog


class Disk:
    """Writes to real files, in pieces, unless it is full."""

    def __init__(self) -> None:
        self.is_full = False
        self.failed = threading.Event()
        self.piece = 1 << 30

    def write(self, number: int, data: bytes) -> int:
        if self.is_full:
            os.write(number, data[:10])  # as much as fits
            self.failed.set()
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.write(number, data[: self.piece])


def _open(
    path: Path,
    *,
    max_bytes: int = 1 << 30,
    max_files: int = 3,
    write: Callable[[int, bytes], int] = os.write,
) -> AuditLog:
    file = AuditFile(str(path), max_bytes, max_files, write)
    return AuditLog(file, str(path), SystemClock(), _never)


def _never(error: BaseException) -> None:
    raise AssertionError("the thread failed") from error


def _events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().decode().splitlines()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.log"


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "RETRY_SECONDS", 0.001)


def test_every_event_is_one_line_in_order(path: Path) -> None:
    log = _open(path)
    for number in range(1000):
        log.put({"n": number, "name": "a\nb\u2028"})
    log.close()
    assert [event["n"] for event in _events(path)] == list(range(1000))
    assert path.read_bytes().count(b"\n") == 1000
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert log.lost == 0


def test_short_writes_are_completed(path: Path) -> None:
    disk = Disk()
    disk.piece = 7
    log = _open(path, write=disk.write)
    log.put({"name": "x" * 100})
    log.close()
    assert _events(path) == [{"name": "x" * 100}]


def test_a_restart_appends(path: Path) -> None:
    for number in range(3):
        log = _open(path)
        log.put({"n": number})
        log.close()
    assert [event["n"] for event in _events(path)] == [0, 1, 2]


def test_an_event_after_the_end_is_not_reported_as_a_full_queue(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = _open(path)
    log.close()
    log.put({"n": 1})
    assert log.lost == 1
    assert [record.getMessage() for record in caplog.records] == [
        f"the audit log {path} is losing events: the log is closed"
    ]


def test_a_restart_ends_a_torn_line(path: Path) -> None:
    path.write_bytes(b'{"n":0}\n{"n":1,"na')
    log = _open(path)
    log.put({"n": 2})
    log.close()
    first, torn, last = path.read_bytes().splitlines()
    assert (json.loads(first), torn, json.loads(last)) == ({"n": 0}, b'{"n":1,"na', {"n": 2})


def test_full_files_are_renamed_and_the_oldest_deleted(path: Path) -> None:
    max_bytes, max_files = 1000, 3
    for number in range(300):
        log = _open(path, max_bytes=max_bytes, max_files=max_files)
        log.put({"n": number, "text": "x" * 50})
        log.close()
    files = sorted(each.name for each in path.parent.iterdir())
    assert files == ["audit.log", "audit.log.1", "audit.log.2"]
    assert all(each.stat().st_size <= max_bytes for each in path.parent.iterdir())
    paths = [path.with_name("audit.log.2"), path.with_name("audit.log.1"), path]
    numbers = [event["n"] for each in paths for event in _events(each)]
    assert numbers == list(range(numbers[0], 300)), "no gap between the files"


@pytest.mark.parametrize("max_files", [1, 2])
def test_a_lower_number_of_files_deletes_the_others(path: Path, max_files: int) -> None:
    for number in range(1, 6):
        path.with_name(f"audit.log.{number}").write_bytes(b"{}\n")
    path.with_name("audit.log.old").write_bytes(b"not one of ours\n")
    path.write_bytes(b"{}\n" * 30)
    log = _open(path, max_bytes=64, max_files=max_files)
    log.put({"n": 1})
    log.close()
    kept = sorted(each.name for each in path.parent.iterdir())
    assert kept == ["audit.log", *["audit.log.1"][: max_files - 1], "audit.log.old"]
    assert _events(path) == [{"n": 1}]


def test_events_wait_for_a_full_disk_to_have_room(path: Path) -> None:
    disk = Disk()
    log = _open(path, write=disk.write)
    disk.is_full = True
    for number in range(100):
        log.put({"n": number})
    assert disk.failed.wait(10)
    disk.is_full = False
    log.close()
    assert [event["n"] for event in _events(path)] == list(range(100)), "whole lines, none lost"
    assert log.lost == 0


def test_lost_events_are_counted_and_reported(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk()
    log = _open(path, write=disk.write)
    disk.is_full = True
    log.put({"n": -1})
    assert disk.failed.wait(10)
    for number in range(AUDIT_MAX_QUEUED_EVENTS + 500):
        log.put({"n": number})
    assert log.lost == 500
    disk.is_full = False
    log.close()
    events = _events(path)
    assert [event["count"] for event in events if event.get("event") == "lost"] == [500]
    assert len(events) == 1 + AUDIT_MAX_QUEUED_EVENTS + 1
    assert "No space left on device" in caplog.text
    assert "lost 500 events" in caplog.text


def test_a_full_disk_does_not_keep_the_server_from_stopping(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk()
    log = _open(path, write=disk.write)
    disk.is_full = True
    log.put({"n": 0})
    log.put({"n": 1})
    assert disk.failed.wait(10)
    log.close()
    assert log.lost == 2
    assert path.read_bytes() == b""
    assert "is losing events" in caplog.text


def test_a_file_that_was_moved_is_created_again(path: Path) -> None:
    written = threading.Event()

    def write(number: int, data: bytes) -> int:
        try:
            return os.write(number, data)
        finally:
            written.set()

    log = _open(path, write=write)
    log.put({"n": 0})
    assert written.wait(10)
    path.rename(path.with_name("moved"))
    log.put({"n": 1})
    log.close()
    assert _events(path.with_name("moved")) == [{"n": 0}]
    assert _events(path) == [{"n": 1}]


def test_a_path_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AuditLogError, match=r"audit\.log\.path"):
        _open(tmp_path / "missing" / "audit.log")
    with pytest.raises(AuditLogError, match="directory"):
        _open(tmp_path)
    with pytest.raises(AuditLogError, match="regular"):
        _open(Path("/dev/null"))


def test_two_servers_cannot_write_one_file(path: Path) -> None:
    log = _open(path)
    with pytest.raises(AuditLogError, match="another process is writing to it; stop that process"):
        _open(path)
    log.close()
    _open(path).close()
