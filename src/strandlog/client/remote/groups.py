"""Groups over the wire, seen from outside: list, describe, offsets, delete."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from strandlog.broker.groups.requests import NO_GENERATION, GroupDescription, MemberDescription
from strandlog.client.remote.errors import confluent, error_of, translated
from strandlog.errors import GroupNotFoundError
from strandlog.model import OffsetAndMetadata, TopicPartition
from strandlog.protocol.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    Assignment,
    encode_assignment,
)

if TYPE_CHECKING:
    from strandlog.client.remote.log import RemoteLog

# librdkafka's names, and Kafka's words for them.
STATES = {
    "PREPARING_REBALANCING": "PreparingRebalance",
    "COMPLETING_REBALANCING": "CompletingRebalance",
    "STABLE": "Stable",
    "EMPTY": "Empty",
    "DEAD": "Dead",
    "ASSIGNING": "Assigning",
    "RECONCILING": "Reconciling",
}


class RemoteGroups:
    """The groups behind one broker."""

    def __init__(self, log: RemoteLog) -> None:
        self._log = log

    def names(self) -> list[str]:
        with translated():
            future = self._log.admin.list_consumer_groups(**self._log.request_options)
        found = self._log.result(future)
        if found.errors:
            with translated(to=self._log.bootstrap):
                raise found.errors[0]
        return sorted(group.group_id for group in found.valid)

    def describe(self, group: str) -> GroupDescription:
        with translated(group=group):
            futures = self._log.admin.describe_consumer_groups([group], **self._log.request_options)
        found = self._log.result(futures[group], group=group)
        state = STATES.get(found.state.name, found.state.name.title())
        if state == "Dead":
            raise GroupNotFoundError(group)
        return GroupDescription(
            group,
            state,
            "" if found.is_simple_consumer_group else CONSUMER_PROTOCOL_TYPE,
            found.partition_assignor or "",
            NO_GENERATION,
            tuple(map(_member, found.members)),
        )

    def committed_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        wanted = confluent().ConsumerGroupTopicPartitions(group)
        with translated(group=group):
            futures = self._log.admin.list_consumer_group_offsets(
                [wanted], **self._log.request_options
            )
        found = self._log.result(futures[group], group=group)
        return {
            TopicPartition(tp.topic, tp.partition): OffsetAndMetadata(
                tp.offset,
                -1 if tp.leader_epoch is None else tp.leader_epoch,
                tp.metadata or "",
            )
            for tp in found.topic_partitions
            if tp.offset >= 0
        }

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        if not offsets:
            return
        make = confluent().TopicPartition
        wanted = confluent().ConsumerGroupTopicPartitions(
            group, [make(topic, partition, at) for (topic, partition), at in offsets.items()]
        )
        with translated(group=group):
            futures = self._log.admin.alter_consumer_group_offsets(
                [wanted], **self._log.request_options
            )
        found = self._log.result(futures[group], group=group)
        for tp in found.topic_partitions:
            if tp.error is not None:
                raise error_of(tp.error, topic=tp.topic, group=group)

    def delete(self, group: str) -> None:
        with translated(group=group):
            futures = self._log.admin.delete_consumer_groups([group], **self._log.request_options)
        self._log.result(futures[group], group=group)


def _member(member: Any) -> MemberDescription:
    """Its assignment in Kafka's bytes, as an embedded log shows it."""
    held = member.assignment.topic_partitions if member.assignment else []
    partitions = tuple(TopicPartition(tp.topic, tp.partition) for tp in held)
    return MemberDescription(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.host,
        b"",
        encode_assignment(Assignment(partitions)),
    )
