"""Measures how late the event loop runs its callbacks.

A timer fires every `INTERVAL_SECONDS`. Its delay shows how long other callbacks were delayed, too:
by a handler, a maintenance task, another thread that holds the GIL, or a busy machine. All delays
are recorded in the metrics; long ones are logged, at most once per second.
"""

from __future__ import annotations

import asyncio
import logging

from strandlog.broker.metrics import Metrics
from strandlog.clock import stopwatch

logger = logging.getLogger(__name__)

INTERVAL_SECONDS = 0.05
LONG_SECONDS = 0.25


class LoopMonitor:
    """The monitor of one event loop."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._quiet_until = 0.0

    def start(self) -> None:
        self._due = stopwatch() + INTERVAL_SECONDS
        self._timer = self._loop.call_later(INTERVAL_SECONDS, self._fire)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _fire(self) -> None:
        now = stopwatch()
        late = max(0.0, now - self._due)
        self._metrics.event_loop_delay_seconds.observe(late)
        if late > LONG_SECONDS and now >= self._quiet_until:
            self._quiet_until = now + 1
            logger.warning("the event loop was blocked for %d ms", late * 1000)
        self.start()
