"""Validates batches before they are appended, without decoding their records.

All rules but the last are Kafka's:

- The magic byte is 2. Older formats are reported as invalid rather than corrupt, because a retry
  cannot succeed.
- The batch is complete and intact (CRC-32C), and has as many records as offsets.
- A batch from a client is not a control batch and has no append time.
- A batch with a producer id has a sequence number.
- The largest timestamp is within the topic's window, and the size is within max.message.bytes.
- The codec is known.
- There are no more records than batch.max.records or, if the batch is uncompressed, than its bytes
  can hold.

These checks use only the header and the checksum, so their cost does not depend on the number of
records. Checks that need the records themselves are in record_checks.py.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from strandlog.config.setting import DEFAULT_BATCH_MAX_RECORDS
from strandlog.config.tables.topic import LogSettings
from strandlog.config.units import counted
from strandlog.errors import (
    CorruptRecordError,
    InvalidRecordError,
    InvalidTimestampError,
    MessageTooLargeError,
    StrandlogError,
    TooManyRecordsError,
)
from strandlog.model import Buffer
from strandlog.record.batch_header import (
    APPEND_TIME_BIT,
    BATCH_LENGTH_POSITION,
    CODEC_MASK,
    CONTROL_BIT,
    CRC_START,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    BatchHeader,
    read_header,
)
from strandlog.record.checksum import crc32c
from strandlog.record.codecs import Codec
from strandlog.record.record import MIN_RECORD_BYTES

_OLD_LENGTH_AND_CRC = struct.Struct(">iI")
LARGEST_CODEC = int(max(Codec))


def split_batches(data: Buffer) -> list[tuple[BatchHeader, memoryview]]:
    """Return the batches of one append, each with its bytes. Raise an error if bytes are left over
    that do not form a complete batch, or if the data is a message of an older format."""
    view = memoryview(data)
    if len(view) > MAGIC_POSITION and view[MAGIC_POSITION] < MAGIC and _is_old_message(view):
        raise InvalidRecordError(
            f"messages with magic {view[MAGIC_POSITION]} are not supported; send record batches "
            f"(magic {MAGIC}), which replaced them in Kafka 0.11"
        )
    header = read_header(view)
    if header.batch_length + LOG_OVERHEAD == len(view) >= HEADER_SIZE:
        return [(header, view)]  # the common case
    return list(_split(view))


def _is_old_message(view: memoryview) -> bool:
    """Return whether the data is an intact message in the format that preceded record batches: i64
    offset, i32 length, u32 CRC-32 of what follows, i8 magic, rest. If not, it is a damaged batch.
    """
    length, crc = _OLD_LENGTH_AND_CRC.unpack_from(view, BATCH_LENGTH_POSITION)
    return bool(crc == zlib.crc32(view[MAGIC_POSITION : LOG_OVERHEAD + max(0, length)]))


def _split(view: memoryview) -> Iterator[tuple[BatchHeader, memoryview]]:
    while view:
        header = read_header(view)
        size = header.size_bytes
        if size < HEADER_SIZE or size > len(view):
            raise CorruptRecordError(
                f"a batch claims {size} bytes; a header alone takes {HEADER_SIZE}, and "
                f"{len(view)} are left"
            )
        yield header, view[:size]
        view = view[size:]


def check_crc(header: BatchHeader, data: memoryview) -> None:
    """Raise `CorruptRecordError` if the batch was damaged in transit."""
    if crc32c(data[CRC_START:]) != header.crc:
        raise CorruptRecordError("the batch fails its checksum; send it again")


def check_batch(
    header: BatchHeader,
    data: memoryview,
    settings: LogSettings,
    now_ms: int,
    max_records: int = DEFAULT_BATCH_MAX_RECORDS,
    *,
    is_control: bool,
    from_coordinator: bool = False,
) -> None:
    """Raise an error if a batch must not be appended.

    The limits on size, record count and timestamps apply to clients only. A coordinator must be
    able to write any state that it has accepted, even if a single record is very large (a group
    with thousands of members, a transaction over thousands of partitions). Batches that a
    coordinator writes on behalf of a producer do not use that producer's sequence numbers.
    """
    if header.magic != MAGIC:
        raise CorruptRecordError(f"the batch has magic {header.magic}; expected {MAGIC}")
    if len(data) > settings.max_message_bytes and not (is_control or from_coordinator):
        raise MessageTooLargeError(len(data), settings.max_message_bytes, "max.message.bytes")
    check_crc(header, data)
    attributes, count = header.attributes, header.record_count
    if (
        count <= 0
        or count != header.last_offset_delta + 1
        or (count > max_records and not from_coordinator)
        or (not attributes & CODEC_MASK and count * MIN_RECORD_BYTES > len(data) - HEADER_SIZE)
    ):
        raise _bad_count(header, len(data), max_records)
    if attributes & CODEC_MASK > LARGEST_CODEC:
        raise InvalidRecordError(f"unknown codec {attributes & CODEC_MASK}")
    if (attributes & CONTROL_BIT != 0) is not is_control:
        raise InvalidRecordError("clients must not write control batches")
    if attributes & APPEND_TIME_BIT and not is_control:
        raise InvalidTimestampError("producers must not set the timestamp type to LogAppendTime")
    if header.producer_id >= 0 > header.base_sequence and not (is_control or from_coordinator):
        raise InvalidRecordError("a batch with a producer id needs a sequence number")
    max_timestamp = header.max_timestamp
    if max_timestamp >= 0 and not (settings.stamps_append_time or is_control or from_coordinator):
        ahead_ms = max_timestamp - now_ms
        before_ms = settings.message_timestamp_before_max_ms
        if not -before_ms <= ahead_ms <= settings.message_timestamp_after_max_ms:
            raise out_of_window(max_timestamp, ahead_ms, settings)


def _bad_count(header: BatchHeader, size_bytes: int, max_records: int) -> StrandlogError:
    """Return the error for a batch with an invalid record count."""
    count = header.record_count
    if count <= 0 or count != header.last_offset_delta + 1:
        return InvalidRecordError(
            f"the batch has {counted(count, 'record')} but "
            f"{counted(header.last_offset_delta + 1, 'offset')}"
        )
    if not header.attributes & CODEC_MASK and count * MIN_RECORD_BYTES > size_bytes - HEADER_SIZE:
        return InvalidRecordError(
            f"{size_bytes - HEADER_SIZE} bytes cannot hold {count} records of at least "
            f"{MIN_RECORD_BYTES} bytes"
        )
    return TooManyRecordsError(count, max_records)


def out_of_window(timestamp: int, ahead_ms: int, settings: LogSettings) -> InvalidTimestampError:
    """Return the error for a timestamp that is too far from the time of the append."""
    if ahead_ms > 0:
        return InvalidTimestampError(
            f"timestamp {timestamp} is {ahead_ms} ms ahead of the clock; "
            f"message.timestamp.after.max.ms allows {settings.message_timestamp_after_max_ms}"
        )
    return InvalidTimestampError(
        f"timestamp {timestamp} is {-ahead_ms} ms behind the clock; "
        f"message.timestamp.before.max.ms allows {settings.message_timestamp_before_max_ms}"
    )
