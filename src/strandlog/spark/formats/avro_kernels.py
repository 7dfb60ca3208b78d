"""Compiled loops of the flat Avro reader.

A *flat* schema is a record of plain fields, each of which may be null. Its program has a row for
each field, in the order of the schema:

    KIND          how the field is read
    LIMIT         SYMBOL: number of symbols; decimals: number of digits
    NULL_BRANCH   the branch of its union that is null; -1 without a union
    SIZE          FIXED, DECIMAL_FIXED: number of bytes

`parse_flat` reads each value once and stores, by field and row, a number (a float as its bits) or
the position of the bytes, and a length: that of the bytes, 0 for numbers, -1 for null. Then sizes
are known, and `gather` copies the bytes of one column.

A value that is not exactly as long as its fields, or that the program cannot read, stays unread,
and avro_values.py decides about it. No read goes beyond the value, whatever its lengths say.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from strandlog.record.arrow.kernels.compile import (
    BYTES,
    BYTES_OUT,
    INT,
    INTS_32,
    INTS_64,
    NOTHING,
    TABLE_64,
    compiled,
    copy_bytes,
    inner,
    int64,
    load_byte,
    uint64,
)
from strandlog.record.arrow.kernels.decode import read_varint

Bytes = npt.NDArray[np.uint8]
Ints32 = npt.NDArray[np.int32]
Ints64 = npt.NDArray[np.int64]

BOOLEAN: Final = 0
INT_32: Final = 1
INT_64: Final = 2
SYMBOL: Final = 3
FLOAT: Final = 4
DOUBLE: Final = 5
TEXT: Final = 6  # bytes and strings
FIXED: Final = 7
DECIMAL: Final = 8  # of up to eight bytes
DECIMAL_FIXED: Final = 9

KIND: Final = 0
LIMIT: Final = 1
NULL_BRANCH: Final = 2
SIZE: Final = 3
PROGRAM_WIDTH: Final = 4

_NOT_SO: Final = -1
_INT_32_END: Final = 1 << 31
_NUMBER_BYTES: Final = 8
_SURE_DIGITS: Final = 18  # eight bytes hold all numbers of 18 digits, and some of 19


@inner
def _little_endian(data: Bytes, position: int, size: int) -> int:
    bits = uint64(0)
    for number in range(size):
        bits |= uint64(load_byte(data, position + number)) << uint64(8 * number)
    return int64(bits)


@inner
def _signed_big_endian(data: Bytes, position: int, size: int) -> int:
    bits = uint64(0)
    if size and load_byte(data, position) > 127:
        bits = ~bits
    for number in range(size):
        bits = (bits << uint64(8)) | uint64(load_byte(data, position + number))
    return int64(bits)


@inner
def _parse_number(data: Bytes, position: int, end: int, kind: int, limit: int) -> tuple[int, int]:
    """(a number, the position after it or -1)."""
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
    """Whether an unscaled decimal has at most that many digits."""
    if digits > _SURE_DIGITS:
        return True
    end = 1
    for _ in range(digits):
        end *= 10
    return -end < value < end


@inner
def _parse_bytes(
    data: Bytes, position: int, end: int, kind: int, limit: int, size: int
) -> tuple[int, int, int]:
    """(a position or a number, its length, the position after it or -1)."""
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
    data: Bytes,
    position: int,
    end: int,
    program: Ints64,
    row: int,
    numbers: Ints64,
    lengths: Ints64,
) -> int:
    """The end of the value; -1 if the program cannot read it."""
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
    content: Bytes,
    starts: Ints64,
    sizes: Ints32,
    skip: int,
    zeros: int,
    program: Ints64,
    numbers: Ints64,
    lengths: Ints64,
    is_read: Bytes,
) -> None:
    """Read the values that are not read yet, without their first `skip` bytes, of which the first
    ones must be zero."""
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
def gather(content: Bytes, positions: Ints64, offsets: Ints32, out: Bytes) -> None:
    """Copy the bytes of a column; `offsets` say where each ends in `out`."""
    for row in range(len(positions)):
        size = offsets[row + 1] - offsets[row]
        if size > 0:
            copy_bytes(content, positions[row], out, int64(offsets[row]), int64(size))
