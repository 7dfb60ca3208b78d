"""Measures how late the event loop comes to what it has to do.

A timer rings every `BEAT_SECONDS`. How late it rings is how long everything else had to wait: a
handler, a chore, the interpreter's lock in the hands of another thread, or a machine that has no
time for us. The figures go into the metrics; what is long is logged, at most once per second.
"""

from __future__ import annotations

import asyncio
import logging

from strandlog.broker.metrics import Metrics
from strandlog.clock import stopwatch

logger = logging.getLogger(__name__)

BEAT_SECONDS = 0.05
LONG_SECONDS = 0.25


class Heartbeat:
    """The pulse of one event loop."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._quiet_until = 0.0

    def start(self) -> None:
        self._due = stopwatch() + BEAT_SECONDS
        self._timer = self._loop.call_later(BEAT_SECONDS, self._beat)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self) -> None:
        now = stopwatch()
        late = max(0.0, now - self._due)
        self._metrics.event_loop_delay_seconds.observe(late)
        if late > LONG_SECONDS and now >= self._quiet_until:
            self._quiet_until = now + 1
            logger.warning("the event loop stood still for %d ms", late * 1000)
        self.start()
