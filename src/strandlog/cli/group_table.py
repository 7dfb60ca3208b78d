"""The groups of a folder, read from the records of `__consumer_offsets`.

That works beside an owner, and changes nothing. What comes out is what the owner has made durable:
committed offsets, and the members as of the last completed rebalance. Members of a process that was
killed stay in the table until the next owner opens the folder.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from strandlog import FolderLog, TopicNotFoundError
from strandlog.broker.topic_rules import OFFSETS_TOPIC
from strandlog.errors import DataError
from strandlog.model import OffsetAndMetadata, TopicPartition
from strandlog.protocol.consumer_protocol import decode_assignment
from strandlog.protocol.group_records import (
    GroupKey,
    GroupValue,
    MemberValue,
    OffsetKey,
    decode_group,
    decode_key,
    decode_offset,
)

POLL_RECORDS = 5_000


@dataclass(slots=True)
class GroupState:
    """One group as the table has it."""

    name: str
    value: GroupValue | None = None
    offsets: dict[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)

    @property
    def members(self) -> tuple[MemberValue, ...]:
        return self.value.members if self.value else ()

    @property
    def state(self) -> str:
        return "Stable" if self.members else "Empty"

    def owners(self) -> dict[TopicPartition, str]:
        """Which member has which partition."""
        return {
            tp: member.member_id for member in self.members for tp in assigned_partitions(member)
        }


def assigned_partitions(member: MemberValue) -> list[TopicPartition]:
    """What a member has; nothing when only its own leader can read the assignment."""
    try:
        return sorted(decode_assignment(member.assignment).partitions)
    except DataError:
        return []


def read_groups(log: FolderLog) -> dict[str, GroupState]:
    """All groups by name."""
    table: dict[bytes, bytes] = {}
    try:
        consumer = log.consumer([OFFSETS_TOPIC])
    except TopicNotFoundError:
        return {}  # no group was ever used
    with consumer:
        while records := consumer.poll(POLL_RECORDS):
            for record in records:
                if record.key is None:
                    continue
                if record.value is None:
                    table.pop(record.key, None)
                else:
                    table[record.key] = record.value
    groups: dict[str, GroupState] = {}
    for raw_key, raw_value in table.items():
        _note(groups, raw_key, raw_value)
    return dict(sorted(groups.items()))


def _note(groups: dict[str, GroupState], raw_key: bytes, raw_value: bytes) -> None:
    try:
        match decode_key(raw_key):
            case GroupKey(group=name):
                groups.setdefault(name, GroupState(name)).value = decode_group(raw_value)
            case OffsetKey(group=name, topic=topic, partition=partition):
                offsets = groups.setdefault(name, GroupState(name)).offsets
                offsets[TopicPartition(topic, partition)] = decode_offset(raw_value)
    except DataError:
        return  # of a newer version; the owner skips it too


def lag_rows(log: FolderLog, group: GroupState) -> list[dict[str, Any]]:
    """Per partition: where the group is, where the partition ends, and what lies between."""
    ends: dict[TopicPartition, int] = {}
    owners = group.owners()
    partitions = sorted({*group.offsets, *owners})
    for topic in {tp.topic for tp in partitions}:
        try:
            infos = log.describe_topic(topic).partitions
        except TopicNotFoundError:
            continue  # deleted since
        ends.update({TopicPartition(topic, info.partition): info.end_offset for info in infos})
    rows = []
    for tp in partitions:
        held, end = group.offsets.get(tp), ends.get(tp)
        committed = held.offset if held else None
        lag = None if committed is None or end is None else max(0, end - committed)
        rows.append(
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "committed": committed,
                "end_offset": end,
                "lag": lag,
                "member_id": owners.get(tp),
            }
        )
    return rows
