"""Client options: Java's and librdkafka's names, addresses, rejected and ignored options."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path

import pytest

from strandlog.client.wire.client import WireClient
from strandlog.client.wire.options import WireOptions
from strandlog.client.wire.tls import tls_context
from strandlog.errors import ClosedError, SettingError
from strandlog.model import IsolationLevel


def test_names_of_java_and_librdkafka_and_units_are_parsed() -> None:
    options = WireOptions.parse(
        "a",
        {
            "socket.timeout.ms": "5s",
            "max.partition.fetch.bytes": "2MiB",
            "security.protocol": "sasl_ssl",
            "sasl.mechanisms": "scram-sha-512",
            "sasl.username": "u",
            "sasl.password": "p",
            "acks": "1",
        },
    )
    assert options.number("request.timeout.ms") == 5000
    assert options.number("max.partition.fetch.bytes") == 2 * 1024 * 1024
    assert (options.wants_tls, options.wants_sasl) == (True, True)
    assert options.text("sasl.mechanism") == "SCRAM-SHA-512"
    assert (options.credentials(), options.acks) == (("u", "p"), 1)


def test_defaults_are_read_committed_and_acks_all() -> None:
    options = WireOptions.parse("a", {})
    assert (options.isolation, options.acks) == (IsolationLevel.READ_COMMITTED, -1)
    assert not options.wants_tls
    assert not options.wants_sasl


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ('org.apache.PlainLoginModule required username="a b" password="p;\\"q";', ("a b", 'p;"q')),
        ("x required username=a password='b c';", ("a", "b c")),
    ],
)
def test_user_and_password_are_found_in_a_jaas_config(
    config: str, expected: tuple[str, str]
) -> None:
    options = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    assert WireOptions.parse("a", {**options, "sasl.jaas.config": config}).credentials() == expected


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "sasl.username"),
        ({"security.protocol": "SASL_SSL", "sasl.username": "u"}, "sasl.mechanism"),
        ({"sasl.mechanism": "GSSAPI"}, "SCRAM-SHA-256"),
        ({"sasl.kerberos.service.name": "kafka"}, "Kerberos"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}, "requires a token"),
        ({"sasl.oauthbearer.token.endpoint.url": "https://x"}, "sasl.oauthbearer.token"),
        ({"security.protocol": "${env:NOT_SET_AT_ALL}"}, "NOT_SET_AT_ALL"),
        ({"ssl.cipher.suites": "x"}, "ssl.cipher.suites"),
        ({"ssl.keystore.location": "x.jks", "ssl.keystore.type": "JKS"}, "PEM"),
        ({"interceptor.classes": "x"}, "Java"),
        ({"transactional.id": "x"}, "transactional.id"),
        ({"request.timeout.ms": "soon"}, "request.timeout.ms"),
        ({"isolation.level": "dirty"}, "read_committed"),
        ({"acks": "0"}, "acks"),
    ],
)
def test_unsupported_security_options_raise(options: dict[str, str], what: str) -> None:
    with pytest.raises(SettingError, match=what):
        WireOptions.parse("a", options)


def test_an_option_without_effect_is_logged_without_its_value(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG):
        WireOptions.parse("a", {"group.id": "g", "some.password": "hidden"})
    assert "some.password" in caplog.text
    assert "hidden" not in caplog.text


def test_options_can_be_sent_to_a_task_and_a_client_cannot() -> None:
    client = WireClient("a:1", {"client.id": "me"})
    assert pickle.loads(pickle.dumps(client.options)) == client.options
    with pytest.raises(TypeError, match="options"):
        pickle.dumps(client)


def test_options_and_their_pickle_hold_the_reference_and_not_the_secret(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hunter2\n")
    options = WireOptions.parse(
        "a",
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "u",
            "sasl.password": f"${{file:{secret}}}",
        },
    )
    assert b"hunter2" not in pickle.dumps(options)
    assert options.credentials() == ("u", "hunter2")
    secret.write_text("hunter3\n")
    assert options.credentials() == ("u", "hunter3")


def test_the_password_is_not_in_the_representation_of_the_options() -> None:
    assert "hunter2" not in repr(WireOptions.parse("a", {"sasl.password": "hunter2"}))


def test_a_closed_client_raises_closed_error() -> None:
    client = WireClient("a:1")
    client.close()
    with pytest.raises(ClosedError):
        client.topics()
    with pytest.raises(ClosedError):
        client.committed_offsets("g")
    client.close()


def test_certificates_that_are_not_there_are_named() -> None:
    options = {"security.protocol": "SSL", "ssl.ca.location": "nowhere.pem"}
    with pytest.raises(SettingError, match=r"cannot read nowhere\.pem"):
        WireClient("a:1", options)
    with pytest.raises(SettingError, match="PEM"):
        tls_context(WireOptions.parse("a", {"ssl.ca.pem": "no certificate"}))
