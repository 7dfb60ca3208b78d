"""The declaration of a fixed limit, and the list of all declared limits."""

from __future__ import annotations

from typing import NamedTuple

KIB = 1024
MIB = 1024 * KIB


class FixedLimit(NamedTuple):
    """A limit, its meaning, what happens above it, and why it is not a setting."""

    value: int
    meaning: str
    above: str
    why: str


FIXED_LIMITS: list[FixedLimit] = []


def fixed_limit(value: int, meaning: str, *, above: str, why: str) -> int:
    """Declare a limit and return its value."""
    FIXED_LIMITS.append(FixedLimit(value, meaning, above, why))
    return value
