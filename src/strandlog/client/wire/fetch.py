"""Fetches the raw batches of an offset range, requesting one chunk ahead.

`fetch` sends one request, and repeats it after a retriable error. `read_range` reads [start, end).
Each chunk determines the offset of the next one, so the broker can prepare the next chunk while the
caller processes the current one.

    receive 1 │ request 2 │ yield 1 ...... │ receive 2 │ request 3 │ yield 2 ...

A chunk contains only complete batches, none of which starts at or after `end`. The first batch can
start before `start` and the last can extend past `end`; the decoder drops records outside the
range. Control batches are included. Offsets can be missing (compaction, transactions), even the
last ones: the range is complete when the position has reached `end`, or when `end` is readable and
several consecutive responses were empty.

The request size adapts to the average record size of the previous chunk, so that the last request
does not fetch many records past the end of the range.
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from typing import NamedTuple

from strandlog.client.wire.cluster import Cluster, RetriableBrokerError, broker_error
from strandlog.client.wire.connection import Reply
from strandlog.client.wire.offsets import offset_range
from strandlog.clock import Clock, pause
from strandlog.errors import CorruptRecordError, OffsetOutOfRangeError, UnreachableError
from strandlog.model import IsolationLevel, TopicPartition
from strandlog.protocol.kafka.api import FETCH
from strandlog.protocol.kafka.produce_fetch_client import (
    FetchAsk,
    fetch_request,
    parse_fetch_response,
)
from strandlog.record.batch_header import HEADER_SIZE, LOG_OVERHEAD

OFFSET_OUT_OF_RANGE = 1
FIRST_PIECE_BYTES = 1024 * 1024
MIN_PIECE_BYTES = 64 * 1024
SPARE = 1.25  # safety factor, because records differ in size
MAX_EMPTY_RESPONSES = 3
WAIT_FOR_REST_MS = 500

# base offset, batch length, (leader epoch … attributes), last offset delta
_BATCH_START = struct.Struct(">qi11xi")


class RawFetch(NamedTuple):
    """Complete raw batches, and the metadata that a reader needs."""

    tp: TopicPartition
    data: memoryview
    next_offset: int  # start of the next chunk
    aborted: list[tuple[int, int]]  # (producer id, first offset) of each aborted transaction
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int


class RangeFetcher:
    """Fetches raw batches for one client."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock

    def fetch(self, tp: TopicPartition, ask: FetchAsk) -> RawFetch:
        """Send one request, with retries, and return the response, which may be empty.

        Raise `OffsetOutOfRangeError`, with the valid range, if the offset is out of range.
        """
        return self._cluster.retry(lambda: self._take(tp, ask, self._send(tp, ask)))

    def read_range(
        self, tp: TopicPartition, start: int, end: int, isolation: IsolationLevel
    ) -> Generator[RawFetch, None, None]:
        """Yield chunks up to `end`; raise `UnreachableError` if `end` does not become readable."""
        max_bytes = self._cluster.options.number("max.partition.fetch.bytes")
        ask = FetchAsk(*tp, start, min(FIRST_PIECE_BYTES, max_bytes), isolation, 0, 1)
        progress = _Progress(self._cluster, self._clock)
        ahead: Reply | None = None
        try:
            while ask.offset < end:
                chunk = self._next(tp, ask, ahead)
                ahead = None
                if chunk.next_offset == ask.offset:
                    if progress.is_over(chunk, end, isolation):
                        return
                    ask = ask._replace(max_wait_ms=progress.wait_ms)
                    continue
                progress.made()
                size = _next_max_bytes(chunk, ask.offset, end, max_bytes)
                ask = ask._replace(offset=chunk.next_offset, max_bytes=size, max_wait_ms=0)
                if ask.offset < end:
                    ahead = self._try_send(tp, ask)
                chunk = cut_at(chunk, end)
                if chunk.data:
                    yield chunk
        finally:
            if ahead is not None:
                ahead.forget()

    def _next(self, tp: TopicPartition, ask: FetchAsk, ahead: Reply | None) -> RawFetch:
        """Return the response to the request `ask`; `ahead` is its reply if it has been sent."""
        if ahead is not None:
            try:
                return self._take(tp, ask, ahead)
            except UnreachableError:
                pass  # fetch retries
        return self.fetch(tp, ask)

    def _try_send(self, tp: TopicPartition, ask: FetchAsk) -> Reply | None:
        try:
            return self._send(tp, ask)
        except UnreachableError:
            return None  # the caller yields the data that it has, then retries

    def _send(self, tp: TopicPartition, ask: FetchAsk) -> Reply:
        try:
            connection = self._cluster.connection_to(self._cluster.leader_of(tp))
            return connection.send(FETCH.key, [fetch_request(connection.version(FETCH.key), ask)])
        except UnreachableError:
            self._cluster.forget_topic(tp.topic)
            raise

    def _take(self, tp: TopicPartition, ask: FetchAsk, reply: Reply) -> RawFetch:
        try:
            frame, position = reply.wait(ask.max_wait_ms)
        except UnreachableError:
            self._cluster.forget_topic(tp.topic)
            raise
        answer = parse_fetch_response(reply.version, frame, position)
        if answer.error_code:
            raise broker_error(answer.error_code, f"reading {tp}", needs="READ on the topic")
        if not answer.partitions:
            if not answer.throttle_ms:
                raise RetriableBrokerError(f"reading {tp}: the response omits the partition", -1)
            pause(answer.throttle_ms / 1000)
            raise RetriableBrokerError(f"reading {tp}: throttled for {answer.throttle_ms} ms", -1)
        [found] = answer.partitions
        if found.error_code == OFFSET_OUT_OF_RANGE:
            first, end = offset_range(self._cluster, tp, IsolationLevel(ask.isolation))
            raise OffsetOutOfRangeError(*tp, ask.offset, first, end)
        if found.error_code:
            self._cluster.forget_topic(tp.topic)
            about = f"reading {tp} at offset {ask.offset}"
            raise broker_error(found.error_code, about, needs="READ on the topic")
        size, next_offset = whole_batches(found.records, ask.offset)
        return RawFetch(
            tp,
            found.records[:size],
            next_offset,
            found.aborted,
            found.high_watermark,
            found.last_stable_offset,
            found.log_start_offset,
        )


class _Progress:
    """Decides whether a range is complete when responses contain no records."""

    wait_ms = WAIT_FOR_REST_MS

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._clock = clock
        self._patience_ms = cluster.options.number("default.api.timeout.ms")
        self.made()

    def made(self) -> None:
        """Restart the deadline and the count of empty responses, because records have arrived."""
        self._empty_responses = 0
        self._deadline_ms = self._clock.monotonic_ms() + self._patience_ms

    def is_over(self, chunk: RawFetch, end: int, isolation: IsolationLevel) -> bool:
        """Return whether no records remain below `end`; raise if `end` stays unreadable."""
        is_committed = isolation is IsolationLevel.READ_COMMITTED
        readable = chunk.last_stable_offset if is_committed else chunk.high_watermark
        if readable >= end:
            self._empty_responses += 1
            return self._empty_responses >= MAX_EMPTY_RESPONSES
        if self._clock.monotonic_ms() >= self._deadline_ms:
            what = "a transaction is still open, or records are missing" if is_committed else ""
            raise UnreachableError(
                f"{chunk.tp} is readable up to offset {readable}, not up to {end}; "
                f"{what or 'records are missing'} (waited {self._patience_ms} ms)"
            )
        return False


def whole_batches(data: memoryview, offset: int) -> tuple[int, int]:
    """Return (size of the complete batches in `data`, next offset)."""
    position, size, next_offset = 0, len(data), offset
    unpack = _BATCH_START.unpack_from
    while size - position >= HEADER_SIZE:
        base_offset, length, delta = unpack(data, position)
        if length < HEADER_SIZE - LOG_OVERHEAD:
            raise CorruptRecordError(
                f"the batch at or after offset {next_offset} has an invalid length: {length} "
                "bytes; it was damaged in transit or on the broker's disk"
            )
        end = position + LOG_OVERHEAD + length
        if end > size:
            break
        position = end
        next_offset = max(next_offset, base_offset + delta + 1)
    return position, next_offset


def cut_at(chunk: RawFetch, end_offset: int) -> RawFetch:
    """Return the chunk without the batches that start at or after an offset."""
    if chunk.next_offset <= end_offset:
        return chunk
    position, data = 0, chunk.data
    while position < len(data):
        base_offset, length, _ = _BATCH_START.unpack_from(data, position)
        if base_offset >= end_offset:
            break
        position += LOG_OVERHEAD + length
    return chunk._replace(data=data[:position])


def _next_max_bytes(chunk: RawFetch, offset: int, end: int, max_bytes: int) -> int:
    """Return the max_bytes of the next request, so that it fetches little beyond `end`."""
    record_bytes = len(chunk.data) / max(1, chunk.next_offset - offset)
    rest_bytes = int(record_bytes * (end - chunk.next_offset) * SPARE)
    return min(max(rest_bytes, MIN_PIECE_BYTES), max_bytes)
