"""Measures the CPU time of this process and its descendants, from Linux's /proc.

Unlike elapsed time, CPU time does not depend on other load on the machine.

    before = look()
    ...
    spent_seconds(before, look())

If a process ends between the two calls, its total CPU time is added to the parent that waits for
it. If no parent waits for it, the time it has used since the first call is lost.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
_PARENT, _OWN, _CHILDREN = 1, slice(11, 13), slice(13, 15)  # in /proc/PID/stat, after the name


class Spent(NamedTuple):
    """The CPU time that a process has used so far, in ticks."""

    parent: int
    own: int
    children: int  # the total of children that have ended


def look() -> dict[int, Spent]:
    """Return the CPU times of this process and its descendants, by process id."""
    found: dict[int, Spent] = {}
    for path in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):  # not a process, or it has ended
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            own, children = (sum(map(int, fields[part])) for part in (_OWN, _CHILDREN))
            found[int(path.name)] = Spent(int(fields[_PARENT]), own, children)
    return {pid: spent for pid, spent in found.items() if _is_ours(pid, found)}


def _is_ours(pid: int, found: dict[int, Spent]) -> bool:
    while pid in found and pid != os.getpid():
        pid = found[pid].parent
    return pid == os.getpid()


def spent_seconds(before: dict[int, Spent], after: dict[int, Spent]) -> float:
    """Return the CPU time used between two calls of `look`."""
    nothing = Spent(0, 0, 0)
    ticks, waited_for = 0, {}
    for pid, spent in after.items():
        earlier = before.get(pid, nothing)
        waited_for[pid] = spent.children - earlier.children
        ticks += spent.own - earlier.own + waited_for[pid]
    for pid in before.keys() - after.keys():
        earlier = before[pid]
        known = earlier.own + earlier.children
        if waited_for.get(earlier.parent, 0) >= known:  # included in its parent's figure
            ticks -= known
            waited_for[earlier.parent] -= known
    return ticks * _TICK_SECONDS
