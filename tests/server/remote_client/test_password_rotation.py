"""Running clients of a remote log after the password of their user changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.secured_broker import READ, WRITE, SecuredBroker
from tests.support.users import set_password

import strandlog
from strandlog import AuthenticationError
from strandlog.broker.access.permission import TOPIC
from strandlog.client.remote import login
from strandlog.client.remote.consumer import RemoteConsumer

pytestmark = pytest.mark.slow

# The broker does not delay the logins that fail here again and again.
PATIENT = {"failed.logins.per.user.rate": "0", "failed.logins.per.ip.rate": "0"}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[SecuredBroker]:
    with SecuredBroker(tmp_path, PATIENT) as running:
        running.add_user("app", "first")
        running.allow("app", (READ.on(TOPIC), "orders"), (WRITE.on(TOPIC), "orders"))
        with strandlog.connect(running.open_address) as log:
            log.create_topic("orders", 1)
        yield running


@pytest.fixture
def without_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for the file to change after the password."""
    monkeypatch.setattr(login, "ROTATION_MS", 0)


def client(broker: SecuredBroker, **changes: str) -> dict[str, str]:
    """Settings of a client that soon tries again to log in."""
    return broker.client("app", reconnect_backoff_max_ms="200", **changes)


def write(broker: SecuredBroker, value: bytes) -> None:
    with strandlog.connect(broker.open_address) as log, log.producer() as producer:
        producer.send("orders", value)


def values_after(consumer: RemoteConsumer) -> list[bytes | None]:
    """The values of the next records; fails the test if none arrive."""
    return [record.value for record in consumer.poll(timeout_ms=30_000)]


def test_a_running_client_logs_in_with_the_new_password_of_its_file(broker: SecuredBroker) -> None:
    with (
        strandlog.connect(broker.address, client(broker)) as log,
        log.consumer("orders") as consumer,
        log.producer() as producer,
    ):
        producer.send("orders", b"before")
        assert values_after(consumer) == [b"before"]
        broker.add_user("app", "second")  # changes the password first, and the file afterwards
        write(broker, b"after")
        assert values_after(consumer) == [b"after"]
        producer.send("orders", b"more")
        assert values_after(consumer) == [b"more"]
        assert log.partition_count("orders") == 1
        with log.consumer("orders") as late:
            assert len(late.poll()) == 3


@pytest.mark.usefixtures("without_patience")
def test_a_client_with_the_old_password_does_not_stall_silently(broker: SecuredBroker) -> None:
    with strandlog.connect(broker.address, client(broker)) as log:
        consumer, producer = log.consumer("orders"), log.producer()
        producer.send("orders", b"before")
        assert values_after(consumer) == [b"before"]
        set_password(broker.server, "app", "second")
        with pytest.raises(AuthenticationError, match="check sasl"):
            consumer.poll(timeout_ms=30_000)
        with pytest.raises(AuthenticationError):
            producer.send("orders", b"refused")
        with pytest.raises(AuthenticationError):
            log.partition_count("orders")
        producer.flush()  # the record of the failed send is not kept
        broker.add_user("app", "second")
        producer.send("orders", b"after")
        assert values_after(consumer) == [b"after"]


def test_a_password_without_a_reference_fails_at_once(broker: SecuredBroker) -> None:
    settings = client(broker, sasl_password="first")
    with (
        strandlog.connect(broker.address, settings) as log,
        log.consumer("orders") as consumer,
    ):
        assert consumer.poll() == []
        broker.add_user("app", "second")
        with pytest.raises(AuthenticationError):
            consumer.poll(timeout_ms=30_000)


@pytest.mark.slow
@pytest.mark.usefixtures("without_patience")
def test_a_restart_of_the_broker_is_no_failed_login(broker: SecuredBroker) -> None:
    with (
        strandlog.connect(broker.address, client(broker)) as log,
        log.consumer("orders") as consumer,
    ):
        assert consumer.poll() == []
        for _ in range(3):
            broker.server.stop()
            broker.server.start()
            write(broker, b"after")
            assert values_after(consumer) == [b"after"]
