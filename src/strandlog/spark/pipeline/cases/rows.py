"""Compares the rows of a sink with expected rows, in any order, and prints the difference.

Only the columns that at least one expected row names are compared; if another expected row lacks
such a column, the column must be null. Null and missing are equal, because JSON objects omit null
columns. Two integers are compared exactly; other numbers of any type are equal if their relative
difference is at most 1e-9. A date or time without a time zone is taken as UTC, and equals the
corresponding ISO string. The order of array elements matters.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

Row = Mapping[str, Any]
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Difference:
    """The expected rows that a step did not add to an output, and the unexpected ones it added."""

    step: int  # counted from 1
    output: str
    missing: tuple[Row, ...]
    unexpected: tuple[Row, ...]

    def lines(self) -> list[str]:
        """Describe the difference: each missing row with the unexpected row closest to it, then the
        other unexpected rows."""
        left = list(self.unexpected)
        lines: list[str] = []
        for expected in self.missing:
            lines.append(f"- expected  {shown(expected)}")
            near = max(left, key=lambda row: _likeness(expected, row), default=None)
            if near is not None and _likeness(expected, near):
                left.remove(near)
                lines.append(f"+ got       {shown(near)}")
                lines.append(f"            differs in {', '.join(_differing(expected, near))}")
        return [*lines, *(f"+ got       {shown(row)}" for row in left)]


def difference(
    step: int, output: str, expected: Sequence[Row], rows: Sequence[Row]
) -> Difference | None:
    """Compare rows with expected rows; return None if they are equal."""
    columns = [*dict.fromkeys(name for row in expected for name in row)]
    given = [{name: row.get(name) for name in columns} if columns else row for row in rows]
    missing: list[Row] = []
    left = list(given)
    for want in expected:
        whole = {name: want.get(name) for name in columns}
        match = next((index for index, row in enumerate(left) if equal(whole, row)), None)
        if match is None:
            missing.append(whole)
        else:
            del left[match]
    if not missing and not left:
        return None
    return Difference(step, output, tuple(missing), tuple(left))


def equal(expected: Any, given: Any) -> bool:
    """Return whether a value equals the expected one, by the rules in the module docstring."""
    if isinstance(expected, Mapping) and isinstance(given, Mapping):
        names = expected.keys() | given.keys()
        return all(equal(expected.get(name), given.get(name)) for name in names)
    if isinstance(expected, list | tuple) and isinstance(given, list | tuple):
        pairs = zip(expected, given, strict=False)
        return len(expected) == len(given) and all(equal(*pair) for pair in pairs)
    if isinstance(expected, bool) or isinstance(given, bool):
        return expected is given
    if isinstance(expected, int) and isinstance(given, int):
        return expected == given
    if isinstance(expected, int | float | Decimal):
        return _equal_numbers(float(expected), given)
    if isinstance(expected, date | time):  # a datetime is a date
        return bool(_instant(expected) == _instant(given))
    return bool(expected == given)


def _equal_numbers(expected: float, given: Any) -> bool:
    if isinstance(given, str) and not math.isfinite(expected):
        given = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}.get(given, given)
    if not isinstance(given, int | float | Decimal):
        return False
    if math.isnan(expected):
        return math.isnan(given)
    return math.isclose(expected, float(given), rel_tol=TOLERANCE)


def _instant(value: Any) -> Any:
    """Convert a date, a timestamp or an ISO string of one to a time in UTC, and an ISO string of a
    time of day to a `time`; return other values unchanged."""
    if isinstance(value, str):
        for read in (datetime.fromisoformat, time.fromisoformat):
            try:
                return _instant(read(value))
            except ValueError:
                continue
        return value
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    return value


def _likeness(expected: Row, given: Row) -> int:
    return sum(equal(value, given.get(name)) for name, value in expected.items())


def _differing(expected: Row, given: Row) -> list[str]:
    return [name for name, value in expected.items() if not equal(value, given.get(name))]


def shown(row: Row) -> str:
    """Return a row as JSON, without its null columns."""
    return json.dumps(plain(row), ensure_ascii=False)


def plain(row: Row) -> dict[str, Any]:
    """Return a row with JSON-compatible values, without its null columns."""
    found: dict[str, Any] = json.loads(json.dumps(dict(row), default=_text))
    return {name: value for name, value in found.items() if value is not None}


def _text(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
