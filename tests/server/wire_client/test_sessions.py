"""Bearer tokens and logins that expire: both clients on a broker with TLS and real time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.server.wire_client.records import batch_of, numbered, values_of, write
from tests.support.sasl import let_pass
from tests.support.secured_broker import READ, WRITE, SecuredBroker
from tests.support.tokens import Provider

import strandlog
from strandlog.broker.access.permission import TOPIC
from strandlog.client.wire.client import WireClient
from strandlog.errors import AuthenticationError
from strandlog.model import TopicPartition

LIFETIME_MS = 3000
ORDERS = TopicPartition("orders", 0)


@pytest.fixture(scope="module")
def provider() -> Provider:
    made = Provider()
    made.add_key("k1")
    return made


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, provider: Provider) -> Iterator[SecuredBroker]:
    folder: Path = tmp_path_factory.mktemp("sessions")
    keys = folder / "jwks.json"
    keys.write_bytes(provider.jwks())
    settings = {
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "connections.max.reauth.ms": str(LIFETIME_MS),
    }
    with SecuredBroker(folder, settings) as running:
        running.add_user("app", "secret")
        for user in ("app", "alice"):
            running.allow(user, (READ.on(TOPIC), "orders"), (WRITE.on(TOPIC), "orders"))
        with WireClient(running.open_address) as client:
            client.create_topic("orders", 1)
        yield running


def token_of(provider: Provider, **claims: object) -> str:
    return provider.token(now_s=time.time(), claims=dict(claims))


def bearer(broker: SecuredBroker, token: object) -> dict[str, object]:
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token": token,
        "ssl.ca.location": str(broker.authority.path),
    }


@pytest.mark.slow
def test_a_token_from_a_file_or_a_function_logs_in(
    broker: SecuredBroker, provider: Provider, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(token_of(provider))
    for token in (f"${{file:{file}}}", lambda: token_of(provider)):
        with WireClient(broker.address, bearer(broker, token)) as client:
            assert list(client.topics()) == ["orders"]
        with strandlog.connect(broker.address, bearer(broker, token)) as log:
            assert log.topics() == ["orders"]
            with log.producer() as producer:
                producer.send("orders", b"v")


def test_an_expired_token_is_one_error(broker: SecuredBroker, provider: Provider) -> None:
    expired = token_of(provider, exp=int(time.time()) - 3600)
    with (
        WireClient(broker.address, bearer(broker, expired)) as client,
        pytest.raises(AuthenticationError, match=r"rejected the token"),
    ):
        client.topics()
    with (
        pytest.raises(AuthenticationError),
        strandlog.connect(broker.address, bearer(broker, expired)),
    ):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "OAUTHBEARER"])
def test_a_client_outlives_its_session_on_one_connection(
    broker: SecuredBroker, provider: Provider, mechanism: str
) -> None:
    settings: dict[str, object] = dict(broker.client("app"))
    used: list[str] = []

    def new_token() -> str:
        used.append(token_of(provider))
        return used[-1]

    if mechanism == "OAUTHBEARER":
        settings = bearer(broker, new_token)
    with WireClient(broker.address, settings) as client:
        connection = client._cluster.connection_to(client._cluster.node_ids()[0])
        before = client.latest_offsets([ORDERS])[ORDERS]
        for number in range(4):  # longer than two lifetimes
            write(client, ORDERS, batch_of(numbered(number * 10, 10)))
            let_pass(broker.server, LIFETIME_MS * 6 // 10)
        assert values_of(client, ORDERS)[before:] == numbered(0, 40)
        assert connection.is_open
        assert client._cluster.connection_to(client._cluster.node_ids()[0]) is connection
    if mechanism == "OAUTHBEARER":
        assert len(used) > 2  # when the options were checked, and for each login
