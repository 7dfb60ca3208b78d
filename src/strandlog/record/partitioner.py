"""Hash functions that map record keys to partitions.

    murmur2   the default, as in Java clients: keys map to the same partitions as in Kafka
    md5       int(md5(key)) modulo the number of partitions
    fnv1a     64-bit FNV-1a modulo the number of partitions

The hashes of recent keys are cached, because keys tend to repeat. The number and the size of cached
keys are limited to bound the memory used.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from hashlib import md5
from typing import NamedTuple

from strandlog.errors import InvalidSettingError

REMEMBERED_KEYS = 65_536
REMEMBERED_KEY_BYTES = 256

_WORD = struct.Struct("<I")
_MASK = 0xFFFFFFFF
_MURMUR_SEED = 0x9747B28C
_MURMUR_M = 0x5BD1E995
_FNV_OFFSET = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3


def murmur2(key: bytes) -> int:
    """Return Java's murmur2 of the key, with the sign bit cleared."""
    length = len(key)
    value = _MURMUR_SEED ^ length
    whole = length & ~3
    for (word,) in _WORD.iter_unpack(key[:whole]):
        mixed = word * _MURMUR_M & _MASK
        mixed = (mixed ^ mixed >> 24) * _MURMUR_M & _MASK
        value = value * _MURMUR_M & _MASK ^ mixed
    rest = key[whole:]
    if rest:
        value = (value ^ int.from_bytes(rest, "little")) * _MURMUR_M & _MASK
    value = (value ^ value >> 13) * _MURMUR_M & _MASK
    return (value ^ value >> 15) & 0x7FFFFFFF


def md5_hash(key: bytes) -> int:
    """Return the MD5 of the key as a 128-bit integer."""
    return int.from_bytes(md5(key, usedforsecurity=False).digest())


def fnv1a(key: bytes) -> int:
    """Return the 64-bit FNV-1a hash of the key."""
    value = _FNV_OFFSET
    for byte in key:
        value = (value ^ byte) * _FNV_PRIME & 0xFFFFFFFFFFFFFFFF
    return value


_HASHES: dict[str, Callable[[bytes], int]] = {
    "murmur2": murmur2,
    "md5": md5_hash,
    "fnv1a": fnv1a,
}


class KeyHash(NamedTuple):
    """A hash function, with and without a cache of recent keys."""

    plain: Callable[[bytes], int]
    remembering: Callable[[bytes], int]

    def up_to(self, key_bytes: int) -> Callable[[bytes], int]:
        """Return the variant to use for keys of up to `key_bytes` bytes."""
        return self.remembering if key_bytes <= REMEMBERED_KEY_BYTES else self.plain


def key_hash(name: str) -> KeyHash:
    """Return the hash function with this name."""
    plain = _HASHES.get(name)
    if plain is None:
        raise InvalidSettingError("partitioner", name, "expected one of " + ", ".join(_HASHES))
    return KeyHash(plain, lru_cache(maxsize=REMEMBERED_KEYS)(plain))
