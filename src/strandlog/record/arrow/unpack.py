"""Room for the unpacked records of the batches that become one RecordBatch.

Batches are unpacked one behind the other into the same room, where kernels read all of them at
once; nothing is put together afterwards. The room is used again for the next batches: memory that
was used before is in the processor's cache, and the kernel need not clear it.

Invariant: nobody refers to the room any more when it is used again (Arrow gets copies).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from strandlog.errors import DecompressedTooLargeError
from strandlog.record.arrow.kernels.decode import Bytes as Array
from strandlog.record.codecs import Bytes, Codec, decompress_into

_GROWTH: Final = 4


class UnpackedBatches:
    """The room, and how much of it is used."""

    def __init__(self, room_bytes: int, limit_bytes: int) -> None:
        """`limit_bytes` is what one batch may unpack to."""
        self._room_bytes = room_bytes
        self._limit_bytes = limit_bytes
        self._array: Array = np.empty(0, np.uint8)
        self._room = self._array.data
        self.used_bytes = 0

    def unpack(self, codec: Codec, packed: Bytes) -> int:
        """Unpack a batch behind those that are here; how many bytes it has."""
        while True:
            rest = self._room[self.used_bytes :][: self._limit_bytes]
            size = decompress_into(codec, packed, rest)
            if size is not None:
                self.used_bytes += size
                return size
            if len(rest) >= self._limit_bytes:
                raise DecompressedTooLargeError(self._limit_bytes)
            self._grow(min(max(self._room_bytes, _GROWTH * len(rest)), self._limit_bytes))

    def _grow(self, rest_bytes: int) -> None:
        """Have so much behind what is used."""
        larger: Array = np.empty(self.used_bytes + rest_bytes, np.uint8)
        larger[: self.used_bytes] = self._array[: self.used_bytes]
        self._array, self._room = larger, larger.data

    def keep_last(self, size: int) -> None:
        """Forget all but the last bytes: they are the beginning of what comes next."""
        start = self.used_bytes - size
        self._room[:size] = self._room[start : self.used_bytes]
        self.used_bytes = size

    def array(self) -> Array:
        """What was unpacked, for kernels."""
        used = self._array[: self.used_bytes]
        used.flags.writeable = False
        return used
