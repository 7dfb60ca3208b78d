"""Clocks. Outside `strandlog.testing`, only this module reads the wall clock.

The broker and everything below it receive a `Clock` as an argument; tests pass one that they
advance manually. `now_ms` is the wall clock in Unix milliseconds (for record timestamps and
retention) and may jump; `monotonic_ms` never goes backwards (for deadlines and intervals) and has
no meaning outside this process.

`SteadyClock` combines both, for ages that must be comparable after a restart but must not be
affected by jumps of the wall clock.

`stopwatch` returns seconds, for measuring durations. `pause` blocks the thread, for clients that
wait before a retry.
"""

from __future__ import annotations

import time
from typing import Protocol

stopwatch = time.perf_counter
pause = time.sleep


class Clock(Protocol):
    """A source of the current time."""

    def now_ms(self) -> int:
        """Return the Unix time in milliseconds."""

    def monotonic_ms(self) -> int:
        """Return the milliseconds since an arbitrary fixed point; never decreases."""


class SteadyClock:
    """The wall-clock time at which this object was created, advanced by the monotonic clock.

    Times from two runs can be compared if the wall clock was correct at both starts; within one run
    they never jump.
    """

    __slots__ = ("_ahead_ms", "_clock")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_ms = clock.now_ms() - clock.monotonic_ms()

    def now_ms(self) -> int:
        return self._clock.monotonic_ms() + self._ahead_ms


class SystemClock:
    """The system clock."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000
