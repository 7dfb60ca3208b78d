"""Client settings as librdkafka's configuration, which librdkafka itself accepts."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from confluent_kafka.admin import AdminClient

from strandlog.client.remote.client_config import (
    OPAQUE_TOKEN_SECONDS,
    client_config,
    expiry_seconds,
)
from strandlog.config.tables.client import ALIASES, CLIENT_SETTINGS
from strandlog.errors import AuthenticationError, SettingError
from strandlog.testing.clock import FakeClock

BOOTSTRAP = "127.0.0.1:1"


def _config(**given: object) -> dict[str, object]:
    return client_config(BOOTSTRAP, given, FakeClock())


def _jwt(claims: dict[str, object]) -> str:
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{payload}.c2ln"


def test_java_names_references_and_units_become_librdkafkas(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("p\n")
    authorities = tmp_path / "ca.pem"
    authorities.touch()
    assert client_config(
        BOOTSTRAP,
        {
            "security_protocol": "SASL_SSL",
            "sasl.jaas.config": f'x required username="u" password="${{file:{secret}}}";',
            "ssl.truststore.location": str(authorities),
            "ssl.endpoint.identification.algorithm": "",
            "request.timeout.ms": "5s",
            "receive.buffer.bytes": -1,
            "default.api.timeout.ms": "1m",
            "bootstrap.servers": "elsewhere:1",
        },
        FakeClock(),
    ) == {
        "bootstrap.servers": BOOTSTRAP,
        "client.id": "strandlog",
        "log_level": 2,
        "security.protocol": "SASL_SSL",
        "sasl.username": "u",
        "sasl.password": "p",
        "ssl.ca.location": str(authorities),
        "ssl.endpoint.identification.algorithm": "none",
        "socket.timeout.ms": "5000",
        "socket.receive.buffer.bytes": "0",
    }


# librdkafka reads certificates at once, so these settings need real ones.
CERTIFICATES = {
    row.name for row in CLIENT_SETTINGS if row.name.startswith("ssl.") and not row.default
}
NAMES = {row.name: row.name for row in CLIENT_SETTINGS} | ALIASES


@pytest.mark.parametrize("name", [name for name, own in NAMES.items() if own not in CERTIFICATES])
def test_librdkafka_accepts_every_setting_of_the_table(name: str) -> None:
    row = CLIENT_SETTINGS[NAMES[name]]
    value = "PLAIN" if row.name == "sasl.mechanism" else row.format(row.default) or "x"
    AdminClient(client_config(BOOTSTRAP, {name: value}, FakeClock()))


def test_the_callback_of_librdkafka_reads_the_token_again(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(_jwt({"exp": 2_000_000_000}))
    config = _config(sasl_mechanism="oauthbearer", sasl_oauthbearer_token=f"${{file:{file}}}")
    callback = cast(Callable[[str], tuple[str, float]], config["oauth_cb"])
    assert callback("") == (file.read_text(), 2_000_000_000)
    file.write_text("opaque")
    token, expires = callback("")
    assert token == "opaque"
    assert expires == FakeClock().now_ms() / 1000 + OPAQUE_TOKEN_SECONDS


def test_a_missing_token_is_reported_before_connecting(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"oauthbearer\.token refers to .*nowhere"):
        _config(
            sasl_mechanism="OAUTHBEARER", sasl_oauthbearer_token=f"${{file:{tmp_path}/nowhere}}"
        )


@pytest.mark.parametrize("token", ["", "opaque", "a.b.c", _jwt({}), _jwt({"exp": "soon"}), "a.e30"])
def test_a_token_without_an_expiry_time_has_none(token: str) -> None:
    assert expiry_seconds(token) is None


def test_a_pkcs12_store_is_left_to_librdkafka(tmp_path: Path) -> None:
    store = tmp_path / "own.p12"
    store.touch()
    config = _config(ssl_keystore_location=str(store), ssl_keystore_password="x")
    assert config["ssl.keystore.location"] == str(store)
    assert config["ssl.keystore.password"] == "x"


def test_a_token_that_has_expired_is_an_error_at_once_instead_of_a_timeout() -> None:
    expired = _jwt({"exp": FakeClock().now_ms() // 1000})
    with pytest.raises(
        AuthenticationError, match=r"^the token in sasl.oauthbearer.token expired at .*Z$"
    ):
        _config(sasl_mechanism="OAUTHBEARER", sasl_oauthbearer_token=expired)


@pytest.mark.parametrize(
    "name",
    [
        "ssl.ca.location",
        "ssl.truststore.location",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.keystore.location",
    ],
)
def test_a_missing_file_is_named_instead_of_a_bio_lib_error(name: str, tmp_path: Path) -> None:
    missing = tmp_path / "nofile.pem"
    with pytest.raises(SettingError, match=r"location: cannot read .*nofile.pem: No such file"):
        client_config(BOOTSTRAP, {name: str(missing)}, FakeClock())
    assert client_config(BOOTSTRAP, {name: str(tmp_path)}, FakeClock())


def test_librdkafka_may_look_for_the_certificates_of_the_system() -> None:
    assert _config(ssl_ca_location="probe")["ssl.ca.location"] == "probe"
