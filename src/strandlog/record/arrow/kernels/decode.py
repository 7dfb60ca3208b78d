"""Kernels that decode record bytes to the buffers of Arrow columns.

Decoding takes two passes. `parse_batches` reads the varints of all batches in a group, performs the
same checks as `record.py` except for its limits on the number of headers, and stores the position
of each key and value. All sizes are then known, so buffers of the exact size are allocated, and
`gather` copies each column into its buffer. Headers require an additional pass in between,
`locate_headers`, because their number varies by record.

The records of a batch are in one of two buffers: in `direct` if they were not compressed, or in
`unpacked` if they were. A *place* is an integer that encodes the buffer and the position: `n` is
byte n of `direct`, `~n` is byte n of `unpacked`.

The columns of a plan, which has one row per batch:

    IS_UNPACKED  START  END             the buffer, and the range in it
    COUNT                               the number of records
    BASE_OFFSET  LAST_DELTA             the base offset and the largest offset delta
    BASE_TIMESTAMP                      the timestamp to which the records' deltas are added
    IS_APPEND_TIME                      1 if the timestamp deltas are ignored, otherwise 0

The input is not trusted: no read leaves [START, END), whatever the lengths in the data. Kernels do
not raise errors. `parse_batches` returns the index of the damaged batch, and `record.py` describes
the damage.
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

IS_UNPACKED: Final = 0
START: Final = 1
END: Final = 2
COUNT: Final = 3
BASE_OFFSET: Final = 4
LAST_DELTA: Final = 5
BASE_TIMESTAMP: Final = 6
IS_APPEND_TIME: Final = 7
PLAN_WIDTH: Final = 8

MIN_RECORD_BYTES: Final = 7  # one byte for the length and one for each field
_MIN_LENGTH: Final = MIN_RECORD_BYTES - 1
_LAST_SHIFT: Final = 63
_DAMAGED: Final = -1


@inner
def read_varint(data: ByteArray, position: int, end: int) -> tuple[int, int]:
    """Return the number at `position` and the position after it, which is -1 if the varint is
    invalid."""
    if position >= end:
        return 0, _DAMAGED
    byte = load_byte(data, position)
    position += 1
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), position
    raw = uint64(byte & 127)
    shift = 7
    while position < end:
        byte = load_byte(data, position)
        position += 1
        raw |= uint64(byte & 127) << uint64(shift)
        if byte < 128:
            if shift == _LAST_SHIFT and byte > 1:
                return 0, _DAMAGED
            return int64(raw >> uint64(1)) ^ -int64(raw & uint64(1)), position
        shift += 7
        if shift > _LAST_SHIFT:
            return 0, _DAMAGED
    return 0, _DAMAGED


@inner
def _read_size(data: ByteArray, position: int, end: int) -> tuple[int, int]:
    """Return the size of a field (-1 for null) and its start, which is -1 if the size is
    invalid."""
    size, start = read_varint(data, position, end)
    if start < 0 or size < -1 or size > end - start:
        return 0, _DAMAGED
    return size, start


@inner
def _skip_headers(data: ByteArray, position: int, end: int, count: int) -> int:
    """Return the position after the headers, or -1 if they are damaged."""
    # Each header takes at least two bytes. An impossible count must not control the loop.
    if count < 0 or count > (end - position) // 2:
        return _DAMAGED
    for _ in range(count):
        size, position = _read_size(data, position, end)
        if position < 0 or size < 0:
            return _DAMAGED
        size, position = _read_size(data, position + size, end)
        if position < 0:
            return _DAMAGED
        position += max(size, 0)
    return position


@inner
def _parse_batch(
    data: ByteArray,
    flip: int,
    plan: Int64Array,
    start_offset: int,
    end_offset: int,
    row: int,
    offsets: Int64Array,
    timestamps: Int64Array,
    key_places: Int64Array,
    key_sizes: Int32Array,
    value_places: Int64Array,
    value_sizes: Int32Array,
    header_places: Int64Array,
    header_counts: Int32Array,
) -> int:
    """Parse one batch into the output arrays, starting at `row`. Return the row after the last
    one, or -1 if the batch is damaged."""
    position, end = plan[START], plan[END]
    last_delta = int64(-1)
    for _ in range(plan[COUNT]):
        length, body = read_varint(data, position, end)
        if body < 0 or length < _MIN_LENGTH or length > end - body:
            return _DAMAGED
        position = body + length
        time_delta, at = read_varint(data, body + 1, position)
        if at < 0:
            return _DAMAGED
        delta, at = read_varint(data, at, position)
        if at < 0 or delta <= last_delta or delta > plan[LAST_DELTA]:
            return _DAMAGED
        last_delta = delta
        key_size, key_at = _read_size(data, at, position)
        if key_at < 0:
            return _DAMAGED
        value_size, value_at = _read_size(data, key_at + max(key_size, 0), position)
        if value_at < 0:
            return _DAMAGED
        count, headers_at = read_varint(data, value_at + max(value_size, 0), position)
        if headers_at < 0 or _skip_headers(data, headers_at, position, count) != position:
            return _DAMAGED
        offset = plan[BASE_OFFSET] + delta
        if start_offset <= offset < end_offset:
            offsets[row] = offset
            timestamps[row] = plan[BASE_TIMESTAMP] + time_delta * (1 - plan[IS_APPEND_TIME])
            key_places[row], key_sizes[row] = key_at ^ flip, key_size
            value_places[row], value_sizes[row] = value_at ^ flip, value_size
            header_places[row], header_counts[row] = headers_at ^ flip, count
            row += 1
    return row if position == end else _DAMAGED


@compiled(
    INT,
    *(BYTES, BYTES, TABLE_64, INT, INT, INTS_64, INTS_64, INTS_64),
    *(INTS_64, INTS_32, INTS_64, INTS_32, INTS_64, INTS_32),
)
def parse_batches(
    direct: ByteArray,
    unpacked: ByteArray,
    plan: npt.NDArray[np.int64],
    start_offset: int,
    end_offset: int,
    row_ends: Int64Array,
    offsets: Int64Array,
    timestamps: Int64Array,
    key_places: Int64Array,
    key_sizes: Int32Array,
    value_places: Int64Array,
    value_sizes: Int32Array,
    header_places: Int64Array,
    header_counts: Int32Array,
) -> int:
    """Parse all records of a plan whose offsets are in the range, up to the first damaged batch.
    Return the number of intact batches before it.

    `row_ends` receives the cumulative number of rows after each batch.
    """
    row = int64(0)
    for index in range(len(plan)):
        data = unpacked if plan[index, IS_UNPACKED] else direct
        row = _parse_batch(
            data,
            -plan[index, IS_UNPACKED],
            plan[index],
            start_offset,
            end_offset,
            row,
            offsets,
            timestamps,
            key_places,
            key_sizes,
            value_places,
            value_sizes,
            header_places,
            header_counts,
        )
        if row < 0:
            return index
        row_ends[index] = row
    return len(plan)


@compiled(NOTHING, BYTES, BYTES, INTS_64, INTS_32, INTS_64, INTS_32, INTS_64, INTS_32)
def locate_headers(
    direct: ByteArray,
    unpacked: ByteArray,
    header_places: Int64Array,
    header_counts: Int32Array,
    name_places: Int64Array,
    name_sizes: Int32Array,
    value_places: Int64Array,
    value_sizes: Int32Array,
) -> None:
    """Store the encoded positions ("places") of the names and values of all headers, which
    `parse_batches` has checked."""
    index = 0
    for row in range(len(header_places)):
        place = header_places[row]
        data = direct if place >= 0 else unpacked
        flip = int64(0) if place >= 0 else int64(-1)
        position, end = place ^ flip, int64(len(data))
        for _ in range(header_counts[row]):
            size, position = _read_size(data, position, end)
            name_places[index], name_sizes[index] = position ^ flip, size
            size, position = _read_size(data, position + size, end)
            value_places[index], value_sizes[index] = position ^ flip, size
            position += max(size, 0)
            index += 1


@compiled(INT, BYTES, BYTES, INTS_64, INTS_32, INTS_32, BYTES_OUT, BYTES_OUT)
def gather(
    direct: ByteArray,
    unpacked: ByteArray,
    places: Int64Array,
    sizes: Int32Array,
    ends: Int32Array,
    content: ByteArray,
    bitmap: ByteArray,
) -> int:
    """Copy the fields at `places` to `content`, and return how many of them are null (size -1).

    `ends` receives Arrow's offsets, one more than there are fields. `bitmap`, which must be zeroed,
    receives a set bit for each field that is not null.
    """
    at = int64(0)
    nulls = int64(0)
    ends[0] = 0
    for row in range(len(places)):
        size = int64(sizes[row])
        if size < 0:
            nulls += 1
        else:
            bitmap[row >> 3] |= np.uint8(1 << (row & 7))
            place = places[row]
            if place >= 0:
                copy_bytes(direct, place, content, at, size)
            else:
                copy_bytes(unpacked, ~place, content, at, size)
            at += size
        ends[row + 1] = at
    return nulls


@compiled(INT, INTS_64, INT, BYTES_OUT)
def scale_timestamps(timestamps: Int64Array, scale: int, bitmap: ByteArray) -> int:
    """Convert milliseconds to a finer unit in place, and return how many timestamps are null.

    Timestamps that are negative or do not fit in 64 bits in the new unit become null. `bitmap` is
    the same as for `gather`.
    """
    nulls = int64(0)
    largest = np.iinfo(np.int64).max // scale
    for row in range(len(timestamps)):
        if 0 <= timestamps[row] <= largest:
            timestamps[row] *= scale
            bitmap[row >> 3] |= np.uint8(1 << (row & 7))
        else:
            timestamps[row] = 0
            nulls += 1
    return nulls
