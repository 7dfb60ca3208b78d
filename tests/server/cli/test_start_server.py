"""A plain `serve` call is parsed without typer, with the same result."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer.main

from strandlog.cli.commands.serve import app
from strandlog.cli.configuration import read_configuration
from strandlog.cli.start_server import (
    PLAIN_OPTIONS,
    ServeArguments,
    _address,
    _command_line_settings,
    parse_plain,
)
from strandlog.errors import InvalidSettingError


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ServeArguments()),
        (["d"], ServeArguments(data="d")),
        (["--port", "0", "d"], ServeArguments(data="d", port=0)),
        (["--port=19", "--host=::1"], ServeArguments(host="::1", port=19)),
        (["--advertise", "a:1"], ServeArguments(advertise="a:1")),
        (
            ["--set", "a=1", "d", "--set=b=x=y"],
            ServeArguments(data="d", pairs=["a=1", "b=x=y"]),
        ),
    ],
)
def test_a_plain_call_is_parsed(words: list[str], expected: ServeArguments) -> None:
    assert parse_plain(words) == expected


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["-h"],
        ["d", "e"],
        [""],
        ["--port"],
        ["--port", "x"],
        ["--port", "-1"],
        ["--port="],
        ["--host", "--port"],
        ["--unknown", "1"],
        ["--set", "no-value"],
        ["--set", "=x"],
        ["--", "d"],
    ],
)
def test_anything_else_is_left_to_typer(words: list[str]) -> None:
    assert parse_plain(words) is None


def test_the_plain_parser_has_the_options_and_defaults_of_typer() -> None:
    command: Any = typer.main.get_command(app)
    by_flag = {flag: each for each in command.params for flag in each.opts if flag[0] == "-"}
    missing = [flag for flag in PLAIN_OPTIONS if flag not in by_flag]
    assert not missing
    defaults = ServeArguments()
    for flag, (attribute, _) in PLAIN_OPTIONS.items():
        assert (by_flag[flag].default or None) == (getattr(defaults, attribute) or None), flag


def test_the_plain_parser_reads_the_config_file_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STRANDLOG_CONFIG", "a.toml")
    assert parse_plain([]) == ServeArguments(config="a.toml")
    assert parse_plain(["--config", "b.toml"]) == ServeArguments(config="b.toml")


def _serve(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "strandlog", "serve", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_help_and_usage_errors_come_from_typer(tmp_path: Path) -> None:
    helped = _serve("--help")
    assert helped.returncode == 0
    assert "--advertise" in helped.stdout
    wrong = _serve(str(tmp_path / "d"), "--set", "nonsense")
    assert wrong.returncode == 2
    assert "key=value" in wrong.stderr


def test_a_failed_start_prints_one_line(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "holiday.jpg").write_bytes(b"x")
    failed = _serve(str(tmp_path / "d"), "--port", "0")
    assert failed.returncode == 1
    assert failed.stdout == ""
    assert failed.stderr.startswith("error: ")
    assert failed.stderr.count("\n") == 1
    unknown = _serve(str(tmp_path / "e"), "--port", "0", "--set", "no.such.setting=1")
    assert (unknown.returncode, unknown.stderr[:7]) == (1, "error: ")


@pytest.mark.slow
def test_on_a_terminal_the_console_address_is_printed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "strandlog", "serve", str(tmp_path / "d")]
    ports = ["--port", "0", "--http-port", "0", "--no-grpc"]
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*command, *ports], stdout=subprocess.PIPE, stderr=theirs, text=True
    ) as process:
        os.close(theirs)
        assert process.stdout is not None
        [http] = [word for word in process.stdout.readline().split() if word.startswith("http=")]
        shown = b""
        while b"Ctrl-C" not in shown:
            shown += os.read(ours, 1024)
        process.terminate()
        assert process.wait(30) == 0
    os.close(ours)
    assert f"http://{http.removeprefix('http=')}/" in shown.decode()


# Loaded only with TLS, bearer tokens, schemas, tables or another command.
NOT_FOR_A_PLAIN_BROKER = {
    *("avro", "cryptography", "fastavro", "grpc_tools._protoc_compiler", "jsonschema_rs", "jwt"),
    *("confluent_kafka", "numpy", "pyarrow", "rich", "typer"),
    *(
        "strandlog.cli.main",
        "strandlog.server.access.jwks",
        "strandlog.server.network.certificates",
    ),
}


@pytest.mark.slow
def test_a_plain_broker_loads_no_module_that_it_does_not_need(tmp_path: Path) -> None:
    """Not even after the warm-up and a request: what is loaded stays in memory."""
    environment = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
    report = tmp_path / "imports"
    command = [sys.executable, "-m", "strandlog", "serve", str(tmp_path / "d"), "--port", "0"]
    command += ["--grpc-port", "0", "--http-port", "0"]
    with (
        report.open("w") as stderr,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment
        ) as process,
    ):
        assert process.stdout is not None
        ready = dict(word.split("=", 1) for word in process.stdout.readline().split()[1:])
        answer = httpx.get(f"http://{ready['http']}/api/v1/broker", timeout=30)
        process.terminate()
        assert process.wait(30) == 0
    assert answer.status_code == HTTPStatus.OK
    loaded = {line.rpartition("|")[2].strip() for line in report.read_text().splitlines()}
    assert loaded >= {"strandlog.server.app", "strandlog.server.grpc.listener", "starlette"}
    assert sorted(loaded & NOT_FOR_A_PLAIN_BROKER) == []


def test_the_server_starts_without_importing_kio() -> None:
    code = "import sys, strandlog.server.app, strandlog.server.kafka.handlers as handlers\n"
    code += "print('kio' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"


@pytest.mark.parametrize("side", ["grpc", "http"])
def test_a_disabled_listener_has_the_option_that_was_given_as_its_origin(side: str) -> None:
    server = read_configuration(None, []).server
    assert server is not None
    arguments = parse_plain([f"--no-{side}"])
    assert arguments is not None
    found = _command_line_settings(arguments, server)[f"{side}.port"]
    assert (found.value, str(found.origin)) == (-1, f"--no-{side}")


def test_a_superscript_port_is_not_a_port() -> None:
    with pytest.raises(InvalidSettingError, match="expected HOST:PORT"):
        _address("broker.example:9²")
