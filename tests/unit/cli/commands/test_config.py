"""`strandlog config show` and `config check`."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.command_line import CommandLine


@pytest.fixture
def folder(cli: CommandLine, tmp_path: Path) -> Path:
    del cli.env["STRANDLOG_DATA"]
    return tmp_path


def test_show_prints_each_value_with_its_origin(cli: CommandLine, folder: Path) -> None:
    file = folder / "server.toml"
    file.write_text('num.partitions = 3\n[log]\nretention.ms = "7d"\nsegment.bytes = "1MiB"\n')
    cli.env["STRANDLOG_LOG_SEGMENT_BYTES"] = "2MiB"
    found = cli("config", "show", "--config", str(file), "--set", "log.roll.hours=1", "--changed")
    expected = [
        ["NAME", "VALUE", "UNIT", "ORIGIN"],
        ["num.partitions", "3", f"{file}:1"],
        ["log.retention.ms", "604800000", "ms", f"{file}:3"],
        ["log.segment.bytes", "2097152", "bytes", "STRANDLOG_LOG_SEGMENT_BYTES"],
        ["log.roll.ms", "3600000", "ms", "--set"],
    ]
    lines = zip(found.lines, expected, strict=True)
    assert [line.split()[: len(row)] for line, row in lines] == expected
    assert found.err == "4 settings changed\n"


def test_show_without_arguments_prints_the_defaults(cli: CommandLine, folder: Path) -> None:
    document = cli.inside("config", "show", "--json").document
    rows = {row["name"]: row for row in document}
    assert {row["origin"]["kind"] for row in document} == {"default"}
    assert all(row["value"] == row["default"] for row in document)
    assert rows["log.dirs"]["value"] == "./data"
    assert rows["log.retention.ms"]["unit"] == "ms"
    assert rows["log.retention.ms"]["variable"] == "STRANDLOG_LOG_RETENTION_MS"
    assert cli.inside("config", "show", "--changed", "--json").document == []


def test_the_config_file_can_be_set_in_the_environment(cli: CommandLine, folder: Path) -> None:
    (folder / "a.properties").write_text("# ours\nnum.partitions=7\n")
    cli.env["STRANDLOG_CONFIG"] = str(folder / "a.properties")
    (row,) = cli.inside("config", "show", "--changed", "--json").document
    assert (row["name"], row["value"], row["origin"]["line"]) == ("num.partitions", "7", 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--set", "log.retenton.ms=1"), "did you mean 'log.retention.ms'?"),
        (
            ("--set", "num.partitions=0"),
            "invalid value '0' for num.partitions: expected a number, at least 1",
        ),
        (("--config", "missing.toml"), "missing.toml: cannot read the file: No such file"),
        (("--config", "server.yaml"), "expected *.toml or *.properties"),
    ],
)
def test_a_problem_is_one_line(
    cli: CommandLine, folder: Path, arguments: tuple[str, ...], message: str
) -> None:
    found = cli.inside("config", "show", *arguments, code=1)
    assert found.out == b""
    assert found.err.startswith("error: ")
    assert message in found.err


def test_set_without_a_value_is_a_usage_error(cli: CommandLine, folder: Path) -> None:
    assert "is not key=value" in cli.inside("config", "show", "--set", "x", code=2).err


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("-X", "client.id=me"), "-X"),
        (("--client-config", "client.properties"), "--client-config"),
        (("-b", "127.0.0.1:1", "--config", "server.toml"), "--config"),
    ],
)
def test_an_option_that_would_be_ignored_is_a_usage_error(
    cli: CommandLine, folder: Path, arguments: tuple[str, ...], option: str
) -> None:
    assert option in cli.inside("config", "show", *arguments, code=2).err


def test_a_usage_error_does_not_quote_a_secret(cli: CommandLine, folder: Path) -> None:
    mistyped = "ssl.key.password:hunter2"
    for arguments in (("--set", mistyped), ("-b", "127.0.0.1:1", "-X", mistyped)):
        error = cli.inside("config", "show", *arguments, code=2).err
        assert "ssl.key.password[hidden] is not key=value" in error
        assert "hunter2" not in error


def test_check_lists_every_problem_with_its_line(cli: CommandLine, folder: Path) -> None:
    file = folder / "server.properties"
    file.write_text("node.id=1\nlog.retenton.ms=1\nlisteners=TLS://:1\nnum.partitions=x\n")
    found = cli("config", "check", str(file), code=1)
    assert [line.partition(": ")[0] for line in found.lines] == [
        f"{file}:{line}" for line in (2, 3, 4)
    ]
    assert f"note: {file}:1: node.id has no effect: there is one broker\n" in found.err
    assert found.err.endswith("3 problems, 1 setting set\n")
    document = cli.inside("config", "check", str(file), "--json", code=1).document
    assert not document["ok"]
    assert [(row["line"], row["name"]) for row in document["problems"]] == [
        (2, "log.retenton.ms"),
        (3, "listeners"),
        (4, "num.partitions"),
    ]
    assert [row["name"] for row in document["notes"]] == ["node.id"]


def test_check_of_a_valid_file_reports_no_problems(cli: CommandLine, folder: Path) -> None:
    file = folder / "server.toml"
    file.write_text('log.retention.ms = "7d"\n')
    cli.env["STRANDLOG_NONSENSE"] = "1"  # `check` ignores the environment
    found = cli.inside("config", "check", str(file))
    assert (found.text, found.err) == ("", "0 problems, 1 setting set\n")


def test_invalid_utf8_is_reported_with_its_line(cli: CommandLine, folder: Path) -> None:
    file = folder / "server.properties"
    file.write_bytes(b"a=1\n# \xfcber\n")
    found = cli.inside("config", "check", str(file), code=1)
    assert f"{file}:2: invalid UTF-8" in found.text
