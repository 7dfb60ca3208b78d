"""Computes when the rounds of a scheduled pipeline (`every`) are due.

Rounds are due at first, first + every, first + 2 * every, …, where `first` is the start of the
pipeline, so the times do not drift with the duration of rounds. If a round takes longer than the
interval, the due times that it misses are skipped, so rounds never overlap.
"""

from __future__ import annotations

import re

_INTERVAL = re.compile(r"^(\d{1,6}) ?(s|sec|second|m|min|minute|h|hour|d|day)s?$")
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_interval(text: str) -> int | None:
    """Convert an interval such as "10 min" to milliseconds; return None if it is invalid or 0."""
    found = _INTERVAL.match(text.strip())
    if found is None:
        return None
    interval_ms = int(found[1]) * _UNIT_MS[found[2][0]]
    return interval_ms or None


def next_run_ms(first_ms: int, every_ms: int, now_ms: int) -> int:
    """Return the due time of the next round, which is after now and after the first round's."""
    return first_ms + max(1, (now_ms - first_ms) // every_ms + 1) * every_ms
