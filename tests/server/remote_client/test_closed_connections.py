"""A broker that closes connections: at once, because the client lacks TLS or a login, or later."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.secured_broker import SecuredBroker

import strandlog
from strandlog.cli.doctor.network import check_bootstrap
from strandlog.errors import UnreachableError
from strandlog.model import TopicPartition
from strandlog.testing.server import ServerThread

CERTIFICATES = {
    "listeners": "SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
    "ssl.client.auth": "required",
}


@pytest.fixture(scope="module")
def passwords(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    """A broker with a SASL_SSL and a plaintext listener."""
    with SecuredBroker(tmp_path_factory.mktemp("passwords")) as running:
        yield running


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    """A broker that requires client certificates."""
    with SecuredBroker(tmp_path_factory.mktemp("certificates"), CERTIFICATES) as running:
        yield running


def tls(broker: SecuredBroker) -> dict[str, str]:
    """Client settings with TLS, but without a login and without a certificate."""
    return {"security.protocol": "SSL", "ssl.ca.location": str(broker.authority.path)}


def check_explained(address: str, settings: dict[str, str]) -> None:
    with pytest.raises(UnreachableError) as raised:
        strandlog.connect(address, settings)
    text = str(raised.value)
    assert text.startswith(f"{address} accepted the connection and closed it; this listener may")
    assert text.endswith(f"check security.protocol, or run: strandlog doctor -b {address}")
    assert "TLS, a login or a client certificate" in text


def test_a_plaintext_client_on_a_tls_port_is_not_told_that_no_broker_runs(
    passwords: SecuredBroker,
) -> None:
    check_explained(passwords.address, {})


def test_a_client_that_does_not_log_in_is_not_told_that_no_broker_runs(
    passwords: SecuredBroker,
) -> None:
    check_explained(passwords.address, tls(passwords))


def test_a_tls_client_on_a_plaintext_port_is_not_told_that_no_broker_runs(
    passwords: SecuredBroker,
) -> None:
    check_explained(passwords.open_address, tls(passwords))


def test_a_client_without_a_certificate_is_not_told_that_no_broker_runs(
    certificates: SecuredBroker,
) -> None:
    check_explained(certificates.address, tls(certificates))


def test_the_doctor_mentions_the_missing_client_certificate(certificates: SecuredBroker) -> None:
    failed = [
        check
        for check in check_bootstrap(certificates.address, tls(certificates))
        if check.verdict == "fail"
    ]
    assert len(failed) == 1
    assert "client certificate" in failed[0].seen
    assert "set ssl.certificate.location and ssl.key.location" in failed[0].advice


def test_an_address_where_nothing_listens_has_no_broker() -> None:
    with pytest.raises(UnreachableError, match=r"^no broker at 127.0.0.1:1 .*Connection refused"):
        strandlog.connect("127.0.0.1:1")


def test_requests_do_not_fail_with_no_leaders_found_after_the_broker_closed_all_connections(
    remote: strandlog.RemoteLog, broker: ServerThread
) -> None:
    remote.create_topic("orders", 1)
    wanted = TopicPartition("orders", 0)
    assert remote.offset_ranges([wanted, wanted]) == {wanted: (0, 0)}
    for _ in range(3):
        broker.call(broker.server.kafka.close_all)
        assert remote.offset_ranges([wanted]) == {wanted: (0, 0)}
        assert remote.partition_count("orders") == 1
