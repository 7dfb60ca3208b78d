"""Settings for TLS: what a listener needs, overrides for one listener, and connection limits."""

from __future__ import annotations

import pytest

from strandlog.config.origin import Origin, Source
from strandlog.config.resolve import Configuration, resolve
from strandlog.config.tables.broker import BROKER_SETTINGS, broker_settings
from strandlog.config.tables.tls import for_listener
from strandlog.errors import HIDDEN, InvalidSettingError

STORE = {"ssl.keystore.location": "/s.pem"}


def _resolved(given: dict[str, str]) -> Configuration:
    source = Source()
    for line, (name, value) in enumerate(given.items(), 1):
        source.add(name, value, Origin("file", "f.properties", line))
    return resolve([source])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "TLS requires ssl.keystore.location"),
        ({"ssl.keystore.key": "k"}, "set both ssl.keystore.key and ssl.keystore.certificate.chain"),
        ({**STORE, "ssl.keystore.key": "k"}, "set either ssl.keystore.location or"),
        ({**STORE, "ssl.keystore.type": "JKS"}, "keytool -importkeystore -srckeystore /s.pem"),
        ({**STORE, "ssl.keystore.type": "PKCS12"}, "openssl pkcs12 -in /s.pem"),
        ({**STORE, "ssl.client.auth": "required"}, "requires ssl.truststore.location"),
        ({**STORE, "ssl.client.auth": "requested"}, "requires ssl.truststore.location"),
        ({**STORE, "ssl.principal.mapping.rules": "RULE:x"}, "expected RULE:pattern/replacement"),
    ],
)
def test_an_incomplete_tls_configuration_is_a_problem(given: dict[str, str], words: str) -> None:
    merged = _resolved({"listeners": "SSL://127.0.0.1:9093", **given})
    assert words in str(merged.problems[0])


@pytest.mark.parametrize(
    "listener",
    [
        {"listeners": "SASL_SSL://127.0.0.1:9093"},
        {"http.listener": "https://127.0.0.1:9095"},
        {"grpc.listener": "grpcs://127.0.0.1:9094"},
    ],
)
def test_every_listener_with_tls_needs_a_certificate(listener: dict[str, str]) -> None:
    assert "TLS requires" in str(_resolved(listener).problems[0])
    assert not _resolved({**listener, **STORE}).problems


def test_without_tls_no_certificate_is_needed() -> None:
    assert not _resolved({"ssl.client.auth": "required"}).problems


def test_a_listener_overrides_the_settings_for_all() -> None:
    merged = _resolved(
        {
            "listeners": "SSL://127.0.0.1:1,INSIDE://127.0.0.1:2",
            "listener.security.protocol.map": "INSIDE:SSL",
            **STORE,
            "listener.name.inside.ssl.client.auth": "required",
            "listener.name.inside.ssl.truststore.location": "/ca.pem",
            "listener.name.inside.ssl.key.password": "secret",
        }
    )
    merged.check()
    overrides = merged.listener_overrides()
    assert set(overrides) == {"inside"}
    inside = for_listener(merged.broker_settings(), overrides["inside"], "SSL")
    others = for_listener(merged.broker_settings(), {}, "SSL")
    assert (inside.ssl_client_auth, others.ssl_client_auth) == ("required", "none")
    assert (inside.ssl_keystore_location, inside.ssl_truststore_location) == ("/s.pem", "/ca.pem")
    hidden = merged.chosen["listener.name.inside.ssl.key.password"]
    assert hidden.row.shown(hidden.value) == HIDDEN


@pytest.mark.parametrize(
    ("protocol", "label", "for_all", "used"),
    [
        ("SSL", "ssl", "required", "required"),
        ("SASL_SSL", "sasl_ssl", "required", "none"),
        ("SASL_SSL", "sasl_ssl", "requested", "none"),
        ("https", "http", "required", "requested"),
        ("https", "http", "requested", "requested"),
        ("grpcs", "grpc", "required", "none"),
        ("grpcs", "grpc", "requested", "none"),
    ],
)
def test_client_certificates_for_all_listeners_do_not_lock_out_clients_with_passwords(
    protocol: str, label: str, for_all: str, used: str
) -> None:
    setting = "listeners" if label.endswith("ssl") else f"{label}.listener"
    given = {setting: f"{protocol}://127.0.0.1:9093", **STORE, "ssl.truststore.location": "/ca.pem"}
    merged = _resolved({**given, "ssl.client.auth": for_all})
    merged.check()
    assert for_listener(merged.broker_settings(), {}, protocol).ssl_client_auth == used
    prefixed = f"listener.name.{label}.ssl.client.auth"
    assert [f"{prefixed}=required" in str(note) for note in merged.notes] == [True] * (
        used != for_all
    )
    own = _resolved({**given, "ssl.client.auth": for_all, prefixed: "required"})
    overrides = own.listener_overrides()[label]
    assert for_listener(own.broker_settings(), overrides, protocol).ssl_client_auth == "required"
    assert not own.notes


def test_an_override_for_a_listener_that_does_not_exist_is_a_problem() -> None:
    merged = _resolved({"listener.name.inside.ssl.client.auth": "none"})
    assert "no listener is named INSIDE" in str(merged.problems[0])


def test_an_override_with_the_name_of_a_listener_in_upper_case_says_how_to_write_it() -> None:
    name = "listener.name.SSL.ssl.client.auth"
    merged = _resolved({"listeners": "SSL://127.0.0.1:9093", **STORE, name: "required"})
    [problem] = merged.problems
    assert str(problem).endswith("write the name of the listener in lower case: ssl")


def test_an_invalid_rule_for_one_listener_is_reported_where_it_is_set() -> None:
    name = "listener.name.ssl.ssl.principal.mapping.rules"
    merged = _resolved({"listeners": "SSL://127.0.0.1:9093", **STORE, name: "RULE:x"})
    [problem] = merged.problems
    assert (problem.name, problem.origin) == (name, merged.chosen[name].origin)


def test_an_override_for_a_listener_without_tls_does_not_go_unnoticed() -> None:
    name = "listener.name.plaintext.ssl.client.auth"
    merged = _resolved({name: "required"})
    merged.check()
    [note] = merged.notes
    assert str(note) == f"f.properties:1: {name} has no effect: listener PLAINTEXT does not use TLS"


def test_an_override_of_another_setting_is_a_problem() -> None:
    merged = _resolved({"listener.name.plaintext.num.partitions": "3"})
    assert "can be set for one listener" in str(merged.problems[0])


def test_the_password_of_a_java_keystore_is_a_problem_that_says_what_to_do() -> None:
    merged = _resolved({"ssl.keystore.password": "changeit"})
    [problem] = merged.problems
    assert "convert the keystore to PEM" in str(problem)
    assert "changeit" not in str(problem)


def test_limits_for_single_addresses() -> None:
    text = "10.0.0.7:200, [::1]:5,kafka.lan:0"
    settings = broker_settings(BROKER_SETTINGS.parse({"max.connections.per.ip.overrides": text}))
    assert settings.per_ip_overrides() == {"10.0.0.7": 200, "::1": 5, "kafka.lan": 0}


@pytest.mark.parametrize("text", ["10.0.0.7", ":5", "h:x", "h:-1"])
def test_an_invalid_limit_for_an_address_is_an_error(text: str) -> None:
    settings = broker_settings({"max.connections.per.ip.overrides": text})
    with pytest.raises(InvalidSettingError, match="expected HOST:LIMIT"):
        settings.per_ip_overrides()
    assert "HOST:LIMIT" in str(_resolved({"max.connections.per.ip.overrides": text}).problems[0])
