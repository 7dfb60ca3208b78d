"""Addresses at which no Kafka listener answers: the errors, and how soon they come."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandlog.client.wire import cluster
from strandlog.client.wire.client import WireClient
from strandlog.errors import UnreachableError
from strandlog.testing.server import ServerThread

PATIENCE = {"default.api.timeout.ms": "600000"}  # an error that is retried exceeds the time limit


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    data: Path = tmp_path_factory.mktemp("broker") / "data"
    with ServerThread(data, http=True) as running:
        yield running


@pytest.mark.timeout(60)
def test_the_port_of_an_http_server_is_retried_for_a_minute(broker: ServerThread) -> None:
    address = broker.listener("http")
    with WireClient(address, PATIENCE) as client:
        for use in (client.topics, client.check_reachable):
            with pytest.raises(UnreachableError) as raised:
                use()
            assert str(raised.value) == (
                f"{address} is an HTTP server, not a Kafka listener; check the port: the ready "
                "line of 'strandlog serve' shows it as kafka=HOST:PORT"
            )


def test_a_broker_is_used_although_another_address_is_an_http_server(broker: ServerThread) -> None:
    both = f"{broker.listener('http')},{broker.address}"
    with WireClient(both, PATIENCE) as client:
        client.check_reachable()
        assert client.topics() == {}


@pytest.mark.timeout(60)
def test_a_new_job_with_tls_on_a_plain_listener_waits_for_a_minute(broker: ServerThread) -> None:
    with (
        WireClient(broker.address, PATIENCE | {"security.protocol": "SSL"}) as client,
        pytest.raises(UnreachableError, match=r"TLS handshake .* check that its listener uses TLS"),
    ):
        client.check_reachable()


def test_a_client_retries_a_refused_tls_handshake_in_silence(
    broker: ServerThread, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cluster, "QUIET_RETRY_MS", 0)
    options = {"security.protocol": "SSL", "default.api.timeout.ms": "500"}
    with (
        caplog.at_level(logging.WARNING, cluster.__name__),
        WireClient(broker.address, options) as client,
        pytest.raises(UnreachableError, match="retried for 500 ms"),
    ):
        client.topics()
    [text] = [each.getMessage() for each in caplog.records if each.name == cluster.__name__]
    assert text.startswith(f"TLS handshake with {broker.address} failed")
    assert text.endswith("retrying for up to 500 ms")
