"""Finds processes in /proc: which sync tables for a broker, and which still run."""

from __future__ import annotations

from pathlib import Path

WORKER = b"strandlog.tables.topics.worker"


def table_workers(broker_pid: int) -> list[int]:
    """Return the ids of the processes that a broker has started to sync tables."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if parent == broker_pid and WORKER in command:
            found.append(int(folder.name))
    return found


def is_running(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
