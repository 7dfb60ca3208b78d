"""Random programs against a plain model: nothing is skipped, nothing committed comes twice.

Members of a group join, leave, poll, commit and seek; producers send with every acks; the log is
reopened, killed and loses its power. The model keeps what each partition holds and where the group
committed, and knows of each member what it may get next:

- the record after the last one that it got from that partition, or
- the one where the group committed, when it has the partition (again) since a rebalance, or
- the offset passed to seek.

So records come in order, none is left out, and one that was committed never comes again. In the end
the members read on until there is nothing left: everything that the log holds was delivered.

A power cut may take what was not synced, from the end or from the middle; what was acknowledged as
synced, or seen by a reader, stays.
"""

from __future__ import annotations

import random
from collections import defaultdict
from uuid import UUID

import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.support.embedded_harness import EmbeddedHarness, drain
from tests.support.examples import examples

from strandlog import Consumer, RecordMetadata
from strandlog.errors import GroupError

TOPIC = "t"
GROUP = "g"
MAX_MEMBERS = 4
INTERVAL_MS = 60_000

IDS = random.Random()  # ids decide who gets which partition: the same program, the same ids

keys = st.sampled_from([None, b"a", b"b", b"c", b"d"])
choices = st.integers(min_value=0, max_value=11)


class Member:
    """A consumer and what the model knows of it."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.next_offsets: dict[int, int] = {}
        self.may_be_stale = False


class LogMachine(RuleBasedStateMachine):
    """One log, its group and the model of both."""

    def __init__(self) -> None:
        super().__init__()
        self.embedded = EmbeddedHarness()
        self.members: list[Member] = []
        self.held: dict[int, dict[int, bytes]] = defaultdict(dict)  # partition → offset → value
        self.ends: dict[int, int] = defaultdict(int)
        self.durable: dict[int, int] = defaultdict(int)  # partition → end of what must survive
        self.committed: dict[int, int] = {}
        self.delivered: set[tuple[int, int]] = set()
        self.sent = 0

    @initialize(partitions=st.integers(1, 3), is_disciplined=st.booleans(), seed=st.integers(0, 99))
    def begin(self, partitions: int, is_disciplined: bool, seed: int) -> None:
        IDS.seed(seed)
        self.is_disciplined = is_disciplined
        self.embedded.log.create_topic(TOPIC, partitions, {"segment.bytes": 1024})

    # -- producing -----------------------------------------------------------------------------

    def note(self, meta: RecordMetadata, value: bytes, acks: str | int) -> None:
        assert meta.offset == self.ends[meta.partition], "offsets come one after the other"
        self.held[meta.partition][meta.offset] = value
        self.ends[meta.partition] += 1
        if acks == "all":
            self.durable[meta.partition] = self.ends[meta.partition]

    def new_value(self, key: bytes | None) -> bytes:
        self.sent += 1
        return b"%d %s" % (self.sent, key or b"-") + bytes(60)

    @rule(key=keys, acks=st.sampled_from([0, 1, "all"]))
    def send(self, key: bytes | None, acks: str) -> None:
        value = self.new_value(key)
        self.note(self.embedded.log.producer(acks).send(TOPIC, value, key), value, acks)  # type: ignore[arg-type]

    @rule(batch_keys=st.lists(keys, min_size=1, max_size=8), acks=st.sampled_from([1, "all"]))
    def send_batch(self, batch_keys: list[bytes | None], acks: str) -> None:
        pairs = [(key, self.new_value(key)) for key in batch_keys]
        metas = self.embedded.log.producer(acks).send_batch(TOPIC, pairs)  # type: ignore[arg-type]
        for meta, (_, value) in zip(metas, pairs, strict=True):
            self.note(meta, value, acks)

    @rule()
    def grow(self) -> None:
        count = len(self.embedded.log.describe_topic(TOPIC).partitions)
        if count < 5:
            self.embedded.log.alter_topic(TOPIC, partitions=count + 1)

    # -- the group -----------------------------------------------------------------------------

    @precondition(lambda self: len(self.members) < MAX_MEMBERS)
    @rule()
    def join(self) -> None:
        consumer = self.embedded.log.consumer([TOPIC], GROUP, max_poll_interval_ms=INTERVAL_MS)
        self.members.append(Member(consumer))

    @precondition(lambda self: self.members)
    @rule(choice=choices)
    def leave(self, choice: int) -> None:
        self.members.pop(choice % len(self.members)).consumer.close()

    @precondition(lambda self: self.members)
    @rule(choice=choices, max_records=st.integers(1, 9))
    def poll(self, choice: int, max_records: int) -> None:
        member = self.members[choice % len(self.members)]
        self.take(member, max_records)
        if self.is_disciplined:
            self.keep(member)

    def take(self, member: Member, max_records: int) -> int:
        records = member.consumer.poll(max_records)
        member.may_be_stale = False
        for record in records:
            partition = record.partition
            start = self.committed.get(partition, 0)
            places = (start, member.next_offsets.get(partition, start))
            allowed = {self.first_at(partition, place) for place in places}
            assert record.offset in allowed, f"{record} is not next: {allowed}"
            assert record.value == self.held[partition][record.offset]
            if self.is_disciplined:
                assert (partition, record.offset) not in self.delivered, "delivered twice"
            member.next_offsets[partition] = record.offset + 1
            self.delivered.add((partition, record.offset))
            # What a reader has seen is on disk.
            self.durable[partition] = max(self.durable[partition], record.offset + 1)
        return len(records)

    def first_at(self, partition: int, offset: int) -> int:
        """The first record at an offset or after it."""
        return min((held for held in self.held[partition] if held >= offset), default=-1)

    @precondition(lambda self: self.members)
    @rule(choice=choices)
    def commit(self, choice: int) -> None:
        self.keep(self.members[choice % len(self.members)])

    def keep(self, member: Member) -> None:
        try:
            changed = member.consumer.commit()
        except GroupError:
            assert member.may_be_stale, "a member that polls in time may commit"
            return
        for tp, offset in changed.items():
            assert offset <= self.ends[tp.partition]
            self.committed[tp.partition] = offset

    @precondition(lambda self: self.members and not self.is_disciplined)
    @rule(choice=choices, part=choices)
    def seek(self, choice: int, part: int) -> None:
        member = self.members[choice % len(self.members)]
        assignment = member.consumer.assignment
        if assignment:
            tp = assignment[part % len(assignment)]
            offset = part % (member.consumer.position(*tp) + 1)  # back: forward would skip some
            member.consumer.seek(*tp, offset)
            member.next_offsets[tp.partition] = offset

    # -- time and accidents --------------------------------------------------------------------

    @rule(ms=st.sampled_from([100, 2_000, 30_000]))
    def pass_time(self, ms: int) -> None:
        self.embedded.clock.advance(ms)
        for member in self.members:
            member.may_be_stale = True  # several of these in a row are longer than the interval
        self.embedded.log.run_maintenance()

    @rule()
    def reopen(self) -> None:
        self.members.clear()
        self.embedded.reopen()
        self.check_restarted()

    @rule()
    def kill(self) -> None:
        self.members.clear()
        self.embedded.kill()
        self.check_restarted()

    @rule(seed=st.integers(0, 2**16))
    def lose_power(self, seed: int) -> None:
        self.members.clear()
        disk = self.embedded.disk
        self.embedded.use(disk.after_crash(disk.random_crash(random.Random(seed))))
        left: dict[int, dict[int, bytes]] = defaultdict(dict)
        for record in drain(self.embedded.log.consumer([TOPIC])):
            assert self.held[record.partition][record.offset] == record.value
            left[record.partition][record.offset] = record.value or b""
        for partition, end in self.durable.items():
            must = {offset for offset in self.held[partition] if offset < end}
            assert must <= left[partition].keys(), "a promise was broken"
        self.held = left
        for info in self.embedded.log.describe_topic(TOPIC).partitions:
            self.ends[info.partition] = info.end_offset
        self.check_restarted()

    def check_restarted(self) -> None:
        found = self.embedded.log.committed_offsets(GROUP)
        assert {tp.partition: at.offset for tp, at in found.items()} == self.committed
        self.durable.update(self.ends)  # recovery makes durable what it finds

    @invariant()
    def ends_agree(self) -> None:
        if TOPIC in self.embedded.log.topics():
            for info in self.embedded.log.describe_topic(TOPIC).partitions:
                assert info.end_offset == self.ends[info.partition]

    def teardown(self) -> None:
        """Read on until there is nothing left."""
        if TOPIC not in self.embedded.log.topics():
            return
        if not self.members:
            self.join()
        idle_rounds = 0
        while idle_rounds < 3:
            taken = 0
            for member in self.members:
                taken += self.take(member, 7)
                self.keep(member)
            idle_rounds = 0 if taken else idle_rounds + 1
        everything = {(number, offset) for number in self.held for offset in self.held[number]}
        missing = everything - self.delivered
        assert not missing, f"never delivered: {sorted(missing)[:5]}"
        for partition, offset in self.committed.items():
            assert self.first_at(partition, offset) == -1, "committed, but not to the end"
        self.embedded.log.close()


@pytest.mark.slow
def test_random_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uuid.uuid4", lambda: UUID(int=IDS.getrandbits(128)))
    run_state_machine_as_test(
        LogMachine,
        settings=examples(stateful_step_count=40, suppress_health_check=list(HealthCheck)),
    )
