"""Secret settings are never shown: not in tables, errors, problems or reprs."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from strandlog.broker.topics.dynamic_settings import DynamicSettings
from strandlog.client.wire.options import WireOptions
from strandlog.config.setting import Setting, declared_settings, setting
from strandlog.config.tables.broker import BROKER_SETTINGS, broker_settings
from strandlog.config.tables.client import CLIENT_SETTINGS
from strandlog.config.tables.server import SERVER_SETTINGS
from strandlog.config.tables.topic import TOPIC_SETTINGS
from strandlog.errors import HIDDEN, InvalidSettingError, SettingError, is_secret_name
from strandlog.spark.options import SINK, parse_options

SECRET = "distinctive-7f3a"
TABLES = (SERVER_SETTINGS, BROKER_SETTINGS, TOPIC_SETTINGS, CLIENT_SETTINGS)
SECRET_NAMES = [
    "ssl.key.password",
    "ssl.keystore.key",
    "ssl.key.pem",
    "ssl.keystore.password",
    "sasl.password",
    "sasl.jaas.config",
    "listener.name.client.plain.sasl.jaas.config",
    "listener.name.client.ssl.keystore.key",
    "kafka.ssl.key.password",
    "sasl.oauthbearer.client.secret",
]


@dataclass(kw_only=True)
class _Settings:
    pin_code: int = setting(kind="int", default=0, maximum=9999, is_secret=True, help="A secret.")
    some_text: str = setting(kind="text", default="", help="Not a secret.")


PIN = declared_settings(_Settings)[0]


def test_a_secret_is_shown_as_hidden_unless_it_is_not_set() -> None:
    assert PIN.shown(1234) == HIDDEN
    assert PIN.shown(0) == "0"
    assert Setting(name="a.b", kind="text", default="", help="").shown("x") == "x"


def test_the_repr_of_settings_has_no_secret() -> None:
    assert "1234" not in repr(_Settings(pin_code=1234))
    options = WireOptions.parse("h:1", {"sasl.password": SECRET})
    assert SECRET not in repr(options)


@pytest.mark.parametrize("raw", [SECRET, "123456789"])
def test_the_error_for_an_invalid_secret_does_not_quote_it(raw: str) -> None:
    with pytest.raises(
        InvalidSettingError, match=r"invalid value \[hidden\] for pin.code"
    ) as found:
        PIN.parse(raw)
    error: BaseException | None = found.value
    while error is not None:
        assert raw not in f"{error!r} {vars(error)}"
        error = error.__cause__


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_an_error_hides_values_whose_name_suggests_a_secret(name: str) -> None:
    assert is_secret_name(name)
    error = InvalidSettingError(name, SECRET, "it is not supported")
    assert SECRET not in f"{error} {error!r} {error.value}"


def test_an_error_hides_a_private_key_under_any_name() -> None:
    key = f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----"
    assert SECRET not in str(InvalidSettingError("ssl.keystore.location", key, "expected a file"))


def test_every_setting_with_the_name_of_a_secret_is_declared_secret() -> None:
    rows = [row for table in TABLES for row in table]
    assert {row.name for row in rows if is_secret_name(row.name)} == {
        row.name for row in rows if row.is_secret
    }


def test_secrets_have_no_default() -> None:
    rows = [row for table in TABLES for row in table if row.is_secret]
    assert rows
    assert not [row.name for row in rows if row.default]


def test_listeners_tls_logins_and_secrets_are_declared_as_read_at_start_up() -> None:
    rows = [row for table in (SERVER_SETTINGS, BROKER_SETTINGS) for row in table]
    assert not [row.name for row in rows if row.dynamic and not row.is_dynamic]
    assert not Setting(name="ssl.x", kind="text", default="", help="").is_dynamic
    assert not PIN.is_dynamic


def test_a_dynamic_setting_of_the_file_that_is_not_dynamic_has_no_effect() -> None:
    settings = broker_settings({})
    dynamic = DynamicSettings(settings)
    problems = dynamic.load({"node": {"super.users": "User:eve", "ssl.key.password": SECRET}})
    assert settings.super_users == ""
    assert len(problems) == 2
    assert SECRET not in str(problems)


def test_spark_options_that_contradict_each_other_do_not_show_the_secret() -> None:
    given = {
        "bootstrap.servers": "h:1",
        "topic": "t",
        "kafka.sasl.password": SECRET,
        "kafka.SASL.password": SECRET + "2",
    }
    with pytest.raises(InvalidSettingError, match="also set") as found:
        parse_options(SINK, given)
    assert SECRET not in str(found.value)


def test_the_repr_of_spark_options_has_no_secret() -> None:
    given = {"bootstrap.servers": "h:1", "topic": "t", "kafka.ssl.key.password": SECRET}
    options = parse_options(SINK, given)
    assert options.client["ssl.key.password"] == SECRET
    assert SECRET not in repr(options)


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_client_options_that_are_rejected_do_not_show_the_secret(name: str) -> None:
    options = {name: SECRET, "security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}
    with pytest.raises(SettingError) as found:
        WireOptions.parse("h:1", options)
    assert SECRET not in str(found.value)
