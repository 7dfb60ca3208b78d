"""`strandlog quota` on a folder and on a broker: the same quotas, tables and errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.command_line import CommandLine

import strandlog
from strandlog.testing.server import ServerThread


@pytest.fixture(params=["folder", "wire"])
def quota(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CommandLine]:
    """A command line on an empty folder, then on a broker without quotas."""
    if request.param == "folder":
        strandlog.open(tmp_path / "data").close()
        yield CommandLine(tmp_path / "data")
        return
    with ServerThread(tmp_path / "data") as running:
        yield CommandLine(tmp_path / "other", running.address)


def quotas(quota: CommandLine, *filters: str) -> list[str]:
    """The quotas that `quota list` prints as JSON, each as a short text."""
    found = quota.inside("quota", "list", *filters, "--json").document
    return [
        " ".join(f"{part['type']}={part['name']}" for part in row["entity"])
        + f" {row['key']}={row['limit']:g}"
        for row in found
    ]


def test_set_list_and_delete(quota: CommandLine) -> None:
    assert quotas(quota) == []
    shown = quota.inside(
        *("quota", "set", "--user", "alice", "producer_byte_rate=1KiB", "request_percentage=12.5")
    )
    assert [line.split() for line in shown.lines] == [
        ["USER", "CLIENT", "ID", "IP", "KEY", "LIMIT"],
        ["alice", "producer_byte_rate", "1024"],
        ["alice", "request_percentage", "12.5"],
    ]
    quota.inside(
        *("quota", "set", "--user", "alice", "--default-client-id", "consumer_byte_rate=2000")
    )
    quota.inside("quota", "set", "--default-ip", "connection_creation_rate=5")
    assert quotas(quota) == [
        "user=alice producer_byte_rate=1024",
        "user=alice request_percentage=12.5",
        "client-id=None user=alice consumer_byte_rate=2000",
        "ip=None connection_creation_rate=5",
    ]
    assert quotas(quota, "--default-client-id") == [
        "client-id=None user=alice consumer_byte_rate=2000"
    ]
    deleted = quota.inside(
        "quota", "delete", "--user", "alice", "producer_byte_rate", "--json"
    ).document
    assert [row["key"] for row in deleted["deleted"]] == ["producer_byte_rate"]
    assert "deleted 1 quota" in quota.inside("quota", "delete", "--default-ip").err
    assert "no such quota" in quota.inside("quota", "delete", "--user", "bob").err
    assert quotas(quota) == [
        "user=alice request_percentage=12.5",
        "client-id=None user=alice consumer_byte_rate=2000",
    ]


def test_a_limit_is_shown_with_all_its_digits(quota: CommandLine) -> None:
    found = quota.inside("quota", "set", "--user", "digits", "producer_byte_rate=10MiB")
    assert found.lines[1].split() == ["digits", "producer_byte_rate", "10485760"]
    found = quota.inside("quota", "set", "--user", "digits", "request_percentage=12.5")
    assert found.lines[1].split()[-1] == "12.5"
    quota.inside("quota", "delete", "--user", "digits")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--user", "a", "speed=1"], "Invalid configuration key"),
        (["--user", "a", "producer_byte_rate=0"], "greater than 0"),
        (["producer_byte_rate=1"], "empty client quota entity"),
        (["--ip", "localhost", "connection_creation_rate=1"], "not an IP address"),
    ],
)
def test_invalid_quotas_fail(quota: CommandLine, arguments: list[str], words: str) -> None:
    assert words in quota.inside("quota", "set", *arguments, code=1).err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--user", "a", "producer_byte_rate=fast"],
        ["--user", "a", "producer_byte_rate"],
        ["--user", "a", "--default-user", "producer_byte_rate=1"],
    ],
)
def test_usage_errors(quota: CommandLine, arguments: list[str]) -> None:
    quota.inside("quota", "set", *arguments, code=2)


def test_a_quota_that_is_set_on_the_folder_applies_to_a_broker_on_it(tmp_path: Path) -> None:
    command = CommandLine(tmp_path / "data")
    command.inside("quota", "set", "--default-user", "producer_byte_rate=1000")
    with ServerThread(tmp_path / "data") as server:
        assert server.call(lambda: server.server.broker.enforces_quotas)


def test_a_bad_number_names_the_quota(quota: CommandLine) -> None:
    found = quota.inside("quota", "set", "--user", "alice", "request_percentage=much", code=2)
    assert "Invalid value for request_percentage: 'much' is not a number" in found.err


def test_a_misspelt_quota_with_a_size_is_not_reported_as_a_bad_number(quota: CommandLine) -> None:
    found = quota.inside("quota", "set", "--user", "alice", "producer_byte_rat=10MiB", code=2)
    assert "there is no quota 'producer_byte_rat': use one of producer_byte_rate, " in found.err
    assert "is not a number" not in found.err
