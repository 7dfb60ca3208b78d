"""Group administration and committed offsets through a broker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from strandlog.broker.groups.requests import NO_GENERATION, GroupDescription, MemberDescription
from strandlog.client.remote.errors import check_names, confluent, error_of, translated
from strandlog.errors import GroupNotFoundError
from strandlog.model import OffsetAndMetadata, TopicPartition
from strandlog.protocol.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    Assignment,
    encode_assignment,
)

if TYPE_CHECKING:
    from strandlog.client.remote.log import RemoteLog

# Maps librdkafka's names for group states to Kafka's.
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
    """Lists, describes and deletes the groups of a cluster, and manages their offsets."""

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
        check_names(group=group)
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
        check_names([tp.topic for tp in offsets])
        wanted = confluent().ConsumerGroupTopicPartitions(group, _with_offsets(offsets))
        with translated(group=group):
            futures = self._log.admin.alter_consumer_group_offsets(
                [wanted], **self._log.request_options
            )
        found = self._log.result(futures[group], group=group, needs="READ")
        for tp in found.topic_partitions:
            if tp.error is not None:
                raise error_of(
                    tp.error,
                    topic=tp.topic,
                    group=group,
                    needs="READ",
                    principal=self._log.principal,
                )

    def delete(self, group: str) -> None:
        with translated(group=group):
            futures = self._log.admin.delete_consumer_groups([group], **self._log.request_options)
        self._log.result(futures[group], group=group, needs="DELETE")


class RemoteOffsets:
    """Fetches and commits the offsets of a consumer's group; without a group, there are none."""

    def __init__(self, log: RemoteLog, client: Any, group: str | None) -> None:
        self._log = log
        self._client = client
        self._group = group

    def fetch(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the committed offsets; partitions without one are omitted."""
        if self._group is None:
            return {}
        make = confluent().TopicPartition
        with translated(
            group=self._group, to=self._log.bootstrap, needs="READ", principal=self._log.principal
        ):
            found = self._client.committed([make(*tp) for tp in tps], self._log.timeout_ms / 1000)
        self._check(found)
        return {TopicPartition(tp.topic, tp.partition): tp.offset for tp in found if tp.offset >= 0}

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets and wait for the broker's response."""
        with translated(
            group=self._group, to=self._log.bootstrap, needs="READ", principal=self._log.principal
        ):
            found = self._client.commit(offsets=_with_offsets(offsets), asynchronous=False)
        self._check(found)

    def commit_later(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets without waiting; the consumer's `on_commit` callback gets the result."""
        with translated(
            group=self._group, to=self._log.bootstrap, needs="READ", principal=self._log.principal
        ):
            self._client.commit(offsets=_with_offsets(offsets))

    def _check(self, results: list[Any]) -> None:
        for tp in results:
            if tp.error is not None:
                raise error_of(
                    tp.error,
                    topic=tp.topic,
                    group=self._group,
                    needs="READ",
                    principal=self._log.principal,
                )


def _member(member: Any) -> MemberDescription:
    """Describe a member; its assignment is encoded as in the descriptions of other logs."""
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


def _with_offsets(offsets: Mapping[TopicPartition, int]) -> list[Any]:
    make = confluent().TopicPartition
    return [make(*tp, offset) for tp, offset in offsets.items()]
