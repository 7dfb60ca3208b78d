"""A histogram of durations in bounded memory, however many values it counts.

Durations are counted in microseconds. Each power of two is divided into 64 buckets, so that a
percentile is at most 1.6 % or one microsecond above the exact value; the maximum is exact.

    microseconds   0 1 2 … 63 | 64 65 … 127 | 128 130 … 254 | 256 260 …
    bucket         0 1 2 … 63 | 64 65 … 127 | 128 129 … 191 | 192 193 …
"""

from __future__ import annotations

from bisect import bisect_left

_BITS = 6
_PER_POWER = 1 << _BITS
_PER_SECOND = 1_000_000


class Histogram:
    """Counts durations, given in seconds."""

    __slots__ = ("_buckets", "count", "max_seconds", "sum_seconds")

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self.count = 0
        self.sum_seconds = 0.0
        self.max_seconds = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """Count a duration, `count` times."""
        seconds = max(0.0, seconds)
        self._count(_bucket_of(seconds), count)
        self.sum_seconds += seconds * count
        self.max_seconds = max(self.max_seconds, seconds)

    def add_all(self, durations: list[float]) -> None:
        """Sort the durations in place, and count them with one lookup per bucket."""
        if not durations:
            return
        durations.sort()
        begin = 0
        while begin < len(durations):
            bucket = _bucket_of(max(0.0, durations[begin]))
            end = bisect_left(durations, _lower_seconds(bucket + 1), lo=begin + 1)
            self._count(bucket, end - begin)
            begin = end
        self.sum_seconds += sum(durations)
        self.max_seconds = max(self.max_seconds, durations[-1])

    def merge(self, other: Histogram) -> None:
        """Add the counts of another histogram."""
        for bucket, count in other._buckets.items():
            self._count(bucket, count)
        self.sum_seconds += other.sum_seconds
        self.max_seconds = max(self.max_seconds, other.max_seconds)

    def percentile(self, percent: float) -> float | None:
        """Return the duration in seconds that `percent` % of the values do not exceed, or None if
        there are no values."""
        if not self.count:
            return None
        wanted = self.count * percent / 100
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= wanted:
                return min(_lower_seconds(bucket + 1), self.max_seconds)
        return self.max_seconds

    @property
    def mean(self) -> float | None:
        return self.sum_seconds / self.count if self.count else None

    def _count(self, bucket: int, count: int) -> None:
        self._buckets[bucket] = self._buckets.get(bucket, 0) + count
        self.count += count


def _bucket_of(seconds: float) -> int:
    micros = int(seconds * _PER_SECOND)
    shift = max(0, micros.bit_length() - _BITS - 1)
    return (shift << _BITS) + (micros >> shift)


def _lower_seconds(bucket: int) -> float:
    """Return the shortest duration that belongs to a bucket."""
    shift = max(0, (bucket >> _BITS) - 1)
    return ((bucket - (shift << _BITS)) << shift) / _PER_SECOND
