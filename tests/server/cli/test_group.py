"""`strandlog group`: list, describe, reset, delete."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.command_line import CommandLine

import strandlog
from strandlog import TopicPartition
from strandlog.broker.groups.requests import CommitRequest
from strandlog.model import OffsetAndMetadata
from strandlog.testing.server import ServerThread


@pytest.fixture
def used(anywhere: CommandLine) -> CommandLine:
    """Ten records in two partitions, of which group `g` has read some."""
    with anywhere.open_log() as log:
        log.create_topic("t", 2)
        log.create_topic("other")
        with log.producer() as producer:
            records = [{"value": b"%d" % number, "partition": number % 2} for number in range(10)]
            producer.send_batch("t", records)
            producer.send("other", b"x")
        with log.consumer(["t"], group="g") as consumer:
            consumer.poll(max_records=3)
            consumer.commit()
    return anywhere


def _committed(cli: CommandLine, group: str = "g") -> dict[tuple[str, int], Any]:
    rows = cli.inside("group", "describe", group, "--json").document["partitions"]
    return {(row["topic"], row["partition"]): row["committed"] for row in rows}


@pytest.mark.slow
def test_groups_are_listed_with_their_lag(used: CommandLine) -> None:
    (row,) = used("group", "list", "--json").document
    assert row == {"name": "g", "state": "Empty", "member_count": 0, "topics": ["t"], "lag": 7}
    assert used.inside("group", "list").lines[1].split() == ["g", "Empty", "0", "t", "7"]


def test_a_log_without_groups_lists_none(anywhere: CommandLine) -> None:
    anywhere.inside("topic", "create", "t")
    assert anywhere.inside("group", "list", "--json").document == []
    assert "group 'g' does not exist" in anywhere.inside("group", "describe", "g", code=1).err


def test_a_group_is_described_by_partition(used: CommandLine) -> None:
    found = used("group", "describe", "g", "--json").document
    assert (found["name"], found["state"], found["members"]) == ("g", "Empty", [])
    assert [row["end_offset"] for row in found["partitions"]] == [5, 5]
    assert sum(row["committed"] for row in found["partitions"]) == 3
    assert sum(row["lag"] for row in found["partitions"]) == 7
    assert used.inside("group", "describe", "g").lines[0].split()[:3] == [
        "TOPIC",
        "PARTITION",
        "COMMITTED",
    ]


def test_members_are_shown_while_they_consume(used: CommandLine) -> None:
    with used.open_log() as log, log.consumer(["t"], group="g") as consumer:
        while consumer.poll():
            pass
        consumer.commit()
        found = used.inside("group", "describe", "g", "--json").document
        assert found["state"] == "Stable"
        (member,) = found["members"]
        assert member["partitions"] == ["t:0", "t:1"]
        assert {row["member_id"] for row in found["partitions"]} == {member["member_id"]}
        assert sum(row["lag"] for row in found["partitions"]) == 0
        assert member["member_id"] in used.inside("group", "describe", "g").text
        expected = "GroupNotEmptyError" if used.is_wire else "AlreadyOpenError"
        assert expected in used.inside("group", "delete", "g", "--yes", "--json", code=1).err
    assert used.inside("group", "describe", "g", "--json").document["state"] == "Empty"


def test_a_deleted_topic_has_no_lag(used: CommandLine) -> None:
    with used.open_log() as log:
        log.commit_offsets("g", {TopicPartition("other", 0): 1})
    before = _committed(used)
    assert before["other", 0] == 1
    used.inside("topic", "delete", "other", "--yes")
    assert ("other", 0) not in _committed(used)


@pytest.mark.slow
def test_a_reset_is_a_dry_run_until_yes(used: CommandLine) -> None:
    before = _committed(used)
    found = used.inside("group", "reset", "g", "--to", "earliest")
    assert "dry run: add --yes to reset 2 partitions" in found.err
    assert found.lines[0].split() == ["TOPIC", "PARTITION", "COMMITTED", "NEW", "NEW", "LAG"]
    assert _committed(used) == before
    found = used("group", "reset", "g", "--to", "earliest", "--yes", "--json")
    assert found.document["applied"] is True
    assert _committed(used) == {("t", 0): 0, ("t", 1): 0}


def test_a_reset_leaves_out_offsets_that_remain_of_a_deleted_topic(
    cli: CommandLine, tmp_path: Path
) -> None:
    offsets = {TopicPartition(*tp): OffsetAndMetadata(1) for tp in [("t", 0), ("t", 1), ("u", 0)]}
    with strandlog.open(cli.data) as log:
        log.create_topic("t")
        log.producer().send("t", b"x")
        request = CommitRequest(group_id="g", offsets=offsets)
        log.broker.commit_offsets(log.context, request, missing_partitions=True).result()
    with ServerThread(cli.data) as server:
        for each in (cli, CommandLine(tmp_path / "none", server.address)):
            found = each.inside("group", "reset", "g", "--to", "0", "--json")
            assert [row["topic"] for row in found.document["partitions"]] == ["t"]
            assert found.err == "note: 2 committed offsets of deleted topics left out: t, u\n"
            for topic in ("u", "t:1"):
                each.inside("group", "reset", "g", "--to", "0", "--topic", topic, code=1)


def test_each_form_of_the_new_offset(used: CommandLine) -> None:
    forms = {"latest": 5, "end": 5, "2": 2, "99": 5, "-1": 4, "-99": 0, "@0": 0}
    for to, expected in forms.items():
        found = used.inside("group", "reset", "g", "--to", to, "--json").document
        assert found["applied"] is False
        assert [row["new_offset"] for row in found["partitions"]] == [expected, expected], to


def test_a_reset_of_some_partitions_and_of_a_new_group(used: CommandLine) -> None:
    before = _committed(used)
    used.inside("group", "reset", "g", "--to", "latest", "--topic", "t:1", "--yes")
    assert _committed(used) == {("t", 0): before["t", 0], ("t", 1): 5}
    used.inside("group", "reset", "new", "--to", "1", "--topic", "other", "--topic", "t", "--yes")
    assert _committed(used, "new") == {("other", 0): 1, ("t", 0): 1, ("t", 1): 1}


def test_invalid_arguments_change_nothing(used: CommandLine) -> None:
    before = _committed(used)
    for arguments, code, message in (
        (("reset", "g"), 2, "--to"),
        (("reset", "g", "--to", "sometime"), 2, "invalid offset"),
        (("reset", "g", "--to", "0", "--topic", "t:x"), 2, "TOPIC:PARTITION"),
        (("reset", "g", "--to", "0", "--topic", "t:9"), 1, "has no partition 9"),
        (("reset", "g", "--to", "0", "--topic", "u"), 1, "does not exist"),
        (("reset", "u", "--to", "0"), 1, "group 'u' does not exist"),
        (("delete", "u", "--yes"), 1, "group 'u' does not exist"),
        (("delete", "g"), 2, "add --yes"),
    ):
        assert message in used.inside("group", *arguments, code=code).err
        assert _committed(used) == before, arguments


def test_a_group_is_deleted(used: CommandLine) -> None:
    assert used("group", "delete", "g", "--yes", "--json").document == {"deleted": ["g"]}
    assert used.inside("group", "list", "--json").document == []
