"""Compiled loops of the flat Avro reader.

A *flat* schema is a record of primitive, enum or fixed fields, each of which can be nullable, or a
single such value. Its program has one row per field, in schema order:

    KIND          how the field is read
    LIMIT         SYMBOL: number of symbols; decimals: number of digits
    NULL_BRANCH   the branch of its union that is null; -1 without a union
    SIZE          FIXED, DECIMAL_FIXED: number of bytes

`parse_flat` reads each value once and stores two integers per field and row: a number (the bit
pattern, for floats) or the position of the bytes; and a length, which is 0 for numbers and -1 for
null. The column sizes are then known, and `gather` copies the bytes of one column.

A value that the program cannot read, or that has bytes left after its last field, stays unread and
is handled by avro_values.py. Reads never go past the end of the value, even if a length field is
invalid.
"""

from __future__ import annotations

from typing import Final

from strandlog.record.arrow.kernels.compile import (
    BYTES,
    BYTES_OUT,
    INT,
    INTS_32,
    INTS_64,
    NOTHING,
    TABLE_64,
    ByteArray,
    Int32Array,
    Int64Array,
    compiled,
    copy_bytes,
    inner,
    int64,
    load_byte,
    uint64,
)
from strandlog.record.arrow.kernels.decode import read_varint

BOOLEAN: Final = 0
INT_32: Final = 1
INT_64: Final = 2
SYMBOL: Final = 3
FLOAT: Final = 4
DOUBLE: Final = 5
TEXT: Final = 6  # bytes and strings
FIXED: Final = 7
DECIMAL: Final = 8  # up to eight bytes
DECIMAL_FIXED: Final = 9

KIND: Final = 0
LIMIT: Final = 1
NULL_BRANCH: Final = 2
SIZE: Final = 3
PROGRAM_WIDTH: Final = 4

_NOT_SO: Final = -1
_INT_32_END: Final = 1 << 31
_NUMBER_BYTES: Final = 8
_SURE_DIGITS: Final = 18  # eight bytes hold every 18-digit number, but not every 19-digit one


@inner
def _little_endian(data: ByteArray, position: int, size: int) -> int:
    bits = uint64(0)
    for number in range(size):
        bits |= uint64(load_byte(data, position + number)) << uint64(8 * number)
    return int64(bits)


@inner
def _signed_big_endian(data: ByteArray, position: int, size: int) -> int:
    bits = uint64(0)
    if size and load_byte(data, position) > 127:
        bits = ~bits
    for number in range(size):
        bits = (bits << uint64(8)) | uint64(load_byte(data, position + number))
    return int64(bits)


@inner
def _parse_number(
    data: ByteArray, position: int, end: int, kind: int, limit: int
) -> tuple[int, int]:
    """Return a number and the position after it, or position -1 if it cannot be read."""
    if kind == BOOLEAN:
        if position >= end or load_byte(data, position) > 1:
            return 0, _NOT_SO
        return load_byte(data, position), position + 1
    if kind in (FLOAT, DOUBLE):
        size = 4 if kind == FLOAT else 8
        if size > end - position:
            return 0, _NOT_SO
        return _little_endian(data, position, size), position + size
    value, position = read_varint(data, position, end)
    if kind == INT_32 and (value < -_INT_32_END or value >= _INT_32_END):
        return 0, _NOT_SO
    if kind == SYMBOL and (value < 0 or value >= limit):
        return 0, _NOT_SO
    return value, position


@inner
def _fits(value: int, digits: int) -> bool:
    """Return whether an unscaled decimal has at most `digits` digits."""
    if digits > _SURE_DIGITS:
        return True
    end = 1
    for _ in range(digits):
        end *= 10
    return -end < value < end


@inner
def _parse_bytes(
    data: ByteArray, position: int, end: int, kind: int, limit: int, size: int
) -> tuple[int, int, int]:
    """Return the two integers stored for a field and the position after it.

    The position is -1 if the field cannot be read.
    """
    if kind in (TEXT, DECIMAL):
        size, position = read_varint(data, position, end)
    if position < 0 or size < 0 or size > end - position:
        return 0, 0, _NOT_SO
    if kind in (TEXT, FIXED):
        return position, size, position + size
    if size == 0 or size > _NUMBER_BYTES:
        return 0, 0, _NOT_SO
    value = _signed_big_endian(data, position, size)
    return value, 0, position + size if _fits(value, limit) else _NOT_SO


@inner
def _parse_value(
    data: ByteArray,
    position: int,
    end: int,
    program: Int64Array,
    row: int,
    numbers: Int64Array,
    lengths: Int64Array,
) -> int:
    """Store the fields of a value and return its end, or -1 if the program cannot read it."""
    for field in range(program.shape[0]):
        kind, limit = program[field, KIND], program[field, LIMIT]
        null_branch = program[field, NULL_BRANCH]
        number, length = int64(0), int64(0)
        branch = int64(-2)
        if null_branch >= 0:
            branch, position = read_varint(data, position, end)
            if position < 0 or branch < 0 or branch > 1:
                return _NOT_SO
        if branch == null_branch:
            length = int64(-1)
        elif kind < TEXT:
            number, position = _parse_number(data, position, end, kind, limit)
        else:
            size = program[field, SIZE]
            number, length, position = _parse_bytes(data, position, end, kind, limit, size)
        if position < 0:
            return _NOT_SO
        numbers[field, row], lengths[field, row] = number, length
    return position


@compiled(NOTHING, BYTES, INTS_64, INTS_32, INT, INT, TABLE_64, TABLE_64, TABLE_64, BYTES_OUT)
def parse_flat(
    content: ByteArray,
    starts: Int64Array,
    sizes: Int32Array,
    skip: int,
    zeros: int,
    program: Int64Array,
    numbers: Int64Array,
    lengths: Int64Array,
    is_read: ByteArray,
) -> None:
    """Read the values that are still unread, starting after a prefix of `skip` bytes, the first
    `zeros` of which must be zero."""
    for row in range(len(starts)):
        if is_read[row] or sizes[row] < skip:
            continue
        start = starts[row]
        end = start + sizes[row]
        is_so = True
        for number in range(zeros):
            is_so = is_so and load_byte(content, start + number) == 0
        if (
            is_so
            and _parse_value(content, start + skip, end, program, row, numbers, lengths) == end
        ):
            is_read[row] = 1


@compiled(NOTHING, BYTES, INTS_64, INTS_32, BYTES_OUT)
def gather(content: ByteArray, positions: Int64Array, offsets: Int32Array, out: ByteArray) -> None:
    """Copy the bytes of a column to `out`, where `offsets` delimit the rows."""
    for row in range(len(positions)):
        size = offsets[row + 1] - offsets[row]
        if size > 0:
            copy_bytes(content, positions[row], out, int64(offsets[row]), int64(size))
