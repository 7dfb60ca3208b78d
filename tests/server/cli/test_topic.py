"""`strandlog topic`: create, list, describe, alter, delete."""

from __future__ import annotations

import pytest
from tests.support.command_line import CommandLine


@pytest.mark.slow
def test_create_list_describe_alter_delete(anywhere: CommandLine) -> None:
    found = anywhere(
        "topic", "create", "orders", "-p", "3", "-c", "retention.ms=1d", "--json"
    ).document
    assert (found["name"], found["partition_count"]) == ("orders", 3)
    assert found["config"] == {"retention.ms": "86400000"}
    assert anywhere.inside("topic", "create", "plain").err == "created plain with 1 partition\n"
    anywhere.inside("produce", "orders", given=b"1\n2\n3\n4\n")

    found = anywhere.inside("topic", "list", "--json").document
    assert [(row["name"], row["partition_count"], row["offsets"]) for row in found] == [
        ("orders", 3, 4),
        ("plain", 1, 0),
    ]
    assert anywhere.inside("topic", "list").lines[0].split() == [
        "TOPIC",
        "PARTITIONS",
        "OFFSETS",
        "SIZE",
    ]

    anywhere.inside(
        "topic", "alter", "orders", "-c", "retention.ms=", "-c", "segment.bytes=1MiB", "-p", "4"
    )
    found = anywhere.inside("topic", "describe", "orders", "--json").document
    assert found["config"] == {"segment.bytes": "1048576"}
    ends = [row["end_offset"] for row in found["partitions"]]
    assert (len(ends), sum(ends)) == (4, 4)
    if not anywhere.is_wire:  # librdkafka does not round-robin
        assert ends == [2, 1, 1, 0]
    assert set(found["partitions"][0]) == {
        "partition",
        "start_offset",
        "end_offset",
        "size_bytes",
        "segments",
    }
    shown = anywhere.inside("topic", "describe", "orders").lines
    assert shown[1].split()[:4] == ["0", "0", str(ends[0]), str(ends[0])]
    assert "segment.bytes  1048576" in shown
    found = anywhere.inside("topic", "describe", "orders", "--json", "--defaults").document[
        "config"
    ]
    assert found["retention.ms"] == "604800000"
    assert found["cleanup.policy"] == "delete"

    assert anywhere("topic", "delete", "orders", "--yes", "--json").document == {
        "deleted": ["orders"]
    }
    assert [row["name"] for row in anywhere.inside("topic", "list", "--json").document] == ["plain"]


def test_delete_without_terminal_requires_yes(anywhere: CommandLine) -> None:
    anywhere.inside("topic", "create", "t")
    found = anywhere("topic", "delete", "t", given=b"y\n", code=2)
    assert "add --yes" in found.err
    assert anywhere.inside("topic", "list", "--json").document


def test_invalid_arguments_are_reported_on_stderr(anywhere: CommandLine) -> None:
    anywhere.inside("topic", "create", "old")
    for arguments, code, message in (
        (("create", "a b"), 1, "invalid topic name"),
        (("create", "t", "-p", "0"), 1, "partitions"),
        (("create", "t", "-c", "retention.ms=soon"), 1, "retention.ms"),
        (("create", "t", "-c", "nonsense"), 2, "key=value"),
        (("create", "t", "-p", "many"), 2, "-p"),
        (("create",), 2, "NAME"),
        (("alter", "old"), 2, "nothing to change"),
        (("alter", "old", "-p", "1"), 1, "can only grow"),
        (("alter", "other", "-p", "2"), 1, "does not exist"),
        (("describe", "other"), 1, "does not exist"),
        (("delete", "other", "--yes"), 1, "does not exist"),
    ):
        found = anywhere.inside("topic", *arguments, code=code)
        assert message in found.err, arguments
        assert found.out == b"", arguments
