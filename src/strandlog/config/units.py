"""Parses sizes and durations such as `512MiB` and `7d`, and formats counts such as `2 records`.

An integer without a unit means bytes or milliseconds. Size units are B, KB/KiB, MB/MiB and GB/GiB
(1 KB = 1000 B, 1 KiB = 1024 B); duration units are ms, s, m, h and d. Negative integers without a
unit are accepted, because -1 means "no limit" in Kafka.
"""

from __future__ import annotations

import re

_BYTES = {
    "b": 1,
    "kb": 1000,
    "kib": 1024,
    "mb": 1000**2,
    "mib": 1024**2,
    "gb": 1000**3,
    "gib": 1024**3,
}
_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_QUANTITY = re.compile(r"^(-?\d+)\s*([A-Za-z]*)$")


def parse_bytes(text: str) -> int:
    """Parse a size: `"64MiB"` returns 67108864. Raise ValueError if the text is invalid."""
    return _parse(text, _BYTES)


def parse_duration_ms(text: str) -> int:
    """Parse a duration: `"7d"` returns 604800000. Raise ValueError if the text is invalid."""
    return _parse(text, _MS)


def _parse(text: str, units: dict[str, int]) -> int:
    match = _QUANTITY.match(text.strip())
    if match is None:
        raise ValueError(text)
    number, unit = int(match[1]), match[2].lower()
    if not unit:
        return number
    if unit not in units or number < 0:
        raise ValueError(text)
    return number * units[unit]


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: `1 record`, `2 records`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
