"""Raw batches off the leaders, one partition at a time.

`fetch` asks once. `read_range` gives a whole range [start, end): while somebody works on one piece,
the broker already prepares the next, for its offset is known as soon as a piece is here.

    piece 1 arrives │ ask for 2 │ hand out 1 ...... │ take in 2 │ ask for 3 │ hand out 2 ...

What a piece holds: whole batches only, none that begins at or after `end`. The first batch may
begin before `start` and the last may reach over `end`: a batch is not cut, so who decodes drops
what lies outside. Control batches are in it. Offsets may be missing (compaction, transactions), the
last ones too: the range is done when the position has passed `end`, or when the broker, asked again
and again, has nothing more below an `end` that is readable.

How much is asked for follows the range: the first piece tells how large a record is, so the end of
a range does not cost a whole piece of what nobody wants.
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
SMALLEST_PIECE_BYTES = 64 * 1024
SPARE = 1.25  # records differ in size
EMPTY_ANSWERS_BEFORE_BELIEVING = 3
WAIT_FOR_REST_MS = 500

# base offset, batch length, (leader epoch … attributes), last offset delta
_PLACE = struct.Struct(">qi11xi")


class RawFetch(NamedTuple):
    """Whole batches as they are kept, and what a reader needs to know about them."""

    tp: TopicPartition
    data: memoryview
    next_offset: int  # where the next piece begins
    aborted: list[tuple[int, int]]  # (producer id, first offset), of aborted transactions in it
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int


class RangeFetcher:
    """The reading side of a client."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock

    def fetch(self, tp: TopicPartition, ask: FetchAsk) -> RawFetch:
        """One answer, maybe an empty one. `OffsetOutOfRangeError` has the range."""
        return self._cluster.retry(lambda: self._take(tp, ask, self._send(tp, ask)))

    def read_range(
        self, tp: TopicPartition, start: int, end: int, isolation: IsolationLevel
    ) -> Generator[RawFetch, None, None]:
        """Pieces until `end` is covered; `UnreachableError` when `end` does not become readable."""
        most_bytes = self._cluster.options.number("max.partition.fetch.bytes")
        ask = FetchAsk(*tp, start, min(FIRST_PIECE_BYTES, most_bytes), isolation, 0, 1)
        progress = _Progress(self._cluster, self._clock)
        ahead: Reply | None = None
        try:
            while ask.offset < end:
                piece = self._next(tp, ask, ahead)
                ahead = None
                if piece.next_offset == ask.offset:
                    if progress.is_over(piece, end, isolation):
                        return
                    ask = ask._replace(max_wait_ms=progress.wait_ms)
                    continue
                progress.made()
                size = _piece_bytes(piece, ask.offset, end, most_bytes)
                ask = ask._replace(offset=piece.next_offset, max_bytes=size, max_wait_ms=0)
                if ask.offset < end:
                    ahead = self._try_send(tp, ask)
                piece = cut_at(piece, end)
                if piece.data:
                    yield piece
        finally:
            if ahead is not None:
                ahead.forget()

    def _next(self, tp: TopicPartition, ask: FetchAsk, ahead: Reply | None) -> RawFetch:
        """The answer to `ask`, which may have been sent before."""
        if ahead is not None:
            try:
                return self._take(tp, ask, ahead)
            except UnreachableError:
                pass  # from here on it is tried again
        return self.fetch(tp, ask)

    def _try_send(self, tp: TopicPartition, ask: FetchAsk) -> Reply | None:
        try:
            return self._send(tp, ask)
        except UnreachableError:
            return None  # what we have is handed out first

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
            raise broker_error(answer.error_code, f"reading {tp}")
        if not answer.partitions:
            if not answer.throttle_ms:
                raise RetriableBrokerError(f"reading {tp}: an answer without {tp}", -1)
            pause(answer.throttle_ms / 1000)
            raise RetriableBrokerError(f"reading {tp}: throttled for {answer.throttle_ms} ms", -1)
        [found] = answer.partitions
        if found.error_code == OFFSET_OUT_OF_RANGE:
            first, end = offset_range(self._cluster, tp, IsolationLevel(ask.isolation))
            raise OffsetOutOfRangeError(*tp, ask.offset, first, end)
        if found.error_code:
            self._cluster.forget_topic(tp.topic)
            raise broker_error(found.error_code, f"reading {tp} at offset {ask.offset}")
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
    """Decides what an answer without records means."""

    wait_ms = WAIT_FOR_REST_MS

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._clock = clock
        self._patience_ms = cluster.options.number("default.api.timeout.ms")
        self.made()

    def made(self) -> None:
        """Records came."""
        self._empty_answers = 0
        self._deadline_ms = self._clock.monotonic_ms() + self._patience_ms

    def is_over(self, piece: RawFetch, end: int, isolation: IsolationLevel) -> bool:
        """Whether there is nothing left below `end`."""
        is_committed = isolation is IsolationLevel.READ_COMMITTED
        readable = piece.last_stable_offset if is_committed else piece.high_watermark
        if readable >= end:
            self._empty_answers += 1
            return self._empty_answers >= EMPTY_ANSWERS_BEFORE_BELIEVING
        if self._clock.monotonic_ms() >= self._deadline_ms:
            what = "a transaction is still open, or records are missing" if is_committed else ""
            raise UnreachableError(
                f"{piece.tp} can be read up to offset {readable}, but {end} was asked for; "
                f"{what or 'records are missing'} (waited {self._patience_ms} ms)"
            )
        return False


def whole_batches(data: memoryview, offset: int) -> tuple[int, int]:
    """(bytes of the whole batches in `data`, the offset after them; `offset` without any)."""
    position, size, next_offset = 0, len(data), offset
    unpack = _PLACE.unpack_from
    while size - position >= HEADER_SIZE:
        base_offset, length, delta = unpack(data, position)
        if length < HEADER_SIZE - LOG_OVERHEAD:
            raise CorruptRecordError(
                f"the batch after offset {next_offset} says it has {length} bytes; "
                "it was damaged on its way or on the broker's disk"
            )
        end = position + LOG_OVERHEAD + length
        if end > size:
            break
        position = end
        next_offset = max(next_offset, base_offset + delta + 1)
    return position, next_offset


def cut_at(piece: RawFetch, end_offset: int) -> RawFetch:
    """The piece without the batches that begin at or after an offset."""
    if piece.next_offset <= end_offset:
        return piece
    position, data = 0, piece.data
    while position < len(data):
        base_offset, length, _ = _PLACE.unpack_from(data, position)
        if base_offset >= end_offset:
            break
        position += LOG_OVERHEAD + length
    return piece._replace(data=data[:position])


def _piece_bytes(piece: RawFetch, offset: int, end: int, most_bytes: int) -> int:
    """How much to ask for next, so that the end of the range is not read over by much."""
    record_bytes = len(piece.data) / max(1, piece.next_offset - offset)
    rest_bytes = int(record_bytes * (end - piece.next_offset) * SPARE)
    return min(max(rest_bytes, SMALLEST_PIECE_BYTES), most_bytes)
