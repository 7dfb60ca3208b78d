"""Map from a key to its last offset, in a fixed amount of memory.

    slot: 16 bytes MD5 of the key | i64 offset + 1 (0 marks an empty slot)          24 bytes

The map uses open addressing with linear probing. Its memory depends on the number of slots, not on
the size or number of keys. When the map is full (load factor 0.9), the caller stops adding keys and
compacts in several passes. MD5 is used only as a short identifier of a key, not for security. Two
keys with the same hash would be treated as one; the probability is 2**-128 per pair.
"""

from __future__ import annotations

import struct
from hashlib import md5

SLOT_SIZE = 24
LOAD_FACTOR = 0.9
MIN_SLOTS = 16

_OFFSET = struct.Struct(">q")
_HASH_SIZE = 16


class OffsetMap:
    """A hash table of fixed size; `put` and `get` take one or two microseconds."""

    __slots__ = ("_capacity", "_count", "_slots", "_table")

    def __init__(self, memory_bytes: int) -> None:
        self._slots = max(MIN_SLOTS, memory_bytes // SLOT_SIZE)
        self._capacity = int(self._slots * LOAD_FACTOR)
        self._table = bytearray(self._slots * SLOT_SIZE)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        return self._count >= self._capacity

    def put(self, key: bytes, offset: int) -> bool:
        """Store the offset of a key. Return False and change nothing if the key is new and the map
        is full."""
        name = md5(key, usedforsecurity=False).digest()
        position = self._find(name)
        if self._table[position + _HASH_SIZE : position + SLOT_SIZE] == bytes(8):
            if self.is_full:
                return False
            self._table[position : position + _HASH_SIZE] = name
            self._count += 1
        _OFFSET.pack_into(self._table, position + _HASH_SIZE, offset + 1)
        return True

    def get(self, key: bytes) -> int:
        """Return the last offset of a key, or -1 if it is not in the map."""
        position = self._find(md5(key, usedforsecurity=False).digest())
        stored: int = _OFFSET.unpack_from(self._table, position + _HASH_SIZE)[0]
        return stored - 1

    def _find(self, name: bytes) -> int:
        """Return the position of the key's slot, or of the empty slot it would occupy."""
        table = self._table
        slot = int.from_bytes(name[:8]) % self._slots
        while True:
            position = slot * SLOT_SIZE
            if table.startswith(name, position):
                return position
            if _OFFSET.unpack_from(table, position + _HASH_SIZE)[0] == 0:
                return position
            slot = (slot + 1) % self._slots
