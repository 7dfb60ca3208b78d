"""Kernels that encode Arrow columns as record bytes.

A column of bytes is passed as three arrays: the start of each field, its size (-1 for null), and
the content. The caller must check that every field is within its content.

    route_by_key    assigns a partition to each row
    group_by        groups the rows by partition, preserving their order
    plan_batches    computes the size of each record and where each batch ends
    write_records   writes the records of one batch

The size of a record depends on its position in the batch (offset and timestamp deltas), so the
batches are planned first, and then buffers of the exact size are filled.
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
    ByteArray,
    Int32Array,
    Int64Array,
    compiled,
    copy_bytes,
    inner,
    int64,
    load_byte,
    store_byte,
    uint64,
)

NOT_GIVEN: Final = -(2**31)  # not -1, which a caller might pass by mistake

_FIELD: Final = (INTS_64, INTS_32, BYTES)
_MASK: Final = 0xFFFFFFFF
_MURMUR_SEED: Final = 0x9747B28C
_MURMUR_M: Final = 0x5BD1E995


@inner
def _murmur2(content: ByteArray, start: int, size: int) -> int:
    """Return Java's murmur2 with the sign bit cleared. Uses only the low 32 bits of its 64-bit
    integers."""
    value = _MURMUR_SEED ^ size
    whole = size & ~3
    for at in range(start, start + whole, 4):
        word = load_byte(content, at)
        word |= load_byte(content, at + 1) << 8
        word |= load_byte(content, at + 2) << 16
        word |= load_byte(content, at + 3) << 24
        word = word * _MURMUR_M & _MASK
        word = (word ^ word >> 24) * _MURMUR_M & _MASK
        value = value * _MURMUR_M & _MASK ^ word
    if whole < size:
        rest = int64(0)
        for index in range(size - whole):
            rest |= load_byte(content, start + whole + index) << 8 * index
        value = (value ^ rest) * _MURMUR_M & _MASK
    value = (value ^ value >> 13) * _MURMUR_M & _MASK
    return (value ^ value >> 15) & 0x7FFFFFFF


@compiled(INT, *_FIELD, INTS_32, INT, INT, INT, INTS_32)
def route_by_key(
    key_starts: Int64Array,
    key_sizes: Int32Array,
    keys: ByteArray,
    given: Int32Array,
    partition_count: int,
    turn: int,
    step: int,
    partitions: Int32Array,
) -> int:
    """Assign a partition to each row: the given one, or by key, or by turn: `turn`, `turn + step`
    and so on, modulo the partition count. Return the number of rows assigned by turn."""
    turns = int64(0)
    for row in range(len(key_sizes)):
        if given[row] != NOT_GIVEN:
            partitions[row] = given[row]
        elif key_sizes[row] >= 0:
            hashed = _murmur2(keys, key_starts[row], int64(key_sizes[row]))
            partitions[row] = hashed % partition_count
        else:
            partitions[row] = (turn + turns * step) % partition_count
            turns += 1
    return turns


@compiled(NOTHING, INTS_32, INTS_64, INTS_64)
def group_by(partitions: Int32Array, bounds: Int64Array, rows: Int64Array) -> None:
    """Sort row numbers by partition, preserving their order within each partition.

    `bounds`, which must be zeroed, receives the start of each partition and the end of the last.
    """
    for row in range(len(partitions)):
        bounds[partitions[row] + 1] += 1
    for number in range(1, len(bounds)):
        bounds[number] += bounds[number - 1]
    heads = bounds.copy()
    for row in range(len(partitions)):
        number = partitions[row]
        rows[heads[number]] = row
        heads[number] += 1


@inner
def _varint_size(value: int) -> int:
    raw = uint64(value << 1 ^ value >> 63) >> uint64(7)
    size = 1
    while raw != uint64(0):
        raw >>= uint64(7)
        size += 1
    return size


@inner
def _write_varint(target: ByteArray, at: int, value: int) -> int:
    """Write a number and return the position after it."""
    raw = uint64(value << 1 ^ value >> 63)
    while raw > uint64(127):
        store_byte(target, at, int64(raw & uint64(127)) | 128)
        raw >>= uint64(7)
        at += 1
    store_byte(target, at, int64(raw))
    return at + 1


@inner
def _field_size(size: int) -> int:
    return _varint_size(size) + max(size, 0)


@inner
def _write_field(target: ByteArray, at: int, content: ByteArray, start: int, size: int) -> int:
    """Write a length-prefixed field and return the position after it."""
    at = _write_varint(target, at, size)
    if size > 0:
        copy_bytes(content, start, target, at, size)
        at += size
    return at


@compiled(
    INT,
    *(INTS_64, INTS_64, INTS_32, INTS_32, INTS_64, INTS_64, INTS_32, INTS_32),
    *(INT, INTS_64, INTS_64, INTS_64),
)
def plan_batches(
    rows: Int64Array,
    timestamps: Int64Array,
    key_sizes: Int32Array,
    value_sizes: Int32Array,
    header_starts: Int64Array,
    header_ends: Int64Array,
    name_sizes: Int32Array,
    header_sizes: Int32Array,
    max_bytes: int,
    lengths: Int64Array,
    batch_ends: Int64Array,
    batch_bytes: Int64Array,
) -> int:
    """Compute the length of each record, and split the rows into batches of at most `max_bytes`.

    A record that exceeds `max_bytes` gets its own batch. Return the number of batches.
    """
    batches = int64(0)
    first = int64(0)
    total = int64(0)
    for index in range(len(rows)):
        row = rows[index]
        fixed = 1 + _field_size(int64(key_sizes[row])) + _field_size(int64(value_sizes[row]))
        fixed += _varint_size(header_ends[row] - header_starts[row])
        for header in range(header_starts[row], header_ends[row]):
            fixed += _field_size(int64(name_sizes[header]))
            fixed += _field_size(int64(header_sizes[header]))
        length = fixed + _varint_size(timestamps[row] - timestamps[rows[first]])
        length += _varint_size(index - first)
        size = _field_size(length)
        if total + size > max_bytes and index > first:
            batch_ends[batches], batch_bytes[batches] = index, total
            batches += 1
            first, total = index, int64(0)
            length = fixed + 2  # both deltas are 0 now
            size = _field_size(length)
        lengths[index] = length
        total += size
    if len(rows):
        batch_ends[batches], batch_bytes[batches] = len(rows), total
        batches += 1
    return batches


@compiled(
    INT,
    *(INTS_64, INTS_64, INTS_64),
    *(*_FIELD, *_FIELD, INTS_64, INTS_64, *_FIELD, *_FIELD),
    *(BYTES_OUT, INT),
)
def write_records(
    rows: Int64Array,
    lengths: Int64Array,
    timestamps: Int64Array,
    key_starts: Int64Array,
    key_sizes: Int32Array,
    keys: ByteArray,
    value_starts: Int64Array,
    value_sizes: Int32Array,
    values: ByteArray,
    header_starts: Int64Array,
    header_ends: Int64Array,
    name_starts: Int64Array,
    name_sizes: Int32Array,
    names: ByteArray,
    content_starts: Int64Array,
    content_sizes: Int32Array,
    contents: ByteArray,
    target: ByteArray,
    at: int,
) -> int:
    """Write the rows of one planned batch, starting at `at`. Return the position after them."""
    for index in range(len(rows)):
        row = rows[index]
        at = _write_varint(target, at, lengths[index])
        store_byte(target, at, int64(0))
        at = _write_varint(target, at + 1, timestamps[row] - timestamps[rows[0]])
        at = _write_varint(target, at, index)
        at = _write_field(target, at, keys, key_starts[row], int64(key_sizes[row]))
        at = _write_field(target, at, values, value_starts[row], int64(value_sizes[row]))
        at = _write_varint(target, at, header_ends[row] - header_starts[row])
        for header in range(header_starts[row], header_ends[row]):
            size = int64(name_sizes[header])
            at = _write_field(target, at, names, name_starts[header], size)
            size = int64(content_sizes[header])
            at = _write_field(target, at, contents, content_starts[header], size)
    return at
