"""Converts Arrow arrays to the NumPy arrays that the encoding kernels expect.

A column of bytes or strings, with 32-bit or 64-bit offsets, sliced or not, chunked or not, becomes
a `BytesColumn`: the start of each field, its size (-1 for null), and the content, which is copied
only to combine chunks. Other types that Arrow can cast to bytes (views, dictionaries, fixed sizes,
nulls) are cast.

Arrow arrays may come from untrusted sources, so their offsets are checked before a kernel uses
them.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strandlog.config.limits.records import MAX_RECORD_HEADERS
from strandlog.errors import InvalidRecordError
from strandlog.record.arrow.casts import (
    as_bytes,
    as_headers,
    as_milliseconds,
    as_partitions,
    header_without_key,
)
from strandlog.record.arrow.kernels.compile import ByteArray, Int32Array, Int64Array
from strandlog.record.arrow.kernels.encode import NOT_GIVEN

_MAX_FIELD_BYTES: Final = 2**31 - 1
_MAX_PARTITION: Final = 2**31 - 1
_NO_BYTES: Final[ByteArray] = np.empty(0, np.uint8)
_NO_BYTES.flags.writeable = False


class BytesColumn(NamedTuple):
    """A column of bytes fields, in the form that the kernels expect."""

    starts: Int64Array
    sizes: Int32Array
    content: ByteArray


class HeadersColumn(NamedTuple):
    """The range of headers of each row, and the names and values of all headers."""

    starts: Int64Array
    ends: Int64Array
    names: BytesColumn
    values: BytesColumn


def whole(column: Any) -> Any:
    """Return the column as a single array, combining its chunks if it has any."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    if pa.types.is_binary(column.type) or pa.types.is_string(column.type):
        column = column.cast(pa.large_binary())  # the combined chunks may exceed 2 GiB
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def bytes_column(name: str, column: Any) -> BytesColumn:
    """Convert a column of bytes or strings."""
    array = whole(column)
    is_wide = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    if not is_wide and not pa.types.is_binary(array.type) and not pa.types.is_string(array.type):
        array = as_bytes(name, array)
        is_wide = True
    _, offsets, content = array.buffers()
    if offsets is None or not len(array):
        return no_bytes(len(array))
    ends = np.frombuffer(offsets, np.int64 if is_wide else np.int32)
    ends = ends[array.offset : array.offset + len(array) + 1].astype(np.int64, copy=False)
    sizes = np.diff(ends)
    held = readonly(content)
    if ends[0] < 0 or ends[-1] > len(held) or sizes.min() < 0 or sizes.max() > _MAX_FIELD_BYTES:
        raise InvalidRecordError(
            f"column {name!r} has invalid offsets or a field of 2 GiB or more; "
            f"the limit is {_MAX_FIELD_BYTES} bytes"
        )
    narrow = sizes.astype(np.int32)
    _mark_nulls(array, narrow)
    # 64-bit offsets still refer to Arrow's memory, which may be read-only. Each kernel has a single
    # signature, which requires writable arrays.
    return BytesColumn(np.require(ends[:-1], requirements=["C", "W"]), narrow, held)


def no_bytes(count: int) -> BytesColumn:
    """Return a column of `count` nulls."""
    return BytesColumn(np.zeros(count, np.int64), np.full(count, -1, np.int32), _NO_BYTES)


def readonly(buffer: Any) -> ByteArray:
    """Return a read-only view of an Arrow buffer for the kernels."""
    if buffer is None or not buffer.size:
        return _NO_BYTES
    array = np.frombuffer(buffer, np.uint8)
    array.flags.writeable = False
    return array


def _mark_nulls(array: Any, sizes: Int32Array) -> None:
    if array.null_count:
        sizes[_nulls(array)] = -1


def _nulls(array: Any) -> npt.NDArray[np.bool_]:
    mask: npt.NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
    return mask


def headers_column(column: Any) -> HeadersColumn:
    """Convert a column of lists of (key, value) pairs. A null list is treated as empty."""
    array, name_field, value_field = as_headers(whole(column))
    array = array.cast(pa.large_list(array.type.value_type))
    if not len(array):
        return no_headers(0)
    ends = np.frombuffer(array.buffers()[1], np.int64)[array.offset :][: len(array) + 1]
    pairs = array.values
    if ends[0] < 0 or ends[-1] > len(pairs) or np.diff(ends).min() < 0:
        raise InvalidRecordError("column 'headers' is damaged: its offsets lie outside its content")
    starts, last = ends[:-1].copy(), ends[1:].copy()
    if array.null_count:
        nulls = _nulls(array)
        last[nulls] = starts[nulls]
    counts = last - starts
    if counts.max() > MAX_RECORD_HEADERS:  # readers would report the record as corrupt
        row = int(np.argmax(counts))
        raise InvalidRecordError(
            f"row {row} has {counts[row]} headers; the limit is {MAX_RECORD_HEADERS}", [row]
        )
    fields = pairs.flatten()
    names = bytes_column("headers.key", fields[name_field])
    _check_names(starts, last, names)
    return HeadersColumn(starts, last, names, bytes_column("headers.value", fields[value_field]))


def _check_names(starts: Int64Array, ends: Int64Array, names: BytesColumn) -> None:
    """Raise an error if a row has a header without a name."""
    nameless = np.concatenate(([0], np.cumsum(names.sizes < 0)))
    bad = np.flatnonzero(nameless[ends] - nameless[starts])
    if len(bad):
        raise header_without_key(int(bad[0]))


def no_headers(count: int) -> HeadersColumn:
    """Return a column of `count` rows without headers."""
    nowhere = np.zeros(count, np.int64)
    return HeadersColumn(nowhere, nowhere, no_bytes(0), no_bytes(0))


def timestamps_column(column: Any, timestamp_ms: int) -> Int64Array:
    """Convert a column of timestamps or integers to Unix milliseconds, with `timestamp_ms` in place
    of nulls."""
    filled = as_milliseconds(whole(column)).fill_null(timestamp_ms)
    # Copied because Arrow's memory is read-only and the kernels require writable arrays.
    return np.array(filled.to_numpy(zero_copy_only=False), np.int64)


def partitions_column(column: Any) -> Int32Array:
    """Convert a column of partition numbers, with NOT_GIVEN in place of nulls."""
    array = as_partitions(whole(column))
    given = array.fill_null(0).to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero((given <= NOT_GIVEN) | (given > _MAX_PARTITION))
    if len(wrong):
        row = int(wrong[0])
        raise InvalidRecordError(f"row {row} has partition {given[row]}", [row])
    numbers: Int32Array = given.astype(np.int32)
    numbers[_nulls(array)] = NOT_GIVEN
    return numbers
