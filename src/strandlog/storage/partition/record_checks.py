"""Validates the records inside a batch if the topic's settings require it.

    compacted topics                   every record has a key
    message.timestamp.before.max.ms    no record is too old (the header shows only the newest)
    record.validation=records          every record can be decoded
    key.schema.validation and          keys and values have a valid schema id (the broker passes
    value.schema.validation            this check as `also`)

In all cases, the records are decoded by the code that readers use, so a batch that passes can be
read. A batch that cannot be decoded raises InvalidRecordError rather than CorruptRecordError: its
checksum shows that it was not damaged in transit, so a retry cannot succeed.

The setting decompressed.max.bytes limits the memory, and batch.max.records the work; records are
decoded in chunks that are discarded after the check, and the bytes of large batches are not copied
(`BatchView.pieces`). `is_quick` returns whether the records can be decoded in the event loop.
"""

from __future__ import annotations

from collections.abc import Callable

from strandlog.config.limits.records import MAX_REPORTED_RECORDS
from strandlog.config.setting import MAX_LONG
from strandlog.config.tables.topic import LogSettings
from strandlog.errors import (
    CorruptRecordError,
    DecompressedTooLargeError,
    InvalidRecordError,
    UnsupportedCodecError,
)
from strandlog.model import Record, TopicPartition
from strandlog.record.batch import BatchView
from strandlog.record.batch_header import CODEC_MASK, HEADER_SIZE, BatchHeader
from strandlog.record.codecs import decompress
from strandlog.storage.partition.append_checks import check_crc, out_of_window

QUICK_RECORDS = 1000
QUICK_BYTES = 64 * 1024  # decompressed


def check_records(
    tp: TopicPartition,
    header: BatchHeader,
    data: memoryview,
    settings: LogSettings,
    now_ms: int,
    limit_bytes: int,
    also: Callable[[list[Record], int], None] | None = None,
) -> None:
    """Raise an error if a batch that passed `check_batch` contains invalid records.

    `also` is called with the records of each chunk and the index of the first.
    """
    if header.is_control:
        return
    check_crc(header, data)
    oldest_ms = None
    before_ms = settings.message_timestamp_before_max_ms
    if before_ms < MAX_LONG and not settings.stamps_append_time:
        oldest_ms = now_ms - before_ms
    number = 0
    try:
        for records in BatchView(data).pieces(*tp, header.base_offset, limit_bytes, as_views=True):
            if settings.compacts:
                _check_keys(tp, records, number)
            if oldest_ms is not None:
                _check_ages(records, oldest_ms, settings, now_ms)
            if also is not None:
                also(records, number)
            number += len(records)
    except (CorruptRecordError, UnsupportedCodecError) as error:
        raise InvalidRecordError(f"{tp}: the records cannot be decoded: {error}") from error


def _check_keys(tp: TopicPartition, records: list[Record], number: int) -> None:
    """Raise an error if a record has no key, because compaction keeps the last value per key."""
    keyless = [row for row, record in enumerate(records, number) if record.key is None]
    if keyless:
        raise InvalidRecordError(
            f"{tp} is compacted: every record needs a key, but record {keyless[0]} of the "
            f"batch has none",
            keyless[:MAX_REPORTED_RECORDS],
        )


def _check_ages(records: list[Record], oldest_ms: int, settings: LogSettings, now_ms: int) -> None:
    """Raise an error if a record is too old. Records without a timestamp are accepted."""
    for record in records:
        if 0 <= record.timestamp < oldest_ms:
            raise out_of_window(record.timestamp, record.timestamp - now_ms, settings)


def is_quick(header: BatchHeader, data: memoryview) -> bool:
    """Return whether the records of a batch can be examined quickly, without the checksum: at most
    `QUICK_RECORDS` that are uncompressed or decompress to at most `QUICK_BYTES`, which takes about
    a millisecond. This function itself takes less."""
    if header.record_count > QUICK_RECORDS:
        return False
    if not header.attributes & CODEC_MASK:
        return True
    if len(data) > QUICK_BYTES:
        return False
    try:
        decompress(header.codec, data[HEADER_SIZE:], QUICK_BYTES)
    except DecompressedTooLargeError:
        return False
    except (CorruptRecordError, UnsupportedCodecError):
        return True  # `check_records` fails immediately
    return True
