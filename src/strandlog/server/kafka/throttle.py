"""Pauses clients that exceed a quota, as KIP-219 describes.

The response is sent immediately and contains the throttle time. For that time, the connection reads
nothing and starts no request (`Mute`); requests that have started still run. Java's client also
pauses on its own, but librdkafka does not, so the broker cannot rely on clients.

    Produce        the bytes of the request are charged when it arrives, so that a client cannot
                   have many requests in progress before the first one is charged; with acks=0 too
    Fetch          the bytes of the response are charged when it is ready; over the limit, the
                   response is empty
    every request  the time of its handler in the event loop is charged when it is answered; a
                   Produce with acks=0 has no response, so its time is not charged

A client that exceeds several quotas with one request is paused once, for the longest time. The time
of requests before and during a login is not charged: before it, they belong to no user, and one
client could delay the logins of others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from strandlog.broker.metrics import Metrics
from strandlog.clock import stopwatch
from strandlog.protocol.kafka import api

# Clients must be able to log in, and Kafka does not charge logins either.
UNMETERED_APIS = frozenset({api.SASL_HANDSHAKE.key, api.SASL_AUTHENTICATE.key})


class Meter:
    """Measures the handler time of one request, and collects its throttle times."""

    __slots__ = ("_running_since", "_seconds", "throttle_ms")

    def __init__(self, began: float) -> None:
        self._running_since: float | None = began
        self._seconds = 0.0
        self.throttle_ms = 0

    def resume(self) -> None:
        """Start measuring, because the handler starts or continues."""
        if self._running_since is None:
            self._running_since = stopwatch()

    def pause(self) -> None:
        """Stop measuring, because the request waits."""
        if self._running_since is not None:
            self._seconds += stopwatch() - self._running_since
            self._running_since = None

    def add(self, throttle_ms: int) -> None:
        """Raise the throttle time to at least this value."""
        self.throttle_ms = max(self.throttle_ms, throttle_ms)

    @property
    def seconds(self) -> float:
        running = self._running_since
        return self._seconds if running is None else self._seconds + stopwatch() - running


class Mute:
    """The pause of one connection; `on_end` is called when it is over."""

    __slots__ = ("_metrics", "_on_end", "_timer", "_until")

    def __init__(self, ms: int, metrics: Metrics, on_end: Callable[[], None]) -> None:
        self._metrics = metrics
        self._on_end = on_end
        metrics.connections_muted += 1
        self._schedule(asyncio.get_running_loop().time() + ms / 1000)

    def _schedule(self, until: float) -> None:
        self._until = until
        self._timer = asyncio.get_running_loop().call_at(until, self._end)

    def extend(self, ms: int) -> None:
        """Pause for at least this time from now on."""
        until = asyncio.get_running_loop().time() + ms / 1000
        if until > self._until:
            self._timer.cancel()
            self._schedule(until)

    def _end(self) -> None:
        self._metrics.connections_muted -= 1
        self._on_end()

    def cancel(self) -> None:
        """End the pause without calling `on_end`."""
        self._timer.cancel()
        self._metrics.connections_muted -= 1
