"""Administrators create, list and delete users with their usual tools; the users can log in."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from tests.clients import peers
from tests.support.sasl import SCRAM_256, SCRAM_512, SaslWire
from tools.fetch_peers import KAFKA_BROKER

from strandlog.testing.server import ServerThread

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.admin

SETTINGS = {"listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0"}
TIMEOUT_SECONDS = 30

_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    with ServerThread(tmp_path_factory.mktemp("users") / "data", SETTINGS) as running:
        yield running


@pytest.fixture
def user() -> str:
    return f"user,{next(_numbers)}="


def logs_in(broker: ServerThread, user: str, password: str, mechanism: str) -> bool:
    port = int(broker.listener("kafka.sasl_plaintext").rpartition(":")[2])
    with SaslWire(port) as wire:
        return not wire.log_in(user, password, mechanism).error_code


@pytest.mark.parametrize(
    ("mechanism", "name"),
    [(ScramMechanism.SCRAM_SHA_256, SCRAM_256), (ScramMechanism.SCRAM_SHA_512, SCRAM_512)],
)
def test_librdkafka_manages_users(
    broker: ServerThread, user: str, mechanism: ScramMechanism, name: str
) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    wanted = ScramCredentialInfo(mechanism, 8192)
    created = admin.alter_user_scram_credentials(
        [UserScramCredentialUpsertion(user, wanted, b"p\xc3\xa4ssword")]
    )
    created[user].result(TIMEOUT_SECONDS)
    assert logs_in(broker, user, "pässword", name)
    assert not logs_in(broker, user, "password", name)
    [described] = admin.describe_user_scram_credentials([user]).values()
    [info] = described.result(TIMEOUT_SECONDS).scram_credential_infos
    assert (info.mechanism, info.iterations) == (mechanism, 8192)
    deleted = admin.alter_user_scram_credentials([UserScramCredentialDeletion(user, mechanism)])
    deleted[user].result(TIMEOUT_SECONDS)
    assert not logs_in(broker, user, "pässword", name)
    [described] = admin.describe_user_scram_credentials([user]).values()
    with pytest.raises(KafkaException, match="no user"):
        described.result(TIMEOUT_SECONDS)


def test_kafka_python_manages_users(broker: ServerThread, user: str) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=broker.address)
    kind = kafka.admin.ScramMechanism.SCRAM_SHA_512
    try:
        wanted = kafka.admin.UserScramCredentialUpsertion(user, kind, "secret", iterations=4096)
        assert admin.alter_user_scram_credentials([wanted]) == {user: None}
        assert logs_in(broker, user, "secret", SCRAM_512)
        found = admin.describe_user_scram_credentials([user])[user]
        assert found["credential_infos"] == [{"mechanism": kind, "iterations": 4096}]
        gone = kafka.admin.UserScramCredentialDeletion(user, kind)
        assert admin.alter_user_scram_credentials([gone]) == {user: None}
        assert not logs_in(broker, user, "secret", SCRAM_512)
        assert "no user" in admin.describe_user_scram_credentials([user])[user]["error"]
    finally:
        admin.close()


def test_kafka_configs_manages_users(broker: ServerThread) -> None:
    user = "carol"
    command = (
        *("java", "-cp", peers.folder(KAFKA_BROKER) / "*", "kafka.admin.ConfigCommand"),
        *("--bootstrap-server", broker.address, "--entity-type", "users"),
    )
    named = ("--entity-name", user)
    wanted = "SCRAM-SHA-256=[iterations=4096,password=secret],SCRAM-SHA-512=[password=other]"
    for single in wanted.replace("],", "] ").split():  # Kafka rejects both in one request
        peers.run(*command, *named, "--alter", "--add-config", single)
    assert logs_in(broker, user, "secret", SCRAM_256)
    assert logs_in(broker, user, "other", SCRAM_512)
    listed = peers.run(*command, "--describe")
    assert "carol" in listed
    assert "iterations=4096" in listed
    peers.run(*command, *named, "--alter", "--delete-config", "SCRAM-SHA-512")
    assert not logs_in(broker, user, "other", SCRAM_512)
    assert logs_in(broker, user, "secret", SCRAM_256)
