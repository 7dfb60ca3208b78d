"""The processor time of a process and of everybody below it, as Linux keeps it.

Unlike time on the clock it says nothing of what else the machine is doing. A process that has ended
is counted by the parent that waited for it, so a difference of two looks misses nothing, as long as
parents wait.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
_PARENT, _FIRST_TIME, _END_TIME = 1, 11, 15  # in /proc/PID/stat, behind the name


def tree_seconds(root: int | None = None) -> float:
    """The time of a process (this one) and its descendants, dead ones too."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):  # no process, or one that has ended
            pid = int(path.name)
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            parents[pid] = int(fields[_PARENT])
            ticks[pid] = sum(map(int, fields[_FIRST_TIME:_END_TIME]))
    wanted = os.getpid() if root is None else root
    return sum(ticks[pid] for pid in ticks if _is_below(pid, wanted, parents)) * _TICK_SECONDS


def _is_below(pid: int | None, root: int, parents: dict[int, int]) -> bool:
    while pid is not None and pid != root:
        pid = parents.get(pid)
    return pid == root
