"""Listeners and the data folder, as Kafka's files say them."""

from __future__ import annotations

import pytest

from strandlog.config.tables.server import SERVER_SETTINGS, Address, server_settings

DEFAULTS = {row.name: str(row.default) for row in SERVER_SETTINGS}


def test_defaults() -> None:
    found, wrong = server_settings(DEFAULTS)
    assert not wrong
    assert found is not None
    assert found == (Address("127.0.0.1", 9092), None, "./data", 9094, 9095, ())


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


def test_listeners_of_controllers_and_names_of_ones_own() -> None:
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
        ("listeners", "SSL://:9093", "only PLAINTEXT; the broker does not speak SSL"),
        ("listeners", "SASL_PLAINTEXT://:9093", "does not speak SASL_PLAINTEXT"),
        ("listeners", "PLAINTEXT://:1,PLAINTEXT://:2", "exactly one listener"),
        ("listeners", "", "exactly one listener"),
        ("listeners", "localhost:9092", "PLAINTEXT://HOST:PORT"),
        ("listeners", "PLAINTEXT://h:70000", "PLAINTEXT://HOST:PORT"),
        ("advertised.listeners", "PLAINTEXT://0.0.0.0:9092", "name the host as they see it"),
        ("advertised.listeners", "PLAINTEXT://:9092", "name the host as they see it"),
        ("log.dirs", "/a,/b", "one folder"),
        ("log.dirs", " ", "one folder"),
    ],
)
def test_what_cannot_be_served_is_refused(name: str, text: str, words: str) -> None:
    found, wrong = server_settings({**DEFAULTS, name: text})
    assert found is None
    assert [row.name for row in wrong] == [name]
    assert words in str(wrong[0].error)


def test_http_knows_the_names_that_clients_are_told() -> None:
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
