"""`strandlog serve`: sources of settings and their precedence."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.command_line import CommandLine
from tests.support.kafka_requests import Wire

from strandlog.protocol.kafka.api import METADATA

pytestmark = pytest.mark.slow


@contextmanager
def _serving(*arguments: str, cwd: Path, env: dict[str, str]) -> Iterator[dict[str, str]]:
    """Runs a broker; yields the fields of its `ready` line."""
    command = [sys.executable, "-m", "strandlog", "serve", *arguments]
    pipe = subprocess.PIPE
    streams = {"stdout": pipe, "stderr": pipe}
    with subprocess.Popen(command, cwd=cwd, env=env, text=True, **streams) as process:  # type: ignore[call-overload]
        line = process.stdout.readline()
        ready: dict[str, str] = {}
        try:
            assert line.startswith("ready "), process.stderr.read()
            ready |= dict(part.split("=", 1) for part in line.split()[1:])
            yield ready
        finally:
            process.send_signal(signal.SIGTERM)
            ready["stderr"] = process.communicate(timeout=30)[1]
        assert process.returncode == 0


def _env(**more: str) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("STRANDLOG")}
    return {**ours, **more}


def test_a_server_properties_file_of_kafka_works(tmp_path: Path) -> None:
    (tmp_path / "server.properties").write_text(
        "process.roles=broker\n"
        "listeners=PLAINTEXT://127.0.0.1:0\n"
        "advertised.listeners=PLAINTEXT://127.0.0.1:19092\n"
        "log.dirs=logs\n"
        "num.partitions=5\n"
    )
    with _serving("--config", "server.properties", cwd=tmp_path, env=_env()) as ready:
        assert ready["data"] == str(tmp_path / "logs")
        # librdkafka leaves the given address for the advertised one, where nothing listens.
        with Wire(int(ready["kafka"].rpartition(":")[2])) as wire:
            brokers = wire.ask(METADATA.key, 9, topics=()).brokers
        assert [(each.host, each.port) for each in brokers] == [("127.0.0.1", 19092)]
    assert "process.roles has no effect: there is one broker" in ready["stderr"]


@pytest.mark.slow
def test_precedence_is_option_environment_file(tmp_path: Path) -> None:
    (tmp_path / "server.toml").write_text(
        'listeners = "PLAINTEXT://0.0.0.0:1"\nlog.dirs = "of-file"\nnum.partitions = 2\n'
    )
    env = _env(STRANDLOG_DATA="of-environment", STRANDLOG_NUM_PARTITIONS="3")
    options = ("--config", "server.toml", "--host", "127.0.0.1", "--port", "0")
    with _serving(*options, "--set", "num.partitions=4", cwd=tmp_path, env=env) as ready:
        assert ready["data"] == str(tmp_path / "of-environment")
        assert ready["kafka"].startswith("127.0.0.1:")
        admin = AdminClient({"bootstrap.servers": ready["kafka"]})
        admin.create_topics([NewTopic("t")])["t"].result(timeout=10)
        assert len(admin.list_topics("t", timeout=10).topics["t"].partitions) == 4
    with _serving("of-argument", *options, cwd=tmp_path, env=env) as ready:
        assert ready["data"] == str(tmp_path / "of-argument")


def test_an_invalid_setting_stops_the_start(cli: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("log.retenton.ms=1\nlisteners=TLS://:9093\n")
    found = cli("serve", str(cli.data), "--config", str(file), code=1)
    assert found.out == b""
    assert "did you mean 'log.retention.ms'?" in found.err
    assert "expected one of the protocols PLAINTEXT, SSL" in found.err
    assert not cli.data.exists()


def test_a_port_in_use_is_reported_with_advice(cli: CommandLine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = cli("serve", str(cli.data), "--port", str(port), code=1)
    assert "address already in use; stop the other process, or choose another" in found.err
    assert "stopped:" not in found.err, "no summary: the broker was never ready"


@pytest.mark.parametrize("option", ["--port", "--grpc-port", "--http-port"])
def test_port_99999_is_an_error_and_not_34463(cli: CommandLine, option: str) -> None:
    found = cli("serve", str(cli.data), option, "99999", code=2)
    assert option in found.err
    assert "65535" in found.err
    assert not cli.data.exists()


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
def test_the_wildcard_address_cannot_be_advertised(cli: CommandLine, host: str) -> None:
    found = cli("serve", str(cli.data), "--port", "0", "--advertise", f"{host}:9092", code=1)
    assert "clients cannot connect to a wildcard address" in found.err


@pytest.mark.parametrize("host", ["no-such.invalid", f"{'a' * 64}.invalid"])
def test_an_unknown_host_is_not_reported_as_an_unknown_error(cli: CommandLine, host: str) -> None:
    found = cli("serve", str(cli.data), "--insecure", "--host", host, "--port", "0", code=1)
    assert f"cannot listen on {host}:0: " in found.err
    assert "unknown error" not in found.err
    assert "stop the other process" not in found.err
    assert "choose another --host" in found.err


def test_an_address_of_another_machine_is_not_reported_as_in_use(cli: CommandLine) -> None:
    found = cli("serve", str(cli.data), "--insecure", "--host", "192.0.2.77", "--port", "0", code=1)
    assert "this machine has no such address: choose another --host" in found.err


def test_an_advertised_port_above_65535_is_an_error(cli: CommandLine) -> None:
    found = cli("serve", str(cli.data), "--port", "0", "--advertise", "here:99999", code=1)
    assert "invalid value 'here:99999' for --advertise: expected HOST:PORT" in found.err


def test_each_invalid_setting_has_its_own_line(cli: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("log.retenton.ms=1\nnum.partitions=abc\n")
    found = cli("serve", str(cli.data), "--config", str(file), code=1)
    assert [line.partition(": ")[0] for line in found.err.splitlines()] == ["error", "error"]
    assert found.err.splitlines()[1].endswith(
        "invalid value 'abc' for num.partitions: expected a number, at least 1, at most 2147483647"
    )
