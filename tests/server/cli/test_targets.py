"""`strandlog context`, `strandlog cluster`, and shell completion."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from tests.support.command_line import CommandLine


def _file(cli: CommandLine) -> Path:
    return Path(cli.env["XDG_CONFIG_HOME"], "strandlog", "contexts.json")


def _without_target(cli: CommandLine) -> None:
    for name in ("STRANDLOG_DATA", "STRANDLOG_BOOTSTRAP"):
        cli.env.pop(name, None)


def test_commands_use_the_current_context(wire: CommandLine, tmp_path: Path) -> None:
    wire.inside("topic", "create", "remote")
    assert wire.bootstrap is not None
    wire.inside("context", "set", "prod", "-b", wire.bootstrap, "-X", "client.id=me")
    wire.inside("topic", "create", "local", "-d", str(tmp_path / "here"))
    wire.inside("context", "set", "dev", "-d", str(tmp_path / "here"))
    _without_target(wire)
    assert "context use NAME" in wire.inside("topic", "list", code=2).err
    wire.inside("context", "use", "prod")
    assert [each["name"] for each in wire.inside("topic", "list", "--json").document] == ["remote"]
    wire.env["STRANDLOG_CONTEXT"] = "dev"
    assert [each["name"] for each in wire.inside("topic", "list", "--json").document] == ["local"]
    wire.env["STRANDLOG_DATA"] = str(tmp_path / "nothing")
    assert wire.inside("topic", "list", code=1).err.startswith("error: ")


def test_the_file_of_contexts_has_no_secrets_and_one_reader(cli: CommandLine) -> None:
    address = ("context", "set", "prod", "-b", "broker.example:9093")
    found = cli.inside(*address, "-X", "sasl.password=hunter2", code=1)
    assert "give a reference" in found.err
    assert "hunter2" not in found.err
    assert not _file(cli).exists()
    cli.inside(*address, "-X", "sasl.password=${env:PASSWORD}", "-X", "sasl.username=me")
    assert stat.S_IMODE(_file(cli).stat().st_mode) == 0o600
    shown = cli.inside("context", "show", "prod").text
    assert "${env:PASSWORD}" in shown
    cli.inside("context", "use", "prod")
    cli.inside("context", "delete", "prod")
    assert cli.inside("context", "list", "--json").document == []
    assert (
        "there is no context 'prod'; the contexts are: none"
        in cli.inside("context", "use", "prod", code=1).err
    )


def test_a_damaged_file_of_contexts_is_an_error(cli: CommandLine) -> None:
    _file(cli).parent.mkdir(parents=True)
    _file(cli).write_text("{")
    assert "is not a contexts file" in cli.inside("context", "list", code=1).err
    assert "error: " not in cli.inside("topic", "create", "t").err


def test_cluster_info_shows_brokers_and_counts(anywhere: CommandLine) -> None:
    anywhere.inside("topic", "create", "t", "-p", "3")
    found = anywhere.inside("cluster", "info", "--json").document
    assert (found["topic_count"], found["partition_count"]) == (1, 3)
    assert len(found["cluster_id"]) == 22
    assert len(found["brokers"]) == int(anywhere.is_wire)
    assert found["cluster_id"] in anywhere.inside("cluster", "info").text


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("topic describe ", ["pears", "penguins"]),
        ("consume pen", ["penguins"]),
        ("group describe ", ["readers"]),
        ("topic dele", ["delete"]),
    ],
)
def test_the_shell_completes_names(anywhere: CommandLine, words: str, expected: list[str]) -> None:
    for topic in ("pears", "penguins"):
        anywhere.inside("produce", topic, "--create", given=b"x\n")
    anywhere.inside("consume", "pears", "-g", "readers", "-e")
    line = f"strandlog {words}"
    anywhere.env.update(
        _STRANDLOG_COMPLETE="complete_bash",
        COMP_WORDS=line,
        COMP_CWORD=str(len(line.split(" ")) - 1),
    )
    assert anywhere.inside().lines == expected


def test_the_shell_completes_nothing_without_a_broker(cli: CommandLine) -> None:
    cli.env.update(STRANDLOG_BOOTSTRAP="127.0.0.1:1", _STRANDLOG_COMPLETE="complete_bash")
    cli.env.update(COMP_WORDS="strandlog topic describe ", COMP_CWORD="3")
    del cli.env["STRANDLOG_DATA"]
    found = cli.inside()
    assert (found.text.strip(), found.err) == ("", "")


def test_the_option_context_takes_precedence_over_the_environment(
    wire: CommandLine, tmp_path: Path
) -> None:
    here = str(tmp_path / "here")
    wire.inside("topic", "create", "local", "-d", here)
    wire.inside("topic", "create", "remote")
    assert "strandlog context use dev" in wire.inside("context", "set", "dev", "-d", here).err
    assert wire.bootstrap is not None
    wire.inside("context", "set", "prod", "-b", wire.bootstrap)
    wire.inside("context", "use", "dev")
    listed = {
        name: [each["name"] for each in wire.inside(*words, "--json").document]
        for name, words in {
            "environment": ("topic", "list"),
            "dev": ("--context", "dev", "topic", "list"),
            "prod": ("--context", "prod", "topic", "list"),
        }.items()
    }
    assert listed == {"environment": ["remote"], "dev": ["local"], "prod": ["remote"]}
    assert wire.inside("--context", "prod", "context", "show").text.split()[-1] == wire.bootstrap
    assert "no context 'gone'" in wire.inside("--context", "gone", "topic", "list", code=1).err
    shown = wire.inside("--context", "prod", "config", "show", "--json").document
    assert any(row["name"] == "num.partitions" for row in shown)
    assert "confluent-kafka lists" in wire.inside("--context", "prod", "doctor").text
    assert here in wire.inside("--context", "dev", "doctor").text


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("topic list -b localhost:1", "--context also names a log"),
        ("topic list -d data", "--context also names a log"),
        ("doctor -b localhost:1", "--context also names a log"),
        ("config show", "is a folder, not a running broker"),
        ("serve", "--context has no effect on serve"),
        ("log verify data", "--context has no effect on log"),
        ("config check server.toml", "--context has no effect on config check"),
        ("pipeline validate p.toml", "--context has no effect on pipeline validate"),
        ("pipeline list p.toml", "--context has no effect on pipeline list"),
        ("pipeline test p.toml", "--context has no effect on pipeline test"),
        ("pipeline prepare", "--context has no effect on pipeline prepare"),
        ("table compact folder", "--context has no effect on table compact"),
        ("context use dev", "--context has no effect on context use"),
        ("doctor other", "--context also names a log"),
    ],
)
def test_the_option_context_is_not_ignored(cli: CommandLine, words: str, expected: str) -> None:
    cli.inside("context", "set", "dev", "-d", "data")
    assert expected in cli.inside("--context", "dev", *words.split(), code=2).err


def test_the_shell_completes_contexts(cli: CommandLine) -> None:
    cli.inside("context", "set", "prod", "-b", "host:1")
    cli.env.update(_STRANDLOG_COMPLETE="complete_bash", COMP_CWORD="2")
    cli.env.update(COMP_WORDS="strandlog --context p")
    assert cli.inside().lines == ["prod"]


def test_a_context_with_an_invalid_address_is_not_stored(cli: CommandLine) -> None:
    found = cli.inside("context", "set", "prod", "-b", "http://broker.example:9092", code=1).err
    assert "bootstrap.servers: expected a comma-separated list of HOST:PORT" in found
    assert cli.inside("context", "list", "--json").document == []
