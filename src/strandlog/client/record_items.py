"""The forms in which a program hands records over, and what must hold for each part of one.

    value                                   bytes, or None for a tombstone
    (key, value)                            either may be None
    {"value": …, "key": …, "headers": …, "partition": …, "timestamp": …}      all but value optional

Headers are a mapping or a sequence of (name, value) pairs; names may come twice then. Mistakes of
the program are `TypeError`s that say what was expected; nothing is encoded or converted on its
behalf.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from strandlog.errors import InvalidTimestampError
from strandlog.model import Headers

BatchItem = bytes | tuple[bytes | None, bytes | None] | Mapping[str, Any] | None
GivenHeaders = Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]] | None

MAX_TIMESTAMP_MS = 2**63 - 1
_ITEM_FIELDS = frozenset({"key", "value", "headers", "partition", "timestamp"})


class Fields(NamedTuple):
    """The parts of one record."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: int | None
    timestamp: int


def fields_of(item: BatchItem, now_ms: int) -> Fields:
    """The parts of a record in any of its forms."""
    if isinstance(item, tuple):
        if len(item) != 2:
            raise TypeError("a record given as a tuple is (key, value)")
        key, value = item
        given: Mapping[str, Any] = {}
    elif isinstance(item, Mapping):
        unknown = set(item) - _ITEM_FIELDS
        if unknown or "value" not in item:
            raise TypeError(
                f"a record given as a mapping has a value and may have key, headers, partition "
                f"and timestamp; this one has {', '.join(map(str, item))}"
            )
        key, value, given = item.get("key"), item["value"], item
    else:
        key, value, given = None, item, {}
    check_bytes(value, key)
    timestamp = given.get("timestamp")
    return Fields(
        key,
        value,
        checked_headers(given.get("headers")),
        given.get("partition"),
        now_ms if timestamp is None else checked_timestamp(timestamp),
    )


def check_bytes(value: object, key: object) -> None:
    """Raise unless both are bytes or None."""
    for name, part in (("value", value), ("key", key)):
        if part is not None and not isinstance(part, bytes):
            raise TypeError(
                f"a record's {name} is bytes or None, not {type(part).__name__}; encode it first"
            )


def checked_headers(headers: GivenHeaders) -> Headers:
    """The headers as pairs."""
    if not headers:
        return ()
    try:
        pairs = headers.items() if isinstance(headers, Mapping) else headers
        checked = tuple((name, value) for name, value in pairs)
    except (TypeError, ValueError):
        raise TypeError("headers are a mapping or a sequence of (name, value) pairs") from None
    for name, value in checked:
        if not isinstance(name, str) or not (value is None or isinstance(value, bytes)):
            raise TypeError(
                f"a header has a str for a name and bytes or None for a value; this one is "
                f"{name!r}: {value!r}"
            )
    return checked


def checked_timestamp(timestamp: object) -> int:
    """The timestamp, if it is one."""
    if not isinstance(timestamp, int):
        raise TypeError(f"a timestamp is an int, in Unix milliseconds; this one is {timestamp!r}")
    if not 0 <= timestamp <= MAX_TIMESTAMP_MS:
        raise InvalidTimestampError(
            f"{timestamp} is no timestamp: 0 to {MAX_TIMESTAMP_MS} are, in Unix milliseconds"
        )
    return timestamp
