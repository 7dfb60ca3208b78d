"""One finding of the doctor: what was looked at, what was seen, what to do.

ok     as it should be
warn   works, but something will surprise you
fail   does not work; exit code 1
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Verdict = Literal["ok", "warn", "fail"]


class Check(NamedTuple):
    """One line of the report."""

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
