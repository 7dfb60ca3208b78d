"""Parses and validates client options before any connection is opened.

client/addresses.py parses the addresses. The other options are defined in config/tables/client.py.
`WireOptions` holds plain values and possibly a token function. If the function can be pickled, so
can the options, and another process can create the client.

References to secrets (client/references.py) in text settings are not replaced when the options are
parsed, but each time `text` is called. Neither `repr` nor an error shows a secret.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

from strandlog.client.addresses import parse_bootstrap
from strandlog.client.references import TOKEN, current_token, dereferenced
from strandlog.client.settings import canonical
from strandlog.config.setting import Value
from strandlog.config.tables.client import (
    CLIENT_SETTINGS,
    OAUTHBEARER,
    SASL_PLAINTEXT,
    SASL_SSL,
    SECURITY,
    SSL,
)
from strandlog.config.tables.server import Address
from strandlog.errors import InvalidSettingError, SettingError
from strandlog.model import IsolationLevel

logger = logging.getLogger(__name__)

_UPPER_CASE = {"security.protocol", "sasl.mechanism"}
_LOWER_CASE = {"ssl.endpoint.identification.algorithm", "isolation.level", "acks"}


@dataclass(frozen=True)
class WireOptions:
    """The options of one client."""

    bootstrap: tuple[Address, ...]
    values: Mapping[str, Value] = field(repr=False)  # hidden because it includes secrets
    token_function: Callable[[], str] | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, bootstrap: str, options: Mapping[str, object]) -> WireOptions:
        """Parse and validate the options; raise `SettingError` if one is invalid."""
        overrides: dict[str, Value] = {}
        function: Callable[[], str] | None = None
        for name, raw in canonical(options).items():
            if name == TOKEN and callable(raw):
                function = raw
            elif name in CLIENT_SETTINGS:
                overrides[name] = _parsed(name, str(raw))
            elif name != "bootstrap.servers":
                _reject_security_setting(name)
                logger.debug("option %s has no effect on this client", name)
        values = CLIENT_SETTINGS.resolve(overrides)
        addresses = tuple(Address(*each) for each in parse_bootstrap(bootstrap))
        found = cls(addresses, values, function)
        if found.wants_sasl:
            found.credentials()
        return found

    def text(self, name: str) -> str:
        return dereferenced(name, cast(str, self.values[name]))

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

    @property
    def has_token(self) -> bool:
        return self.token_function is not None or bool(self.values[TOKEN])

    def token(self) -> str:
        """Return the current bearer token."""
        return current_token(self.token_function or self.values[TOKEN])

    def credentials(self) -> tuple[str, str]:
        """Return the current (user, password), or ("", token) for OAUTHBEARER.

        Raise `SettingError` if they are not configured.
        """
        mechanism, protocol = self.text("sasl.mechanism"), self.text("security.protocol")
        if not mechanism:
            raise InvalidSettingError(
                "sasl.mechanism", "", f"expected {CLIENT_SETTINGS['sasl.mechanism'].allowed()}"
            )
        if mechanism == OAUTHBEARER:
            if not self.has_token:
                raise SettingError(f"{mechanism} requires a token: set {TOKEN}")
            return "", self.token()
        user, password = self.text("sasl.username"), self.text("sasl.password")
        if not user:
            raise SettingError(
                f"security.protocol={protocol} requires a user: "
                "set sasl.username and sasl.password, or sasl.jaas.config"
            )
        return user, password


def _parsed(name: str, raw: str) -> Value:
    """Parse a value. References are replaced now, except in text settings, which are returned
    unchanged."""
    if CLIENT_SETTINGS[name].kind == "text":
        return raw
    text = dereferenced(name, raw).strip()
    if name in _UPPER_CASE:
        text = text.upper()
    elif name in _LOWER_CASE:
        text = text.lower()
    return CLIENT_SETTINGS[name].parse(text)


def _reject_security_setting(name: str) -> None:
    for known, reason in SECURITY.items():
        if name == known or (known.endswith(".") and name.startswith(known)):
            raise SettingError(f"{name} is not supported: {reason}")
