"""When a scheduled pipeline (`every`) runs.

Rounds are due at first, first + every, first + 2 * every, …, where `first` is the start of the
pipeline: the times do not drift with the duration of rounds. A round that takes longer than the
interval delays the next one to the next due time, so rounds never overlap and missed ones are not
made up for.
"""

from __future__ import annotations

import re

_INTERVAL = re.compile(r"^(\d{1,6}) ?(s|sec|second|m|min|minute|h|hour|d|day)s?$")
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_interval(text: str) -> int | None:
    """Return an interval such as "10 min" in milliseconds; None if it is not one."""
    found = _INTERVAL.match(text.strip())
    if found is None:
        return None
    interval_ms = int(found[1]) * _UNIT_MS[found[2][0]]
    return interval_ms or None


def next_run_ms(first_ms: int, every_ms: int, now_ms: int) -> int:
    """Return the first due time after now."""
    return first_ms + max(1, (now_ms - first_ms) // every_ms + 1) * every_ms
