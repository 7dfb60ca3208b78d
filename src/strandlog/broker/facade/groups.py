"""Requests about consumer groups: membership and committed offsets.

`Broker` inherits these methods. Each checks the client's permission first: READ on the group for
membership and commits, DESCRIBE to inspect the group, DELETE to delete the group or its offsets,
and READ or DESCRIBE on the topics of committed offsets. Commits and deletions are durable when
their results are complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from strandlog.broker.access.permission import (
    CLUSTER,
    DELETE,
    DESCRIBE,
    GROUP,
    READ,
    TOPIC,
)
from strandlog.broker.compacted_table import CompactedTable
from strandlog.broker.context import RequestContext
from strandlog.broker.deferred import Deferred, Procedure, as_result, deferred, run
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

READ_GROUP, DESCRIBE_GROUP, DELETE_GROUP = READ.on(GROUP), DESCRIBE.on(GROUP), DELETE.on(GROUP)
LIST_GROUP = (DESCRIBE.on(CLUSTER), DESCRIBE_GROUP)
READ_TOPIC, DESCRIBE_TOPIC = READ.on(TOPIC), DESCRIBE.on(TOPIC)


class GroupRequests(TopicRequests):
    """The group requests of a `Broker`."""

    _catalog: TopicCatalog
    _durability: Durability
    _group_coordinator: GroupCoordinator
    _offsets_table: CompactedTable

    def join_group(self, context: RequestContext, request: JoinRequest) -> Deferred[JoinResult]:
        """Join a group; if that requires a rebalance, the result completes when the rebalance
        ends."""
        if (denial := self._access.denial(context, READ_GROUP, request.group_id)) is not None:
            return Deferred.failed(denial)
        # The listener sets the client id of its context for each request, and the join may
        # run after the next request has arrived.
        caller = context.copy()
        return self._with_table(
            self._offsets_table, lambda: self._group_coordinator.join(caller, request)
        )

    def _with_table(self, table: CompactedTable, ask: Callable[[], Deferred[T]]) -> Deferred[T]:
        """Create the table's topic if it does not exist, then call `ask`."""
        if table.exists:
            return deferred(ask)

        def create_and_ask() -> Procedure[T]:
            yield self._in_order("CreateTopic", table.ensure())
            result: T = yield ask()
            return result

        return run(create_and_ask())

    def sync_group(self, context: RequestContext, request: SyncRequest) -> Deferred[SyncResult]:
        """Return a member's assignment; the result completes when the leader has sent it."""
        if (denial := self._access.denial(context, READ_GROUP, request.group_id)) is not None:
            return Deferred.failed(denial)
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
        self._access.require(context, READ_GROUP, group)
        self._group_coordinator.heartbeat(group, generation, member_id, instance_id)

    def leave_group(
        self, context: RequestContext, group: str, member_id: str, instance_id: str | None = None
    ) -> None:
        """Remove a member from its group."""
        self._access.require(context, READ_GROUP, group)
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
        result = self._commit_allowed(
            context, request, all_or_nothing=all_or_nothing, may_be_missing=missing_partitions
        )
        if request.member_id:
            return result
        # Not a member: an administration tool or a client that is not in the group sets offsets.
        return self._audited(
            context,
            "commit_offsets",
            GROUP,
            request.group_id,
            result,
            outcomes=lambda errors: [(request.group_id, next(iter(errors.values()), None))],
            is_routine=True,
        )

    def _commit_allowed(
        self,
        context: RequestContext,
        request: CommitRequest,
        *,
        all_or_nothing: bool,
        may_be_missing: bool,
    ) -> Deferred[dict[TopicPartition, StrandlogError]]:
        denied: dict[TopicPartition, StrandlogError] = {}
        if self._access.is_on:
            try:
                request, denied = self._without_denied(context, request)
            except StrandlogError as error:
                return Deferred.failed(error)
        if denied and all_or_nothing:
            return Deferred.failed(next(iter(denied.values())))
        if denied and not request.offsets:
            return Deferred.done(denied)
        return self._with_table(
            self._offsets_table,
            lambda: self._commit(
                request, denied, all_or_nothing=all_or_nothing, may_be_missing=may_be_missing
            ),
        )

    def _without_denied(
        self, context: RequestContext, request: CommitRequest
    ) -> tuple[CommitRequest, dict[TopicPartition, StrandlogError]]:
        """Return the request without the offsets that the client may not commit, and the errors for
        their partitions. Without READ on the group, the client may commit none of them; if the
        request has no offsets, raise the error."""
        denial = self._access.denial(context, READ_GROUP, request.group_id)
        if denial is not None:
            if not request.offsets:
                raise denial
            return replace(request, offsets={}), dict.fromkeys(request.offsets, denial)
        denied = self._denied_partitions(context, READ_TOPIC, request.offsets)
        kept = {tp: each for tp, each in request.offsets.items() if tp not in denied}
        return replace(request, offsets=kept), denied

    def _commit(
        self,
        request: CommitRequest,
        denied: dict[TopicPartition, StrandlogError],
        *,
        all_or_nothing: bool,
        may_be_missing: bool,
    ) -> Deferred[dict[TopicPartition, StrandlogError]]:
        errors = dict(denied)
        if not may_be_missing:
            request, missing = self._with_partitions(request)
            errors |= missing
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
        """Return the request without the partitions that do not exist, and an error for each."""
        errors: dict[TopicPartition, StrandlogError] = {}
        for tp in request.offsets:
            try:
                self._catalog.log(*tp)
            except StrandlogError as error:
                errors[tp] = as_result(error)
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
        is None, return all of the group's offsets for topics that the client may see; otherwise,
        topics that the client may not see get an error. With `require_stable`, an offset that an
        open transaction may change is reported as an error too."""
        self._access.require(context, DESCRIBE_GROUP, group)
        found: dict[TopicPartition, OffsetAndMetadata | StrandlogError | None] = {
            **self._group_coordinator.fetch_offsets(group, partitions)
        }
        if self._access.is_on:
            self._hide_offsets(context, found, is_listing=partitions is None)
        if require_stable:
            for tp in found.keys() & self._group_coordinator.pending_commits(group):
                if not isinstance(found[tp], StrandlogError):
                    found[tp] = UnstableOffsetError(
                        f"an open transaction may change the offset of {group!r} in {tp}"
                    )
        return found

    def _hide_offsets(
        self,
        context: RequestContext,
        found: dict[TopicPartition, OffsetAndMetadata | StrandlogError | None],
        *,
        is_listing: bool,
    ) -> None:
        """Remove the offsets of topics that the client may not see, or replace them with errors."""
        if is_listing:
            visible = set(self._access.allowed(context, DESCRIBE_TOPIC, {tp.topic for tp in found}))
            for tp in [tp for tp in found if tp.topic not in visible]:
                del found[tp]
        else:
            found |= self._denied_partitions(context, DESCRIBE_TOPIC, found)

    def delete_offsets(
        self, context: RequestContext, group: str, partitions: Sequence[TopicPartition]
    ) -> Deferred[dict[TopicPartition, StrandlogError]]:
        """Delete committed offsets; return errors for partitions of topics that a member subscribes
        to or that the client may not read."""
        return self._audited(
            context,
            "delete_offsets",
            GROUP,
            group,
            deferred(lambda: self._delete_offsets(context, group, partitions)),
            {"partitions": ", ".join(map(str, partitions))},
            outcomes=lambda errors: [(group, next(iter(errors.values()), None))],
        )

    def _delete_offsets(
        self, context: RequestContext, group: str, partitions: Sequence[TopicPartition]
    ) -> Deferred[dict[TopicPartition, StrandlogError]]:
        self._access.require(context, DELETE_GROUP, group)
        denied = self._denied_partitions(context, READ_TOPIC, partitions)
        kept = [tp for tp in partitions if tp not in denied]
        errors = {**denied, **self._group_coordinator.delete_offsets(group, kept)}
        return self.when_groups_durable([group], errors)

    def delete_group(self, context: RequestContext, group: str) -> Deferred[None]:
        """Delete a group that has no members; the result completes when the deletion is durable."""

        def delete() -> Deferred[None]:
            self._access.require(context, DELETE_GROUP, group)
            self._group_coordinator.delete(group)
            return self.when_groups_durable([group], None)

        return self._audited(context, "delete_group", GROUP, group, deferred(delete))

    def groups(self, context: RequestContext) -> list[GroupListing]:
        """Return all groups that the client may see, sorted by name."""
        listings = self._group_coordinator.list_groups()
        if not self._access.is_on:
            return listings
        return [
            each for each in listings if self._access.allows(context, LIST_GROUP, each.group_id)
        ]

    def groups_with_offsets(self, context: RequestContext, topic: str) -> list[GroupListing]:
        """Return the groups that the client may describe and that have committed offsets in a
        topic, sorted by name."""
        self._access.require(context, DESCRIBE_TOPIC, topic)
        listings = self._group_coordinator.groups_with_offsets(topic)
        names = [each.group_id for each in listings]
        allowed = set(self._access.allowed(context, DESCRIBE_GROUP, names))
        return [each for each in listings if each.group_id in allowed]

    def describe_group(self, context: RequestContext, group: str) -> GroupDescription:
        """Return the state and members of a group."""
        self._access.require(context, DESCRIBE_GROUP, group)
        return self._group_coordinator.describe(group)

    def member_count(self, context: RequestContext, group: str) -> int:
        """Return the number of members of a group."""
        self._access.require(context, DESCRIBE_GROUP, group)
        return self._group_coordinator.member_count(group)

    def subscribed_groups(self, context: RequestContext, topic: str) -> list[str]:
        """Return the groups that the client may see and that subscribe to a topic."""
        groups = self._group_coordinator.groups_subscribed_to(topic)
        return self._access.allowed(context, LIST_GROUP, groups)
