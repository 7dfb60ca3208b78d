"""Rows that `poll_arrow` has read ahead, stored as Arrow record batches.

`ArrowRows` supports the list operations that a cursor uses (length, slicing, concatenation, first
and last element) without creating a Python object per row. Slices do not copy data.
"""

from __future__ import annotations

from typing import Any, Final

from strandlog.client.arrow.table import record_at, table_of_batches
from strandlog.client.record_source import Aborted, Fetched, undecodable
from strandlog.errors import CorruptSegmentError, DataError
from strandlog.model import Buffer, Record, TopicPartition
from strandlog.record.arrow.columns import COLUMNS, decode_columns
from strandlog.record.batch_header import BatchHeader
from strandlog.storage.segment.scan import batches_of_read

_COLUMNS: Final = tuple(name for name in COLUMNS if name != "timestampType")


class ArrowRows:
    """A sequence of rows, stored as non-empty RecordBatches."""

    __slots__ = ("_batches", "_count")

    def __init__(self, batches: list[Any]) -> None:
        self._batches = batches
        self._count: int = sum(batch.num_rows for batch in batches)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int | slice) -> Record | ArrowRows:
        if isinstance(index, slice):
            start, stop, _ = index.indices(self._count)
            return self._part(start, stop)
        assert index in (0, -1), "only the first and the last row can be read"
        return record_at(self._batches[index], self._batches[index].num_rows - 1 if index else 0)

    def _part(self, start: int, stop: int) -> ArrowRows:
        part = []
        for batch in self._batches:
            if start < batch.num_rows and stop > 0:
                part.append(batch.slice(max(start, 0), stop - max(start, 0)))
            start -= batch.num_rows
            stop -= batch.num_rows
        return ArrowRows(part)

    def __add__(self, other: ArrowRows) -> ArrowRows:
        return ArrowRows([*self._batches, *other._batches])

    def table(self) -> Any:
        """Return all rows as a table, with one chunk per record batch."""
        return table_of_batches(self._batches)


def decode_rows(
    data: Buffer,
    tp: TopicPartition,
    offset: int,
    end_offset: int,
    path: str,
    limit_bytes: int,
    aborted: Aborted,
) -> Fetched:
    """Decode records into columns; the arguments are those of `record_source.decode_records`."""
    size = 0
    is_transaction_next = False
    headers: list[BatchHeader] = []
    try:
        for batch in batches_of_read(data, path=path, offset=offset, end_offset=end_offset):
            if aborted is None and batch.header.is_transactional:
                is_transaction_next = True
                break
            size = batch.position + batch.size_bytes
            headers.append(batch.header)
    except CorruptSegmentError:
        if not size:
            raise
    if is_transaction_next and not size:
        return Fetched(ArrowRows([]), offset, is_transaction_next)
    columns = decode_columns(
        memoryview(data)[:size],
        offset,
        end_offset,
        topic=tp.topic,
        partition=tp.partition,
        columns=_COLUMNS,
        aborted=aborted or (),
        limit_bytes=limit_bytes,
        timestamp_unit="ms",
    )
    batches: list[Any] = []
    try:
        batches.extend(columns)
    except DataError as error:
        if columns.next_offset == offset:
            first = next(each for each in headers if each.next_offset > offset)
            raise undecodable(tp, first, error) from error
        is_transaction_next = False
    return Fetched(ArrowRows(batches), columns.next_offset, is_transaction_next)
