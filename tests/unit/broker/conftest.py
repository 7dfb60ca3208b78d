"""A group coordinator whose clock, log and ids a test controls."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import pytest

from strandlog.broker.compacted_table import TableRecord
from strandlog.broker.context import RequestContext
from strandlog.broker.deferred import Deferred
from strandlog.broker.groups.assignors import Assignments, assign, member_subscription
from strandlog.broker.groups.coordinator import GroupCoordinator
from strandlog.broker.groups.requests import (
    CommitRequest,
    JoinRequest,
    JoinResult,
    MemberProtocol,
    SyncRequest,
    SyncResult,
)
from strandlog.broker.timers import Timers
from strandlog.config.setting import Value
from strandlog.config.tables.broker import broker_settings
from strandlog.errors import StorageError
from strandlog.model import OffsetAndMetadata, TopicPartition
from strandlog.protocol.consumer_protocol import (
    Assignment,
    Subscription,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from strandlog.testing.clock import FakeClock


class MemoryLog:
    """An `TableLog` that remembers, or fails on command."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes | None, bytes | None]] = []
        self.is_broken = False

    def append(
        self,
        records: Sequence[TableRecord],
        timestamp_ms: int,
        producer: tuple[int, int] | None = None,
    ) -> None:
        if self.is_broken:
            raise StorageError("the disk is gone")
        assert producer is None, "transactions are tested on a real log"
        self.records += records

    def replay_open(self) -> Iterator[tuple[int, bytes | None, bytes | None]]:
        yield from ()

    def replay(self) -> Iterator[tuple[bytes | None, bytes | None]]:
        yield from list(self.records)


class GroupHarness:
    """One coordinator and shorthands for what its members say."""

    def __init__(self, overrides: Mapping[str, Value] | None = None) -> None:
        quick: dict[str, Value] = {"group.initial.rebalance.delay.ms": 0}
        self.settings = broker_settings({**quick, **(overrides or {})})
        self.clock = FakeClock()
        self.log = MemoryLog()
        self.partitions = {"t": 4}
        self._ids = itertools.count(1)
        self.coordinator = self._new_coordinator()

    def _new_coordinator(self) -> GroupCoordinator:
        coordinator = GroupCoordinator(
            self.settings, self.clock, Timers(), self.log, lambda: f"{next(self._ids):04}"
        )
        coordinator.load()
        return coordinator

    def restart(self) -> None:
        self.coordinator = self._new_coordinator()

    def advance(self, ms: int) -> None:
        """Lets time pass, and the coordinator see every deadline on the way."""
        end_ms = self.clock.monotonic_ms() + ms
        while (deadline_ms := self.coordinator.next_deadline_ms()) is not None:
            if deadline_ms > end_ms:
                break
            self.clock.advance(max(0, deadline_ms - self.clock.monotonic_ms()))
            self.coordinator.tick(self.clock.monotonic_ms())
        self.clock.advance(end_ms - self.clock.monotonic_ms())

    def request(
        self,
        member_id: str = "",
        topics: Sequence[str] = ("t",),
        protocols: Sequence[str] = ("range",),
        owned: Sequence[TopicPartition] = (),
        instance: str | None = None,
        group: str = "g",
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        require_member_id: bool = False,
        skip: bool = False,
    ) -> JoinRequest:
        metadata = encode_subscription(Subscription(tuple(topics), None, tuple(owned)))
        return JoinRequest(
            group_id=group,
            protocols=tuple(MemberProtocol(name, metadata) for name in protocols),
            member_id=member_id,
            group_instance_id=instance,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            require_member_id=require_member_id,
            supports_skip_assignment=skip,
        )

    def join(self, request: JoinRequest | None = None, client: str = "c") -> Deferred[JoinResult]:
        context = RequestContext(client_id=client, client_host="127.0.0.1")
        return self.coordinator.join(context, request or self.request())

    def sync(
        self, joined: JoinResult, assignments: Assignments | None = None, group: str = "g"
    ) -> Deferred[SyncResult]:
        """What a member does after its join; the leader computes the assignment unless given."""
        if assignments is None and joined.members:
            assignments = self.honest_assignment(joined)
        return self.coordinator.sync(
            SyncRequest(
                group_id=group,
                generation=joined.generation,
                member_id=joined.member_id,
                assignments={
                    member_id: encode_assignment(Assignment(tuple(partitions)))
                    for member_id, partitions in (assignments or {}).items()
                },
            )
        )

    def honest_assignment(self, joined: JoinResult) -> Assignments:
        members = {
            member.member_id: member_subscription(
                decode_subscription(member.metadata), member.group_instance_id
            )
            for member in joined.members
        }
        return assign(joined.protocol_name, members, self.partitions)

    def stable(self, count: int = 1, group: str = "g") -> list[JoinResult]:
        """A Stable group of `count` members, the leader first."""
        pendings = [self.join(self.request(group=group))]
        leader_id = pendings[0].result().member_id
        pendings += [self.join(self.request(group=group)) for _ in range(count - 1)]
        if count > 1:
            pendings[0] = self.join(self.request(leader_id, group=group))
        results = [pending.result() for pending in pendings]
        for joined in reversed(results):
            answer = self.sync(joined, group=group)
        assert answer.is_done
        return results

    def commit(
        self,
        offsets: Mapping[TopicPartition, int],
        joined: JoinResult | None = None,
        group: str = "g",
        metadata: str = "",
    ) -> None:
        self.coordinator.commit_offsets(
            CommitRequest(
                group_id=group,
                offsets={
                    partition: OffsetAndMetadata(offset, metadata=metadata)
                    for partition, offset in offsets.items()
                },
                member_id=joined.member_id if joined else "",
                generation=joined.generation if joined else -1,
            )
        )

    def committed(self, group: str = "g") -> dict[TopicPartition, int]:
        found = self.coordinator.fetch_offsets(group)
        return {partition: value.offset for partition, value in found.items() if value}

    def state(self, group: str = "g") -> str:
        return self.coordinator.describe(group).state


@pytest.fixture
def harness() -> GroupHarness:
    return GroupHarness()


@pytest.fixture(scope="session")
def harness_type() -> type[GroupHarness]:
    return GroupHarness
