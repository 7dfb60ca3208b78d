"""All commands: help, usage errors, errors, exit codes, Ctrl-C and closed pipes."""

from __future__ import annotations

import importlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.support.command_line import CommandLine

import strandlog
from strandlog.cli.main import COMMANDS


def test_help_lists_every_command_and_imports_none(cli: CommandLine) -> None:
    found = cli("--help")
    for name in ("topic", "produce", "consume", "group", "log", "node"):
        assert f"\n  {name} " in found.text
    command = [sys.executable, "-X", "importtime", "-m", "strandlog", "--help"]
    imports = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert "strandlog.cli.main" in imports
    for module in ("strandlog.cli.commands.topic", "strandlog.server", "rich.table", "msgspec"):
        assert module not in imports


@pytest.mark.parametrize("group", ["topic", "group", "log"])
def test_a_command_group_without_subcommand_prints_its_help(cli: CommandLine, group: str) -> None:
    found = cli.inside(group, code=2)
    assert "Commands:" in found.err + found.text


def test_version_is_printed(cli: CommandLine) -> None:
    assert cli("--version").text == f"strandlog {strandlog.__version__}\n"


def test_a_misspelt_command_is_a_usage_error_with_a_suggestion(cli: CommandLine) -> None:
    assert "Did you mean 'topic'" in cli("topc", code=2).err
    assert "No such option" in cli.inside("topic", "list", "--nonsense", code=2).err


def test_without_folder_or_broker_the_command_is_a_usage_error(cli: CommandLine) -> None:
    del cli.env["STRANDLOG_DATA"]
    assert "no log given: pass -d DIR" in cli.inside("topic", "list", code=2).err


def test_an_option_takes_precedence_over_the_environment(cli: CommandLine, tmp_path: Path) -> None:
    cli.inside("topic", "create", "here", "-d", str(tmp_path / "other"))
    assert not cli.data.exists()
    assert cli.inside("topic", "list", "-d", str(tmp_path / "other"), "--json").document[0][
        "name"
    ] == ("here")


def test_only_create_makes_a_folder(cli: CommandLine) -> None:
    for command in (
        ("topic", "list"),
        ("consume", "t", "-e"),
        ("consume", "t", "-e", "-g", "g"),
        ("produce", "t"),
        ("topic", "alter", "t", "-p", "2"),
        ("group", "list"),
        ("log", "verify", str(cli.data)),
    ):
        assert cli.inside(*command, code=1).err.startswith("error: ")
        assert not cli.data.exists()


def test_an_error_is_one_line_or_one_json_object(anywhere: CommandLine) -> None:
    anywhere.inside("topic", "create", "t")
    found = anywhere.inside("topic", "create", "t", code=1)
    assert found.err == "error: topic 't' already exists; use it, or choose another name\n"
    found = anywhere("topic", "create", "t", "--json", code=1)
    assert json.loads(found.err) == {
        "error": "topic 't' already exists; use it, or choose another name",
        "type": "TopicExistsError",
    }
    assert found.out == b""
    assert (
        "did you mean 'retention.ms'"
        in anywhere.inside("topic", "alter", "t", "-c", "retenion.ms=1", code=1).err
    )


def test_an_os_error_is_one_line(cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert cli("topic", "create", "t", "-d", str(tmp_path / "file"), code=1).err.count("\n") == 1


@pytest.mark.parametrize("module", ["typer", "rich"])
def test_a_missing_extra_is_reported_in_one_line(module: str) -> None:
    script = (
        f"import sys; sys.modules[{module!r}] = None; sys.argv[1:] = ['--help']; "
        "import strandlog.__main__ as entry; sys.stdout.isatty = sys.stderr.isatty = lambda: True; "
        "entry.main()"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert found.stderr == f"{module} is not installed: pip install 'strandlog[cli]'\n"
    assert found.returncode == 2


def test_version_needs_no_extra() -> None:
    blocked = ("typer", "rich", "msgspec", "confluent_kafka", "cryptography", "kio", "uvloop")
    script = (
        f"import sys; sys.modules.update(dict.fromkeys({blocked!r})); "
        "sys.argv[1:] = ['--version']; import strandlog.__main__ as entry; entry.main()"
    )
    command = [sys.executable, "-c", script]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (found.stdout, found.stderr) == (f"strandlog {strandlog.__version__}\n", "")


def test_help_shows_no_python_types() -> None:
    types = re.compile(r"(?i)<(list|str|int|float|bool|path|tuple|dict)\b|list\[")
    for name, (module, _) in COMMANDS.items():
        command = typer.main.get_command(importlib.import_module(module).app)
        for page in _help_pages(name, command):
            assert not types.search(page), page


def _help_pages(name: str, command: Any) -> Iterator[str]:
    children = getattr(command, "commands", {})
    for child, each in children.items():
        yield from _help_pages(f"{name} {child}", each)
    if not children:
        yield command.get_help(typer.Context(command, info_name=name))


@pytest.mark.slow
def test_a_closed_pipe_is_not_an_error(anywhere: CommandLine) -> None:
    anywhere.inside("produce", "t", "--create", given=b"a longer line\n" * 50_000)
    with anywhere.popen("consume", "t") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"a longer line\n"
        process.stdout.close()
        assert process.wait(30) == 0
        assert process.stderr.read() == b""


def test_ctrl_c_prints_nothing(anywhere: CommandLine) -> None:
    anywhere.inside("produce", "t", "--create", given=b"one\n")
    with anywhere.popen("consume", "t") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"one\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr.read() == b""
