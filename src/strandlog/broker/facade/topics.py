"""Requests about topics: look up, create, alter, delete, clean.

`Broker` inherits these methods. Permission checks belong at the top of each method. Changes run in
the order of the requests (`Runtime.run_in_order`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar
from uuid import UUID

from strandlog.broker.context import RequestContext
from strandlog.broker.deferred import Deferred
from strandlog.broker.flushing.visibility import Visibility
from strandlog.broker.runtime import Runtime
from strandlog.broker.topic_admin import TopicAdmin
from strandlog.broker.topics.catalog import TopicCatalog
from strandlog.broker.topics.dynamic_settings import DynamicSettings, Layer
from strandlog.broker.topics.topic import (
    INTERNAL_TOPICS,
    ActiveProducer,
    PartitionState,
    Topic,
    check_topic_name,
    forbid_internal,
)
from strandlog.errors import StrandlogError
from strandlog.model import TopicPartition, TopicRef
from strandlog.storage.cleaning.compaction import CompactionReport
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.work import Work

T = TypeVar("T")


def _state_of(log: PartitionLog) -> PartitionState:
    return PartitionState(
        *log.tp,
        log.log_start_offset,
        log.high_watermark,
        log.last_stable_offset,
        log.log_end_offset,
        log.segments.size_bytes,
        len(log.segments),
        log.failure,
        log.segments.active.base_offset,
        log.segments.active.size_bytes,
    )


class TopicRequests:
    """The topic requests of a `Broker`."""

    _catalog: TopicCatalog
    _topic_admin: TopicAdmin
    _runtime: Runtime
    _visibility: Visibility

    def topic_names(self, context: RequestContext) -> list[str]:
        """Return the names of all topics, sorted."""
        return self._catalog.names()

    def topics(self, context: RequestContext) -> list[Topic]:
        """Return all topics, sorted by name."""
        return [self._catalog.topic(name) for name in self._catalog.names()]

    def has_topic(self, context: RequestContext, name: str) -> bool:
        """Return whether a topic exists."""
        return name in self._catalog

    def topic(self, context: RequestContext, topic: TopicRef) -> Topic:
        """Return a topic by name or id; raise InvalidTopicError if the name is not valid."""
        if isinstance(topic, UUID):
            return self._catalog.topic_with_id(topic)
        return self._catalog.existing_or_valid(topic)

    def writable_topic(self, context: RequestContext, name: str) -> Topic:
        """Return a topic that clients may write to; raise if it is internal or does not exist."""
        if name in INTERNAL_TOPICS:  # checked here to save a call per record
            forbid_internal(name)
        return self._catalog.topic(name)

    def partition_count(self, context: RequestContext, name: str) -> int:
        """Return the number of partitions of a topic; raise TopicNotFoundError if it does not
        exist."""
        return self._catalog.topic(name).partitions

    def check_new_topic(
        self,
        context: RequestContext,
        name: str,
        partitions: int | None = None,
        config: Mapping[str, object] | None = None,
    ) -> Topic:
        """Return the topic that `create_topic` would create; raise the errors it would raise."""
        forbid_internal(check_topic_name(name))
        return self._catalog.check_new(name, partitions, config)

    def partition_state(
        self, context: RequestContext, topic: TopicRef, partition: int
    ) -> PartitionState:
        """Return the offsets, size and failure of one partition."""
        return _state_of(self._catalog.resolve(topic, partition))

    def partition_states(
        self, context: RequestContext, topic: TopicRef, first: int = 0, end: int | None = None
    ) -> list[PartitionState]:
        """Return the states of a topic's partitions from `first` up to, but excluding, `end`."""
        name = self._catalog.topic_with_id(topic).name if isinstance(topic, UUID) else topic
        return [_state_of(log) for log in self._catalog.logs(name)[first:end]]

    def size_from(
        self, context: RequestContext, topic: TopicRef, partition: int, base_offset: int
    ) -> int:
        """Return the total size of a partition's segments from a base offset on."""
        segments = self._catalog.resolve(topic, partition).segments.all()
        return sum(each.size_bytes for each in segments if each.base_offset >= base_offset)

    def producers(
        self, context: RequestContext, topic: TopicRef, partition: int
    ) -> Iterator[ActiveProducer]:
        """Return the idempotent producers of a partition, as an iterator because there may be
        many."""
        entries = list(self._catalog.resolve(topic, partition).producers)
        return (
            ActiveProducer(
                producer_id,
                entry.epoch,
                entry.last_sequence,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.open_transaction,
            )
            for producer_id, entry in entries
        )

    def create_topic(
        self,
        context: RequestContext,
        name: str,
        partitions: int | None = None,
        config: Mapping[str, object] | None = None,
    ) -> Deferred[Topic]:
        """Create a topic; first delete committed offsets left by an earlier topic of that name."""
        return self._in_order("CreateTopic", self._topic_admin.create(name, partitions, config))

    def create_missing_topics(
        self, context: RequestContext, names: Sequence[str]
    ) -> Deferred[dict[str, StrandlogError]]:
        """Create the topics that do not exist (auto.create.topics.enable); return the errors."""
        return self._in_order("CreateTopic", self._topic_admin.create_missing(names))

    def delete_topic(self, context: RequestContext, name: str) -> Deferred[None]:
        """Delete a topic and the offsets that groups have committed for it."""
        return self._in_order("DeleteTopic", self._topic_admin.delete(name))

    def add_partitions(self, context: RequestContext, name: str, count: int) -> Deferred[Topic]:
        """Increase the number of partitions of a topic to `count`."""
        return self._in_order("CreatePartitions", self._topic_admin.add_partitions(name, count))

    def alter_topic(
        self, context: RequestContext, name: str, changes: Mapping[str, object | None]
    ) -> Deferred[Topic]:
        """Change settings of a topic; None resets one to its default."""
        return self._in_order("AlterConfigs", self._topic_admin.alter(name, changes))

    def alter_broker_settings(
        self, context: RequestContext, layer: Layer, changes: Mapping[str, object | None]
    ) -> Deferred[None]:
        """Change dynamic broker settings in one layer; None removes a setting from the layer."""
        return self._in_order("AlterConfigs", self._topic_admin.alter_broker(layer, changes))

    @property
    def dynamic_settings(self) -> DynamicSettings:
        """The broker's dynamic settings, by layer."""
        return self._catalog.dynamic

    def compact_topic(self, context: RequestContext, name: str) -> Deferred[CompactionReport]:
        """Compact a topic now, regardless of its cleanup policy and the schedule."""
        return self._in_order("compaction", self._topic_admin.compact(name))

    def apply_retention(self, context: RequestContext, name: str) -> Deferred[int]:
        """Apply the retention settings of a topic now; return how many offsets were removed."""
        return self._in_order("retention", self._topic_admin.apply_retention(name))

    def delete_records(
        self, context: RequestContext, offsets: Mapping[TopicPartition, int]
    ) -> Deferred[dict[TopicPartition, int | StrandlogError]]:
        """Delete the records below an offset (-1: all visible records); return the new log start
        offsets once they are durable."""
        result: Deferred[dict[TopicPartition, int | StrandlogError]] = Deferred()
        work = self._topic_admin.delete_records(offsets)
        self._visibility.when_visible(
            self._catalog.existing(offsets),
            lambda: self._run_in_order("DeleteRecords", work, result),
        )
        return result

    def _in_order(self, name: str, work: Work[T]) -> Deferred[T]:
        result: Deferred[T] = Deferred()
        self._run_in_order(name, work, result)
        return result

    def _run_in_order(self, name: str, work: Work[T], result: Deferred[T]) -> None:
        def run() -> Work[None]:
            try:
                value = yield from work
            except Exception as error:  # noqa: BLE001 - passed on to the request that caused it
                result.fail(error)
            else:
                result.complete(value)

        self._runtime.run_in_order(name, run())
