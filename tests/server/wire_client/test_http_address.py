"""The address of a broker's HTTP listener, found over the Kafka protocol."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.http_client import http_broker

from strandlog.client.wire.client import WireClient
from strandlog.client.wire.cluster import reachable_url


def test_a_broker_without_http_listener_has_no_address(client: WireClient) -> None:
    assert client.http_address() is None


def test_the_address_is_that_of_the_broker_under_any_name(tmp_path: Path) -> None:
    with http_broker(tmp_path / "data") as broker:
        port = int(broker.ready.split("http=127.0.0.1:")[1].split()[0])
        for name in ("127.0.0.1", "localhost"):
            with WireClient(f"{name}:{broker.port}") as client:
                assert client.http_address() == f"http://127.0.0.1:{port}"
        assert httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize(("host", "reach"), [("0.0.0.0", "127.0.0.1"), ("[::1]", "[::1]")])
def test_a_wildcard_host_is_replaced_by_the_address_of_the_connection(
    host: str, reach: str, tmp_path: Path
) -> None:
    address = ("--host", host.strip("[]"), "--advertise", "far.example:9092")
    options = ("--no-grpc", "--insecure", *address)
    broker = BrokerProcess(
        tmp_path / "data", {"http.listener": f"http://{host}:0"}, listeners=options
    )
    broker.start()
    try:
        with WireClient(f"{reach}:{broker.port}") as client:
            found = client.http_address()
        assert found is not None
        assert found.startswith(f"http://{reach}:")
        assert httpx.get(f"{found}/healthz").status_code == 200
    finally:
        assert broker.stop() == 0


@pytest.mark.parametrize(
    ("listener", "peer", "url"),
    [
        ("http://127.0.0.1:9095", "127.0.0.1", "http://127.0.0.1:9095"),
        ("http://127.0.0.1:9095", "10.0.0.7", None),
        ("http://localhost:9095", "10.0.0.7", None),
        ("http://0.0.0.0:9095", "10.0.0.7", "http://10.0.0.7:9095"),
        ("http://[::]:9095", "fe80::1", "http://[fe80::1]:9095"),
        ("https://console.lan:443", "10.0.0.7", "https://console.lan:443"),
    ],
)
def test_a_loopback_listener_is_of_use_only_over_loopback(
    listener: str, peer: str, url: str | None
) -> None:
    assert reachable_url(listener, peer) == url
