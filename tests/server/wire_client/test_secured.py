"""The wire client and `strandlog.connect` on a broker with TLS, users and permissions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.server.wire_client.records import batch_of, numbered, values_of, write
from tests.support.certificates import CLIENT, Authority
from tests.support.secured_broker import SecuredBroker

import strandlog
from strandlog.broker.access.permission import GROUP, TOPIC, Operation
from strandlog.client.wire.client import WireClient
from strandlog.errors import (
    AuthenticationError,
    GroupAuthorizationError,
    RemoteError,
    TopicAuthorizationError,
    UnreachableError,
)
from strandlog.model import TopicPartition

READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE
ORDERS = TopicPartition("orders", 0)
PATIENCE = {"default.api.timeout.ms": "60000"}  # an error that is retried would take this long


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with SecuredBroker(tmp_path_factory.mktemp("secured")) as running:
        for user in ("app", "stranger"):
            running.add_user(user, f"{user}'s password")
        running.allow("app", (READ.on(TOPIC), "orders"), (WRITE.on(TOPIC), "orders"))
        running.allow("app", (READ.on(GROUP), "billing"))
        with WireClient(running.open_address) as client:
            client.create_topic("orders", 1)
        yield running


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
def test_a_user_writes_and_reads_over_tls(broker: SecuredBroker, mechanism: str) -> None:
    settings = broker.client("app", sasl_mechanism=mechanism)
    with WireClient(broker.address, settings) as client:
        before = client.latest_offsets([ORDERS])[ORDERS]
        write(client, ORDERS, batch_of(numbered(0, 100, 500)))
        assert values_of(client, ORDERS)[before:] == numbered(0, 100, 500)
        client.commit_offsets("billing", {ORDERS: 3})
        assert client.committed_offsets("billing", [ORDERS])[ORDERS].offset == 3


@pytest.mark.slow
def test_connect_has_the_same_settings(broker: SecuredBroker) -> None:
    settings = broker.client("app")
    java = {
        "security.protocol": settings["security.protocol"],
        "sasl.mechanism": settings["sasl.mechanism"],
        "sasl.jaas.config": f'x required username="app" password="{settings["sasl.password"]}";',
        "ssl.truststore.location": settings["ssl.ca.location"],
        "ssl.truststore.type": "PEM",
    }
    for config in (settings, java):
        with strandlog.connect(broker.address, config) as log:
            assert log.topics() == ["orders"]
            with log.producer() as producer:
                sent = producer.send("orders", b"v")
            with log.consumer(["orders"], group="billing") as consumer:
                consumer.seek("orders", 0, sent.offset)
                assert [record.value for record in consumer.poll(timeout_ms=10_000)] == [b"v"]


def test_settings_from_a_file_and_the_environment(
    broker: SecuredBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "client.properties"
    settings = broker.client("app", sasl_password="wrong")
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    monkeypatch.setenv("STRANDLOG_CLIENT_CONFIG", str(file))
    with pytest.raises(AuthenticationError), strandlog.connect(broker.address):
        pass
    monkeypatch.setenv("STRANDLOG_CLIENT_SASL_PASSWORD", "app's password")
    with strandlog.connect(broker.address) as log:
        assert log.topics() == ["orders"]
    with WireClient(broker.address) as client:
        assert list(client.topics()) == ["orders"]


def test_a_wrong_password_is_one_error_at_once(broker: SecuredBroker) -> None:
    settings = broker.client("app", sasl_password="guess") | PATIENCE
    with (
        WireClient(broker.address, settings) as client,
        pytest.raises(AuthenticationError, match="rejected the user") as raised,
    ):
        client.topics()
    assert "guess" not in str(raised.value)
    with pytest.raises(AuthenticationError), strandlog.connect(broker.address, settings):
        pass


def test_an_unknown_authority_is_one_error_at_once(broker: SecuredBroker, tmp_path: Path) -> None:
    settings = broker.client("app", ssl_ca_location=str(Authority(tmp_path).path)) | PATIENCE
    with (
        WireClient(broker.address, settings) as client,
        pytest.raises(AuthenticationError, match=r"certificate of .* is not trusted"),
    ):
        client.topics()
    with pytest.raises(AuthenticationError), strandlog.connect(broker.address, settings):
        pass


def test_tls_on_a_plaintext_listener_says_what_to_check(broker: SecuredBroker) -> None:
    settings = broker.client("app") | {"default.api.timeout.ms": "1"}
    with (
        WireClient(broker.open_address, settings) as client,
        pytest.raises(UnreachableError, match=r"check that its listener uses TLS"),
    ):
        client.topics()


def test_plaintext_on_a_tls_listener_is_one_error_at_once(broker: SecuredBroker) -> None:
    with (
        WireClient(broker.address, PATIENCE) as client,
        pytest.raises(AuthenticationError, match=r"expects TLS; set security\.protocol"),
    ):
        client.topics()


def test_a_missing_permission_is_one_error_at_once(broker: SecuredBroker) -> None:
    with WireClient(broker.address, broker.client("stranger") | PATIENCE) as client:
        assert client.topics() == {}
        with pytest.raises(TopicAuthorizationError, match="'orders': this client lacks"):
            client.topics(["orders"])
        with pytest.raises(TopicAuthorizationError):
            client.latest_offsets([ORDERS])
        with pytest.raises(GroupAuthorizationError):
            client.commit_offsets("billing", {ORDERS: 1})


def test_a_changed_password_applies_to_new_connections(broker: SecuredBroker) -> None:
    broker.add_user("rotating", "first")
    settings = broker.client("rotating")
    with WireClient(broker.address, settings) as client:
        client.topics()
        broker.add_user("rotating", "second")  # also replaces the file that the settings refer to
        client._cluster.any_connection().close()
        client.topics()


def test_mutual_tls_needs_a_certificate_that_the_broker_trusts(tmp_path: Path) -> None:
    listeners = "SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0"
    settings = {
        "listeners": listeners,
        "ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/",
    }
    with SecuredBroker(tmp_path, settings) as broker:
        broker.allow("app", (Operation.CREATE.on(TOPIC), "made"), (WRITE.on(TOPIC), "made"))
        own = broker.authority.issue("app", usage=CLIENT)
        stranger = Authority(tmp_path / "other").issue("app", usage=CLIENT)
        trust = {"security.protocol": "SSL", "ssl.ca.location": str(broker.authority.path)}
        java = trust | {"ssl.keystore.location": str(own.store), "ssl.keystore.type": "PEM"}
        with WireClient(broker.address, java) as client:
            client.create_topic("made", 1)
        with strandlog.connect(broker.address, java) as log:
            assert log.groups() == []
        # A client learns of its rejection only after its first request, if the alert arrives.
        for wrong in (trust, trust | {"ssl.keystore.location": str(stranger.store)}):
            with (
                WireClient(broker.address, wrong | {"default.api.timeout.ms": "1"}) as client,
                pytest.raises(RemoteError, match=r"ssl\.certificate\.location"),
            ):
                client.topics()
