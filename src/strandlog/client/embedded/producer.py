"""The embedded producer: sends single records, or many records as one batch per partition.

    acks=0, acks=1   written: survives a crash of the process
    acks="all"       on disk: survives a power failure; threads that wait together share one fsync
                     (with log.durability "page_cache": written)

`send` returns when the record has reached the durability requested by `acks`. `send_batch` is
atomic per partition: all records of a partition go into one batch, which is stored completely or
not at all, and all batches are built and validated before the first one is written. If a send
raises `StorageError`, the record may or may not be stored: sending it again can store it twice.

Records with neither key nor partition are distributed round robin over the topic's partitions.
All producers of the log share one round-robin counter per topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from strandlog.broker.produce import AppendResult
from strandlog.broker.topics.topic import Topic
from strandlog.client.arguments import (
    Acks,
    BatchItem,
    GivenHeaders,
    check_acks,
    check_bytes,
    checked_headers,
    checked_timestamp,
    fields_of,
    listed,
    waits_for_disk,
)
from strandlog.client.arrow.send import RoutedTable, SentTable
from strandlog.client.arrow.table import as_table, items_of
from strandlog.client.lifecycle import Closable, OpenCheck, state_of
from strandlog.client.sent_batch import SentBatch
from strandlog.errors import (
    ClosedError,
    MessageTooLargeError,
    StorageError,
    StrandlogError,
    TopicNotFoundError,
)
from strandlog.model import Headers, RecordMetadata
from strandlog.record.arrow.columns import are_available
from strandlog.record.batch_header import HEADER_SIZE
from strandlog.record.builder import build_batch, build_single
from strandlog.record.codecs import Codec, codec_named
from strandlog.record.partitioner import KeyHash, key_hash

if TYPE_CHECKING:
    from strandlog.client.embedded.log import Log

__all__ = ["Acks", "BatchItem", "Producer"]

BATCH_BYTES = 256 * 1024
RECORD_OVERHEAD_BYTES = 64  # upper bound per record, excluding key, value and headers


_NO_CODEC = Codec.NONE
# Faster than the constructor of the named tuple, which is written in Python.
_new_tuple = tuple.__new__


class _Columns(NamedTuple):
    """The records of one partition, stored by column."""

    values: list[bytes | None]
    keys: list[bytes | None]
    headers: list[Headers]
    timestamps: list[int]


class _Appended(NamedTuple):
    """A batch that was appended to a partition, and the indexes of its records."""

    partition: int
    end_offset: int
    indexes: list[int]


class Producer(Closable):
    """A producer, created by `Log.producer`. Threads may share it."""

    internal_names = frozenset({"send_each"})

    is_atomic = True
    batch_bytes = BATCH_BYTES

    def __init__(
        self,
        log: Log,
        acks: Acks | str = "all",
        partitioner: str = "murmur2",
        compression: str | None = None,
    ) -> None:
        check_acks(acks)
        self._log = log
        self._waits = waits_for_disk(acks) and log.broker.settings.waits_for_fsync
        self._partitioner = partitioner
        self._hash: KeyHash = key_hash(partitioner)
        self._codec = None if compression is None else codec_named(compression)
        self._is_closed = False
        self._is_open = OpenCheck(
            lambda: self._is_closed or log.is_closed, "producer", lambda: log.is_forked
        )
        self._settings = f"acks={acks!r}, partitioner={partitioner!r}, compression={compression!r}"

    def __repr__(self) -> str:
        state = state_of(self._log, is_closed=self._is_closed)
        return f"<strandlog.Producer of {self._log.path!r}, {self._settings}, {state}>"

    # -- single records ------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        headers: GivenHeaders = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> RecordMetadata:
        """Append one record; return its topic, partition, offset and timestamp."""
        if type(value) is not bytes or key is not None:
            check_bytes(value, key)
        checked = checked_headers(headers) if headers else ()
        if timestamp is not None:
            checked_timestamp(timestamp)
        log = self._log
        if self._is_closed or log.is_closed:
            raise self._is_open.error()
        with log.lock:  # same checks as `OpenCheck`, inlined because this is a hot path
            if self._is_closed or log.is_closed:
                raise self._is_open.error()
            broker, context = log.broker, log.context
            target = broker.writable_topic(context, topic)
            number = self._route(topic, target.partitions, key, partition)
            when = log.tick()
            if timestamp is not None:
                when = timestamp
            codec = self._codec_for(target)
            if codec is not _NO_CODEC:
                self._check_unpacked(_Columns([value], [key], [checked], []))
            batch = build_single(when, value, key, checked, codec=codec)
            result = broker.append(context, topic, number, batch)
            if self._waits:
                wait = broker.flush_wait(context, topic, number, result.last_offset + 1)
                log.group_commit.complete(wait)
            if log.waiters:
                log.condition.notify_all()
        if result.append_time_ms >= 0:
            when = result.append_time_ms
        return _new_tuple(RecordMetadata, (topic, number, result.base_offset, when))

    def _route(self, topic: str, count: int, key: bytes | None, partition: int | None) -> int:
        if partition is None and key is None:
            turns = self._log.turns  # like `_next_turn`, without a call per record
            turn = turns.get(topic, 0)
            turns[topic] = turn + 1
            return turn % count
        if partition is not None:
            if not isinstance(partition, int):
                raise TypeError(f"partition must be an int, got {partition!r}")
            if not 0 <= partition < count:
                raise TopicNotFoundError(topic, partition, count)
            return partition
        assert key is not None
        return self._hash.up_to(len(key))(key) % count

    def _next_turn(self, topic: str, count: int) -> int:
        turns = self._log.turns
        turn = turns.get(topic, 0)
        turns[topic] = turn + count
        return turn

    def _codec_for(self, target: Topic) -> Codec:
        if self._codec is not None:
            return self._codec
        name = target.settings.compression_type
        return _NO_CODEC if name == "producer" else codec_named(name)

    # -- batches -------------------------------------------------------------------------------

    def send_batch(self, topic: str, records: Iterable[BatchItem]) -> Sequence[RecordMetadata]:
        """Append many records, one batch per partition; return their metadata in order.

        A record is a value, a (key, value) pair, or a mapping with `value` and optionally `key`,
        `headers`, `partition` and `timestamp`.
        """
        items = records if isinstance(records, list) else listed(records)
        log = self._log
        with self._is_open, log.lock, self._is_open:
            if not items:
                return []
            target = log.broker.writable_topic(log.context, topic)
            now_ms = log.tick()
            routes, by_partition = self._sort(topic, items, target.partitions, now_ms)
            batches = {
                number: self._build(target, columns, now_ms)
                for number, columns in by_partition.items()
            }
            results = self._append_all(topic, batches)
        timestamps = {number: columns.timestamps for number, columns in by_partition.items()}
        return SentBatch(topic, len(items), routes, results, timestamps, now_ms)

    def send_arrow(self, topic: str, table: Any) -> Sequence[RecordMetadata]:
        """Append the rows of an Arrow table or data frame, one batch per partition.

        The columns have the names and types that `poll_arrow` returns. Only `value` is required;
        `topic` and `offset` are ignored.
        """
        table = as_table(table)
        if self._partitioner != "murmur2" or not table.num_rows or not are_available():
            return self.send_batch(topic, items_of(table))
        log = self._log
        with self._is_open, log.lock, self._is_open:
            target = log.broker.writable_topic(log.context, topic)
            turn = self._next_turn(topic, 0)
            routed = RoutedTable(topic, table, target.partitions, turn, log.tick())
            self._next_turn(topic, routed.turns)
            batches = {
                number: routed.batch(
                    number,
                    self._codec_for(target),
                    target.settings.max_message_bytes,
                    log.broker.settings.decompressed_max_bytes,
                )
                for number in routed.numbers
            }
            results = self._append_all(topic, batches)
        return SentTable(topic, routed, results)

    def _append_all(self, topic: str, batches: dict[int, bytearray]) -> dict[int, AppendResult]:
        """Append one batch to each partition and wait as required by `acks`."""
        log, broker = self._log, self._log.broker
        appended = broker.append_all(log.context, topic, batches.items())
        results = dict(zip(batches, appended, strict=True))
        if self._waits:
            waits = [
                broker.flush_wait(log.context, topic, number, result.last_offset + 1)
                for number, result in results.items()
            ]
            for wait in waits:
                log.group_commit.complete(wait)
        if log.waiters:
            log.condition.notify_all()
        return results

    def _sort(
        self, topic: str, items: list[BatchItem], count: int, now_ms: int
    ) -> tuple[list[int] | int, dict[int, _Columns]]:
        """Return the partition of each record (or one for all), and the columns by partition."""
        kinds = set(map(type, items))
        if kinds == {bytes} or kinds == {bytes, type(None)}:
            return self._sort_values(topic, items, count)  # type: ignore[arg-type]
        if kinds == {tuple}:
            return self._sort_pairs(topic, items, count)  # type: ignore[arg-type]
        routes: list[int] = []
        columns: dict[int, _Columns] = {}
        for item in items:
            key, value, headers, partition, timestamp = fields_of(item, now_ms)
            number = self._route(topic, count, key, partition)
            routes.append(number)
            into = columns.get(number)
            if into is None:
                into = columns[number] = _Columns([], [], [], [])
            into.values.append(value)
            into.keys.append(key)
            into.headers.append(headers)
            into.timestamps.append(timestamp)
        return routes, columns

    def _sort_values(
        self, topic: str, values: list[bytes | None], count: int
    ) -> tuple[list[int] | int, dict[int, _Columns]]:
        """Distribute records without keys round robin, using slices."""
        if count == 1:
            return 0, {0: _Columns(values, [], [], [])}
        turn = self._next_turn(topic, len(values))
        numbers = [(turn + step) % count for step in range(min(count, len(values)))]
        columns = {
            number: _Columns(values[step::count], [], [], []) for step, number in enumerate(numbers)
        }
        return [(turn + step) % count for step in range(len(values))], columns

    def _sort_pairs(
        self, topic: str, pairs: list[tuple[bytes | None, bytes | None]], count: int
    ) -> tuple[list[int] | int, dict[int, _Columns]]:
        try:
            keys = [key for key, _ in pairs]
            values = [value for _, value in pairs]
        except ValueError:
            raise TypeError("a record given as a tuple must be (key, value)") from None
        kinds = {*map(type, keys), *map(type, values)}
        if not kinds <= {bytes, type(None)}:
            for key, value in pairs:
                check_bytes(value, key)
        if count == 1:
            return 0, {0: _Columns(values, keys, [], [])}
        hashed = self._hash.up_to(
            max(len(key) for key in keys if key is not None) if any(keys) else 0
        )
        columns: dict[int, _Columns] = {}
        routes = [
            hashed(key) % count if key is not None else self._route(topic, count, None, None)
            for key in keys
        ]
        for number, key, value in zip(routes, keys, values, strict=True):
            into = columns.get(number)
            if into is None:
                into = columns[number] = _Columns([], [], [], [])
            into.values.append(value)
            into.keys.append(key)
        return routes, columns

    def _build(self, target: Topic, columns: _Columns, now_ms: int) -> bytearray:
        codec = self._codec_for(target)
        if codec is not Codec.NONE:
            self._check_unpacked(columns)
        batch = _built(columns, now_ms, codec)
        limit = target.settings.max_message_bytes
        if len(batch) > limit:
            raise MessageTooLargeError(len(batch), limit, "max.message.bytes")
        return batch

    def _check_unpacked(self, columns: _Columns) -> None:
        """Reject records that compress well but are too large for readers to decompress."""
        limit = self._log.broker.settings.decompressed_max_bytes
        size = RECORD_OVERHEAD_BYTES * len(columns.values)
        for column in (columns.values, columns.keys):
            size += sum(len(part) for part in column if part is not None)
        for headers in columns.headers:
            size += sum(RECORD_OVERHEAD_BYTES + 4 * len(n) + len(v or b"") for n, v in headers)
        if size > limit:  # this is only an upper bound, so compute the exact size
            size = len(_built(columns, 0, Codec.NONE)) - HEADER_SIZE
            if size > limit:
                raise MessageTooLargeError(size, limit, "decompressed.max.bytes")

    # -- independent records -------------------------------------------------------------------

    def send_each(self, topic: str, items: list[BatchItem]) -> list[RecordMetadata | Exception]:
        """Append independent records together, for the asyncio API.

        Return the metadata or the error of each record. A record that is rejected does not affect
        the others, and a partition that fails does not affect other partitions.
        """
        log = self._log
        results: dict[int, RecordMetadata | Exception] = {}
        with self._is_open, log.lock, self._is_open:
            now_ms = log.tick()
            appended = self._append_valid(topic, items, list(range(len(items))), now_ms, results)
            for number, end_offset, indexes in appended if self._waits else ():
                try:
                    wait = log.broker.flush_wait(log.context, topic, number, end_offset)
                    log.group_commit.complete(wait)
                except StrandlogError as error:
                    results.update(dict.fromkeys(indexes, error))
            if log.waiters:
                log.condition.notify_all()
        return [results[index] for index in range(len(items))]

    def _append_valid(
        self,
        topic: str,
        items: list[BatchItem],
        indexes: list[int],
        now_ms: int,
        results: dict[int, RecordMetadata | Exception],
    ) -> list[_Appended]:
        """Append the valid items at `indexes`; store metadata and errors in `results`, by index.

        Return the batches whose records may still need an fsync.
        """
        log = self._log
        try:
            target = log.broker.writable_topic(log.context, topic)
            chosen = [items[index] for index in indexes]
            routes, by_partition = self._sort(topic, chosen, target.partitions, now_ms)
        except (StrandlogError, TypeError) as error:
            return self._append_halves(topic, items, indexes, now_ms, results, error)
        indexes_of: dict[int, list[int]] = {number: [] for number in by_partition}
        if isinstance(routes, int):
            indexes_of[routes] = indexes
        else:
            for index, number in zip(indexes, routes, strict=True):
                indexes_of[number].append(index)
        appended: list[_Appended] = []
        for number, columns in by_partition.items():
            mine = indexes_of[number]
            try:
                batch = self._build(target, columns, now_ms)
                result = log.broker.append(log.context, topic, number, batch)
            except StorageError as error:
                results.update(dict.fromkeys(mine, error))
            except StrandlogError as error:
                appended += self._append_halves(topic, items, mine, now_ms, results, error)
            else:
                sent = SentBatch(
                    topic, len(mine), number, {number: result}, {number: columns.timestamps}, now_ms
                )
                results.update(zip(mine, sent, strict=True))
                appended.append(_Appended(number, result.last_offset + 1, mine))
        return appended

    def _append_halves(
        self,
        topic: str,
        items: list[BatchItem],
        indexes: list[int],
        now_ms: int,
        results: dict[int, RecordMetadata | Exception],
        error: Exception,
    ) -> list[_Appended]:
        """Find the records that cause errors by bisection, and append the others.

        The failed attempt has written none of the records at `indexes`.
        """
        if len(indexes) == 1:
            results[indexes[0]] = error
            return []
        middle = len(indexes) // 2
        halves = indexes[:middle], indexes[middle:]
        return [
            each
            for half in halves
            for each in self._append_valid(topic, items, half, now_ms, results)
        ]

    # -- close ---------------------------------------------------------------------------------

    def flush(self) -> None:
        """Wait until all records sent before this call are on disk."""
        if self._is_closed:
            raise ClosedError("producer")
        self._log.flush()

    def close(self) -> None:
        """Flush and close the producer. This method is idempotent."""
        if not self._is_closed and not self._log.is_closed:
            self.flush()
        self._is_closed = True


def _built(columns: _Columns, now_ms: int, codec: Codec) -> bytearray:
    return build_batch(
        now_ms,
        columns.values,
        columns.keys or None,
        columns.headers or None,
        timestamps=columns.timestamps or None,
        codec=codec,
    )
