"""Finds processes in /proc: which sync tables for a broker, which still run, and their children."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

WORKER = b"strandlog.tables.topics.worker"


def table_workers(broker_pid: int) -> list[int]:
    """Return the ids of the processes that a broker has started to sync tables."""
    found = []
    for pid in children(broker_pid):
        with contextlib.suppress(OSError):
            if WORKER in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def children(parent_pid: int) -> list[int]:
    """Return the ids of the processes that a process has started and that still exist."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == parent_pid:
                found.append(int(folder.name))
    return found


def kill_with_children(pid: int) -> None:
    """Kill a process and all that it has started, such as Spark's Java."""
    signal_with_children(pid, signal.SIGKILL)


def signal_with_children(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process and to all that it has started."""
    tree = [pid]
    for each in tree:  # grows while it is read
        tree += children(each)
    for each in tree:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, number)


def is_running(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
