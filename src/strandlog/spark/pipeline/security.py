"""`[pipeline.security]`: how a pipeline logs in to its broker.

    protocol       SASL_SSL (default), SSL, SASL_PLAINTEXT or PLAINTEXT
    mechanism      SCRAM-SHA-512 (default), SCRAM-SHA-256, PLAIN or OAUTHBEARER (default if there
                   is a token)
    username, password
    token          the bearer token of OAUTHBEARER
    ca             PEM file with the trusted CA certificates; by default, those of the system
    certificate, key, key_password      PEM files of the pipeline's own certificate and its key
                   (mutual TLS), and the key's password

These keys become client settings for all sources, sinks, dead letters, offset commits and progress
reports. `password`, `token` and `key_password`, and secrets in the options of any table, must be
references (client/references.py), because pipeline files are kept in version control.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from strandlog.client.references import has_reference, is_reference
from strandlog.client.settings import canonical
from strandlog.config.tables.client import (
    CLIENT_SETTINGS,
    OAUTHBEARER,
    PLAINTEXT,
    SASL_PLAINTEXT,
    SASL_SSL,
    SCRAM_SHA_512,
    SSL,
)
from strandlog.errors import SettingError, is_secret_name

PREFIX = "kafka."
SECRET_KEYS = ("password", "token", "key_password")
SETTINGS = {
    "protocol": "security.protocol",
    "mechanism": "sasl.mechanism",
    "username": "sasl.username",
    "password": "sasl.password",
    "token": "sasl.oauthbearer.token",
    "ca": "ssl.ca.location",
    "certificate": "ssl.certificate.location",
    "key": "ssl.key.location",
    "key_password": "ssl.key.password",
}
_LOGIN_KEYS = ("mechanism", "username", "password", "token")
_TLS_KEYS = ("ca", "certificate", "key", "key_password")

AddProblem = Callable[[str, str], None]  # key, text


class _Security(NamedTuple):
    """The values of the table, with defaults."""

    given: Mapping[str, str]
    protocol: str
    mechanism: str

    @property
    def uses_sasl(self) -> bool:
        return self.protocol in (SASL_PLAINTEXT, SASL_SSL)

    @property
    def uses_tls(self) -> bool:
        return self.protocol in (SSL, SASL_SSL)


def security_options(table: Mapping[str, Any], add: AddProblem) -> dict[str, str]:
    """Convert [pipeline.security] to Spark options; report its problems through `add`."""
    given: dict[str, str] = {}
    for key, value in table.items():
        if not isinstance(value, str) or not value.strip():
            add(key, "expected a string")
        elif key in SETTINGS:
            given[key] = value
    default = OAUTHBEARER if "token" in given else SCRAM_SHA_512
    found = _Security(
        given,
        _choice(given, "protocol", SASL_SSL, add),
        _choice(given, "mechanism", default, add),
    )
    for key, text in _problems(found):
        add(key, text)
    values = {"protocol": found.protocol, **given}
    if found.uses_sasl:
        values["mechanism"] = found.mechanism
    if "certificate" in given:
        values.setdefault("key", given["certificate"])
    return {f"{PREFIX}{SETTINGS[key]}": value for key, value in values.items()}


def _choice(given: Mapping[str, str], key: str, default: str, add: AddProblem) -> str:
    value = given.get(key, default).upper()
    choices = CLIENT_SETTINGS[SETTINGS[key]].choices
    if value not in choices:
        add(key, f"expected one of {', '.join(choices)}, not {given[key]!r}")
        return default
    return value


def _problems(found: _Security) -> Iterator[tuple[str, str]]:
    given = found.given
    for key in SECRET_KEYS:
        if key in given and not is_reference(given[key]):
            yield key, literal_secret(key)
    if found.protocol == PLAINTEXT:
        yield "protocol", "PLAINTEXT needs no [pipeline.security]: remove the table"
        return
    if found.uses_sasl:
        yield from _login_problems(found)
    yield from _unused(found)
    for key in ("key", "key_password"):
        if key in given and "certificate" not in given:
            yield key, "set certificate too: the PEM file that belongs to the key"


def _unused(found: _Security) -> Iterator[tuple[str, str]]:
    given = found.given
    advice = f'remove it, or set protocol = "{SASL_SSL}"'
    keys = () if found.uses_sasl else _LOGIN_KEYS
    yield from ((key, f"{found.protocol} has no login: {advice}") for key in keys if key in given)
    keys = () if found.uses_tls else _TLS_KEYS
    yield from ((key, f"{found.protocol} uses no TLS: {advice}") for key in keys if key in given)


def _login_problems(found: _Security) -> Iterator[tuple[str, str]]:
    if found.mechanism == OAUTHBEARER:
        if "token" not in found.given:
            yield "mechanism", f'{OAUTHBEARER} requires token = "${{file:PATH}}"'
        return
    for key in ("username", "password"):
        if key not in found.given:
            yield "", f"{found.mechanism} requires {key}"
    if "token" in found.given:
        yield "token", f"only {OAUTHBEARER} uses a token: remove it, or set mechanism"


def literal_secret(key: str) -> str:
    """Return the text of the problem for a secret that is written in the file."""
    return (
        "do not write the secret into this file: put it into a file that only the pipeline's user "
        f'can read and set {key} = "${{file:PATH}}", or set {key} = "${{env:VARIABLE}}"'
    )


def literal_secrets(options: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield (name, text) for each option whose value contains a secret instead of a reference."""
    for name, value in options.items():
        known = name.lower().removeprefix(PREFIX)
        if known.endswith("jaas.config"):
            try:
                is_literal = not is_reference(str(canonical({known: value}).get("sasl.password")))
            except SettingError:
                is_literal = True
        else:
            is_literal = is_secret_name(known) and not has_reference(value)
        if is_literal:
            yield name, literal_secret(name)
