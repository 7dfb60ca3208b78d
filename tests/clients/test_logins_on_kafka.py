"""Our own clients log in to Apache Kafka, and outlive a login that expires."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import pytest
from tests.clients.apache_kafka import running_kafka_with_users
from tests.support.waiting import eventually

import strandlog
from strandlog.client.wire.client import WireClient
from strandlog.errors import AuthenticationError

USER, PASSWORD = "app", "wonder=land,42"
LIFETIME_MS = 4000


class Ports(NamedTuple):
    """The ports of a broker: for administrators, and for users."""

    open: int
    sasl: int


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    home = tmp_path_factory.mktemp("kafka")
    with running_kafka_with_users(home, USER, PASSWORD, LIFETIME_MS) as found:
        ports = Ports(*found)
        with strandlog.connect(f"127.0.0.1:{ports.open}") as log:
            log.set_password(USER, PASSWORD)
            log.create_topic("orders")
        with WireClient(f"127.0.0.1:{ports.sasl}", settings("SCRAM-SHA-512")) as client:

            def knows_the_user() -> bool:
                try:
                    return "orders" in client.topics()
                except AuthenticationError:
                    return False  # Kafka applies the change a moment later

            eventually(knows_the_user, "Kafka knows the user")
        yield ports


def settings(mechanism: str, password: str = PASSWORD) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": USER,
        "sasl.password": password,
    }


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_both_clients_log_in(kafka: Ports, mechanism: str) -> None:
    address = f"127.0.0.1:{kafka.sasl}"
    with WireClient(address, settings(mechanism)) as client:
        assert "orders" in client.topics()
    with strandlog.connect(address, settings(mechanism)) as log:
        assert "orders" in log.topics()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_wrong_password_is_one_error(kafka: Ports, mechanism: str) -> None:
    address, wrong = f"127.0.0.1:{kafka.sasl}", settings(mechanism, "guess")
    with (
        WireClient(address, wrong) as client,
        pytest.raises(AuthenticationError, match="rejected the user"),
    ):
        client.topics()
    with pytest.raises(AuthenticationError), strandlog.connect(address, wrong):
        pass


def _is_past(seconds: float) -> bool:
    return time.monotonic() >= seconds


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_login_is_renewed_on_the_same_connection(kafka: Ports, mechanism: str) -> None:
    with WireClient(f"127.0.0.1:{kafka.sasl}", settings(mechanism)) as client:
        connection = client._cluster.any_connection()
        for _ in range(4):  # longer than two lifetimes
            due = partial(_is_past, time.monotonic() + LIFETIME_MS * 0.6 / 1000)
            eventually(due, "time passes")
            assert "orders" in client.topics()
        assert connection.is_open
        assert client._cluster.any_connection() is connection
