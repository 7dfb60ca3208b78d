"""Encodes and decodes zig-zag varints, the integers inside a record.

    zig-zag   0, -1, 1, -2, 2 …  become  0, 1, 2, 3, 4 …, so small numbers of either sign stay short
    varint    seven bits per byte, lowest first; the top bit is set if another byte follows

Kafka's 32-bit and 64-bit varints share this encoding and differ only in their range. A 64-bit value
takes at most ten bytes.

Invariants: `decode_varint(encode_varint(n), 0) == (n, varint_size(n))` for every 64-bit `n`.
Encodings that are longer than necessary are accepted (other writers may pad), but not more than ten
bytes and not values over 64 bits.

Code that reads batches inlines the short cases; code that writes them uses caches. A cache is
filled on demand and cleared when it reaches CACHE_LIMIT. A lost entry is simply computed again, so
threads may share a cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from strandlog.errors import CorruptRecordError
from strandlog.model import Buffer

CACHE_LIMIT: Final = 1 << 16
MAX_VARINT_BYTES: Final = 10
MIN_INT64: Final = -(1 << 63)
MAX_INT64: Final = (1 << 63) - 1

T = TypeVar("T")

_SINGLE_BYTES: Final = tuple(bytes((raw,)) for raw in range(128))


def encode_varint(value: int) -> bytes:
    """Encode `value`, which must fit in 64 bits."""
    raw = value << 1 if value >= 0 else ~(value << 1)
    if raw < 128:
        return _SINGLE_BYTES[raw]
    if raw < 16384:
        return bytes((raw & 127 | 128, raw >> 7))
    assert raw >> 64 == 0, f"{value} does not fit in 64 bits"
    encoded = bytearray()
    while raw > 127:
        encoded.append(raw & 127 | 128)
        raw >>= 7
    encoded.append(raw)
    return bytes(encoded)


def decode_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Return the value at `position` and the position after it."""
    raw = 0
    shift = 0
    try:
        byte = buffer[position]
        if byte < 128:
            return (byte >> 1) ^ -(byte & 1), position + 1
        while (byte := buffer[position]) > 127:
            raw |= (byte & 127) << shift
            shift += 7
            position += 1
            if shift == 7 * MAX_VARINT_BYTES:
                raise CorruptRecordError(f"a varint is longer than {MAX_VARINT_BYTES} bytes")
    except IndexError:
        raise CorruptRecordError("the bytes end in the middle of a varint") from None
    raw |= byte << shift
    if raw >> 64:
        raise CorruptRecordError("a varint does not fit in 64 bits")
    return (raw >> 1) ^ -(raw & 1), position + 1


def varint_size(value: int) -> int:
    """Return the length of `encode_varint(value)`."""
    raw = value << 1 if value >= 0 else ~(value << 1)
    return (raw.bit_length() + 6) // 7 or 1


class NumberCache(dict[int, T], Generic[T]):
    """A cache of the results of a function of one integer."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[int], T]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, number: int) -> T:
        if len(self) >= CACHE_LIMIT:
            self.clear()
        made = self[number] = self._make(number)
        return made


VARINTS: Final = NumberCache(encode_varint)
VARINT_SIZES: Final = NumberCache(varint_size)


def wrap_int64(value: int) -> int:
    """Return the 64-bit integer that Java's arithmetic would give for an exact sum."""
    return (value - MIN_INT64) % (1 << 64) + MIN_INT64
