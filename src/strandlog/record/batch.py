"""`BatchView`, a lazy view of the bytes of one record batch.

A view copies nothing until its records are requested. The header is read once, on first use. The
buffer may contain more than this batch: the view covers `size_bytes` bytes from `position`.

    is_intact, check   verify magic, length and checksum, before the bytes are trusted
    records, pieces    decode the records at or after an offset, all at once or in chunks
    find_timestamp     finds the first record at or after a time

`records` does not verify the checksum, because the code that received the bytes has done so.
Nevertheless, it is safe for arbitrary bytes: it either returns records or raises a DataError.

A batch whose last bytes are missing is *torn*. `iter_batches` stops before it, because the end of a
fetched or partially written range is not damage. `check` raises an error for such a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from strandlog.errors import CorruptRecordError
from strandlog.model import Buffer, Record, TimestampOffset
from strandlog.record.batch_header import (
    APPEND_TIME_BIT,
    CODEC_MASK,
    CRC_START,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    MIN_BATCH_LENGTH,
    BatchHeader,
    read_header,
)
from strandlog.record.checksum import crc32c
from strandlog.record.codecs import DEFAULT_DECOMPRESSED_LIMIT_BYTES, decompress
from strandlog.record.record import decode_records, record_pieces
from strandlog.record.record_runs import Frame, Payload

_NOWHERE: Final = ""
PIECE_RECORDS: Final = 4096
VIEWED_BYTES: Final = 1024 * 1024
_new_tuple: Final = tuple.__new__  # a third of the cost of calling the class


class BatchView:
    """One batch at `position` in `buffer`."""

    __slots__ = ("_header", "buffer", "position")

    def __init__(self, buffer: Buffer, position: int = 0) -> None:
        self.buffer = buffer
        self.position = position
        self._header: BatchHeader | None = None

    def __repr__(self) -> str:
        return f"BatchView(position={self.position}, {self.header})"

    @property
    def header(self) -> BatchHeader:
        """The header, unverified; see `check`."""
        header = self._header
        if header is None:
            header = self._header = read_header(self.buffer, self.position)
        return header

    @property
    def size_bytes(self) -> int:
        """Size of the complete batch according to its header."""
        return LOG_OVERHEAD + self.header.batch_length

    def data(self) -> memoryview:
        """Return the bytes of this batch only, without copying them."""
        return memoryview(self.buffer)[self.position : self.position + self.size_bytes]

    def is_intact(self) -> bool:
        """Return whether `check` would pass."""
        if len(self.buffer) - self.position < HEADER_SIZE:
            return False
        return self._damage() is None

    def check(self) -> None:
        """Raise `CorruptRecordError` if the magic, the length or the checksum is wrong."""
        damage = self._damage()
        if damage is not None:
            raise CorruptRecordError(f"batch at offset {self.header.base_offset}: {damage}")

    def records(
        self,
        topic: str,
        partition: int,
        from_offset: int = 0,
        limit_bytes: int = DEFAULT_DECOMPRESSED_LIMIT_BYTES,
    ) -> list[Record]:
        """Return the records at or after `from_offset`, in offset order."""
        header = self.header
        try:
            payload = self._unpacked(header, limit_bytes)
            frame = _frame(header, topic, partition)
            records = decode_records(payload, header.record_count, frame)
        except CorruptRecordError as error:
            raise CorruptRecordError(f"batch at offset {header.base_offset}: {error}") from None
        if from_offset <= header.base_offset:
            return records
        return [record for record in records if record.offset >= from_offset]

    def pieces(
        self,
        topic: str,
        partition: int,
        from_offset: int = 0,
        limit_bytes: int = DEFAULT_DECOMPRESSED_LIMIT_BYTES,
        most: int = PIECE_RECORDS,
        *,
        as_views: bool = False,
    ) -> Iterator[list[Record]]:
        """Yield the same records as `records`, in lists of up to `most` records, because a batch
        may contain millions of them. Lists may be empty.

        With `as_views`, the keys and values of a batch above `VIEWED_BYTES` are memoryviews of its
        bytes. Copying them stops all threads, for 100 MB for a tenth of a second; a caller that
        only checks the records does not need copies.
        """
        header = self.header
        try:
            payload = self._unpacked(header, limit_bytes, as_views)
            frame = _frame(header, topic, partition)
            for records in record_pieces(payload, header.record_count, frame, most):
                if records[0].offset >= from_offset:
                    yield records
                else:
                    yield [record for record in records if record.offset >= from_offset]
        except CorruptRecordError as error:
            raise CorruptRecordError(f"batch at offset {header.base_offset}: {error}") from None

    def find_timestamp(
        self,
        timestamp_ms: int,
        limit_bytes: int = DEFAULT_DECOMPRESSED_LIMIT_BYTES,
        from_offset: int = 0,
    ) -> TimestampOffset | None:
        """Return the timestamp and offset of the first record at or after `from_offset` with a
        timestamp of at least `timestamp_ms`; None if there is none."""
        if self.header.max_timestamp < timestamp_ms:
            return None
        for records in self.pieces(_NOWHERE, 0, from_offset, limit_bytes, as_views=True):
            for record in records:
                if record.timestamp >= timestamp_ms:
                    return TimestampOffset(record.timestamp, record.offset)
        return None

    def _damage(self) -> str | None:
        header = self.header
        if header.magic != MAGIC:
            return f"magic is {header.magic}; expected {MAGIC}"
        position = self.position
        end = position + LOG_OVERHEAD + header.batch_length
        if header.batch_length < MIN_BATCH_LENGTH or end > len(self.buffer):
            return self._misfit()
        actual = crc32c(memoryview(self.buffer)[position + CRC_START : end])
        if actual != header.crc:
            return f"checksum is {actual:#010x}, but the header says {header.crc:#010x}"
        return None

    def _misfit(self) -> str:
        length = self.header.batch_length
        if length < MIN_BATCH_LENGTH:
            return f"length {length} is under the minimum of {MIN_BATCH_LENGTH}"
        left = len(self.buffer) - self.position
        return f"takes {LOG_OVERHEAD + length} bytes, but only {left} are left"

    def _unpacked(self, header: BatchHeader, limit_bytes: int, as_views: bool = False) -> Payload:
        end = self.position + LOG_OVERHEAD + header.batch_length
        if header.batch_length < MIN_BATCH_LENGTH or end > len(self.buffer):
            raise CorruptRecordError(self._misfit())
        payload: Buffer = memoryview(self.buffer)[self.position + HEADER_SIZE : end]
        # A batch emptied by compaction contains nothing to decompress, whatever its codec.
        if header.attributes & CODEC_MASK and payload:
            payload = decompress(header.codec, payload, limit_bytes)
        if as_views and len(payload) > VIEWED_BYTES:
            return memoryview(payload)
        return bytes(payload)


def _frame(header: BatchHeader, topic: str, partition: int) -> Frame:
    is_append_time = header.attributes & APPEND_TIME_BIT != 0
    fields = (
        topic,
        partition,
        header.base_offset,
        header.last_offset_delta,
        header.max_timestamp if is_append_time else header.base_timestamp,
        is_append_time,
    )
    return _new_tuple(Frame, fields)


def iter_batches(buffer: Buffer, position: int = 0) -> Iterator[BatchView]:
    """Yield the complete batches in `buffer` in order, without a torn one at the end. Raise
    `CorruptRecordError` if a header contains an impossible length."""
    end = len(buffer)
    while position + HEADER_SIZE <= end:
        view = BatchView(buffer, position)
        size_bytes = view.size_bytes
        if size_bytes < HEADER_SIZE:
            view.check()
        position += size_bytes
        if position > end:
            return
        yield view
