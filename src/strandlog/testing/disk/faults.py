"""Scripted power cuts and errors of a simulated disk, and the trace of its steps.

Every change and every sync is a step, numbered from 1 and recorded in `trace`:

    create orders-0/0000.log          append orders-0/0000.log +120     sync orders-0/0000.log
    overwrite orders-0/0000.log @40+8  truncate orders-0/0000.log =120   sync_dir orders-0
    mkdir orders-0                    rename a -> b                     remove orders-0/0000.log

`crash_at=N` raises `PowerCut` at step N: before it, after it, or inside it. For a step that writes
bytes, "inside" means after its first `torn_bytes` (half of them by default); for other steps it is
the same as "before". From then on every operation raises `PowerCut`, so that `finally` blocks of
the code under test change nothing on disk, as after a real power cut.

A fault makes one operation fail with the error that the kernel would report. A failed step is
numbered too. If it writes bytes, it may write some of them, as on a full disk. `read`, `map`,
`list`, `lock` and `open` can also fail; they are not steps because they do not change the disk.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

Operation = Literal[
    "create", "append", "overwrite", "truncate", "mkdir", "rename", "remove", "sync", "sync_dir",
    "open", "read", "map", "list", "lock",
]  # fmt: skip
Moment = Literal["before", "inside", "after"]


class Step(NamedTuple):
    """One operation on the disk."""

    number: int
    operation: Operation
    path: str
    detail: str

    def __str__(self) -> str:
        return f"{self.operation} {self.path} {self.detail}".rstrip()


class PowerCut(BaseException):
    """The machine lost power. Not an `Exception`: the code under test must not catch it."""


class Interruption(NamedTuple):
    """The error that interrupts a step, and the number of bytes written before it (None: half)."""

    error: OSError | PowerCut
    written_bytes: int | None = None

    def written_of(self, size: int) -> int:
        if self.written_bytes is None:
            return size // 2
        return min(self.written_bytes, size)


@dataclass(slots=True)
class Fault:
    """An operation that will fail `count` times after succeeding `skip` times."""

    operation: Operation
    path_substring: str
    count: int
    skip: int
    error: int
    written_bytes: int | None

    def strikes(self, operation: Operation, path: str) -> bool:
        if operation != self.operation or self.path_substring not in path or self.count <= 0:
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.count -= 1
        return True


class Script:
    """The steps performed on a simulated disk, and its scheduled failures."""

    __slots__ = (
        "_crash_at",
        "_faults",
        "_moment",
        "_power",
        "_torn_bytes",
        "before_step",
        "trace",
    )

    def __init__(self) -> None:
        self.trace: list[Step] = []
        self.before_step: Callable[[Step], None] | None = None
        self._faults: list[Fault] = []
        self._power = True
        self.stop_at(None, "before", None)

    def stop_at(self, number: int | None, moment: Moment, torn_bytes: int | None) -> None:
        """Schedule a power cut, or cancel it if `number` is None."""
        self._crash_at = number
        self._moment = moment
        self._torn_bytes = torn_bytes

    def add_fault(self, fault: Fault) -> None:
        self._faults.append(fault)

    def clear_faults(self) -> None:
        self._faults.clear()

    def check_power(self) -> None:
        """Raise `PowerCut` if the power is off."""
        if not self._power:
            raise PowerCut("the power is off")

    def cut_power(self) -> PowerCut:
        """Turn the power off and return the exception for the caller to raise."""
        self._power = False
        return PowerCut(
            f"power cut at step {len(self.trace)}: {self.trace[-1] if self.trace else ''}"
        )

    def begin(self, operation: Operation, path: str, detail: str = "") -> Interruption | None:
        """Record a step and return what interrupts it, if anything. Call `end` once the step is
        complete."""
        self.check_power()
        step = Step(len(self.trace) + 1, operation, path, detail)
        if self.before_step is not None:
            self.before_step(step)
        self.trace.append(step)
        if step.number == self._crash_at and self._moment != "after":
            written = 0 if self._moment == "before" else self._torn_bytes
            return Interruption(self.cut_power(), written)
        return self.fault(operation, path)

    def end(self) -> None:
        """Complete a step, and raise `PowerCut` if one is scheduled after it."""
        if len(self.trace) == self._crash_at:
            raise self.cut_power()

    def fault(self, operation: Operation, path: str) -> Interruption | None:
        """Return the fault that applies to an operation, if any."""
        for fault in self._faults:
            if fault.strikes(operation, path):
                error = OSError(fault.error, os.strerror(fault.error), path)
                return Interruption(error, fault.written_bytes)
        return None


def no_space(path: str, room: int) -> Interruption:
    """Return the interruption of a write to a disk with only `room` bytes left."""
    return Interruption(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path), room)
