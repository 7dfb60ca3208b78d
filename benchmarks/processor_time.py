"""The processor time that this process and everybody below it spend, as Linux keeps it.

Unlike time on the clock it says nothing of what else the machine is doing.

    before = look()
    ...
    spent_seconds(before, look())

A process that ends in between is counted by the parent that waits for it, together with what it had
spent before; where no parent waits, what it spent since the first look is lost.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
_PARENT, _OWN, _CHILDREN = 1, slice(11, 13), slice(13, 15)  # in /proc/PID/stat, behind the name


class Spent(NamedTuple):
    """What a process has spent so far, in ticks."""

    parent: int
    own: int
    children: int  # those that have ended


def look() -> dict[int, Spent]:
    """This process and everybody below it."""
    found: dict[int, Spent] = {}
    for path in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):  # no process, or one that has ended
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            own, children = (sum(map(int, fields[part])) for part in (_OWN, _CHILDREN))
            found[int(path.name)] = Spent(int(fields[_PARENT]), own, children)
    return {pid: spent for pid, spent in found.items() if _is_ours(pid, found)}


def _is_ours(pid: int, found: dict[int, Spent]) -> bool:
    while pid in found and pid != os.getpid():
        pid = found[pid].parent
    return pid == os.getpid()


def spent_seconds(before: dict[int, Spent], after: dict[int, Spent]) -> float:
    """What was spent between two looks."""
    nothing = Spent(0, 0, 0)
    ticks, waited_for = 0, {}
    for pid, spent in after.items():
        earlier = before.get(pid, nothing)
        waited_for[pid] = spent.children - earlier.children
        ticks += spent.own - earlier.own + waited_for[pid]
    for pid in before.keys() - after.keys():
        earlier = before[pid]
        known = earlier.own + earlier.children
        if waited_for.get(earlier.parent, 0) >= known:  # it came back, in its parent's figure
            ticks -= known
            waited_for[earlier.parent] -= known
    return ticks * _TICK_SECONDS
