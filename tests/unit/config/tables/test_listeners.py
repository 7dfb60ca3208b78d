"""Settings of the listeners and of the data folder."""

from __future__ import annotations

import pytest

from strandlog.config.tables.server import SERVER_SETTINGS, Address, server_settings

DEFAULTS = {row.name: str(row.default) for row in SERVER_SETTINGS}


def test_defaults() -> None:
    found, wrong = server_settings(DEFAULTS)
    assert not wrong
    assert found is not None
    assert found.listen == Address("127.0.0.1", 9092)
    assert (found.grpc, found.http) == (Address("127.0.0.1", 9094), Address("127.0.0.1", 9095))
    assert (found.advertised, found.data, found.http_hosts) == (None, "./data", ())


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("PLAINTEXT://:9092", ("0.0.0.0", 9092)),
        ("PLAINTEXT://kafka.lan:0", ("kafka.lan", 0)),
        ("PLAINTEXT://[::1]:9092", ("::1", 9092)),
        ("plaintext://h:1", ("h", 1)),
    ],
)
def test_a_listener(text: str, address: tuple[str, int]) -> None:
    found, wrong = server_settings({**DEFAULTS, "listeners": text})
    assert not wrong
    assert found is not None
    assert found.listen == address


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
    found, wrong = server_settings({**DEFAULTS, **given})
    assert not wrong
    assert found is not None
    assert found.http == address


def test_listeners_of_controllers_are_ignored_and_names_are_mapped() -> None:
    found, wrong = server_settings(
        {
            **DEFAULTS,
            "listeners": "CONTROLLER://:9093, OUTSIDE://:9092",
            "advertised.listeners": "OUTSIDE://kafka.lan:19092,CONTROLLER://localhost:9093",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,OUTSIDE:PLAINTEXT,SSL:SSL",
        }
    )
    assert not wrong
    assert found is not None
    assert found.listen == ("0.0.0.0", 9092)
    assert found.advertised == ("kafka.lan", 19092)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("listeners", "SSL://:9093", "expected PLAINTEXT; the broker does not support SSL"),
        ("listeners", "SASL_PLAINTEXT://:9093", "does not support SASL_PLAINTEXT"),
        ("listeners", "PLAINTEXT://:1,PLAINTEXT://:2", "exactly one listener"),
        ("listeners", "", "exactly one listener"),
        ("listeners", "localhost:9092", "PLAINTEXT://HOST:PORT"),
        ("listeners", "PLAINTEXT://h:70000", "PLAINTEXT://HOST:PORT"),
        ("advertised.listeners", "PLAINTEXT://0.0.0.0:9092", "use a host that they can reach"),
        ("advertised.listeners", "PLAINTEXT://:9092", "use a host that they can reach"),
        ("http.listener", "https://localhost:9095", "http://HOST:PORT or HOST:PORT, without TLS"),
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
    found, wrong = server_settings(
        {
            **DEFAULTS,
            "advertised.listeners": "PLAINTEXT://kafka.lan:9092",
            "http.hosts": "a.lan, b.lan",
        }
    )
    assert not wrong
    assert found is not None
    assert found.http_hosts == ("kafka.lan", "a.lan", "b.lan")
