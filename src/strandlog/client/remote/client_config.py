"""Converts client settings to librdkafka's configuration.

The settings table (config/tables/client.py) uses librdkafka's names, except for those in `NAMES`;
names that are not in the table are passed on unchanged. References are replaced when the log
connects, because librdkafka keeps its own copy of the values. Two kinds are read again later:
references in the user name and password after the broker rejects a login (login.py), and references
in the bearer token when librdkafka requests a new token, before the old one expires.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from strandlog.client.addresses import parse_bootstrap
from strandlog.client.references import TOKEN, check_readable, current_token, dereferenced
from strandlog.client.remote.errors import BAD_TEXT, is_intact
from strandlog.client.remote.login import PASSWORD, USER
from strandlog.client.settings import client_settings
from strandlog.clock import Clock
from strandlog.config.tables.client import CLIENT_SETTINGS, OAUTHBEARER
from strandlog.errors import AuthenticationError, SettingError

LOG_CRITICAL, LOG_DEBUG = 2, 7
# Settings that have another name in librdkafka; None means that librdkafka has no such setting.
NAMES = {
    "buffer.memory": None,
    "default.api.timeout.ms": None,
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "max.request.size": "message.max.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "request.timeout.ms": "socket.timeout.ms",
    "schema.registry.url": None,
    "send.buffer.bytes": "socket.send.buffer.bytes",
}
PROBE = "probe"  # value of ssl.ca.location: librdkafka searches for the system's certificates
# Assumed lifetime of a token without an expiry time; librdkafka requests a new one before its end.
OPAQUE_TOKEN_SECONDS = 300.0


def client_config(
    bootstrap: str,
    given: Mapping[str, object],
    clock: Clock,
    file: str | os.PathLike[str] | None = None,
) -> dict[str, object]:
    """Return the configuration shared by all clients of a log.

    librdkafka logs to stderr. Only critical messages are logged unless `debug` or `log.level` is
    set, because the raised errors are more helpful.
    """
    parse_bootstrap(bootstrap)  # librdkafka would report an invalid address as unreachable
    settings = _settings(given, file)
    level = settings.pop("log.level", LOG_DEBUG if "debug" in settings else LOG_CRITICAL)
    settings.pop("bootstrap.servers", None)
    token = settings.pop(TOKEN, None)
    config: dict[str, object] = {"client.id": "strandlog", "log_level": level}
    for name, value in settings.items():
        known = NAMES.get(name, name)
        if known is not None:
            config[known] = _value(name, value)
    mechanism = str(config.get("sasl.mechanism", "")).upper()
    if token is not None and mechanism == OAUTHBEARER:
        config["oauth_cb"] = _token_callback(token, clock)
    return {**config, "bootstrap.servers": bootstrap}


def credential_sources(
    given: Mapping[str, object], file: str | os.PathLike[str] | None = None
) -> dict[str, str]:
    """Return the user name and password with their references; empty unless both are set."""
    settings = _settings(given, file)
    found = {name: str(settings[name]) for name in (USER, PASSWORD) if name in settings}
    return found if len(found) == 2 else {}


def _settings(
    given: Mapping[str, object], file: str | os.PathLike[str] | None
) -> dict[str, object]:
    named = {key if "." in key else _dotted(key): value for key, value in given.items()}
    return client_settings(named, file)


def _dotted(name: str) -> str:
    return name if name.endswith("_cb") else name.replace("_", ".")


def _value(name: str, value: object) -> object:
    """Replace references, and convert times and sizes to plain numbers."""
    if not isinstance(value, str):
        return value
    text = dereferenced(name, value)
    if not is_intact(text):
        raise SettingError(f"invalid value of {name}: {BAD_TEXT}")
    if name.startswith("ssl.") and name.endswith(".location") and text not in ("", PROBE):
        check_readable(name, text)
    if name == "ssl.endpoint.identification.algorithm":
        return text.lower() or "none"
    if name in CLIENT_SETTINGS and CLIENT_SETTINGS[name].kind in ("ms", "bytes"):
        try:
            number = CLIENT_SETTINGS[name].parse(text)
        except SettingError:
            return text  # librdkafka checks its own range
        return "0" if number == -1 else str(number)  # -1 and 0 both mean the system's default
    return text


def _token_callback(source: object, clock: Clock) -> Callable[[str], tuple[str, float]]:
    """Return the function that librdkafka calls for a token and its expiry time in seconds."""

    def read_token(_: str) -> tuple[str, float]:
        token = current_token(source)
        return token, expiry_seconds(token) or clock.now_ms() / 1000 + OPAQUE_TOKEN_SECONDS

    _, expires = read_token("")  # raise errors here rather than in the background
    if expires <= clock.now_ms() / 1000:
        when = datetime.fromtimestamp(expires, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        raise AuthenticationError(f"the token in {TOKEN} expired at {when}")
    return read_token


def expiry_seconds(token: str) -> float | None:
    """Return the expiry time of a JWT, or None if the token does not state one."""
    try:
        payload = token.split(".")[1]
        claims: Any = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return float(claims["exp"])
    except (IndexError, KeyError, TypeError, ValueError, binascii.Error):
        return None
