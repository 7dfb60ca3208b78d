"""Collects the counts and latencies of a benchmark over time, in bounded memory.

The threads of a benchmark call `Measurement.add` and `add_errors`, which add to the results of the
current interval. An interval is initially a quarter of a second long. When a run exceeds
`MAX_INTERVALS`, adjacent intervals are merged in pairs and the interval length doubles, so a run of
a day needs no more memory than a run of a minute.
"""

from __future__ import annotations

from collections import Counter
from threading import Lock

from strandlog.cli.bench.histogram import Histogram
from strandlog.clock import stopwatch

MAX_INTERVALS = 240
MAX_MESSAGES = 20
_OTHER = "other errors"


class Interval:
    """The results of one interval."""

    __slots__ = ("errors", "latency", "records", "size_bytes")

    def __init__(self) -> None:
        self.records = 0
        self.size_bytes = 0
        self.errors = 0
        self.latency = Histogram()

    def merge(self, other: Interval) -> None:
        self.records += other.records
        self.size_bytes += other.size_bytes
        self.errors += other.errors
        self.latency.merge(other.latency)


class Measurement:
    """Collects the results of all threads of a benchmark."""

    def __init__(self, interval_seconds: float = 0.25) -> None:
        self.interval_seconds = interval_seconds
        self.intervals: list[Interval] = []
        self.messages: Counter[str] = Counter()
        self.records = 0
        self.errors = 0
        self._lock = Lock()
        self._began = stopwatch()
        self._ended: float | None = None

    def start(self) -> None:
        """Start or restart the clock, before the first result is added."""
        self._began = stopwatch()

    def finish(self) -> None:
        """Stop measuring time. Later calls have no effect."""
        if self._ended is None:
            self._ended = stopwatch()

    @property
    def seconds(self) -> float:
        return max(1e-9, (self._ended or stopwatch()) - self._began)

    def add(
        self, records: int, size_bytes: int, latencies: list[float], latency_count: int = 0
    ) -> None:
        """Add records with their latencies.

        If `latency_count` is not 0, `latencies` contains one element, which counts that many times.
        """
        with self._lock:
            interval = self._interval()
            interval.records += records
            interval.size_bytes += size_bytes
            if latency_count:
                interval.latency.add(latencies[0], latency_count)
            else:
                interval.latency.add_all(latencies)
            self.records += records

    def add_errors(self, message: str, count: int = 1) -> None:
        """Count errors by message; after `MAX_MESSAGES` different ones, count new ones together."""
        with self._lock:
            self._interval().errors += count
            self.errors += count
            known = message in self.messages or len(self.messages) < MAX_MESSAGES
            self.messages[message if known else _OTHER] += count

    def _interval(self) -> Interval:
        """Return the current interval."""
        index = int((stopwatch() - self._began) / self.interval_seconds)
        while index >= MAX_INTERVALS:
            self._halve()
            index //= 2
        while len(self.intervals) <= index:
            self.intervals.append(Interval())
        return self.intervals[index]

    def _halve(self) -> None:
        halved = []
        for first, second in zip(self.intervals[::2], self.intervals[1::2], strict=False):
            first.merge(second)
            halved.append(first)
        if len(self.intervals) % 2:
            halved.append(self.intervals[-1])
        self.intervals = halved
        self.interval_seconds *= 2

    def total(self) -> Interval:
        """Return the results of all intervals together."""
        with self._lock:
            whole = Interval()
            for interval in self.intervals:
                whole.merge(interval)
            return whole
