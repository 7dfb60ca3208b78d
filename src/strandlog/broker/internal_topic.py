"""A table kept in a compacted topic: the last value of each key counts, a null value deletes it.

`InternalLog` is all that a coordinator needs of storage: `append` returns when the records are as
durable as the caller's rule asks for, or raises; `replay` gives every record back in the order in
which they were appended, compacted or not.

An append may be of any size: it is written in as many batches as it takes. When the disk fails
between two of them, the first ones stay in the log although `append` raises. Every caller can live
with that: each record stands for itself, and a request that failed may be sent again.

`InternalTopic` is the same over several partitions. All records of a group go to one partition,
chosen as Kafka does (the absolute value of Java's hash of the group id, modulo the number of
partitions), so they keep their order and what is appended for one group together is kept
together. Records that lie in another partition (someone swapped two files) count only where the
right one has none: nothing tells which of the two is newer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from strandlog.errors import DataError
from strandlog.protocol.group_records import decode_key

Entry = tuple[bytes, bytes | None]

BATCH_BYTES = 256 * 1024  # a batch of internal records ends at about this size
RECORD_OVERHEAD_BYTES = 32  # lengths, deltas and attributes of one record, at most

_JAVA_INT_MIN = -(2**31)


class InternalLog(Protocol):
    """Where a coordinator keeps its table."""

    def append(
        self,
        records: Sequence[Entry],
        timestamp_ms: int,
        producer: tuple[int, int] | None = None,
    ) -> None:
        """Keeps the records; with a producer (id, epoch), inside its transaction."""

    def replay(self) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Every record that counts, from the beginning."""

    def replay_open(self) -> Iterator[tuple[int, bytes | None, bytes | None]]:
        """(producer id, key, value) of every record in an open transaction that may count yet."""


class InternalTopic:
    """An `InternalLog` over the partitions of one internal topic."""

    __slots__ = ("_partition_of", "_partitions", "stranger_count")

    def __init__(
        self, partitions: Sequence[InternalLog], partition_of: Callable[[bytes], int]
    ) -> None:
        assert partitions, "an internal topic has at least one partition"
        self._partitions = tuple(partitions)
        self._partition_of = partition_of
        self.stranger_count = 0  # records that `replay` found in a wrong partition

    def append(
        self,
        records: Sequence[Entry],
        timestamp_ms: int,
        producer: tuple[int, int] | None = None,
    ) -> None:
        by_partition: dict[int, list[Entry]] = {}
        for record in records:
            by_partition.setdefault(self._partition_of(record[0]), []).append(record)
        for partition, entries in by_partition.items():
            self._partitions[partition].append(entries, timestamp_ms, producer)

    def replay(self) -> Iterator[tuple[bytes | None, bytes | None]]:
        if len(self._partitions) == 1:
            yield from self._partitions[0].replay()
            return
        homes: dict[bytes, int | None] = {}  # by key
        found: set[bytes] = set()
        strangers: list[Entry] = []
        for number, partition in enumerate(self._partitions):
            for key, value in partition.replay():
                if key is not None:
                    if key not in homes:
                        homes[key] = self._home_of(key)
                    if homes[key] not in (number, None):
                        strangers.append((key, value))
                        continue
                    found.add(key)
                yield key, value
        self.stranger_count = len(strangers)
        yield from (entry for entry in strangers if entry[0] not in found)

    def _home_of(self, key: bytes) -> int | None:
        """The partition that a key belongs to; None for a key of another kind."""
        try:
            return self._partition_of(key)
        except (DataError, AssertionError):
            return None

    def replay_open(self) -> Iterator[tuple[int, bytes | None, bytes | None]]:
        for partition in self._partitions:
            yield from partition.replay_open()


def in_batches(records: Sequence[Entry], limit_bytes: int) -> Iterator[Sequence[Entry]]:
    """The records in pieces that fit into batches of that size; a larger record is a piece."""
    start = size = 0
    for number, (key, value) in enumerate(records):
        record_size = len(key) + len(value or b"") + RECORD_OVERHEAD_BYTES
        if number > start and size + record_size > limit_bytes:
            yield records[start:number]
            start, size = number, 0
        size += record_size
    if start < len(records):
        yield records[start:]


def latest_values(log: InternalLog) -> dict[bytes, bytes]:
    """The table that the log holds; records without a key belong to no table."""
    table: dict[bytes, bytes] = {}
    for key, value in log.replay():
        if key is None:
            continue
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value
    return table


def group_partition(group_id: str, partition_count: int) -> int:
    """The partition of `__consumer_offsets` that keeps a group."""
    code = java_hash(group_id)
    # The smallest int has no positive counterpart; Kafka counts it as 0.
    return 0 if code == _JAVA_INT_MIN else abs(code) % partition_count


def group_key_partition(key: bytes, partition_count: int) -> int:
    """The same for a record key of `__consumer_offsets`."""
    decoded = decode_key(key)
    assert decoded is not None, "the coordinator writes no other keys"
    return group_partition(decoded.group, partition_count)


def java_hash(text: str) -> int:
    """`String.hashCode` of Java: over UTF-16 units, wrapping at 32 bits."""
    units = memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H")
    code = 0
    for unit in units:
        code = (31 * code + unit) & 0xFFFFFFFF
    return code - 2**32 if code >= 2**31 else code
