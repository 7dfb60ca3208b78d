"""Batches with a correct checksum and wrong records, as a faulty producer sends them."""

from __future__ import annotations

import struct

from tests.support.log_builders import START_MS

from strandlog.record.batch_header import (
    ATTRIBUTES_POSITION,
    BATCH_LENGTH_POSITION,
    CRC_POSITION,
    CRC_START,
    HEADER_SIZE,
    LAST_OFFSET_DELTA_POSITION,
    LOG_OVERHEAD,
    RECORD_COUNT_POSITION,
)
from strandlog.record.builder import build_batch
from strandlog.record.checksum import crc32c
from strandlog.record.codecs import Codec, compress
from strandlog.record.record import encode_record

MOST = 2**31 - 1


def raw_batch(
    payload: bytes, count: int = 1, codec: Codec = Codec.NONE, timestamp: int = START_MS
) -> bytes:
    """A batch of any payload, as long as its header says and with a checksum that matches."""
    data = bytearray(build_batch(timestamp, [b"v"])[:HEADER_SIZE]) + payload
    struct.pack_into(">i", data, BATCH_LENGTH_POSITION, len(data) - LOG_OVERHEAD)
    struct.pack_into(">h", data, ATTRIBUTES_POSITION, codec)
    struct.pack_into(">i", data, LAST_OFFSET_DELTA_POSITION, (count - 1 + 2**31) % 2**32 - 2**31)
    struct.pack_into(">i", data, RECORD_COUNT_POSITION, count)
    struct.pack_into(">I", data, CRC_POSITION, crc32c(bytes(data[CRC_START:])))
    return bytes(data)


_ONE, _TWO = encode_record(0, 0, b"k", b"one"), encode_record(0, 1, b"k", b"two")

# Detected from the header alone.
BAD_COUNTS = {
    "the largest count": raw_batch(_ONE, MOST),
    "the largest count, compressed": raw_batch(compress(Codec.ZSTD, _ONE), MOST, Codec.ZSTD),
    "a count that the bytes cannot hold": raw_batch(_ONE * 2, len(_ONE) * 2 // 7 + 1),
    "no records": raw_batch(b"", 0),
    "a negative count": raw_batch(_ONE, -1),
    "the smallest count": raw_batch(_ONE, -(2**31)),
}

# Detected only by decoding the records.
BAD_RECORDS = {
    "garbage inside gzip": raw_batch(b"no gzip at all", 1, Codec.GZIP),
    "garbage inside snappy": raw_batch(b"\xff" * 20, 1, Codec.SNAPPY),
    "garbage inside lz4": raw_batch(b"no lz4 at all", 1, Codec.LZ4),
    "garbage inside zstd": raw_batch(b"no zstd at all", 1, Codec.ZSTD),
    "gzip that is cut off": raw_batch(compress(Codec.GZIP, _ONE)[:-5], 1, Codec.GZIP),
    "gzip of garbage": raw_batch(compress(Codec.GZIP, b"\xff" * 40), 2, Codec.GZIP),
    "the first offset delta is 1": raw_batch(_TWO + _TWO, 2),
    "the same offset delta twice": raw_batch(_ONE + _ONE, 2),
    "offset deltas that go back": raw_batch(_TWO + _ONE, 2),
    "a negative offset delta": raw_batch(encode_record(0, -1, b"k", b"v"), 1),
    "an offset delta after the end": raw_batch(encode_record(0, 5, b"k", b"v"), 1),
    "one record less than counted": raw_batch(_ONE + b"\0" * 10, 2),
    "one record more than counted": raw_batch(_ONE + _TWO, 1),
    "a record longer than the batch": raw_batch(b"\x7e" + _ONE[1:], 1),
    "a record shorter than its fields": raw_batch(b"\x0c" + _ONE[1:], 1),
    "a negative record length": raw_batch(b"\x03" + _ONE[1:], 1),
    "a varint of eleven bytes": raw_batch(b"\xff" * 10 + b"\x01" + _ONE, 1),
    "a varint over 64 bits": raw_batch(b"\xff" * 9 + b"\x7f" + _ONE, 1),
    "a key length of -2": raw_batch(b"\x0c\0\0\0\x03\x01\0", 1),
    "a value longer than its record": raw_batch(b"\x0c\0\0\0\x01\x7e\0", 1),
    "a negative header count": raw_batch(b"\x0c\0\0\0\x01\x01\x01", 1),
    "a million headers": raw_batch(b"\x10\0\0\0\x01\x01\x80\x89\x7a", 1),
    "a header without a name": raw_batch(b"\x10\0\0\0\x01\x01\x02\x01\x01", 1),
}

POISON = BAD_COUNTS | BAD_RECORDS
