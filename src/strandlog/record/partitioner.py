"""Which partition a record goes to: an explicit one, else by its key, else the next in turn.

    murmur2   what Java clients do: records land where any Kafka client would put them (the default)
    md5       int(md5(key)) modulo the number of partitions
    fnv1a     64-bit FNV-1a modulo the number of partitions

Hashes of recent keys are remembered (a fixed number of them, and only of short ones, so that the
memory for it is bounded), because keys come again.
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
    """Java's murmur2 of the key, without its sign."""
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
    """The whole MD5 as a number."""
    return int.from_bytes(md5(key, usedforsecurity=False).digest())


def fnv1a(key: bytes) -> int:
    """64-bit FNV-1a."""
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
    """One hash, with and without a memory for recent keys."""

    plain: Callable[[bytes], int]
    remembering: Callable[[bytes], int]

    def up_to(self, key_bytes: int) -> Callable[[bytes], int]:
        """The one to use for keys of at most this size."""
        return self.remembering if key_bytes <= REMEMBERED_KEY_BYTES else self.plain


def key_hash(name: str) -> KeyHash:
    """The hash of that name."""
    plain = _HASHES.get(name)
    if plain is None:
        raise InvalidSettingError("partitioner", name, "expected one of " + ", ".join(_HASHES))
    return KeyHash(plain, lru_cache(maxsize=REMEMBERED_KEYS)(plain))
