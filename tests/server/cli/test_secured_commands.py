"""What `tls init`, `token init` and `user add` write and print secures a real broker."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.command_line import CommandLine

from strandlog.testing.server import ServerThread


@pytest.fixture
def cli(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path / "data")


@contextmanager
def serving(cli: CommandLine, settings: dict[str, str]) -> Iterator[CommandLine]:
    """Start a broker with these settings, on a free port; yield a command line that names it."""
    listener, _, _ = settings["listeners"].rpartition(":")
    with ServerThread(cli.data, {**settings, "listeners": f"{listener}:0"}) as broker:
        yield CommandLine(cli.data, f"localhost:{broker.port}")


def client_file(path: Path, settings: dict[str, str]) -> tuple[str, str]:
    """Write client settings to a file; return the option that names it."""
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return "--client-config", str(path)


def scram(printed: dict[str, Any], password: Path, user: str = "admin") -> dict[str, str]:
    own = {"sasl.username": user, "sasl.password": f"${{file:{password}}}"}
    return {**printed["client_settings"], **own}


def test_a_broker_with_tls_and_passwords(cli: CommandLine, tmp_path: Path) -> None:
    printed = cli.inside("tls", "init", str(tmp_path / "certs"), "--json").document
    password = tmp_path / "admin.password"
    password.write_text(cli.inside("user", "add", "admin", "--generate").text)
    password.chmod(0o600)
    with serving(cli, printed["broker_settings"]) as wire:
        admin = client_file(tmp_path / "admin.properties", scram(printed, password))
        wire.inside("topic", "create", "orders", *admin)
        alice = tmp_path / "alice.password"
        alice.write_text(wire.inside("user", "add", "alice", "--generate", *admin).text)
        as_alice = client_file(tmp_path / "alice.properties", scram(printed, alice, "alice"))
        unseen = wire.inside("topic", "list", "--json", *as_alice)
        assert unseen.document == []
        assert "only topics that the client may DESCRIBE" in unseen.err
        assert "orders" not in unseen.err
        rule = ("--principal", "User:alice", "--operation", "DESCRIBE", "--topic", "orders")
        question = ("acl", "check", *rule, "--json", *admin)
        assert not wire.inside(*question, code=1).document["allowed"]
        wire.inside("acl", "add", *rule, *admin)
        assert wire.inside(*question).document["allowed"]
        assert [
            row["name"] for row in wire.inside("topic", "list", "--json", *as_alice).document
        ] == ["orders"]
        found = wire.inside("user", "list", *as_alice, code=1)
        assert "lacks the permission DESCRIBE on the cluster" in found.err


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_user_can_rotate_the_password_by_which_it_is_logged_in(
    cli: CommandLine, tmp_path: Path, mechanism: str
) -> None:
    """The broker closes the connections of a user whose credentials change."""
    printed = cli.inside("tls", "init", str(tmp_path / "certs"), "--json").document
    password = tmp_path / "admin.password"
    password.write_text(cli.inside("user", "add", "admin", "--generate").text)
    with serving(cli, printed["broker_settings"]) as wire:
        settings = {**scram(printed, password), "sasl.mechanism": mechanism}
        admin = client_file(tmp_path / "admin.properties", settings)
        for _ in range(3):
            old = tmp_path / "old"
            old.write_text(password.read_text())
            wire.inside("user", "rotate", "admin", "--output", str(password), *admin)
            assert old.read_text() != password.read_text()
        settings = {**settings, "sasl.password": f"${{file:{old}}}"}
        stale = client_file(tmp_path / "stale.properties", settings)
        assert wire.inside("user", "list", *stale, code=1).err.startswith("error: ")
        kept = ("--mechanism", "SCRAM-SHA-512" if mechanism.endswith("256") else "SCRAM-SHA-256")
        new = wire.inside("user", "rotate", "admin", "--generate", *kept, *admin).text
        password.write_text(new)
        settings = {**scram(printed, password), "sasl.mechanism": kept[1]}
        other = client_file(tmp_path / "other.properties", settings)
        assert wire.inside("user", "list", "--json", *other).document == [
            {"name": "admin", "mechanisms": {kept[1]: 4096}}
        ]


def test_a_broker_with_client_certificates(cli: CommandLine, tmp_path: Path) -> None:
    certs = str(tmp_path / "certs")
    printed = cli.inside("tls", "init", certs, "--client", "alice", "--json").document
    other = cli.inside("tls", "init", certs, "--client", "bob", "--json").document
    _, *allow = shlex.split(printed["commands"][0].replace(" -d ./data", ""))
    cli.inside(*allow)
    with serving(cli, printed["broker_settings"]) as wire:
        alice = client_file(tmp_path / "alice.properties", printed["client_settings"])
        bob = client_file(tmp_path / "bob.properties", other["client_settings"])
        wire.inside("topic", "create", "orders", *alice)
        assert wire.inside("topic", "list", "--json", *bob).document == []
        unnamed = {key: printed["client_settings"][key] for key in ("security.protocol",)}
        unnamed["ssl.ca.location"] = printed["client_settings"]["ssl.ca.location"]
        anonymous = client_file(tmp_path / "none.properties", unnamed)
        assert wire.inside("topic", "list", *anonymous, code=1).err.startswith("error: ")


@pytest.mark.slow
def test_a_broker_that_accepts_tokens(cli: CommandLine, tmp_path: Path) -> None:
    printed = cli.inside("tls", "init", str(tmp_path / "certs"), "--json").document
    keys = tmp_path / "keys"
    settings = cli.inside("token", "init", str(keys), "--json").document["settings"]
    token = tmp_path / "token"
    token.write_text(cli.inside("token", "create", "admin", "--key", str(keys)).text)
    with serving(cli, {**printed["broker_settings"], **settings}) as wire:
        tls = {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": printed["client_settings"]["ssl.ca.location"],
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token": f"${{file:{token}}}",
        }
        admin = client_file(tmp_path / "admin.properties", tls)
        wire.inside("topic", "create", "orders", *admin)
        token.write_text(cli.inside("token", "create", "eve", "--key", str(keys)).text)
        assert wire.inside("topic", "list", "--json", *admin).document == []
        forged = tmp_path / "forged"
        cli.inside("token", "init", str(forged))
        token.write_text(cli.inside("token", "create", "admin", "--key", str(forged)).text)
        assert wire.inside("topic", "list", *admin, code=1).err.startswith("error: ")
