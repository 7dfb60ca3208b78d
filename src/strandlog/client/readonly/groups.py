"""Reads groups and committed offsets from the files of `__consumer_offsets`.

The result reflects what the owner has made durable: committed offsets, and the members as of the
last completed rebalance. Members of a killed process remain until the next owner has opened the
folder and their sessions have timed out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from strandlog.broker.groups.requests import NO_GENERATION, GroupDescription, MemberDescription
from strandlog.broker.topics.topic import OFFSETS_TOPIC
from strandlog.client.consumer import Consumer
from strandlog.errors import DataError, GroupNotFoundError, TopicNotFoundError
from strandlog.model import OffsetAndMetadata, TopicPartition
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

Offsets = dict[TopicPartition, OffsetAndMetadata]


@dataclass(slots=True)
class _Group:
    """The stored state of one group."""

    value: GroupValue | None = None
    offsets: Offsets = field(default_factory=dict)


class ReadOnlyGroups:
    """The groups in a folder. Each call only reads the records written since the previous call."""

    def __init__(self, open_consumer: Callable[[Iterable[str]], Consumer]) -> None:
        self._open_consumer = open_consumer
        self._consumer: Consumer | None = None
        self._groups: dict[str, _Group] = {}

    def _load(self) -> dict[str, _Group]:
        if self._consumer is None:
            try:
                self._consumer = self._open_consumer([OFFSETS_TOPIC])
            except TopicNotFoundError:
                return {}  # there are no groups yet
        while records := self._consumer.poll(POLL_RECORDS):
            for record in records:
                if record.key is not None:
                    self._note(record.key, record.value)
        return self._groups

    def _note(self, raw_key: bytes, raw_value: bytes | None) -> None:
        try:
            match decode_key(raw_key):
                case GroupKey(group=name):
                    group = self._groups.setdefault(name, _Group())
                    group.value = None if raw_value is None else decode_group(raw_value)
                case OffsetKey(group=name, topic=topic, partition=partition):
                    group = self._groups.setdefault(name, _Group())
                    tp = TopicPartition(topic, partition)
                    if raw_value is None:
                        group.offsets.pop(tp, None)
                    else:
                        group.offsets[tp] = decode_offset(raw_value)
                case _:
                    return
        except DataError:
            return  # unknown format, perhaps of a newer version; the owner skips it too
        if group.value is None and not group.offsets:
            del self._groups[name]

    def names(self) -> list[str]:
        return sorted(self._load())

    def describe(self, name: str) -> GroupDescription:
        group = self._load().get(name)
        if group is None:
            raise GroupNotFoundError(name)
        value = group.value
        if value is None:
            return GroupDescription(name, "Empty", "", "", NO_GENERATION, ())
        return GroupDescription(
            name,
            "Stable" if value.members else "Empty",
            value.protocol_type,
            value.protocol_name or "",
            value.generation,
            tuple(map(_described, value.members)),
        )

    def committed_offsets(self, name: str) -> Offsets:
        group = self._load().get(name)
        return dict(group.offsets) if group else {}


def _described(member: MemberValue) -> MemberDescription:
    return MemberDescription(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        member.subscription,
        member.assignment,
    )
