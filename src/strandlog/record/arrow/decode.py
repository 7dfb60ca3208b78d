"""Decodes raw batches to Arrow RecordBatches. See columns.py for the contract.

Python code runs once per batch: it reads the header, verifies the batch, determines whether to skip
it, and decompresses it. Batches are collected in a *group* until there are enough rows or bytes for
one RecordBatch. Then the kernels (kernels/decode.py) run once over the entire group, so that small
batches do not require more calls than large ones.

Invariants: rows are counted before memory is allocated, and a count that the bytes cannot hold is
rejected. The decompressed size of a group is less than 2 GiB, so Arrow's 32-bit offsets suffice.
The results do not reference the input.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from strandlog.errors import CorruptRecordError, DataError, DecompressedTooLargeError
from strandlog.model import Buffer
from strandlog.record.aborted import AbortedBatches
from strandlog.record.arrow.kernels import decode as kernels
from strandlog.record.arrow.kernels.compile import ByteArray, Int32Array, Int64Array
from strandlog.record.arrow.schema import HEADER, ColumnLayout
from strandlog.record.batch import BatchView, iter_batches
from strandlog.record.batch_header import HEADER_SIZE, BatchHeader
from strandlog.record.codecs import Codec, decompress_into
from strandlog.record.varint import MAX_INT64

_GROWTH: Final = 4


class UnpackedBatches:
    """A growing buffer of decompressed batches."""

    def __init__(self, room_bytes: int, limit_bytes: int) -> None:
        """Create an empty buffer. `limit_bytes` limits the decompressed size of one batch."""
        self._room_bytes = room_bytes
        self._limit_bytes = limit_bytes
        self._array: ByteArray = np.empty(0, np.uint8)
        self._room = self._array.data
        self.used_bytes = 0

    def unpack(self, codec: Codec, packed: Buffer) -> int:
        """Append a decompressed batch to the buffer, and return its decompressed size."""
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
        """Enlarge the buffer so that `rest_bytes` bytes are free."""
        larger: ByteArray = np.empty(self.used_bytes + rest_bytes, np.uint8)
        larger[: self.used_bytes] = self._array[: self.used_bytes]
        self._array, self._room = larger, larger.data

    def keep_last(self, size: int) -> None:
        """Discard all but the last `size` bytes, which belong to the next group."""
        start = self.used_bytes - size
        self._room[:size] = self._room[start : self.used_bytes]
        self.used_bytes = size

    def array(self) -> ByteArray:
        """Return the decompressed bytes as an array for the kernels."""
        used = self._array[: self.used_bytes]
        used.flags.writeable = False
        return used


MAX_GROUP_BYTES: Final = 2**31 - 1


def readonly_bytes(data: Buffer) -> ByteArray:
    """Return the bytes as an array for the kernels, without copying them."""
    array = np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)
    array.flags.writeable = False
    return array


class DecodedColumns:
    """An iterable of RecordBatches. The next read continues at `next_offset`, after the records
    that were returned."""

    def __init__(
        self,
        data: Buffer,
        start_offset: int,
        end_offset: int,
        layout: ColumnLayout,
        *,
        aborted: Iterable[tuple[int, int]],
        limit_bytes: int,
        target_rows: int,
        target_bytes: int,
    ) -> None:
        self.next_offset = start_offset
        self.schema = layout.schema
        self._data = data
        self._start_offset = start_offset
        self._end_offset = end_offset
        self._layout = layout
        self._aborted = AbortedBatches(aborted)
        self._limit_bytes = min(limit_bytes, MAX_GROUP_BYTES)
        self._target_rows = max(target_rows, 1)
        self._target_bytes = min(target_bytes, MAX_GROUP_BYTES)
        self._unpacked = UnpackedBatches(self._target_bytes, self._limit_bytes)
        self._batches = self._decode()

    def __iter__(self) -> Iterator[Any]:
        return self._batches

    def read_all(self) -> Any:
        """Return all remaining records as one table."""
        return pa.Table.from_batches(list(self._batches), self.schema)

    def _decode(self) -> Iterator[Any]:
        group = _Group(self._data, self._start_offset)
        unpacked = self._unpacked
        views = iter_batches(self._data)
        while True:
            try:
                view = next(views, None)
                size = None if view is None else self._payload_bytes(view)
            except DataError:
                yield from self._decoded(group)
                raise
            if view is None or view.header.base_offset >= self._end_offset:
                break
            header = view.header
            if size is not None:
                is_unpacked = header.codec is not Codec.NONE
                if group.views and not self._has_room(group, header.record_count, size):
                    yield from self._decoded(group)
                    group = _Group(self._data, group.next_offset)
                    unpacked.keep_last(size if is_unpacked else 0)
                start = unpacked.used_bytes - size if is_unpacked else view.position + HEADER_SIZE
                group.add(view, start, size, is_unpacked)
            group.next_offset = header.next_offset
        if view is not None:
            group.next_offset = self._end_offset
        yield from self._decoded(group)

    def _has_room(self, group: _Group, rows: int, size_bytes: int) -> bool:
        return (
            group.row_count + rows <= self._target_rows
            and group.size_bytes + size_bytes <= self._target_bytes
        )

    def _payload_bytes(self, view: BatchView) -> int | None:
        """Decompress the records of a batch and return their size, or None if the batch contains no
        records for this reader."""
        header = view.header
        if header.base_offset >= self._end_offset:
            return None
        view.check()
        if not _is_numbered(header):
            raise self._damage(view)
        if self._aborted.hides(view) or header.record_count == 0:
            return None
        if header.next_offset <= self._start_offset:
            return None
        size = header.size_bytes - HEADER_SIZE
        if header.codec is not Codec.NONE:
            packed = view.data()[HEADER_SIZE:]
            try:
                size = self._unpacked.unpack(header.codec, packed)
            except CorruptRecordError as error:
                raise CorruptRecordError(f"batch at offset {header.base_offset}: {error}") from None
        least_bytes = header.record_count * kernels.MIN_RECORD_BYTES
        if not 0 < least_bytes <= size:
            raise self._damage(view)
        return size

    def _damage(self, view: BatchView) -> CorruptRecordError:
        """Return an error that describes what is wrong with a batch."""
        try:
            view.records("", 0, limit_bytes=self._limit_bytes)
        except CorruptRecordError as error:
            return error
        return CorruptRecordError(f"batch at offset {view.header.base_offset} has invalid offsets")

    def _decoded(self, group: _Group) -> Iterator[Any]:
        """Yield the records of a group. If a batch is damaged, raise an error after yielding the
        records before it."""
        if not group.views:
            self._reach(group.next_offset)
            return
        rows = group.parse(self._unpacked.array(), self._start_offset, self._end_offset)
        if rows.count:
            batch = rows.record_batch(self._layout)
            for start in range(0, rows.count, self._target_rows):
                part = batch.slice(start, self._target_rows)
                self._reach(rows.next_offset_at(start + part.num_rows))
                yield part
        if rows.intact < len(group.views):
            damaged = group.views[rows.intact]
            self._reach(damaged.header.base_offset)
            raise self._damage(damaged)
        self._reach(group.next_offset)

    def _reach(self, offset: int) -> None:
        self.next_offset = max(self.next_offset, min(offset, self._end_offset))


def _is_numbered(header: BatchHeader) -> bool:
    """Return whether the offsets of the batch are valid: non-negative 64-bit integers."""
    return (
        header.base_offset >= 0 and 0 <= header.last_offset_delta <= MAX_INT64 - header.base_offset
    )


class _Group:
    """Batches that are decoded together."""

    def __init__(self, data: Buffer, next_offset: int) -> None:
        self.direct = readonly_bytes(data)
        self.views: list[BatchView] = []
        self.row_count = 0
        self.size_bytes = 0
        self.next_offset = next_offset
        self._plan: list[tuple[int, ...]] = []

    def add(self, view: BatchView, start: int, size: int, is_unpacked: bool) -> None:
        """Add a batch, whose records are at `start` in the buffer of decompressed batches if
        `is_unpacked`, otherwise at `start` in the input."""
        header = view.header
        is_append_time = int(header.timestamp_type)
        self._plan.append(
            (
                is_unpacked,
                start,
                start + size,
                header.record_count,
                header.base_offset,
                header.last_offset_delta,
                header.max_timestamp if is_append_time else header.base_timestamp,
                is_append_time,
            )
        )
        self.views.append(view)
        self.row_count += header.record_count
        self.size_bytes += size

    def parse(self, unpacked: ByteArray, start_offset: int, end_offset: int) -> _Rows:
        """Parse the rows of all batches up to the first damaged one."""
        plan = np.array(self._plan, np.int64)
        return _Rows(self.direct, unpacked, plan, self.row_count, start_offset, end_offset)


class _Rows:
    """The records of a group: the positions of their fields, and the resulting columns."""

    def __init__(
        self,
        direct: ByteArray,
        unpacked: ByteArray,
        plan: Any,
        row_count: int,
        start_offset: int,
        end_offset: int,
    ) -> None:
        self._sources = direct, unpacked
        self._plan = plan
        wide, narrow = np.int64, np.int32
        arrays: list[Any] = [
            np.empty(row_count, dtype)
            for dtype in (wide, wide, wide, narrow, wide, narrow, wide, narrow)
        ]
        row_ends = np.zeros(len(plan), np.int64)
        self.intact = kernels.parse_batches(
            direct, unpacked, plan, start_offset, end_offset, row_ends, *arrays
        )
        self.count = int(row_ends[self.intact - 1]) if self.intact else 0
        self._rows_per_batch = np.diff(row_ends[: self.intact], prepend=0)
        (
            self._offsets,
            self._timestamps,
            self._key_places,
            self._key_sizes,
            self._value_places,
            self._value_sizes,
            self._header_places,
            self._header_counts,
        ) = (array[: self.count] for array in arrays)

    def next_offset_at(self, row: int) -> int:
        """Return the offset after the first `row` rows."""
        return int(self._offsets[row - 1]) + 1

    def record_batch(self, layout: ColumnLayout) -> Any:
        """Return all rows with the requested columns."""
        arrays = [self._column(name, layout) for name in layout.names]
        return pa.RecordBatch.from_arrays(arrays, schema=layout.schema)

    def _column(self, name: str, layout: ColumnLayout) -> Any:
        match name:
            case "key":
                return self._gathered(pa.binary(), self._key_places, self._key_sizes)
            case "value":
                return self._gathered(pa.binary(), self._value_places, self._value_sizes)
            case "offset":
                return _numbers(pa.int64(), self._offsets)
            case "timestamp":
                return self._times(layout)
            case "timestampType":
                kinds = self._plan[: self.intact, kernels.IS_APPEND_TIME].astype(np.int32)
                return _numbers(pa.int32(), np.repeat(kinds, self._rows_per_batch))
            case "headers":
                return self._headers(layout.schema.field("headers").type)
            case _:
                return layout.repeated(name, self.count)

    def _times(self, layout: ColumnLayout) -> Any:
        timestamps = self._timestamps
        bitmap = np.zeros((self.count + 7) // 8, np.uint8)
        nulls = kernels.scale_timestamps(timestamps, layout.timestamp_scale, bitmap)
        return _numbers(layout.schema.field("timestamp").type, timestamps, bitmap, nulls)

    def _gathered(self, kind: Any, places: Int64Array, sizes: Int32Array) -> Any:
        count = len(places)
        ends = np.empty(count + 1, np.int32)
        content = np.empty(int(np.maximum(sizes, 0).sum(dtype=np.int64)), np.uint8)
        bitmap = np.zeros((count + 7) // 8, np.uint8)
        nulls = kernels.gather(*self._sources, places, sizes, ends, content, bitmap)
        buffers = [
            pa.py_buffer(bitmap) if nulls else None,
            pa.py_buffer(ends),
            pa.py_buffer(content),
        ]
        return pa.Array.from_buffers(kind, count, buffers, nulls)

    def _headers(self, kind: Any) -> Any:
        ends = np.zeros(self.count + 1, np.int32)
        np.cumsum(self._header_counts, out=ends[1:])
        count = int(ends[-1])
        places, sizes = np.empty((2, count), np.int64), np.empty((2, count), np.int32)
        kernels.locate_headers(
            *self._sources,
            self._header_places,
            self._header_counts,
            places[0],
            sizes[0],
            places[1],
            sizes[1],
        )
        names = _as_text(self._gathered(pa.string(), places[0], sizes[0]))
        values = self._gathered(pa.binary(), places[1], sizes[1])
        pairs = pa.StructArray.from_arrays([names, values], fields=list(HEADER))
        return pa.Array.from_buffers(
            kind, self.count, [None, pa.py_buffer(ends)], 0, children=[pairs]
        )


def _numbers(kind: Any, numbers: Any, bitmap: Any = None, nulls: int = 0) -> Any:
    buffers = [pa.py_buffer(bitmap) if nulls else None, pa.py_buffer(numbers)]
    return pa.Array.from_buffers(kind, len(numbers), buffers, nulls)


def _as_text(names: Any) -> Any:
    """Return header names as valid UTF-8, with invalid bytes replaced as in Java."""
    try:
        names.validate(full=True)
    except pa.ArrowInvalid:
        raw = names.view(pa.binary()).to_pylist()
        return pa.array([name.decode("utf-8", "replace") for name in raw], pa.string())
    return names
