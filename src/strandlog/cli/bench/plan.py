"""The options of a benchmark, and the times at which its records are due.

--rate given      record n of a run, counted from 0, is due n / rate seconds after the start, even
                  if its client is late; the clients send in turn. Latency is measured from the due
                  time of a record: if the broker stops responding for a second, the latencies of
                  all records that were due in that second show the delay (no coordinated omission)
no --rate         a record is due when its client sends it
"""

from __future__ import annotations

import math
import random
from threading import Event
from typing import NamedTuple

from strandlog.clock import stopwatch

DEFAULT_RECORDS = 100_000
DEFAULT_SECONDS = 30.0
MAX_PAYLOADS, MAX_PAYLOAD_BYTES = 1_000, 16 * 1024 * 1024
STALL_SECONDS = 45.0  # longer than a producer waits for an acknowledgement
CHUNK_RECORDS, CHUNK_BYTES = 1_000, 256 * 1024


class Plan(NamedTuple):
    """The options of a benchmark. `records` and `seconds` limit a run; None means no limit."""

    records: int | None
    seconds: float | None
    size: int
    rate: float | None
    acks: str
    compression: str | None
    partitions: int
    clients: int

    @property
    def chunk(self) -> int:
        """The largest number of records that a client sends in one call."""
        return max(1, min(CHUNK_RECORDS, CHUNK_BYTES // max(1, self.size)))

    @property
    def stall_seconds(self) -> float:
        """A run stops after this time without a record or an error."""
        return STALL_SECONDS if self.rate is None else max(STALL_SECONDS, 3 / self.rate)

    def share(self, client: int) -> int | None:
        """Return the number of records that one client sends; None means no limit."""
        if self.records is None:
            return None
        return self.records // self.clients + (client < self.records % self.clients)

    def payloads(self) -> list[bytes]:
        """Return record values of hexadecimal digits, which compress to about half their size."""
        count = max(1, min(MAX_PAYLOADS, MAX_PAYLOAD_BYTES // max(1, self.size)))
        chooser = random.Random(self.size)  # the same values in every run
        half = (self.size + 1) // 2
        return [chooser.randbytes(half).hex().encode()[: self.size] for _ in range(count)]


class Pace:
    """Computes when the records of one client are due, from `began`, the start of the benchmark."""

    def __init__(self, plan: Plan, client: int, began: float) -> None:
        self._interval = None if plan.rate is None else plan.clients / plan.rate
        self._first = began + (self._interval or 0.0) * client / plan.clients
        self._limit = plan.share(client)
        self._until = None if plan.seconds is None else began + plan.seconds
        self._sent = 0

    @property
    def is_over(self) -> bool:
        if self._limit is not None and self._sent >= self._limit:
            return True
        return self._until is not None and stopwatch() >= self._until

    def due(self, most: int) -> list[float]:
        """Return the due times of up to `most` records that are due now and count them as sent."""
        if self._limit is not None:
            most = min(most, self._limit - self._sent)
        now = stopwatch()
        if self._interval is None:
            count = most
            times = [now] * count
        else:
            count = min(most, math.floor((now - self._first) / self._interval) + 1 - self._sent)
            begin = self._sent
            times = [self._first + (begin + n) * self._interval for n in range(count)]
        self._sent += len(times)
        return times

    def wait(self, stop: Event, longest: float = 0.05) -> None:
        """Wait until the next record is due or `stop` is set, for at most `longest` seconds."""
        if self._interval is not None:
            left = self._first + self._sent * self._interval - stopwatch()
            if left > 0:
                stop.wait(min(left, longest))
