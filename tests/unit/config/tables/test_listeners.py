"""Settings of the listeners and of the data folder."""

from __future__ import annotations

import pytest

from strandlog.config.tables.server import (
    SERVER_SETTINGS,
    Address,
    Endpoint,
    ServerSettings,
    server_settings,
)

DEFAULTS = {row.name: str(row.default) for row in SERVER_SETTINGS}


def _parsed(given: dict[str, str]) -> ServerSettings:
    found, wrong = server_settings({**DEFAULTS, **given})
    assert not wrong
    assert found is not None
    return found


def test_defaults() -> None:
    found = _parsed({})
    assert found.kafka == (Endpoint("PLAINTEXT", "PLAINTEXT", Address("127.0.0.1", 9092)),)
    assert found.grpc == Endpoint("grpc", "grpc", Address("127.0.0.1", 9094))
    assert found.http == Endpoint("http", "http", Address("127.0.0.1", 9095))
    assert (found.data, found.http_hosts) == ("./data", ())


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("PLAINTEXT://:9092", Address("0.0.0.0", 9092)),
        ("PLAINTEXT://kafka.lan:0", Address("kafka.lan", 0)),
        ("PLAINTEXT://[::1]:9092", Address("::1", 9092)),
        ("plaintext://h:1", Address("h", 1)),
    ],
)
def test_a_listener(text: str, address: Address) -> None:
    assert _parsed({"listeners": text}).kafka == (Endpoint("PLAINTEXT", "PLAINTEXT", address),)


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ({}, ("127.0.0.1", 9095)),
        ({"http.port": "0"}, ("127.0.0.1", 0)),
        ({"http.port": "-1"}, None),
        ({"http.listener": "http://0.0.0.0:8080"}, ("0.0.0.0", 8080)),
        ({"http.listener": "http://[::1]:8080/"}, ("::1", 8080)),
        ({"http.listener": "console.lan:8080"}, ("console.lan", 8080)),
        ({"http.listener": "[::1]:8080", "http.port": "-1"}, ("::1", 8080)),
        ({"listeners": "PLAINTEXT://0.0.0.0:9092"}, ("127.0.0.1", 9095)),
    ],
)
def test_http_listens_on_loopback_unless_http_listener_is_set(
    given: dict[str, str], address: tuple[str, int] | None
) -> None:
    found = _parsed(given).http
    assert (None if found is None else found.address) == address


@pytest.mark.parametrize(
    ("name", "text", "protocol"),
    [
        ("http.listener", "https://localhost:9095", "https"),
        ("http.listener", "http://localhost:9095", "http"),
        ("http.listener", "localhost:9095", "http"),
        ("grpc.listener", "grpcs://localhost:9095", "grpcs"),
        ("grpc.listener", "https://localhost:9095", "grpcs"),
        ("grpc.listener", "grpc://localhost:9095", "grpc"),
    ],
)
def test_the_scheme_of_an_address_enables_tls(name: str, text: str, protocol: str) -> None:
    found = _parsed({name: text})
    endpoint = found.http if name == "http.listener" else found.grpc
    label = name.partition(".")[0]
    assert endpoint is not None
    assert (endpoint.label, endpoint.protocol, endpoint.address.port) == (label, protocol, 9095)


def test_listeners_of_controllers_are_ignored_and_names_are_mapped() -> None:
    found = _parsed(
        {
            "listeners": "CONTROLLER://:9093, OUTSIDE://:9092",
            "advertised.listeners": "OUTSIDE://kafka.lan:19092,CONTROLLER://localhost:9093",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,OUTSIDE:PLAINTEXT,SSL:SSL",
        }
    )
    address, advertised = Address("0.0.0.0", 9092), Address("kafka.lan", 19092)
    assert found.kafka == (Endpoint("OUTSIDE", "PLAINTEXT", address, advertised),)


def test_several_listeners_with_their_own_protocols_and_advertised_addresses() -> None:
    found = _parsed(
        {
            "listeners": "PLAINTEXT://127.0.0.1:9092,SASL_SSL://:9093,inside://10.0.0.1:9094",
            "advertised.listeners": "INSIDE://inside.lan:1, SASL_SSL://outside.lan:2",
            "listener.security.protocol.map": "Inside:ssl",
        }
    )
    assert found.kafka == (
        Endpoint("PLAINTEXT", "PLAINTEXT", Address("127.0.0.1", 9092)),
        Endpoint("SASL_SSL", "SASL_SSL", Address("0.0.0.0", 9093), Address("outside.lan", 2)),
        Endpoint("INSIDE", "SSL", Address("10.0.0.1", 9094), Address("inside.lan", 1)),
    )
    assert found.http_hosts == ("outside.lan", "inside.lan")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("listeners", "TLS://:9093", "PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL, or a name that"),
        ("listeners", "PLAINTEXT://:1,PLAINTEXT://:2", "two listeners with the name PLAINTEXT"),
        ("listeners", "", "at least one listener"),
        ("listeners", "localhost:9092", "PROTOCOL://HOST:PORT"),
        ("listeners", "PLAINTEXT://h:70000", "PROTOCOL://HOST:PORT"),
        ("advertised.listeners", "SSL://h:1", "no listener is named SSL; listeners has PLAINTEXT"),
        ("advertised.listeners", "PLAINTEXT://0.0.0.0:9092", "use a host that they can reach"),
        ("advertised.listeners", "PLAINTEXT://:9092", "use a host that they can reach"),
        ("http.listener", "grpc://localhost:9095", "http://HOST:PORT"),
        ("http.listener", ":9095", "http://HOST:PORT"),
        ("grpc.listener", "localhost:70000", "grpc://HOST:PORT"),
        ("log.dirs", "/a,/b", "one folder"),
        ("log.dirs", " ", "one folder"),
    ],
)
def test_an_invalid_setting_is_reported(name: str, text: str, words: str) -> None:
    found, wrong = server_settings({**DEFAULTS, name: text})
    assert found is None
    assert [row.name for row in wrong] == [name]
    assert words in str(wrong[0].error)


def test_http_allows_the_advertised_host_name() -> None:
    found = _parsed(
        {
            "advertised.listeners": "PLAINTEXT://kafka.lan:9092",
            "http.hosts": "a.lan, b.lan",
        }
    )
    assert found.http_hosts == ("kafka.lan", "a.lan", "b.lan")
