"""Requests about consumer groups: membership and committed offsets.

`Broker` inherits these methods. Permission checks belong at the top of each method. Everything that
a request writes is durable when its result is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from strandlog.broker.compacted_table import CompactedTable
from strandlog.broker.context import RequestContext
from strandlog.broker.deferred import Deferred, Procedure, deferred, run
from strandlog.broker.facade.topics import TopicRequests
from strandlog.broker.flushing.durability import Durability
from strandlog.broker.groups.coordinator import GroupCoordinator
from strandlog.broker.groups.requests import (
    CommitRequest,
    GroupDescription,
    GroupListing,
    JoinRequest,
    JoinResult,
    SyncRequest,
    SyncResult,
)
from strandlog.broker.topics.catalog import TopicCatalog
from strandlog.errors import StorageError, StrandlogError, UnstableOffsetError
from strandlog.model import OffsetAndMetadata, TopicPartition

T = TypeVar("T")


class GroupRequests(TopicRequests):
    """The group requests of a `Broker`."""

    _catalog: TopicCatalog
    _durability: Durability
    _group_coordinator: GroupCoordinator
    _offsets_table: CompactedTable

    def join_group(self, context: RequestContext, request: JoinRequest) -> Deferred[JoinResult]:
        """Join a group; the result completes when the rebalance does."""
        # The listener sets the client id of its context for each request, and the join may
        # run after the next request has arrived.
        caller = context.copy()
        return self._with_table(
            self._offsets_table, lambda: self._group_coordinator.join(caller, request)
        )

    def _with_table(self, table: CompactedTable, ask: Callable[[], Deferred[T]]) -> Deferred[T]:
        """Call `ask`, after creating the topic of the table if it does not exist."""
        if table.exists:
            return deferred(ask)

        def create_and_ask() -> Procedure[T]:
            yield self._in_order("CreateTopic", table.ensure())
            result: T = yield ask()
            return result

        return run(create_and_ask())

    def sync_group(self, context: RequestContext, request: SyncRequest) -> Deferred[SyncResult]:
        """Return a member's assignment; the result completes when the leader has sent it."""
        return deferred(lambda: self._group_coordinator.sync(request))

    def heartbeat(
        self,
        context: RequestContext,
        group: str,
        generation: int,
        member_id: str,
        instance_id: str | None = None,
    ) -> None:
        """Keep a member's session alive."""
        self._group_coordinator.heartbeat(group, generation, member_id, instance_id)

    def leave_group(
        self, context: RequestContext, group: str, member_id: str, instance_id: str | None = None
    ) -> None:
        """Remove a member from its group."""
        self._group_coordinator.leave(group, member_id, instance_id)

    def commit_offsets(
        self,
        context: RequestContext,
        request: CommitRequest,
        *,
        all_or_nothing: bool = False,
        missing_partitions: bool = False,
    ) -> Deferred[dict[TopicPartition, StrandlogError]]:
        """Commit offsets of a group; the result completes when they are durable. It contains an
        error for each partition whose offset was not committed. With `all_or_nothing`, the first
        error fails the call, and nothing is committed. With `missing_partitions`, the partitions
        need not exist."""
        return self._with_table(
            self._offsets_table,
            lambda: self._commit(
                request, all_or_nothing=all_or_nothing, missing_partitions=missing_partitions
            ),
        )

    def _commit(
        self, request: CommitRequest, *, all_or_nothing: bool, missing_partitions: bool
    ) -> Deferred[dict[TopicPartition, StrandlogError]]:
        errors: dict[TopicPartition, StrandlogError] = {}
        if not missing_partitions:
            request, errors = self._with_partitions(request)
        try:
            if not all_or_nothing:
                errors |= self._group_coordinator.try_commit_offsets(request)
            elif errors:
                raise next(iter(errors.values()))
            else:
                self._group_coordinator.commit_offsets(request)
        except StrandlogError as error:
            if all_or_nothing:
                return Deferred.failed(error)
            errors |= dict.fromkeys(request.offsets, error)
        return self.when_groups_durable([request.group_id], errors)

    def _with_partitions(
        self, request: CommitRequest
    ) -> tuple[CommitRequest, dict[TopicPartition, StrandlogError]]:
        """Return the request without partitions that do not exist, and the errors for those."""
        errors: dict[TopicPartition, StrandlogError] = {}
        for tp in request.offsets:
            try:
                self._catalog.log(*tp)
            except StrandlogError as error:
                errors[tp] = error
        if errors:
            kept = {tp: each for tp, each in request.offsets.items() if tp not in errors}
            request = replace(request, offsets=kept)
        return request, errors

    def when_groups_durable(self, groups: Iterable[str], value: T) -> Deferred[T]:
        """Return a result that completes with `value` when everything that the coordinator wrote
        for these groups is on disk."""
        result: Deferred[T] = Deferred()
        exists = self._offsets_table.exists
        logs = {self._offsets_table.existing_log_for(group) for group in groups} if exists else ()
        left, failure = len(logs) + 1, None

        def on_durable(error: StorageError | None) -> None:
            nonlocal left, failure
            left, failure = left - 1, error or failure
            if failure is not None:
                result.fail(failure)
            elif not left:
                result.complete(value)

        for log in logs:
            self._durability.when_durable(log, log.log_end_offset, on_durable)
        on_durable(None)
        return result

    def fetch_offsets(
        self,
        context: RequestContext,
        group: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        require_stable: bool = False,
    ) -> dict[TopicPartition, OffsetAndMetadata | StrandlogError | None]:
        """Return the committed offset of each partition, or None if it has none. If `partitions`
        is None, return all offsets of the group. With `require_stable`, an offset that an open
        transaction may change is reported as an error."""
        found: dict[TopicPartition, OffsetAndMetadata | StrandlogError | None] = {
            **self._group_coordinator.fetch_offsets(group, partitions)
        }
        if require_stable:
            for tp in found:
                if self._group_coordinator.has_pending_commit(group, tp):
                    found[tp] = UnstableOffsetError(
                        f"an open transaction may change the offset of {group!r} in {tp}"
                    )
        return found

    def delete_offsets(
        self, context: RequestContext, group: str, partitions: Sequence[TopicPartition]
    ) -> Deferred[dict[TopicPartition, StrandlogError]]:
        """Delete committed offsets; return errors for partitions of topics still subscribed to."""
        try:
            errors = self._group_coordinator.delete_offsets(group, partitions)
        except StrandlogError as error:
            return Deferred.failed(error)
        return self.when_groups_durable([group], errors)

    def delete_group(self, context: RequestContext, group: str) -> Deferred[None]:
        """Delete a group that has no members; the result completes when the deletion is durable."""
        try:
            self._group_coordinator.delete(group)
        except StrandlogError as error:
            return Deferred.failed(error)
        return self.when_groups_durable([group], None)

    def groups(self, context: RequestContext) -> list[GroupListing]:
        """Return all groups, sorted by name."""
        return self._group_coordinator.list_groups()

    def describe_group(self, context: RequestContext, group: str) -> GroupDescription:
        """Return the state and members of a group."""
        return self._group_coordinator.describe(group)

    def member_count(self, context: RequestContext, group: str) -> int:
        """Return the number of members of a group."""
        return self._group_coordinator.member_count(group)

    def subscribed_groups(self, context: RequestContext, topic: str) -> list[str]:
        """Return the groups with a member that subscribes to a topic."""
        return self._group_coordinator.groups_subscribed_to(topic)
