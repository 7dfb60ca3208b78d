"""Parses and validates client options before any connection is opened.

`bootstrap` is a comma-separated list of HOST:PORT, with brackets for IPv6: `[::1]:9092`. The
default port is 9092. The other options are defined in config/tables/client.py. `WireOptions` holds
plain values, so it can be pickled and sent to the process that creates the client.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from strandlog.config.setting import Value
from strandlog.config.tables.client import (
    ALIASES,
    CLIENT_SETTINGS,
    SASL_PLAINTEXT,
    SASL_SSL,
    SECURITY,
    SSL,
)
from strandlog.config.tables.server import Address
from strandlog.errors import InvalidSettingError, SettingError
from strandlog.model import IsolationLevel

logger = logging.getLogger(__name__)

DEFAULT_PORT = 9092
_ADDRESS = re.compile(r"(?:[A-Z_]+://)?(\[[0-9A-Fa-f:.%\w]+\]|[^:/\[\]\s]+)(?::(\d{1,5}))?")
_JAAS = re.compile(r'\b(username|password)\s*=\s*("(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|[^\s;]+)')
_UPPER_CASE = {"security.protocol", "sasl.mechanism", "ssl.truststore.type", "ssl.keystore.type"}
_LOWER_CASE = {"ssl.endpoint.identification.algorithm", "isolation.level", "acks"}


@dataclass(frozen=True)
class WireOptions:
    """The options of one client."""

    bootstrap: tuple[Address, ...]
    values: Mapping[str, Value]

    @classmethod
    def parse(cls, bootstrap: str, options: Mapping[str, str]) -> WireOptions:
        """Parse and validate the options; raises `SettingError`."""
        overrides: dict[str, Value] = {}
        for given, raw in options.items():
            name = ALIASES.get(given, given)
            if name in CLIENT_SETTINGS:
                overrides[name] = CLIENT_SETTINGS[name].parse(_cased(name, str(raw)))
            elif name != "bootstrap.servers":
                _reject_security_setting(name)
                logger.debug("option %s has no effect on this client", given)
        found = cls(parse_bootstrap(bootstrap), CLIENT_SETTINGS.resolve(overrides))
        found._check_stores()
        if found.wants_sasl:
            found.credentials()
        return found

    def _check_stores(self) -> None:
        for store in ("truststore", "keystore"):
            name = f"ssl.{store}.type"
            if self.values[f"ssl.{store}.location"] and self.values[name] != "PEM":
                raise InvalidSettingError(
                    name,
                    self.values[name],
                    "expected PEM; convert the store with openssl or keytool",
                )

    def text(self, name: str) -> str:
        return cast(str, self.values[name])

    def number(self, name: str) -> int:
        return cast(int, self.values[name])

    def seconds(self, name: str) -> float:
        """Convert a setting from milliseconds to seconds."""
        return self.number(name) / 1000

    def flag(self, name: str) -> bool:
        return cast(bool, self.values[name])

    @property
    def wants_tls(self) -> bool:
        return self.text("security.protocol") in {SSL, SASL_SSL}

    @property
    def wants_sasl(self) -> bool:
        return self.text("security.protocol") in {SASL_PLAINTEXT, SASL_SSL}

    @property
    def isolation(self) -> IsolationLevel:
        return IsolationLevel[self.text("isolation.level").upper()]

    @property
    def acks(self) -> int:
        return 1 if self.text("acks") == "1" else -1

    def credentials(self) -> tuple[str, str]:
        """Return (user, password); raises `SettingError` if they are not configured."""
        if not self.text("sasl.mechanism"):
            raise InvalidSettingError(
                "sasl.mechanism", "", f"expected {CLIENT_SETTINGS['sasl.mechanism'].allowed()}"
            )
        user, password = self.text("sasl.username"), self.text("sasl.password")
        if not user:
            found = dict(_JAAS.findall(self.text("sasl.jaas.config")))
            user, password = (_unquoted(found.get(key, "")) for key in ("username", "password"))
        if not user:
            raise SettingError(
                f"security.protocol={self.text('security.protocol')} requires a user: "
                "set sasl.username and sasl.password, or sasl.jaas.config"
            )
        return user, password


def parse_bootstrap(text: str) -> tuple[Address, ...]:
    """Parse a list of addresses such as `"a:9092,[::1]"`."""
    found: list[Address] = []
    for part in filter(None, map(str.strip, text.split(","))):
        match = _ADDRESS.fullmatch(part)
        port = int(match[2] or DEFAULT_PORT) if match else 0
        if match is None or not 0 < port < 65536:
            raise InvalidSettingError(
                "bootstrap.servers",
                part,
                "expected a comma-separated list of HOST:PORT, such as host:9092 or [::1]:9092",
            )
        found.append(Address(match[1].strip("[]"), port))
    if not found:
        raise InvalidSettingError("bootstrap.servers", text, "expected at least one HOST:PORT")
    return tuple(found)


def _cased(name: str, text: str) -> str:
    if name in _UPPER_CASE:
        return text.strip().upper()
    return text.strip().lower() if name in _LOWER_CASE else text


def _reject_security_setting(name: str) -> None:
    for known, reason in SECURITY.items():
        if name == known or (known.endswith(".") and name.startswith(known)):
            raise SettingError(f"{name} is not supported: {reason}")


def _unquoted(text: str) -> str:
    if text[:1] in {'"', "'"}:
        return re.sub(r"\\(.)", r"\1", text[1:-1])
    return text
