"""Client rates: `WindowedRate` for bytes, time and connections, `TokenBucket` for changes.

    rate     amount recorded in the last `num` samples of `size_ms`, divided by the time that they
             cover: `num` - 1 full samples and the current one
    delay    (rate - limit) / limit * that time: after it, the same amount is within the limit
    bucket   fills at `limit` tokens per second, up to the tokens of the whole window; a change
             takes tokens

They follow Kafka's `Rate` and `TokenBucket`. A sample begins with the first amount after the
previous sample has ended, and expires one window after it began. Amounts are integers (bytes,
nanoseconds, connections), so that adding and removing them is exact.

A rate or bucket is idle (`is_idle`) when it behaves like a new one. Replacing an idle one with a
new one therefore changes no decision.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple


class Window(NamedTuple):
    """The number and length of the samples of a rate."""

    num: int
    size_ms: int

    @property
    def kept_ms(self) -> int:
        """How long a sample is kept."""
        return self.num * self.size_ms

    @property
    def full_ms(self) -> int:
        """The time of all samples except the current one."""
        return (self.num - 1) * self.size_ms


class WindowedRate:
    """The amount that was recorded in the last samples."""

    __slots__ = ("_samples", "_window", "total")

    def __init__(self, window: Window) -> None:
        self._window = window
        self._samples: deque[list[int]] = deque()  # [start in ms, amount]
        self.total = 0

    def record(self, amount: int, now_ms: int) -> None:
        """Add an amount; a negative amount takes back an earlier one."""
        self.expire(now_ms)
        if not self._samples or now_ms - self._samples[-1][0] >= self._window.size_ms:
            self._samples.append([now_ms, 0])
        self._samples[-1][1] += amount
        self.total += amount

    def expire(self, now_ms: int) -> None:
        """Remove the samples that are too old."""
        oldest_ms = now_ms - self._window.kept_ms
        samples = self._samples
        while samples and samples[0][0] <= oldest_ms:
            self.total -= samples.popleft()[1]

    def delay_ms(self, limit: float, now_ms: int) -> int:
        """Return how long the client must pause, or 0 if its rate is at most `limit` per second."""
        self.expire(now_ms)
        window_ms = self._covered_ms(now_ms)
        rate = self.total * 1000 / window_ms
        return round((rate - limit) / limit * window_ms) if rate > limit else 0

    def _covered_ms(self, now_ms: int) -> int:
        """Return the time that the samples cover, but at least the time of all full samples, so
        that the first amounts do not appear as a very high rate."""
        size_ms, full_ms = self._window.size_ms, self._window.full_ms
        elapsed_ms = now_ms - self._samples[0][0] if self._samples else 0
        if elapsed_ms < full_ms:
            elapsed_ms = elapsed_ms % size_ms + full_ms
        return max(elapsed_ms, size_ms)

    def is_idle(self, limit: float, now_ms: int) -> bool:
        """Return whether nothing was recorded in the window."""
        del limit
        self.expire(now_ms)
        return not self._samples


class TokenBucket:
    """A number of tokens that changes consume and that grows at a constant rate up to a maximum."""

    __slots__ = ("_filled_ms", "_tokens", "_window")

    def __init__(self, window: Window) -> None:
        self._window = window
        self._filled_ms: int | None = None  # time of the last fill; None: the bucket is full
        self._tokens = 0.0

    def take(self, count: int, limit: float, now_ms: int) -> None:
        """Take tokens; their number may become negative."""
        self._fill(limit, now_ms)
        self._tokens -= count

    def delay_ms(self, limit: float, now_ms: int) -> int:
        """Return how long it takes until the number of tokens is no longer negative."""
        self._fill(limit, now_ms)
        return round(-self._tokens / limit * 1000) if self._tokens < 0 else 0

    def _fill(self, limit: float, now_ms: int) -> None:
        capacity = self._window.kept_ms / 1000 * limit
        if self._filled_ms is None:
            self._tokens = capacity
        else:
            gained = (now_ms - self._filled_ms) / 1000 * limit
            self._tokens = min(capacity, self._tokens + gained)
        self._filled_ms = now_ms

    def is_idle(self, limit: float, now_ms: int) -> bool:
        """Return whether the bucket is full."""
        self._fill(limit, now_ms)
        return self._tokens >= self._window.kept_ms / 1000 * limit
