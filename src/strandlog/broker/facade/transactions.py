"""Requests about producers and transactions.

`Broker` inherits these methods. Each checks the client's permissions first. Requests that are part
of a transaction check them in Kafka's order: WRITE on the transactional id, READ on the group, then
WRITE or READ on each topic.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from strandlog.broker.access.permission import (
    CLUSTER,
    DESCRIBE,
    IDEMPOTENT_WRITE,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
)
from strandlog.broker.compacted_table import CompactedTable
from strandlog.broker.context import RequestContext
from strandlog.broker.deferred import Deferred, deferred
from strandlog.broker.facade.groups import DESCRIBE_GROUP, READ_GROUP, GroupRequests
from strandlog.broker.groups.requests import CommitRequest
from strandlog.broker.transactions.coordinator import TransactionCoordinator
from strandlog.broker.transactions.producer_ids import ProducerIds
from strandlog.broker.transactions.transaction import Transaction
from strandlog.errors import InvalidRequestError, StrandlogError, TopicAuthorizationError
from strandlog.model import ProducerIdentity, TopicPartition

WRITE_TRANSACTIONS, DESCRIBE_TRANSACTION = WRITE.on(TRANSACTIONAL_ID), DESCRIBE.on(TRANSACTIONAL_ID)
WRITE_IDEMPOTENTLY = IDEMPOTENT_WRITE.on(CLUSTER)
DESCRIBE_TOPIC, WRITE_TOPIC = DESCRIBE.on(TOPIC), WRITE.on(TOPIC)


class TransactionRequests(GroupRequests):
    """The producer and transaction requests of a `Broker`."""

    _producer_ids: ProducerIds
    _transaction_coordinator: TransactionCoordinator
    _transactions_table: CompactedTable

    def find_coordinator(
        self, context: RequestContext, kind: Literal["group", "transaction"], key: str
    ) -> Deferred[None]:
        """Create the topic that the coordinator stores its state in, if it does not exist."""
        needs = DESCRIBE_GROUP if kind == "group" else DESCRIBE_TRANSACTION
        if (denial := self._access.denial(context, needs, key)) is not None:
            return Deferred.failed(denial)
        table = self._offsets_table if kind == "group" else self._transactions_table
        if table.exists:
            return Deferred.done(None)
        return self._in_order("FindCoordinator", table.ensure())

    def init_producer_id(
        self,
        context: RequestContext,
        transactional_id: str | None,
        timeout_ms: int,
        producer: ProducerIdentity,
    ) -> Deferred[ProducerIdentity]:
        """Return a producer id and epoch, after aborting any transaction the producer left open.

        Without a transactional id, the client needs IDEMPOTENT_WRITE on the cluster or WRITE on at
        least one topic."""
        access = self._access
        if transactional_id is not None:
            denial = access.denial(context, WRITE_TRANSACTIONS, transactional_id)
            if denial is not None:
                return Deferred.failed(denial)
        elif not (
            access.allows(context, WRITE_IDEMPOTENTLY)
            or access.allows_any_topic(context, WRITE_TOPIC.operation)
        ):
            return Deferred.failed(access.denied(context, WRITE_IDEMPOTENTLY))
        if transactional_id == "" or (producer.producer_id < 0) is not (producer.epoch < 0):
            problem = "the transactional id is empty, or only one of producer id and epoch is set"
            return Deferred.failed(InvalidRequestError(problem))
        if transactional_id is None:
            return deferred(lambda: Deferred.done(ProducerIdentity(self._producer_ids.next(), 0)))
        name = transactional_id
        return self._with_table(
            self._transactions_table,
            lambda: self._transaction_coordinator.init_producer(name, timeout_ms, producer),
        )

    def check_transaction_partition(self, context: RequestContext, tp: TopicPartition) -> None:
        """Raise if the client may not write to the topic, if only the broker may write to it, or if
        the partition does not exist."""
        self._access.require(context, WRITE_TOPIC, tp.topic)
        if tp.topic in self._protected:  # regardless of the ACLs, as in Kafka
            raise TopicAuthorizationError(f"no client may write to the internal topic {tp.topic!r}")
        self._catalog.log(*tp)

    def add_partitions_to_transaction(
        self,
        context: RequestContext,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Iterable[TopicPartition],
    ) -> Deferred[None]:
        """Add partitions to the producer's transaction before it writes to them. The caller checks
        each partition with `check_transaction_partition`."""
        if (
            denial := self._access.denial(context, WRITE_TRANSACTIONS, transactional_id)
        ) is not None:
            return Deferred.failed(denial)
        return deferred(
            lambda: self._transaction_coordinator.add_partitions(
                transactional_id, producer, partitions
            )
        )

    def add_offsets_to_transaction(
        self, context: RequestContext, transactional_id: str, producer: ProducerIdentity, group: str
    ) -> Deferred[None]:
        """Add the partition that stores a group's offsets to the producer's transaction."""
        for needs, name in ((WRITE_TRANSACTIONS, transactional_id), (READ_GROUP, group)):
            if (denial := self._access.denial(context, needs, name)) is not None:
                return Deferred.failed(denial)
        return self._with_table(
            self._offsets_table,
            lambda: self._transaction_coordinator.add_partitions(
                transactional_id, producer, [self._offsets_table.existing_log_for(group).tp]
            ),
        )

    def commit_transaction_offsets(
        self,
        context: RequestContext,
        transactional_id: str,
        request: CommitRequest,
        producer: ProducerIdentity,
    ) -> Deferred[dict[TopicPartition, StrandlogError]]:
        """Commit offsets inside a transaction; they take effect when it commits."""
        if (
            denial := self._access.denial(context, WRITE_TRANSACTIONS, transactional_id)
        ) is not None:
            return Deferred.failed(denial)
        errors: dict[TopicPartition, StrandlogError] = {}
        if self._access.is_on:
            try:
                request, errors = self._without_denied(context, request)
            except StrandlogError as error:
                return Deferred.failed(error)
            if errors and not request.offsets:
                return Deferred.done(errors)
        request, missing = self._with_partitions(request)
        errors |= missing
        try:
            self._transaction_coordinator.check_id(transactional_id, producer.producer_id)
            log = self._offsets_table.existing_log_for(request.group_id)
            self._transaction_coordinator.check_append(producer, log.tp)
            errors |= self._group_coordinator.try_commit_in_transaction(request, producer)
        except StrandlogError as error:
            errors |= dict.fromkeys(request.offsets, error)
        return self.when_groups_durable([request.group_id], errors)

    def end_transaction(
        self,
        context: RequestContext,
        transactional_id: str,
        producer: ProducerIdentity,
        *,
        commit: bool,
    ) -> Deferred[None]:
        """Commit or abort a transaction; the result completes when every marker is durable."""
        if (
            denial := self._access.denial(context, WRITE_TRANSACTIONS, transactional_id)
        ) is not None:
            return Deferred.failed(denial)
        return deferred(
            lambda: self._transaction_coordinator.end(transactional_id, producer, commit=commit)
        )

    def transactions(self, context: RequestContext) -> list[Transaction]:
        """Return all transactional producers that the client may see, sorted by transactional
        id."""
        found = self._transaction_coordinator.all()
        if not self._access.is_on:
            return found
        return [
            each
            for each in found
            if self._access.allows(context, DESCRIBE_TRANSACTION, each.transactional_id)
        ]

    def describe_transaction(self, context: RequestContext, transactional_id: str) -> Transaction:
        """Return one transactional producer and its transaction, without the partitions of topics
        that the client may not see."""
        self._access.require(context, DESCRIBE_TRANSACTION, transactional_id)
        found = self._transaction_coordinator.describe(transactional_id)
        if not self._access.is_on:
            return found
        visible = frozenset(
            tp for tp in found.partitions if self._access.allows(context, DESCRIBE_TOPIC, tp.topic)
        )
        return replace(found, partitions=visible)
