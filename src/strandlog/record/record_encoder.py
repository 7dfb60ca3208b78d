"""Encodes the records of one batch as a list of byte strings, to be joined once.

The parts of one record, in order:

    lead     the header count 0 that ends the previous record; this record's length; attributes 0
    time     timestamp delta                            (only with timestamps)
    head     timestamp delta 0 (only without timestamps); offset delta; key length -1 (only without
             keys)
    key      length, bytes                              (only with keys)
    value    length, bytes
    tail     header count and headers       (only with headers; the lead then contains no count)

The list is filled column by column: each part is looked up for all records with one `map` over a
cache, so that almost no Python code runs per record. All parts except keys, values and headers are
cached.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from operator import add, sub
from typing import Final

from strandlog.errors import InvalidTimestampError
from strandlog.model import Headers
from strandlog.record.record import encode_headers
from strandlog.record.varint import (
    CACHE_LIMIT,
    MAX_INT64,
    MIN_INT64,
    VARINT_SIZES,
    VARINTS,
    NumberCache,
    encode_varint,
    varint_size,
)

_ATTRIBUTES: Final = b"\0"
_NO_HEADERS: Final = b"\0"
_ZERO: Final = encode_varint(0)
_NULL: Final = encode_varint(-1)
_ZERO_TIME_AND_OFFSET: Final = _ZERO + _ZERO

# Maps the size of a key or value (-1 for null) to its encoded size, including the length prefix.
_FIELD_SIZES: Final = NumberCache(lambda size: varint_size(size) + max(size, 0))
_LEADS: Final = NumberCache(lambda size: _NO_HEADERS + encode_varint(size + 2) + _ATTRIBUTES)
_LEADS_ALONE: Final = NumberCache(lambda size: encode_varint(size + 1) + _ATTRIBUTES)


class _Heads:
    """The `head` parts for offset deltas 0, 1, 2 … and their sizes."""

    __slots__ = ("_after", "_before", "_parts", "_sizes")

    def __init__(self, before: bytes, after: bytes) -> None:
        self._before = before
        self._after = after
        self._parts: list[bytes] = []
        self._sizes: list[int] = []

    def first(self, count: int) -> tuple[list[bytes], list[int]]:
        if count > CACHE_LIMIT:
            parts = self._made(range(count))
            return parts, list(map(len, parts))
        if count > len(self._parts):
            # Replace the lists instead of extending them, because other threads may be reading.
            parts = self._made(range(min(CACHE_LIMIT, count * 2)))
            self._sizes = list(map(len, parts))
            self._parts = parts
        return self._parts[:count], self._sizes[:count]

    def _made(self, deltas: Iterable[int]) -> list[bytes]:
        return [self._before + encode_varint(delta) + self._after for delta in deltas]


# Keys: (has timestamps, has keys).
_HEADS: Final = {
    (False, False): _Heads(_ZERO, _NULL),
    (False, True): _Heads(_ZERO, b""),
    (True, False): _Heads(b"", _NULL),
    (True, True): _Heads(b"", b""),
}


def batch_parts(
    base_timestamp: int,
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None,
    headers: Sequence[Headers] | None,
    timestamps: Sequence[int] | None,
) -> list[bytes]:
    """Return the parts of all records of a batch."""
    count = len(values)
    heads, sizes = _HEADS[timestamps is not None, keys is not None].first(count)
    columns = [heads]
    if timestamps is not None:
        deltas = _deltas(timestamps, base_timestamp)
        columns.insert(0, list(map(VARINTS.__getitem__, deltas)))
        sizes = list(map(add, sizes, map(VARINT_SIZES.__getitem__, deltas)))
    for fields in (values,) if keys is None else (keys, values):
        lengths, contents = _fields(fields)
        columns += (list(map(VARINTS.__getitem__, lengths)), contents)
        sizes = list(map(add, sizes, map(_FIELD_SIZES.__getitem__, lengths)))
    if headers is None:
        leads = list(map(_LEADS.__getitem__, sizes))
        leads[0] = leads[0][1:]
    else:
        tails = list(map(encode_headers, headers))
        columns.append(tails)
        leads = list(map(_LEADS_ALONE.__getitem__, map(add, sizes, map(len, tails))))
    columns.insert(0, leads)
    return _interleaved(columns, count, is_open=headers is None)


def _interleaved(columns: list[list[bytes]], count: int, *, is_open: bool) -> list[bytes]:
    width = len(columns)
    parts = [_NO_HEADERS] * (count * width + is_open)
    for index, column in enumerate(columns):
        parts[index : count * width : width] = column
    return parts


def _fields(fields: Sequence[bytes | None]) -> tuple[list[int], list[bytes]]:
    """Return the lengths of keys or values (-1 for null) and their bytes."""
    try:
        return list(map(len, fields)), fields  # type: ignore[arg-type, return-value]
    except TypeError:
        lengths = [-1 if field is None else len(field) for field in fields]
        return lengths, [field or b"" for field in fields]


def _deltas(timestamps: Sequence[int], base_timestamp: int) -> list[int]:
    deltas = list(map(sub, timestamps, repeat(base_timestamp)))
    if min(deltas) < MIN_INT64 or max(deltas) > MAX_INT64:
        raise InvalidTimestampError(
            "the difference between two timestamps of a batch does not fit in 64 bits"
        )
    return deltas


def single_parts(value: bytes | None, key: bytes | None, headers: Headers) -> list[bytes]:
    """Return the parts of a single-record batch. Its timestamp and offset deltas are 0."""
    key_size = -1 if key is None else len(key)
    value_size = -1 if value is None else len(value)
    tail = encode_headers(headers) if headers else _NO_HEADERS
    size = 2 + _FIELD_SIZES[key_size] + _FIELD_SIZES[value_size] + len(tail)
    return [
        _LEADS_ALONE[size],
        _ZERO_TIME_AND_OFFSET,
        VARINTS[key_size],
        key or b"",
        VARINTS[value_size],
        value or b"",
        tail,
    ]
