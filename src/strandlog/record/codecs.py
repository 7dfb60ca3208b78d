"""Compresses and decompresses the records of a batch in Kafka's framings, with a size limit.

    id  name    framing
    0   none    uncompressed records
    1   gzip    one gzip member; on reading, consecutive members are concatenated
    2   snappy  written as xerial blocks, as in Java; read as xerial blocks or as one raw block
    3   lz4     LZ4 frame with independent blocks (Java rejects linked ones)
    4   zstd    zstd frame, with or without its content size

Xerial framing: `82 'SNAPPY' 00`, version int32 = 1, compatible int32 = 1, then for each 32 KiB of
input an int32 size and one raw snappy block. The two versions are not checked, because some writers
use the wrong byte order for them.

A few hundred bytes can decompress to gigabytes, so `decompress` never returns more than
`limit_bytes` of output. The sizes that snappy blocks and zstd frames declare are checked first;
gzip, lz4 and zstd data is decompressed only up to the limit. Output above the limit raises
DecompressedTooLargeError; invalid input raises CorruptRecordError.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import Final

import cramjam

from strandlog.errors import CorruptRecordError, DecompressedTooLargeError, UnsupportedCodecError
from strandlog.model import Buffer

UnpackInto = Callable[[Buffer, memoryview], int]

DEFAULT_DECOMPRESSED_LIMIT_BYTES: Final = 128 * 1024 * 1024
XERIAL_BLOCK_BYTES: Final = 32 * 1024
GZIP_STEP_BYTES: Final = 16 * 1024  # input of the first step of a member; it doubles each time

_GZIP_LEVEL: Final = 6
_GZIP_WINDOW: Final = 31  # makes zlib use a gzip header and trailer
_LZ4_LEVEL: Final = 1  # the library's default is eight times slower
_ZSTD_LEVEL: Final = 3

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_INT32: Final = struct.Struct(">i")

_FIRST_GUESS_BYTES: Final = 16 * 1024
_GROWTH: Final = 4


class Codec(IntEnum):
    """The compression codec of a batch. The value is bits 0-2 of the batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def codec_named(name: str) -> Codec:
    """Return the codec for the value of a setting such as `compression.type`."""
    folded = name.lower()
    if folded == "uncompressed":
        return Codec.NONE
    for codec in Codec:
        if codec.name.lower() == folded:
            return codec
    choices = ", ".join(codec.name.lower() for codec in Codec)
    raise UnsupportedCodecError(f"unknown codec {name!r}; choose one of {choices}")


def compress(codec: Codec, data: Buffer) -> bytes:
    """Compress `data` in Kafka's framing for `codec`."""
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            packer = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
            return packer.compress(data) + packer.flush()
        case Codec.SNAPPY:
            return _compress_snappy(data)
        case Codec.LZ4:
            frame = cramjam.lz4.Compressor(_LZ4_LEVEL, content_checksum=False, block_linked=False)
            frame.compress(bytes(data))  # accepts only bytes
            return bytes(frame.finish())
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(data, level=_ZSTD_LEVEL))


def decompress(codec: Codec, data: Buffer, limit_bytes: int) -> bytes | memoryview:
    """Decompress `data`. Raise `DecompressedTooLargeError` if the result exceeds `limit_bytes`."""
    match codec:
        case Codec.NONE:
            if len(data) > limit_bytes:
                raise DecompressedTooLargeError(limit_bytes)
            return memoryview(data)
        case Codec.GZIP:
            return _decompress_gzip(data, limit_bytes)
        case Codec.SNAPPY:
            return _decompress_snappy(data, limit_bytes)
        case Codec.LZ4:
            return _unpack_growing(cramjam.lz4.decompress_into, data, limit_bytes, 0)
        case Codec.ZSTD:
            declared = _zstd_content_size(data)
            if declared > limit_bytes:
                raise DecompressedTooLargeError(limit_bytes)
            return _unpack_growing(cramjam.zstd.decompress_into, data, limit_bytes, declared)


def decompress_into(codec: Codec, data: Buffer, room: memoryview) -> int | None:
    """Decompress into the start of `room`. Return the number of bytes, or None if they do not
    fit."""
    match codec:
        case Codec.LZ4:
            return _unpack_into(cramjam.lz4.decompress_into, data, room)
        case Codec.ZSTD:
            if _zstd_content_size(data) > len(room):
                return None
            return _unpack_into(cramjam.zstd.decompress_into, data, room)
    try:
        unpacked = decompress(codec, data, len(room))
    except DecompressedTooLargeError:
        return None
    room[: len(unpacked)] = unpacked
    return len(unpacked)


def max_compressed_size(codec: Codec, size_bytes: int) -> int:
    """Return an upper bound for the compressed size of `size_bytes` bytes."""
    if codec is Codec.NONE:
        return size_bytes
    # Snappy has the worst case: n + n/6 + 32 bytes per block, plus four bytes of xerial framing.
    blocks = size_bytes // XERIAL_BLOCK_BYTES + 1
    return size_bytes + size_bytes // 6 + 36 * blocks + 64


def _decompress_gzip(data: Buffer, limit_bytes: int) -> bytes:
    """Decompress all members. zlib copies the input that follows a member, so this function passes
    the input in steps: otherwise, many small members would take quadratic time."""
    parts: list[bytes] = []
    view, position, room = memoryview(data), 0, limit_bytes
    while position < len(view) or not parts:
        unpacker = zlib.decompressobj(_GZIP_WINDOW)
        step_bytes = GZIP_STEP_BYTES
        while not unpacker.eof:
            step = view[position : position + step_bytes]
            if not step:
                raise CorruptRecordError("gzip: the compressed data is truncated")
            try:
                # One byte above the limit distinguishes "too large" from "exactly at the limit".
                part = unpacker.decompress(step, room + 1)
            except zlib.error as error:
                raise CorruptRecordError(f"gzip: {error}") from None
            room -= len(part)
            if room < 0:
                raise DecompressedTooLargeError(limit_bytes)
            parts.append(part)
            position += len(step) - len(unpacker.unused_data)
            step_bytes *= 2
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _compress_snappy(data: Buffer) -> bytes:
    parts: list[bytes] = [_XERIAL_HEADER]
    view = memoryview(data)
    for start in range(0, len(view), XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + XERIAL_BLOCK_BYTES]))
        parts += (_INT32.pack(len(block)), block)
    return b"".join(parts)


def _decompress_snappy(data: Buffer, limit_bytes: int) -> bytes:
    view = memoryview(data)
    if bytes(view[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _unpack_snappy_block(view, limit_bytes, limit_bytes)
    if len(view) < len(_XERIAL_HEADER):
        raise CorruptRecordError("snappy: the xerial header is truncated")
    parts: list[bytes] = []
    room = limit_bytes
    position = len(_XERIAL_HEADER)
    while position < len(view):
        try:
            (size,) = _INT32.unpack_from(view, position)
        except struct.error:
            raise CorruptRecordError("snappy: the size of a block is truncated") from None
        start = position + _INT32.size
        position = start + size
        if size <= 0 or position > len(view):
            raise CorruptRecordError(
                f"snappy: a block claims {size} bytes; {len(view) - start} are left"
            )
        block = _unpack_snappy_block(view[start:position], room, limit_bytes)
        room -= len(block)
        parts.append(block)
    return b"".join(parts)


def _unpack_snappy_block(block: memoryview, room: int, limit_bytes: int) -> bytes:
    try:
        if cramjam.snappy.decompress_raw_len(block) > room:
            raise DecompressedTooLargeError(limit_bytes)
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise CorruptRecordError(f"snappy: {error}") from None


def _unpack_growing(
    unpack_into: UnpackInto, data: Buffer, limit_bytes: int, hint: int
) -> memoryview:
    """Decompress into a buffer that is four times larger on each attempt, up to the limit."""
    size = min(max(_FIRST_GUESS_BYTES, hint or _GROWTH * len(data)), limit_bytes)
    while True:
        unpacked = memoryview(bytearray(size))
        written = _unpack_into(unpack_into, data, unpacked)
        if written is not None:
            return unpacked[:written]
        if size >= limit_bytes:
            raise DecompressedTooLargeError(limit_bytes)
        size = min(size * _GROWTH, limit_bytes)


def _unpack_into(unpack_into: UnpackInto, data: Buffer, room: memoryview) -> int | None:
    try:
        return unpack_into(data, room)
    except cramjam.DecompressionError as error:
        if str(error) != _BUFFER_IS_FULL:
            raise CorruptRecordError(str(error)) from None
    return None


def _zstd_content_size(frame: Buffer) -> int:
    """Return the size that the first zstd frame declares, 0 if none (RFC 8878 §3.1.1.1)."""
    if len(frame) < 6:
        return 0
    descriptor = frame[4]
    is_single_segment = descriptor >> 5 & 1
    start = 5 + (1 - is_single_segment) + (0, 1, 2, 4)[descriptor & 3]
    width = (is_single_segment, 2, 4, 8)[descriptor >> 6]
    declared = int.from_bytes(frame[start : start + width], "little")
    return declared + 256 if width == 2 else declared


def _message_of_a_full_buffer() -> str:
    """Return cramjam's error message for output that does not fit. cramjam raises the same
    exception for that and for invalid input."""
    try:
        cramjam.zstd.decompress_into(bytes(cramjam.zstd.compress(b"two")), bytearray(1))
    except cramjam.DecompressionError as error:
        return str(error)
    raise AssertionError("cramjam wrote three bytes into a buffer of one")


_BUFFER_IS_FULL: Final = _message_of_a_full_buffer()
