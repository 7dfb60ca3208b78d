"""Groups of a read-only log, from the records of `__consumer_offsets`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.support.embedded_harness import EmbeddedHarness
from tests.support.transactions import TransactionalWriter

import strandlog
from strandlog import TopicPartition
from strandlog.client.readonly.log import ReadOnlyLog
from strandlog.errors import GroupNotFoundError
from strandlog.protocol.consumer_protocol import decode_assignment


def test_a_read_only_log_sees_the_groups_of_the_owner(tmp_path: Path) -> None:
    with strandlog.open(tmp_path) as log, strandlog.read(tmp_path) as reader:
        assert reader.groups() == []
        with pytest.raises(GroupNotFoundError):
            reader.describe_group("g")
        assert reader.committed_offsets("g") == {}
        log.create_topic("t", 2)
        log.producer().send_batch("t", [b"1", b"2", b"3"])
        with log.consumer(["t"], group="g") as consumer:
            consumer.poll()
            consumer.commit()
            mine, theirs = log.describe_group("g"), reader.describe_group("g")
            assert (theirs.state, theirs.generation) == ("Stable", mine.generation)
            assert [member[:4] for member in theirs.members] == [m[:4] for m in mine.members]
            (member,) = theirs.members
            assert len(decode_assignment(member.assignment).partitions) == 2
            assert reader.committed_offsets("g") == log.committed_offsets("g")
        assert reader.describe_group("g").state == "Empty"


def test_a_read_only_log_does_not_show_deleted_groups_and_topics(tmp_path: Path) -> None:
    with strandlog.open(tmp_path) as log, strandlog.read(tmp_path) as reader:
        log.create_topic("t", 2)
        for group in ("a", "b"):
            log.commit_offsets(group, {TopicPartition("t", number): 0 for number in range(2)})
        assert reader.groups() == ["a", "b"]
        log.delete_group("a")
        assert reader.groups() == ["b"]
        assert reader.committed_offsets("a") == {}
        log.commit_offsets("a", {TopicPartition("t", 1): 0})
        assert list(reader.committed_offsets("a")) == [TopicPartition("t", 1)]
        assert reader.describe_group("a").members == ()
        log.delete_topic("t")
        assert reader.groups() == []


def test_a_read_only_log_shows_the_same_offsets_after_a_compaction(tmp_path: Path) -> None:
    with strandlog.open(tmp_path) as log, strandlog.read(tmp_path) as reader:
        log.create_topic("t")
        log.producer().send_batch("t", [b"x"] * 50)
        for offset in range(50):
            log.commit_offsets("g", {TopicPartition("t", 0): offset})
        assert reader.committed_offsets("g")[TopicPartition("t", 0)].offset == 49
        log.compact("__consumer_offsets")
        log.commit_offsets("g", {TopicPartition("t", 0): 50})
        assert reader.committed_offsets("g")[TopicPartition("t", 0)].offset == 50
        with strandlog.read(tmp_path) as late:
            assert late.committed_offsets("g") == reader.committed_offsets("g")


@pytest.mark.parametrize("seed", range(6))
def test_a_read_only_log_shows_other_offsets_than_the_owner_beside_transactions(
    embedded: EmbeddedHarness, seed: int
) -> None:
    choose = random.Random(seed)
    embedded.log.create_topic("t", 2)
    embedded.send("t", *[b"x"] * 200)
    embedded.log.commit_offsets("a", {TopicPartition("t", 0): 0})
    writer = TransactionalWriter(embedded.log)
    groups = ["a", "b", "c"]
    open_since: set[str] = set()
    held_back = 0
    with ReadOnlyLog("data", files=embedded.disk) as reader:
        for step in range(80):
            group, name = choose.choice(groups), choose.choice(["p", "q"])
            tp = TopicPartition("t", choose.randrange(2))
            match choose.randrange(10):
                case 0 | 1 | 2:
                    embedded.log.commit_offsets(group, {tp: step})
                case 3 | 4 | 5 | 6:
                    writer.send_offset(name, group, tp, step)
                    open_since.add(name)
                case 7:
                    writer.end(name, commit=choose.random() < 0.6)
                    open_since.discard(name)
                case 8:
                    embedded.log.compact("__consumer_offsets")
                case _:
                    if group in embedded.log.groups():
                        embedded.log.delete_group(group)
            held_back += bool(open_since)
            with ReadOnlyLog("data", files=embedded.disk) as new:
                for each in (reader, new):
                    assert each.groups() == embedded.log.groups(), step
                    for known in groups:
                        expected = embedded.log.committed_offsets(known)
                        assert each.committed_offsets(known) == expected, step
    assert held_back > 20
