"""The result of a doctor check.

ok     there is no problem
warn   it works, but with a risk or a limitation
fail   it does not work; the exit code is 1
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Verdict = Literal["ok", "warn", "fail"]


class Check(NamedTuple):
    """The name and verdict of a check, what it found, and what to do about it."""

    name: str
    verdict: Verdict
    seen: str
    advice: str = ""


def ok(name: str, seen: str) -> Check:
    return Check(name, "ok", seen)


def warn(name: str, seen: str, advice: str) -> Check:
    return Check(name, "warn", seen, advice)


def fail(name: str, seen: str, advice: str) -> Check:
    return Check(name, "fail", seen, advice)
