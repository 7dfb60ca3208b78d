"""Waits for a condition that another process or thread brings about.

Tests call it instead of sleeping: they name what they wait for, and fail with that name. A test of
a `ServerThread` uses its `wait_until`, which looks between two steps of the server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

TIMEOUT_SECONDS = 180.0  # long, because it only matters when the test fails
PAUSE_SECONDS = 0.02


def eventually(
    condition: Callable[[], T], what: str, timeout_seconds: float = TIMEOUT_SECONDS
) -> T:
    """Call `condition` until it returns something true, and return that."""
    deadline = time.monotonic() + timeout_seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {timeout_seconds:g} s"
        time.sleep(PAUSE_SECONDS)
    return found


async def eventually_in_loop(condition: Callable[[], T], what: str) -> T:
    """The same for a test that runs in the event loop of what it waits for."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {TIMEOUT_SECONDS:g} s"
        await asyncio.sleep(PAUSE_SECONDS / 10)
    return found
