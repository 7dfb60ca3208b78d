"""Validates arguments of the client API, such as acks, timeouts, assignors and records.

A record can be given in one of these forms:

    value                                   bytes, or None for a tombstone
    (key, value)                            either can be None
    {"value": …, "key": …, "headers": …, "partition": …, "timestamp": …}      all but value optional

Headers are a mapping, or an iterable of (name, value) pairs, which can repeat a name. A wrong type
in a record raises a `TypeError` that names the expected type; nothing is encoded or converted
implicitly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal, NamedTuple, get_args

from strandlog.broker.access.scram import MECHANISMS_BY_NAME, ScramMechanism
from strandlog.errors import (
    InvalidGroupError,
    InvalidSettingError,
    InvalidTimestampError,
    OffsetOutOfRangeError,
)
from strandlog.model import Headers, TopicPartition

Acks = Literal["all", 0, 1, -1]
OffsetReset = Literal["earliest", "latest", "none"]
OnUnreadable = Literal["raise", "skip"]
BatchItem = bytes | tuple[bytes | None, bytes | None] | Mapping[str, Any] | None
GivenHeaders = Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]] | None

MAX_TIMESTAMP_MS = 2**63 - 1
FOREVER_MS = 10**15
_TO_BYTES = {
    "str": "encode it first: {name}.encode()",
    "bytearray": "pass an immutable copy: bytes({name})",
    "memoryview": "pass an immutable copy: bytes({name})",
}
_ENCODED = "encode it first, for example as JSON: json.dumps({name}).encode()"
_ITEM_FIELDS = frozenset({"key", "value", "headers", "partition", "timestamp"})


def check_acks(acks: Acks | str) -> None:
    """Raise if `acks` is invalid; strings such as "1" are accepted for numbers."""
    if acks not in ("all", "0", "1", "-1", 0, 1, -1):
        raise InvalidSettingError("acks", acks, 'expected one of "all", -1, 0, 1')


def waits_for_disk(acks: Acks | str) -> bool:
    """Return whether a producer with this `acks` setting waits for the fsync."""
    return acks in ("all", "-1", -1)


def check_reset(auto_offset_reset: str) -> None:
    """Raise if the offset reset policy is unknown."""
    allowed = get_args(OffsetReset)
    if auto_offset_reset not in allowed:
        raise InvalidSettingError(
            "auto_offset_reset", auto_offset_reset, "expected one of " + ", ".join(allowed)
        )


def reset_error(
    group: str | None, tp: TopicPartition, offset: int, start: int, end: int
) -> OffsetOutOfRangeError:
    """Return the error for a consumer with auto_offset_reset="none" that has no valid position.

    `offset` is negative if the group has no committed offset; otherwise it is out of range.
    """
    error = OffsetOutOfRangeError(*tp, offset, start, end)
    missing = f"group {group!r} has no committed offset for {tp}"
    text = error.args[0] if offset >= 0 else missing
    error.args = (
        f"{text}, and auto_offset_reset is 'none': seek to an offset in [{start}, {end}] first",
    )
    return error


def check_max_records(max_records: int) -> None:
    """Raise unless the argument of `poll` is a positive integer."""
    if not isinstance(max_records, int) or max_records < 1:
        raise InvalidSettingError("max_records", max_records, "expected an integer, at least 1")


def check_timeout(timeout_ms: int, name: str = "timeout_ms") -> None:
    """Raise unless a timeout is a number of milliseconds, at least 0."""
    is_number = isinstance(timeout_ms, int | float) and not isinstance(timeout_ms, bool)
    if not is_number or not timeout_ms >= 0:  # written this way to reject NaN too
        raise InvalidSettingError(name, timeout_ms, "expected a number of ms, such as 1000")


def iteration_timeout(consumer_timeout_ms: int | None) -> int:
    """Return how long iteration waits for the next record, in ms; None means indefinitely."""
    if consumer_timeout_ms is None:
        return FOREVER_MS
    check_timeout(consumer_timeout_ms, "consumer_timeout_ms")
    return consumer_timeout_ms


def check_on_unreadable(on_unreadable: str) -> None:
    """Raise if the policy for unreadable batches is unknown."""
    allowed = get_args(OnUnreadable)
    if on_unreadable not in allowed:
        raise InvalidSettingError(
            "on_unreadable", on_unreadable, "expected one of " + ", ".join(allowed)
        )


def check_auto_commit(group: str | None, *, auto_commit: bool) -> None:
    """Raise if auto_commit is set without a group."""
    if auto_commit and group is None:
        raise InvalidGroupError(group, "auto_commit requires a group")


def checked_assignors(assignors: Iterable[str], known: Collection[str]) -> list[str]:
    """Return the assignors as a list; raise if there are none or one is unknown."""
    offered = [assignors] if isinstance(assignors, str) else list(assignors)
    if not offered or not set(offered) <= set(known):
        allowed = ", ".join(known)
        raise InvalidSettingError("assignors", assignors, f"expected one or more of {allowed}")
    return offered


def mechanism_named(name: str) -> ScramMechanism:
    """Return the SCRAM mechanism with this SASL name; raise if it is unknown."""
    if name not in MECHANISMS_BY_NAME:
        allowed = ", ".join(MECHANISMS_BY_NAME)
        raise InvalidSettingError("mechanisms", name, f"expected one of {allowed}")
    return MECHANISMS_BY_NAME[name]


class Fields(NamedTuple):
    """The fields of one record."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: int | None
    timestamp: int


def fields_of(item: BatchItem, now_ms: int) -> Fields:
    """Return the fields of a record given in any of the accepted forms."""
    if isinstance(item, tuple):
        if len(item) != 2:
            raise TypeError("a record given as a tuple must be (key, value)")
        key, value = item
        given: Mapping[str, Any] = {}
    elif isinstance(item, Mapping):
        unknown = set(item) - _ITEM_FIELDS
        if unknown or "value" not in item:
            raise TypeError(
                "a record given as a mapping must have a value and may have key, headers, "
                f"partition and timestamp; got {', '.join(map(str, item))}"
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
    """Raise unless the value and the key are each bytes or None."""
    for name, part in (("value", value), ("key", key)):
        if part is not None and not isinstance(part, bytes):
            kind = type(part).__name__
            raise TypeError(
                f"the {name} of a record must be bytes or None, not {kind}; "
                f"{_TO_BYTES.get(kind, _ENCODED).format(name=name)}"
            )


def checked_headers(headers: GivenHeaders) -> Headers:
    """Return the headers as a tuple of pairs; raise if they are invalid."""
    if not headers:
        return ()
    try:
        pairs = headers.items() if isinstance(headers, Mapping) else headers
        checked = tuple((name, value) for name, value in pairs)
    except (TypeError, ValueError):
        raise TypeError("headers must be a mapping or a sequence of (name, value) pairs") from None
    for name, value in checked:
        if not isinstance(name, str) or not (value is None or isinstance(value, bytes)):
            raise TypeError(
                "the name of a header must be a str and its value bytes or None; got "
                f"{name!r}: {value!r}"
            )
    return checked


def listed(records: Iterable[BatchItem] | bytes | str) -> list[BatchItem]:
    """Return the records of a batch as a list; raise if given a single bytes or str value."""
    if isinstance(records, bytes | str):
        kind = type(records).__name__
        raise TypeError(f"send_batch takes a list, got {kind}; use send for one record")
    return list(records)


def checked_partitions(partitions: Iterable[tuple[str, int]]) -> list[TopicPartition]:
    """Return the partitions of an assignment; raise if they are not pairs."""
    found = []
    for pair in partitions:
        if isinstance(pair, str) or len(pair) != 2:
            raise TypeError(f"assign takes pairs of topic and partition number, got {pair!r}")
        found.append(TopicPartition(*pair))
    return found


def checked_offset(offset: object, tp: TopicPartition, start: int, end: int) -> int:
    """Return the offset to seek to; raise if it is not between start and end."""
    if not isinstance(offset, int):
        raise TypeError(f"an offset must be an int, got {offset!r}")
    if not start <= offset <= end:
        raise OffsetOutOfRangeError(*tp, offset, start, end)
    return offset


def deletion_error(offset: int, tp: TopicPartition, start: int, end: int) -> OffsetOutOfRangeError:
    """Return the error for a negative offset in `delete_records`. A broker takes -1 for all visible
    records, so a mistake in a calculation could delete them."""
    error = OffsetOutOfRangeError(*tp, offset, start, end)
    error.args = (f"{error}; to delete all records, pass the end offset, {end}",)
    return error


def checked_timestamp(timestamp: object) -> int:
    """Return the timestamp; raise if it is invalid."""
    if not isinstance(timestamp, int):
        raise TypeError(f"a timestamp must be an int (Unix milliseconds), got {timestamp!r}")
    if not 0 <= timestamp <= MAX_TIMESTAMP_MS:
        raise InvalidTimestampError(
            f"timestamp must be between 0 and {MAX_TIMESTAMP_MS} (Unix ms), got {timestamp}"
        )
    return timestamp
