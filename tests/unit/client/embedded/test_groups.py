"""Consumers that share the partitions of their topics as members of a group."""

from __future__ import annotations

import pytest
from tests.support.embedded_harness import EmbeddedHarness, member, numbered, owned, read_values

from strandlog import (
    InvalidGroupError,
    TopicInUseError,
    TopicPartition,
)
from strandlog.errors import (
    GroupFullError,
    GroupNotEmptyError,
    GroupNotFoundError,
    InconsistentProtocolError,
    InvalidSessionTimeoutError,
    InvalidSettingError,
    UnknownMemberError,
)

# -- who has what ------------------------------------------------------------------------------


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky", "cooperative-sticky"])
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_members_share_all_partitions_and_no_partition_twice(
    embedded: EmbeddedHarness, assignor: str, count: int
) -> None:
    embedded.log.create_topic("t", 4)
    embedded.send("t", *numbered(40))
    members = [member(embedded, assignors=[assignor]) for _ in range(count)]
    assert owned(*members) == [0, 1, 2, 3]
    sizes = [len(each.assignment) for each in members]
    assert max(sizes) - min(sizes) <= 1
    assert read_values(*members) == numbered(40)
    assert read_values(*members) == []


def test_more_members_than_partitions_leaves_some_without_any(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", 2)
    embedded.send("t", *numbered(6))
    members = [member(embedded) for _ in range(4)]
    assert sorted(len(each.assignment) for each in members) == [0, 0, 1, 1]
    assert read_values(*members) == numbered(6)
    idle = next(each for each in members if not each.assignment)
    assert idle.poll() == [] and idle.commit() == {}


def test_a_new_member_gets_partitions_and_a_leaving_one_returns_them(
    embedded: EmbeddedHarness,
) -> None:
    embedded.log.create_topic("t", 4)
    first = member(embedded)
    assert owned(first) == [0, 1, 2, 3]
    second = member(embedded)
    assert len(first.assignment) == len(second.assignment) == 2
    second.close()
    first.poll()
    assert owned(first) == [0, 1, 2, 3]
    assert second.assignment == []


def test_committed_records_of_a_leaving_member_are_not_read_again(
    embedded: EmbeddedHarness,
) -> None:
    embedded.log.create_topic("t", 4)
    embedded.send("t", *numbered(8))
    first, second = member(embedded), member(embedded)
    done = second.poll()
    second.commit()
    second.close()
    rest = first.poll() + first.poll()
    assert len(done) == 4
    assert sorted(record.value or b"" for record in done + rest) == numbered(8)


def test_uncommitted_records_of_a_leaving_member_are_read_again(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", 2)
    embedded.send("t", *numbered(8))
    first, second = member(embedded), member(embedded)
    assert len(second.poll()) == 4
    second.close()
    assert len(first.poll() + first.poll()) == 8


def test_a_member_with_uncommitted_records_keeps_its_partitions(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", 2)
    embedded.send("t", *numbered(4))
    first = member(embedded)
    assert len(first.poll()) == 4
    second = member(embedded)
    assert second.poll() == [] and second.assignment == []
    assert owned(first) == [0, 1]
    first.commit()
    second.poll()
    assert len(first.assignment) == len(second.assignment) == 1
    assert second.poll() == [], "nothing is read twice"


def test_a_member_gives_up_its_partitions_when_it_polls(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", 2)
    embedded.send("t", *numbered(4))
    first = member(embedded)
    first.poll()
    second = member(embedded)
    first.poll()
    assert len(second.poll()) == 2, "not committed, so read again by the new owner"


def test_a_member_that_rejoins_returns_no_records_meanwhile(embedded: EmbeddedHarness) -> None:
    """It would return records of partitions that it is about to lose."""
    embedded.log.create_topic("t", 3)
    embedded.send("t", *numbered(3))
    busy, idle = member(embedded), member(embedded)
    done = len(busy.poll())
    assert done
    embedded.send("t", *numbered(3))
    new_member = member(embedded)
    assert idle.poll() == [] and new_member.poll() == []
    busy.commit()
    values = read_values(busy, idle, new_member)
    assert len(values) + done == 6
    assert owned(busy, idle, new_member) == [0, 1, 2]


def test_a_member_that_closes_while_it_joins_is_removed(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", 4)
    embedded.send("t", *numbered(8))
    first = member(embedded)
    first.poll()
    second = member(embedded)
    second.close()
    first.commit()
    first.poll()
    assert owned(first) == [0, 1, 2, 3]
    assert len(embedded.log.describe_group("g").members) == 1


def test_three_members_share_as_soon_as_the_third_joins(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", 3)
    members = [member(embedded) for _ in range(3)]
    assert [len(each.assignment) for each in members] == [1, 1, 1]
    assert embedded.log.describe_group("g").state == "Stable"


def test_groups_are_independent(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", 2)
    embedded.send("t", *numbered(6))
    one, two = member(embedded, group="one"), member(embedded, group="two")
    assert read_values(one) == read_values(two) == numbered(6)
    assert embedded.log.groups() == ["one", "two"]


def test_members_get_only_topics_they_subscribed_to(embedded: EmbeddedHarness) -> None:
    for topic in ("a", "b", "c"):
        embedded.log.create_topic(topic, 3)
    wishes = [("a",), ("b",), ("a", "b"), ("c",)]
    for assignor in ("range", "roundrobin", "sticky"):
        members = [member(embedded, *wish, group=assignor, assignors=[assignor]) for wish in wishes]
        for each, wish in zip(members, wishes, strict=True):
            each.poll()
            assert {tp.topic for tp in each.assignment} <= set(wish)
        have = sorted(tp for each in members for tp in each.assignment)
        assert have == [TopicPartition(topic, n) for topic in "abc" for n in range(3)]


def test_added_partitions_are_shared(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", 2)
    first, second = member(embedded), member(embedded)
    embedded.log.alter_topic("t", partitions=6)
    second.poll()
    first.poll()
    assert owned(first, second) == [0, 1, 2, 3, 4, 5]
    assert len(first.assignment) == 3
    embedded.send("t", *numbered(6))
    assert read_values(first, second) == numbered(6)


def test_added_partitions_of_a_topic_that_only_a_follower_reads_are_assigned(
    embedded: EmbeddedHarness,
) -> None:
    embedded.log.create_topic("a")
    embedded.log.create_topic("b")
    leader, follower = member(embedded, "a"), member(embedded, "b")
    for count in (2, 3, 5):
        embedded.log.alter_topic("b", partitions=count)
        leader.poll()
        follower.poll()
        assert len(follower.assignment) == count


def test_subscribing_to_a_missing_topic_is_an_error(embedded: EmbeddedHarness) -> None:
    with pytest.raises(Exception, match="topic 'nowhere' does not exist; create it first"):
        member(embedded, "nowhere")
    assert embedded.log.groups() == []


# -- groups from outside -----------------------------------------------------------------------


def test_a_topic_in_use_is_not_deleted(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    consumer = member(embedded)
    with pytest.raises(TopicInUseError, match="topic 't' is in use by consumers of group g"):
        embedded.log.delete_topic("t")
    consumer.close()
    embedded.log.delete_topic("t")
    assert embedded.log.topics() == []


def test_offsets_of_a_group_without_members_can_be_set(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", 2)
    embedded.send("t", *numbered(8))
    embedded.log.commit_offsets("g", {TopicPartition("t", 0): 3, TopicPartition("t", 1): 1})
    consumer = member(embedded)
    assert consumer.position("t", 0) == 3 and consumer.position("t", 1) == 1
    with pytest.raises(UnknownMemberError, match="only they may commit"):
        embedded.log.commit_offsets("g", {TopicPartition("t", 0): 0})
    consumer.close()
    embedded.log.commit_offsets("g", {TopicPartition("t", 0): 0})
    assert member(embedded).position("t", 0) == 0


def test_a_group_is_described_and_deleted(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    consumer = member(embedded)
    described = embedded.log.describe_group("g")
    assert (described.state, described.protocol_name, len(described.members)) == (
        "Stable",
        "range",
        1,
    )
    with pytest.raises(GroupNotEmptyError, match=r"has 1 member\(s\); stop them first"):
        embedded.log.delete_group("g")
    consumer.commit()
    consumer.close()
    embedded.log.delete_group("g")
    assert embedded.log.groups() == [] and embedded.log.committed_offsets("g") == {}
    with pytest.raises(GroupNotFoundError, match="group 'g' does not exist"):
        embedded.log.describe_group("g")
    with pytest.raises(GroupNotFoundError):
        embedded.log.delete_group("g")
    embedded.reopen()
    assert embedded.log.groups() == []


def test_a_consumer_with_partitions_of_its_own_commits_for_a_group_without_members(
    embedded: EmbeddedHarness,
) -> None:
    embedded.log.create_topic("t", 2)
    embedded.send("t", *numbered(4))
    consumer = embedded.log.consumer(group="g")
    consumer.assign([("t", 1)])
    assert len(consumer.poll()) == 2
    assert consumer.commit() == {TopicPartition("t", 1): 2}
    with member(embedded), pytest.raises(UnknownMemberError):
        consumer.seek("t", 1, 0)
        consumer.commit()
    assert embedded.log.committed_offsets("g")[TopicPartition("t", 1)].offset == 2


def test_a_member_that_assigns_itself_partitions_leaves_its_group(
    embedded: EmbeddedHarness,
) -> None:
    embedded.log.create_topic("t", 2)
    first, second = member(embedded), member(embedded)
    first.assign([("t", 0), ("t", 1)])
    second.poll()
    assert owned(first) == owned(second) == [0, 1]
    assert first.group == "g"


# -- what goes wrong ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 256, "\ud800"])
def test_invalid_group_names_are_rejected(embedded: EmbeddedHarness, name: str) -> None:
    embedded.log.create_topic("t")
    with pytest.raises(InvalidGroupError, match="invalid group name"):
        member(embedded, group=name)
    embedded.reopen()
    assert embedded.log.groups() == []


@pytest.mark.parametrize("name", ["a|b", "a/b", "a b", "ä", "..", "-", "日本"])
def test_unusual_group_names_are_valid(embedded: EmbeddedHarness, name: str) -> None:
    embedded.log.create_topic("t")
    embedded.send("t", b"0")
    consumer = member(embedded, group=name)
    consumer.poll()
    consumer.commit()
    embedded.kill()
    assert embedded.log.groups() == [name]
    assert member(embedded, group=name).poll() == []


def test_a_member_that_could_not_start_leaves_no_trace(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", 2)
    with pytest.raises(InvalidSettingError, match="one or more of range, roundrobin, sticky"):
        member(embedded, assignors=["nonsense"])
    with pytest.raises(InvalidSettingError):
        member(embedded, assignors=[])
    with pytest.raises(InvalidSessionTimeoutError, match="not between 6000 and 1800000"):
        member(embedded, max_poll_interval_ms=1)
    assert embedded.log.groups() == []
    first = member(embedded, assignors=["range"])
    with pytest.raises(InconsistentProtocolError, match="add one that they support"):
        member(embedded, assignors=["roundrobin"])
    first.poll()
    assert owned(first) == [0, 1]


def test_joining_a_full_group_is_an_error(embedded: EmbeddedHarness) -> None:
    embedded.settings = {"group.max.size": 2}
    embedded.log.create_topic("t", 3)
    first, second = member(embedded), member(embedded)
    with pytest.raises(GroupFullError, match=r"raise group.max.size \(2\)"):
        member(embedded)
    first.poll()
    assert owned(first, second) == [0, 1, 2]


def test_closing_the_log_removes_its_members(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", 2)
    member(embedded)
    embedded.reopen()
    assert embedded.log.describe_group("g").members == ()
