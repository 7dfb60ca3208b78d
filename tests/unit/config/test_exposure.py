"""Which listeners may be open to other machines."""

from __future__ import annotations

import pytest

from strandlog.config.exposure import exposed_endpoints, exposure_text
from strandlog.config.tables.broker import BROKER_SETTINGS, broker_settings
from strandlog.config.tables.server import Address, Endpoint
from strandlog.config.tables.tls import for_listener


def _exposed(endpoint: Endpoint, given: dict[str, str]) -> bool:
    settings = broker_settings(BROKER_SETTINGS.parse(given))
    return bool(
        exposed_endpoints([(endpoint, for_listener(settings, {}, endpoint.protocol))], settings)
    )


@pytest.mark.parametrize(
    ("protocol", "given", "is_exposed"),
    [
        ("PLAINTEXT", {}, True),
        ("SSL", {}, True),
        ("SSL", {"ssl.client.auth": "requested"}, True),
        ("SSL", {"ssl.client.auth": "required"}, False),
        ("PLAINTEXT", {"ssl.client.auth": "required"}, True),
        ("SASL_PLAINTEXT", {}, False),
        ("SASL_SSL", {}, False),
        ("http", {}, False),
        ("http", {"http.authentication": "required"}, False),
        ("http", {"http.authentication": "optional"}, True),
        ("https", {"http.authentication": "none"}, True),
        ("grpc", {}, False),
        ("grpcs", {"grpc.authentication": "none"}, True),
    ],
)
def test_a_listener_for_other_machines_must_authenticate(
    protocol: str, given: dict[str, str], is_exposed: bool
) -> None:
    label = protocol.removesuffix("s")
    for host, expected in [("0.0.0.0", is_exposed), ("127.0.0.1", False), ("::1", False)]:
        assert _exposed(Endpoint(label, protocol, Address(host, 1)), given) is expected


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "broker.lan"])
def test_every_address_but_loopback_is_for_other_machines(host: str) -> None:
    assert _exposed(Endpoint("PLAINTEXT", "PLAINTEXT", Address(host, 1)), {})


def test_a_listener_may_have_its_own_client_authentication() -> None:
    endpoint = Endpoint("INSIDE", "SSL", Address("10.0.0.1", 1))
    settings = broker_settings({"ssl.client.auth": "none"})
    own = for_listener(settings, {"ssl.client.auth": "required"}, "SSL")
    assert not exposed_endpoints([(endpoint, own)], settings)


def test_the_text_names_the_commands_once_and_every_listener() -> None:
    text = exposure_text(
        [
            Endpoint("PLAINTEXT", "PLAINTEXT", Address("0.0.0.0", 9092)),
            Endpoint("SSL", "SSL", Address("::", 9093)),
            Endpoint("http", "http", Address("0.0.0.0", 9095)),
        ]
    )
    assert "PLAINTEXT://0.0.0.0:9092, SSL://[::]:9093, http://0.0.0.0:9095" in text
    assert text.count("tls init") == 1
    assert "listeners=SASL_SSL://0.0.0.0:9092" in text
    assert "set http.authentication=required" in text
