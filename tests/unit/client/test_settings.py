"""Client settings: sources and precedence, the names of both clients, references to secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandlog.client.http.address import HttpAddress
from strandlog.client.references import (
    MAX_FILE_BYTES,
    current_token,
    dereferenced,
    has_reference,
    is_reference,
)
from strandlog.client.registry.connect import connect_registry
from strandlog.client.settings import FILE_VARIABLE, canonical, client_settings, variable_of
from strandlog.client.wire.client import WireClient
from strandlog.config.sources.environment import read_environment
from strandlog.errors import SettingError


@pytest.fixture(autouse=True)
def no_client_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FILE_VARIABLE, raising=False)


def test_the_program_overrides_the_environment_which_overrides_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "client.properties"
    file.write_text("sasl.username=file\nsasl.password=file\nclient.id=file\n# a comment\n")
    monkeypatch.setenv(FILE_VARIABLE, str(file))
    monkeypatch.setenv("STRANDLOG_CLIENT_SASL_PASSWORD", "variable")
    monkeypatch.setenv("STRANDLOG_CLIENT_CLIENT_ID", "variable")
    monkeypatch.setenv("STRANDLOG_CLIENT_SSL_CA_LOCATION", "")
    assert client_settings({"client.id": "program"}) == {
        "sasl.username": "file",
        "sasl.password": "variable",
        "client.id": "program",
    }


def test_a_named_file_replaces_the_file_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "missing.properties"))
    file = tmp_path / "client.properties"
    file.write_text("client.id=mine\n")
    assert client_settings({}, file) == {"client.id": "mine"}
    with pytest.raises(SettingError, match=r"missing\.properties: No such file"):
        client_settings({})


def test_a_client_with_a_named_file_does_not_get_the_credentials_of_the_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, file = tmp_path / "other.properties", tmp_path / "client.properties"
    other.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        "sasl.username=other\nsasl.password=secret\n"
    )
    file.write_text("client.id=mine\n")
    monkeypatch.setenv(FILE_VARIABLE, str(other))
    settings = client_settings({}, file)
    with WireClient("localhost", settings) as client:
        assert not client.options.wants_sasl
        assert client.options.text("sasl.password") == ""
    registry = connect_registry("localhost", config_file=file)
    _, headers = registry._connections._login.connect(HttpAddress(False, "localhost", 80), 1)
    assert headers == {}


def test_another_name_for_a_setting_has_the_precedence_of_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "ssl.truststore.location=/file.pem\n"
        "sasl.jaas.config=ScramLoginModule required username=\"file\" password='file';\n"
    )
    monkeypatch.setenv("STRANDLOG_CLIENT_SASL_USERNAME", "variable")
    assert client_settings({"ssl.ca.location": "/given.pem"}, file) == {
        "ssl.ca.location": "/given.pem",
        "sasl.username": "variable",
        "sasl.password": "file",
    }


def test_a_misspelled_variable_is_an_error_that_does_not_show_its_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STRANDLOG_CLIENT_SASL_PASSWROD", "hunter2")
    with pytest.raises(SettingError, match="did you mean STRANDLOG_CLIENT_SASL_PASSWORD") as raised:
        client_settings({})
    assert "hunter2" not in str(raised.value)


def test_variables_of_a_service_called_strandlog_client_are_not_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("SERVICE_HOST", "SERVICE_PORT_KAFKA", "PORT", "PORT_9092_TCP_ADDR"):
        monkeypatch.setenv(f"STRANDLOG_CLIENT_{name}", "x")
    assert client_settings({}) == {}


def test_a_broker_ignores_the_variables_of_clients() -> None:
    source = read_environment({variable_of("sasl.password"): "x", FILE_VARIABLE: "f"}, ["log.dirs"])
    assert (source.entries, source.problems) == ([], [])


def test_java_names_become_the_names_of_the_table() -> None:
    assert canonical(
        {
            "sasl.mechanisms": "PLAIN",
            "ssl.truststore.certificates": "CA",
            "ssl.truststore.type": "pem",
            "ssl.keystore.location": "/own.pem",
            "ssl.keystore.type": "PEM",
            "ssl.key.location": "/other.key",
            "enable.idempotence": True,
            "some.timeout.ms": 5,
            "unset": None,
        }
    ) == {
        "sasl.mechanism": "PLAIN",
        "ssl.ca.pem": "CA",
        "ssl.certificate.location": "/own.pem",
        "ssl.key.location": "/other.key",
        "enable.idempotence": "true",
        "some.timeout.ms": "5",
    }


def test_a_store_that_is_not_pem_is_rejected() -> None:
    with pytest.raises(SettingError, match="expected PEM"):
        canonical({"ssl.truststore.location": "x.jks", "ssl.truststore.type": "JKS"})


def test_a_password_in_a_jaas_config_may_be_a_reference() -> None:
    text = 'x required username="app" password="${file:/run/secrets/app}";'
    assert canonical({"sasl.jaas.config": text}) == {
        "sasl.username": "app",
        "sasl.password": "${file:/run/secrets/app}",
    }


# -- references ------------------------------------------------------------------------------------


def test_references_are_replaced_by_files_and_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(" p ${env:NOT_REPLACED}\r\n")
    monkeypatch.setenv("SOME_USER", "app")
    assert (
        dereferenced("x", f"${{env:SOME_USER}}:${{file:{secret}}}") == "app: p ${env:NOT_REPLACED}"
    )
    assert dereferenced("x", "$plain ${other:y} {z}") == "$plain ${other:y} {z}"


def test_a_file_is_read_again_each_time(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    for value in ("old", "new"):
        secret.write_text(f"{value}\n")
        assert dereferenced("sasl.password", f"${{file:{secret}}}") == value


@pytest.mark.parametrize(
    ("contents", "reason"),
    [
        (None, "cannot be read: No such file"),
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"\xff\xfe", "is not UTF-8"),
        (b"x" * (MAX_FILE_BYTES + 1), "larger than 65536 bytes"),
    ],
)
def test_an_unusable_file_is_named_with_its_setting(
    tmp_path: Path, contents: bytes | None, reason: str
) -> None:
    secret = tmp_path / "secret"
    if contents is not None:
        secret.write_bytes(contents)
    with pytest.raises(SettingError, match=f"sasl.password refers to .*secret.* {reason}"):
        dereferenced("sasl.password", f"${{file:{secret}}}")


def test_an_unset_variable_is_named_with_its_setting() -> None:
    with pytest.raises(SettingError, match=r"sasl\.password .* NOT_SET_AT_ALL, which is not set"):
        dereferenced("sasl.password", "${env:NOT_SET_AT_ALL}")


@pytest.mark.parametrize(
    ("text", "has", "is_one"),
    [
        ("${env:A}", True, True),
        (" ${file:/a b} ", True, True),
        ("x${env:A}", True, False),
        ("${env:A", False, False),
        ("secret", False, False),
    ],
)
def test_references_are_recognized(text: str, has: bool, is_one: bool) -> None:
    assert (has_reference(text), is_reference(text)) == (has, is_one)


def test_a_token_comes_from_a_function_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("abc\n\n")
    assert current_token(f"${{file:{file}}}") == "abc"
    assert current_token(lambda: "def") == "def"
    with pytest.raises(SettingError, match="no token"):
        current_token(lambda: "")
