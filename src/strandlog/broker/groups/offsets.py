"""Committed offsets of all groups, including those in open transactions, and their expiry.

    committed      group ─▶ topic-partition ─▶ offset, leader epoch, metadata, commit timestamp
    transactional  producer id ─▶ group ─▶ topic-partition ─▶ offset, and its number in commit order
                   group ─▶ topic-partition ─▶ ids of the producers, so that a plain commit does not
                   search all open transactions

This module never writes to the log. The coordinator appends the encoded records (`commit_records`,
`tombstones`) and only then updates `CommittedOffsets` (`put`, `delete`), so memory is never ahead
of the log.

`TransactionOffsets` holds the offsets committed in open transactions. They take effect when the
transaction commits, unless a later record for the partition is already in effect: the last
effective record in log order wins, regardless of when it took effect. A commit or deletion outside
transactions therefore removes all transactional offsets of its partitions. A transaction that
commits removes the transactional offsets that are older than its own, and one that aborts removes
only its own.

Offsets expire `retention_ms` after the start of their retention period:

    group                  retention starts at                       exceptions
    simple (no protocol)   the commit                                -
    Empty                  the commit, or when the group became      -
                           empty, whichever is later
    Stable, "consumer"     the commit                                topics still subscribed
    any other              never expires

A Stable group whose members subscribe to no topics, or whose subscriptions are unknown, counts as
"any other". In Kafka, the offsets of a group that has been empty for a long time expire
immediately, even if they were just reset manually; here a new commit restarts the retention period.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from itertools import count
from typing import NamedTuple

from strandlog.broker.compacted_table import TableRecord
from strandlog.broker.groups.group import EMPTY, STABLE, Group
from strandlog.config.limits.records import MAX_TOPIC_NAME_CHARACTERS
from strandlog.errors import (
    DataError,
    OffsetMetadataTooLargeError,
    StrandlogError,
    TooManyOffsetsError,
)
from strandlog.model import OffsetAndMetadata, TopicPartition
from strandlog.protocol.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from strandlog.protocol.group_records import OffsetKey, encode_key, encode_offset, offset_keys

MAX_OFFSET = 2**63 - 1
MAX_INT32 = 2**31 - 1
ENTRY_BYTES = 400  # approximate memory used by one offset, excluding its metadata

Offsets = Mapping[TopicPartition, OffsetAndMetadata]


class ExpiryRule(NamedTuple):
    """The expiry rule for the offsets of one group."""

    not_before_ms: int = 0
    kept_topics: frozenset[str] = frozenset()


class CommittedOffsets:
    """The committed offsets of every group."""

    __slots__ = ("_groups", "_topics", "size_bytes")

    def __init__(self) -> None:
        self._groups: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
        # For each topic and group, the number of partitions with a committed offset.
        self._topics: dict[str, dict[str, int]] = {}
        self.size_bytes = 0  # approximate memory used by all offsets

    def groups(self) -> list[str]:
        return list(self._groups)

    def of_group(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return all offsets of a group; empty if the group is unknown."""
        return dict(self._groups.get(group, {}))

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have offsets in a topic."""
        return list(self._topics.get(topic, ()))

    def has_offsets(self, group: str) -> bool:
        return group in self._groups

    def fetch(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the offset of each partition; None if none was committed."""
        held = self._groups.get(group, {})
        return {partition: held.get(partition) for partition in partitions}

    def put(self, group: str, offsets: Offsets) -> None:
        if not offsets:
            return
        self.size_bytes += self._growth(group, offsets)
        held = self._groups.setdefault(group, {})
        for tp in offsets:
            if tp not in held:
                counts = self._topics.setdefault(tp.topic, {})
                counts[group] = counts.get(group, 0) + 1
        held.update(offsets)

    def check_room(
        self, group: str, offsets: Offsets, limit_bytes: int, pending_bytes: int
    ) -> None:
        """Raise if storing these offsets would exceed the memory limit. `pending_bytes` is the
        memory used by offsets in open transactions."""
        growth, used = self._growth(group, offsets), self.size_bytes + pending_bytes
        if growth > 0 and used + growth > limit_bytes:
            raise TooManyOffsetsError(
                f"committed offsets use {used} bytes; {growth} more would exceed the "
                f"limit of {limit_bytes}; delete groups or raise offsets.max.bytes"
            )

    def _growth(self, group: str, offsets: Offsets) -> int:
        held = self._groups.get(group, {})
        growth = 0
        for partition, value in offsets.items():
            old = held.get(partition)
            growth += len(value.metadata) + (ENTRY_BYTES if old is None else -len(old.metadata))
        return growth

    def delete(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        held = self._groups.get(group)
        if held is None:
            return
        for partition in partitions:
            deleted = held.pop(partition, None)
            if deleted is not None:
                self.size_bytes -= len(deleted.metadata) + ENTRY_BYTES
                self._uncount(partition.topic, group)
        if not held:
            del self._groups[group]

    def _uncount(self, topic: str, group: str) -> None:
        counts = self._topics[topic]
        counts[group] -= 1
        if not counts[group]:
            del counts[group]
        if not counts:
            del self._topics[topic]


class _Numbered(NamedTuple):
    number: int
    value: OffsetAndMetadata


class TransactionOffsets:
    """The offsets committed in all open transactions."""

    __slots__ = ("_holders", "_numbers", "_producers", "size_bytes")

    def __init__(self) -> None:
        self._producers: dict[int, dict[str, dict[TopicPartition, _Numbered]]] = {}
        # For each group and partition, the producers whose open transactions commit an offset.
        self._holders: dict[str, dict[TopicPartition, set[int]]] = {}
        self._numbers = count()
        self.size_bytes = 0  # approximate memory used by all offsets

    def add(self, producer_id: int, group: str, offsets: Offsets) -> None:
        """Add offsets committed in the open transaction of a producer."""
        number = next(self._numbers)
        if not offsets:
            return
        held = self._producers.setdefault(producer_id, {}).setdefault(group, {})
        holders = self._holders.setdefault(group, {})
        for partition, value in offsets.items():
            holders.setdefault(partition, set()).add(producer_id)
            if (old := held.get(partition)) is not None:
                self.size_bytes -= _pending_bytes(group, old)
            held[partition] = new = _Numbered(number, value)
            self.size_bytes += _pending_bytes(group, new)

    def supersede(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Remove offsets that were superseded by a commit or delete outside transactions."""
        newest = next(self._numbers)
        for partition in partitions if group in self._holders else ():
            self._drop_older(group, partition, newest)

    def commit(self, producer_id: int) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        """End the transaction and return its offsets by group; they are now in effect."""
        groups = self._remove(producer_id)
        for group, held in groups.items():
            for partition, (number, _) in held.items():
                self._drop_older(group, partition, number)
        return {
            group: {partition: value for partition, (_, value) in held.items()}
            for group, held in groups.items()
            if held
        }

    def abort(self, producer_id: int) -> None:
        """End the transaction and discard its offsets."""
        self._remove(producer_id)

    def _remove(self, producer_id: int) -> dict[str, dict[TopicPartition, _Numbered]]:
        groups = self._producers.pop(producer_id, {})
        for group, held in groups.items():
            self.size_bytes -= sum(_pending_bytes(group, each) for each in held.values())
            for partition in held:
                self._forget_holder(group, partition, producer_id)
        return groups

    def _drop_older(self, group: str, partition: TopicPartition, number: int) -> None:
        for producer_id in list(self._holders.get(group, {}).get(partition, ())):
            held = self._producers[producer_id][group]
            if held[partition].number < number:
                self.size_bytes -= _pending_bytes(group, held.pop(partition))
                self._forget_holder(group, partition, producer_id)

    def _forget_holder(self, group: str, partition: TopicPartition, producer_id: int) -> None:
        partitions = self._holders[group]
        producers = partitions[partition]
        producers.discard(producer_id)
        if not producers:
            del partitions[partition]
            if not partitions:
                del self._holders[group]

    def of_group(self, group: str) -> Set[TopicPartition]:
        """Return the partitions for which the group has offsets in open transactions."""
        return self._holders.get(group, {}).keys()

    def groups(self) -> set[str]:
        """Return the groups that have offsets in open transactions."""
        return set(self._holders)


def _pending_bytes(group: str, pending: _Numbered) -> int:
    return ENTRY_BYTES + len(group) + len(pending.value.metadata)


def commit_records(group: str, offsets: Offsets) -> list[TableRecord]:
    values = map(encode_offset, offsets.values())
    return list(zip(offset_keys(group, offsets), values, strict=True))


def tombstones(group: str, partitions: Iterable[TopicPartition]) -> list[TableRecord]:
    return [(key, None) for key in offset_keys(group, partitions)]


def offset_error(
    partition: TopicPartition, value: OffsetAndMetadata, metadata_max_bytes: int
) -> StrandlogError | None:
    """Return the error for an offset that cannot be committed; None if it is valid."""
    if not 0 <= value.offset <= MAX_OFFSET:
        return DataError(f"{value.offset} is not an offset of {partition}; offsets start at 0")
    if _is_plain(partition, value, metadata_max_bytes):
        return None
    size = len(value.metadata.encode("utf-8", "surrogatepass"))
    if size > metadata_max_bytes:
        return OffsetMetadataTooLargeError(
            f"the metadata for {partition} has {size} bytes; shorten it "
            f"or raise offset.metadata.max.bytes ({metadata_max_bytes})"
        )
    try:
        encode_key(OffsetKey("", *partition))
        encode_offset(value)
    except DataError as error:
        return error
    return None


def _is_plain(partition: TopicPartition, value: OffsetAndMetadata, metadata_max_bytes: int) -> bool:
    """Return whether an offset is known to be valid without encoding its strings. This quick test
    succeeds for almost all offsets."""
    return (
        value.metadata.isascii()
        and len(value.metadata) <= metadata_max_bytes
        and partition.topic.isascii()
        and len(partition.topic) <= MAX_TOPIC_NAME_CHARACTERS
        and 0 <= partition.partition <= MAX_INT32
        and -1 <= value.leader_epoch <= MAX_INT32
    )


def expiry_rule(group: Group) -> ExpiryRule | None:
    """Return the expiry rule of the group (see the table above); None if nothing expires."""
    if group.protocol_type is None:
        return ExpiryRule()
    if group.state is EMPTY:
        return ExpiryRule(not_before_ms=group.state_since_ms)
    topics = group.subscribed_topics()
    if group.state is STABLE and group.protocol_type == CONSUMER_PROTOCOL_TYPE and topics:
        return ExpiryRule(kept_topics=topics)
    return None


def expired_partitions(
    offsets: Offsets, rule: ExpiryRule | None, now_ms: int, retention_ms: int
) -> list[TopicPartition]:
    """Return the partitions whose offsets have expired; empty if there is no rule."""
    if rule is None:
        return []
    return [
        partition
        for partition, value in offsets.items()
        if partition.topic not in rule.kept_topics
        and max(value.commit_timestamp, rule.not_before_ms) + retention_ms <= now_ms
    ]
