"""Hand-coded decoder for Produce requests and encoders for Produce and Fetch responses. They never
copy record bytes: a request contains views of its frame, and a response the buffers passed in.

    Produce request (v3 to v13)
        nullable string transactional id | i16 acks | i32 timeout ms |
        [ string topic (uuid from v13) | [ i32 partition | nullable bytes records ] ]

    Produce response (v3 to v13)
        [ string topic (uuid from v13) |
          [ i32 partition | i16 error | i64 base offset | i64 append time |
            i64 log start offset (from v5) |
            [ i32 number | nullable string ], nullable string (from v8) ] ] |
        i32 throttle ms

    Fetch response (v4 to v18)
        i32 throttle ms | i16 error, i32 session id (from v7) |
        [ string topic (uuid from v13) |
          [ i32 partition | i16 error | i64 high watermark | i64 last stable offset |
            i64 log start offset (from v5) | nullable [ i64 producer id | i64 first offset ] |
            i32 preferred read replica (from v11) | nullable bytes records ] ]

From Produce v9 and Fetch v12 on, strings, arrays and bytes are compact, and structures end with
tagged fields. Every length is checked against the remaining bytes before anything is allocated.
The client side is in produce_fetch_client.py; decoder.py decodes Fetch requests.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Sequence
from typing import NamedTuple
from uuid import UUID

from strandlog.config.limits.kafka import MAX_STRING_BYTES
from strandlog.errors import DataError, shortened
from strandlog.model import Buffer, PartitionRecords, TopicRef
from strandlog.protocol.kafka.headers import (
    NO_TAGGED_FIELDS,
    read_unsigned_varint,
    skip_tagged_fields,
    unsigned_varint,
)

MAX_ELEMENTS = 1_000_000  # default limit on the items in all arrays of a message

PRODUCE_FLEXIBLE_FROM = 9
PRODUCE_TOPIC_IDS_FROM = 13
FETCH_FLEXIBLE_FROM = 12
FETCH_TOPIC_IDS_FROM = 13

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_ACKS_TIMEOUT = struct.Struct(">hi")
_SMALLEST_ELEMENT_BYTES = 3


class ProduceRequest(NamedTuple):
    """A decoded Produce request."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    partitions: list[PartitionRecords]


class FetchedPartition(NamedTuple):
    """One partition of a Fetch response."""

    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: Sequence[tuple[int, int]] | None  # (producer id, first offset), sorted by first offset
    records: Sequence[Buffer]


class Cursor:
    """Reads one message from start to end."""

    __slots__ = ("_left", "frame", "is_flexible", "position")

    def __init__(
        self,
        frame: memoryview,
        position: int,
        is_flexible: bool,
        max_elements: int = MAX_ELEMENTS,
    ) -> None:
        self._left = max_elements
        self.frame = frame
        self.position = position
        self.is_flexible = is_flexible

    def fixed(self, layout: struct.Struct) -> tuple[int, ...]:
        try:
            values = layout.unpack_from(self.frame, self.position)
        except struct.error as error:
            raise DataError("the message is truncated") from error
        self.position += layout.size
        return values

    def _length(self, layout: struct.Struct) -> int:
        if self.is_flexible:
            length, self.position = read_unsigned_varint(self.frame, self.position)
            return length - 1
        return self.fixed(layout)[0]

    def sized(self, layout: struct.Struct) -> memoryview | None:
        """Read length-prefixed bytes; return None for null."""
        length = self._length(layout)
        if length < 0:
            return None
        end = self.position + length
        if end > len(self.frame):
            raise DataError(
                f"a length of {length} bytes is given, but only "
                f"{len(self.frame) - self.position} remain"
            )
        data = self.frame[self.position : end]
        self.position = end
        return data

    def text(self) -> str | None:
        data = self.sized(_INT16)
        if data is None:
            return None
        if len(data) > MAX_STRING_BYTES:
            raise DataError(
                f"a string of {len(data)} bytes exceeds the limit of {MAX_STRING_BYTES}"
            )
        return str(data, "utf-8", "replace")

    def count(self) -> int:
        """Read the length of an array; raise `DataError` if that many items cannot fit."""
        count = self._length(_INT32)
        if count * _SMALLEST_ELEMENT_BYTES > len(self.frame) - self.position:
            raise DataError(f"an array of {count} elements does not fit into its message")
        count = max(count, 0)  # a null array has no items
        self._left -= count
        if self._left < 0:
            raise DataError(
                "a message has more elements than the limit, which is request.max.elements for "
                "requests"
            )
        return count

    def uuid(self) -> UUID:
        data = self.frame[self.position : self.position + 16]
        if len(data) < 16:
            raise DataError("the message is truncated")
        self.position += 16
        return UUID(bytes=bytes(data))

    def end_of_structure(self) -> None:
        if self.is_flexible:
            self.position = skip_tagged_fields(self.frame, self.position)


# The layouts of a non-transactional request for one partition, before the topic name and between
# the name and the records. Nearly all requests of librdkafka and small producers have this form.
_SINGLE = struct.Struct(">hhiih")
_SINGLE_PARTITION = struct.Struct(">iii")
_SINGLE_COMPACT = struct.Struct(">BhiBB")
_SINGLE_COMPACT_PARTITION = struct.Struct(">Bi")
_END_OF_SINGLE_COMPACT = NO_TAGGED_FIELDS * 3
_new_tuple = tuple.__new__  # calling the named tuple class takes three times as long


def parse_single_produce(version: int, frame: memoryview, position: int) -> ProduceRequest | None:
    """Decode a request of the common form for one partition; return None for any other form."""
    try:
        if version < PRODUCE_FLEXIBLE_FROM:
            return _parse_single(frame, position)
        if version < PRODUCE_TOPIC_IDS_FROM:
            return _parse_single_compact(frame, position)
    except struct.error:  # too short for this form, but another may match
        return None
    return None


def _parse_single(frame: memoryview, position: int) -> ProduceRequest | None:
    """Decode a request with the layout `_SINGLE`; return None for any other layout."""
    no_id, acks, timeout_ms, topics, length = _SINGLE.unpack_from(frame, position)
    if no_id != -1 or topics != 1 or length < 0:
        return None
    begin = position + _SINGLE.size
    end = begin + length
    partitions, number, size = _SINGLE_PARTITION.unpack_from(frame, end)
    records_at = end + _SINGLE_PARTITION.size
    if partitions != 1 or size < 0 or records_at + size != len(frame):
        return None
    return _single(acks, timeout_ms, frame[begin:end], number, frame[records_at:])


def _parse_single_compact(frame: memoryview, position: int) -> ProduceRequest | None:
    """Decode a request like `_parse_single`, for compact types without tagged fields."""
    no_id, acks, timeout_ms, topics, length = _SINGLE_COMPACT.unpack_from(frame, position)
    if no_id != 0 or topics != 1 + 1 or not 0 < length < 0x80:
        return None
    begin = position + _SINGLE_COMPACT.size
    end = begin + length - 1
    partitions, number = _SINGLE_COMPACT_PARTITION.unpack_from(frame, end)
    if partitions != 1 + 1:
        return None
    size, records_at = read_unsigned_varint(frame, end + _SINGLE_COMPACT_PARTITION.size)
    records_end = records_at + size - 1
    if size == 0 or frame[records_end:] != _END_OF_SINGLE_COMPACT:
        return None
    return _single(acks, timeout_ms, frame[begin:end], number, frame[records_at:records_end])


def _single(
    acks: int, timeout_ms: int, topic: memoryview, number: int, records: memoryview
) -> ProduceRequest:
    part = _new_tuple(PartitionRecords, (str(topic, "utf-8", "replace"), number, records))
    return _new_tuple(ProduceRequest, (None, acks, timeout_ms, [part]))


def parse_produce_steps(
    version: int, frame: memoryview, position: int, max_elements: int = MAX_ELEMENTS
) -> Generator[None, None, ProduceRequest]:
    """Decode a Produce request of any form, yielding after each partition."""
    cursor = Cursor(frame, position, version >= PRODUCE_FLEXIBLE_FROM, max_elements)
    transactional_id = cursor.text()
    acks, timeout_ms = cursor.fixed(_ACKS_TIMEOUT)
    partitions: list[PartitionRecords] = []
    for _ in range(cursor.count()):
        by_id = version >= PRODUCE_TOPIC_IDS_FROM
        topic: TopicRef = cursor.uuid() if by_id else cursor.text() or ""
        for _ in range(cursor.count()):
            (number,) = cursor.fixed(_INT32)
            partitions.append(PartitionRecords(topic, number, cursor.sized(_INT32)))
            cursor.end_of_structure()
            yield
        cursor.end_of_structure()
        yield
    cursor.end_of_structure()
    return ProduceRequest(transactional_id, acks, timeout_ms, partitions)


class ProduceAnswer(NamedTuple):
    """The result of a Produce request for one partition."""

    partition: int
    error_code: int
    base_offset: int = -1
    log_append_time: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    bad_records: Sequence[int] = ()  # indexes in the batch, if individual records were rejected


_PRODUCED = struct.Struct(">ihqqq")
_PRODUCED_V3 = struct.Struct(">ihqq")
_NO_ERRORS = _INT32.pack(0) + _INT16.pack(-1)
_NO_ERRORS_COMPACT = b"\1\0"


def produce_response(
    version: int,
    topics: Sequence[tuple[TopicRef, Sequence[ProduceAnswer]]],
    throttle_ms: int = 0,
) -> bytes:
    """Encode the body of a Produce response."""
    steps = produce_response_steps(version, topics, throttle_ms)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            body: bytes = end.value
            return body


def produce_response_steps(
    version: int,
    topics: Sequence[tuple[TopicRef, Sequence[ProduceAnswer]]],
    throttle_ms: int = 0,
) -> Generator[None, None, bytes]:
    """Encode the body of a Produce response, yielding after each partition."""
    is_flexible = version >= PRODUCE_FLEXIBLE_FROM
    tags = NO_TAGGED_FIELDS if is_flexible else b""
    parts = [array_length(len(topics), is_flexible)]
    for topic, answers in topics:
        by_id = version >= PRODUCE_TOPIC_IDS_FROM
        parts += (_topic(topic, is_flexible, by_id=by_id), array_length(len(answers), is_flexible))
        for answer in answers:
            yield
            if version < 5:
                parts.append(_PRODUCED_V3.pack(*answer[:4]))
                continue
            parts.append(_PRODUCED.pack(*answer[:5]))
            if version >= 8 and answer.error_message is None and not answer.bad_records:
                parts.append(_NO_ERRORS_COMPACT if is_flexible else _NO_ERRORS)
            elif version >= 8:
                parts.append(array_length(len(answer.bad_records), is_flexible))
                for number in answer.bad_records:
                    parts += (_INT32.pack(number), nullable_text(None, is_flexible), tags)
                message = answer.error_message and shortened(answer.error_message)
                parts.append(nullable_text(message, is_flexible))
            parts.append(tags)
        parts.append(tags)
    parts += (_INT32.pack(throttle_ms), tags)
    return b"".join(parts)


# The fixed parts of a Produce response for one partition without an error: before the topic name,
# between the name and the result, and after the result.
_ONE_TOPIC = struct.Struct(">ih")
_ONE = _INT32.pack(1)
_ONE_COMPACT = b"\2"
_END_OF_ONE = _NO_ERRORS + _INT32.pack(0)
_END_OF_ONE_COMPACT = _NO_ERRORS_COMPACT + NO_TAGGED_FIELDS * 2 + _INT32.pack(0) + NO_TAGGED_FIELDS


def single_produce_response(
    version: int,
    topic: str,
    partition: int,
    base_offset: int,
    log_append_time: int,
    log_start_offset: int,
) -> bytes:
    """Encode the body of a Produce response for a single partition, given by the topic's name,
    without an error or a throttle time. Nearly all responses to small producers have this form, and
    `produce_response` takes four times as long."""
    name = topic.encode()
    if version >= PRODUCE_FLEXIBLE_FROM:
        head = _ONE_COMPACT + unsigned_varint(len(name) + 1) + name + _ONE_COMPACT
        end = _END_OF_ONE_COMPACT
    else:
        head = _ONE_TOPIC.pack(1, len(name)) + name + _ONE
        end = _END_OF_ONE if version >= 8 else _INT32.pack(0)
    if version < 5:
        return head + _PRODUCED_V3.pack(partition, 0, base_offset, log_append_time) + end
    result = _PRODUCED.pack(partition, 0, base_offset, log_append_time, log_start_offset)
    return head + result + end


def nullable_text(text: str | None, is_flexible: bool) -> bytes:
    """Encode a nullable string with its length prefix."""
    if text is None:
        return b"\0" if is_flexible else _INT16.pack(-1)
    data = text.encode()
    return (unsigned_varint(len(data) + 1) if is_flexible else _INT16.pack(len(data))) + data


_FETCHED = struct.Struct(">ihqqq")
_FETCHED_V4 = struct.Struct(">ihqq")
_ABORTED = struct.Struct(">qq")
_NO_PREFERRED_REPLICA = _INT32.pack(-1)


def fetch_response(
    version: int,
    topics: Sequence[tuple[TopicRef, Sequence[FetchedPartition]]],
    error_code: int = 0,
    session_id: int = 0,
) -> list[Buffer]:
    """Encode the body of a Fetch response as a list of buffers to be written in order."""
    steps = fetch_response_steps(version, topics, error_code, session_id)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            buffers: list[Buffer] = end.value
            return buffers


def fetch_response_steps(
    version: int,
    topics: Sequence[tuple[TopicRef, Sequence[FetchedPartition]]],
    error_code: int = 0,
    session_id: int = 0,
) -> Generator[None, None, list[Buffer]]:
    """Encode the body of a Fetch response, yielding after each partition."""
    is_flexible = version >= FETCH_FLEXIBLE_FROM
    tags = NO_TAGGED_FIELDS if is_flexible else b""
    head = bytearray(_INT32.pack(0))
    if version >= 7:
        head += _INT16.pack(error_code) + _INT32.pack(session_id)
    head += array_length(len(topics), is_flexible)
    buffers: list[Buffer] = []
    for topic, partitions in topics:
        head += _topic(topic, is_flexible, by_id=version >= FETCH_TOPIC_IDS_FROM)
        head += array_length(len(partitions), is_flexible)
        for partition in partitions:
            head += _partition_head(partition, version, is_flexible)
            size = sum(map(len, partition.records))
            head += unsigned_varint(size + 1) if is_flexible else _INT32.pack(size)
            buffers.append(head)
            buffers += partition.records
            head = bytearray(tags)
            yield
        head += tags
    buffers.append(head + tags)
    return buffers


def set_fetch_throttle(buffers: Sequence[Buffer], throttle_ms: int) -> None:
    """Set the throttle time of an encoded Fetch response. The throttle time depends on the size of
    the response, so it is known only after encoding."""
    head = buffers[0]
    assert isinstance(head, bytearray)
    _INT32.pack_into(head, 0, throttle_ms)


def array_length(count: int, is_flexible: bool) -> bytes:
    """Encode the length of an array or of a byte string."""
    return unsigned_varint(count + 1) if is_flexible else _INT32.pack(count)


def _topic(topic: TopicRef, is_flexible: bool, *, by_id: bool) -> bytes:
    if by_id:
        assert isinstance(topic, UUID)
        return topic.bytes
    assert isinstance(topic, str)
    name = topic.encode()
    length = unsigned_varint(len(name) + 1) if is_flexible else _INT16.pack(len(name))
    return length + name


def _partition_head(partition: FetchedPartition, version: int, is_flexible: bool) -> bytes:
    has_log_start = version >= 5
    head = _FETCHED.pack(*partition[:5]) if has_log_start else _FETCHED_V4.pack(*partition[:4])
    aborted = partition.aborted
    if aborted is None:
        head += b"\0" if is_flexible else _INT32.pack(-1)
    else:
        tags = NO_TAGGED_FIELDS if is_flexible else b""
        head += array_length(len(aborted), is_flexible)
        head += b"".join(_ABORTED.pack(*transaction) + tags for transaction in aborted)
    if version >= 11:
        head += _NO_PREFERRED_REPLICA
    return head
