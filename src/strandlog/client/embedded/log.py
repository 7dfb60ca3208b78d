"""The embedded log: this process owns the data folder and everything in it.

    with strandlog.open("./data") as log: ...

The underlying broker is synchronous and not thread-safe. `lock` protects it; a thread releases the
lock while it waits for records (on `condition`) or for an fsync of records. Sends and polls run
maintenance (lazy flushes, retention, compaction and so on) when it is due; a program that neither
sends nor polls for a long time should call `run_maintenance()`.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from threading import Condition, RLock
from weakref import WeakSet

from strandlog.broker.access.acl import Acl, AclFilter, checked_acl
from strandlog.broker.access.quota_entity import Entity, FilterPart, QuotaChange, QuotaFilter
from strandlog.broker.access.scram import DEFAULT_ITERATIONS
from strandlog.broker.broker import Broker
from strandlog.broker.context import embedded_context
from strandlog.broker.groups.requests import CommitRequest, GroupDescription
from strandlog.broker.runtime import run_inline
from strandlog.broker.topics.topic import check_topic_name, forbid_internal
from strandlog.client.api import (
    EVERY_ACL,
    EVERY_MECHANISM,
    PartitionInfo,
    TopicInfo,
    UserInfo,
)
from strandlog.client.arguments import (
    Acks,
    OffsetReset,
    OnUnreadable,
    deletion_error,
    mechanism_named,
)
from strandlog.client.consumer import Consumer
from strandlog.client.embedded.group_commit import GroupCommit
from strandlog.client.embedded.membership import Membership
from strandlog.client.embedded.producer import Producer
from strandlog.client.embedded.source import EmbeddedSource
from strandlog.client.lifecycle import Closable, OpenCheck, state_of, wait_on
from strandlog.client.record_source import GroupSubscription
from strandlog.clock import Clock, SystemClock
from strandlog.config.setting import Value
from strandlog.config.tables.broker import BROKER_SETTINGS, broker_settings
from strandlog.config.tables.topic import TOPIC_SETTINGS
from strandlog.errors import (
    ClosedError,
    StorageError,
    StrandlogError,
    TopicInUseError,
    TopicNotFoundError,
)
from strandlog.model import OffsetAndMetadata, TopicPartition
from strandlog.storage.cleaning.compaction import CompactionReport
from strandlog.storage.files import Files

__all__ = ["Log", "PartitionInfo", "TopicInfo"]

# All members are in this process and join immediately, so there is no need to wait for others.
EMBEDDED_DEFAULTS = {"group.initial.rebalance.delay.ms": 0}


class Log(Closable):
    """An open log, returned by `strandlog.open`. Threads may share it, but processes may not.

    In a forked child process the log is closed; the parent keeps the folder.
    """

    internal_names = frozenset(
        {
            "broker",
            "clock",
            "committed_offset",
            "condition",
            "context",
            "group_commit",
            "is_forked",
            "join_group",
            "leave_group",
            "lock",
            "make_visible",
            "memberships",
            "partition_count_or_zero",
            "source",
            "tick",
            "turns",
            "wait",
            "waiters",
        }
    )

    def __init__(
        self,
        path: str | os.PathLike[str],
        settings: Mapping[str, object] | None = None,
        *,
        clock: Clock | None = None,
        files: Files | None = None,
    ) -> None:
        self.clock: Clock = clock or SystemClock()
        overrides = BROKER_SETTINGS.parse({**EMBEDDED_DEFAULTS, **(settings or {})})
        self.path = os.path.abspath(path) if files is None else os.fspath(path)
        found = broker_settings(overrides)
        self.broker = Broker(self.path, files, self.clock, uuid.uuid4, found)
        self.context = embedded_context()
        self.lock = RLock()
        self.condition = Condition(self.lock)
        self.waiters = 0
        self.turns: dict[str, int] = {}  # number of records sent round robin, by topic
        self.group_commit = GroupCommit(self.condition)
        self.source = EmbeddedSource(self.broker, self.context)
        self.is_closed = False
        self.is_forked = False  # this is a child of the process that opened the log
        self._is_open = OpenCheck(lambda: self.is_closed, "log", lambda: self.is_forked)
        self._memberships: list[Membership] = []
        self._consumers: WeakSet[Consumer] = WeakSet()
        self._next_due_ms = self.broker.next_deadline_ms()
        _OPEN_LOGS.add(self)

    def __repr__(self) -> str:
        return f"<strandlog.Log {self.path!r}, {state_of(self)}>"

    # -- topics --------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        config: Mapping[str, object] | None = None,
    ) -> TopicInfo:
        """Create a topic; it is durable when this method returns.

        The default for `partitions` is num.partitions; `config` uses Kafka's setting names.
        """
        with self._is_open, self.lock, self._is_open:
            self.broker.create_topic(self.context, name, partitions, config).result()
            return self._describe(name)

    def topics(self) -> list[str]:
        """Return the names of all topics except internal ones."""
        with self._is_open, self.lock, self._is_open:
            topics = self.broker.topics(self.context)
            return [topic.name for topic in topics if not topic.is_internal]

    def describe_topic(self, name: str) -> TopicInfo:
        """Return the partitions, offsets, sizes and settings of a topic."""
        with self._is_open, self.lock, self._is_open:
            return self._describe(name)

    def describe_topics(self, names: Iterable[str]) -> list[TopicInfo]:
        """Return the partitions, offsets, sizes and settings of several topics."""
        return [self.describe_topic(name) for name in names]

    def topic_settings(self, name: str) -> dict[str, Value]:
        """Return all settings of a topic, including defaults."""
        own = self.describe_topic(name).config
        return TOPIC_SETTINGS.resolve({**self.broker.settings.topic_defaults, **own})

    def _describe(self, name: str) -> TopicInfo:
        states = self.broker.partition_states(self.context, name)
        topic = self.broker.topic(self.context, name)
        partitions = tuple(
            PartitionInfo(
                state.partition,
                state.start_offset,
                state.end_offset,
                state.size_bytes,
                state.segments,
            )
            for state in states
        )
        return TopicInfo(topic.name, topic.topic_id, partitions, dict(topic.config))

    def alter_topic(
        self,
        name: str,
        config: Mapping[str, object | None] | None = None,
        partitions: int | None = None,
    ) -> TopicInfo:
        """Change settings (None resets a setting to its default), and increase the number of
        partitions to `partitions` if given."""
        with self._is_open, self.lock, self._is_open:
            self.broker.topic(self.context, name)
            if config:
                self.broker.alter_topic(self.context, name, config).result()
            if partitions is not None:
                self.broker.add_partitions(self.context, name, partitions).result()
            return self._describe(name)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its records; raise `TopicInUseError` if a group subscribes to it."""
        with self._is_open, self.lock, self._is_open:
            forbid_internal(check_topic_name(name))
            self._wait_until_idle(name)
            groups = self.broker.subscribed_groups(self.context, name)
            if groups:
                raise TopicInUseError(name, "consumers of group " + ", ".join(groups))
            self.broker.delete_topic(self.context, name).result()
            self.turns.pop(name, None)
            for consumer in list(self._consumers):
                consumer.forget_topic(name)

    def compact(self, name: str) -> CompactionReport:
        """Compact a topic now, whatever its cleanup.policy: keep the last record of each key."""
        with self._is_open, self.lock, self._is_open:
            self._wait_until_idle(name)
            return self.broker.compact_topic(self.context, name).result()

    def enforce_retention(self, name: str) -> int:
        """Delete the segments that exceed retention.ms or retention.bytes, except those that the
        topic's lake table still needs.

        Return the number of offsets removed. In a compacted topic, some of them may have had no
        record.
        """
        with self._is_open, self.lock, self._is_open:
            return self.broker.apply_retention(self.context, name).result()

    def delete_records(self, name: str, partition: int, before_offset: int) -> None:
        """Durably delete the records of a partition below an offset; the end offset deletes all."""
        with self._is_open, self.lock, self._is_open:
            self._wait_until_idle(name)
            tp = TopicPartition(name, partition)
            state = self.broker.partition_state(self.context, *tp)
            if state.failure is not None:
                raise StorageError(str(state.failure))
            if before_offset < 0:
                span = state.start_offset, state.end_offset
                raise deletion_error(before_offset, tp, *span)
            found = self.broker.delete_records(self.context, {tp: before_offset}).result()[tp]
            if isinstance(found, StrandlogError):
                raise found
            self.broker.apply_retention(self.context, name).result()  # deletes the files now

    # -- producing and consuming ---------------------------------------------------------------

    def producer(
        self,
        acks: Acks = "all",
        partitioner: str = "murmur2",
        compression: str | None = None,
    ) -> Producer:
        """Create a producer.

        `acks`: what a send waits for. With "all", the records are on disk and survive a power
        failure, unless log.durability is "page_cache"; with 1 or 0, they are written and survive a
        crash of the process.
        `partitioner`: the hash that assigns keys to partitions: "murmur2" (as in Java clients),
        "md5" or "fnv1a".
        `compression`: "gzip", "snappy", "lz4", "zstd" or "none"; None means the topic's
        compression.type, of which "producer" means no compression.
        """
        with self._is_open, self.lock, self._is_open:
            return Producer(self, acks, partitioner, compression)

    def consumer(
        self,
        topics: Iterable[str] = (),
        group: str | None = None,
        auto_offset_reset: OffsetReset = "earliest",
        auto_commit: bool = False,
        assignors: Iterable[str] = ("range", "roundrobin"),
        max_poll_interval_ms: int = 300_000,
        on_unreadable: OnUnreadable = "raise",
        consumer_timeout_ms: int | None = 0,
    ) -> Consumer:
        """Create a consumer, either standalone or as a member of a group.

        `topics`: the names of the topics to read; leave it empty to set partitions with `assign`.
        `group`: the group whose members share the partitions and whose offsets are committed; with
        None, the consumer reads all partitions and commits nothing.
        `auto_offset_reset`: where to read if there is no committed offset or the position is out of
        range: "earliest", "latest", or "none" for an error. Without a group, "none" starts at the
        earliest offset.
        `auto_commit`: each poll commits the records of earlier polls, and close commits the rest.
        Without it, only `commit` commits.
        `assignors`: how the group may distribute partitions, in order of preference: "range",
        "roundrobin" or "cooperative-sticky".
        `max_poll_interval_ms`: a member that does not poll for this long is removed from the group.
        `on_unreadable`: "raise" an error for a batch that cannot be read, or "skip" the batch and
        add its offsets to `skipped`.
        `consumer_timeout_ms`: how long `for record in consumer` waits for the next record before
        it ends: 0 ends at the last record, None waits indefinitely.
        """
        with self._is_open, self.lock, self._is_open:
            consumer = Consumer(
                self,
                topics,
                group,
                auto_offset_reset,
                auto_commit,
                assignors,
                max_poll_interval_ms,
                on_unreadable,
                consumer_timeout_ms,
            )
            self._consumers.add(consumer)
            return consumer

    # -- groups --------------------------------------------------------------------------------

    def groups(self) -> list[str]:
        """Return the names of all groups."""
        with self._is_open, self.lock, self._is_open:
            return [listing.group_id for listing in self.broker.groups(self.context)]

    def describe_group(self, group: str) -> GroupDescription:
        """Return the state and members of a group."""
        with self._is_open, self.lock, self._is_open:
            return self.broker.describe_group(self.context, group)

    def committed_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return all committed offsets of a group."""
        with self._is_open, self.lock, self._is_open:
            found = self.broker.fetch_offsets(self.context, group)
            return {tp: at for tp, at in found.items() if isinstance(at, OffsetAndMetadata)}

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set the committed offsets of a group that has no members."""
        with self._is_open, self.lock, self._is_open:
            values = {TopicPartition(*tp): OffsetAndMetadata(at) for tp, at in offsets.items()}
            request = CommitRequest(group_id=group, offsets=values)
            self.broker.commit_offsets(self.context, request, all_or_nothing=True).result()

    def delete_group(self, group: str) -> None:
        """Delete a group that has no members, and its committed offsets."""
        with self._is_open, self.lock, self._is_open:
            self.broker.delete_group(self.context, group).result()

    # -- permissions -----------------------------------------------------------------------------

    def acls(self, wanted: AclFilter = EVERY_ACL) -> list[Acl]:
        """Return the ACLs that a filter selects, by default all of them."""
        with self._is_open, self.lock, self._is_open:
            return run_inline(self.broker.acls(self.context, wanted))

    def create_acls(self, acls: Iterable[Acl]) -> None:
        """Create ACLs; they are durable when this method returns. Existing ACLs are kept.

        ACLs do not restrict the process that owns the folder. They apply to the clients of a broker
        that is started on it with authorizer.class.name=strandlog.
        """
        wanted = [checked_acl(acl) for acl in acls]
        with self._is_open, self.lock, self._is_open:
            for error in self.broker.create_acls(self.context, wanted).result():
                if error is not None:
                    raise error

    def delete_acls(self, filters: Iterable[AclFilter | Acl]) -> list[Acl]:
        """Delete the ACLs that any of the filters selects, and return them. An `Acl` selects
        itself."""
        wanted = [AclFilter(*each) for each in filters]
        with self._is_open, self.lock, self._is_open:
            deleted = run_inline(self.broker.delete_acls(self.context, wanted)).result()
            return list(dict.fromkeys(acl for some in deleted for acl in some))

    def client_quotas(
        self, parts: Sequence[FilterPart] = ()
    ) -> list[tuple[Entity, dict[str, float]]]:
        """Return the entities that match all parts of a filter, with their client quotas."""
        with self._is_open, self.lock, self._is_open:
            found = run_inline(self.broker.client_quotas(self.context, QuotaFilter(parts)))
        return [
            (entity, {str(key): limit for key, limit in limits.items()}) for entity, limits in found
        ]

    def alter_client_quotas(self, changes: Sequence[QuotaChange]) -> None:
        """Set and delete client quotas; the changes are durable when this method returns.

        Quotas apply to the clients of a broker that is started on the folder.
        """
        with self._is_open, self.lock, self._is_open:
            self.broker.alter_client_quotas(self.context, changes).result()

    # -- users -----------------------------------------------------------------------------------

    def users(self) -> list[UserInfo]:
        """Return all users that can log in with a password, with their SCRAM mechanisms."""
        with self._is_open, self.lock, self._is_open:
            found = run_inline(self.broker.describe_users(self.context, None))
        return [
            UserInfo(user.name, {each.sasl_name: n for each, n in user.iterations.items()})
            for user in found
        ]

    def set_password(
        self,
        user: str,
        password: str,
        *,
        mechanisms: Iterable[str] = EVERY_MECHANISM,
        iterations: int = DEFAULT_ITERATIONS,
    ) -> None:
        """Create a user, or replace its password; the change is durable when this method returns.

        The folder stores only salted hashes of the password. The user can log in with the given
        SCRAM mechanisms, with SASL PLAIN, and over HTTP and gRPC.
        """
        kinds = [mechanism_named(name) for name in mechanisms]
        with self._is_open, self.lock, self._is_open:
            work = self.broker.set_password(self.context, user, password, kinds, iterations)
            run_inline(work).result()

    def delete_user(self, user: str) -> None:
        """Delete a user; raise `ResourceNotFoundError` if there is none with this name."""
        with self._is_open, self.lock, self._is_open:
            self.broker.delete_user(self.context, user).result()

    # -- maintenance and close -------------------------------------------------------------------

    @property
    def problems(self) -> list[str]:
        """The problems found when the folder was opened, and maintenance errors since then.

        Examples are torn tails, damage and stray files; each entry says how the log handled it.
        """
        with self.lock:
            return self.broker.problems

    def run_maintenance(self) -> None:
        """Run the maintenance tasks that are due. Sends and polls do this too."""
        with self._is_open, self.lock, self._is_open:
            self.tick()

    def flush(self) -> None:
        """Wait until all records appended before this call are on disk."""
        with self._is_open, self.lock, self._is_open:
            for wait in self.broker.flush_waits(self.context):
                self.group_commit.complete(wait)

    def close(self) -> None:
        """Flush everything and release the folder. This method is idempotent."""
        if self.broker.is_closed:  # unlike `is_closed`, still false after an interrupted close
            return
        with self.lock:
            self.is_closed = True
            try:
                while self.broker.is_flushing(self.context):
                    wait_on(self.condition)
                while self._memberships:
                    self._memberships.pop(0).leave()
            finally:
                try:
                    self.condition.notify_all()
                finally:
                    self.broker.close()

    # -- for producers and consumers -----------------------------------------------------------

    def _wait_until_idle(self, name: str) -> None:
        """Wait until no other thread is flushing a partition of the topic."""
        while self.broker.is_flushing(self.context, name):
            wait_on(self.condition)
            if self.is_closed:
                raise ClosedError("log")

    def tick(self) -> int:
        """Run the timers and maintenance tasks that are due, and return the wall-clock time."""
        if self._next_due_ms is not None and self.clock.monotonic_ms() >= self._next_due_ms:
            self.broker.tick()
            self._next_due_ms = self.broker.next_deadline_ms()
        return self.clock.now_ms()

    def make_visible(self, partitions: Iterable[TopicPartition]) -> None:
        """Flush these partitions, releasing the lock; ignore disk errors and deleted topics."""
        for tp in partitions:
            with contextlib.suppress(StorageError, TopicNotFoundError):
                self.group_commit.complete(self.broker.flush_wait(self.context, *tp))

    def wait(self, timeout_ms: int) -> None:
        """Release the lock until a send or another event wakes it, or `timeout_ms` has passed."""
        self.waiters += 1
        try:
            wait_on(self.condition, timeout_ms / 1000)
        finally:
            self.waiters -= 1

    def partition_count_or_zero(self, topic: str) -> int:
        """Return the number of partitions of a topic, or 0 if the topic does not exist."""
        if not self.broker.has_topic(self.context, topic):
            return 0
        return self.broker.partition_count(self.context, topic)

    def memberships(self, group: str) -> list[Membership]:
        return [member for member in self._memberships if member.group == group]

    def join_group(self, wish: GroupSubscription) -> Membership:
        membership = Membership(self, wish)
        self._memberships.append(membership)
        return membership

    def leave_group(self, membership: Membership) -> None:
        self._memberships.remove(membership)
        membership.leave()

    def committed_offset(self, group: str, tp: TopicPartition) -> int | None:
        found = self.broker.fetch_offsets(self.context, group, [tp])[tp]
        return found.offset if isinstance(found, OffsetAndMetadata) else None


_OPEN_LOGS: WeakSet[Log] = WeakSet()


def _abandon_in_child() -> None:
    """Close all logs in a forked child process without flushing.

    Otherwise two processes would assign the same offsets and overwrite each other's records.
    """
    for log in list(_OPEN_LOGS):
        if not log.is_closed:
            log.is_closed = log.is_forked = True
            log.broker.abandon()


os.register_at_fork(after_in_child=_abandon_in_child)
