"""Finds, creates, keeps and expires consumer groups and their offsets.

    join ─▶ Group ─▶ Deferred          one `Group` per name, made by the first join or commit
    commit ─▶ rules ─▶ log ─▶ store   the log first, so that memory never promises more than it
    load ◀─ log                       groups and offsets as of the last completed write
    tick ─▶ timers                    sessions, rebalances, and every
                                      offsets.retention.check.interval.ms a look for what expired

Errors come at once as exceptions; a `Deferred` fails only with what happened while it was open.

Names are checked when they come in (group_rules.py); names in the log are taken as they are.

Who may commit:

- Nobody in particular (no member id, generation -1: a simple consumer) while the group is empty.
- A member of the current generation, except while that generation has no assignment yet
  (RebalanceInProgressError). In a "consumer" group only for what it owns (NotOwnerError):
  so a member with a stale position can never move the group back. This is stricter than Kafka;
  `Roster.commit_rule` says what a cooperative member may do.

`commit_offsets` keeps all or nothing and raises; `try_commit_offsets` keeps what it may and
returns the rest with reasons, as Kafka's wire wants it.

A write that fails is counted in `failed_writes`. The caller hears of it; if it was time that wanted
the write (an emptied group, expired offsets), it is tried again at the next look.

Everything waits for `load()`: CoordinatorLoadingError.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from strandlog.broker.compacted_table import TableLog, TableRecord, latest_values
from strandlog.broker.deferred import Deferred
from strandlog.broker.groups.checks import (
    check_group_name,
    check_join,
    refused_offsets,
    unknown_member,
)
from strandlog.broker.groups.group import Group
from strandlog.broker.groups.members import Meter
from strandlog.broker.groups.offsets import (
    OffsetStore,
    commit_records,
    expired_partitions,
    tombstones,
)
from strandlog.broker.groups.rebalance import EMPTY, GroupContext, RebalancingGroup
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
    expiry_rule,
    group_value,
    listing,
    restore_group,
)
from strandlog.broker.groups.transaction_offsets import PendingOffsets
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
from strandlog.storage.work import Steps, breathe

OFFSETS_FORGOTTEN_AT_ONCE = 2_000  # before other requests get their turn


GROUPS_AT_ONCE = 50  # that one look for expired offsets goes through


class LoadReport(NamedTuple):
    """What `load` found; `skipped` records are of another kind or cannot be read."""

    groups: int
    offsets: int
    skipped: int


class GroupCoordinator:
    """All groups of one broker."""

    def __init__(
        self,
        settings: BrokerSettings,
        clock: Clock,
        log: TableLog,
        new_id: Callable[[], str],
    ) -> None:
        self.failed_writes = 0
        self._settings = settings
        self._clock = clock
        self._log = log
        self._timers = Timers()
        self._context = GroupContext(settings, clock, self._timers, new_id, self._save, Meter())
        self._groups: dict[str, Group] = {}
        self._offsets = OffsetStore()
        self._pending = PendingOffsets()
        self._is_loaded = False

    def load(self) -> LoadReport:
        """Restores what the log holds and starts the sessions anew."""
        assert not self._is_loaded, "a coordinator loads once"
        values: dict[str, GroupValue] = {}
        skipped = 0
        for key, value in latest_values(self._log).items():
            try:
                skipped += self._load_record(key, value, values)
            except DataError:
                skipped += 1
        for name in dict.fromkeys([*values, *self._offsets.groups()]):
            self._groups[name] = group = Group(name, self._context)
            try:
                if name in values:
                    restore_group(group, values[name])
            except DataError:
                skipped += 1
        skipped += self._load_open_transactions()
        self._is_loaded = True
        self._plan_next_look()
        offsets = sum(len(self._offsets.of_group(name)) for name in self._offsets.groups())
        return LoadReport(len(self._groups), offsets, skipped)

    def tick(self, now_ms: int) -> None:
        """Does what is due at `now_ms` on the monotonic clock."""
        self._timers.run_due(now_ms)

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do."""
        return self._timers.next_deadline_ms()

    # Members.

    def join(self, request: JoinRequest) -> Deferred[JoinResult]:
        self._check_name(request.group_id)
        check_join(request, self._settings)
        group = self._groups.get(request.group_id)
        if group is None:
            if request.member_id != NO_MEMBER_ID:
                raise unknown_member(request.group_id, request.member_id)
            group = self._create(request.group_id)
        try:
            return group.join(request)
        finally:
            self._drop_if_blank(group)

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
        self._drop_if_blank(group)

    # Offsets.

    def commit_offsets(self, request: CommitRequest) -> None:
        """Keeps every offset of the request, or none and says why."""
        group, refused = self._judge(request)
        for error in refused.values():
            raise error
        self._commit(group, request, refused)

    def try_commit_offsets(self, request: CommitRequest) -> dict[TopicPartition, StrandlogError]:
        """Keeps what may be kept; what was refused comes back with the reason."""
        group, refused = self._judge(request)
        self._commit(group, request, refused)
        return refused

    def fetch_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Committed offsets, None where there is none; without `partitions` all there are."""
        self._check_name(group_id)
        wanted = self._offsets.of_group(group_id) if partitions is None else partitions
        return self._offsets.fetch(group_id, wanted)

    def delete_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, StrandlogError]:
        """Forgets offsets; those of topics that a member reads come back with the reason."""
        group = self._existing(group_id)
        topics = group.subscribed_topics() if group.state is not EMPTY else frozenset()
        if topics is None:
            raise GroupNotEmptyError(group_id, len(group.roster))
        refused: dict[TopicPartition, StrandlogError] = {
            partition: GroupSubscribedError(f"group {group_id!r} reads it; stop its members first")
            for partition in partitions
            if partition.topic in topics
        }
        self._forget({group_id: self._held(group_id) & (set(partitions) - refused.keys())})
        return refused

    def forgetting_topic(self, topic: str) -> Steps[None]:
        """Forgets every group's offsets in a topic that is deleted, some groups at a time. May be
        repeated after an error: what is forgotten stays forgotten."""
        self._check_loaded()
        gathered: dict[str, set[TopicPartition]] = {}
        for name in self._pending.groups().union(self._offsets.groups()):
            held = {tp for tp in self._held(name) if tp.topic == topic}
            if held:
                gathered[name] = held
            if sum(map(len, gathered.values())) >= OFFSETS_FORGOTTEN_AT_ONCE:
                self._forget(gathered)
                gathered = {}
                yield breathe
        self._forget(gathered)

    # Offsets inside transactions.

    def try_commit_in_transaction(
        self, request: CommitRequest, producer: tuple[int, int]
    ) -> dict[TopicPartition, StrandlogError]:
        """The same inside the open transaction of a producer (id, epoch): it counts when that
        commits. One that names no member is trusted, as its transaction fences it."""
        self._check_name(request.group_id)
        is_member = request.member_id != NO_MEMBER_ID or request.generation >= 0
        group = self._groups.get(request.group_id) if is_member else None
        limit_bytes = self._settings.offset_metadata_max_bytes
        refused = refused_offsets(group, request, limit_bytes)
        offsets = self._stamped(request, refused)
        if offsets:
            self._check_room_for(request.group_id)
            self._offsets.check_room(request.group_id, offsets, self._settings.offsets_max_bytes)
            self._append(commit_records(request.group_id, offsets), producer)
            self._pending.add(producer[0], request.group_id, offsets)
        return refused

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """The transaction of a producer ended: what it committed counts now, or never will."""
        if not commit:
            self._pending.abort(producer_id)
            return
        for group_id, offsets in self._pending.commit(producer_id).items():
            if group_id not in self._groups:
                self._groups[group_id] = Group(group_id, self._context)  # it was promised
            self._offsets.put(group_id, offsets)

    def is_unstable(self, group_id: str, partition: TopicPartition) -> bool:
        """Whether an open transaction is about to move this offset."""
        return self._pending.is_pending(group_id, partition)

    # Groups.

    def describe(self, group_id: str) -> GroupDescription:
        return description(self._existing(group_id))

    def member_count(self, group_id: str) -> int:
        return len(self._existing(group_id).roster)

    def list_groups(self) -> list[GroupListing]:
        self._check_loaded()
        return [listing(self._groups[name]) for name in sorted(self._groups)]

    def groups_subscribed_to(self, topic: str) -> list[str]:
        """The groups that have a member with this topic in its subscription."""
        self._check_loaded()
        return sorted(
            group.group_id
            for group in self._groups.values()
            if topic in (group.subscribed_topics() or ())
        )

    def delete(self, group_id: str) -> None:
        """Forgets an empty group and its offsets."""
        group = self._existing(group_id)
        if group.state is not EMPTY:
            raise GroupNotEmptyError(group_id, len(group.roster))
        self._bury(group)

    # Rules.

    def _check_loaded(self) -> None:
        if not self._is_loaded:
            raise CoordinatorLoadingError("the groups are being loaded; ask again in a moment")

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

    def _judge(
        self, request: CommitRequest
    ) -> tuple[Group | None, dict[TopicPartition, StrandlogError]]:
        """Raises when the committer may commit nothing at all; else says what may not be kept."""
        self._check_name(request.group_id)
        group = self._groups.get(request.group_id)
        limit_bytes = self._settings.offset_metadata_max_bytes
        return group, refused_offsets(group, request, limit_bytes)

    # Effects.

    def _create(self, group_id: str) -> Group:
        self._check_room_for(group_id)
        group = Group(group_id, self._context)
        self._groups[group_id] = group
        return group

    def _check_room_for(self, group_id: str) -> None:
        limit = self._settings.groups_max_count
        if len(self._groups) >= limit and group_id not in self._groups:
            raise TooManyGroupsError(
                f"there are {len(self._groups)} groups; delete some or raise groups.max.count"
            )

    def _drop_if_blank(self, group: Group) -> None:
        """A group that never had a generation nor an offset leaves no trace."""
        is_blank = group.is_idle and group.generation == 0
        if is_blank and not self._offsets.has_offsets(group.group_id):
            group.kill()
            del self._groups[group.group_id]

    def _commit(
        self,
        group: Group | None,
        request: CommitRequest,
        refused: dict[TopicPartition, StrandlogError],
    ) -> None:
        offsets = self._stamped(request, refused)
        if not offsets:
            return
        self._check_room_for(request.group_id)
        self._offsets.check_room(request.group_id, offsets, self._settings.offsets_max_bytes)
        self._append(commit_records(request.group_id, offsets))
        if group is None:
            self._create(request.group_id)
        self._offsets.put(request.group_id, offsets)
        self._pending.supersede(request.group_id, offsets)

    def _stamped(
        self, request: CommitRequest, refused: Mapping[TopicPartition, StrandlogError]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What of a request is kept, with the time of the commit."""
        now_ms = self._clock.now_ms()
        return {
            partition: value._replace(commit_timestamp=now_ms)
            for partition, value in request.offsets.items()
            if partition not in refused
        }

    def _append(self, records: list[TableRecord], producer: tuple[int, int] | None = None) -> None:
        if not records:
            return
        try:
            self._log.append(records, self._clock.now_ms(), producer)
        except StrandlogError:
            self.failed_writes += 1
            raise

    def _save(self, group: RebalancingGroup) -> None:
        self._append([(encode_key(GroupKey(group.group_id)), encode_group(group_value(group)))])
        group.is_saved = True

    def _held(self, group_id: str) -> set[TopicPartition]:
        """The partitions for which a group has an offset, or will have one."""
        return self._pending.of_group(group_id).union(self._offsets.of_group(group_id))

    def _forget(self, offsets: Mapping[str, set[TopicPartition]], *others: TableRecord) -> None:
        """Removes offsets, by group, and other records with them: the log first."""
        records = [
            entry for name, held in offsets.items() for entry in tombstones(name, sorted(held))
        ]
        self._append([*records, *others])
        for name, held in offsets.items():
            self._offsets.forget(name, held)
            self._pending.supersede(name, held)

    def _bury(self, group: Group) -> None:
        """Removes a group for good."""
        key = encode_key(GroupKey(group.group_id))
        record: list[TableRecord] = [(key, None)] if group.generation > 0 else []
        self._forget({group.group_id: self._held(group.group_id)}, *record)
        group.kill()
        del self._groups[group.group_id]

    def _load_record(self, key: bytes, value: bytes, values: dict[str, GroupValue]) -> int:
        """Takes in one record; 1 when it is of a kind that we do not keep."""
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
        """Takes in what open transactions have committed; returns how many cannot be read."""
        skipped = 0
        for producer_id, key, value in self._log.replay_open():
            try:
                decoded = decode_key(key or b"")
                if isinstance(decoded, OffsetKey) and value is not None:
                    partition = TopicPartition(decoded.topic, decoded.partition)
                    offsets = {partition: decode_offset(value)}
                    self._pending.add(producer_id, decoded.group, offsets)
            except DataError:
                skipped += 1
        return skipped

    # Expiry.

    def _plan_next_look(self) -> None:
        interval_ms = self._settings.offsets_retention_check_interval_ms
        self._timers.schedule(self._clock.monotonic_ms() + interval_ms, self._look_for_expired)

    def _look_for_expired(self) -> None:
        self._plan_next_look()
        self._expire_some(iter(list(self._groups.values())))

    def _expire_some(self, groups: Iterator[Group]) -> None:
        """Look at some groups, and at the others when other work had its turn."""
        looked_at = 0
        for group in islice(groups, GROUPS_AT_ONCE):
            looked_at += 1
            if self._groups.get(group.group_id) is not group:
                continue  # it was deleted meanwhile
            with contextlib.suppress(StrandlogError):  # counted in failed_writes; tried again
                self._expire(group)
        if looked_at == GROUPS_AT_ONCE:
            now_ms = self._clock.monotonic_ms()
            self._timers.schedule(now_ms, lambda: self._expire_some(groups))

    def _expire(self, group: Group) -> None:
        if not group.is_saved and group.state is EMPTY:
            self._save(group)
        held = self._offsets.of_group(group.group_id)
        expired = expired_partitions(
            held, expiry_rule(group), self._clock.now_ms(), self._settings.offsets_retention_ms
        )
        pending = self._pending.of_group(group.group_id)
        if group.is_idle and len(expired) == len(held) and not pending:
            self._bury(group)
        elif expired:
            self._forget({group.group_id: set(expired) - pending})
