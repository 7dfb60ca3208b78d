"""A clock that moves only when a test advances it.

`advance` moves the wall clock and the monotonic clock together. `set_wall` moves only the wall
clock, in either direction, as an administrator or NTP would. The monotonic clock starts at zero, so
that code that confuses "zero" with "not set" fails.
"""

from __future__ import annotations


class FakeClock:
    """A `Clock` for tests."""

    __slots__ = ("_monotonic_ms", "_wall_ms")

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._wall_ms = now_ms
        self._monotonic_ms = 0

    def now_ms(self) -> int:
        return self._wall_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def advance(self, ms: int) -> None:
        """Advance both clocks."""
        assert ms >= 0, f"cannot advance by {ms} ms; use set_wall to set the wall clock back"
        self._wall_ms += ms
        self._monotonic_ms += ms

    def set_wall(self, now_ms: int) -> None:
        """Set the wall clock, forwards or backwards."""
        self._wall_ms = now_ms
