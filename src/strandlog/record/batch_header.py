"""The 61-byte header of a record batch (v2): layout, reading, stamping and CRC-32C. Big-endian.

    at  size  field
     0  8     base_offset        offset of the first record, set by the broker
     8  4     batch_length       bytes that follow this field: at least 49
    12  4     leader_epoch       set by the broker
    16  1     magic              2
    17  4     crc                CRC-32C of everything from `attributes` to the end, unsigned
    21  2     attributes         bits 0-2 codec · 3 timestamps are append times · 4 transactional ·
                                 5 control · 6 base_timestamp is the delete horizon (KIP-534)
    23  4     last_offset_delta  last offset minus base offset
    27  8     base_timestamp     timestamp deltas of the records are relative to this
    35  8     max_timestamp
    43  8     producer_id        -1 if none
    51  2     producer_epoch
    53  4     base_sequence      -1 if none
    57  4     record_count
    61        the records, compressed with the codec

Invariants: the checksum does not cover base_offset and leader_epoch, so a broker can stamp both
without changing it. It does cover append times, so stamping them requires a new checksum. After
compaction, `record_count` may be less than `last_offset_delta + 1`, or even 0; the offsets and
sequences of the batch do not change.

This code is on the hot path of every append: one `struct` call to read, two to stamp, no copy.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from strandlog.errors import CorruptRecordError, InvalidRecordError, UnsupportedCodecError
from strandlog.model import NO_SEQUENCE, Buffer, TimestampType
from strandlog.record.checksum import crc32c
from strandlog.record.codecs import Codec

HEADER_SIZE: Final = 61
LOG_OVERHEAD: Final = 12
PREFIX_SIZE: Final = 16
MIN_BATCH_LENGTH: Final = HEADER_SIZE - LOG_OVERHEAD
MAGIC: Final = 2

BASE_OFFSET_POSITION: Final = 0
BATCH_LENGTH_POSITION: Final = 8
LEADER_EPOCH_POSITION: Final = 12
MAGIC_POSITION: Final = 16
CRC_POSITION: Final = 17
CRC_START: Final = 21
ATTRIBUTES_POSITION: Final = 21
LAST_OFFSET_DELTA_POSITION: Final = 23
BASE_TIMESTAMP_POSITION: Final = 27
MAX_TIMESTAMP_POSITION: Final = 35
PRODUCER_ID_POSITION: Final = 43
PRODUCER_EPOCH_POSITION: Final = 51
BASE_SEQUENCE_POSITION: Final = 53
RECORD_COUNT_POSITION: Final = 57

CODEC_MASK: Final = 0x07
APPEND_TIME_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40

_SEQUENCE_COUNT: Final = 1 << 31

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_PREFIX: Final = struct.Struct(">qii")
_UP_TO_CRC: Final = struct.Struct(">qiibI")
_COVERED: Final = struct.Struct(">hiqqqhii")  # the fields that the checksum covers
_INT64: Final = struct.Struct(">q")
_INT32: Final = struct.Struct(">i")
_UINT32: Final = struct.Struct(">I")

_CODECS: Final = tuple(Codec)
_new_tuple: Final = tuple.__new__


class BatchHeader(NamedTuple):
    """The header fields in wire order."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """Size of the complete batch."""
        return LOG_OVERHEAD + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Codec:
        codec_id = self.attributes & CODEC_MASK
        if codec_id >= len(_CODECS):
            raise UnsupportedCodecError(
                f"batch at offset {self.base_offset} has unknown codec {codec_id}; "
                f"known codecs are 0 to {len(_CODECS) - 1}"
            )
        return _CODECS[codec_id]

    @property
    def timestamp_type(self) -> TimestampType:
        if self.attributes & APPEND_TIME_BIT:
            return TimestampType.LOG_APPEND_TIME
        return TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_BIT != 0

    @property
    def has_delete_horizon(self) -> bool:
        return self.attributes & DELETE_HORIZON_BIT != 0

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record. Sequences wrap to 0 after 2**31 - 1."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) % _SEQUENCE_COUNT


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Return the header at `position` without validating it."""
    try:
        return _new_tuple(BatchHeader, _HEADER.unpack_from(buffer, position))
    except struct.error:
        raise CorruptRecordError(
            f"a batch header takes {HEADER_SIZE} bytes, but only "
            f"{max(0, len(buffer) - position)} are left"
        ) from None


def seal(
    batch: bytearray,
    base_offset: int,
    leader_epoch: int,
    attributes: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    record_count: int,
) -> None:
    """Fill in the header of `batch`, which consists of 61 reserved bytes and the records."""
    try:
        _HEADER.pack_into(
            batch,
            0,
            base_offset,
            len(batch) - LOG_OVERHEAD,
            leader_epoch,
            MAGIC,
            0,
            attributes,
            last_offset_delta,
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            record_count,
        )
    except struct.error as error:
        raise _out_of_range(error) from None
    _write_crc(batch, 0, len(batch))


def sealed_single(
    parts: list[bytes],
    base_offset: int,
    leader_epoch: int,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
) -> bytearray:
    """Build a batch of one record from the `parts` of its encoded bytes.

    This copies the parts twice. Up to a few kilobytes, that is faster than reserving space for the
    header and filling it in, as `seal` does.
    """
    try:
        head = _COVERED.pack(
            attributes,
            0,
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            1,
        )
        covered = b"".join([head, *parts])
        length = len(covered) + CRC_START - LOG_OVERHEAD
        head = _UP_TO_CRC.pack(base_offset, length, leader_epoch, MAGIC, crc32c(covered))
    except struct.error as error:
        raise _out_of_range(error) from None
    return bytearray().join((head, covered))


def _out_of_range(error: struct.error) -> InvalidRecordError:
    return InvalidRecordError(f"a field of the batch header is out of range: {error}")


def stamp(
    buffer: bytearray | memoryview, base_offset: int, leader_epoch: int, position: int = 0
) -> None:
    """Set the base offset and leader epoch of a batch. The checksum does not cover them."""
    _INT64.pack_into(buffer, position, base_offset)
    _INT32.pack_into(buffer, position + LEADER_EPOCH_POSITION, leader_epoch)


def stamped_prefix(base_offset: int, batch_length: int, leader_epoch: int) -> bytes:
    """Return the first 16 bytes of a stamped batch, to be written before the rest of a read-only
    buffer."""
    return _PREFIX.pack(base_offset, batch_length, leader_epoch)


def stamp_append_time(buffer: bytearray | memoryview, timestamp_ms: int, position: int = 0) -> None:
    """Set the timestamp of every record to `timestamp_ms` and update the checksum.

    `buffer` must contain the complete batch.
    """
    # All attribute bits in use are in the low byte of the big-endian field.
    buffer[position + ATTRIBUTES_POSITION + 1] |= APPEND_TIME_BIT
    _INT64.pack_into(buffer, position + MAX_TIMESTAMP_POSITION, timestamp_ms)
    (batch_length,) = _INT32.unpack_from(buffer, position + BATCH_LENGTH_POSITION)
    _write_crc(buffer, position, LOG_OVERHEAD + batch_length)


def _write_crc(buffer: bytearray | memoryview, position: int, size_bytes: int) -> None:
    """Compute and set the checksum of the batch at `position`, which has `size_bytes` bytes."""
    covered = memoryview(buffer)[position + CRC_START : position + size_bytes]
    _UINT32.pack_into(buffer, position + CRC_POSITION, crc32c(covered))


def end_offset_of(data: Buffer) -> int:
    """Return the offset after the last complete batch in `data`, or 0 if there is none."""
    position, end_offset = 0, 0
    while len(data) - position >= HEADER_SIZE:
        header = read_header(data, position)
        position += header.size_bytes
        if header.size_bytes < HEADER_SIZE or position > len(data):
            break
        end_offset = header.next_offset
    return end_offset
