"""Encodes and decodes the records inside a batch.

    length           varint   bytes that follow this field
    attributes       int8     0, not used
    timestamp_delta  varint   from the batch's base_timestamp
    offset_delta     varint   from the batch's base_offset
    key              varint length, bytes; length -1 is null
    value            varint length, bytes; length -1 is null
    header_count     varint
      name           varint length, UTF-8; never null
      value          varint length, bytes; length -1 is null

Invariants that `decode_records` enforces, raising CorruptRecordError: a record ends exactly where
its length says; no record extends beyond the payload; there are exactly as many records as the
batch header says, and no bytes after the last one; offsets increase and stay within the batch; a
record has at most MAX_RECORD_HEADERS headers, and a batch at most about MAX_BATCH_HEADERS.
Timestamps wrap like Java's 64-bit integers. Null and empty fields are distinct. Header names that
are not valid UTF-8 are decoded with surrogate escapes, so that they can be written back unchanged.

There are three readers. The *plain* reader handles records that have no headers, a value that is
not null, and short varints (keys under 64 bytes, values under 8 KiB, less than eight seconds after
the base timestamp). The *run* reader handles many records of any size together if they have the
same layout, no headers and no null values (see record_runs.py). Both stop at any other record,
including damaged ones. The *careful* reader then decodes that record or raises an error that
describes the damage. It is the only one that raises errors, which keeps the other two simple.

A payload may also be a memoryview; the keys and values are then views of it, although their types
say bytes. For callers that only look at them; see `BatchView.pieces`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from strandlog.config.limits.records import MAX_BATCH_HEADERS, MAX_RECORD_HEADERS
from strandlog.errors import CorruptRecordError, InvalidRecordError
from strandlog.model import Headers, Record
from strandlog.record.record_runs import MIN_RUN, Frame, Payload, read_run
from strandlog.record.varint import (
    MAX_INT64,
    MIN_INT64,
    VARINTS,
    decode_varint,
    encode_varint,
    wrap_int64,
)

# Masks of the bits that must be zero in the zig-zag value of a non-negative number whose varint has
# at most this many bytes. Bit 0 is the sign, and each byte holds seven bits.
_NOT_ONE_BYTE: Final = ~0x7E
_NOT_TWO_BYTES: Final = ~0x3FFE
_NOT_THREE_BYTES: Final = ~0x1FFFFE
_NULL: Final = 1
PIECE_HEADERS = 100_000
_MIN_LENGTH: Final = 6  # one byte for each field
MIN_RECORD_BYTES: Final = 1 + _MIN_LENGTH
_MAX_PLAIN_BASE: Final = MAX_INT64 - 0x1FFF
_NULL_FIELD: Final = encode_varint(-1)

_new_tuple: Final = tuple.__new__


def encode_record(
    timestamp_delta: int,
    offset_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[str, bytes | None]] = (),
) -> bytes:
    """Encode one record, prefixed with its length."""
    body = b"".join(
        (
            b"\0",
            VARINTS[timestamp_delta],
            VARINTS[offset_delta],
            _NULL_FIELD if key is None else VARINTS[len(key)],
            key or b"",
            _NULL_FIELD if value is None else VARINTS[len(value)],
            value or b"",
            encode_headers(headers) if headers else b"\0",
        )
    )
    return VARINTS[len(body)] + body


def encode_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """Encode the header count and the headers."""
    if len(headers) > MAX_RECORD_HEADERS:
        raise InvalidRecordError(
            f"a record has {len(headers)} headers; the limit is {MAX_RECORD_HEADERS}"
        )
    parts = [VARINTS[len(headers)]]
    for name, value in headers:
        try:
            encoded = name.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise InvalidRecordError(
                f"header name {name!r} is not valid text: {error.reason}"
            ) from None
        parts += (VARINTS[len(encoded)], encoded)
        if value is None:
            parts.append(_NULL_FIELD)
        else:
            parts += (VARINTS[len(value)], value)
    return b"".join(parts)


def decode_records(payload: Payload, count: int, frame: Frame) -> list[Record]:
    """Decode all `count` records of a decompressed payload."""
    if 0 < count <= 2 * MIN_RUN and frame.base_timestamp <= _MAX_PLAIN_BASE:
        # Fast path for small batches of plain records; `record_pieces` handles everything else.
        plain: list[Record] = []
        is_all = _read_plain(payload, 0, count, frame, plain) == len(payload)
        last_offset = frame.base_offset + frame.last_offset_delta
        if is_all and len(plain) == count and plain[-1].offset <= last_offset:
            return plain
    pieces = record_pieces(payload, count, frame, max(count, 1))
    records = next(pieces, [])
    left = MAX_BATCH_HEADERS // PIECE_HEADERS
    for piece in pieces:  # all but the last have at least `PIECE_HEADERS` headers
        left -= 1
        if not left:
            raise CorruptRecordError(f"the records have more than {MAX_BATCH_HEADERS} headers")
        records += piece
    return records


def record_pieces(payload: Payload, count: int, frame: Frame, most: int) -> Iterator[list[Record]]:
    """Yield the records of a decompressed payload in chunks of up to `most`, or fewer if they have
    many headers.

    A caller that stops early, or discards each chunk, does not hold the complete batch in memory. A
    chunk that contains damage is not yielded; an error is raised instead. The last chunk is yielded
    only if the end of the payload is valid too.
    """
    if not 0 <= count <= len(payload):
        raise CorruptRecordError(f"{len(payload)} bytes cannot hold {count} records")
    piece = _Piece(payload, frame, count)
    while piece.left:
        records = piece.read(min(most, piece.left))
        if not piece.left:
            piece.check_end()
        yield records
    if not count:
        piece.check_end()


class _Piece:
    """Reads a payload in chunks, and keeps track of the position and the last record."""

    __slots__ = ("_count", "_frame", "_last", "_payload", "_position", "left")

    def __init__(self, payload: Payload, frame: Frame, count: int) -> None:
        self._payload = payload
        self._frame = frame
        self._count = count
        self._position = 0
        self._last: list[Record] = []  # the last record of the previous chunk
        self.left = count

    def read(self, count: int) -> list[Record]:
        """Return the next `count` records, or fewer if they have many headers."""
        payload, frame, position = self._payload, self._frame, self._position
        records = self._last
        carried = len(records)
        number = self._count - self.left - carried  # index of `records[0]` in the batch
        count += carried
        # How many records the plain reader may read before the next search for a run.
        stretch = 1 if count > 2 * MIN_RUN else count
        headers_left = PIECE_HEADERS
        while True:
            if stretch and frame.base_timestamp <= _MAX_PLAIN_BASE:
                end = min(count, len(records) + stretch)
                position = _read_plain(payload, position, end, frame, records)
            if len(records) == count:
                break
            start = position
            position = _read_careful(payload, start, frame, records, number)
            if records[-1].headers or records[-1].value is None:
                stretch = 0  # the next record is probably not plain either
                headers_left -= len(records[-1].headers)
                if headers_left <= 0:
                    count = len(records)
                    break
                continue
            stretch = stretch * 2 or 1
            if (most := count - len(records)) > MIN_RUN:
                position = read_run(payload, start, position, most, frame, records)
                if len(records) + most > count:
                    stretch = 1
        self._position = position
        self.left -= count - carried
        self._last = records[-1:]
        return records[carried:] if carried else records

    def check_end(self) -> None:
        """Raise an error unless the records fill the payload and their offsets are within the
        batch."""
        if self._position != len(self._payload):
            rest = len(self._payload) - self._position
            raise CorruptRecordError(f"{rest} bytes follow the last record")
        end = self._frame.base_offset + self._frame.last_offset_delta
        if self._last and self._last[0].offset > end:
            raise CorruptRecordError(
                f"offset {self._last[0].offset} lies after the end of its batch"
            )


def _read_plain(
    data: Payload, position: int, count: int, frame: Frame, records: list[Record]
) -> int:
    """Append plain records until there are `count`, or one is not plain. Return where they end."""
    topic, partition, base_offset, _, base_timestamp, is_append_time = frame
    shift = 14 if is_append_time else 1  # plain deltas have 14 bits: append times discard them
    last = (records[-1].offset - base_offset) << 1 if records else -1
    start = position
    try:
        for _ in range(count - len(records)):
            length, position = data[position], position + 1
            if length > 127:
                length += (data[position] << 7) - 128
                position += 1
            body = position
            timestamp, position = data[position + 1], position + 2
            if timestamp > 127:
                timestamp += (data[position] << 7) - 128
                position += 1
            offset, position = data[position], position + 1
            if offset > 127:
                offset += (data[position] << 7) - 128
                position += 1
                if offset > 16383:
                    offset += (data[position] << 14) - 16384
                    position += 1
            key_size, position = data[position], position + 1
            if key_size == _NULL:
                key, key_size = None, 0
            else:
                key = data[position : (position := position + (key_size >> 1))]
            value_size, position = data[position], position + 1
            if value_size > 127:
                value_size += (data[position] << 7) - 128
                position += 1
            value = data[position : (position := position + (value_size >> 1))]
            if (
                (length | timestamp | value_size) & _NOT_TWO_BYTES
                or offset & _NOT_THREE_BYTES
                or key_size & _NOT_ONE_BYTE
                or offset <= last
                or data[position]
                or (position + 1 - body) << 1 != length
            ):
                return start
            record = (
                topic,
                partition,
                base_offset + (offset >> 1),
                base_timestamp + (timestamp >> shift),
                key,
                value,
                (),
            )
            records.append(_new_tuple(Record, record))
            last = offset
            start = position = position + 1
    except IndexError:
        pass  # the careful reader raises the error
    return start


def _read_careful(
    data: Payload, position: int, frame: Frame, records: list[Record], number: int
) -> int:
    """Append the record at `position`, plain or not. Return the position after it.

    `number` is the index of `records[0]` in the batch."""
    number += len(records)
    length, body = decode_varint(data, position)
    end = body + length
    if length < _MIN_LENGTH or end > len(data):
        raise CorruptRecordError(
            f"record {number} claims {length} bytes; {len(data) - body} are left"
        )
    timestamp_delta, position = decode_varint(data, body + 1)
    offset_delta, position = decode_varint(data, position)
    key, position = _read_field(data, position, end)
    value, position = _read_field(data, position, end)
    headers: Headers = ()
    if position < end and data[position] == 0:
        position += 1
    else:
        headers, position = _read_headers(data, position, end)
    if position != end:
        raise CorruptRecordError(
            f"record {number} takes {position - body} bytes but claims {length}"
        )
    offset = frame.base_offset + offset_delta
    last_offset = records[-1].offset if records else frame.base_offset - 1
    if offset <= last_offset:
        raise CorruptRecordError(f"offset {offset} follows offset {last_offset}")
    timestamp = frame.base_timestamp + (0 if frame.is_append_time else timestamp_delta)
    if not MIN_INT64 <= timestamp <= MAX_INT64:
        timestamp = wrap_int64(timestamp)
    record = (frame.topic, frame.partition, offset, timestamp, key, value, headers)
    records.append(_new_tuple(Record, record))
    return position


def _read_field(data: Payload, position: int, end: int) -> tuple[bytes | None, int]:
    """Read a length-prefixed field. Return it and the position after it."""
    raw = data[position] if position < end else 128
    if raw < 128:
        size, start = (raw >> 1) ^ -(raw & 1), position + 1
    else:
        size, start = decode_varint(data, position)
    if size == -1:
        return None, start
    position = start + size
    if size < 0 or position > end:
        raise CorruptRecordError(f"a field of {size} bytes does not fit into its record")
    return data[start:position], position  # type: ignore[return-value]  # a view


def _read_headers(data: Payload, position: int, end: int) -> tuple[Headers, int]:
    count, position = decode_varint(data, position)
    # Each header takes at least two bytes. An impossible count must not control the loop.
    if not 0 <= count * 2 <= end - position:
        raise CorruptRecordError(f"{count} headers do not fit into their record")
    if count > MAX_RECORD_HEADERS:
        raise CorruptRecordError(f"a record has {count} headers; the limit is {MAX_RECORD_HEADERS}")
    headers: list[tuple[str, bytes | None]] = []
    is_view = isinstance(data, memoryview)
    for _ in range(count):
        name, position = _read_field(data, position, end)
        if name is None:
            raise CorruptRecordError("a header has no name")
        value, position = _read_field(data, position, end)
        if is_view:
            name = bytes(name)
        headers.append((name.decode("utf-8", "surrogateescape"), value))
    return tuple(headers), position
