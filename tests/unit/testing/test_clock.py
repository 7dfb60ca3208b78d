"""The fake clock advances only by command; only its wall time can go back."""

from __future__ import annotations

import pytest

from strandlog.clock import Clock
from strandlog.testing import FakeClock


def test_a_fake_clock_does_not_advance_by_itself() -> None:
    clock: Clock = FakeClock(now_ms=5)
    assert [clock.now_ms(), clock.now_ms()] == [5, 5]
    assert clock.monotonic_ms() == clock.monotonic_ms()


def test_advance_moves_wall_and_monotonic_time() -> None:
    clock = FakeClock()
    wall, monotonic = clock.now_ms(), clock.monotonic_ms()
    clock.advance(250)
    assert clock.now_ms() == wall + 250
    assert clock.monotonic_ms() == monotonic + 250


def test_set_wall_does_not_change_monotonic_time() -> None:
    clock = FakeClock(now_ms=1_000_000)
    clock.advance(10)
    clock.set_wall(3)
    assert clock.now_ms() == 3
    assert clock.monotonic_ms() == 10


def test_advance_rejects_negative_steps() -> None:
    with pytest.raises(AssertionError, match="set_wall"):
        FakeClock().advance(-1)
