"""Committed offsets of embedded groups: commits, late commits, auto commit, expiry."""

from __future__ import annotations

import pytest
from tests.support.embedded_harness import EmbeddedHarness, member, numbered, owned

from strandlog import (
    GroupError,
    InvalidGroupError,
    NotOwnerError,
    TopicPartition,
)
from strandlog.errors import (
    IllegalGenerationError,
    TooManyOffsetsError,
    UnknownMemberError,
)

# -- positions ---------------------------------------------------------------------------------


def test_a_group_continues_at_its_committed_offset(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    embedded.send("t", *numbered(6))
    consumer = member(embedded)
    assert len(consumer.poll(max_records=4)) == 4
    assert consumer.commit() == {TopicPartition("t", 0): 4}
    assert consumer.committed("t", 0) == consumer.position("t", 0) == 4
    assert consumer.commit() == {}
    consumer.poll()
    embedded.reopen()
    consumer = member(embedded)
    assert [record.offset for record in consumer.poll()] == [4, 5]


def test_commits_survive_a_power_cut(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    embedded.send("t", *numbered(6))
    consumer = member(embedded)
    consumer.poll(max_records=4)
    consumer.commit()
    embedded.lose_power()
    assert [record.offset for record in member(embedded).poll()] == [4, 5]


def test_a_commit_may_rewind(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    embedded.send("t", *numbered(6))
    consumer = member(embedded)
    consumer.poll()
    consumer.commit()
    consumer.seek("t", 0, 2)
    assert consumer.commit() == {TopicPartition("t", 0): 2}
    embedded.kill()
    assert member(embedded).poll()[0].offset == 2


def test_no_rebalance_waits_for_members_of_a_killed_process(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", 4)
    members = [member(embedded) for _ in range(3)]
    assert owned(*members) == [0, 1, 2, 3]
    embedded.kill()
    survivor = member(embedded)
    assert owned(survivor) == [0, 1, 2, 3]


def test_a_member_that_does_not_poll_for_too_long_is_removed(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", 2)
    embedded.send("t", *numbered(8))
    slow = member(embedded, max_poll_interval_ms=60_000)
    assert len(slow.poll()) == 8
    quick = member(embedded, max_poll_interval_ms=60_000)
    for _ in range(61):
        embedded.advance(1_000)
        quick.poll()
    assert len(quick.poll()) + len(quick.poll()) <= 8
    assert owned(quick) == [0, 1]
    with pytest.raises(UnknownMemberError, match="join"):
        slow.commit()
    quick.commit()
    assert embedded.log.committed_offsets("g")[TopicPartition("t", 0)].offset == 4
    slow.poll()
    assert len(slow.assignment) == len(quick.assignment) == 1


def test_a_late_commit_does_not_rewind_the_group(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", 2)
    embedded.send("t", *numbered(8))
    stale = member(embedded, max_poll_interval_ms=60_000)
    stale.poll(max_records=1)
    other = member(embedded, max_poll_interval_ms=60_000)
    for _ in range(61):
        embedded.advance(1_000)
        other.poll()
        other.commit()
    before = embedded.log.committed_offsets("g")
    assert {at.offset for at in before.values()} == {4}
    with pytest.raises(GroupError):
        stale.commit()
    assert embedded.log.committed_offsets("g") == before


def test_a_commit_of_an_old_generation_is_rejected(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", 2)
    embedded.send("t", *numbered(8))
    first = member(embedded)
    first.poll()
    generation = embedded.log.describe_group("g").generation
    second = member(embedded)
    first.commit()
    second.poll()
    assert embedded.log.describe_group("g").generation == generation + 1
    membership = first._membership
    assert membership is not None
    membership._generation = generation
    first.seek_all(0)
    with pytest.raises(IllegalGenerationError, match="join it again"):
        first.commit()


def test_a_commit_during_a_rebalance_is_accepted(embedded: EmbeddedHarness) -> None:
    """The member gave up nothing by waiting: what it still has after that, it may commit."""
    embedded.log.create_topic("t", 3)
    embedded.send("t", *numbered(9))
    waiting, busy = member(embedded), member(embedded)
    assert busy.poll()
    new_member = member(embedded)
    assert waiting.poll() == [] and new_member.poll() == []
    waiting.seek_all(1)
    busy.close()
    committed = waiting.commit()
    assert committed.keys() == set(waiting.assignment), "those that it lost are not committed"
    assert owned(waiting, new_member) == [0, 1, 2]


def test_a_member_cannot_use_partitions_it_does_not_own(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", 2)
    first, second = member(embedded), member(embedded)
    foreign = second.assignment[0].partition
    for call in (
        lambda: first.position("t", foreign),
        lambda: first.seek("t", foreign, 0),
    ):
        with pytest.raises(NotOwnerError, match=f"t-{foreign} is not assigned"):
            call()
    assert first.committed("t", foreign) is None


# -- auto commit -------------------------------------------------------------------------------


def test_auto_commit_commits_what_the_polls_before_returned(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    embedded.send("t", *numbered(6))
    consumer = member(embedded, auto_commit=True)
    consumer.poll(max_records=2)
    assert consumer.committed("t", 0) == 0
    consumer.poll(max_records=2)
    assert consumer.committed("t", 0) == 2
    consumer.close()
    assert embedded.log.committed_offsets("g")[TopicPartition("t", 0)].offset == 4


def test_iteration_with_auto_commit_does_not_fsync_for_every_record(
    embedded: EmbeddedHarness,
) -> None:
    embedded.log.create_topic("t")
    embedded.send("t", *numbered(1_200))
    consumer = member(embedded, auto_commit=True)
    before = embedded.count_steps("sync", "__consumer_offsets")
    assert len(list(consumer)) == 1_200
    assert consumer.committed("t", 0) == 1_200
    fsyncs = embedded.count_steps("sync", "__consumer_offsets") - before
    assert 0 < fsyncs <= 6, "one commit per 500 records, and one at the end"


def test_iteration_with_auto_commit_commits_after_five_seconds(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    embedded.send("t", *numbered(5))
    consumer = member(embedded, auto_commit=True)
    next(consumer)
    next(consumer)
    assert consumer.committed("t", 0) is None
    embedded.clock.advance(5_000)
    next(consumer)
    assert consumer.committed("t", 0) == 2


def test_iteration_with_auto_commit_commits_at_the_end_and_at_close(
    embedded: EmbeddedHarness,
) -> None:
    embedded.log.create_topic("t")
    embedded.send("t", *numbered(3))
    with member(embedded, auto_commit=True) as consumer:
        assert len(list(consumer)) == 3
        assert consumer.committed("t", 0) == 3
        embedded.send("t", b"3", b"4")
        next(consumer)
    assert embedded.log.committed_offsets("g")[TopicPartition("t", 0)].offset == 4


def test_iteration_with_auto_commit_commits_before_a_rebalance(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", 2)
    embedded.send("t", *numbered(8))
    first = member(embedded, auto_commit=True)
    seen = [next(first).value for _ in range(4)]
    second = member(embedded, auto_commit=True)
    seen += [record.value for record in first]
    seen += [record.value for record in second]
    seen += [record.value for record in first]
    assert sorted(seen, key=lambda value: value or b"") == numbered(8)


def test_auto_commit_does_not_count_the_record_at_which_the_program_failed(
    embedded: EmbeddedHarness,
) -> None:
    embedded.log.create_topic("t")
    embedded.send("t", *numbered(5))
    with pytest.raises(ZeroDivisionError), member(embedded, auto_commit=True) as consumer:
        for record in consumer:
            assert record.value != b"3" or 1 / 0
    assert member(embedded).poll()[0].value == b"3"


def test_auto_commit_does_not_count_the_poll_at_which_the_program_failed(
    embedded: EmbeddedHarness,
) -> None:
    embedded.log.create_topic("t")
    embedded.send("t", *numbered(5))
    with pytest.raises(ZeroDivisionError), member(embedded, auto_commit=True) as consumer:
        next(consumer)
        assert consumer.poll(max_records=2)
        raise ZeroDivisionError
    assert member(embedded).poll()[0].value == b"1"


def test_assign_commits_first_with_auto_commit(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", 2)
    embedded.send("t", *numbered(4))
    consumer = member(embedded, auto_commit=True)
    consumer.poll()
    consumer.assign([("t", 0)])
    assert {at.offset for at in embedded.log.committed_offsets("g").values()} == {2}


def test_auto_commit_requires_a_group(embedded: EmbeddedHarness) -> None:
    with pytest.raises(InvalidGroupError, match="auto_commit requires a group"):
        embedded.log.consumer(auto_commit=True)


def test_without_auto_commit_nothing_is_committed(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    embedded.send("t", *numbered(3))
    with member(embedded) as consumer:
        consumer.poll()
        consumer.poll()
    assert embedded.log.committed_offsets("g") == {}


def test_old_offsets_expire_and_used_ones_do_not(embedded: EmbeddedHarness) -> None:
    embedded.settings = {"offsets.retention.minutes": 60}
    embedded.log.create_topic("t")
    embedded.send("t", *numbered(3))
    with member(embedded, group="gone") as gone:
        gone.poll()
        gone.commit()
    stays = member(embedded, group="stays")
    stays.poll()
    stays.commit()
    for _ in range(8):
        embedded.clock.advance(600_000)
        embedded.log.run_maintenance()
        embedded.clock.advance(1)
        stays.poll()
    assert embedded.log.committed_offsets("gone") == {}
    assert embedded.log.committed_offsets("stays")[TopicPartition("t", 0)].offset == 3


def test_an_auto_commit_that_the_broker_rejects_is_not_lost_silently(
    embedded: EmbeddedHarness,
) -> None:
    embedded.settings["offsets.max.bytes"] = 2000
    embedded.log.create_topic("t", 100)
    consumer = member(embedded, auto_commit=True)
    with pytest.raises(TooManyOffsetsError, match=r"offsets\.max\.bytes"):
        consumer.poll()
    with pytest.raises(TooManyOffsetsError):
        consumer.close()
    assert embedded.log.describe_group("g").members == ()


def test_an_auto_commit_to_a_group_with_members_is_not_lost_silently(
    embedded: EmbeddedHarness,
) -> None:
    embedded.log.create_topic("t")
    embedded.send("t", *numbered(3))
    consumer = embedded.log.consumer(group="g", auto_commit=True)
    consumer.assign([("t", 0)])
    assert len(consumer.poll()) == 3
    member(embedded)
    with pytest.raises(UnknownMemberError):
        consumer.poll()
