"""Finds, creates, stores and expires consumer groups and their offsets.

    join ─▶ Group ─▶ Deferred          one `Group` per name, created by its first join or commit
    commit ─▶ checks ─▶ log ─▶ memory  the log is written first, so memory is never ahead of it
    load ◀─ log                        groups and offsets as of the last completed write
    tick ─▶ timers                     sessions, rebalances, and the expiry of offsets every
                                       offsets.retention.check.interval.ms

Errors in a request are raised immediately; a `Deferred` only fails with errors that occur while it
is pending.

Names in requests are validated (checks.py); names in the log are accepted unchanged.

The following clients may commit offsets:

- A simple consumer (generation -1) while the group is empty.
- A member of the current generation, unless that generation has no assignment yet
  (RebalanceInProgressError). In a "consumer" group, a member may only commit offsets for partitions
  that it owns (NotOwnerError), so a member with a stale position cannot move the group back. This
  is stricter than Kafka; see `MemberList.commit_rule` for the rule for cooperative members.
- A producer in its transaction (`try_commit_in_transaction`), with or without a member id.

`commit_offsets` commits all offsets or raises; `try_commit_offsets` commits the valid ones and
returns the errors for the others, as in Kafka's protocol.

A failed write is counted in `failed_writes`, and the error is raised to the caller. A write started
by a timer (for an emptied group or expired offsets) is retried at the next check.

Before `load()`, every request raises CoordinatorLoadingError.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import islice
from typing import NamedTuple

from strandlog.broker.compacted_table import TableLog, TableRecord, latest_values
from strandlog.broker.context import RequestContext
from strandlog.broker.deferred import Deferred
from strandlog.broker.groups.checks import (
    check_group_name,
    check_join,
    offset_errors,
    unknown_member,
)
from strandlog.broker.groups.group import EMPTY, Group, GroupServices
from strandlog.broker.groups.members import MemoryMeter
from strandlog.broker.groups.offsets import (
    CommittedOffsets,
    TransactionOffsets,
    commit_records,
    expired_partitions,
    expiry_rule,
    tombstones,
)
from strandlog.broker.groups.requests import (
    NO_MEMBER_ID,
    CommitRequest,
    GroupDescription,
    GroupListing,
    JoinRequest,
    JoinResult,
    SyncRequest,
    SyncResult,
)
from strandlog.broker.groups.stored_group import (
    description,
    group_value,
    listing,
    restore_group,
)
from strandlog.broker.timers import Timers
from strandlog.clock import Clock
from strandlog.config.tables.broker import BrokerSettings
from strandlog.errors import (
    CoordinatorLoadingError,
    DataError,
    GroupNotEmptyError,
    GroupNotFoundError,
    GroupSubscribedError,
    StrandlogError,
    TooManyGroupsError,
)
from strandlog.model import OffsetAndMetadata, TopicPartition
from strandlog.protocol.group_records import (
    GroupKey,
    GroupValue,
    OffsetKey,
    decode_group,
    decode_key,
    decode_offset,
    encode_group,
    encode_key,
)
from strandlog.storage.work import Work, yield_control

# A step of a long task ends after the group that reaches one of these numbers; other requests run
# between the steps.
OFFSETS_DELETED_AT_ONCE = 2_000  # offsets deleted per step
OFFSETS_EXAMINED_AT_ONCE = 10_000  # offsets searched per step
GROUPS_AT_ONCE = 50  # groups checked for expired offsets per step


class LoadReport(NamedTuple):
    """The result of `load`; `skipped` counts records of unknown kinds and invalid ones."""

    groups: int
    offsets: int
    skipped: int


class GroupCoordinator:
    """Manages all groups of one broker."""

    def __init__(
        self,
        settings: BrokerSettings,
        clock: Clock,
        timers: Timers,
        table: TableLog,
        new_id: Callable[[], str],
    ) -> None:
        self.failed_writes = 0
        self._settings = settings
        self._clock = clock
        self._table = table
        self._timers = timers
        meter = MemoryMeter(settings.groups_max_members)
        self._services = GroupServices(settings, clock, self._timers, new_id, self._save, meter)
        self._groups: dict[str, Group] = {}
        self._offsets = CommittedOffsets()
        self._transaction_offsets = TransactionOffsets()
        self._is_loaded = False

    def load(self) -> LoadReport:
        """Restore groups and offsets from the log and restart the members' sessions."""
        assert not self._is_loaded, "load must be called only once"
        values: dict[str, GroupValue] = {}
        skipped = 0
        for key, value in latest_values(self._table).items():
            try:
                skipped += self._load_record(key, value, values)
            except DataError:
                skipped += 1
        for name in dict.fromkeys([*values, *self._offsets.groups()]):
            self._groups[name] = group = Group(name, self._services)
            try:
                if name in values:
                    restore_group(group, values[name])
            except DataError:
                skipped += 1
        skipped += self._load_open_transactions()
        self._is_loaded = True
        self._schedule_expiry()
        offsets = sum(len(self._offsets.of_group(name)) for name in self._offsets.groups())
        return LoadReport(len(self._groups), offsets, skipped)

    def tick(self, now_ms: int) -> None:
        """Run the timers that are due at `now_ms`, which is a monotonic time."""
        self._timers.run_due(now_ms)

    def next_deadline_ms(self) -> int | None:
        """Return the time at which `tick` must be called next; None if no timer is scheduled."""
        return self._timers.next_deadline_ms()

    # Members.

    def join(self, context: RequestContext, request: JoinRequest) -> Deferred[JoinResult]:
        self._check_name(request.group_id)
        check_join(context, request, self._settings)
        group = self._groups.get(request.group_id)
        if group is None:
            if request.member_id != NO_MEMBER_ID:
                raise unknown_member(request.group_id, request.member_id)
            group = self._create(request.group_id)
        try:
            return group.join(context, request)
        finally:
            self._drop_if_unused(group)

    def sync(self, request: SyncRequest) -> Deferred[SyncResult]:
        return self._group_of_member(request.group_id, request.member_id).sync(request)

    def heartbeat(
        self,
        group_id: str,
        generation: int,
        member_id: str,
        group_instance_id: str | None = None,
    ) -> None:
        group = self._group_of_member(group_id, member_id)
        group.heartbeat(member_id, generation, group_instance_id)

    def leave(self, group_id: str, member_id: str, group_instance_id: str | None = None) -> None:
        group = self._group_of_member(group_id, member_id)
        group.leave(member_id, group_instance_id)
        self._drop_if_unused(group)

    # Offsets.

    def commit_offsets(self, request: CommitRequest) -> None:
        """Commit all offsets in the request, or raise an error and commit none."""
        group, errors = self._check_commit(request)
        for error in errors.values():
            raise error
        self._commit(group, request, errors)

    def try_commit_offsets(self, request: CommitRequest) -> dict[TopicPartition, StrandlogError]:
        """Commit the valid offsets and return the errors for the others."""
        group, errors = self._check_commit(request)
        self._commit(group, request, errors)
        return errors

    def fetch_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, OffsetAndMetadata | None]:
        """Return the committed offset of each partition, or None if it has none.

        Without `partitions`, return all committed offsets of the group.
        """
        self._check_name(group_id)
        if partitions is None:
            return self._offsets.of_group(group_id)
        return self._offsets.fetch(group_id, partitions)

    def delete_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, StrandlogError]:
        """Delete offsets; return errors for partitions of topics that a member subscribes to. Raise
        `GroupNotEmptyError` if a member's subscription is unknown."""
        group = self._existing(group_id)
        topics = group.subscribed_topics() if group.state is not EMPTY else frozenset()
        if topics is None:
            raise GroupNotEmptyError(group_id, len(group.members))
        errors: dict[TopicPartition, StrandlogError] = {
            partition: GroupSubscribedError(
                f"group {group_id!r} is subscribed to {partition.topic!r}; stop its members first"
            )
            for partition in partitions
            if partition.topic in topics
        }
        self._delete_offsets({group_id: self._held(group_id) & (set(partitions) - errors.keys())})
        return errors

    def delete_topic_offsets(self, topic: str) -> Work[None]:
        """Delete the offsets of a deleted topic from all groups, in batches.

        After an error, it can be called again to delete the rest.
        """
        self._check_loaded()
        gathered: dict[str, set[TopicPartition]] = {}
        examined = 0
        for name in self._transaction_offsets.groups().union(self._offsets.groups()):
            found = self._held(name)
            examined += len(found)
            if held := {tp for tp in found if tp.topic == topic}:
                gathered[name] = held
            count = sum(map(len, gathered.values()))
            if count >= OFFSETS_DELETED_AT_ONCE or examined >= OFFSETS_EXAMINED_AT_ONCE:
                self._delete_offsets(gathered)
                gathered, examined = {}, 0
                yield yield_control
        self._delete_offsets(gathered)

    # Offsets in transactions.

    def try_commit_in_transaction(
        self, request: CommitRequest, producer: tuple[int, int]
    ) -> dict[TopicPartition, StrandlogError]:
        """Commit offsets in the open transaction of a producer (id, epoch).

        They take effect when the transaction commits. A request without a member id is accepted,
        because the producer epoch already fences zombies.
        """
        self._check_name(request.group_id)
        is_member = request.member_id != NO_MEMBER_ID or request.generation >= 0
        group = self._groups.get(request.group_id) if is_member else None
        limit_bytes = self._settings.offset_metadata_max_bytes
        errors = offset_errors(group, request, limit_bytes)
        offsets = self._stamped(request, errors)
        if offsets:
            self._check_room_for(request.group_id, offsets)
            self._append(commit_records(request.group_id, offsets), producer)
            self._transaction_offsets.add(producer[0], request.group_id, offsets)
        return errors

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """End the transaction of a producer: apply its offsets with `commit`, else discard them."""
        if not commit:
            self._transaction_offsets.abort(producer_id)
            return
        for group_id, offsets in self._transaction_offsets.commit(producer_id).items():
            if group_id not in self._groups:
                # `try_commit_in_transaction` accepts commits without creating the group.
                self._groups[group_id] = Group(group_id, self._services)
            self._offsets.put(group_id, offsets)

    def pending_commits(self, group_id: str) -> Set[TopicPartition]:
        """Return the partitions for which open transactions commit offsets of the group."""
        return self._transaction_offsets.of_group(group_id)

    # Groups.

    def describe(self, group_id: str) -> GroupDescription:
        return description(self._existing(group_id))

    def member_count(self, group_id: str) -> int:
        return len(self._existing(group_id).members)

    def counts(self) -> tuple[int, int]:
        """Return the number of groups, and the total number of their members."""
        return len(self._groups), self._services.meter.member_count

    def list_groups(self) -> list[GroupListing]:
        self._check_loaded()
        return [listing(self._groups[name]) for name in sorted(self._groups)]

    def groups_with_offsets(self, topic: str) -> list[GroupListing]:
        """Return the groups that have committed offsets in this topic. The cost does not depend on
        the number of other groups."""
        self._check_loaded()
        names = sorted(self._offsets.groups_of(topic))
        return [listing(self._groups[name]) for name in names if name in self._groups]

    def groups_subscribed_to(self, topic: str) -> list[str]:
        """Return the groups that subscribe to this topic, except groups with a member whose
        subscription is unknown."""
        self._check_loaded()
        return sorted(
            group.group_id
            for group in self._groups.values()
            if topic in (group.subscribed_topics() or ())
        )

    def delete(self, group_id: str) -> None:
        """Delete an empty group and its offsets."""
        group = self._existing(group_id)
        if group.state is not EMPTY:
            raise GroupNotEmptyError(group_id, len(group.members))
        self._delete(group)

    # Checks.

    def _check_loaded(self) -> None:
        if not self._is_loaded:
            raise CoordinatorLoadingError("the groups are being loaded; try again")

    def _check_name(self, group_id: str) -> None:
        self._check_loaded()
        if group_id not in self._groups:
            check_group_name(group_id)

    def _existing(self, group_id: str) -> Group:
        self._check_name(group_id)
        group = self._groups.get(group_id)
        if group is None:
            raise GroupNotFoundError(group_id)
        return group

    def _group_of_member(self, group_id: str, member_id: str) -> Group:
        self._check_name(group_id)
        group = self._groups.get(group_id)
        if group is None:
            raise unknown_member(group_id, member_id)
        return group

    def _check_commit(
        self, request: CommitRequest
    ) -> tuple[Group | None, dict[TopicPartition, StrandlogError]]:
        """Return the group and the errors by partition; raise if the client may commit nothing."""
        self._check_name(request.group_id)
        group = self._groups.get(request.group_id)
        limit_bytes = self._settings.offset_metadata_max_bytes
        return group, offset_errors(group, request, limit_bytes)

    # Changes.

    def _create(self, group_id: str) -> Group:
        self._check_room_for(group_id)
        group = Group(group_id, self._services)
        self._groups[group_id] = group
        return group

    def _check_room_for(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None = None
    ) -> None:
        """Raise if there would be too many groups, including those that open transactions would
        create, or too many offsets."""
        if group_id not in self._groups:
            pending = self._transaction_offsets.groups() - self._groups.keys() - {group_id}
            count = len(self._groups) + len(pending)
            if count >= self._settings.groups_max_count:
                raise TooManyGroupsError(
                    f"there are {count} groups; delete some or raise groups.max.count"
                )
        limit_bytes = self._settings.offsets_max_bytes
        pending_bytes = self._transaction_offsets.size_bytes
        self._offsets.check_room(group_id, offsets or {}, limit_bytes, pending_bytes)

    def _drop_if_unused(self, group: Group) -> None:
        """Remove a group that has no members or offsets and has never completed a rebalance."""
        is_unused = group.is_idle and group.generation == 0
        if is_unused and not self._offsets.has_offsets(group.group_id):
            group.mark_dead()
            del self._groups[group.group_id]

    def _commit(
        self,
        group: Group | None,
        request: CommitRequest,
        errors: dict[TopicPartition, StrandlogError],
    ) -> None:
        offsets = self._stamped(request, errors)
        if not offsets:
            return
        self._check_room_for(request.group_id, offsets)
        self._append(commit_records(request.group_id, offsets))
        if group is None:
            self._create(request.group_id)
        self._offsets.put(request.group_id, offsets)
        self._transaction_offsets.supersede(request.group_id, offsets)

    def _stamped(
        self, request: CommitRequest, errors: Mapping[TopicPartition, StrandlogError]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the valid offsets of a request, with their commit timestamps set."""
        now_ms = self._clock.now_ms()
        return {
            partition: value._replace(commit_timestamp=now_ms)
            for partition, value in request.offsets.items()
            if partition not in errors
        }

    def _append(self, records: list[TableRecord], producer: tuple[int, int] | None = None) -> None:
        if not records:
            return
        try:
            self._table.append(records, self._clock.now_ms(), producer)
        except StrandlogError:
            self.failed_writes += 1
            raise

    def _save(self, group: Group) -> None:
        self._append([(encode_key(GroupKey(group.group_id)), encode_group(group_value(group)))])
        group.is_saved = True

    def _held(self, group_id: str) -> set[TopicPartition]:
        """Return the partitions for which the group has offsets, including in open transactions."""
        return {*self._transaction_offsets.of_group(group_id), *self._offsets.of_group(group_id)}

    def _delete_offsets(
        self, offsets: Mapping[str, set[TopicPartition]], *others: TableRecord
    ) -> None:
        """Delete offsets of some groups: append tombstones and `others`, then update memory."""
        records = [
            entry for name, held in offsets.items() for entry in tombstones(name, sorted(held))
        ]
        self._append([*records, *others])
        for name, held in offsets.items():
            self._offsets.delete(name, held)
            self._transaction_offsets.supersede(name, held)

    def _delete(self, group: Group) -> None:
        """Delete a group and its offsets."""
        key = encode_key(GroupKey(group.group_id))
        record: list[TableRecord] = [(key, None)] if group.generation > 0 else []
        self._delete_offsets({group.group_id: self._held(group.group_id)}, *record)
        group.mark_dead()
        del self._groups[group.group_id]

    def _load_record(self, key: bytes, value: bytes, values: dict[str, GroupValue]) -> int:
        """Load one record; return 1 if it was skipped because its kind is unknown, otherwise 0."""
        match decode_key(key):
            case None:
                return 1
            case GroupKey(group=name):
                values[name] = decode_group(value)
            case offset_key:
                partition = TopicPartition(offset_key.topic, offset_key.partition)
                self._offsets.put(offset_key.group, {partition: decode_offset(value)})
        return 0

    def _load_open_transactions(self) -> int:
        """Load the offsets of open transactions; return how many could not be decoded."""
        skipped = 0
        for producer_id, key, value in self._table.replay_open():
            try:
                decoded = decode_key(key or b"")
                if isinstance(decoded, OffsetKey) and value is not None:
                    partition = TopicPartition(decoded.topic, decoded.partition)
                    offsets = {partition: decode_offset(value)}
                    self._transaction_offsets.add(producer_id, decoded.group, offsets)
            except DataError:
                skipped += 1
        return skipped

    # Expiry.

    def _schedule_expiry(self) -> None:
        interval_ms = self._settings.offsets_retention_check_interval_ms
        self._timers.schedule(self._clock.monotonic_ms() + interval_ms, self._expire_offsets)

    def _expire_offsets(self) -> None:
        self._schedule_expiry()
        self._expire_some(iter(list(self._groups.values())))

    def _expire_some(self, groups: Iterator[Group]) -> None:
        """Expire the offsets of a batch of groups; do the rest after other pending work."""
        checked = 0
        for group in islice(groups, GROUPS_AT_ONCE):
            checked += 1
            if self._groups.get(group.group_id) is not group:
                continue  # deleted since the check began
            with contextlib.suppress(StrandlogError):  # already counted; the next check retries
                self._expire(group)
        if checked == GROUPS_AT_ONCE:
            now_ms = self._clock.monotonic_ms()
            self._timers.schedule(now_ms, lambda: self._expire_some(groups))

    def _expire(self, group: Group) -> None:
        if not group.is_saved and group.state is EMPTY:
            self._save(group)
        held = self._offsets.of_group(group.group_id)
        expired = expired_partitions(
            held, expiry_rule(group), self._clock.now_ms(), self._settings.offsets_retention_ms
        )
        pending = self._transaction_offsets.of_group(group.group_id)
        if group.is_idle and len(expired) == len(held) and not pending:
            self._delete(group)
        elif expired:
            self._delete_offsets({group.group_id: set(expired) - pending})
