"""Compiled loops that write flat rows as Avro values with a registry's prefix.

The rows have one column per field. As in avro_kernels.py there are two integers per field and row:
a number (the bit pattern, for floats) or the position of the bytes in `content`; and a length,
which is 0 for numbers and -1 for null. The program has one row per field, in schema order:

    KIND          how the field is written
    IS_NULLABLE   1 if the field is a union of null and its type, with null first

`measure_flat` stores the size of each value; `write_flat` writes the values, each at its offset.
"""

from __future__ import annotations

from typing import Final

from strandlog.record.arrow.kernels.compile import (
    BYTES,
    BYTES_OUT,
    INTS_64,
    NOTHING,
    TABLE_64,
    ByteArray,
    Int64Array,
    compiled,
    copy_bytes,
    inner,
    int64,
    load_byte,
    store_byte,
    uint64,
)

BOOLEAN: Final = 0
NUMBER: Final = 1  # int, long
FLOAT: Final = 2
DOUBLE: Final = 3
TEXT: Final = 4  # bytes and strings
DECIMAL: Final = 5  # up to eight bytes

KIND: Final = 0
IS_NULLABLE: Final = 1
PROGRAM_WIDTH: Final = 2


@inner
def _varint_size(value: int) -> int:
    bits = uint64((value << 1) ^ (value >> 63))
    size = 1
    while bits > uint64(127):
        bits >>= uint64(7)
        size += 1
    return size


@inner
def _write_varint(target: ByteArray, at: int, value: int) -> int:
    bits = uint64((value << 1) ^ (value >> 63))
    while bits > uint64(127):
        store_byte(target, at, int64(bits & uint64(127)) | 128)
        bits >>= uint64(7)
        at += 1
    store_byte(target, at, int64(bits))
    return at + 1


@inner
def _decimal_size(value: int) -> int:
    """Return the number of bytes of the shortest two's complement."""
    size = 1
    while size < 8 and not -(1 << (8 * size - 1)) <= value < 1 << (8 * size - 1):
        size += 1
    return size


@inner
def _field_size(kind: int, number: int, length: int) -> int:
    if kind == BOOLEAN:
        return 1
    if kind == NUMBER:
        return _varint_size(number)
    if kind == FLOAT:
        return 4
    if kind == DOUBLE:
        return 8
    size = _decimal_size(number) if kind == DECIMAL else length
    return _varint_size(size) + size


@compiled(NOTHING, TABLE_64, TABLE_64, TABLE_64, INTS_64)
def measure_flat(
    program: Int64Array, numbers: Int64Array, lengths: Int64Array, sizes: Int64Array
) -> None:
    """Add the size of each value, without its prefix, to `sizes`."""
    for field in range(program.shape[0]):
        kind, is_nullable = program[field, KIND], program[field, IS_NULLABLE]
        for row in range(len(sizes)):
            sizes[row] += is_nullable
            if lengths[field, row] >= 0:
                sizes[row] += _field_size(kind, numbers[field, row], lengths[field, row])


@inner
def _write_field(
    target: ByteArray, at: int, content: ByteArray, kind: int, number: int, length: int
) -> int:
    if kind == BOOLEAN:
        store_byte(target, at, number)
        return at + 1
    if kind == NUMBER:
        return _write_varint(target, at, number)
    if kind in (FLOAT, DOUBLE):
        size = 4 if kind == FLOAT else 8
        for index in range(size):
            store_byte(target, at + index, (number >> (8 * index)) & 255)
        return at + size
    if kind == DECIMAL:
        size = _decimal_size(number)
        at = _write_varint(target, at, size)
        for index in range(size):
            store_byte(target, at + index, (number >> (8 * (size - 1 - index))) & 255)
        return at + size
    at = _write_varint(target, at, length)
    copy_bytes(content, number, target, at, length)
    return at + length


@compiled(NOTHING, TABLE_64, BYTES, TABLE_64, TABLE_64, INTS_64, BYTES, BYTES_OUT)
def write_flat(
    program: Int64Array,
    content: ByteArray,
    numbers: Int64Array,
    lengths: Int64Array,
    offsets: Int64Array,
    prefix: ByteArray,
    out: ByteArray,
) -> None:
    """Write the prefix and the fields of each row to `out`, from its offset on."""
    for row in range(len(offsets) - 1):
        at = offsets[row]
        for index in range(len(prefix)):
            store_byte(out, at + index, load_byte(prefix, index))
        at += len(prefix)
        for field in range(program.shape[0]):
            length = lengths[field, row]
            if program[field, IS_NULLABLE]:
                store_byte(out, at, int64(0 if length < 0 else 2))
                at += 1
            if length >= 0:
                kind = program[field, KIND]
                at = _write_field(out, at, content, kind, numbers[field, row], length)
