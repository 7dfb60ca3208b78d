"""Offsets and lag of a group, by partition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strandlog import TopicNotFoundError
from strandlog.broker.groups.requests import GroupDescription, MemberDescription
from strandlog.client.api import ReadableLog
from strandlog.errors import DataError
from strandlog.model import OffsetAndMetadata, TopicPartition
from strandlog.protocol.consumer_protocol import decode_assignment


def assigned_partitions(member: MemberDescription) -> list[TopicPartition]:
    """The partitions of a member; none if the assignment has an unknown format."""
    try:
        return sorted(decode_assignment(member.assignment).partitions)
    except DataError:
        return []


def lag_rows(
    log: ReadableLog, group: GroupDescription, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> list[dict[str, Any]]:
    """Per partition: committed offset, end offset, lag and the member that reads it."""
    owners = {
        tp: member.member_id for member in group.members for tp in assigned_partitions(member)
    }
    ends: dict[TopicPartition, int] = {}
    partitions = sorted({*offsets, *owners})
    for topic in {tp.topic for tp in partitions}:
        try:
            infos = log.describe_topic(topic).partitions
        except TopicNotFoundError:
            continue  # deleted since
        ends.update({TopicPartition(topic, info.partition): info.end_offset for info in infos})
    rows = []
    for tp in partitions:
        held, end = offsets.get(tp), ends.get(tp)
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
