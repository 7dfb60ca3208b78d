"""Builds the bytes of a batch from records.

There are four ways to build a batch. The first three return the same bytes for the same records:

    BatchBuilder    adds one record at a time, and bounds the size of the batch in advance
    build_batch     encodes many records together, column by column; the fastest way
    build_single    encodes one record, for a producer that does not wait for more
    filtered_batch  keeps some records of an existing batch, for compaction

Invariants of the first three: offset deltas are 0, 1, 2 … in record order; base_timestamp is the
first record's timestamp; max_timestamp is the largest timestamp, or the append time; no batch is
empty. `filtered_batch` keeps the original offset deltas, keeps or replaces base_timestamp, and may
create an empty batch. As in Java, the codec is used even if it does not make the batch smaller, so
that the header contains the requested codec.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from strandlog.errors import InvalidRecordError, InvalidTimestampError
from strandlog.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, Headers, Record
from strandlog.record.batch_header import (
    APPEND_TIME_BIT,
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    TRANSACTIONAL_BIT,
    BatchHeader,
    seal,
    sealed_single,
)
from strandlog.record.codecs import Codec, compress, max_compressed_size
from strandlog.record.record import encode_record
from strandlog.record.record_encoder import batch_parts, single_parts
from strandlog.record.varint import MAX_INT64, MIN_INT64

NO_LEADER_EPOCH: Final = -1

_NO_CODEC: Final = Codec.NONE  # looking up Codec.NONE takes longer than the comparison
_BLANK_HEADER: Final = bytes(HEADER_SIZE)


class BatchBuilder:
    """Collects records for one batch."""

    __slots__ = (
        "_append_time_ms",
        "_attributes",
        "_base_offset",
        "_base_sequence",
        "_base_timestamp",
        "_codec",
        "_leader_epoch",
        "_max_timestamp",
        "_parts",
        "_payload_bytes",
        "_producer_epoch",
        "_producer_id",
    )

    def __init__(
        self,
        codec: Codec = Codec.NONE,
        *,
        base_offset: int = 0,
        leader_epoch: int = NO_LEADER_EPOCH,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        is_transactional: bool = False,
        append_time_ms: int | None = None,
    ) -> None:
        self._codec = codec
        self._attributes = _attributes(codec, is_transactional, append_time_ms is not None)
        self._append_time_ms = append_time_ms
        self._base_offset = base_offset
        self._leader_epoch = leader_epoch
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch
        self._base_sequence = base_sequence
        self._base_timestamp = 0
        self._max_timestamp = 0
        self._parts: list[bytes] = []
        self._payload_bytes = 0

    @property
    def record_count(self) -> int:
        return len(self._parts)

    @property
    def size_bytes(self) -> int:
        """Size of the batch: exact without a codec, an upper bound with one."""
        return HEADER_SIZE + max_compressed_size(self._codec, self._payload_bytes)

    def append(
        self,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> None:
        """Add a record to the end of the batch. If this raises, the batch is unchanged."""
        parts = self._parts
        if not parts:
            self._base_timestamp = self._max_timestamp = timestamp
        delta = timestamp - self._base_timestamp
        if not MIN_INT64 <= delta <= MAX_INT64:
            raise InvalidTimestampError(
                f"the difference between timestamp {timestamp} and the first timestamp of the "
                f"batch, {self._base_timestamp}, does not fit in 64 bits"
            )
        record = encode_record(delta, len(parts), key, value, headers)
        parts.append(record)
        if timestamp > self._max_timestamp:
            self._max_timestamp = timestamp
        self._payload_bytes += len(record)

    def build(self) -> bytearray:
        """Return a batch of all added records."""
        count = len(self._parts)
        if count == 0:
            raise InvalidRecordError("a batch needs at least one record")
        batch = _joined(self._parts.copy(), self._codec)
        append_time_ms = self._append_time_ms
        seal(
            batch,
            self._base_offset,
            self._leader_epoch,
            self._attributes,
            count - 1,
            self._base_timestamp,
            self._max_timestamp if append_time_ms is None else append_time_ms,
            self._producer_id,
            self._producer_epoch,
            self._base_sequence,
            count,
        )
        return batch


def build_batch(
    timestamp_ms: int,
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Headers] | None = None,
    *,
    codec: Codec = Codec.NONE,
    timestamps: Sequence[int] | None = None,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    append_time_ms: int | None = None,
) -> bytearray:
    """Build one batch from columns. All columns that are given must have the same length.

    Every record has the timestamp `timestamp_ms`, unless `timestamps` is given.
    """
    count = len(values)
    if count == 0:
        raise InvalidRecordError("a batch needs at least one record")
    for column in (keys, headers, timestamps):
        assert column is None or len(column) == count, (
            "all columns of a batch must have the same length"
        )
    base_timestamp = max_timestamp = timestamp_ms
    if timestamps is not None:
        base_timestamp, max_timestamp = timestamps[0], max(timestamps)
    if count == 1:
        key = None if keys is None else keys[0]
        parts = single_parts(values[0], key, () if headers is None else headers[0])
    else:
        parts = batch_parts(base_timestamp, values, keys, headers, timestamps)
    batch = _joined(parts, codec)
    seal(
        batch,
        base_offset,
        leader_epoch,
        _attributes(codec, is_transactional, append_time_ms is not None),
        count - 1,
        base_timestamp,
        max_timestamp if append_time_ms is None else append_time_ms,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    return batch


def build_single(
    timestamp_ms: int,
    value: bytes | None,
    key: bytes | None = None,
    headers: Headers = (),
    *,
    codec: Codec = Codec.NONE,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
    append_time_ms: int | None = None,
) -> bytearray:
    """Build a batch of one record."""
    parts = single_parts(value, key, headers)
    attributes = CONTROL_BIT if is_control else 0
    if codec is not _NO_CODEC:
        parts = [compress(codec, b"".join(parts))]
    if codec is not _NO_CODEC or is_transactional or append_time_ms is not None:
        attributes |= _attributes(codec, is_transactional, append_time_ms is not None)
    return sealed_single(
        parts,
        base_offset,
        leader_epoch,
        attributes,
        timestamp_ms,
        timestamp_ms if append_time_ms is None else append_time_ms,
        producer_id,
        producer_epoch,
        base_sequence,
    )


def filtered_batch(
    header: BatchHeader, records: Sequence[Record], *, delete_horizon_ms: int | None = None
) -> bytearray:
    """Rebuild the batch of `header` with only `records`, at their original offsets.

    `delete_horizon_ms` is the time from which tombstones in the batch may be removed (KIP-534). It
    replaces base_timestamp, and the timestamp deltas are relative to it. If it is not given, an
    existing horizon is kept.
    """
    attributes = header.attributes
    base_timestamp = header.base_timestamp
    if delete_horizon_ms is not None:
        attributes |= DELETE_HORIZON_BIT
        base_timestamp = delete_horizon_ms
    max_timestamp = header.max_timestamp
    codec = header.codec
    if records:
        max_timestamp = max(record.timestamp for record in records)
    else:
        # Some readers decompress before they check the count, and fail on empty compressed data.
        # Kafka also clears the codec.
        attributes &= ~CODEC_MASK
        codec = Codec.NONE
    parts = [
        encode_record(
            _wrapped(record.timestamp - base_timestamp),
            record.offset - header.base_offset,
            record.key,
            record.value,
            record.headers,
        )
        for record in records
    ]
    batch = _joined(parts, codec)
    seal(
        batch,
        header.base_offset,
        header.leader_epoch,
        attributes,
        header.last_offset_delta,
        base_timestamp,
        max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        len(records),
    )
    return batch


def _wrapped(delta: int) -> int:
    """Wrap a delta to 64 bits as Java does, so that a reader that wraps the sum in the same way
    restores the timestamp."""
    return (delta - MIN_INT64) % (1 << 64) + MIN_INT64


def _joined(parts: list[bytes], codec: Codec) -> bytearray:
    """Return space for the header followed by the compressed parts. May modify `parts`."""
    if codec is not _NO_CODEC:
        parts = [compress(codec, b"".join(parts))]
    parts.insert(0, _BLANK_HEADER)
    return bytearray().join(parts)


def _attributes(codec: Codec, is_transactional: bool, is_append_time: bool) -> int:
    attributes = int(codec)
    if is_transactional:
        attributes |= TRANSACTIONAL_BIT
    if is_append_time:
        attributes |= APPEND_TIME_BIT
    return attributes
