"""The client side of Produce and Fetch, hand-coded so that record bytes are never copied.

    Fetch request (v4 to v12), one partition
        i32 replica id -1 | i32 max wait ms | i32 min bytes | i32 max bytes | i8 isolation |
        i32 session id, i32 session epoch (from v7) |
        [ string topic |
          [ i32 partition | i32 leader epoch (from v9) | i64 fetch offset |
            i32 last fetched epoch (v12) | i64 log start offset (from v5) | i32 max bytes ] ] |
        [ forgotten topics ] (from v7) | string rack (from v11)

Session epoch -1 with session id 0 requests a full response without a session. Responses are
validated like requests: every length is checked against the remaining bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from strandlog.model import Buffer
from strandlog.protocol.kafka.headers import NO_TAGGED_FIELDS
from strandlog.protocol.kafka.produce_fetch_server import (
    FETCH_FLEXIBLE_FROM,
    PRODUCE_FLEXIBLE_FROM,
    Cursor,
    ProduceAnswer,
    array_length,
    nullable_text,
)

_INT32 = struct.Struct(">i")
_ACKS_TIMEOUT = struct.Struct(">hi")
_FETCH_HEAD = struct.Struct(">iiiib")
_NO_SESSION = struct.pack(">ii", 0, -1)
_FETCH_HEAD_ANSWER = struct.Struct(">hi")
_FETCHED = struct.Struct(">ihqqq")
_FETCHED_V4 = struct.Struct(">ihqq")
_ABORTED = struct.Struct(">qq")
_PRODUCED = struct.Struct(">ihqqq")
_PRODUCED_V3 = struct.Struct(">ihqq")
_FETCH_PARTITION = {4: ">iqi", 5: ">iqqi", 9: ">iiqqi", 12: ">iiqiqi"}


class FetchAsk(NamedTuple):
    """The fields of a Fetch request for one partition."""

    topic: str
    partition: int
    offset: int
    max_bytes: int
    isolation: int
    max_wait_ms: int
    min_bytes: int


class FetchedRecords(NamedTuple):
    """One partition of a Fetch response. The records may end in the middle of a batch."""

    topic: str
    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[tuple[int, int]]  # (producer id, first offset)
    records: memoryview


class FetchAnswer(NamedTuple):
    """A decoded Fetch response. It may have no partitions if the client is throttled."""

    throttle_ms: int
    error_code: int
    partitions: list[FetchedRecords]


def fetch_request(version: int, ask: FetchAsk) -> bytes:
    """Encode the body of a Fetch request for one partition."""
    is_flexible = version >= FETCH_FLEXIBLE_FROM
    tags = NO_TAGGED_FIELDS if is_flexible else b""
    one = b"\x02" if is_flexible else _INT32.pack(1)
    none = b"\x01" if is_flexible else _INT32.pack(0)
    parts = [
        _FETCH_HEAD.pack(-1, ask.max_wait_ms, ask.min_bytes, ask.max_bytes, ask.isolation),
        _NO_SESSION if version >= 7 else b"",
        *(one, nullable_text(ask.topic, is_flexible), one),
        _fetch_partition(version, ask),
        *(tags, tags),
        none if version >= 7 else b"",
        nullable_text("", is_flexible) if version >= 11 else b"",
        tags,
    ]
    return b"".join(parts)


def _fetch_partition(version: int, ask: FetchAsk) -> bytes:
    layout = _FETCH_PARTITION[max(first for first in _FETCH_PARTITION if first <= version)]
    fields = [ask.partition, ask.offset, ask.max_bytes]
    if version >= 5:
        fields.insert(2, -1)  # log start offset: only used by followers
    if version >= 12:
        fields.insert(2, -1)  # last fetched epoch: only used by followers
    if version >= 9:
        fields.insert(1, -1)  # leader epoch: unknown
    return struct.pack(layout, *fields)


def parse_fetch_response(version: int, frame: memoryview, position: int) -> FetchAnswer:
    """Decode a Fetch response; its records are views of the frame."""
    cursor = Cursor(frame, position, version >= FETCH_FLEXIBLE_FROM)
    (throttle_ms,) = cursor.fixed(_INT32)
    error_code = cursor.fixed(_FETCH_HEAD_ANSWER)[0] if version >= 7 else 0
    partitions: list[FetchedRecords] = []
    for _ in range(cursor.count()):
        topic = cursor.text() or ""
        for _ in range(cursor.count()):
            partitions.append(_fetched(cursor, version, topic))
            cursor.end_of_structure()
        cursor.end_of_structure()
    return FetchAnswer(throttle_ms, error_code, partitions)


def _fetched(cursor: Cursor, version: int, topic: str) -> FetchedRecords:
    if version >= 5:
        number, code, high_watermark, last_stable, start = cursor.fixed(_FETCHED)
    else:
        number, code, high_watermark, last_stable = cursor.fixed(_FETCHED_V4)
        start = -1
    aborted: list[tuple[int, int]] = []
    for _ in range(cursor.count()):
        producer_id, first_offset = cursor.fixed(_ABORTED)
        aborted.append((producer_id, first_offset))
        cursor.end_of_structure()
    if version >= 11:
        cursor.fixed(_INT32)  # preferred read replica
    records = cursor.sized(_INT32)
    return FetchedRecords(
        topic,
        number,
        code,
        high_watermark,
        last_stable,
        start,
        aborted,
        memoryview(b"") if records is None else records,
    )


def produce_request(
    version: int,
    transactional_id: str | None,
    acks: int,
    timeout_ms: int,
    topics: Mapping[str, Sequence[tuple[int, Buffer]]],
) -> list[Buffer]:
    """Encode the body of a Produce request as a list of buffers to be sent in order."""
    is_flexible = version >= PRODUCE_FLEXIBLE_FROM
    tags = NO_TAGGED_FIELDS if is_flexible else b""
    head = bytearray(nullable_text(transactional_id, is_flexible))
    head += _ACKS_TIMEOUT.pack(acks, timeout_ms) + array_length(len(topics), is_flexible)
    buffers: list[Buffer] = []
    for topic, partitions in topics.items():
        head += nullable_text(topic, is_flexible) + array_length(len(partitions), is_flexible)
        for number, records in partitions:
            head += _INT32.pack(number) + array_length(len(records), is_flexible)
            buffers += (head, records)
            head = bytearray(tags)
        head += tags
    buffers.append(head + tags)
    return buffers


def parse_produce_response(
    version: int, frame: memoryview, position: int
) -> list[tuple[str, ProduceAnswer]]:
    """Decode a Produce response into (topic, partition result) pairs."""
    cursor = Cursor(frame, position, version >= PRODUCE_FLEXIBLE_FROM)
    answers: list[tuple[str, ProduceAnswer]] = []
    for _ in range(cursor.count()):
        topic = cursor.text() or ""
        for _ in range(cursor.count()):
            answers.append((topic, _produced(cursor, version)))
            cursor.end_of_structure()
        cursor.end_of_structure()
    return answers


def _produced(cursor: Cursor, version: int) -> ProduceAnswer:
    if version < 5:
        number, code, base_offset, append_time = cursor.fixed(_PRODUCED_V3)
        return ProduceAnswer(number, code, base_offset, append_time)
    number, code, base_offset, append_time, start = cursor.fixed(_PRODUCED)
    message: str | None = None
    bad_records: list[int] = []
    if version >= 8:
        for _ in range(cursor.count()):
            bad_records.append(cursor.fixed(_INT32)[0])
            message = cursor.text() or message
            cursor.end_of_structure()
        message = cursor.text() or message
    return ProduceAnswer(number, code, base_offset, append_time, start, message, bad_records)
