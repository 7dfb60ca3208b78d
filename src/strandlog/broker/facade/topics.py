"""Requests about topics: look up, create, alter, delete and clean.

`Broker` inherits these methods. Each checks the client's permission first. `needs` is the
permission that a lookup requires, by default DESCRIBE on the topic; a listener passes a different
one if the lookup is part of another operation. Changes run one at a time and in order
(`Runtime.run_in_order`).

Partitions that a valid request creates or deletes count towards the client's quota
controller_mutation_rate. With `refuse_over_quota`, a client that exceeds this quota gets an error;
older versions of Kafka's protocol have no such error, so their clients are only paused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar
from uuid import UUID

from strandlog.broker.access.permission import (
    ALTER,
    ALTER_CONFIGS,
    CLUSTER,
    CREATE,
    DELETE,
    DESCRIBE,
    READ,
    TOPIC,
    WRITE,
    Requirement,
)
from strandlog.broker.access.quotas import Quotas
from strandlog.broker.context import RequestContext
from strandlog.broker.deferred import Deferred
from strandlog.broker.facade.access import AccessRequests
from strandlog.broker.flushing.visibility import Visibility
from strandlog.broker.runtime import Runtime
from strandlog.broker.topic_admin import TopicAdmin
from strandlog.broker.topics.catalog import TopicCatalog
from strandlog.broker.topics.dynamic_settings import DynamicSettings, Layer
from strandlog.broker.topics.topic import (
    ActiveProducer,
    PartitionState,
    Topic,
    check_topic_name,
    forbid_internal,
)
from strandlog.clock import Clock
from strandlog.config.tables.broker import BrokerSettings
from strandlog.errors import StrandlogError
from strandlog.model import TopicPartition, TopicRef
from strandlog.storage.cleaning.compaction import CompactionReport
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.work import Work

T = TypeVar("T")

DESCRIBE_TOPIC = DESCRIBE.on(TOPIC)
CREATE_TOPIC = (CREATE.on(CLUSTER), CREATE.on(TOPIC))
DELETE_TOPIC = (DELETE.on(CLUSTER), DELETE.on(TOPIC))


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


class TopicRequests(AccessRequests):
    """The topic requests of a `Broker`."""

    _catalog: TopicCatalog
    _topic_admin: TopicAdmin
    _runtime: Runtime
    _visibility: Visibility
    _quotas: Quotas
    clock: Clock
    settings: BrokerSettings
    _protected: frozenset[str]  # topics that only the broker writes

    def topic_names(
        self, context: RequestContext, needs: Requirement = DESCRIBE_TOPIC
    ) -> list[str]:
        """Return the names of all topics that the client may see, sorted."""
        return self._access.allowed(context, needs, self._catalog.names())

    def topics(self, context: RequestContext) -> list[Topic]:
        """Return all topics that the client may see, sorted by name."""
        return [self._catalog.topic(name) for name in self.topic_names(context)]

    def has_topic(
        self, context: RequestContext, name: str, needs: Requirement = DESCRIBE_TOPIC
    ) -> bool:
        """Return whether a topic exists and the client may see it."""
        return name in self._catalog and self._access.allows(context, needs, name)

    def topic(
        self, context: RequestContext, topic: TopicRef, needs: Requirement = DESCRIBE_TOPIC
    ) -> Topic:
        """Return a topic by name or id; raise InvalidTopicError if the name is not valid."""
        if isinstance(topic, UUID):
            found = self._catalog.topic_with_id(topic)  # ids are not secret, names are
            denial = self._access.denial(context, needs, found.name, by_id=True)
            if denial is not None:
                raise denial
            return found
        self._access.require(context, needs, topic)
        return self._catalog.existing_or_valid(topic)

    def writable_topic(self, context: RequestContext, name: str) -> Topic:
        """Return a topic that the client may write to; raise if it is protected or does not
        exist."""
        if self._access.is_on:
            self._access.require(context, WRITE.on(TOPIC), name)
        if name in self._protected:  # checked here to save a call per record
            forbid_internal(name, self._protected)
        return self._catalog.topic(name)

    def partition_count(self, context: RequestContext, name: str) -> int:
        """Return the number of partitions of a topic; raise TopicNotFoundError if it does not
        exist."""
        self._access.require(context, DESCRIBE_TOPIC, name)
        return self._catalog.topic(name).partitions

    def check_new_topic(
        self,
        context: RequestContext,
        name: str,
        partitions: int | None = None,
        config: Mapping[str, object] | None = None,
    ) -> Topic:
        """Return the topic that `create_topic` would create; raise the errors that it would raise,
        except for quota and disk errors."""
        self._access.require(context, CREATE_TOPIC, name)
        forbid_internal(check_topic_name(name), self._protected)
        return self._catalog.check_new(name, partitions, config)

    def _resolve(
        self, context: RequestContext, needs: Requirement, topic: TopicRef, partition: int
    ) -> PartitionLog:
        """Return the log of a partition, after checking the permission."""
        if self._access.is_on:
            if isinstance(topic, UUID):
                self.topic(context, topic, needs)
            else:
                self._access.require(context, needs, topic)
        return self._catalog.resolve(topic, partition)

    def partition_state(
        self,
        context: RequestContext,
        topic: TopicRef,
        partition: int,
        needs: Requirement = DESCRIBE_TOPIC,
    ) -> PartitionState:
        """Return the offsets, size and failure of one partition."""
        return _state_of(self._resolve(context, needs, topic, partition))

    def partition_states(
        self, context: RequestContext, topic: TopicRef, first: int = 0, end: int | None = None
    ) -> list[PartitionState]:
        """Return the states of a topic's partitions from `first` up to, but excluding, `end`."""
        name = self._catalog.topic_with_id(topic).name if isinstance(topic, UUID) else topic
        self._access.require(context, DESCRIBE_TOPIC, name)
        return [_state_of(log) for log in self._catalog.logs(name)[first:end]]

    def size_from(
        self, context: RequestContext, topic: TopicRef, partition: int, base_offset: int
    ) -> int:
        """Return the total size of a partition's segments whose base offset is at least
        `base_offset`."""
        segments = self._resolve(context, DESCRIBE_TOPIC, topic, partition).segments.all()
        return sum(each.size_bytes for each in segments if each.base_offset >= base_offset)

    def producers(
        self, context: RequestContext, topic: TopicRef, partition: int
    ) -> Iterator[ActiveProducer]:
        """Return the idempotent producers of a partition, as an iterator because there can be
        many."""
        entries = list(self._resolve(context, READ.on(TOPIC), topic, partition).producers)
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
        *,
        refuse_over_quota: bool = True,
    ) -> Deferred[Topic]:
        """Create a topic; first delete committed offsets left by an earlier topic of that name."""
        refused = self._refused_change(
            context,
            lambda: self.check_new_topic(context, name, partitions, config).partitions,
            refuse=refuse_over_quota,
        )
        result = refused or self._in_order(
            "CreateTopic",
            self._topic_admin.create(name, partitions, config),
            context,
            CREATE_TOPIC,
            name,
        )
        details = {"partitions": partitions, **(config or {})}
        return self._audited(context, "create_topic", TOPIC, name, result, details)

    def create_missing_topics(
        self, context: RequestContext, names: Sequence[str]
    ) -> Deferred[dict[str, StrandlogError]]:
        """Create the topics that do not exist (auto.create.topics.enable); return the errors. A
        client must be allowed both to see and to create a topic."""
        denied: dict[str, StrandlogError] = {}
        if self._access.is_on:
            for needs in (DESCRIBE_TOPIC, CREATE_TOPIC):
                for name in names:
                    denial = None if name in denied else self._access.denial(context, needs, name)
                    if denial is not None:
                        denied[name] = denial
        allowed = [name for name in names if name not in denied]
        missing = [name for name in names if name not in self._catalog]
        if self._quotas.is_on:
            count = self.settings.num_partitions * len(allowed)
            self._charge_mutations(context, count, refuse=False)

        def create() -> Work[dict[str, StrandlogError]]:
            failed = yield from self._topic_admin.create_missing(allowed)
            return {**denied, **failed}

        return self._audited(
            context,
            "create_topic",
            TOPIC,
            ", ".join(missing),
            self._in_order("CreateTopic", create()),
            {"automatic": True},
            outcomes=lambda failed: [(name, failed.get(name)) for name in missing],
        )

    def delete_topic(
        self, context: RequestContext, name: str, *, refuse_over_quota: bool = True
    ) -> Deferred[None]:
        """Delete a topic and the offsets that groups have committed for it."""

        def count() -> int:
            self._access.require(context, DELETE_TOPIC, name)
            return self._catalog.topic(name).partitions

        refused = self._refused_change(context, count, refuse=refuse_over_quota)
        result = refused or self._in_order(
            "DeleteTopic", self._topic_admin.delete(name), context, DELETE_TOPIC, name
        )
        return self._audited(context, "delete_topic", TOPIC, name, result)

    def add_partitions(
        self,
        context: RequestContext,
        name: str,
        count: int,
        *,
        refuse_over_quota: bool = True,
    ) -> Deferred[Topic]:
        """Increase the number of partitions of a topic to `count`."""

        def more() -> int:
            self._access.require(context, ALTER.on(TOPIC), name)
            return max(0, count - self._catalog.topic(name).partitions)

        refused = self._refused_change(context, more, refuse=refuse_over_quota)
        result = refused or self._in_order(
            "CreatePartitions",
            self._topic_admin.add_partitions(name, count),
            context,
            ALTER.on(TOPIC),
            name,
        )
        return self._audited(context, "add_partitions", TOPIC, name, result, {"partitions": count})

    def _refused_change(
        self, context: RequestContext, count: Callable[[], int], *, refuse: bool
    ) -> Deferred[Any] | None:
        """Charge the partitions of a change to the client's quota. `count` returns their number and
        raises if the change is invalid. Return a failed result if it is invalid or refused. While
        there are no quotas, check nothing."""
        if not self._quotas.is_on:
            return None
        try:
            self._charge_mutations(context, count(), refuse=refuse)
        except StrandlogError as error:
            return Deferred.failed(error)
        return None

    def _charge_mutations(self, context: RequestContext, count: int, *, refuse: bool) -> int:
        """Charge `count` created or deleted partitions to the client's quota; return how many
        milliseconds the client must pause. With `refuse`, raise `ThrottlingQuotaExceededError` if
        the client already exceeds the quota."""
        if context.is_owner:
            return 0
        user, now_ms = context.principal.name, self.clock.monotonic_ms()
        return self._quotas.charge_mutations(user, context.client_id, count, now_ms, refuse=refuse)

    def mutation_delay_ms(self, context: RequestContext) -> int:
        """Return how many milliseconds a client must pause because of the partitions that it
        created or deleted."""
        return self._charge_mutations(context, 0, refuse=False)

    def alter_topic(
        self, context: RequestContext, name: str, changes: Mapping[str, object | None]
    ) -> Deferred[Topic]:
        """Change settings of a topic; a value of None resets a setting to its default."""
        result = self._in_order(
            "AlterConfigs",
            self._topic_admin.alter(name, changes),
            context,
            ALTER_CONFIGS.on(TOPIC),
            name,
        )
        return self._audited(context, "alter_topic", TOPIC, name, result, changes)

    def alter_broker_settings(
        self, context: RequestContext, layer: Layer, changes: Mapping[str, object | None]
    ) -> Deferred[None]:
        """Change dynamic broker settings in one layer; None removes a setting from the layer."""
        result = self._in_order(
            "AlterConfigs",
            self._topic_admin.alter_broker(layer, changes),
            context,
            ALTER_CONFIGS.on(CLUSTER),
        )
        return self._audited(context, "alter_broker_settings", CLUSTER, "", result, changes)

    @property
    def dynamic_settings(self) -> DynamicSettings:
        """The broker's dynamic settings, by layer."""
        return self._catalog.dynamic

    def compact_topic(self, context: RequestContext, name: str) -> Deferred[CompactionReport]:
        """Compact a topic now, regardless of its cleanup policy and the schedule."""
        result = self._in_order(
            "compaction", self._topic_admin.compact(name), context, ALTER.on(TOPIC), name
        )
        return self._audited(context, "compact_topic", TOPIC, name, result)

    def apply_retention(self, context: RequestContext, name: str) -> Deferred[int]:
        """Apply the retention settings of a topic now; return how many offsets were removed."""
        result = self._in_order(
            "retention", self._topic_admin.apply_retention(name), context, ALTER.on(TOPIC), name
        )
        return self._audited(context, "apply_retention", TOPIC, name, result)

    def delete_records(
        self, context: RequestContext, offsets: Mapping[TopicPartition, int]
    ) -> Deferred[dict[TopicPartition, int | StrandlogError]]:
        """Delete the records below an offset (-1: all visible records); return the new log start
        offsets, once they are durable, or errors."""
        result: Deferred[dict[TopicPartition, int | StrandlogError]] = Deferred()
        needs = DELETE.on(TOPIC)
        denied: dict[TopicPartition, int | StrandlogError] = {}
        if self._access.is_on:
            denied |= self._denied_partitions(context, needs, offsets)
        allowed = {tp: offset for tp, offset in offsets.items() if tp not in denied}

        def delete() -> Work[dict[TopicPartition, int | StrandlogError]]:
            deleted = yield from self._topic_admin.delete_records(allowed)
            return {**denied, **deleted}

        self._visibility.when_visible(
            self._catalog.existing(allowed),
            lambda: self._run_in_order("DeleteRecords", delete(), result),
        )
        return self._audited(
            context,
            "delete_records",
            TOPIC,
            "",
            result,
            outcomes=lambda found: [
                (str(tp), each if isinstance(each, StrandlogError) else None)
                for tp, each in found.items()
            ],
        )

    def _denied_partitions(
        self, context: RequestContext, needs: Requirement, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, StrandlogError]:
        """Return an error for each partition of a topic on which the client lacks a permission."""
        errors: dict[str, StrandlogError | None] = {}
        denied: dict[TopicPartition, StrandlogError] = {}
        for tp in partitions:
            if tp.topic not in errors:
                errors[tp.topic] = self._access.denial(context, needs, tp.topic)
            if (error := errors[tp.topic]) is not None:
                denied[tp] = error
        return denied

    def _in_order(
        self,
        title: str,
        work: Work[T],
        context: RequestContext | None = None,
        needs: Requirement = (),
        name: str = "",
    ) -> Deferred[T]:
        """Run a change after all earlier ones, if the client has the permission."""
        result: Deferred[T] = Deferred()
        denial = None if context is None else self._access.denial(context, needs, name)
        if denial is not None:
            result.fail(denial)
        else:
            self._run_in_order(title, work, result)
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
