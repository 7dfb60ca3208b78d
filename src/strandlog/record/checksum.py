"""CRC-32C (Castagnoli) over any buffer.

One import away from being swapped: nothing else in strandlog imports the checksum library. It takes
bytes, bytearray and memoryview alike, so that a checksum never costs a copy, and as a second
argument the checksum of the bytes before. It is the library's own function: around a hundred bytes
a call of ours would cost as much as the checksum.
"""

from __future__ import annotations

from crc32c import crc32c

__all__ = ["crc32c"]
