"""The only file that reads time.

Everything below the server is handed a `Clock`; tests hand in one that stands still until told
otherwise. Two readings: `now_ms` is the wall clock in Unix milliseconds (record timestamps,
retention) and may jump; `monotonic_ms` only moves forward (deadlines, intervals) and has no meaning
outside this process.

`SteadyClock` combines them, for ages that must survive a restart but not a jump of the wall clock.

`stopwatch` tells how long something took, in seconds: for figures, never for decisions. `pause`
is for a client that has its thread to itself and has to try again later.
"""

from __future__ import annotations

import time
from typing import Protocol

stopwatch = time.perf_counter
pause = time.sleep


class Clock(Protocol):
    """Where the time comes from."""

    def now_ms(self) -> int:
        """Unix time in milliseconds."""

    def monotonic_ms(self) -> int:
        """Milliseconds since some fixed moment; never goes back."""


class SteadyClock:
    """The wall clock as it was when this object was made, moved on by the monotonic clock.

    Times of two runs can be compared, as far as the wall clock was right at both starts; within
    one run they never jump.
    """

    __slots__ = ("_ahead_ms", "_clock")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_ms = clock.now_ms() - clock.monotonic_ms()

    def now_ms(self) -> int:
        return self._clock.monotonic_ms() + self._ahead_ms


class SystemClock:
    """The clock of this machine."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000
