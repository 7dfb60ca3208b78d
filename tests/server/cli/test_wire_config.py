"""`strandlog config show -b` and `config topic`."""

from __future__ import annotations

from tests.support.command_line import CommandLine
from tests.support.server import RunningBroker


def test_settings_of_a_running_broker_are_printed(cli: CommandLine, broker: RunningBroker) -> None:
    found = cli.inside("config", "show", "-b", broker.address, "--json").document
    rows = {row["name"]: row for row in found}
    assert len(rows) > 20
    assert rows["group.initial.rebalance.delay.ms"]["value"] == "0"
    assert rows["group.initial.rebalance.delay.ms"]["origin"]["kind"] != "default"
    assert rows["auto.create.topics.enable"]["origin"]["kind"] == "default"
    changed = cli.inside("config", "show", "-b", broker.address, "--changed")
    assert changed.lines[0].split() == ["NAME", "VALUE", "ORIGIN"]
    assert len(changed.lines) < len(rows)
    assert "group.initial.rebalance.delay.ms" in changed.text
    found_err = cli.inside("config", "show", "-b", broker.address, "--set", "a=b", code=2).err
    assert "--set cannot be combined with -b" in found_err


def test_show_ignores_the_broker_in_the_environment(wire: CommandLine) -> None:
    """Without -b, `config show` is about `serve`."""
    assert "MEANING" in wire.inside("config", "show").lines[0]


def test_topic_settings_are_printed_with_their_origin(anywhere: CommandLine) -> None:
    anywhere.inside("topic", "create", "t", "-c", "retention.ms=1d")
    rows = {row["name"]: row for row in anywhere.inside("config", "topic", "t", "--json").document}
    assert (rows["retention.ms"]["value"], rows["retention.ms"]["origin"]["kind"]) == (
        "86400000",
        "topic",
    )
    assert (rows["cleanup.policy"]["value"], rows["cleanup.policy"]["origin"]["kind"]) == (
        "delete",
        "default",
    )
    found = anywhere.inside("config", "topic", "t", "--changed")
    assert [line.split() for line in found.lines[1:]] == [["retention.ms", "86400000", "topic"]]
    assert found.err == "1 setting changed\n"
    assert "does not exist" in anywhere.inside("config", "topic", "u", code=1).err
