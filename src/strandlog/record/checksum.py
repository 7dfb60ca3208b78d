"""CRC-32C (Castagnoli) over any buffer.

One import away from being swapped: nothing else in strandlog imports the checksum library. It takes
bytes, bytearray and memoryview alike, so that a checksum never costs a copy.
"""

from __future__ import annotations

from crc32c import crc32c as _crc32c


def crc32c(buffer: bytes | bytearray | memoryview, value: int = 0) -> int:
    """The checksum of `buffer`; `value` is the checksum of the bytes before it."""
    return _crc32c(buffer, value)
