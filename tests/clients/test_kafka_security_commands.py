"""`strandlog acl` and `strandlog user` on Apache Kafka's broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.clients.apache_kafka import PASSWORD, USER, running_secured_kafka
from tests.support.command_line import CommandLine
from tests.support.waiting import eventually

ALICE = [
    *("-X", "security.protocol=SASL_PLAINTEXT", "-X", "sasl.mechanism=PLAIN"),
    *("-X", f"sasl.username={USER}", "-X", f"sasl.password={PASSWORD}"),
]
RULE = ("--principal", f"User:{USER}", "--operation", "READ", "--topic", "orders")


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    with running_secured_kafka(tmp_path_factory.mktemp("kafka")) as found:
        yield found


@pytest.fixture
def admin(ports: tuple[int, int], tmp_path: Path) -> CommandLine:
    """A command line of a super user."""
    return CommandLine(tmp_path / "none", f"127.0.0.1:{ports[0]}")


@pytest.fixture
def alice(ports: tuple[int, int], tmp_path: Path) -> CommandLine:
    """A command line of a user without rights; pass `ALICE` to each command."""
    return CommandLine(tmp_path / "none", f"127.0.0.1:{ports[1]}")


def test_rules(admin: CommandLine) -> None:
    def listed() -> list[str]:
        found = admin.inside("acl", "list", "--topic", "orders", "--json").document
        return [f"{row['operation']} {row['name']} {row['pattern']}" for row in found]

    assert admin.inside("acl", "list").err == "no rules\n"
    admin.inside("acl", "add", *RULE)
    admin.inside("acl", "add", *RULE[:-1], "or", "--prefix", "--deny")
    eventually(lambda: len(listed()) == 2, "the broker applies both rules")
    assert set(listed()) == {"READ orders LITERAL", "READ or PREFIXED"}
    found = admin.inside("acl", "check", *RULE, "--json", code=1).document
    assert found["rule"]["permission"] == "DENY"
    assert found["notes"][0].startswith("super.users is not visible (the broker does not show it)")
    admin.inside("acl", "delete", "--principal", f"User:{USER}", "--yes")
    eventually(lambda: listed() == [], "the broker deletes both rules")


def test_users(admin: CommandLine) -> None:
    def listed() -> list[dict[str, object]]:
        found: list[dict[str, object]] = admin.inside("user", "list", "--json").document
        return found

    admin.inside("user", "add", "carol", "--generate")
    both = {"SCRAM-SHA-256": 4096, "SCRAM-SHA-512": 4096}
    eventually(
        lambda: listed() == [{"name": "carol", "mechanisms": both}], "the broker adds the user"
    )
    kept = ("--mechanism", "SCRAM-SHA-512", "--iterations", "8192")
    admin.inside("user", "rotate", "carol", "--generate", *kept)
    new = [{"name": "carol", "mechanisms": {"SCRAM-SHA-512": 8192}}]
    eventually(lambda: listed() == new, "the broker changes the user")
    admin.inside("user", "delete", "carol", "--yes")
    eventually(lambda: listed() == [], "the broker deletes the user")


def test_a_client_without_rights_gets_an_error_and_not_an_empty_list(alice: CommandLine) -> None:
    """librdkafka drops the error of one of these responses, and aborts on that of the other."""
    for command in (("acl", "list"), ("user", "list"), ("user", "add", "x", "--generate")):
        found = alice.inside(*command, *ALICE, code=1)
        assert "error: User:alice lacks the permission DESCRIBE on the cluster; an" in found.err
        assert found.text == ""
    found = alice.inside("acl", "add", *RULE, *ALICE, code=1)
    assert found.err == "error: User:alice lacks a permission on the cluster\n"
