"""Converts Avro dates and times to ISO 8601 text and back.

A count of units since 1970, or since midnight, becomes text such as `2024-01-31T12:00:00.000001Z`;
only timestamps that are not local have a `Z`. A count outside the years 1 to 9999, or outside a
day, stays a number. When text is read, a timestamp without a zone counts as UTC.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta

from strandlog.errors import DataError

EPOCH_DAY = date(1970, 1, 1).toordinal()
EPOCH = datetime(1970, 1, 1)
LAST_DAY = date(9999, 12, 31).toordinal()
UNITS = {"millis": 1_000, "micros": 1_000_000, "nanos": 1_000_000_000}  # units per second
DAY_SECONDS = 86_400


def time_text(logical: str, count: int) -> str | int:
    """Return the text of a date, time or timestamp, or the number itself if it is out of range."""
    if logical == "date":
        day = count + EPOCH_DAY
        return date.fromordinal(day).isoformat() if 1 <= day <= LAST_DAY else count
    unit = UNITS[logical.rpartition("-")[2]]
    seconds, rest = divmod(count, unit)
    digits = len(str(unit)) - 1
    fraction = f".{rest:0{digits}d}" if rest else ""
    if logical.startswith("time-"):
        if not 0 <= seconds < DAY_SECONDS:
            return count
        return (datetime.min + timedelta(seconds=seconds)).time().isoformat() + fraction
    try:
        moment = EPOCH + timedelta(seconds=seconds)
    except OverflowError:
        return count
    zone = "" if logical.startswith("local-") else "Z"
    return moment.isoformat() + fraction + zone


def time_count(logical: str, text: str) -> int:
    """Convert ISO 8601 text to a count of units; raise `DataError` if it is invalid."""
    try:
        if logical == "date":
            return date.fromisoformat(text).toordinal() - EPOCH_DAY
        unit = UNITS[logical.rpartition("-")[2]]
        whole, nanos = _split(text)
        if logical.startswith("time-"):
            clock = time.fromisoformat(whole)
            seconds = clock.hour * 3600 + clock.minute * 60 + clock.second
        else:
            moment = datetime.fromisoformat(whole)
            if moment.tzinfo is not None:
                moment = moment.astimezone(UTC).replace(tzinfo=None)
            since = moment - EPOCH
            seconds = since.days * DAY_SECONDS + since.seconds
        return seconds * unit + nanos * unit // UNITS["nanos"]
    except (ValueError, OverflowError):
        raise DataError(f"{text[:50]!r} is not a {logical} in ISO 8601") from None


def _split(text: str) -> tuple[str, int]:
    """Split a time into the text without its fraction, and the fraction in nanoseconds."""
    before, dot, after = text.replace(",", ".").partition(".")
    if not dot:
        return text, 0
    digits = after[: len(after) - len(after.lstrip("0123456789"))]
    return before + after[len(digits) :], int((digits + "0" * 9)[:9])
