"""Writes records: one at a time, or many as one batch per partition.

    acks=0, acks=1   written: survives the death of the process
    acks="all"       on disk: survives a power cut; threads that wait together share one sync

`send` returns when the record is as safe as `acks` says. `send_batch` is atomic per partition: all
records of a partition go into one batch, which is kept whole or not at all; every batch is built
and checked before the first is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

from strandlog.client.arrow import items_of
from strandlog.client.closing import Closing
from strandlog.client.partitioner import KeyHash, key_hash
from strandlog.errors import (
    ClosedError,
    InvalidSettingError,
    MessageTooLargeError,
    TopicNotFoundError,
)
from strandlog.model import Headers, RecordMetadata
from strandlog.record.builder import build_batch, build_single
from strandlog.record.codecs import Codec, codec_named
from strandlog.storage.partition_log import PartitionLog

if TYPE_CHECKING:
    from strandlog.client.embedded import Log

Acks = Literal["all", 0, 1, -1]
BatchItem = bytes | tuple[bytes | None, bytes | None] | Mapping[str, Any] | None
_ITEM_FIELDS = frozenset({"key", "value", "headers", "partition", "timestamp"})


class _Columns(NamedTuple):
    """The records of one partition, by column."""

    values: list[bytes | None]
    keys: list[bytes | None]
    headers: list[Headers]
    timestamps: list[int]


class SentBatch(Sequence[RecordMetadata]):
    """What send_batch returns: one RecordMetadata per record, made when somebody looks."""

    __slots__ = ("_count", "_made", "_make")

    def __init__(self, count: int, make: Callable[[], list[RecordMetadata]]) -> None:
        self._count = count
        self._make = make
        self._made: list[RecordMetadata] | None = None

    def _all(self) -> list[RecordMetadata]:
        if self._made is None:
            self._made = self._make()
        return self._made

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> RecordMetadata: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[RecordMetadata]: ...
    def __getitem__(self, index: int | slice) -> RecordMetadata | Sequence[RecordMetadata]:
        return self._all()[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._all() == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._all())


class Producer(Closing):
    """Made by `Log.producer`. May be shared by threads."""

    def __init__(
        self,
        log: Log,
        acks: Acks | str = "all",
        partitioner: str = "murmur2",
        compression: str | None = None,
    ) -> None:
        if acks not in ("all", "0", "1", "-1", 0, 1, -1):
            raise InvalidSettingError("acks", acks, 'one of 0, 1, "all"')
        self._log = log
        self._waits = acks in ("all", "-1", -1)
        self._hash: KeyHash = key_hash(partitioner)
        self._codec = None if compression is None else codec_named(compression)
        self._turns: dict[str, int] = {}
        self._is_closed = False

    # -- one record ----------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        headers: Mapping[str, bytes | None] | Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> RecordMetadata:
        """Append one record; returns where it went."""
        _check_bytes(value, key)
        log = self._log
        with log.condition:
            if self._is_closed or log.is_closed:
                raise ClosedError("producer")
            logs = log.logs_for_append(topic)
            number = self._route(topic, len(logs), key, partition)
            target = logs[number]
            when = log.tick() if timestamp is None else timestamp
            batch = build_single(
                when,
                value,
                key,
                _headers(headers) if headers else (),
                codec=self._codec_for(target),
            )
            result = log.broker.append(target, batch)
            if self._waits:
                log.group_commit.wait_durable(target, result.last_offset + 1)
            if log.waiters:
                log.condition.notify_all()
        stamped = result.append_time_ms
        return RecordMetadata(topic, number, result.base_offset, when if stamped < 0 else stamped)

    def _route(self, topic: str, count: int, key: bytes | None, partition: int | None) -> int:
        if partition is not None:
            if not 0 <= partition < count:
                raise TopicNotFoundError(topic, partition, count)
            return partition
        if key is not None:
            return self._hash(key) % count
        turn = self._turns.get(topic, 0)
        self._turns[topic] = turn + 1
        return turn % count

    def _codec_for(self, target: PartitionLog) -> Codec:
        if self._codec is not None:
            return self._codec
        name = target.settings.compression_type
        return Codec.NONE if name == "producer" else codec_named(name)

    # -- many records --------------------------------------------------------------------------

    def send_batch(self, topic: str, records: Iterable[BatchItem]) -> Sequence[RecordMetadata]:
        """Append many records, one batch per partition; returns where each went, in order.

        A record is a value, a (key, value) pair, or a mapping with `value` and optionally `key`,
        `headers`, `partition` and `timestamp`.
        """
        items = records if isinstance(records, list) else list(records)
        log = self._log
        with log.condition:
            if self._is_closed or log.is_closed:
                raise ClosedError("producer")
            if not items:
                return SentBatch(0, list)
            logs = log.logs_for_append(topic)
            now_ms = log.tick()
            routes, by_partition = self._sort(topic, items, len(logs), now_ms)
            batches = {
                number: self._build(logs[number], columns, now_ms)
                for number, columns in by_partition.items()
            }
            results = {
                number: log.broker.append(logs[number], batch) for number, batch in batches.items()
            }
            if self._waits:
                for number, result in results.items():
                    log.group_commit.wait_durable(logs[number], result.last_offset + 1)
            if log.waiters:
                log.condition.notify_all()

        def make() -> list[RecordMetadata]:
            next_offsets = {number: result.base_offset for number, result in results.items()}
            taken = dict.fromkeys(results, 0)
            made = []
            for number in routes if isinstance(routes, list) else [routes] * len(items):
                stamped = results[number].append_time_ms
                times = by_partition[number].timestamps
                when = times[taken[number]] if times else now_ms
                made.append(
                    RecordMetadata(
                        topic, number, next_offsets[number], when if stamped < 0 else stamped
                    )
                )
                next_offsets[number] += 1
                taken[number] += 1
            return made

        return SentBatch(len(items), make)

    def send_arrow(self, topic: str, table: Any) -> Sequence[RecordMetadata]:
        """Append the rows of an Arrow table (see arrow.py), one batch per partition."""
        return self.send_batch(topic, items_of(table))

    def _sort(
        self, topic: str, items: list[BatchItem], count: int, now_ms: int
    ) -> tuple[list[int] | int, dict[int, _Columns]]:
        """The partition of each record (one number when all go to one), and columns for each."""
        kinds = set(map(type, items))
        if kinds == {bytes} or kinds == {bytes, type(None)}:
            return self._sort_values(topic, items, count)  # type: ignore[arg-type]
        if kinds == {tuple}:
            return self._sort_pairs(topic, items, count)  # type: ignore[arg-type]
        routes: list[int] = []
        columns: dict[int, _Columns] = {}
        for item in items:
            key, value, headers, partition, timestamp = _fields(item, now_ms)
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
        """Records without keys take turns; done by slices, not one by one."""
        if count == 1:
            return 0, {0: _Columns(values, [], [], [])}
        turn = self._turns.get(topic, 0)
        self._turns[topic] = turn + len(values)
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
            raise TypeError("a record given as a tuple is (key, value)") from None
        kinds = {*map(type, keys), *map(type, values)}
        if not kinds <= {bytes, type(None)}:
            for key, value in pairs:
                _check_bytes(value, key)
        if count == 1:
            return 0, {0: _Columns(values, keys, [], [])}
        hashed = self._hash
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

    def _build(self, target: PartitionLog, columns: _Columns, now_ms: int) -> bytearray:
        batch = build_batch(
            now_ms,
            columns.values,
            columns.keys or None,
            columns.headers or None,
            timestamps=columns.timestamps or None,
            codec=self._codec_for(target),
        )
        limit = target.settings.max_message_bytes
        if len(batch) > limit:
            raise MessageTooLargeError(len(batch), limit, "max.message.bytes")
        return batch

    # -- the end -------------------------------------------------------------------------------

    def flush(self) -> None:
        """Return when everything that was sent is on disk."""
        if self._is_closed:
            raise ClosedError("producer")
        self._log.flush()

    def close(self) -> None:
        """Make everything durable and let go; idempotent."""
        if not self._is_closed and not self._log.is_closed:
            self.flush()
        self._is_closed = True


def _headers(headers: Mapping[str, bytes | None] | Headers) -> Headers:
    return tuple(headers.items()) if isinstance(headers, Mapping) else tuple(headers)


def _fields(
    item: BatchItem, now_ms: int
) -> tuple[bytes | None, bytes | None, Headers, int | None, int]:
    """(key, value, headers, partition, timestamp) of one record in any of its forms."""
    if isinstance(item, tuple):
        if len(item) != 2:
            raise TypeError("a record given as a tuple is (key, value)")
        key, value = item
        fields: Mapping[str, Any] = {}
    elif isinstance(item, Mapping):
        unknown = set(item) - _ITEM_FIELDS
        if unknown or "value" not in item:
            raise TypeError(
                f"a record given as a mapping has a value and may have key, headers, partition "
                f"and timestamp; this one has {', '.join(map(str, item))}"
            )
        key, value, fields = item.get("key"), item["value"], item
    else:
        key, value, fields = None, item, {}
    _check_bytes(value, key)
    timestamp = fields.get("timestamp")
    return (
        key,
        value,
        _headers(fields.get("headers") or ()),
        fields.get("partition"),
        now_ms if timestamp is None else timestamp,
    )


def _check_bytes(value: object, key: object) -> None:
    for name, part in (("value", value), ("key", key)):
        if part is not None and not isinstance(part, bytes):
            raise TypeError(
                f"a record's {name} is bytes or None, not {type(part).__name__}; encode it first"
            )
