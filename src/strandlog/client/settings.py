"""Merges client settings from all sources, under one canonical name for each setting.

    default  <  settings file  <  environment  <  the program (connect, -X, Spark options)

    settings file    --client-config FILE or connect(config_file=…), else the file that the variable
                     STRANDLOG_CLIENT_CONFIG names: a properties file, as for Kafka's tools
    environment      STRANDLOG_CLIENT_SASL_USERNAME=app sets sasl.username, and so on for every
                     setting in the reference; an empty variable counts as unset

These sources apply to every client: `strandlog.connect`, the command line, Spark's source and sink,
and pipelines. On a Spark cluster, each executor has its own environment and files.

Alternative names from the Java client and librdkafka are translated to the names in the settings
table (`canonical`), so every client accepts both. References to secrets (references.py) are not
replaced here. Errors never contain the value of a secret.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from strandlog.config.sources.environment import CLIENT_PREFIX
from strandlog.config.sources.properties import read_properties
from strandlog.config.tables.client import ALIASES, CLIENT_SETTINGS, JAVA_ONLY
from strandlog.errors import InvalidSettingError, SettingError

FILE_VARIABLE = "STRANDLOG_CLIENT_CONFIG"

_JAAS = re.compile(r'\b(username|password)\s*=\s*("(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|[^\s;]+)')
# Kubernetes and Docker set these for a service called strandlog-client.
_SERVICE_LINK = re.compile(
    r"(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)"
)


class MergedSettings(dict[str, object]):
    """Settings that have already been merged from all sources, so that no client repeats it."""


def client_settings(
    given: Mapping[str, object], file: str | os.PathLike[str] | None = None
) -> MergedSettings:
    """Merge the settings of one client; values are checked only where they are used.

    Raise `SettingError` if the file cannot be read or parsed, a variable with the prefix is
    unknown, or a key store or trust store has an unsupported type.
    """
    if isinstance(given, MergedSettings) and file is None:
        return given
    path = file or os.environ.get(FILE_VARIABLE)
    return MergedSettings(
        {
            **(canonical(_read_file(path)) if path else {}),
            **canonical(_read_environment(os.environ)),
            **canonical(given),
        }
    )


def canonical(given: Mapping[str, object]) -> dict[str, object]:
    """Return settings under their names in the settings table; unknown names are kept.

    Numbers and booleans become text. Settings whose value is None are left out, and other values,
    such as a function that returns a token, are kept.
    """
    texts = {name: _plain(value) for name, value in given.items() if value is not None}
    found: dict[str, object] = {}
    for name, value in texts.items():
        if name not in JAVA_ONLY:
            found[ALIASES.get(name, name)] = value
    for name, value in _java_settings(texts).items():
        found.setdefault(name, value)
    return found


def _plain(value: object) -> object:
    """Convert booleans and numbers to text, as in a settings file."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _java_settings(given: Mapping[str, object]) -> dict[str, object]:
    """Translate the settings in `JAVA_ONLY`."""
    found: dict[str, object] = {}
    login = given.get("sasl.jaas.config")
    if login is not None:
        for key, value in _JAAS.findall(str(login)):
            found[f"sasl.{key}"] = _unquoted(value)
    if "ssl.keystore.password" in given:  # a PKCS#12 store, which only librdkafka reads
        return found | {name: given[name] for name in JAVA_ONLY if name in given and "key" in name}
    for store in ("truststore", "keystore"):
        name = f"ssl.{store}.type"
        kind = str(given.get(name, "PEM"))
        if kind.upper() != "PEM":
            raise InvalidSettingError(
                name, kind, "expected PEM; convert the store with openssl or keytool"
            )
    location = given.get("ssl.keystore.location")
    if location is not None:
        found |= {"ssl.certificate.location": location, "ssl.key.location": location}
    return found


def _unquoted(text: str) -> str:
    if text[:1] in {'"', "'"}:
        return re.sub(r"\\(.)", r"\1", text[1:-1])
    return text


# -- sources ---------------------------------------------------------------------------------------


def _read_file(path: str | os.PathLike[str]) -> dict[str, str]:
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise SettingError(f"cannot read client settings from {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise SettingError(f"client settings in {path} are not UTF-8 text") from None
    source = read_properties(text, str(path))
    for problem in source.problems:
        raise SettingError(str(problem))
    return {entry.name: str(entry.raw) for entry in source.entries}


def _read_environment(variables: Mapping[str, str]) -> dict[str, str]:
    names = {variable_of(name): name for name in known_names()}
    found: dict[str, str] = {}
    for variable, value in variables.items():
        if not variable.startswith(CLIENT_PREFIX) or not value or variable == FILE_VARIABLE:
            continue
        if variable in names:
            found[names[variable]] = value
        elif not _SERVICE_LINK.fullmatch(variable.removeprefix(CLIENT_PREFIX)):
            near = difflib.get_close_matches(variable, names, n=1)
            hint = f"did you mean {near[0]}?" if near else "remove it"
            raise SettingError(f"{variable} does not correspond to a client setting; {hint}")
    return found


def variable_of(name: str) -> str:
    """Return the environment variable for a client setting."""
    return CLIENT_PREFIX + name.upper().replace(".", "_")


def known_names() -> Iterable[str]:
    """Return the names of all client settings, including alternative names."""
    yield from (row.name for row in CLIENT_SETTINGS)
    yield from ALIASES
    yield from JAVA_ONLY
