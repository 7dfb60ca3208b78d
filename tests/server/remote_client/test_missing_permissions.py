"""Errors of a user without a permission: which one, on what, and how to get it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.command_line import CommandLine
from tests.support.secured_broker import READ, SecuredBroker

import strandlog
from strandlog import errors
from strandlog.broker.access.permission import TOPIC
from strandlog.client.arguments import Acks
from strandlog.client.wire.client import WireClient


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    """The user may read `orders`, and nothing else."""
    with SecuredBroker(tmp_path_factory.mktemp("secured")) as running:
        running.add_user("app", "secret")
        running.allow("app", (READ.on(TOPIC), "orders"))
        with strandlog.connect(running.open_address) as log, log.producer() as producer:
            log.create_topic("orders", 1)
            log.create_topic("invoices", 1)
            producer.send("orders", b"first")
        yield running


@pytest.fixture
def log(broker: SecuredBroker) -> Iterator[strandlog.RemoteLog]:
    with strandlog.connect(broker.address, broker.client("app")) as connected:
        yield connected


@pytest.fixture
def command(broker: SecuredBroker, tmp_path: Path) -> tuple[CommandLine, tuple[str, str]]:
    """A command line for the broker, and the option with the user's settings."""
    file = tmp_path / "app.properties"
    file.write_text("".join(f"{name}={text}\n" for name, text in broker.client("app").items()))
    return CommandLine(tmp_path / "data", broker.address), ("--client-config", str(file))


def expected(operation: str, kind: str, name: str) -> str:
    return (
        f"User:app lacks the permission {operation} on {kind} '{name}'; an administrator can "
        f"allow it: strandlog acl add --principal User:app --operation {operation} --{kind} {name}"
    )


@pytest.mark.parametrize("acks", ["all", 1])
@pytest.mark.parametrize("topic", ["orders", "invoices"])
def test_a_producer_without_write_names_the_topic_and_not_an_idempotence_pid(
    log: strandlog.RemoteLog, topic: str, acks: Acks, capfd: pytest.CaptureFixture[str]
) -> None:
    with log.producer(acks) as producer, pytest.raises(errors.TopicAuthorizationError) as raised:
        producer.send(topic, b"x")
    assert str(raised.value) == expected("WRITE", "topic", topic)
    assert "FATAL" not in capfd.readouterr().err


def test_a_consumer_names_the_topic_or_group_that_it_may_not_read(
    log: strandlog.RemoteLog,
) -> None:
    with pytest.raises(errors.TopicAuthorizationError) as raised:
        log.consumer("invoices")
    assert str(raised.value) == expected("READ", "topic", "invoices")
    with (
        log.consumer("orders", group="readers") as consumer,
        pytest.raises(errors.GroupAuthorizationError) as refused,
    ):
        consumer.poll()
    assert str(refused.value) == expected("READ", "group", "readers")


def test_commands_name_the_permission_that_they_need_but_not_the_user_who_lacks_it(
    command: tuple[CommandLine, tuple[str, str]],
) -> None:
    """The command to allow it had the placeholder User:NAME, although the client has logged in."""
    line, settings = command
    consumed = line.inside("consume", "invoices", "-e", *settings, code=1)
    assert expected("READ", "topic", "invoices") in consumed.err
    for topic in ("orders", "invoices"):
        produced = line.inside("produce", topic, *settings, given=b"x\n", code=1)
        assert expected("WRITE", "topic", topic) in produced.err
    listed = line.inside("acl", "list", *settings, code=1)
    assert listed.err == (
        "error: User:app lacks the permission DESCRIBE on the cluster; an administrator can allow "
        "it: strandlog acl add --principal User:app --operation DESCRIBE --cluster\n"
    )


def test_reading_a_topic_does_not_ask_for_its_settings_if_that_is_denied(
    broker: SecuredBroker, log: strandlog.RemoteLog
) -> None:
    metrics = broker.server.server.broker.metrics
    before = metrics.denied_requests
    assert log.describe_topic("orders").config == {}
    assert metrics.denied_requests == before


def test_the_client_of_spark_names_the_permission_of_a_topic(broker: SecuredBroker) -> None:
    with (
        WireClient(broker.address, broker.client("app")) as client,
        pytest.raises(errors.TopicAuthorizationError, match="READ on the topic to read it"),
    ):
        client.topics(["invoices"])
