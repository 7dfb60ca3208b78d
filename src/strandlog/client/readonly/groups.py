"""Reads groups and committed offsets from the files of `__consumer_offsets`.

The result reflects what the owner has made durable: committed offsets, and the members as of the
last completed rebalance. Members of a killed process remain until the next owner has opened the
folder and their sessions have timed out.

As in a broker, a commit in a transaction takes effect when the transaction commits, but its offset
in the log decides which of several commits is the last. An open transaction does not delay other
commits: each call reads the records after the last stable offset again and applies them to a copy,
in log order, leaving out open and aborted transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from strandlog.broker.groups.requests import NO_GENERATION, GroupDescription, MemberDescription
from strandlog.broker.topics.topic import OFFSETS_TOPIC
from strandlog.client.consumer import Consumer
from strandlog.errors import DataError, GroupNotFoundError, TopicNotFoundError
from strandlog.model import OffsetAndMetadata, Record, TopicPartition
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
    """The groups in a folder. Each call only reads the records written since the previous call, and
    those after the first record of an open transaction."""

    def __init__(
        self,
        open_consumer: Callable[[Iterable[str]], Consumer],
        read_past_open_transactions: Callable[[TopicPartition, int], list[Record]],
    ) -> None:
        self._open_consumer = open_consumer
        self._read_past_open_transactions = read_past_open_transactions
        self._consumer: Consumer | None = None
        self._groups: dict[str, _Group] = {}  # up to the last stable offset

    def _load(self) -> dict[str, _Group]:
        if self._consumer is None:
            try:
                self._consumer = self._open_consumer([OFFSETS_TOPIC])
            except TopicNotFoundError:
                return {}  # there are no groups yet
        while records := self._consumer.poll(POLL_RECORDS):
            _apply(records, self._groups)
        later: list[Record] = []
        for tp in self._consumer.assignment:
            later += self._read_past_open_transactions(tp, self._consumer.position(*tp))
        if not later:
            return self._groups
        groups = {name: _Group(each.value, {**each.offsets}) for name, each in self._groups.items()}
        _apply(later, groups)
        return groups

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


def _apply(records: Iterable[Record], groups: dict[str, _Group]) -> None:
    for record in records:
        if record.key is not None:
            _note(record.key, record.value, groups)


def _note(raw_key: bytes, raw_value: bytes | None, groups: dict[str, _Group]) -> None:
    try:
        match decode_key(raw_key):
            case GroupKey(group=name):
                group = groups.setdefault(name, _Group())
                group.value = None if raw_value is None else decode_group(raw_value)
            case OffsetKey(group=name, topic=topic, partition=partition):
                group = groups.setdefault(name, _Group())
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
        del groups[name]


def _described(member: MemberValue) -> MemberDescription:
    return MemberDescription(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        member.subscription,
        member.assignment,
    )
