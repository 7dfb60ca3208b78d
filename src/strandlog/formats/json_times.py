"""Parses dates and timestamps in JSON strings as Spark's `from_json` does by default.

    date        [+-]y…[-m[-d[(T or space)…]]], or a number of days since 1970
    timestamp   [+-]y…[-m[-d[(T or space)h[:m[:s[.f…][zone]]]]]]
    zone        Z, UTC, GMT, UT, [UTC|GMT|UT]±h[:m[:s]] or ±hhmm[ss], a region, or one of Java's
                short ids

Years have at least four digits; months, days, hours, minutes and seconds have one or two. A
timestamp without a zone is in the session's time zone. Years can exceed the range of Python's
`datetime`, so this module computes days itself.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

_MICROS: Final = 1_000_000
_DAY_SECONDS: Final = 86_400
_CYCLE_YEARS: Final = 400  # number of years after which dates and weekdays repeat
_LAST_YEAR: Final = 9999  # the last year of Python's datetime
_EPOCH_DAY: Final = 719_468  # days from 0000-03-01 to 1970-01-01
_TRIMMED: Final = "".join(map(chr, range(0x21))) + "\x7f"
_MAX_OFFSET_SECONDS: Final = 18 * 3600
_DATE: Final = re.compile(
    r"([+-]?)([0-9]{4,7})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?", re.DOTALL
)
_DAYS: Final = re.compile(r"[+-]?[0-9]+")
_TIMESTAMP: Final = re.compile(
    r"([+-]?)([0-9]{4,6})(?:-([0-9]{1,2})(?:-([0-9]{1,2})"
    r"(?:[ T]([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?([^0-9.].*)?)?)?)?)?)?",
    re.DOTALL,
)
_OFFSET: Final = re.compile(
    r"(?:UTC|GMT|UT)?([+-])(?:"
    r"([0-9]{1,2})(?::([0-9]{2})(?::([0-9]{2}))?)?|([0-9]{2}):([0-9])|([0-9]{2})([0-9]{2})([0-9]{2})?)"
)
_UTC_NAMES: Final = ("Z", "UTC", "GMT", "UT")
# java.time.ZoneId.SHORT_IDS
_SHORT_IDS: Final = {
    "ACT": "Australia/Darwin",
    "AET": "Australia/Sydney",
    "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo",
    "AST": "America/Anchorage",
    "BET": "America/Sao_Paulo",
    "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare",
    "CNT": "America/St_Johns",
    "CST": "America/Chicago",
    "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa",
    "ECT": "Europe/Paris",
    "EST": "-05:00",
    "HST": "-10:00",
    "IET": "America/Indiana/Indianapolis",
    "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo",
    "MIT": "Pacific/Apia",
    "MST": "-07:00",
    "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi",
    "PNT": "America/Phoenix",
    "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal",
    "VST": "Asia/Ho_Chi_Minh",
}


def date_days(text: str) -> int:
    """Return the days since 1970; raise ValueError if the string is not a date."""
    match = _DATE.fullmatch(text.strip(_TRIMMED))
    if match is not None:
        try:
            sign, year, month, day = match.groups()
            days = _days(int(sign + year), int(month or 1), int(day or 1))
        except ValueError:
            days = None
        if days is not None and -(2**31) <= days < 2**31:
            return days
    if _DAYS.fullmatch(text) is None or not -(2**31) <= int(text) < 2**31:
        raise ValueError("not a date")
    return int(text)


def timestamp_micros(text: str, session_zone: tzinfo) -> int:
    """Return the microseconds since 1970 UTC; raise ValueError for an invalid timestamp."""
    seconds, micros, zone = _local(text)
    if zone is None:
        shift = _offset_seconds(session_zone, seconds)
    else:
        shift = _offset_seconds(named_zone(zone.strip(_TRIMMED)), seconds)
    return _in_range((seconds - shift) * _MICROS + micros)


def local_micros(text: str) -> int:
    """Return the microseconds since 1970 of a local timestamp; raise ValueError if it has a zone
    or is invalid."""
    seconds, micros, zone = _local(text)
    if zone is not None:
        raise ValueError("has a time zone")
    return _in_range(seconds * _MICROS + micros)


def _in_range(micros: int) -> int:
    if not -(2**63) <= micros < 2**63:
        raise ValueError("outside the range of timestamps")
    return micros


def _local(text: str) -> tuple[int, int, str | None]:
    match = _TIMESTAMP.fullmatch(text.strip(_TRIMMED))
    if match is None:
        raise ValueError("not a timestamp")
    sign, year, month, day, hour, minute, second, fraction, zone = match.groups()
    days = _days(int(sign + year), int(month or 1), int(day or 1))
    hours, minutes, seconds = int(hour or 0), int(minute or 0), int(second or 0)
    if hours > 23 or minutes > 59 or seconds > 59:
        raise ValueError("not a time of day")
    micros = int(fraction[:6].ljust(6, "0")) if fraction else 0
    return days * _DAY_SECONDS + hours * 3600 + minutes * 60 + seconds, micros, zone


def _days(year: int, month: int, day: int) -> int:
    """Return the days since 1970 of a date in the proleptic Gregorian calendar."""
    if not 1 <= month <= 12 or not 1 <= day <= _month_days(year, month):
        raise ValueError("no such day")
    # Count years from March, so that the leap day is the last day of a year.
    shifted = year - (month <= 2)
    cycle, of_cycle = divmod(shifted, _CYCLE_YEARS)
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    day_of_cycle = of_cycle * 365 + of_cycle // 4 - of_cycle // 100 + day_of_year
    return cycle * 146_097 + day_of_cycle - _EPOCH_DAY


def _month_days(year: int, month: int) -> int:
    if month == 2:
        is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
        return 29 if is_leap else 28
    return 30 if month in (4, 6, 9, 11) else 31


_FIRST_SECOND: Final = _days(1, 1, 2) * _DAY_SECONDS
_END_SECOND: Final = _days(_LAST_YEAR, 12, 31) * _DAY_SECONDS
_CYCLE_SECONDS: Final = 146_097 * _DAY_SECONDS


def _offset_seconds(zone: tzinfo, local_seconds: int) -> int:
    """Return a zone's UTC offset at a local time. If a transition skips or repeats that time,
    return the offset before the transition."""
    if local_seconds < _FIRST_SECOND:
        local_seconds = _FIRST_SECOND  # local mean time applies to all earlier dates
    elif local_seconds >= _END_SECOND:
        cycles = (local_seconds - _END_SECOND) // _CYCLE_SECONDS + 1
        local_seconds -= cycles * _CYCLE_SECONDS
    local = datetime(1970, 1, 1) + timedelta(seconds=local_seconds)
    offset = local.replace(tzinfo=zone).utcoffset()
    assert offset is not None, "every zone has a UTC offset"
    return round(offset.total_seconds())


@lru_cache(maxsize=64)
def named_zone(name: str) -> tzinfo:
    """Return the time zone with a name that Java accepts; raise ValueError for other names."""
    name = _SHORT_IDS.get(name, name)
    if name in _UTC_NAMES:
        return UTC
    match = _OFFSET.fullmatch(name)
    if match is not None:
        return timezone(timedelta(seconds=_offset(match)))
    try:
        return ZoneInfo(name)
    except (LookupError, OSError) as error:
        raise ValueError(f"unknown time zone {name!r}") from error


def _offset(match: re.Match[str]) -> int:
    sign, hour, minute, second, *compact = match.groups()
    hours = int(hour or compact[0] or compact[2])
    minutes = int(minute or compact[1] or compact[3] or 0)
    seconds = int(second or compact[4] or 0)
    total = hours * 3600 + minutes * 60 + seconds
    if minutes > 59 or seconds > 59 or total > _MAX_OFFSET_SECONDS:
        raise ValueError("not an offset")
    return -total if sign == "-" else total


class SystemZone(tzinfo):
    """The time zone of this machine."""

    def utcoffset(self, moment: datetime | None) -> timedelta | None:
        return None if moment is None else moment.replace(tzinfo=None).astimezone().utcoffset()

    def dst(self, moment: datetime | None) -> timedelta | None:  # noqa: ARG002 - required by tzinfo
        return None

    def tzname(self, moment: datetime | None) -> str | None:
        return None if moment is None else moment.replace(tzinfo=None).astimezone().tzname()
