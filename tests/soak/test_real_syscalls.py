"""Faults in real system calls, injected by strace: a failed sync, a full disk, death at a call.

The simulated disk tries thousands of crash points; here a few are tried on the real kernel, so that
what the simulation believes about our calls is checked against the calls themselves.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import strandlog

# Sends numbered records with acks=all and prints each number once it is acknowledged.
WRITER = """
import sys, strandlog
log = strandlog.open(sys.argv[1])
if not log.topics():
    log.create_topic("t", 1, {"segment.bytes": 2048})
producer = log.producer(acks="all")
for number in range(int(sys.argv[2])):
    try:
        producer.send("t", b"%d" % number)
        print(number, flush=True)
    except strandlog.StorageError as error:
        print("error", error, flush=True)
        log.broker._maintenance.repair()
log.close()
print("closed", flush=True)
"""


def _can_trace() -> bool:
    if shutil.which("strace") is None:
        return False
    probe = ["strace", "-f", "-e", "inject=getppid:error=EIO", "true"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


needs_strace = pytest.mark.skipif(
    not _can_trace(),
    reason="strace is not installed or may not trace: real faults are not injected",
)


def _run_with_fault(folder: Path, fault: str, *options: str) -> tuple[int, list[str]]:
    """Run the writer under a fault; returns its exit code and what it printed."""
    # Bytecode is not written, so that the calls that are counted are those of the log.
    arguments = [
        *("strace", "-f", "-qq", "-o", "/dev/null", "-e", f"inject={fault}"),
        *options,
        *(sys.executable, "-B", "-c", WRITER, str(folder), "30"),
    ]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stdout.splitlines()


def _numbers(lines: list[str]) -> list[int]:
    return [int(line) for line in lines if line.isdigit()]


def _records(folder: Path) -> list[int]:
    with strandlog.open(folder) as log:
        if not log.topics():
            return []
        return [int(record.value or b"-1") for record in log.consumer(["t"]).poll(10_000)]


@needs_strace
def test_a_failed_fsync_is_not_acknowledged_and_the_log_recovers(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    code, lines = _run_with_fault(folder, "fdatasync:error=EIO:when=5")
    assert code == 0
    errors = [line for line in lines if line.startswith("error")]
    assert len(errors) == 1
    assert "Input/output error" in errors[0]
    assert lines[-1] == "closed"
    # The record of the failed sync was written and, after mending, kept; nothing else is missing.
    assert _records(folder) == list(range(30))
    assert len(_numbers(lines)) == 29


@needs_strace
@pytest.mark.parametrize("call", ["fdatasync", "rename", "pwrite64", "fsync"])
@pytest.mark.parametrize("when", [1, 2, 3, 4, 7])
def test_no_acknowledged_record_is_lost_when_the_writer_is_killed_at_a_system_call(
    tmp_path: Path, call: str, when: int
) -> None:
    folder = tmp_path / "data"
    code, lines = _run_with_fault(folder, f"{call}:signal=KILL:when={when}")
    assert code != 0, "the writer should have died"
    acknowledged = _numbers(lines)
    found = _records(folder)
    assert found[: len(acknowledged)] == acknowledged
    assert len(found) <= len(acknowledged) + 1
    # The next start continues after the last record.
    if found or acknowledged:
        with strandlog.open(folder) as log:
            assert log.producer().send("t", b"99").offset == len(found)


@needs_strace
def test_no_acknowledged_record_is_lost_when_the_disk_is_full_for_a_moment(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    log_file = folder / "t-0" / f"{0:020d}.log"
    code, lines = _run_with_fault(folder, "pwrite64:error=ENOSPC:when=4", "-P", str(log_file))
    assert code == 0
    errors = [line for line in lines if line.startswith("error")]
    assert len(errors) == 1
    assert "free some space" in errors[0]
    acknowledged = _numbers(lines)
    assert _records(folder) == acknowledged
    assert len(acknowledged) == 29
