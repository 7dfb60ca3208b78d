"""Committed offsets of all groups: in memory for reading, as records for keeping.

    group ─▶ topic-partition ─▶ offset, leader epoch, metadata, commit timestamp

The store never writes: it makes the records (`commit_records`, `tombstones`), its owner appends
them, and when that has succeeded changes the store (`put`, `forget`). So memory never promises
what the log does not hold.

When offsets expire, `retention_ms` after:

    the group is           the clock starts at                       except
    simple (no protocol)   the commit                                -
    Empty                  the commit or the moment it became        -
                           empty, whichever is later
    Stable, "consumer"     the commit                                topics still subscribed
    anything else          never

Kafka lets the offsets of a long empty group expire at once even if they were just reset by hand; we
start again at the commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from strandlog.broker.compacted_table import TableRecord
from strandlog.errors import (
    DataError,
    OffsetMetadataTooLargeError,
    StrandlogError,
    TooManyOffsetsError,
)
from strandlog.model import OffsetAndMetadata, TopicPartition
from strandlog.protocol.group_records import OffsetKey, encode_key, encode_offset, offset_keys

MAX_OFFSET = 2**63 - 1
MAX_INT32 = 2**31 - 1
MAX_TOPIC_CHARACTERS = 249
ENTRY_BYTES = 400  # an offset without metadata and its place in the tables, about

Offsets = Mapping[TopicPartition, OffsetAndMetadata]


class ExpiryRule(NamedTuple):
    """How the offsets of one group grow old."""

    not_before_ms: int = 0
    kept_topics: frozenset[str] = frozenset()


class OffsetStore:
    """The committed offsets of every group."""

    __slots__ = ("_groups", "size_bytes")

    def __init__(self) -> None:
        self._groups: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
        self.size_bytes = 0  # about what all of them take in memory

    def groups(self) -> list[str]:
        return list(self._groups)

    def of_group(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Every offset of a group; an unknown group has none."""
        return dict(self._groups.get(group, {}))

    def has_offsets(self, group: str) -> bool:
        return group in self._groups

    def fetch(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The offset of each partition; None where nothing was committed."""
        held = self._groups.get(group, {})
        return {partition: held.get(partition) for partition in partitions}

    def put(self, group: str, offsets: Offsets) -> None:
        if not offsets:
            return
        self.size_bytes += self._growth(group, offsets)
        self._groups.setdefault(group, {}).update(offsets)

    def check_room(self, group: str, offsets: Offsets, limit_bytes: int) -> None:
        """Raise when the store would take more memory than that with these offsets in it."""
        growth = self._growth(group, offsets)
        if growth > 0 and self.size_bytes + growth > limit_bytes:
            raise TooManyOffsetsError(
                f"committed offsets take {self.size_bytes} bytes, {growth} more are over the limit "
                f"of {limit_bytes}; delete groups or raise offsets.max.bytes"
            )

    def _growth(self, group: str, offsets: Offsets) -> int:
        held = self._groups.get(group, {})
        growth = 0
        for partition, value in offsets.items():
            old = held.get(partition)
            growth += len(value.metadata) + (ENTRY_BYTES if old is None else -len(old.metadata))
        return growth

    def forget(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        held = self._groups.get(group)
        if held is None:
            return
        for partition in partitions:
            gone = held.pop(partition, None)
            if gone is not None:
                self.size_bytes -= len(gone.metadata) + ENTRY_BYTES
        if not held:
            del self._groups[group]


def commit_records(group: str, offsets: Offsets) -> list[TableRecord]:
    values = map(encode_offset, offsets.values())
    return list(zip(offset_keys(group, offsets), values, strict=True))


def tombstones(group: str, partitions: Iterable[TopicPartition]) -> list[TableRecord]:
    return [(key, None) for key in offset_keys(group, partitions)]


def refusal(
    partition: TopicPartition, value: OffsetAndMetadata, metadata_max_bytes: int
) -> StrandlogError | None:
    """Why this offset cannot be kept, whoever commits it; None when it can."""
    if not 0 <= value.offset <= MAX_OFFSET:
        return DataError(f"{value.offset} is no offset of {partition}; offsets begin at 0")
    if _is_plain(partition, value, metadata_max_bytes):
        return None
    size = len(value.metadata.encode("utf-8", "surrogatepass"))
    if size > metadata_max_bytes:
        return OffsetMetadataTooLargeError(
            f"the metadata for {partition} has {size} bytes; commit less "
            f"or raise offset.metadata.max.bytes ({metadata_max_bytes})"
        )
    try:
        encode_key(OffsetKey("", *partition))
        encode_offset(value)
    except DataError as error:
        return error
    return None


def _is_plain(partition: TopicPartition, value: OffsetAndMetadata, metadata_max_bytes: int) -> bool:
    """Whether it is clear without trying that an offset can be written, as it nearly always is."""
    return (
        value.metadata.isascii()
        and len(value.metadata) <= metadata_max_bytes
        and partition.topic.isascii()
        and len(partition.topic) <= MAX_TOPIC_CHARACTERS
        and 0 <= partition.partition <= MAX_INT32
        and -1 <= value.leader_epoch <= MAX_INT32
    )


def expired_partitions(
    offsets: Offsets, rule: ExpiryRule | None, now_ms: int, retention_ms: int
) -> list[TopicPartition]:
    """Which offsets nobody has needed for so long that they go; none without a rule."""
    if rule is None:
        return []
    return [
        partition
        for partition, value in offsets.items()
        if partition.topic not in rule.kept_topics
        and max(value.commit_timestamp, rule.not_before_ms) + retention_ms <= now_ms
    ]
